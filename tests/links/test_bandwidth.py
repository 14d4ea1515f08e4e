"""A link for each bandwidth."""

from __future__ import annotations

import pytest
import torch

from problems import forty, key
from thinwire.errors import WireError
from thinwire.links import ByBandwidth, Dense, ErrorFeedback, Half, TopK


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
