"""Replies as they are gathered, and links for fields: means, sums, one by one; what cannot carry a broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thinwire as tw
from problems import LOCAL, PAIR, H, Point, Quadratic, trained
from thinwire import (
    LBGM,
    LUAR,
    SCAFFOLD,
    Dense,
    Each,
    ErrorFeedback,
    FedAvg,
    Half,
    Key,
    Params,
    RandK,
    Start,
    Sum,
    TopK,
)
from thinwire.errors import CombinationError


@dataclass(frozen=True)
class DecodedRandK(RandK):
    """Each reply decoded, then averaged."""

    linear = False


@pytest.mark.parametrize("unbiased", [False, True])
def test_averaging_packets_is_averaging_what_they_decode_to(unbiased: bool) -> None:
    packets = trained(FedAvg(LOCAL, up=RandK(0.2, unbiased=unbiased)))
    decoded = trained(FedAvg(LOCAL, up=DecodedRandK(0.2, unbiased=unbiased)))
    torch.testing.assert_close(packets.params.flat, decoded.params.flat, atol=1e-6, rtol=1e-5)
    assert packets.bytes_up == decoded.bytes_up


class GatheredReply(NamedTuple):
    update: Params
    own: Each[Params]
    total: Sum[Params]
    label: Each[Tensor]
    counts: Sum[Tensor]
    shares: Tensor
    number: float
    steps: Sum[float]


class Held(NamedTuple):
    x: Params


@dataclass(frozen=True)
class Gather(tw.Algorithm):
    """Sends the client's number and size in every kind of field; `log` gets what the server is handed."""

    log: Any = None

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        zero = x.zeros()
        blank = GatheredReply(zero, zero, zero, torch.zeros(1), torch.zeros(2), torch.zeros(2), 0.0, 0.0)
        return Start(Held(x), Held(zero), None, blank)

    def broadcast(self, server: Any, view: Any) -> Any:
        return Held(server.x)

    def client(self, view: Any, state: Any, task: Any, key: Key) -> Any:
        yield tw.Local(view.x, LOCAL)
        i, n = float(key.client or 0), float(len(task))
        value = view.x.zeros().map(lambda f: f + i)
        return (
            GatheredReply(value, value, value, torch.tensor([i]), torch.tensor([n, 1.0]), torch.tensor([i, n]), i, n),
            state,
        )

    def server(self, server: Any, view: Any, mean: Any, key: Key) -> Any:
        self.log.append(mean)
        return server


class OwnReply(NamedTuple):
    update: Each[Params]


@dataclass(frozen=True)
class Own(Gather):
    """Sends an update that is not averaged."""

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        return super().init(x, num_clients, key)._replace(reply=OwnReply(x.zeros()))


def test_luar_over_updates_that_are_not_averaged_is_refused_with_the_reason() -> None:
    with pytest.raises(CombinationError, match=r"an update of each client's own \(Each\[...\]\), and no aggregate"):
        tw.simulate(LUAR(Own([]), recycle=0, layers="tensors"), Point(0.5, -1.0), PAIR, 1, workers=1)


# Clients 0, 1, 2 have 1, 2 and 5 examples and send 0, 1 and 2.
@pytest.mark.parametrize(
    ("weights", "mean", "shares"),
    [("examples", 1.5, [1.5, 3.75]), ("uniform", 1.0, [1.0, 8 / 3])],  # (0 + 2 + 10) / 8; (1 + 4 + 25) / 8
)
@pytest.mark.parametrize("up", [Dense(), TopK(1.0), RandK(1.0)], ids=repr)
def test_fields_are_averaged_summed_or_handed_over_as_their_types_say(
    weights: Any, mean: float, shares: list[float], up: tw.Link
) -> None:
    log: list[Any] = []
    tasks = [Quadratic(H, torch.zeros(n, 2)) for n in (1, 2, 5)]
    tw.simulate(Gather(log, up=up, weights=weights), Point(0.5, -1.0), tasks, 1, workers=1, plan="each")
    (got,) = log
    assert got.update.flat.tolist() == [pytest.approx(mean)] * 2
    assert {client: own.flat.tolist() for client, own in got.own.items()} == {0: [0, 0], 1: [1, 1], 2: [2, 2]}
    assert got.total.flat.tolist() == [3, 3]
    assert {client: label.tolist() for client, label in got.label.items()} == {0: [0], 1: [1], 2: [2]}
    assert got.counts.tolist() == [8, 3]
    assert got.shares.tolist() == pytest.approx(shares)
    assert got.number == pytest.approx(mean)
    assert got.steps == 8


def test_only_those_who_replied_are_gathered_and_weighted() -> None:
    log: list[Any] = []
    tasks = [Quadratic(H, torch.zeros(n, 2)) for n in (1, 2, 5, 3)]
    tw.simulate(Gather(log), Point(0.5, -1.0), tasks, 12, sample=2, workers=1, plan="each")
    sizes = {0: 1.0, 1: 2.0, 2: 5.0, 3: 3.0}
    pairs = [sorted(got.own) for got in log]
    assert len({tuple(pair) for pair in pairs}) > 3
    for got, (i, j) in zip(log, pairs, strict=True):
        weighted = (i * sizes[i] + j * sizes[j]) / (sizes[i] + sizes[j])
        assert got.update.flat.tolist() == [pytest.approx(weighted)] * 2
        assert got.counts.tolist() == [sizes[i] + sizes[j], 2]


@pytest.mark.parametrize("down", [TopK(0.1), ErrorFeedback(TopK(0.1)), LBGM(), RandK(0.5)], ids=repr)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_downlink_that_would_lose_absolute_values_is_refused(down: tw.Link, by_name: bool) -> None:
    with pytest.raises(CombinationError, match=r"cannot carry a broadcast.*EF21\(TopK\(0\.1\)\)"):
        trained(FedAvg(down={"x": down} if by_name else down), rounds=1)
    with pytest.raises(CombinationError, match="cannot carry a broadcast"):
        trained(LUAR(SCAFFOLD(down={"c": down}), recycle=1), rounds=1)


def test_a_link_for_a_field_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="up= names 'delta', but the fields it can carry are control, update"):
        trained(SCAFFOLD(up={"delta": TopK(0.1)}), rounds=1)
    with pytest.raises(ValueError, match="down= names 'update', but the fields it can carry are x"):
        trained(LUAR(FedAvg(down={"update": Half()}), recycle=1), rounds=1)
