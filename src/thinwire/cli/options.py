"""Arguments and options that several commands have."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import require


def folder(path: Path | None) -> Path | None:
    """The folder of ``--out``, before anything is computed for it. Raises ``ValueError`` where a file is in the way."""
    there = next((one for one in (path, *path.parents) if one.exists()), None) if path else None
    require(there is None or there.is_dir(), f"--out {path}: {there} is a file; name a folder, which need not exist")
    return path


Methods = Annotated[
    list[str],
    typer.Argument(metavar="EXPR", help='Methods, an argument each, e.g. "FedAvg()" "FedAvg(up=TopK(0.01))".'),
]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR", help="Studies, or single runs.")]
Use = Annotated[list[str] | None, typer.Option("--use", help="A module with methods or links of your own. Repeatable.")]
Seed = Annotated[int, typer.Option(help="Seed of the model and of batches.")]
Seeds = Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: the table has deviations.")]
Out = Annotated[Path, typer.Option(help="A new folder for everything.", callback=folder)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the study that is in --out.")]
LogTo = Annotated[
    list[str] | None,
    typer.Option("--log", help="Show rounds in tensorboard, wandb (offline) or mlflow while they train. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on a line of its own.")]


def print_json(wanted: bool, value: Any) -> None:
    """The last line of a command, where ``--json`` asks for it."""
    if wanted:
        sys.stdout.write(json.dumps(_finite(value), allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """The same with null in place of numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
