"""A link for each bandwidth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import forty, key
from thinwire.errors import CombinationError, WireError
from thinwire.links import EF21, ByBandwidth, Dense, ErrorFeedback, Half, Int8, Link, PerClient, TopK


def test_the_link_of_the_highest_rate_that_is_reached_is_chosen() -> None:
    link = ByBandwidth({"1": Dense(), "10": Half(), "0.5": TopK(0.5)})
    found = {mbit: link.rate_for(mbit) for mbit in (None, 0.1, 0.5, 0.99, 1.0, 9.9, 10.0, 1e6)}
    expected = {None: "10", 0.1: "0.5", 0.5: "0.5", 0.99: "0.5", 1.0: "1", 9.9: "1", 10.0: "10", 1e6: "10"}
    assert found == expected


def test_each_link_of_a_bandwidth_keeps_its_own_residual() -> None:
    link = ByBandwidth({"1": ErrorFeedback(TopK(0.5)), "0": ErrorFeedback(TopK(0.25))})
    x = forty(1.0, 3.0)
    fast, slow = key(0)._replace(mbit=2.0), key(0)._replace(mbit=0.5)
    _, first, tx = link.send(x, link.open(x.zeros())[0], fast)
    _, other, after = link.send(x, tx, slow)
    assert after["1"] == tx["1"]
    alone = ErrorFeedback(TopK(0.25))
    assert torch.equal(other.flat, alone.send(x, alone.open(x.zeros())[0], slow)[1].flat)
    assert not torch.equal(first.flat, other.flat)


def test_a_packet_of_another_bandwidths_link_is_refused() -> None:
    link = ByBandwidth({"1": Half(), "0": Dense()})
    x = forty(1.0, 3.0)
    packet, _, _ = link.send(x, link.open(x)[0], key(0)._replace(mbit=2.0))
    with pytest.raises(WireError, match="a packet of the link for 0 Mbit/s"):
        link.recv(packet, x.layout, link.open(x)[1], key(0)._replace(mbit=0.5))


RATED = ByBandwidth({"1": Half(), "0": Int8()})


@pytest.mark.parametrize("down", [ByBandwidth({"1": Half(), "0": EF21(Int8())}), EF21(RATED), PerClient(RATED)])
def test_what_the_server_sends_goes_by_no_uplink_and_is_refused(down: Link) -> None:
    with pytest.raises(CombinationError, match=r"goes by no client's uplink: ByBandwidth is for up=$"):
        tw.simulate(tw.FedAvg(down=down), nn.Linear(2, 2), [(torch.ones(4, 2), torch.ones(4).long())], rounds=1)


@pytest.mark.parametrize("make", [tw.ddp.Hook, tw.ddp.EF, tw.ddp.DEF])
def test_ranks_measure_no_rate_and_refuse_it(make: Any) -> None:
    with pytest.raises(CombinationError, match=r"ranks measure no rate, .* give that link itself$"):
        make(EF21(RATED) if make is tw.ddp.Hook else RATED)
