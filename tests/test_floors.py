"""The order of floors: what a room of the package may import lies below it."""

from __future__ import annotations

import ast
from pathlib import Path

from places import SOURCE

# From the ground up. A room imports itself and the rooms before it, and no others.
FLOORS = [
    "errors",
    "key",
    "dice",
    "version",
    "params",
    "ranges",
    "config",
    "kernels",
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
