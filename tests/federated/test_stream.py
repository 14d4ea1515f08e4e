"""The stream of broadcasts: what a client that missed some is sent."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

import thinwire as tw
from thinwire.algorithms.base import Algorithm
from thinwire.federated.messages import Form
from thinwire.federated.stream import Stream, catch_up
from thinwire.links import Dense

KEY = tw.Key(0)


class Note(NamedTuple):
    x: tw.Params
    mark: int


class Held(NamedTuple):
    x: tw.Params
    mark: int
    ballast: Tensor  # so that a snapshot is dearer than any messages


class Marked(Algorithm):
    """A broadcast with a mark of 1 moves a counter; only one with a mark of 0 may be replaced by the next."""

    def init(self, x, num_clients, key):
        raise AssertionError

    def broadcast(self, server, view):
        raise AssertionError

    def see(self, view, msg, key):
        return Held(msg.x, view.mark + msg.mark, view.ballast)

    def client(self, view, state, task, key):
        raise AssertionError

    def server(self, server, view, mean, key):
        raise AssertionError

    def model(self, server, client=None):
        raise AssertionError

    def supersedes(self, older, newer):
        return older.mark == 0


def test_a_broadcast_that_moves_something_is_kept_for_those_who_missed_it() -> None:
    x = tw.Params.of([("a", torch.arange(4.0))])
    method = Marked()
    form = Form.of(Note(x, 0), Dense(), "down")
    stream = Stream(method, form, Held(x.zeros(), 0, torch.zeros(1000)), None)
    views = [stream.view]
    for round, mark in enumerate((1, 0, 0, 1, 0), 1):
        stream.publish(Note(x * float(round), mark), None, tw.Key(0, round))
        views.append(stream.view)
    for version, view in enumerate(views):
        parcel = stream.parcel(version)
        found = catch_up(method, form, view, parcel, KEY)
        assert (found.state.mark, found.state.x.flat.tolist()) == (2, [0.0, 5.0, 10.0, 15.0])
    assert [len(stream.parcel(v).messages) for v in range(6)] == [3, 2, 2, 2, 1, 0]
