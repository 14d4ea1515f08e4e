"""What others' code and scripts hold on to: exported names with their arguments, and commands with their options.

They are text in ``public.txt``. A line that goes or changes breaks somebody's script. A new one may come, and so may an
option of a command. ``--golden-rewrite`` writes the file anew, before a release at the latest.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main

from places import SOURCE
from thinwire.cli import app

TEXT = Path(__file__).with_name("public.txt")
PACKAGES = sorted(
    ".".join(("thinwire", *path.parent.relative_to(SOURCE).parts))
    for path in SOURCE.rglob("__init__.py")
    if "__all__" in path.read_text() and "flower" not in path.parts
)


def shown(value: Any) -> str:
    """The default of an argument, without an address in memory."""
    return f"={value!r}" if " at 0x" not in repr(value) else "=..."


def arguments(value: Any) -> str:
    """The arguments of what can be called, without their types."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    try:
        of = inspect.signature(value).parameters.values()
    except ValueError:  # of a class that Python has made
        return ""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    words = [stars.get(p.kind, "") + p.name + ("" if p.default is p.empty else shown(p.default)) for p in of]
    by_name = next((i for i, p in enumerate(of) if p.kind is inspect.Parameter.KEYWORD_ONLY), None)
    if by_name is not None:
        words.insert(by_name, "*")
    return f"({', '.join(words)})"


def names() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield f"{package}.{name}{arguments(getattr(module, name))}"


def commands(command: click.Command, words: str = "thinwire") -> Iterator[str]:
    """Each command with its options, in the order of their names."""
    parameters = command.get_params(click.Context(command))  # some are made when they are asked for
    options = sorted(option for p in parameters for option in (*p.opts, *p.secondary_opts) if option[:2] == "--")
    given = [p.human_readable_name for p in parameters if isinstance(p, click.Argument)]
    yield " ".join([words, *given, *options])
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands(command.commands[name], f"{words} {name}")


def by_command(lines: list[str]) -> dict[str, set[str]]:
    """The options of each command; of an exported name none."""
    parted = [line.partition(" --") for line in lines]
    return {first: set(f"--{options}".split()) if options else set() for first, _, options in parted}


def lost(listed: list[str], lines: list[str]) -> list[str]:
    """What was listed and is there no more."""
    there = by_command(lines)
    return [
        f"{first} {' '.join(sorted(options - there.get(first, set())))}".strip()
        for first, options in by_command(listed).items()
        if first not in there or options - there[first]
    ]


def test_exported_names_and_commands_that_were_there_are_what_they_were(golden_rewrite: bool) -> None:
    lines = [*names(), *commands(typer.main.get_command(app))]
    if golden_rewrite:
        TEXT.write_text("\n".join(lines) + "\n")
    assert lost(TEXT.read_text().splitlines(), lines) == []


def test_what_goes_or_changes_is_named_and_what_comes_is_not() -> None:
    listed = ["thinwire.f(x, y=1)", "thinwire look", "thinwire look layers DIR --json --out"]
    come = ["thinwire.f(x, y=1)", "thinwire.g()", "thinwire look", "thinwire look layers DIR --json --kept --out"]
    assert lost(listed, [*come, "thinwire look pace DIR --out"]) == []
    assert lost(listed, ["thinwire.f(x, y=2)", "thinwire look", "thinwire look layers DIR --out"]) == [
        "thinwire.f(x, y=1)",
        "thinwire look layers DIR --json",
    ]


@pytest.mark.parametrize("words", [["--help"], ["--version"]], ids=" ".join)
def test_help_and_version_do_without_torch(words: list[str]) -> None:
    # A process of its own, which does not begin as a copy of one that has torch.
    code = (
        "import sys; from thinwire.cli import main\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code, stop.code\n"
        "print('loaded:', *sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


HEAVY = ("matplotlib", "pandas", "scipy", "sklearn", "sympy", "torch._dynamo", "torch.distributed.fsdp")
HEAVY += ("torch.distributed.tensor", "torch.testing", "thinwire.ddp", "thinwire.pipeline")
# Up to what a program has imported what it needs: a line of Python.
BEFORE = {
    "a script": "import thinwire as tw; tw.FedAvg, tw.simulate",
    "thinwire run": """
import sys
from thinwire.cli import main
from thinwire.report import table
table.show = lambda *_: sys.exit()  # when all is trained, and nothing drawn
sys.argv = ["thinwire", "run", "FedAvg()", "--data", "digits", "--rounds", "1", "--out", OUT]
try: main()
except SystemExit as stop: assert not stop.code, stop.code""",
}


@pytest.mark.parametrize("program", BEFORE)
def test_what_takes_long_to_import_is_not_imported_before_it_is_used(program: str, tmp_path: Path) -> None:
    # As long as torch, together. What torch imports by itself is not ours to leave out.
    lines = [
        "import sys, torch; own = set(sys.modules)",
        BEFORE[program].replace("OUT", repr(str(tmp_path / "run"))),
        f"print('loaded:', *sorted(set({HEAVY!r}) & set(sys.modules) - own))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_importing_searches_for_no_garbage_and_leaves_the_search_as_it_was() -> None:
    code = """
import gc, torch
searches = []
gc.callbacks.append(lambda phase, about: searches.append(about["generation"]))
import thinwire
thinwire.FedAvg
print(searches, gc.isenabled(), gc.get_freeze_count())
gc.disable()
thinwire.ddp
print(gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] True 0", "False"]


def test_a_field_says_itself_that_it_is_a_keyword_alone() -> None:
    """Type checkers know ``dataclasses.field``, and take what a function of ours gives for a positional argument."""
    hidden = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        makers = {f.name for f in tree.body if isinstance(f, ast.FunctionDef) and "kw_only=" in ast.unparse(f)}
        hidden += [
            f"{path.name}: {ast.unparse(line)}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.value, ast.Call)
            if isinstance(line.value.func, ast.Name) and line.value.func.id in makers
        ]
    assert hidden == []


def test_each_test_that_is_left_out_for_its_seconds_is_there() -> None:
    for name in (TEXT.parent / "seconds.txt").read_text().split():
        path, _, test = name.partition("::")
        assert f"def {test}(" in (TEXT.parent / path).read_text(), name
