"""A run of a method that is chosen when the run begins, and whose split is chosen once more: that of :class:`Auto`.

The choice is made from a rehearsal, which is a round of FedAvg by a few clients. It is a function of the seed and of
the checkpoint. A second choice changes numbers of links alone, so that every state fits: the run is then built anew
from its own checkpoint, as a resumed one is.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..algorithms.choice import Choice, Coding, Measured
from ..algorithms.fedavg import FedAvg
from ..config import complete
from ..errors import CombinationError, require
from ..key import Key
from ..links import TransformCoding
from ..params import Params
from ..run.folder import Folder
from ..train.given import copy_module
from ..train.slot import make_module
from ..train.threads import one_thread
from ..wire import Packet, Several, State, dumps, loads, restore
from .answers import Training
from .envelope import Answer
from .result import Record, Result
from .rounds import Rounds
from .setting import Setting
from .simulation import Simulation

AGAIN = 10  # rounds after which the split is chosen anew
COHORT = 4  # clients that rehearse, at most
SLACK = 24  # bytes by which headers of later rounds may be longer than those of the first

log = logging.getLogger("thinwire")


class Made(NamedTuple):
    """A choice: what it was made of, and the round that it begins with."""

    round: int
    choice: Choice
    why: Several  # sentences


BLANK = Several([], Made(0, Choice(Coding("", 0), Coding("", 0), False, False), Several([], "")))


class TrialRun(Simulation):
    """A round of FedAvg by a few clients, whose updates are kept."""

    def __init__(
        self,
        auto: Auto,
        model: nn.Module | Callable[[], nn.Module],
        tasks: Sequence[Any],
        setting: Setting,
        train: Training | None,
    ) -> None:
        plain = {"sample": None, "dropout": 0.0, "network": None, "privacy": None, "states": "memory", "record": None}
        plain |= {"aggregate": None, "expel": None}
        plain |= {"start": "sent", "plan": None if setting.plan == "measured" else setting.plan}
        super().__init__(auto.plain(), model, tasks, setting.but(plain), train=train)
        self.changes: list[Params] = []

    def add(self, answer: Answer, body: Packet, rx: State, late: bool = False) -> State:
        values, _ = self.up.recv(body, rx, self.at(answer.client, answer))
        self.changes.append(values[0].clone())
        return super().add(answer, body, rx, late)

    def of(self, run: Rounds | None, clients: Sequence[int]) -> TrialRun:
        """Make the round from the start, or from where a run is."""
        if run is not None:
            self.server = self.server._replace(x=run.algorithm.model(run.server))
            self.buffers, self.round = run.buffers if self.buffers is not None else None, run.round
        self.step(evaluate=False, cohort=clients)
        return self


class Chosen(Simulation):
    """A :class:`Simulation` of what :class:`Auto` chooses. The arguments are those of a simulation.

    ``made`` are the choices of the run that goes on here, from its checkpoint; without any, the first is made now.
    ``rehearsed`` is how many seconds that took. Raises ``ValueError`` for a budget that is too small, and
    :class:`CombinationError` where the setting has ``privacy``.
    """

    def __init__(
        self,
        auto: Auto,
        model: nn.Module | Callable[[], nn.Module],
        tasks: Sequence[Any],
        setting: Setting = Setting(),
        *,
        made: Sequence[Made] = (),
        cohort: Sequence[Sequence[int]] | None = None,
        **options: Any,
    ) -> None:
        require(
            cohort is None, f"{auto!r} draws its cohorts: leave cohort out, or give the method that it would choose"
        )
        without_noise(auto, setting)
        require(
            setting.buffer is None,
            f"buffer={setting.buffer!r}: {auto!r} chooses for rounds that wait for their cohorts; give the method that "
            f"it would choose",
        )
        require(
            setting.sampler is None,
            f"sampler={setting.sampler!r}: {auto!r} reckons with cohorts that are drawn uniformly; give the method "
            f"that it would choose",
        )
        if not isinstance(model, nn.Module) and callable(model):  # made once, however often the run is built
            model = partial(copy_module, make_module(model, setting.seed), beside=True)
        self.auto, self.model, self.given, self.asked, self.options = auto, model, tasks, setting, options
        self.rehearsed, self.choices = 0.0, list(made)
        self.past: Params | None = None  # the model before the absence that the second choice looks at
        if not made:
            self.choose(None)
        self.build()
        self.past = self.algorithm.model(self.server)

    def build(self) -> None:
        """The run, as its choices say."""
        method = self.method_after(len(self.choices))
        super().__init__(method, self.model, self.given, self.asked.but({"start": "known"}), **self.options)

    # -- the choice -----------------------------------------------------------

    def choose(self, run: Rounds | None) -> None:
        """Rehearse, and choose: before the run, or where it is."""
        began, before = time.perf_counter(), self.choices[-1].choice if self.choices else None
        measured = self.look(run)
        with one_thread():
            verdict = self.auto.choose(measured, Key(self.asked.seed).at("auto"), before)
        self.rehearsed = time.perf_counter() - began
        number = 1 if run is None else run.round + 1
        self.choices.append(Made(number, verdict.choice, Several(verdict.why, "")))
        log.info(
            "round %d: %r is %r. %s (A rehearsal of %d clients took %.1f s, and no byte.)",
            *(number, self.auto, self.method_after(len(self.choices)), " ".join(verdict.why)),
            *(len(measured.changes), self.rehearsed),
        )

    def look(self, run: Rounds | None) -> Measured:
        """What a rehearsal says, and what is known of the run."""
        setting, clients = self.asked, len(self.given)
        sample = setting.cohort(clients)
        order = torch.randperm(clients, generator=Key(setting.seed).generator("rehearsal"), device="cpu")
        cohort = sorted(order[: min(sample, COHORT)].tolist())
        made = TrialRun(self.auto, self.model, self.given, setting, self.options.get("train"))
        with made:
            made.of(run, cohort)
        ledger, flat = made.ledger, made.changes[0].flat
        size = flat.numel() * flat.itemsize
        sums = [[entry.total for entry in ledger.of(way)] for way in ("up", "down")]
        away = self.away(clients, sample)
        if run is None or self.past is None:
            mean = Params(made.changes[0].layout, torch.stack([x.flat for x in made.changes]).mean(0))
            movement = mean * math.sqrt(away)  # steps of different rounds have little in common
        else:
            movement = run.algorithm.model(run.server) - self.past
        network, seed = setting.network, setting.seed
        rates = None if network is None else [network.rates(client, seed) for client in range(clients)]
        return Measured(
            changes=made.changes,
            movement=movement,
            clients=clients,
            sample=sample,
            dense=(min(sums[0]), min(sums[1])),
            fixed=(max(sums[0]) - size + SLACK, max(sums[1]) - size + SLACK),
            rates=None if rates is None else (min(up for up, _ in rates), min(down for _, down in rates)),
            replies=1 - setting.dropout,
            lost=setting.dropout > 0 or (network is not None and network.loses),
        )

    @staticmethod
    def away(clients: int, sample: int) -> int:
        """Rounds for which a client is away on average, and not more than the second choice looks back."""
        return min(AGAIN, max(1, round(clients / sample)))

    def again(self) -> None:
        """Choose the split anew, and go on with it from where the run is."""
        self.choose(self)
        self.past = None
        if self.choices[-1].choice == self.choices[-2].choice:
            return
        packet = loads(dumps(self.shared_state()), max_values=None, finite=False)
        kept = {name: getattr(self, name) for name in ("folder", "ledger", "records", "states")}
        self.close()
        self.build()
        vars(self).update(kept)
        self.restore_shared(packet)

    # -- a run between two rounds ---------------------------------------------

    def step(self, evaluate: bool = True, cohort: Sequence[int] | None = None) -> Record:
        if self.round == AGAIN and self.choices[-1].round == 1:
            self.again()
        record = super().step(evaluate, cohort)
        if self.choices[-1].round == self.round:
            record["chosen"] = self.choice_record(len(self.choices))
        if self.round == AGAIN - self.away(len(self.tasks), self.sample) and self.past is not None:
            self.past = self.algorithm.model(self.server).clone()
        return record

    def method_after(self, count: int) -> Algorithm:
        """The method that the first so many choices come to."""
        first, *later = self.choices[:count]
        return self.auto.method(first.choice, *((made.round - 1, made.choice) for made in later))

    def choice_record(self, count: int) -> Record:
        """The last of so many choices, as a round's record and the summary have it."""
        made, method = self.choices[count - 1], self.method_after(count)
        return {"round": made.round, "expression": repr(method), "start": "known", "why": list(made.why)}

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "method": complete(self.auto)}

    def result(self) -> Result:
        result = super().result()
        result.asked, result.chosen = self.auto, [self.choice_record(n + 1) for n in range(len(self.choices))]
        return result

    def shared_state(self) -> dict[str, State]:
        return {**super().shared_state(), "choices": Several(self.choices, BLANK.like), "past": self.past}

    def restore_shared(self, packet: Packet) -> None:
        super().restore_shared(packet)
        self.choices = list(restore(packet["choices"], BLANK))
        self.past = None if packet["past"] is None else restore(packet["past"], self.algorithm.model(self.server))


def without_noise(auto: Auto, setting: Setting) -> None:
    """Raise :class:`CombinationError` where what is chosen would say what ``privacy`` is to hide."""
    if setting.privacy is not None:
        instead = FedAvg(auto.local, up=TransformCoding(4000), weights="uniform")
        raise CombinationError(
            f"{auto!r} looks at updates of clients to which no noise was added, so {setting.privacy!r} would not hold: "
            f"give a method in its place, such as {instead!r}"
        )


def choices_in(folder: Folder | None) -> list[Made]:
    """The choices of the run in a folder, from its checkpoint; none where it has no checkpoint."""
    packet = None if folder is None else folder.load()
    return list(restore(packet["choices"], BLANK)) if packet is not None and "choices" in packet else []
