"""One client, which may be held up, fail or lie where the run's configuration says so."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor

import thinwire as tw
from tested.parts import method, model, tasks
from thinwire.deploy import flower
from thinwire.deploy.client import Node
from thinwire.federated.envelope import Answer, read_answer, read_call
from thinwire.federated.secure.trips import read_question
from thinwire.wire import loads

LIARS = (2, 1)  # clients
HELD = 2  # the client


class Tested(Node):
    """Clients 2 and 1 do from their second call on what ``spoil`` names, ``this,that``; client 2 waits at ``hold``."""

    def __init__(self, context: Context) -> None:
        self.number, config = int(context.node_config["partition-id"]), context.run_config
        self.spoil, self.hold = str(config["spoil"]).split(), Path(str(config["hold"]))
        folder, task = flower.folder_of(context), tasks()[self.number]
        test = task if config["tests"] else None
        wide = partial(model, int(config["width"]), bool(config["norm"]), int(config["depth"]))
        super().__init__(method(str(config["method"])), wide, task, folder, test=test)

    def answer(self, data: bytes) -> bytes:
        if read_question(data) is not None:  # of a secure sum
            return super().answer(data)
        round = read_call(data).round
        kind = self.kind(round)
        if kind == "unheard":
            raise RuntimeError("the call is lost, and the acknowledgement with it")
        if self.number == HELD and round > 1:
            self.wait("before")
        found = super().answer(data)
        if self.number == HELD and round > 1:
            self.wait("after")
        if kind == "lost":
            raise RuntimeError("the reply is lost")
        first = self.folder / "first"
        if kind == "replay":
            return first.read_bytes()
        if round == 1:
            first.write_bytes(found)
        return LIES[kind](read_answer(found, 1 << 20), random.Random(round)).write() if kind in LIES else found

    def kind(self, round: int) -> str:
        """What this client does in a round; "" where it is honest."""
        if self.number not in LIARS or not 2 <= round < len(self.spoil) + 2:
            return ""
        return self.spoil[round - 2].split(",")[LIARS.index(self.number)]

    def wait(self, when: str) -> None:
        """As long as the file is there that says when: in its second call, for nobody makes that file anew."""
        if self.hold.is_file() and self.hold.read_text() == when:
            self.hold.with_suffix(".held").touch()
            while self.hold.exists():
                time.sleep(0.1)


def nested(depth: int) -> Any:
    found: Any = torch.ones(3)
    for _ in range(depth):
        found = [found]
    return found


def nan(packet: Any) -> Any:
    """The same packet without a number in it."""
    if isinstance(packet, Tensor):
        return torch.full_like(packet, float("nan")) if packet.is_floating_point() else packet
    return [nan(value) for value in packet] if isinstance(packet, list) else packet


def flipped(packet: Any) -> Any:
    """The same packet with ten times the opposite of its numbers: it has the form of an honest one."""
    if isinstance(packet, Tensor):
        return packet * -10 if packet.is_floating_point() else packet
    return [flipped(value) for value in packet] if isinstance(packet, list) else packet


def shaped(packet: Any, draw: random.Random) -> Any:
    """The same packet, each tensor of another length."""
    if isinstance(packet, Tensor):
        return torch.zeros(packet.numel() + draw.randrange(1, 9), dtype=packet.dtype)
    return [shaped(value, draw) for value in packet] if isinstance(packet, list) else packet


LIES: dict[str, Callable[[Answer, random.Random], Any]] = {
    "noise": lambda a, r: Raw(r.randbytes(r.randrange(400))),
    "cut": lambda a, r: Raw(a.write()[: r.randrange(len(a.write()) - 1)]),
    "oversized": lambda a, r: a._replace(blob=r.randbytes(4 << 20)),
    "nested": lambda a, r: a._replace(blob=tw.dumps(nested(r.randrange(80, 95)))),
    "shape": lambda a, r: a._replace(blob=tw.dumps(shaped(loads(a.blob), r))),
    "nan": lambda a, r: a._replace(blob=tw.dumps(nan(loads(a.blob)))),
    "flip": lambda a, r: a._replace(blob=tw.dumps(flipped(loads(a.blob)))),
    "base": lambda a, r: a._replace(base=a.base + r.randrange(1, 9)),
    "round": lambda a, r: a._replace(round=a.round + r.randrange(1, 9)),
    "client": lambda a, r: a._replace(client=r.randrange(2)),
}


class Raw(bytes):
    """An answer that is none."""

    def write(self) -> bytes:
        return self
