"""Runs as they lie on disk, grouped by method, whatever kind of training they are of.

A run's folder has ``run.json`` (what it is), ``rounds.jsonl`` and, when it is complete, ``summary.json``. A line of
``rounds.jsonl`` is a round of federated training, or an evaluation of data-parallel or pipelined training. It has

- ``round``, the number of the round, or ``step``, the number of steps made: the run's unit;
- ``up_bytes`` and ``down_bytes``, sent since the line before. Up is from clients to the server, and down from the
  server to clients, once for each client. Of data-parallel training up is what one worker gave to collectives, and
  down what it got back. Of pipelined training up are activations, over all boundaries between parts, and down error
  gradients;
- ``train_loss``, the mean since the line before, or null;
- ``accuracy`` (0 to 1; where pictures are segmented ``dice``, 0 to 1), ``test_loss`` and further metrics of the model
  on the test set, where it was evaluated;
- ``served_accuracy``, ``served_loss`` and so on, the same of a model that is served beside it (Averaged);
- ``predicted_accuracy``, ``predicted_loss`` and so on, the same of a method's own prediction (FedSM's by its selector);
- ``client_accuracy`` and more, the same of clients' own tests: the mean over clients, its ``_spread``, ``_p10`` and
  ``_worst``, and the means ``_before`` a client's model was adapted and of the model that all share (``_shared``);
- ``chosen``, of the first round by a method that :class:`~thinwire.algorithms.Auto` chose: the ``round``, the
  ``expression``, the ``start`` that it goes with, and ``why``, sentences;
- ``seconds``, what it took here since the line before.

Further keys belong to one kind: ``clients``, ``up_payload`` and others to rounds; ``reduced_bytes``,
``gathered_bytes``, ``accuracy_x``, ``lam``, ``residual`` and others to data-parallel steps; ``forward_bytes`` and
``backward_bytes``, a list by boundary, to pipelined ones, and with ``--record staleness`` ``moved``, ``weights``,
``difference``, ``gradient`` and ``part_parameters``, a list by part (:class:`~thinwire.studies.Pipelined` says of
what). ``clock``, of rounds and of pipelined steps, are simulated seconds since the run began.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..config import Config, complete
from ..errors import RunError
from ..expression import parse
from ..local import LocalAdam, LocalAdamW, LocalSGD, Trainer
from .types import find_odd_value

Record = dict[str, Any]
FORMAT = 3  # of study.json
EVERY_LINE = {
    "federated": ("round", "up_bytes", "down_bytes", "slowest_bytes", "up_floats", "seconds", "clock"),
    "data-parallel": ("step", "up_bytes", "down_bytes", "reduced_bytes", "gathered_bytes", "seconds"),
    "pipelined": ("step", "up_bytes", "down_bytes", "forward_bytes", "backward_bytes", "seconds", "clock"),
}
"""What every line of ``rounds.jsonl`` has, by the kind of the run. The first is its unit: what it is numbered by."""


def unit_of(kind: str) -> str:
    """The key that numbers the lines of a kind of run: "round" or "step"."""
    return EVERY_LINE[kind][0]


def number_of(line: Record) -> tuple[str, int]:
    """The unit of a line, of whatever kind its run is, and how many it was made after: ("round", 3)."""
    return next((unit, int(line[unit])) for unit in map(unit_of, EVERY_LINE) if unit in line)


@dataclass(frozen=True)
class RecordedRun:
    """A run of one method and seed: its ``run.json``, its rounds, and its summary (None while it is running)."""

    path: Path
    about: Record
    rounds: list[Record]
    summary: Record | None

    @property
    def expression(self) -> str:
        """The method, complete."""
        return str(self.about["method"])

    @property
    def seed(self) -> int:
        """The seed of everything that was drawn."""
        return int(self.about["seed"])

    @property
    def kind(self) -> str:
        """A key of ``EVERY_LINE``."""
        return str(self.about.get("kind", "federated"))

    @property
    def unit(self) -> str:
        """The key that numbers the lines: "round" or "step"."""
        return unit_of(self.kind)

    @property
    def length(self) -> int:
        """The rounds or steps that were made."""
        return int(self.rounds[-1][self.unit]) if self.rounds else 0


def lacks(run: RecordedRun, what: str, kind: str, how: str) -> RunError:
    """The error of a run without what is looked at: of which kind of run it is recorded, and how."""
    if run.kind != kind:
        return RunError(f"{run.path} has no {what}: it is {run.kind}, and runs that are {kind} have them")
    if not run.rounds:
        return RunError(f"{run.path} has no {what} yet: its first {run.unit} is not made")
    return RunError(f"{run.path} has no {what}: {how}")


@dataclass(frozen=True)
class Arm:
    """A method with all its seeds. ``label`` is short: what all arms share is left out."""

    label: str
    expression: str
    runs: list[RecordedRun]

    @property
    def kind(self) -> str:
        """The kind of all its runs: a key of ``EVERY_LINE``."""
        return self.runs[0].kind

    @property
    def unit(self) -> str:
        """The key that numbers the lines: "round" or "step"."""
        return self.runs[0].unit


def arms(folders: list[Path]) -> list[Arm]:
    """Every run below ``folders``, by method, in the order of their folders. Raises :class:`RunError`."""
    runs = list({run.path.resolve(): run for folder in folders for run in _runs(folder)}.values())
    if not runs:
        raise RunError(f"no runs in {', '.join(map(str, folders))}: a run has a rounds.jsonl")
    other = next((run for run in runs if run.kind != runs[0].kind), None)
    if other is not None:
        kinds = f"{runs[0].path} is {runs[0].kind}, {other.path} is {other.kind}"
        raise RunError(f"{kinds}: these share no table and no axis, so name folders of one kind")
    by: dict[str, list[RecordedRun]] = {}
    for run in runs:
        by.setdefault(run.expression, []).append(run)
    names = {expression: _name(same) for expression, same in by.items()}
    short = labels(names)
    return [
        Arm(f"{short[expression]} ({said})" if said else short[expression], expression, some)
        for expression, same in by.items()
        for said, some in _apart(same).items()
    ]


def comparable(arm: Arm) -> Arm:
    """The runs that figures are of: those that are complete; where none is, all, up to the line that all of them have.

    So all figures of a method are of the same seeds, and a seed that has only begun changes none of them.
    """
    done = [run for run in arm.runs if run.summary is not None]
    begun = [run for run in arm.runs if run.rounds]
    if done or not begun:
        return replace(arm, runs=done or arm.runs)
    common = min(run.length for run in begun)
    cut = [replace(run, rounds=[line for line in run.rounds if line[run.unit] <= common]) for run in begun]
    return replace(arm, runs=cut)


def study(run: RecordedRun) -> Record:
    """The ``study.json`` of the study that a run is a part of. Empty where there is none."""
    method = run.path.resolve().parent
    file = method.parent / "study.json"
    record = read(file) if file.exists() else {}
    return record if method.name in record.get("folders", ()) else {}  # else the run lies below another's study


def planned_length(run: RecordedRun) -> int | None:
    """The rounds or steps that a run is to have, where that is known."""
    name = f"{run.unit}s"
    wanted: int | None = study(run).get(name, run.about.get(name))
    return wanted


def not_begun(run: RecordedRun) -> dict[str, list[int]]:
    """The seeds that have not begun, by each method's folder, in the study that a run is a part of."""
    place, record = run.path.resolve().parent.parent, study(run)
    return {
        folder: [seed for seed in record["seeds"] if not (place / folder / f"seed-{seed}" / "rounds.jsonl").exists()]
        for folder in record.get("folders", ())
        if "seeds" in record
    }


def setting(run: RecordedRun) -> Record:
    """The setting of a run besides its method and its seed, as its study and itself have it."""
    own = {name: value for name, value in run.about.items() if name not in OF_NO_SETTING}
    return {name: value for name, value in study(run).items() if name not in OF_NO_RUN} | own


OF_NO_RUN = (
    *("kind", "format", "methods", "folders", "use", "seeds", "data_dir", "setting", "evaluate_every"),
    *("checkpoint_every", "device", "record", "forward", "backward"),
)
"""What a study says of all its runs, or of what changes no result."""
OF_NO_SETTING = (
    *("kind", "name", "method", "seed", "model", "data", "test", "examples", "parameters", "versions", "device"),
    *("plan", "evaluate_every", "downlink", "staleness", "forward", "backward"),
)
"""What ``run.json`` says besides the setting: what the method and the seed make, and what changes no result."""


def _apart(runs: list[RecordedRun]) -> dict[str, list[RecordedRun]]:
    """Runs of one method by what sets them apart besides their seeds: other settings, or the same seed once more."""
    each = [setting(run) for run in runs]
    names = dict.fromkeys(name for one in each for name in one)
    differ = [name for name in names if any(one.get(name) != each[0].get(name) for one in each)]
    by: dict[str, list[RecordedRun]] = {}
    for run, one in zip(runs, each, strict=True):
        by.setdefault(", ".join(f"{name} {_value_text(one.get(name))}" for name in differ), []).append(run)
    groups: dict[str, list[RecordedRun]] = {}
    for said, some in by.items():
        twice = len({run.seed for run in some}) < len(some)
        places = [run.path.resolve().parent.parent for run in some]
        common = os.path.commonpath(places)
        for run, folder in zip(some, places, strict=True):
            place = f"in {folder.relative_to(common)}" if twice else ""
            groups.setdefault(", ".join(filter(None, (said, place))), []).append(run)
    return groups


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_value_text, value)) or "none"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _name(runs: list[RecordedRun]) -> str:
    """The name that a method gave itself: of a user's own there is no class here."""
    return next(
        (about["name"] for run in runs for about in (run.about, run.summary or {}) if "name" in about),
        runs[0].expression,
    )


def _runs(folder: Path) -> list[RecordedRun]:
    if not folder.exists():
        raise RunError(f"{folder} does not exist")
    runs = []
    for path in sorted(folder.rglob("rounds.jsonl")):
        about, ended = read(path.parent / "run.json"), path.parent / "summary.json"
        if missing := [name for name in ("method", "seed") if name not in about]:
            raise RunError(f"{path.parent / 'run.json'} is no run's: {missing[0]} is missing")
        if type(about["seed"]) is not int:
            raise RunError(f"{path.parent / 'run.json'} is no run's: its seed is {about['seed']!r}")
        if about.get("kind", "federated") not in EVERY_LINE:
            raise RunError(f"{path.parent / 'run.json'}: kind is {about['kind']!r}; known are {', '.join(EVERY_LINE)}")
        summary = read(ended) if ended.exists() else None  # before the lines: a run that ends meanwhile has them all
        run = RecordedRun(
            path.parent, about, list(read_lines(path, EVERY_LINE[about.get("kind", "federated")])), summary
        )
        numbers = [line[run.unit] for line in run.rounds]
        if odd := [(a, b) for a, b in pairwise(numbers) if b <= a]:
            raise damage(path, f"after {run.unit} {odd[0][0]} stands {run.unit} {odd[0][1]}")
        made = int((summary or {}).get(f"{run.unit}s", 0))
        if run.length < made:
            raise damage(path, f"it ends after {run.unit} {run.length}, and {ended.name} says that {made} were made")
        runs.append(run)
    return runs


def read_lines(path: Path, needed: Sequence[str] = ()) -> Iterator[Record]:
    """The objects in a file of JSON lines, but for a last line that a kill cut short.

    Raises :class:`RunError` for any other line that is no object, lacks one of the keys ``needed``, or has a value of
    another type (:mod:`thinwire.studies.types`).
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                one = json.loads(line)
            except json.JSONDecodeError:
                if not line.endswith("\n") or next(file, None) is None:
                    return
                raise damage(path, f"line {number} is no JSON") from None
            if not isinstance(one, dict):
                raise damage(path, f"line {number} holds no object")
            if missing := [name for name in needed if name not in one]:
                raise damage(path, f"line {number} has no {missing[0]}")
            if odd := find_odd_value(path.name, one):
                raise damage(path, f"line {number}: {odd}")
            yield one


def damage(path: Path, why: str) -> RunError:
    """The error of a file of a run that is not as the run wrote it."""
    return RunError(f"{path} is damaged: {why}; put it back as it was, or delete the run's folder and train it anew")


def read(path: Path) -> Record:
    """The object in a JSON file. Raises :class:`RunError` where there is none, or it or a value is of another type."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no run: there is no {path.name} in it") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(record, dict):
        raise RunError(f"{path} is damaged: it holds no object")
    if odd := find_odd_value(path.name, record):
        raise RunError(f"{path} is damaged: {odd}")
    return record


def description(out: Path) -> Record:
    """The contents of a folder's ``study.json``. Raises :class:`RunError` where there is none of this version's."""
    path = out / "study.json"
    if not out.exists():
        raise RunError(f"{out} does not exist")
    if not path.exists():
        held = "a study of a version before study.json: go on with that version, or begin it anew in another folder"
        raise RunError(f"{out} holds {held if _earlier(out) else 'no study: there is no study.json in it'}")
    record = read(path)
    if record.get("format") != FORMAT:
        other = f"its format is {record.get('format')}, and this one reads {FORMAT}"
        raise RunError(f"{path} is of another version of thinwire ({other}): go on with that version, or begin it anew")
    return record


def _earlier(out: Path) -> bool:
    """True for a folder with the file of a study of an earlier version. A single run has a run.json too."""
    return (out / "ddp.json").exists() or ((out / "run.json").exists() and "methods" in read(out / "run.json"))


def labels(names: dict[str, str]) -> dict[str, str]:
    """Short names by complete expression, of these names: local training is left out where all have the same."""
    try:
        methods = {text: parse(text) for text in names}
    except ValueError:  # one is a method of the user's own, whose module may not be here
        return _without_training(names)
    if not all(isinstance(x, Algorithm | Auto) for x in methods.values()):
        return names  # a link's name may be that of a data-parallel method too
    kinds = {complete(trainer) for x in methods.values() for trainer in trainers(x)}
    short = {text: repr(_plain(x) if len(kinds) == 1 else x) for text, x in methods.items()}
    if len(set(short.values())) < len(short):
        return {text: repr(x) for text, x in methods.items()}
    return short


def choices(run: RecordedRun) -> list[Record]:
    """The choices of a run that chooses its method itself, oldest first."""
    return [line["chosen"] for line in run.rounds if "chosen" in line]


def trainers(x: Any) -> list[Trainer]:
    """The trainers of clients, anywhere in a method."""
    if isinstance(x, Trainer):
        return [x]
    return [t for value in vars(x).values() for t in trainers(value)] if isinstance(x, Config) else []


TRAINERS = {cls.__name__ for cls in (LocalSGD, LocalAdam, LocalAdamW)}


def _without_training(names: dict[str, str]) -> dict[str, str]:
    """The same by the names as they are written; these, where that is not clear."""
    kinds, short = set[str](), dict[str, str]()
    for text, name in names.items():
        try:
            tree = ast.parse(name, mode="eval")
        except SyntaxError:
            return names
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            kinds |= {ast.unparse(x) for x in (*call.args, *(k.value for k in call.keywords)) if _trains(x)}
            if call.args and _trains(call.args[-1]):
                call.args.pop()
            call.keywords = [k for k in call.keywords if not _trains(k.value)]
        short[text] = ast.unparse(tree)
    return short if len(kinds) == 1 and len(set(short.values())) == len(short) else names


def _trains(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TRAINERS


def _plain(x: Any) -> Any:
    """The same configuration with local training at its default."""
    if not isinstance(x, Algorithm | Auto):
        return x
    known = getattr(x, "__dataclass_fields__", {})
    fields = {n: v for n, v in vars(x).items() if n in known}
    return type(x)(**{n: known[n].default if isinstance(v, Trainer) else _plain(v) for n, v in fields.items()})
