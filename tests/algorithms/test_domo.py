"""DOMO: momentum that is inferred or sent, what is fused, what a client that was away is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thinwire as tw
from problems import Point, Quadratic, approx, handwriting, mlp, path, trained
from thinwire import DOMO, Decay, FedAvgLM, FedAvgSLMZ, LocalSGD, Momentum

LOCAL = LocalSGD(lr=0.1, batch=16, momentum=0.6)


HALF = Momentum(0.5, beta=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("intra", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"sample": 8},
        {"sample": 3, "rounds": 8},  # most clients skip rounds between those they take part in
        {"sample": 1, "rounds": 8, "dropout": 0.4},  # and in some nobody answers
    ],
    ids=["everyone", "some", "nobody at times"],
)
def test_the_inferred_momentum_is_the_one_that_is_sent(intra: bool, options: Any) -> None:
    # The learning rate changes too, and clients have 2 to 6 batches: neither is in the way of update units.
    local = LocalSGD(Decay(0.1, rounds=(2,), factor=0.3), batch=8, momentum=0.6)
    inferred = DOMO(0.8, local, Momentum(0.7, beta=0.5), intra=intra)
    sent = DOMO(0.8, local, Momentum(0.7, beta=0.5), intra=intra, momentum="sent")
    a, b = (trained(method, **{"rounds": 5} | options) for method in (inferred, sent))
    torch.testing.assert_close(a.params.flat, b.params.flat, atol=2e-5, rtol=0)
    plain = trained(FedAvgSLMZ(local, Momentum(0.7, beta=0.5)), **{"rounds": 5} | options)
    assert not torch.allclose(plain.params.flat, b.params.flat, atol=1e-3)


@pytest.mark.parametrize("method", [FedAvgLM(LOCAL), DOMO(0.8, LOCAL, HALF, intra=True)], ids=repr)
def test_clients_trained_as_one_are_those_trained_one_by_one(method: tw.Algorithm) -> None:
    each, together = (trained(method, rounds=4, sample=8, plan=plan) for plan in ("each", "together"))
    torch.testing.assert_close(each.params.flat, together.params.flat, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("intra", "second"), [(False, 0.82), (True, 0.81)])
def test_what_a_client_of_domo_fuses_does_not_come_back_with_its_update(intra: bool, second: float) -> None:
    # Loss w^2 / 2, one step of 0.1 a round, from 1: d = M = -0.1 and x = 0.9. Then with all of M fused:
    # DOMO goes from 0.8 to 0.72, d = -0.08; DOMO-S from 0.9 by -0.09 and -0.1 to 0.71, d = -0.09.
    task = Quadratic(torch.ones(2), torch.zeros(1, 2))
    method = DOMO(1.0, LocalSGD(0.1, batch=None, steps=1), Momentum(1.0, beta=0.0), intra=intra)
    assert path(method, 2, Point(1.0, -2.0), [task]) == approx([[0.9, -1.8], [second, -2 * second]])


@pytest.mark.parametrize(
    ("momentum", "down"),
    # 910 floats are 3,640 bytes. Inferred: one model to who was there in the round before, two to who was not; the
    # first round's model says that there is no momentum yet.
    [("inferred", {1: 3652, "there": 3652, "away": 7300}), ("sent", {1: 7300, "there": 7300, "away": 7300})],
)
def test_who_was_away_is_sent_the_momentum_too(momentum: Any, down: dict[Any, int]) -> None:
    tasks, _ = handwriting()
    method = DOMO(0.8, LOCAL, HALF, momentum=momentum)
    ledger = tw.simulate(method, mlp, tasks, 6, sample=5, seed=1, workers=1, plan="each").ledger
    last: dict[int, int] = {}
    seen = set()
    for round in range(1, 7):
        for entry in ledger.of("down", round):
            kind = 1 if round == 1 else "there" if last.get(entry.client) == round - 1 else "away"
            seen.add(kind)
            assert entry.payload == down[kind], kind
            last[entry.client] = round
    assert seen == {1, "there", "away"}
