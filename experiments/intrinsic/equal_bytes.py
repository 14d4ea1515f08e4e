"""Intrinsic gradient compression in kind: accuracy when the same bytes have crossed, both directions added.

The paper trains GPT-2 on PersonaChat and compares d, K subspaces, FetchSGD, local top-k and FedAvg with more local
steps. Here: Fashion-MNIST (the FedAvg CNN) or Shakespeare by role (a small character transformer), Intrinsic at
several d beside top-k with error feedback and FedAvg with 1, 2 and 5 local epochs. Every method is trained for the
same number of rounds; the table says how far each was when it had used a budget of bytes.

What comes back from d coefficients is about sqrt(D / d) times as long as what was projected, so a rate that suits the
whole space diverges in a small subspace: each d is tried with several rates of the server (--rate), every one is
written down, and the best is shown. The paper tunes per d too.

    python experiments/intrinsic/equal_bytes.py --data fashion_mnist --rounds 40 --clients 300
    python experiments/intrinsic/equal_bytes.py --data shakespeare --rounds 40 --clients 64 --lr 0.5
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire import data as sets
from thinwire.problem import standard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["fashion_mnist", "shakespeare", "digits"], default="fashion_mnist")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dim", type=int, action="append")
    parser.add_argument("--rate", type=float, action="append", help="of the server, for Intrinsic")
    parser.add_argument("--every", type=int, default=2, help="rounds between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args()
    split = None if o.data == "shakespeare" else sets.Dirichlet(0.5)
    problem = standard(o.data, clients=o.clients, split=split, seed=o.seed)
    local = tw.LocalSGD(o.lr)
    dims = o.dim or [256, 1024, 4096, 16384, 65536]
    middle = dims[len(dims) // 2]
    intrinsic = [
        *[tw.Intrinsic(d, local=local, known=True) for d in dims],
        tw.Intrinsic(middle, subspaces=4, local=local, known=True),
        tw.Intrinsic(middle, varying=True, epoch=10, local=local, known=True),
        tw.Intrinsic(middle, subspaces=4, varying=True, epoch=10, local=local, known=True),
    ]
    rates = o.rate or [1.0, 0.3, 0.1, 0.03, 0.01]
    arms: list[list[tw.Algorithm]] = [[replace(method, opt=tw.SGD(rate)) for rate in rates] for method in intrinsic]
    arms += [
        [tw.FedAvg(local, up=tw.ErrorFeedback(tw.TopK(0.01)))],
        [tw.FedAvg(local, up=tw.ErrorFeedback(tw.TopK(0.01)), down=tw.EF21(tw.TopK(0.05)))],
        *[[tw.FedAvg(tw.LocalSGD(o.lr, epochs=e))] for e in (1.0, 2.0, 5.0)],
    ]
    into = o.into / f"equal_bytes_{o.data}.jsonl"
    curves = {}
    for arm in arms:
        tried = {}
        for method in arm:
            known = getattr(method, "known", False)
            row = {"experiment": "intrinsic, equal bytes", "data": o.data, "known_start": known}
            options = {"sample": o.sample, "seed": o.seed, "evaluate_every": o.every}
            if line := record.run(method, problem, o.rounds, into, row, **options):
                tried[repr(method)] = line
        if tried:
            name = max(tried, key=lambda name: tried[name]["best_accuracy"])
            curves[name] = tried[name]
    print("\naccuracy when so many MB have crossed, up and down together (- : not one evaluated round fits)")
    budgets = (0.3, 1, 3, 10, 30, 100, 300)
    print(" " * 12 + "".join(f"{b:>9}" for b in budgets))
    for name, line in curves.items():
        print(f"{name}\n" + " " * 12 + "".join(f"{record.shown(record.within(line, b * 1e6)):>9}" for b in budgets))


if __name__ == "__main__":
    main()
