"""LBGM over other compressors, in kind: what it saves on top of them, and at what accuracy.

100 clients, all of them in every round, with three classes of ten each, and the paper's CNN. ``--batch`` is not
given: one gradient of all a client's examples a round and server momentum 0.9, as in the authors' code, the most
favourable case; with it: an epoch of mini-batches, as in the paper's text. The paper trains on all of the data, for
100 rounds on MNIST, 300 on Fashion-MNIST, 500 on CIFAR-10; the options say how much of both is used here.

Each compressor is trained alone and with LBGM on it. Over top-k the residual may lie inside (what top-k with error
feedback would deliver is tested), outside (the dense update is tested), or nowhere. The rows "their accounting" are the
authors' code: LBGM tests, stores and applies the dense update with a residual, and top-k enters the bill alone. Whose
residual it is, top-k's or what LBGM itself left out, has a row each. Their ``floats_up`` is that bill. It is no number
of bytes: what would have to be sent is dense, and that is ``bytes_up``.

    python experiments/lbgm/plug_and_play.py --data mnist --examples 6000 --rounds 40
    python experiments/lbgm/plug_and_play.py --data fashion_mnist --batch 32 --lr 0.05 --only dense --only top-k
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire import data as sets
from thinwire.key import Key
from thinwire.links.lbgm import multiplier
from thinwire.links.sparse import kept
from thinwire.params import Layout, Params
from thinwire.problem import Problem, standard
from thinwire.wire import Packet, State

CLASSES = 3  # of ten that a client has
RECYCLED = 200  # bytes: scalars, of all layers if need be; no whole update of this model is as small

# Figures 5, 7 and 8 and section 4: the share of the floats (of signs: bits) sent that LBGM saves, by threshold where
# one is named, and the accuracy it costs. The accuracy of plain training is that of the authors' logs.
SAVED = {
    "dense": {("cifar10", 0.05): "55 %", ("cifar10", 0.01): "22 %"},
    "top-k": "30-70 %",
    "rank 2": "30-70 %",
    "signs": "60-80 %",
}
COST = {("cifar10", 0.2): "-14 points", ("cifar10", 0.05): "-4 points", ("cifar10", 0.01): "-0.01 points"}
PLAIN = {"mnist": 0.951, "cifar10": 0.703}


def paper(family: str, data: str, threshold: float | None) -> dict[str, Any]:
    """What the paper has for a row."""
    if threshold is None:
        return {"paper_accuracy": PLAIN.get(data) if family == "dense" else None}
    saved = SAVED[family]
    return {
        "paper_saved": saved.get((data, threshold)) if isinstance(saved, dict) else saved,
        "paper_cost": COST.get((data, threshold)) if family == "dense" else None,
    }


def problem(name: str, model: str, examples: int | None, clients: int, seed: int) -> Problem:
    """A part of the training set dealt to the clients, the whole test set."""
    loaded = sets.load(name)
    part = torch.randperm(len(loaded.targets), generator=torch.Generator().manual_seed(seed))[:examples]
    small = replace(loaded, inputs=loaded.inputs[part], targets=loaded.targets[part])
    return standard(small, model, clients, sets.Pathological(CLASSES), seed)


class Theirs(NamedTuple):
    """What the sender of :class:`TheirAccounting` keeps."""

    gradient: Params  # l
    residual: Params  # e, of top-k


@dataclass(frozen=True)
class TheirAccounting(tw.Link):
    """LBGM over top-k as the authors' code has it: trained on dense messages, billed as if they were sparse.

    u = g + e is tested, and is delivered and becomes l where it is not recycled; e <- u - TopK(u) in every round,
    though no receiver ever sees TopK(u). Floats: 1 of a recycled message, of every other what top-k keeps, the
    smaller of the two bills, and nothing for the places of what it keeps.
    """

    top_k: tw.TopK = tw.TopK(0.1)
    threshold: float = 0.2

    memory = True

    def open(self, like: Params) -> tuple[State, State]:
        return Theirs(like.zeros(), like.zeros()), like.zeros()

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        l, u = tx.gradient.only(x.names), x + tx.residual.only(x.names)  # noqa: E741  the paper's letter
        residual = tx.residual.replace(u - self.top_k.send(u, None, key)[1])
        if (rho := multiplier(u, l, self.threshold)) is not None:
            return rho, l * rho, Theirs(tx.gradient, residual)
        packet, seen, _ = tw.Dense().send(u, None, key)
        return [packet], seen, Theirs(tx.gradient.replace(u), residual)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        if not isinstance(packet, list):
            return rx.only(layout.names) * packet, rx
        seen, _ = tw.Dense().recv(packet[0], layout, None, key)
        return seen, rx.replace(seen)

    def floats(self, packet: Packet) -> float:
        return kept(self.top_k.share, int(tw.Dense().floats(packet[0]))) if isinstance(packet, list) else 1.0


@dataclass(frozen=True)
class Billed(tw.Link):
    """LBGM over dense messages, with the floats of :class:`TheirAccounting`."""

    inner: tw.LBGM
    share: float = 0.1

    memory = True
    contraction = True

    def open(self, like: Params) -> tuple[State, State]:
        return self.inner.open(like)

    def send(self, x: Params, tx: State, key: Key) -> tuple[Packet, Params, State]:
        return self.inner.send(x, tx, key)

    def recv(self, packet: Packet, layout: Layout, rx: State, key: Key) -> tuple[Params, State]:
        return self.inner.recv(packet, layout, rx, key)

    def floats(self, packet: Packet) -> float:
        return kept(self.share, int(self.inner.floats(packet))) if isinstance(packet, list) else 1.0


def families(thresholds: list[float], layerwise: bool) -> dict[str, dict[tuple[str, float | None], tw.Link]]:
    """Links by compressor: alone, and with LBGM at every threshold."""

    def looking_back(inner: tw.Link, threshold: float, compare: Any = "delivered") -> tw.Link:
        link = tw.LBGM(inner, threshold, compare)
        return tw.Layerwise(link) if layerwise else link

    top_k, feedback = tw.TopK(0.1), tw.ErrorFeedback(tw.TopK(0.1))
    alone: dict[str, tw.Link] = {"dense": tw.Dense(), "top-k": feedback, "rank 2": tw.LowRank(2), "signs": tw.SignSGD()}
    found: dict[str, dict[tuple[str, float | None], tw.Link]] = {}
    for family, link in alone.items():
        rows: dict[tuple[str, float | None], tw.Link] = {("alone", None): link}
        for threshold in thresholds:
            rows["LBGM", threshold] = looking_back(link, threshold)
            if family == "top-k":
                outside = looking_back(top_k, threshold, "dense")
                rows["LBGM, residual outside, dense update tested", threshold] = tw.ErrorFeedback(outside)
                rows["LBGM, no residual", threshold] = looking_back(top_k, threshold)
                theirs, billed = TheirAccounting(top_k, threshold), Billed(tw.LBGM(tw.Dense(), threshold))
                rows["LBGM, their accounting", threshold] = tw.Layerwise(theirs) if layerwise else theirs
                around = tw.ErrorFeedback(tw.Layerwise(billed) if layerwise else billed)
                rows["LBGM, their accounting, residual of LBGM", threshold] = around
        found[family] = rows
    return found


def recycled(result: tw.Result, base: int, floats: float) -> dict[str, Any]:
    """The share of messages that were scalars, and of the bytes of ``base`` and of its ``floats`` that were saved."""
    up = result.ledger.of("up")
    base = base or result.bytes_up
    sent = result.summary()["up_floats"]
    return {
        "recycled": sum(entry.payload < RECYCLED for entry in up) / len(up),
        "saved_up": 1 - result.bytes_up / base,
        "saved_both_ways": 1 - (result.bytes_up + result.bytes_down) / (base + result.bytes_down),
        "saved_floats_up": 1 - sent / (floats or sent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["mnist", "fashion_mnist", "cifar10", "digits"], default="fashion_mnist")
    parser.add_argument("--model", default="lbgm_cnn")
    parser.add_argument("--examples", type=int, help="of the training set, for all clients together; default: all")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--batch", type=int, help="mini-batches of this size; default: one gradient of all examples")
    parser.add_argument("--epochs", type=float, default=1.0, help="of mini-batches")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--sign-lr", type=float, default=0.0002, help="what the server multiplies the mean sign with")
    parser.add_argument("--threshold", type=float, action="append", help="delta; may be given several times")
    parser.add_argument("--layerwise", action="store_true", help="look back layer by layer, as in the authors' code")
    parser.add_argument("--only", choices=["dense", "top-k", "rank 2", "signs"], action="append")
    parser.add_argument("--row", action="append", help="of a compressor only this one, such as alone or LBGM")
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args()
    setting = problem(o.data, o.model, o.examples, o.clients, o.seed)
    whole = o.batch is None
    local = tw.LocalSGD(o.lr, batch=None, steps=1) if whole else tw.LocalSGD(o.lr, epochs=o.epochs, batch=o.batch)
    into = o.into / f"plug_and_play_{o.data}.jsonl"
    for family, links in families(o.threshold or [0.2], o.layerwise).items():
        if family not in (o.only or [family]):
            continue
        rate = o.sign_lr if family == "signs" else 1.0
        opt = tw.Momentum(rate, beta=0.9) if whole else tw.SGD(rate)
        base, floats = 0, 0.0  # bytes and floats up of the compressor alone
        for (kind, threshold), link in links.items():
            row = {
                "experiment": "lbgm, plug and play",
                "data": o.data,
                "training": "full gradient, server momentum" if whole else "mini-batches",
                "row": f"{family}, {kind}",
                "threshold": threshold,
                **paper(family, o.data, threshold),
            }
            if "their accounting" in kind:
                row["accounting"] = "theirs, floats"
            if kind in (o.row or [kind]):
                about = {k: v for k, v in row.items() if k.startswith("paper") and v is not None}
                print(f"{row['row']:50s} delta {threshold}  {about or ''}")
                method = tw.FedAvg(local, opt=opt, up=link)
                measure = partial(recycled, base=base, floats=floats)
                line = record.run(method, setting, o.rounds, into, row, measure, seed=o.seed, evaluate_every=o.every)
            else:
                there = {"row": row["row"], "training": row["training"], "rounds": o.rounds, "seed": o.seed}
                line = record.found(into, {**there, "clients": o.clients, "examples": sum(map(len, setting.tasks))})
            if line and not base:  # trained now or before
                base, floats = line["bytes_up"], line["floats_up"]


if __name__ == "__main__":
    main()
