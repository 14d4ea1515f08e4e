"""The questions of a round of a simulation, whose clients are all here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .envelope import NUMBER, Call
from .question import LOSS, QUESTION, loss_answer, write_go
from .sampler import choose_clients
from .stream import Parcel

if TYPE_CHECKING:
    from .simulation import Simulation


def ask_clients(run: Simulation, delivered: Mapping[int, tuple[Call, Parcel]]) -> tuple[list[int], float]:
    """Ask the clients that were called for their losses: who of them takes part, and the seconds of the slowest."""
    assert run.sampler is not None
    jobs = [run.job(call, parcel, run.states.get(client)) for client, (call, parcel) in delivered.items()]
    losses = dict(zip(delivered, run.pool.losses(jobs, run.stream.view, run.initial_buffers), strict=True))
    network, slowest = run.setting.network, 0.0
    for client, (call, _) in delivered.items():
        answer = loss_answer(call, NUMBER, len(run.tasks[client]), losses[client], 0.0)
        up, down = len(LOSS) + run.scales.size(answer), len(QUESTION) + run.scales.size(call)
        run.questions.bill(client, "up", up)
        run.questions.bill(client, "down", len(QUESTION))
        if network is not None:
            slowest = max(slowest, network.seconds(client, up, down, 0, run.seed))
    chosen = choose_clients(run.sampler, losses, run.sample)
    for client in chosen:
        run.questions.bill(client, "down", len(write_go(NUMBER)))
        run.questions.gone.add(client)
    for client in delivered.keys() - set(chosen):
        run.pending.pop(client, None)
    return chosen, slowest
