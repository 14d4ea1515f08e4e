"""A client that is a process, or a machine, of its own: it answers calls, and keeps its state on disk.

The state after an answer is a draft until a call says that the server has that answer in its
checkpoint, by the mark of the state: then it is what the client goes on from. If a call names
another, that answer was lost, and the client goes on from where it was. So a client that dies
after it has trained, an answer that is lost and an acknowledgement that is lost leave what there
would be if it had not taken part. And whatever became of the folder, or of the server's, a state
that is not the one that is named is never used.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_bytes
from typing import Any, NamedTuple

from torch import nn

from ..algorithms.base import Algorithm, Start
from ..algorithms.runnable import check_runnable
from ..config import complete
from ..dice import put_back, seeded
from ..errors import OutOfSync, RunError, WireError, check, require, require_whole
from ..federated.client import (
    ClientState,
    Job,
    Reply,
    Turn,
    adapt_model,
    client_inputs,
    one_round,
    statistics_of,
    unheard,
)
from ..federated.envelope import Answer, Call, key_of, mark, read_call
from ..federated.letters import private
from ..federated.messages import Form, forms
from ..federated.own_tests import Model, evaluate_models, pack_metrics
from ..federated.privacy import Privacy
from ..federated.question import GO, LOSS, QUESTION, local_loss, loss_answer, read_go
from ..federated.secure.exchange import Kept
from ..federated.secure.masks import LENGTH
from ..federated.secure.run import Secured
from ..federated.secure.trips import Question, about_round, hide, read_question, reply
from ..federated.stream import Logged, Parcel, View, catch_up, first_broadcast
from ..key import Key
from ..params import Params
from ..run.folder import checksum, lock_folder, read_state, write_atomic, write_state
from ..run.identity import model_digest, run_digest
from ..task import Task, as_task
from ..train.device import unusable, usable
from ..train.evaluation import evaluate, mean_metrics
from ..train.fitting import fitting
from ..train.slot import Slot, floats, make_module
from ..train.threads import one_thread
from ..wire import restore

VERSION = 3  # of the files
ASKED = ".asked"  # the call by which the client was asked for its loss
RUNS = 16  # whose states a client keeps: who comes back to an older one is opened anew
SECRETS, NOISE = "secrets.thinwire", "noise"
DRAFTS = 4  # that a client keeps of one round, where calls come again and training gives another state each time


class ClientMemory(NamedTuple):
    """What a client keeps between two calls."""

    version: int  # of the file
    round: int  # of the answer that it was made with
    view: View
    own: ClientState


class Opened(NamedTuple):
    """What a run begins with at a client."""

    slot: Slot
    statistics: Params | None
    shared: Params | None  # of the statistics, those that are averaged
    start: Start
    up: Form
    down: Form
    known: bool  # whether clients know the start


class ClientFiles:
    """The states of one client in one run, in a folder of their own: each in a file of its round and its mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, base: int, state: int, like: ClientMemory) -> ClientMemory:
        """What was held after the answer to round ``base``, whose mark is ``state``. What is older is removed.

        Raises :class:`OutOfSync` where that is not here any more, or never was.
        """
        if base == 0:
            return like
        try:
            held: ClientMemory = restore(read_state(self._path(base, state)), like)
        except (OSError, WireError):  # none, or damaged: as good as none
            held = like
        if (held.version, held.round) != (VERSION, base) or mark(checksum(held)) != state:
            raise OutOfSync(f"what was held after round {base} is not here")
        for path in self._between(0, base):
            path.unlink()
        return held

    def after(self, base: int) -> bool:
        """Whether there are drafts: of answers, to rounds after ``base``, that have not been taken."""
        return bool(self._between(base, sys.maxsize))

    def save(self, held: ClientMemory, base: int) -> int:
        """Keep a state until it is known whether its answer arrived; its mark.

        Drafts of the rounds between ``base`` and this are removed: whoever is called again is called for good.
        """
        state = mark(checksum(held))
        self._write(self._path(held.round, state), held)
        same = sorted(self._between(held.round - 1, held.round + 1), key=lambda path: path.stat().st_mtime_ns)
        for path in [*self._between(base, held.round), *same[:-DRAFTS]]:
            path.unlink()
        return state

    def secrets(self) -> Kept | None:
        """What is kept of the newest round of a secure sum; None where that is not here, or damaged."""
        try:
            kept: Kept = restore(read_state(self.folder / SECRETS), Kept())
        except (OSError, WireError):
            return None
        return kept

    def noise(self) -> bytes:
        """What the client's noise in this run is drawn from: 32 bytes that stay on its disk."""
        path = self.folder / NOISE
        if not path.exists():
            write_atomic(path, token_bytes(LENGTH), private=True)
        return path.read_bytes()

    def save_secrets(self, kept: Kept) -> None:
        """Keep that of a round, in a file that this user alone may read."""
        self._write(self.folder / SECRETS, kept, private=True)

    def _write(self, path: Path, state: Any, private: bool = False) -> None:
        first = not self.folder.exists()
        write_atomic(path, lambda file: write_state(file, state), private)
        if first:
            forget(self.folder.parent)

    def _path(self, round: int, state: int) -> Path:
        return self.folder / f"{round}-{state:016x}.thinwire"

    def _between(self, first: int, last: int) -> list[Path]:
        """The states of the rounds between these, neither included."""
        paths = self.folder.glob("[0-9]*-*.thinwire")
        return [path for path in paths if first < int(path.name.partition("-")[0]) < last]


def forget(folder: Path) -> None:
    """Remove the states of all runs in a client's folder but those that it answered last."""
    runs = [path for path in folder.iterdir() if re.fullmatch("[0-9a-f]{16}-[0-9a-f]{16}", path.name)]
    for path in sorted(runs, key=lambda path: path.stat().st_mtime_ns)[:-RUNS]:
        shutil.rmtree(path)


class Node:
    """One client: a method, a model, a task, and a folder for what it keeps. :meth:`answer` does the rest.

    ``model`` and the method must be the server's: a call of another run is refused. The
    folder is the client's identity: it must outlive restarts, and no two clients share one. While a
    call is answered it is locked: a second process that would answer from it gets a :class:`RunError`.

    ``test`` is the client's own test set, a task as ``task`` is. What the client holds when it is called, before it
    trains, is evaluated on it: its own model, with what the newest broadcast changed in it, and the model that all
    share. So in round t + 1 that is the model after round t, as in a simulation with ``client_tests``. It is done in
    the calls of rounds 1 + ``evaluate_every``, 1 + 2 ``evaluate_every`` and so on. The means of the metrics go to the
    server in the answer, as numbers of 8 bytes with their names. Examples do not.

    ``privacy`` is what the client itself sees to below a secure sum: a server that runs with another is refused.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module | Callable[[], nn.Module],
        task: Any,
        folder: str | Path,
        device: str = "cpu",
        *,
        test: Any = None,
        evaluate_every: int = 1,
        privacy: Privacy | None = None,
    ) -> None:
        check_runnable(algorithm)
        require_whole(evaluate_every=evaluate_every)
        require(evaluate_every > 0, f"evaluate_every={evaluate_every}: it must be at least 1")
        require(usable(device), f"device={device!r}: {unusable(device)}")
        fits = privacy is None or isinstance(privacy, Privacy)
        require(fits, f"privacy={privacy!r}: Privacy such as {Privacy.example} or None is expected")
        if any(isinstance(given, type) or not isinstance(given, Task) for given in (task, test) if given is not None):
            kind = floats(model if isinstance(model, nn.Module) else make_module(model, 0))
            task, test = as_task(task, floats=kind), None if test is None else as_task(test, "test", kind)
        self.algorithm, self.model, self.task, self.folder = algorithm, model, task, Path(folder)
        self.device, self.test, self.evaluate_every, self.privacy = device, test, evaluate_every, privacy
        self.mbit = 0.0  # of the newest call
        self.lost = False  # whether the answer before the newest was, as far as the newest call tells
        require(len(self.task) > 0, "this client's task has no examples")
        require(test is None or len(test) > 0, "this client's test has no examples")

    def answer(self, data: bytes) -> bytes:
        """The reply to a call, or to a question: for its loss, or of a secure sum.

        Raises ``WireError`` for bytes that are none of these, :class:`RunError` for another run's, and of a secure sum
        another ``ThinwireError`` where too few neighbours are left to hide among: then there is nothing to answer.
        """
        began, question, loss = time.perf_counter(), read_question(data), data.startswith(QUESTION)
        other = "another process that answers for this client: a client is one process, and has a folder of its own"
        with one_thread(), lock_folder(self.folder, other), put_back():
            if question is not None:
                self.mbit = 0.0
                return self._confide(question)
            if data.startswith(GO):
                data = self.find_call(read_go(data))
            data = data.removeprefix(QUESTION)
            call = read_call(data)
            if loss:
                write_atomic(self.folder / ASKED, lambda file: file.write(data))
            self.mbit = call.mbit
            return (LOSS if loss else b"") + self._answer(call, mark(data), began, loss).write()

    def find_call(self, number: int) -> bytes:
        """The call of this mark, by which the client was asked for its loss. Raises :class:`RunError`."""
        path = self.folder / ASKED
        data = path.read_bytes() if path.exists() else b""
        if not data or mark(data) != number:
            raise RunError("the server says to go on with a call that is not here: its folder has been replaced")
        return data

    def _files(self, about: Call | Question) -> ClientFiles:
        return ClientFiles(self.folder / f"{about.run}-{about.incarnation:016x}")

    def _confide(self, question: Question) -> bytes:
        """The answer to a question of a secure sum. What the client keeps is on disk before it leaves."""
        files, circle = self._files(question), None
        if question.trip == "keys":
            ours = "" if self.privacy is None else complete(self.privacy)
            if question.privacy != ours:
                raise RunError(
                    f"the server runs with privacy={question.privacy or None}, and this client would see to "
                    f"{ours or None}: start both with the same"
                )
            secured = Secured.on(self._open(question).up, self.privacy)
            check(secured is not None, "a question of a run with a secure sum")
            assert secured is not None
            circle = question.circle(secured)
        data, kept = reply(question, files.secrets(), circle)
        files.save_secrets(kept)
        return data

    def _open(self, about: Call | Question) -> Opened:
        """What a run begins with here. Raises :class:`RunError` where the server's is another."""
        algorithm = self.algorithm
        model = self.model if isinstance(self.model, nn.Module) else make_module(self.model, about.seed)
        slot = Slot(algorithm.assemble(model, about.clients), self.device)
        begins = model_digest(slot.module)
        known = about.run == run_digest(algorithm, begins, about.seed, about.clients, known=True)
        if not known and about.run != run_digest(algorithm, begins, about.seed, about.clients):
            raise RunError("the server runs another method or another model: start this client with the server's")
        self.probe(slot)
        statistics = slot.buffers()
        shared = statistics if algorithm.buffers == "mean" else None
        start = algorithm.init_with(slot.params(), statistics, about.clients, Key(about.seed))
        return Opened(slot, statistics, shared, start, *forms(algorithm, start, shared), known)

    def _answer(self, call: Call, number: int, began: float, question: bool = False) -> Answer:
        algorithm = self.algorithm
        slot, statistics, shared, start, up, down, known = self._open(call)
        require(
            self.privacy is None or Secured.on(up) is not None,
            f"privacy={self.privacy!r} of a client is for a secure sum, and {algorithm!r} has none: leave it out, or "
            f"give the method up=SecureSum(...)",
        )
        alone = private(algorithm, start)
        heard = View(start.view, down.open()[1], shared)
        fresh = ClientMemory(VERSION, 0, heard, unheard(algorithm, start, up, statistics))

        kept = self._files(call)
        try:
            held = kept.at(call.base, call.state, fresh)
            self.lost = kept.after(call.base)
        except OutOfSync:
            return Answer.to(call, number)
        check(len(call.pieces) >= (alone is not None) + (not known), "what a client misses")
        pieces, own = (call.pieces, b"") if alone is None else (call.pieces[:-1], call.pieces[-1].blob)
        parcel = Parcel(call.snapshot, [Logged(piece.round, piece.round, piece.blob, 0.0, 0) for piece in pieces])
        if known and call.base == 0 and not call.snapshot:
            held = held._replace(view=first_broadcast(algorithm, down, start.server, held.view, Key(call.seed))[0])
        view = catch_up(algorithm, down, held.view, parcel, Key(call.seed))
        key = key_of(call.seed, call.client, call.round, call.mbit)
        job = Job(key, held.own, own, call.base == 0)
        mine, state = client_inputs(algorithm, alone, view, job, start if known else None)
        if question:
            loss = local_loss(algorithm, slot, self.task, mine, start.client, statistics)
            return loss_answer(call, number, len(self.task), loss, time.perf_counter() - began)
        metrics = self.evaluate(slot, start, statistics, mine, held.own, call)
        made = self.round(slot, up, mine, state, key)
        if (secured := Secured.on(up, self.privacy)) is not None:
            about = about_round(call.run, call.incarnation, call.round)
            blob, secrets = hide(secured, kept.secrets(), about, call.shares, made.blob, kept.noise())
            kept.save_secrets(secrets)
            made = made._replace(blob=blob)
        name = kept.save(ClientMemory(VERSION, call.round, view, made.next), call.base)
        return Answer.to(call, number, made, name, time.perf_counter() - began, metrics)

    def evaluate(
        self, slot: Slot, start: Start, initial: Params | None, view: View, own: ClientState, call: Call
    ) -> bytes:
        """What this client's test says of what it holds before it trains; nothing in rounds without an evaluation."""
        algorithm, test, done = self.algorithm, self.test, call.round - 1  # the round that the model is of
        if test is None or done == 0 or done % self.evaluate_every:
            return b""
        statistics = view.buffers if algorithm.buffers == "mean" else initial
        everyones = algorithm.at_client(view.state, None, start.client)
        shared = None if everyones is None else Model(everyones, statistics)
        held = model = shared
        if algorithm.personal_models or algorithm.buffers == "local":
            x = algorithm.at_client(view.state, call.client, own.state)
            kept = algorithm.statistics_at_client(view.state, call.client)
            assert x is not None  # of its own model every client knows
            held = model = Model(x, statistics_of(algorithm, own, statistics) if kept is None else kept)
        assert held is not None
        assert model is not None
        if algorithm.personal_models:
            key = Key(call.seed, done, call.client).at("adapt")
            model = Model(*adapt_model(algorithm, slot, self.task, *held, key))

        def means(x: Params, buffers: Params | None) -> dict[str, float]:
            slot.load(x)
            slot.load_buffers(buffers)
            with seeded(0):
                return mean_metrics([evaluate(slot, test)])

        return pack_metrics(
            evaluate_models(means, model, held, shared if shared and algorithm.personal_models else held)
        )

    def probe(self, slot: Slot) -> None:
        """Find out which buffers of the module training moves."""
        fitting(slot, [("this client", self.task)] + ([] if self.test is None else [("its test", self.test)]))
        slot.probe([self.task])

    def round(self, slot: Slot, form: Form, view: View, own: ClientState, key: Key) -> Reply:
        """The client's half of the method."""
        return one_round(self.algorithm, form, slot, Turn(self.task, view, own, key))
