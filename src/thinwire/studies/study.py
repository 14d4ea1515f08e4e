"""A study, whatever it trains: several methods on one problem, with some seeds.

A study is a folder. ``study.json`` says all there is to know of it. Each method and seed has a folder of its own in it,
``01-FedAvg/seed-0``, with the files that :mod:`thinwire.studies.read` describes and a checkpoint. Table and plots are
made from what is on disk.

Each kind of study is a subclass of :class:`Study` in a file of its own, which has all that is particular to it: the
fields that are its options, five hooks that train (``method``, ``problem``, ``rehearse``, ``train``, ``title``), and
what table, curves and report show of its runs. Another kind, such as local SGD of language models, is such a file, a
row in ``KINDS`` of :mod:`thinwire.studies`, and a row in ``EVERY_LINE`` of :mod:`thinwire.studies.read`.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_type_hints

from .. import data as sets
from .. import models
from ..config import NO_FIT, Config, complete, differing, fit_value, hint
from ..data import Augment
from ..errors import NonFinite, RunError, WireError, nearest, require
from ..expression import settings, vocabulary
from ..problem import Problem
from ..ranges import check_ranges, of_option
from ..run.folder import lock_folder, make_folder, write_atomic
from ..run.ranks import rank
from .axes import BOTH, UP, WALL, Axis
from .cells import Column, Row, megabytes_text, seconds_text
from .expressions import option, parse_typed, resolve
from .read import FORMAT, Arm, Record, RecordedRun, description, read, unit_of


def option_field(default: Any, help: str, **more: Any) -> Any:
    """A field that is an option of the command line: its default, and the option's help text.

    Its range is a part of its annotation (:mod:`thinwire.ranges`).
    """
    return field(default=default, metadata={"help": help}, **more)


class Numbers(NamedTuple):
    """A field that is typed as numbers with commas between them: what they are, an example, and its help text."""

    what: str
    example: str
    kind: type
    help: str


@dataclass(frozen=True)
class StudyRun:
    """A run of a study.

    ``on_record`` is called with each line of ``rounds.jsonl``. With ``progress`` a live line is on standard error.
    """

    method: Any
    seed: int
    problem: Problem
    on_record: Callable[[Record], None] | None = None
    progress: bool = False


@dataclass(frozen=True)
class Study(ABC):
    """Everything that all kinds of studies are made from; what ``study.json`` holds.

    - ``methods``: complete expressions, all different.
    - ``folders``: one a method, within the study's. Chosen when the study begins.
    - ``use``: modules of the user's own methods and links.
    - ``data``, ``model``, ``augment``: as they are typed. Without ``model`` one that suits the data.
    - ``seeds``: each method is trained once with each.
    - ``data_dir``: where data sets lie. It makes no other study.
    """

    kind: ClassVar[str]
    may_change: ClassVar[tuple[str, ...]] = ("data_dir",)
    """The fields that a study may have otherwise when it goes on."""

    methods: tuple[str, ...]
    folders: tuple[str, ...] = ()
    use: tuple[str, ...] = option_field((), "A module with methods or links of your own. Repeatable.")
    data: str = option_field("digits", f"{', '.join(sets.names())}.")
    model: str | None = option_field(None, f"{', '.join(models.names())}; by default one that suits the data.")
    augment: tuple[str, ...] = option_field((), "Crop(4), Flip(): pictures changed batch by batch. Repeatable.")
    seeds: tuple[int, ...] = (0,)
    data_dir: str | None = option_field(
        None, "Where data sets lie (else THINWIRE_DATA, a cache, or a download).", compare=False
    )

    def __post_init__(self) -> None:
        """All that can be seen without data is looked at here. Raises ``ValueError``, naming the option or field."""
        require(len(self.methods) > 0, f"name at least one method, such as {self.example}")
        require(len(set(self.methods)) == len(self.methods), "a method is named twice: leave one of the two out")
        objects = self.parse_methods()
        if not self.folders:
            object.__setattr__(self, "folders", tuple(f"{i:02d}-{slug(x)}" for i, x in enumerate(objects, 1)))
        require(len(self.folders) == len(self.methods), "folders: as many as there are methods")
        require(len(self.seeds) > 0, "--seeds names no seed")
        require(len(set(self.seeds)) == len(self.seeds), "--seeds names a seed twice")
        for what, name, there in (("data set", self.data, sets.names()), ("model", self.model, models.names())):
            fits = name is None or name in there
            require(fits, f"no {what} {name!r}{nearest(str(name), there)}; known are {', '.join(there)}")
        self.augments()
        check_ranges(type(self), vars(self), of_option)

    # -- what a kind of study fills -------------------------------------------

    example: ClassVar[str]
    """A method of this kind, for errors."""
    noun: ClassVar[str]
    """What a method of this kind is, for errors of other kinds: "a data-parallel method"."""
    outermost: ClassVar[Mapping[str, type]] = {}
    """What its expressions begin with, besides what every expression may have."""

    @staticmethod
    @abstractmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Config:
        """The method that an expression describes.

        ``use`` are modules of the user's own, ``defaults`` what the expression leaves open. Raises
        :class:`ExpressionError`, for a method of another kind too.
        """

    @abstractmethod
    def problem(self, seed: int) -> Problem:
        """Model, tasks and tests: the same for all methods of a seed."""

    @abstractmethod
    def rehearse(self, method: Any, problem: Problem) -> None:
        """Build a run without training it. Raises what is wrong with it."""

    @abstractmethod
    def train(self, job: StudyRun, folder: Path) -> None:
        """Train one method into its folder, from its last checkpoint on, and leave a ``summary.json``.

        Raises :class:`NonFinite` where training diverges.
        """

    @abstractmethod
    def title(self, about: Record) -> str:
        """The title of the table; ``about`` is a ``run.json``."""

    # -- what a kind may say of its command --------------------------------------

    asks: ClassVar[tuple[str, str]] = "methods", "Methods."
    """What expressions are called, and their help text."""
    out: ClassVar[str] = "runs/latest"
    """The folder that is taken where none is named."""
    open: ClassVar[Mapping[str, tuple[type, str]]] = {}
    """What expressions may leave open: by the name of an option its type and its help text."""
    lists: ClassVar[Mapping[str, Numbers]] = {}
    """The fields that are typed with commas."""
    settings: ClassVar[tuple[type, ...]] = ()
    """Configurations besides the study's own, whose fields are options too."""
    resumes: ClassVar[bool] = False
    """Whether the command has ``--resume``, as ``thinwire resume`` does it too."""

    @classmethod
    def from_options(cls, methods: Sequence[str], options: Mapping[str, Any]) -> Study:
        """The study that a command line describes: ``options`` by their names, None where one was not typed.

        ``seed`` is that of a study without ``seeds``.
        """
        values = {f.name: options[f.name] for f in fields(cls) if options.get(f.name) is not None}
        values.setdefault("seeds", (options.get("seed", 0),))
        left = {name: options.get(name) for name in cls.open}
        return cls(cls.resolve(methods, values.get("use", ()), left), **values)

    # -- what a kind may say of its runs: table, curves and report ---------------

    last: ClassVar[int] = 1
    """Evaluations at the end of a run, whose mean a method is judged by."""
    least: ClassVar[tuple[str, ...]] = ("s here", "best")
    """The columns that a narrow terminal leaves out, these first."""
    notes: ClassVar[Mapping[str, str]] = {}
    """What the name of a column leaves unsaid."""
    axes: ClassVar[Mapping[str, Axis]] = {
        "bytes_up": Axis(UP, "MB sent"),
        "bytes_total": Axis(BOTH, "MB sent, both directions"),
        "wall_seconds": Axis(WALL, "wall-clock seconds"),
    }
    """What curves are drawn against besides rounds or steps. A name that ends with "seconds" is no count of bytes."""
    ways: ClassVar[Mapping[str, str]] = {"up_bytes": "up", "down_bytes": "down"}
    """What all bytes of a run are made of: keys of its lines, and what they are called."""
    ways_said: ClassVar[str] = "All bytes of a run, in the mean over seeds."
    absent: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """By section of the report that runs may lack: in whose expressions it could be, and what is said in its place."""

    @classmethod
    def knows(cls, name: str, names: Mapping[str, type]) -> bool:
        """True for the ``name`` that an expression of this kind begins with; ``names`` are those of all expressions."""
        return name in cls.outermost and name not in names

    @staticmethod
    def plain(expression: str) -> bool:
        """True for the method that sends everything, which shares of bytes refer to."""
        return False

    @staticmethod
    def row(arm: Arm) -> Row:
        """The figures in a row of the table that this kind alone has."""
        return {}

    @staticmethod
    def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
        """The columns after the best accuracy."""
        return (
            ("MB up", lambda row: megabytes_text(row["bytes_up"])),
            ("MB down", lambda row: megabytes_text(row["bytes_down"])),
            ("s here", lambda row: seconds_text(row["seconds"])),
        )

    @staticmethod
    def words(about: Record, study: Record) -> list[tuple[str, str | None]]:
        """The setting in words, from a ``run.json`` and its study: names, and what is said of each, or None."""
        return []

    @staticmethod
    def scale(runs: Sequence[RecordedRun], study: Record) -> list[str]:
        """How large the runs are, in words, for the title of their page."""
        return [f"{max(run.length for run in runs)} {runs[0].unit}s"]

    # -- going on -------------------------------------------------------------

    def but(self, **changed: Any) -> Study:
        """The same study, to go on with other values of some fields; None leaves one as it is.

        Raises ``ValueError`` for a field that has to stay.
        """
        given = {name: value for name, value in changed.items() if value is not None}
        for name in given:
            fits = name in self.may_change
            study = f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} study"
            require(fits, f"--{name.replace('_', '-')}: {study} cannot go on with another; leave it out")
        return replace(self, **given)

    # -- methods and runs -----------------------------------------------------

    @classmethod
    def resolve(
        cls, expressions: Sequence[str], use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
    ) -> tuple[str, ...]:
        """Typed methods as complete expressions. Raises ``ValueError`` for a default that none of them leaves open."""
        return resolve(lambda given: tuple(complete(cls.method(text, use, given)) for text in expressions), defaults)

    def parse_methods(self) -> list[Any]:
        """The methods as objects."""
        return [self.method(text, self.use) for text in self.methods]

    def augments(self) -> tuple[Augment, ...]:
        """The changes to the pictures of every training batch."""
        return tuple(option("--augment", x, Augment, settings(Augment), "Crop(4)") for x in self.augment)

    def runs(self) -> Iterator[tuple[Any, int, str]]:
        """Every run: its method, seed and folder within the study."""
        for seed in self.seeds:
            for method, folder in zip(self.parse_methods(), self.folders, strict=True):
                yield method, seed, f"{folder}/seed-{seed}"

    @property
    def length(self) -> int:
        """The rounds or steps of a run."""
        return int(getattr(self, f"{unit_of(self.kind)}s"))

    def done(self, folder: Path) -> bool:
        """True where the run in a folder has all its rounds or steps."""
        path = folder / "summary.json"
        return path.exists() and int(read(path).get(f"{unit_of(self.kind)}s", 0)) >= self.length

    def as_measured(self, problem: Problem) -> Study:
        """The same study with what is measured when it begins, if anything is."""
        return self

    def as_begun(self, out: Path, problems: dict[int, Problem]) -> Study:
        """The same study with what was measured when it began in a folder, or is now. It may enter seeds' problems."""
        return self

    def hints(self) -> Iterator[str]:
        """Hints before it trains, a sentence each."""
        return iter(())

    def check(self, problem: Problem | None = None) -> Problem:
        """Build every run without training it; returns the problem of the first seed, which may be there already.

        What is wrong comes to light here, before a folder is taken.
        """
        problem = problem or self.problem(self.seeds[0])
        for method in self.parse_methods():
            self.rehearse(method, problem)
        return problem

    def run(
        self,
        out: Path,
        on_record: Callable[[str, Record], None] | None = None,
        progress: bool = False,
        problems: Mapping[int, Problem] | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> list[str]:
        """Train what is not complete yet; returns a line for each run that failed.

        A run that diverges, or whose messages are refused, does not end the others: ``on_failure`` is called with its
        folder. ``on_record`` is called with a run's folder and its record. ``problems`` may hold those of some seeds,
        built already. Raises :class:`RunError` for a folder that another process trains in.
        """
        failures, problems = [], dict(problems or {})
        study = self.as_begun(out, problems)
        with contextlib.ExitStack() as stack:
            if rank() == 0:
                stack.enter_context(lock_folder(out))
                study.save(out)  # with what may have changed
            for method, seed, name in study.runs():
                if study.done(out / name):
                    continue
                if seed not in problems:
                    problems = {seed: study.problem(seed)}  # one at a time in memory
                listen = None if on_record is None else (lambda record, name=name: on_record(name, record))
                try:
                    study.train(StudyRun(method, seed, problems[seed], listen, progress), out / name)
                except (NonFinite, WireError) as error:
                    failures.append(f"{method!r}, seed {seed}: {error}")
                    if on_failure is not None:
                        on_failure(name)
        return failures

    # -- to disk and back -----------------------------------------------------

    def values(self) -> dict[str, Any]:
        """The contents of ``study.json``."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        shown = {name: complete(value) if isinstance(value, Config) else value for name, value in held.items()}
        record: dict[str, Any] = json.loads(json.dumps({"kind": self.kind, "format": FORMAT, **shown}))
        return record

    def save(self, out: Path) -> None:
        """Write ``study.json``."""
        write_atomic(out / "study.json", (json.dumps(self.values(), indent=2) + "\n").encode())

    @classmethod
    def of(cls, values: Mapping[str, Any], path: Path) -> Study:
        """The study that ``study.json``, at ``path``, holds. Raises :class:`RunError`, naming what is odd."""
        hints = get_type_hints(cls)
        hints = {f.name: hints[f.name] for f in fields(cls)}
        given = {name: value for name, value in values.items() if name not in ("kind", "format")}
        if unknown := [name for name in given if name not in hints]:
            raise RunError(f"{path} holds {unknown[0]!r}, which this version of thinwire does not know")
        for name, value in given.items():
            if isinstance(value, str) and isinstance(hints[name], type) and issubclass(hints[name], Config):
                given[name] = parse_typed(value, vocabulary())
        made = {k: fit_value(tuple(v) if isinstance(v, list) else v, hints[k]) for k, v in given.items()}
        if odd := [name for name in ("methods", *made) if made.get(name, NO_FIT) is NO_FIT]:
            shown = repr(given[odd[0]]) if odd[0] in given else "missing"
            raise RunError(f"{path} is damaged: {odd[0]} is {shown}, not {hint(hints[odd[0]])}")
        return cls(**made)

    def claim(self, out: Path, overwrite: bool = False, resume: bool = False) -> None:
        """Take a folder: one that is new or empty.

        With ``overwrite`` that of any study, whose files are deleted. With ``resume`` that of this study, which is
        left as it is. Raises :class:`RunError` for any other folder, and for one that another process trains in.
        """
        if resume:
            self.agree(out)
            return
        if out.exists() and any(entry.name != ".study.json.draft" for entry in out.iterdir()):  # which a kill leaves
            if not (out / "study.json").exists():
                raise RunError(f"{out} is not empty and holds no study: choose another --out")
            if not overwrite:
                raise RunError(f"{out} holds a study: `thinwire resume {out}`, another --out, or --overwrite")
            with lock_folder(out):
                for entry in out.iterdir():
                    if entry.is_dir():
                        shutil.rmtree(entry)
                    elif entry.name != ".lock":
                        entry.unlink()
        make_folder(out)
        self.save(out)

    def agree(self, out: Path) -> None:
        """Raise :class:`RunError`, naming the first field that differs, unless a folder holds this study."""
        there = description(out)
        for name, value in self.values().items():
            if name not in self.may_change and there.get(name) != value:
                raise RunError(f"{out} is another study: {differing(name, there.get(name), value)}")


def slug(method: Config) -> str:
    """A method's name as part of a folder's: letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"LocalSGD\([^()]*\)", "", repr(method))).strip("-")[:60]
