"""The server's side: a loop over a Grid that can be killed and started again."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from torch import nn

from ...algorithms.base import Algorithm
from ...errors import require, require_whole
from ...federated.result import Record, Result
from ...ranges import Count
from ...run.folder import open_folder
from ...train.threads import one_thread
from ..server import Deployment
from ..setting import Setting
from ..watch import Board, Lines
from .nodes import CHUNKS, Nodes
from .roster import by_number, digest_of

log = logging.getLogger("thinwire")

SHARES = ("accuracy", "dice")  # from 0 to 1
MEASURES = (*SHARES, "mae", "test_loss")  # by which a run may end


@dataclass(frozen=True)
class ServeSetting(Setting):
    """A :class:`~thinwire.deploy.setting.Setting`, and how long is waited for answers.

    - ``deadline``: seconds after which whoever has not answered is not waited for.
    - ``evaluate_every``: rounds between evaluations. The last round is always evaluated.
    - ``poll``: the pause, in seconds, between two looks for answers.
    - ``target``: what ends the run early: the first round whose ``measure``, as the server evaluates it on its test,
      is at least this, a share such as 0.9, or at most this for ``mae`` and ``test_loss``. None: all rounds are made.
    - ``measure``: "accuracy", "dice", "mae" or "test_loss".

    ``most_examples`` may have a number for each name.
    """

    most_examples: int | Mapping[str, int] | Sequence[int] | None = None  # type: ignore[assignment]
    deadline: int | float = 3600.0
    evaluate_every: Count = 1
    poll: int | float = 0.5
    target: int | float | None = None
    measure: str = "accuracy"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.deadline > 0, f"deadline={self.deadline}: seconds to wait for answers are positive")
        require(0 <= self.poll < math.inf, f"poll={self.poll}: seconds between two looks must not be negative")
        finite = self.target is None or math.isfinite(self.target)
        require(finite, f"target={self.target}: it is never reached; give a finite number, or None for all rounds")
        require(self.measure in MEASURES, f"measure={self.measure!r}: it is one of {', '.join(MEASURES)}")
        beyond = self.target is not None and self.measure in SHARES and self.target > 1
        require(not beyond, f"target={self.target}: {self.measure} is a share, at most 1: it is never reached")

    def reaches(self, record: Record) -> bool:
        """Whether a round's record ends the run. Raises ``ValueError`` for a measure that its test does not say."""
        if self.target is None:
            return False
        if self.measure not in record:  # nor is any, in a round that is not evaluated
            known = [name for name in MEASURES if name in record]
            require(
                not known, f"measure={self.measure!r}: the server's test says {', '.join(known)}; name one of these"
            )
            return False
        value = record[self.measure]
        if value is None:  # no finite number
            return False
        return bool(value <= self.target if self.measure in ("mae", "test_loss") else value >= self.target)

    def by_client(self, names: Sequence[str], clients: Any) -> ServeSetting:
        """The same with ``most_examples`` in the order of clients, where it is by name."""
        most = self.most_examples
        if not isinstance(most, Mapping):
            return self
        fits = set(most) == set(names)
        require(fits, f"most_examples={most}: one number, or one for each of clients={clients}")
        return replace(self, most_examples=[most[name] for name in names])


def serve(
    grid: Grid,
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    clients: int | Sequence[str] | Mapping[str, str | None],
    rounds: int,
    setting: ServeSetting = ServeSetting(),
    *,
    test: Any = None,
    out: str | Path | None = None,
    on_round: Callable[[Record], None] | None = None,
    **fields: Any,
) -> Result:
    """Train ``model`` on the clients of a Flower deployment: the body of a ServerApp's ``main``.

    ``clients`` is how many there are in all, or their names: nobody else may take part. A name
    belongs to the key of the node that was first called by it, which is kept in ``out``, or to the
    key that is given, ``clients={name: key}``: the text of its ``.pub`` file. (None for a key is
    whoever says the name first, as long as that node is there: without node authentication a
    node that is started again has another key.)

    ``setting`` is a :class:`ServeSetting`. Other keywords (``sample=10``, ``deadline=600``) replace its fields.
    The first round waits for every client. Then each round ``sample`` of those that are there are called, the first
    ``take`` answers count, and whoever has not answered after ``deadline`` seconds is not waited for. The other
    arguments are those of :func:`thinwire.simulate`.

    With ``out``, a folder, there is a checkpoint after every round; a server that is started
    again with the same arguments goes on from it, whatever killed the one before.
    """
    require_whole(rounds=rounds)
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    setting = ServeSetting.of(setting, fields)
    require(
        setting.target is None or test is not None,
        f"target={setting.target}: the server evaluates nothing without test=, so no round would reach it",
    )
    with one_thread(), open_folder(out, "the server, started with the same arguments,") as folder:
        states = None if folder is None else folder.path / "states"
        names = [] if isinstance(clients, int) else by_number(clients)
        require(len(set(names)) == len(names), f"clients={clients}: the same name is there twice")
        count, setting = clients if isinstance(clients, int) else len(names), setting.by_client(names, clients)
        run = Deployment(algorithm, model, count, setting, test=test, states=states)
        with run.pool:
            if folder is not None:
                run.open(folder, resume=True)
            if names and run.names != names:
                require(not run.names, f"clients={clients}: this run began with {run.names}")
                run.names = names
            if isinstance(clients, Mapping):
                run.owners |= {name: None if key is None else digest_of(key) for name, key in clients.items()}
            if folder is not None and not run.round:
                run.save(folder)  # a server that is killed in the first round goes on with the run that clients know
            where = None if folder is None else folder.path
            crew = Nodes(grid, run, setting.deadline, setting.poll, Board(where, rounds))
            listeners = (lambda record: log.info("round %d of %d: %s", record["round"], rounds, record), on_round)
            with log_lines(where, run):
                result = run.until(
                    rounds,
                    crew.step,
                    evaluate_every=setting.evaluate_every,
                    listeners=listeners,
                    stop=setting.reaches,
                )
            if folder is not None:
                shutil.rmtree(folder.path / CHUNKS, ignore_errors=True)
            return result


@contextlib.contextmanager
def log_lines(folder: Path | None, run: Deployment) -> Iterator[None]:
    """As long as this is entered, what is logged goes to ``log.jsonl`` in the folder too, as lines of JSON."""
    if folder is None:
        yield
        return
    handler = logging.FileHandler(folder / "log.jsonl")
    handler.setFormatter(Lines({"run": run.digest, "round": lambda: run.round + 1}))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
