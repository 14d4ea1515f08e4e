"""Clustered LBGM: a few look-back gradients for everyone, in place of one a client.

Azam, Hosseinalipour, Qiu, Brinton, "Recycling Model Updates in Federated Learning: Are
Gradient Subspaces Low-Rank?", ICLR 2022, Appendix C.1, "LBG Clustering".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Size, Tensor

from .. import params
from ..errors import check
from ..key import Key
from ..links.lbgm import SquaredSine, multiplier
from ..local import Local, LocalSGD, Trainer
from ..optimizers import SGD, Optimizer
from ..params import Layout, Params
from ..ranges import Range
from ..task import Task
from ..wire import Several, State
from .base import Algorithm, Client, Each, Message, Start, link_of


class Server(NamedTuple):
    """What the server keeps."""

    x: Params
    opt: State
    centroids: Params  # a layer of d entries each; zero: not in use yet
    changed: Tensor  # [clusters], bool: those that clients have to be sent


class Broadcast(NamedTuple):
    """What everyone is sent (of the centroids those that changed), and what a client holds (all of them)."""

    x: Params
    centroids: Params


class Recycled(NamedTuple):
    """rho times a centroid."""

    cluster: int
    rho: Tensor


class Reply(NamedTuple):
    """What a client sends back: its update whole, or no layer of it and what stands for it."""

    whole: Each[Params]
    recycled: Each[Several]  # of Recycled, one at most
    examples: Each[int]


@dataclass(frozen=True)
class ClusteredLBGM(Algorithm):
    """LBGM with ``clusters`` look-back gradients that all clients share.

    The centroids are broadcast. A client takes the one whose direction is nearest to its
    update g. If the squared sine of the angle between them is at most ``threshold`` it sends
    which one and rho = <g, c> / |c|^2, and the server uses rho * c; else it sends g, through
    ``up``. Then the server moves the centroids. While some are not in use, the whole update
    farthest from those that are becomes the next one, unless all lie within ``threshold``.
    Then every whole update goes to its nearest centroid, and a centroid with such a member
    becomes the mean of what its members sent in this round, g or rho * c, turned to one side
    (c and -c are one direction). The others stay, and are not sent again.

    What it saves is memory: ``clusters`` models at the server and in a checkpoint, however
    many clients there are. On the wire it costs: each centroid that changed goes to every
    client, up to ``clusters`` models in a broadcast. Where centroids change in most rounds, this is
    more than recycling can save of the uplink. A client holds all centroids. The server holds the
    whole updates of a round while it moves them.

    Raises ``ValueError`` for ``clusters`` below 1 and for a ``threshold`` outside [0, 1].

    Differences from the paper: the paper has the idea alone, centroids that are broadcast in place of
    the clients' own look-back gradients. Which centroid a client takes and how centroids move is ours.
    """

    clusters: Annotated[int, Range(lambda x: x > 0, "is a number of centroids")] = 8
    threshold: SquaredSine = 0.2
    local: Trainer = LocalSGD()
    opt: Optimizer = SGD(1.0)

    paper = "Azam et al., ICLR 2022, Appendix C.1"

    def init(self, x: Params, num_clients: int, key: Key) -> Start:
        names = tuple(f"centroid{j}" for j in range(self.clusters))
        centroids = Layout(names, (Size([x.layout.size]),) * self.clusters, x.layout.dtype).zeros()
        remembers = link_of(self.down, "centroids").memory  # such a link opens on what it carries first
        first = torch.full((self.clusters,), remembers, device="cpu")
        blank = Broadcast(x.zeros(), centroids)
        reply = Reply(x.zeros(), Several([], Recycled(0, x.flat.new_zeros(()))), 0)
        return Start(Server(x, self.opt.init(x), centroids, first), blank, None, reply, blank)

    def broadcast(self, server: State, view: State) -> Message:
        return Broadcast(server.x, server.centroids.only(server.centroids.layout.named(server.changed)))

    def see(self, view: State, msg: Message, key: Key) -> State:
        return Broadcast(msg.x, view.centroids.replace(msg.centroids) if msg.centroids.names else view.centroids)

    def supersedes(self, older: Message, newer: Message) -> bool:
        return set(older.centroids.names) <= set(newer.centroids.names)

    def client(self, view: State, state: State, task: Task, key: Key) -> Client:
        y = yield Local(view.x, self.local)
        g = y.x - view.x
        centroids = _models(view.centroids, g.layout)
        j = _nearest([_cosine(g, c) for c in centroids])
        rho = multiplier(g, centroids[j], self.threshold)
        recycled = Several([] if rho is None else [Recycled(j, rho)], Recycled(0, g.flat.new_zeros(())))
        return Reply(g if rho is None else g.only(()), recycled, len(task)), state

    def outlines(self, view: State, blank: Message, key: Key) -> Sequence[Message]:
        return blank, blank._replace(whole=blank.whole.only(()))

    def admit(self, view: State, reply: Message, examples: int, clip: float | None) -> Message:
        check(reply.examples == examples, f"{examples} examples, as the header says,")
        whole = [] if reply.recycled else view.x.names
        check(len(reply.recycled) <= 1 and list(reply.whole.names) == list(whole), "an update, or what stands for it,")
        for cluster, rho in reply.recycled:
            check(0 <= cluster < self.clusters, f"one of {self.clusters} centroids")
            norm = float(rho.abs()) * _models(view.centroids, view.x.layout)[cluster].norm()
            if clip is not None and norm > clip:
                shorter = Recycled(cluster, rho * (clip / norm))
                return reply._replace(recycled=Several([shorter], reply.recycled.like))
        return reply

    def server(self, server: State, view: State, mean: Message, key: Key) -> State:
        layout: Layout = server.x.layout
        centroids = _models(view.centroids, layout)
        used: dict[int, Recycled] = {k: r[0] for k, r in mean.recycled.items() if r}

        def update_of(client: int) -> Params:
            if client in used:
                return centroids[used[client].cluster] * used[client].rho
            return layout.zeros().replace(mean.whole[client])

        weights = [float(n) if self.weights == "examples" else 1.0 for n in mean.examples.values()]
        update = Params(layout, params.mean((update_of(k).flat for k in mean.whole), weights))
        x, opt = self.opt.step(server.x, update, server.opt)

        whole = [g for k, g in mean.whole.items() if k not in used and g.layout == layout and g.norm() > 0]
        begun, cosines = self._begin(centroids, whole)
        homes = [_nearest(row) for row in cosines]
        moved = {}
        for j in sorted(set(homes)):
            sides = [g if row[j] >= 0 else -g for g, row, home in zip(whole, cosines, homes, strict=True) if home == j]
            sides += [centroids[j] * r.rho.abs() for r in used.values() if r.cluster == j]
            moved[j] = params.mean((g.flat for g in sides), [1.0] * len(sides))
        flat = torch.cat([moved.get(j, c.flat) for j, c in enumerate(begun)])
        changed = torch.tensor([j in moved for j in range(self.clusters)], device="cpu")
        return Server(x, opt, Params(view.centroids.layout, flat), changed)

    def _begin(self, centroids: list[Params], whole: list[Params]) -> tuple[list[Params], list[list[float]]]:
        """The centroids with those that come into use, and the cosine of every update to every centroid."""
        centroids, cosines = list(centroids), [[_cosine(g, c) for c in centroids] for g in whole]
        for j, c in enumerate(centroids):
            if c.norm() > 0 or not whole:
                continue
            nearness = [max(cosine * cosine for cosine in row) for row in cosines]
            far = nearness.index(min(nearness))
            if nearness[far] > 0 and 1 - nearness[far] <= self.threshold:
                break  # all of them are near enough to one in use
            centroids[j] = whole[far]
            for g, row in zip(whole, cosines, strict=True):
                row[j] = _cosine(g, whole[far])
        return centroids, cosines


def _models(centroids: Params, layout: Layout) -> list[Params]:
    """Each centroid in the form of the model; views."""
    return [Params(layout, c) for _, c in centroids.items()]


def _cosine(g: Params, c: Params) -> float:
    """The cosine between two vectors; 0 where one of them is zero."""
    norms = g.norm() * c.norm()
    return (g @ c) / norms if norms > 0 else 0.0


def _nearest(cosines: list[float]) -> int:
    """The centroid of the closest direction, the first among equals."""
    return max(range(len(cosines)), key=lambda j: abs(cosines[j]))
