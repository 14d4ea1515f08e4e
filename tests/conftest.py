"""What every test shares: checked annotations, one thread, repeatable examples."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import annotations
import figures
import guarded
import processes

annotations.install()

# The same examples in every run: a failure in CI is a failure here.
settings.register_profile("thinwire", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("thinwire")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(guarded)
    pluginmanager.register(annotations)
    pluginmanager.register(figures)
    pluginmanager.register(processes)
    parser.addoption(
        "--first",
        action="store_true",
        help="run each test once, with the first of its parameters, but for those of seconds.txt (make test-fast)",
    )
    parser.addoption(
        "--golden-rewrite",
        action="store_true",
        help="write the recorded (golden) runs anew instead of comparing with them",
    )


SECONDS = Path(__file__).with_name("seconds.txt")
"""Tests and fixtures that take .7 seconds or more with one parameter: ``--durations 0 --durations-min .7``."""

# Those that take longest begin first, so that nobody waits for them at the end.
FIRST = [
    f"test_{name}.py"
    for name in ("flower", "flower_links", "every_method", "every_link", "ddp", "simulate", "docs", "experiments")
]
FIRST += [f"test_{name}.py" for name in ("federation", "cli", "distributed", "schedules", "kernels", "data")]


def _asked(item: pytest.Item) -> list[str]:
    """A test and the fixtures that it asks for, each as a line of seconds.txt."""
    file, _, name = item.nodeid.removeprefix("tests/").partition("[")[0].partition("::")
    return [f"{file}::{name}" for name in (name, *getattr(item, "fixturenames", ()))]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _put_references_later(items)
    if config.getoption("--first"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        left_out = set(SECONDS.read_text().split())
        items[:] = [item for item in reversed(first.values()) if left_out.isdisjoint(_asked(item))]
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def _put_references_later(items: list[pytest.Item]) -> None:
    """Where there are kernels in C, laws of the references in torch are tried a tier after those of the kernels."""
    references = [item for item in items if _parameters(item).get("kernels") == "reference"]
    if not references:
        return
    from thinwire.kernels import native  # which the modules of these have imported

    if native.library() is None:
        return
    for item in references:
        item.add_marker(pytest.mark.soak if item.get_closest_marker("slow") else pytest.mark.slow)


def _parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # How a sum is split over threads changes its last bits, and some tests compare those.
    import torch  # which takes seconds, and no process needs it that only deals tests to others

    torch.set_num_threads(int(os.environ.get("THINWIRE_TEST_THREADS", "1")))


@pytest.fixture
def thinwire(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; gives its exit code, standard output and standard error."""
    from thinwire.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        out = capsys.readouterr()
        return int(stop.value.code or 0), out.out, out.err

    return run


@pytest.fixture(scope="module", params=["compiled", "reference"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Twice: with the kernels in C, and with the references in torch that run where there was no compiler."""
    from thinwire.kernels import native

    if request.param == "compiled":
        if native.library() is None:
            pytest.skip("the kernels are not compiled here, or not asked for")
        yield request.param
        return
    before = native._level()
    yield native.use("reference")
    native.use(before)


@pytest.fixture(scope="session")
def golden_rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether recorded runs are to be written anew."""
    return bool(request.config.getoption("--golden-rewrite"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of data sets."""
    named = os.environ.get("THINWIRE_DATA")
    if not named:
        pytest.skip("THINWIRE_DATA is not set: no folder of data sets to test with")
    folder = Path(named)
    if not folder.is_dir():
        # Set, but wrong: a skip would hide it.
        pytest.fail(f"THINWIRE_DATA names a folder that does not exist: {folder}")
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests were skipped for want of data sets, by name: their one reason stands in this file, above."""
    skipped = {
        report.nodeid.partition("[")[0]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and "THINWIRE_DATA" in report.longrepr[2]
    }
    if skipped:
        terminalreporter.section(f"without data sets {len(skipped)} tests were skipped")
        for name in sorted(skipped):
            terminalreporter.write_line(name)
