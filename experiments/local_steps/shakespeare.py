"""Local steps with a small wire: the loss of a character transformer beside the bytes of each method.

Logical ranks train a transformer of 421,697 parameters (width 128, two blocks, context 64) on the first nine tenths of
Shakespeare: 8 windows of 64 characters a rank and step, AdamW (.9, .95) at a rate of .004 with a weight decay of .1,
gradients clipped to a norm of 1, warm-up over 30 steps and a cosine to a tenth of the rate. Rounds have 20 steps. The
loss is x's, over 768 windows that lie evenly in the last tenth. Bytes are those that one rank gives to collectives.

All rows have one rate but DeMo, which has plain SGD at five, .001 where no other is said; ``--lr`` tries others. Rows
with "Muon" in their name have it for matrices and kernels, and AdamW for vectors, embeddings and the last layer. A
training is a JSON line when it is done, and is not trained again.

    python experiments/local_steps/shakespeare.py
    python experiments/local_steps/shakespeare.py --ranks 4 --steps 600
    python experiments/local_steps/shakespeare.py --only SparseLoCo --seeds 1 2
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import ddp, models
from thinwire.config import complete
from thinwire.data.files import gunzip, obtain
from thinwire.data.shakespeare import TEXT
from thinwire.ddp.simulation import simulate

CONTEXT, WINDOWS, STRIDE, WARM_UP = 64, 768, 8, 30
RESULTS = Path(__file__).parent / "results"

ROWS: dict[str, ddp.Method] = {
    "dense": ddp.Hook(tw.Dense()),
    "LocalSGD(20)": ddp.LocalSGD(20),
    "DiLoCo(20)": ddp.DiLoCo(20),
    "SparseLoCo(20)": ddp.SparseLoCo(20),
    "SparseLoCo(20), outer rate 0.7": ddp.SparseLoCo(20, outer=tw.SGD(0.7)),
    "SparseLoCo(20), outer rate 1.4": ddp.SparseLoCo(20, outer=tw.SGD(1.4)),
    "SparseLoCo(20), outer rate 2": ddp.SparseLoCo(20, outer=tw.SGD(2.0)),
    "DetachedLoCo(20)": ddp.DetachedLoCo(20),
    "DetachedLoCo(20), outer rate 2": ddp.DetachedLoCo(20, outer=tw.SGD(2.0)),
    "DetachedLoCo(20, share=0.0043)": ddp.DetachedLoCo(20, share=0.0043),
    "DetachedLoCo(20, decay=0.95)": ddp.DetachedLoCo(20, decay=0.95),
    "DetachedLoCo(20, lam=0.0): not detached": ddp.DetachedLoCo(20, lam=0.0),
    "DetachedLoCo(20) with SparseLoCo's messages": ddp.DEFA(
        tw.ChunkTopK(64, values=tw.Bins(4)), lam=0.5, steps=20, decay=0.8, count="senders", outer=tw.SGD(2.5)
    ),
    "SparseLoCo(20) with the messages of DetachedLoCo": ddp.EF(
        tw.TopK(0.014, values=tw.Bins(4)), steps=20, decay=0.95, count="senders"
    ),
    "DEF(TransformCoding(33400), steps=20)": ddp.DEF(tw.TransformCoding(33_400), steps=20),
    "DEF(TransformCoding(3340), steps=20)": ddp.DEF(tw.TransformCoding(3_340), steps=20),
    "DEF(TransformCoding(3376), lam=0.7, steps=20)": ddp.DEF(tw.TransformCoding(3_376), lam=0.7, steps=20),
    "dense, Muon": ddp.Hook(tw.Dense()),
    "LocalSGD(20), Muon": ddp.LocalSGD(20),
    "DEF(TransformCoding(33400), steps=20), Muon": ddp.DEF(tw.TransformCoding(33_400), steps=20),
    "DiLoCo(20, Bins(4)), Muon: MuLoCo": ddp.DiLoCo(20, tw.Bins(4)),
    "DetachedLoCo(20, share=0.1, outer=SGD(1.2)), Muon": ddp.DetachedLoCo(20, share=0.1, outer=tw.SGD(1.2)),
    "DEFA(Bins(4), lam=0.5, steps=20), Muon": ddp.DEFA(tw.Bins(4), lam=0.5, steps=20),
}
"""Each row's method."""

DEMO = {"DeMo(32)": 0.001, **{f"DeMo(32), rate {rate}": rate for rate in (0.0007, 0.0015, 0.002, 0.003)}}
"""DeMo's rows, and the rates of its sign's step. Other rows have --lr."""
ROWS |= dict.fromkeys(DEMO, ddp.DeMo(32))


def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Before a step: the gradient to a norm of at most 1."""
    nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)


def optimizer(row: str, lr: float) -> Any:
    """What makes a rank's optimiser. DeMo's momentum and sign are its own: it is given plain SGD."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if row in DEMO:
            return torch.optim.SGD(parameters, lr=DEMO[row])
        if "Muon" in row:
            every = list(parameters)  # embeddings of characters and places come first, the last layer's matrix last
            matrices = [p for p in every if p.ndim > 1]
            made: torch.optim.Optimizer = ddp.Muon(every, lr, weight_decay=0.1, plain=[*matrices[:2], matrices[-1]])
        else:
            made = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
        made.register_step_pre_hook(clip)
        return made

    return make


def schedule(steps: int) -> Any:
    """The factor of the learning rate at a step."""

    def rate(step: int) -> float:
        done = max(0.0, (step - WARM_UP) / max(1, steps - WARM_UP))
        return min(1.0, (step + 1) / WARM_UP) * (0.55 + 0.45 * math.cos(math.pi * done))

    return rate


def windows(text: Tensor, starts: Tensor) -> tw.Supervised:
    """Characters [n, 64] from these places, and the same shifted by one."""
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
    return tw.Supervised(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())


def problem() -> tuple[tw.Supervised, tw.Supervised]:
    """Overlapping windows of the first nine tenths, and those of the last tenth."""
    path = obtain("shakespeare", TEXT, None, True, forms=("input.txt.gz",))
    raw = gunzip(path, most=2_000_000) if path.suffix == ".gz" else path.read_bytes()
    order = {character: i for i, character in enumerate(sorted(set(raw)))}
    text = torch.tensor([order[character] for character in raw])
    cut = len(text) * 9 // 10
    train = windows(text[:cut], torch.arange(0, cut - CONTEXT - 1, STRIDE))
    return train, windows(text[cut:], torch.linspace(0, len(text) - cut - CONTEXT - 1, WINDOWS).long())


def train(o: argparse.Namespace, row: str, seed: int, data: tuple[tw.Supervised, tw.Supervised]) -> dict[str, Any]:
    """The loss of x by steps, and bytes a rank and step."""
    result = simulate(
        ROWS[row],
        lambda: models.char_transformer(context=CONTEXT, width=o.width, depth=o.depth),
        *data,
        workers=o.ranks,
        steps=o.steps,
        batch=8,
        seed=seed,
        evaluate_every=min(100, o.steps),
        optimizer=optimizer(row, o.lr),
        rate=schedule(o.steps),
    )
    curve = [[r["step"], round(r.get("test_loss_x", r["test_loss"]), 4)] for r in result.records]
    up, down = result.traffic.bytes, result.traffic.received(o.ranks)
    dense = 4 * sum(p.numel() for p in result.module.parameters())
    return {"loss": curve[-1][1], "curve": curve, "bytes_up": up, "bytes_down": down, "dense_bytes": dense * o.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--only", help="the row of this name alone, or those with this in their name")
    parser.add_argument("--into", type=Path, default=RESULTS / "shakespeare.jsonl")
    o = parser.parse_args()
    data = problem()
    for seed in o.seeds:
        for row, method in ROWS.items():
            if o.only and row != o.only and (o.only in ROWS or o.only not in row):
                continue
            key = {name: getattr(o, name) for name in ("ranks", "steps", "lr", "width", "depth")}
            key |= {"experiment": "local_steps", "row": row, "seed": seed, "expression": complete(method)}
            if record.found(o.into, key):
                continue
            began = time.time()
            line = key | train(o, row, seed, data) | record.about(complete(method), began)
            record.replace(o.into, line, key)
            rate = line["dense_bytes"] / line["bytes_up"]
            print(f"{line['loss']:.3f}  1/{rate:,.0f}  {line['seconds']:.0f} s  {o.ranks} ranks  {row}", flush=True)


if __name__ == "__main__":
    main()
