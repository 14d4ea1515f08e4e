"""A client's round: take in the view, run the algorithm's half, send the reply through its links."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from ..algorithms.base import Algorithm
from ..errors import NonFinite
from ..key import Key
from ..params import Params
from ..task import Task
from ..wire import State, dumps
from .messages import Form
from .stream import View
from .train import Slot, train


class ClientState(NamedTuple):
    """What a client keeps between its rounds: committed when the server has its reply."""

    state: State  # the algorithm's
    tx: State  # the sending ends of `up`
    buffers: Params | None  # norm statistics, where they stay with the client


class Reply(NamedTuple):
    """What a client's round gives: bytes for the server, and its own next state."""

    blob: bytes
    examples: int
    loss: float
    steps: int
    floats: float  # the papers' count for the blob
    seconds: float  # of wall time
    next: ClientState


def client_round(
    algorithm: Algorithm, form: Form, slot: Slot, task: Task, view: View, own: ClientState, key: Key
) -> Reply:
    """Everything a client does between two messages. Raises :class:`NonFinite`, naming round and client."""
    began = time.perf_counter()
    buffers = own.buffers if algorithm.buffers == "local" else view.buffers
    if buffers is not None:
        slot.load_buffers(buffers)
    if slot.random:  # dropout draws from torch's own generator: a process, or a fork of it, for this client alone
        torch.manual_seed(key.number("layers"))
    steps, loss = 0, 0.0
    work = algorithm.client(view.state, own.state, task, key)
    try:
        request = next(work)
        while True:
            trained = train(slot, task, request, key)
            steps, loss = steps + trained.steps, trained.loss
            request = work.send(trained)
    except StopIteration as done:
        reply, state = done.value
    statistics = slot.buffers() if slot.statistics else None
    values = form.values(reply, statistics)
    for leaf, value in zip(form.leaves, values, strict=True):
        if isinstance(value, Params) and not value.finite():
            raise NonFinite(f"round {key.round}, client {key.client}: {leaf.name} became NaN or infinite; lower lr")
    body, seen, tx = form.send(values, own.tx, key)
    seen_reply, _ = form.build(seen)
    kept = statistics if algorithm.buffers == "local" else None
    after = ClientState(algorithm.sent(state, seen_reply), tx, kept)
    blob = dumps(body)
    return Reply(blob, len(task), loss, steps, form.floats(body), time.perf_counter() - began, after)
