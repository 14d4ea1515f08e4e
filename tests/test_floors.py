"""The order of floors: what a room of the package may import lies below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from places import SOURCE

# From the ground up. A room imports itself and the rooms before it, and no others.
FLOORS = [
    "importing",
    "errors",
    "key",
    "dice",
    "version",
    "kernels",
    "params",
    "ranges",
    "config",
    "template",
    "wire",
    "passing",
    "schedules",
    "data",
    "losses",
    "task",
    "models",
    "problem",
    "local",
    "links",
    "optimizers",
    "robust",
    "algorithms",
    "train",
    "run",
    "federated",
    "ddp",
    "pipeline",
    "hf",
    "deploy",
    "expression",
    "studies",
    "report",
    "look",
    "cli",
    "__main__",
    "public",
]


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, room) of every import of the package's own in a file, inside functions too."""
    package = path.relative_to(SOURCE).parts[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) + 1 - node.level]
            inside = (*above, *(node.module or "").split("."))
            first = [part for part in inside if part]
            found += [(node.lineno, room) for room in first[:1] or [alias.name for alias in node.names]]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [
                (node.lineno, ".".join(name.split(".")[1:2])) for name in names if name.split(".")[0] == "thinwire"
            ]
    return found


def test_every_room_is_on_a_floor():
    rooms = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.name not in ("__pycache__", "py.typed")}
    assert rooms - {"__init__"} == set(FLOORS)


def test_no_import_runs_upwards():
    upwards = []
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":  # it has no code but what hands on the public names
            continue
        for line, other in imports(path):
            if other != room and (other not in FLOORS or FLOORS.index(other) > FLOORS.index(room)):
                upwards.append(f"{path.relative_to(SOURCE)}:{line} imports {other}")
    assert upwards == []


NOUNS = {"bound", "embed", "feed", "need", "proceed", "seed", "speed"}  # or verbs, that only look like participles
IRREGULAR = {"begun", "built", "chosen", "drawn", "found", "given", "held", "kept", "known", "left", "lost", "made"}
IRREGULAR |= {"seen", "sent", "shown", "taken", "told"}


def nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Every node of a kind in the package's source, with its file."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        yield from ((path.relative_to(SOURCE), node) for node in ast.walk(tree) if isinstance(node, kind))


def test_a_function_is_a_verb_or_a_noun() -> None:
    """At most 40 are bare past participles, each since the field says so."""
    bare = [f"{path}: {node.name}" for path, node in nodes(ast.FunctionDef) if is_participle(node.name.strip("_"))]
    assert len(bare) <= 40, "\n".join(sorted(bare))


def is_participle(name: str) -> bool:
    return (name.endswith("ed") and "_" not in name and name not in NOUNS) or name in IRREGULAR


def test_no_value_is_called_after_how_it_came() -> None:
    """``found`` says of nothing what it is."""
    stored = [(path, node) for path, node in nodes(ast.Name) if isinstance(node.ctx, ast.Store)]
    named = [f"{path}:{node.lineno}" for path, node in stored if node.id == "found"]
    assert stored
    assert not named, named
