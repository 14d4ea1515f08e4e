"""Runs as they lie on disk, grouped by method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms.base import Algorithm
from ..config import Config, complete
from ..errors import RunError
from ..expression import parse
from ..local import Trainer

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One method and seed: its summary (None while it is running) and its rounds."""

    path: Path
    expression: str
    seed: int
    clients: int
    rounds: list[Record]
    summary: Record | None


@dataclass(frozen=True)
class Arm:
    """One method, all its seeds. ``label`` is short: what all arms share is left out."""

    label: str
    expression: str
    runs: list[Run]


def arms(folders: list[Path]) -> list[Arm]:
    """Every run below ``folders``, by method, in the order of their folders."""
    runs = [run for folder in folders for run in _runs(folder)]
    if not runs:
        raise RunError(f"no runs in {', '.join(map(str, folders))}: a run has a rounds.jsonl")
    by: dict[str, list[Run]] = {}
    for run in runs:
        by.setdefault(run.expression, []).append(run)
    short = labels(list(by))
    return [Arm(short.get(expression) or _name(found), expression, found) for expression, found in by.items()]


def _name(runs: list[Run]) -> str:
    """What a method called itself: of a user's own there is no class here."""
    return next((run.summary["name"] for run in runs if run.summary is not None), runs[0].expression)


def _runs(folder: Path) -> list[Run]:
    if not folder.exists():
        raise RunError(f"{folder} does not exist")
    found = []
    for path in sorted(folder.rglob("rounds.jsonl")):
        rounds = []
        for line in path.read_text().splitlines():
            try:
                rounds.append(json.loads(line))
            except json.JSONDecodeError:
                break  # the line that a kill cut short
        about = _object(path.parent / "run.json")
        if missing := [name for name in ("method", "seed", "clients") if name not in about]:
            raise RunError(f"{path.parent / 'run.json'} is no run's: {missing[0]} is missing")
        summary_path = path.parent / "summary.json"
        summary = _object(summary_path) if summary_path.exists() else None
        found.append(Run(path.parent, about["method"], about["seed"], about["clients"], rounds, summary))
    return found


def _object(path: Path) -> Record:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no run: there is no {path.name} in it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{path} is damaged: it holds no object")
    return found


def labels(expressions: list[str]) -> dict[str, str]:
    """Short names for complete expressions: local training is left out where all have the same.

    None where one of them is a method of the user's own.
    """
    try:
        found = {text: parse(text) for text in expressions}
    except ValueError:
        return {}
    trainers = {complete(trainer) for x in found.values() for trainer in _trainers(x)}
    short = {text: repr(_plain(x) if len(trainers) == 1 else x) for text, x in found.items()}
    if len(set(short.values())) < len(short):
        return {text: repr(x) for text, x in found.items()}
    return short


def _trainers(x: Any) -> list[Trainer]:
    if isinstance(x, Trainer):
        return [x]
    return [t for value in vars(x).values() for t in _trainers(value)] if isinstance(x, Config) else []


def _plain(x: Any) -> Any:
    """The same configuration with local training at its default."""
    if not isinstance(x, Algorithm):
        return x
    known = getattr(x, "__dataclass_fields__", {})
    fields = {n: v for n, v in vars(x).items() if n in known}
    return type(x)(**{n: known[n].default if isinstance(v, Trainer) else _plain(v) for n, v in fields.items()})
