"""Six methods on Fashion-MNIST: the table of docs/measured/results.md.

100 clients with labels dealt by Dirichlet(0.1), 10 of them a round, one local epoch of batches of 32, the 4-layer CNN
of the FedAvg paper. ``recycled`` is the share of messages that were a scalar, counted from the ledger.

    python experiments/fashion/table.py --out runs/fashion
    thinwire plot runs/fashion
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.data import Dirichlet
from thinwire.problem import standard

METHODS = """
    FedAvg()
    FedAvg(opt=Adam(0.01))
    SCAFFOLD()
    FedAvg(up=LBGM(threshold=0.5))
    LUAR(FedAvg(), recycle=2)
    FedAvg(up=TopK(0.1))
"""
SCALAR = 100  # bytes of payload: no whole update is as small


def recycled(result: tw.Result) -> record.Line:
    """The share of the messages up that were a scalar; 0 where nothing recycles."""
    up = result.ledger.of("up")
    return {"recycled": sum(entry.payload < SCALAR for entry in up) / len(up)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--model", default="fedavg_cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--sample", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="expressions with this in them")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    parser.add_argument("--out", type=Path, help="a folder for whole runs, for `thinwire plot`")
    o = parser.parse_args()
    problem = standard(o.data, o.model, o.clients, Dirichlet(0.1), o.seed)
    for text in map(str.strip, METHODS.strip().splitlines()):
        if o.only is None or any(word in text for word in o.only):
            row = {"experiment": "fashion", "data": o.data, "row": text}
            options = {"sample": o.sample, "seed": o.seed}
            if o.out:
                options |= {"out": o.out / re.sub(r"\W+", "-", text).strip("-"), "resume": True}
            method = tw.parse(text, {"lr": o.lr})
            record.run(method, problem, o.rounds, o.into / f"table_{o.data}.jsonl", row, recycled, **options)


if __name__ == "__main__":
    main()
