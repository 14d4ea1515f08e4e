"""Random schedules of what can go wrong between a server and its clients: the model is never a wrong one.

Disks are lost, folders are replaced by older copies of them, two processes or two machines answer for one client,
calls come twice or long after they were sent, answers come late, twice or never, clients die while they train or once
they have written their next state, the server is killed and goes on from its checkpoint, or from an older copy of it.
No training gives the same twice.

Two things are compared, of every schedule. Each answer that is taken must have been made from the broadcast of its
round and from the state that its client's answers before it, those that were taken, had left. And the model in the end
must be that of a second server, to which nothing happens but that the clients answer what was taken.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from processes import Process
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import OutOfSync, RunError, WireError
from thinwire.federated.client import Reply, unheard
from thinwire.federated.stream import View
from thinwire.run.folder import Folder

CLIENTS, ROUNDS = 3, 4
METHODS = [
    "FedAvg({}, up=ErrorFeedback(TopK(0.3)))",
    "FedAvg({}, up=EF21(TopK(0.3)))",
    "SCAFFOLD({})",
    "FedDC({}, alpha=0.1)",
    "FedDyn({}, alpha=0.1)",
    "FedAvg({}, up=PowerSGD(1))",
    "FedAvg({}, up=LBGM(threshold=0.6))",
    "FedAvg({}, up=LBGM(ErrorFeedback(TopK(0.4)), threshold=0.6), down=EF21(TopK(0.4)))",
    "LUAR(FedAvg({}), recycle=1, layers='tensors')",
    "FedAvg({}, up=ErrorFeedback(TopK(0.4)), down=PerClient(TopK(0.4)))",
]


def method(expression: str) -> tw.Algorithm:
    return tw.parse(expression.format("LocalSGD(0.1, batch=None)"))  # type: ignore[no-any-return]


def small() -> nn.Module:  # 8 parameters
    module = nn.Linear(3, 2)
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape) * (i + 1) / 3)
    return module


MODEL = small()


class Drifting:
    """Three examples, which are elsewhere each time that they are trained on: nothing gives the same twice."""

    def __init__(self, client: int) -> None:
        draw = torch.Generator().manual_seed(client)
        self.x, self.y = torch.randn(3, 3, generator=draw), torch.randn(3, 2, generator=draw)
        self.drift = 0.0

    def __len__(self) -> int:
        return 3

    def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return self.x[indices] + self.drift, self.y[indices]

    def loss(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (module(batch[0]) - batch[1]).square().sum(1)

    def metrics(self, module: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {}


class Killed(Exception):
    """A client's process, by the schedule."""


class Made(NamedTuple):
    """How an answer came about."""

    drift: float
    view: bytes  # of the broadcasts, that it was trained on
    before: bytes  # what the client kept of its rounds
    after: bytes


class Watched(Node):
    """A client that says what it made its answer from. ``meanwhile`` happens while it trains."""

    def __init__(self, algorithm: tw.Algorithm, client: int, folder: Path, drift: float) -> None:
        super().__init__(algorithm, MODEL, Drifting(client), folder)
        self.task.drift, self.made = drift, Made(drift, b"", b"", b"")  # type: ignore[attr-defined]
        self.meanwhile: Callable[[], None] = lambda: None

    def round(self, slot: Any, form: Any, view: Any, own: Any, key: Any) -> Reply:
        before = [tw.dumps(view), tw.dumps(own)]
        reply = super().round(slot, form, view, own, key)
        self.made = Made(self.made.drift, *before, tw.dumps(reply.next))
        self.meanwhile()
        return reply


class Taken(NamedTuple):
    """What the server did in a round: who was there, who was opened anew, whose answers to which round it took."""

    there: list[int]
    reopened: list[int]
    answers: list[tuple[int, int, float]]  # client, round, drift


class Schedule:
    """One of them, from its number."""

    def __init__(self, number: int, folder: Path) -> None:
        self.draw, self.folder = random.Random(number), folder
        self.method = method(METHODS[number % len(METHODS)])
        self.states = number % 4 == 0  # on disk
        self.copies: dict[int, Path] = {}
        self.calls: list[tuple[int, bytes]] = []  # all that were ever sent
        self.flying: list[tuple[int, bytes]] = []  # answers
        self.made: dict[bytes, Made] = {}
        self.faults: dict[str, int] = {}
        self.wrong: list[str] = []
        self.truth: dict[int, bytes] = {}  # what each client must hold: in the checkpoint with the server's state
        self.views: dict[int, bytes] = {}  # of each round
        self.log: list[Taken] = []
        self.backups: list[Any] = []
        self.serve()
        start = self.server.start
        self.fresh = tw.dumps(unheard(self.method, start, self.server.up, None))
        self.kept = self.remembered()

    def remembered(self) -> Any:
        return deepcopy((self.truth, self.views, self.log))

    def serve(self) -> None:
        states = self.folder / "server" / "states" if self.states else None
        self.server = Deployment(self.method, MODEL, CLIENTS, seed=5, states=states)
        self.disk = Folder(self.folder / "server")
        self.server.open(self.disk, resume=True)

    def chance(self, p: float) -> bool:
        return self.draw.random() < p

    def count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    # -- the server -----------------------------------------------------------

    def run(self) -> None:
        for _ in range(3 * ROUNDS):
            if self.server.round >= ROUNDS:
                break
            self.round()

    def round(self) -> None:
        there = [c for c in range(CLIENTS) if self.chance(0.8)] or [self.draw.randrange(CLIENTS)]
        calls = list(self.server.begin(there).items())
        now = self.server.round + 1
        self.views[now] = tw.dumps(self.server.stream.view)
        self.taken, self.pending = Taken(there, [], []), dict[int, Made]()
        self.calls += calls
        due = list(calls)
        for _ in range(self.draw.randrange(2, 10)):
            self.mishap()
            if due and self.chance(0.7):
                self.deliver(*due.pop(self.draw.randrange(len(due))))
            if self.chance(0.15):  # a call that comes again, or only now
                self.count("a call again")
                self.deliver(*self.draw.choice(self.calls[-8:]))
            if self.flying and self.chance(0.7):
                due += self.hand_in()
            if self.chance(0.04):
                self.count("the server killed")
                return self.restart()
        if self.chance(0.6):  # most rounds wait for everyone
            for call in due:
                self.deliver(*call)
            for _ in range(len(self.flying)):
                for call in self.hand_in():
                    self.deliver(*call)
        moved = set(self.server.taken)
        self.server.end()
        for client, made in self.pending.items():
            if client in moved:
                self.truth[client] = made.after
        self.log.append(self.taken)
        if self.chance(0.1):
            self.count("an older copy of the server's folder")
            return self.roll_back()
        self.disk.append(self.server.records[-1], self.server.ledger.lines(self.server.round))
        if self.chance(0.03):
            self.count("the server killed before its checkpoint")
            return self.restart()
        self.server.save(self.disk)
        self.kept = self.remembered()
        if self.chance(0.3):
            copy = self.folder / f"backup-{len(self.backups)}"
            shutil.copytree(self.folder / "server", copy)
            self.backups.append((copy, self.remembered()))
        return None

    def restart(self) -> None:
        self.truth, self.views, self.log = deepcopy(self.kept)
        self.serve()

    def roll_back(self) -> None:
        if self.backups:
            copy, self.kept = self.draw.choice(self.backups)
            shutil.rmtree(self.folder / "server")
            shutil.copytree(copy, self.folder / "server")
        self.restart()

    def hand_in(self) -> list[tuple[int, bytes]]:
        """An answer arrives, perhaps not for the last time, or is lost; calls that follow from it."""
        place = self.draw.randrange(len(self.flying))
        client, answer = self.flying[place]
        if self.chance(0.9):
            self.flying.pop(place)
        if self.chance(0.1):
            self.count("an answer lost")
            return []
        try:
            if self.server.accept(client, answer):
                self.took(client, answer)
        except OutOfSync as error:
            self.named(client, error)
            if self.chance(0.9):
                self.count("opened anew")
                call = client, self.server.reopen(client)
                self.truth[client] = self.fresh
                self.taken.reopened.append(client)
                self.calls.append(call)
                return [call]
        except WireError as error:
            self.count("refused")
            self.named(client, error)
        return []

    def took(self, client: int, answer: bytes) -> None:
        made, round = self.made[answer], self.server.taken[client].answer.round
        if round <= self.server.round:
            self.count("a late answer taken")
        if made.before != self.truth.get(client, self.fresh):
            self.wrong.append(f"round {round}: client {client} was in another state")
        if made.view != (self.own_view(client) if self.server.apart else self.views[round]):
            self.wrong.append(f"round {round}: client {client} had another model")
        self.pending[client] = made
        self.taken.answers.append((client, round, made.drift))

    def own_view(self, client: int) -> bytes:
        """What the server believes that a client holds if its newest answer is taken, of broadcasts of its own."""
        form = self.server.stream.form
        rx = form.mirror(self.server.after_call(client).down)
        return tw.dumps(View(form.build(rx)[0], rx, None))

    def named(self, client: int, error: Exception) -> None:
        assert re.search(rf"client {client}\b", str(error)), str(error)

    # -- the clients ----------------------------------------------------------

    def node(self, client: int, machine: str = "") -> Watched:
        return Watched(self.method, client, self.folder / f"{client}{machine}", self.draw.random())

    def deliver(self, client: int, call: bytes) -> None:
        """A call arrives at a client, and its answer is on its way."""
        node, way = self.node(client), self.draw.random()
        if self.chance(0.05):
            self.count("another machine")
            node = self.node(client, "b")
        if way < 0.05:
            self.count("killed while it trains")
            node.meanwhile = self.kill
        elif way < 0.12:
            self.count("two at once")
            other = self.draw.choice([(c, data) for c, data in self.calls[-8:] if c == client] or [(client, call)])
            node.meanwhile = lambda: self.answer(self.node(client), *other)
        self.answer(node, client, call, lost=0.12 <= way < 0.18)

    def answer(self, node: Watched, client: int, call: bytes, lost: bool = False) -> None:
        try:
            data = node.answer(call)
        except Killed:
            return
        except RunError as error:
            self.locked_out(node, error)
            return
        if lost:
            self.count("killed when all is written")
            return
        self.made[data] = node.made
        self.flying.append((client, data))

    def locked_out(self, node: Node, error: Exception) -> None:
        self.count("locked out")
        assert f"{node.folder} is in use by another process" in str(error)

    def kill(self) -> None:
        raise Killed

    def mishap(self) -> None:
        """Of a client's disk."""
        client = self.draw.randrange(CLIENTS)
        folder, what = self.folder / str(client), self.draw.random()
        if what < 0.02:
            self.count("a disk lost")
            shutil.rmtree(folder, ignore_errors=True)
        elif what < 0.07 and folder.exists():
            copy = self.copies.setdefault(client, self.folder / f"copy-{client}")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
        elif what < 0.11 and client in self.copies:
            self.count("an older copy of a client's folder")
            if self.chance(0.5):  # over what is there: both lie in it
                shutil.copytree(self.copies[client], folder, dirs_exist_ok=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(self.copies[client], folder)

    # -- what it ought to have come to ----------------------------------------

    def replayed(self) -> bytes:
        """The server's state where nothing else has happened than what it took."""
        server, waiting = Deployment(self.method, MODEL, CLIENTS, seed=5), dict[tuple[int, int], bytes]()
        drifts = {(client, round): drift for taken in self.log for client, round, drift in taken.answers}

        def answer(client: int, round: int, call: bytes) -> None:
            if (client, round) in drifts:
                node = Watched(self.method, client, self.folder / f"replay-{client}", drifts[client, round])
                waiting[client, round] = node.answer(call)

        for number, taken in enumerate(self.log, 1):
            for client, call in server.begin(taken.there).items():
                if client not in taken.reopened:
                    answer(client, number, call)
            for client in taken.reopened:
                shutil.rmtree(self.folder / f"replay-{client}", ignore_errors=True)
                answer(client, number, server.reopen(client))
            for client, round, _ in taken.answers:
                assert server.accept(client, waiting[client, round])
            server.end()
        return tw.dumps(server.server)


def play(number: int, folder: Path) -> Schedule:
    """One schedule, in an empty folder that is removed again."""
    folder.mkdir()
    try:
        schedule = Schedule(number, folder)
        schedule.run()
        if schedule.replayed() != tw.dumps(schedule.server.server):
            schedule.wrong.append("the model is another")
        return schedule
    finally:
        shutil.rmtree(folder)


def main(first: int, last: int) -> None:
    """Play the schedules of these numbers; prints what went wrong, and how often what happened."""
    torch.set_num_threads(1)
    logging.disable()
    os.fsync = lambda descriptor: None  # processes are killed here, not machines
    faults, wrong = dict[str, int](), dict[int, list[str]]()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # in memory
        for number in range(first, last):
            schedule = play(number, Path(folder) / "schedule")
            wrong |= {number: schedule.wrong} if schedule.wrong else {}
            for fault, times in schedule.faults.items():
                faults[fault] = faults.get(fault, 0) + times
    print(json.dumps({"wrong": wrong, "faults": faults}))


def strictly(first: int, last: int) -> None:
    warnings.simplefilter("error")
    main(first, last)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(60, marks=pytest.mark.slow),  # 10 seconds of a core
        pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_whatever_is_lost_repeated_or_late_the_model_is_that_of_what_was_taken(count: int) -> None:
    # In processes of their own: to check annotations, as here, takes longer than all the rest. There a warning is an
    # error, and one that nobody can catch, as of a file left open, is on stderr.
    cores = os.cpu_count() or 1
    bounds = [count * i // cores for i in range(cores + 1)]
    with ExitStack() as stack:
        running = [stack.enter_context(Process(strictly, first, last)) for first, last in pairwise(bounds)]
        assert [process.wait(7200) for process in running] == [0] * cores, running[0].stderr
        assert [process.stderr for process in running] == [""] * cores
        found = [json.loads(process.stdout) for process in running]
    assert [part["wrong"] for part in found] == [{}] * cores
    times = {fault: sum(part["faults"].get(fault, 0) for part in found) for part in found for fault in part["faults"]}
    assert len(times) == 15, times
    assert min(times.values()) >= count // 40, times


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
