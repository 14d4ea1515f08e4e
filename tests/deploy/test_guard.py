"""Nothing that a test or a federation has started outlives it, and none of it multiplies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guard import Guard, marked

from places import ROOT

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="another system's processes show nothing"
)

# A child in a session of its own, which starts another in yet another, as Flower's do; both would sleep for long.
STARTS = """
import pathlib, subprocess, sys, time
inner = "import time; time.sleep(600)"
outer = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
outer += "; print('both', flush=True); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", outer], start_new_session=True, stdout=subprocess.PIPE)
assert started.stdout.readline() == b"both\\n"
"""
UNGUARDED = f"""
def test_that_leaves_processes(tmp_path):
    import pathlib, subprocess, sys, time
    subprocess.run([sys.executable, "-c", {STARTS!r}], check=True)
    if pathlib.Path("wait").exists():
        pathlib.Path("started").touch()
        time.sleep(600)
"""


def until(condition: Callable[[], object], seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """An environment under a guard of this test's own, which sees what the others leave."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    found["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    guard = Guard(found)
    yield found | {"MARK": guard.mark}
    guard.close()


def left(environment: dict[str, str]) -> list[str]:
    """The commands of what runs under the guard of the fixture."""
    return [one.command for one in marked(environment["MARK"])]


def test_what_has_the_mark_is_found_and_ends_with_the_guard() -> None:
    environment = dict(os.environ)
    guard, other = Guard(environment), Guard({})
    subprocess.run([sys.executable, "-c", STARTS], env=environment, check=True)
    until(lambda: len(guard.left()) == 2)
    assert other.left() == []
    other.close()
    assert len(guard.left()) == 2
    guard.close()
    assert guard.left() == []


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_has_started_ends(ended: signal.Signals, environment: dict[str, str]) -> None:
    code = f"import os, time, guard; guard.Guard(os.environ); exec({STARTS!r}); time.sleep(600)"
    path = {"PYTHONPATH": str(ROOT / "examples" / "flower")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment | path)
    until(lambda: len(left(environment)) == 4)  # it, its guard, and the two
    process.send_signal(ended)
    process.wait()
    until(lambda: not left(environment))


@pytest.fixture
def session(tmp_path: Path) -> list[str]:
    """A session of pytest with the plugin, and with no other test than that above."""
    (tmp_path / "test_one.py").write_text(UNGUARDED)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "guarded", "--rootdir", str(tmp_path)]
    return [sys.executable, *words, "-c", os.devnull, str(tmp_path / "test_one.py")]


def test_a_session_that_leaves_processes_fails_and_names_them(
    session: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    environment |= {"PYTHONPATH": str(ROOT / "tests"), "THINWIRE_TEST_GRACE": "1"}
    done = subprocess.run(session, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 processes were left, and are killed" in done.stdout
    assert done.stdout.count("test_one.py::test_that_leaves_processes (call) left process ") == 2
    until(lambda: not left(environment))


def test_nothing_is_left_of_a_session_that_is_killed(
    session: list[str], tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "wait").touch()
    environment |= {"PYTHONPATH": str(ROOT / "tests")}
    process = subprocess.Popen(session, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    until((tmp_path / "started").exists)
    assert len(left(environment)) == 4  # it, its guard, and the two
    process.kill()
    process.wait()
    until(lambda: not left(environment))
