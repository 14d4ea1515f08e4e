"""What the methods of the pages send: docs/methods/bytes.jsonl, a line an expression, each really run.

    python docs/bytes.py           # what a page names and has no line by committed code yet
    python docs/bytes.py --again   # all
    python docs/bytes.py --only STC --only QSGD  # those with one of these in them, again
    python docs/bytes.py --check   # what has no line; runs nothing

Federated methods train digits for some rounds through ``thinwire.simulate``, and bytes are those of the ledger.
Data-parallel methods train digits for some steps by logical workers, and bytes are what a rank gave to collectives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "experiments")]

import macros  # noqa: E402
import method_pages  # noqa: E402
import record  # noqa: E402
import torch  # noqa: E402

import thinwire as tw  # noqa: E402
from thinwire.ddp.methods import METHODS  # noqa: E402
from thinwire.ddp.simulation import simulate as ranks  # noqa: E402
from thinwire.problem import standard  # noqa: E402
from thinwire.studies.data_parallel import method  # noqa: E402

CLIENTS, SAMPLE, ROUNDS = 20, 10, 30
WORKERS, BATCH, STEPS = 4, 8, 64


def mean(entries: Iterable[float]) -> float:
    """With one decimal; of nothing, 0."""
    values = list(entries)
    return round(sum(values) / len(values), 1) if values else 0.0


def federated(expression: str) -> record.Line:
    """Bytes of a client and round, in both directions: the first contact of each client, and all others."""
    problem = standard("digits", model="mlp", clients=CLIENTS)
    result = tw.simulate(tw.parse(expression), problem.model, problem.tasks, ROUNDS, sample=SAMPLE, seed=0)
    line: record.Line = {"kind": "federated", "data": "digits", "model": "mlp", "clients": CLIENTS, "sample": SAMPLE}
    line |= {"rounds": ROUNDS, "parameters": sum(p.numel() for p in problem.model().parameters())}
    began: dict[int, int] = {}
    for entry in result.ledger.of("down"):
        began.setdefault(entry.client, entry.round)
    for way in ("up", "down"):
        entries = result.ledger.of(way)
        line[way] = mean(e.total for e in entries if e.round != began[e.client])
        line[f"first_{way}"] = mean(e.total for e in entries if e.round == began[e.client])
    return line


def data_parallel(expression: str) -> record.Line:
    """Bytes of a rank and step."""
    task = standard("digits", model="mlp", clients=1)
    result = ranks(
        method(expression),
        task.model,
        task.tasks[0],
        workers=WORKERS,
        steps=STEPS,
        batch=BATCH,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    )
    reduced, gathered = (getattr(result.traffic, name) / STEPS for name in ("reduced", "gathered"))
    line: record.Line = {"kind": "data-parallel", "data": "digits", "model": "mlp", "workers": WORKERS, "batch": BATCH}
    line |= {"steps": STEPS, "parameters": sum(p.numel() for p in result.module.parameters())}
    received = result.traffic.received(WORKERS) / STEPS
    return line | {"reduced": round(reduced, 1), "gathered": round(gathered, 1), "received": round(received, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    o = parser.parse_args()
    wanted, there = method_pages.expressions(), {line["expression"]: line for line in record.read(macros.BYTES)}
    wrong = []
    for expression, where in sorted(wanted.items()):
        line, asked = there.get(expression), o.again or any(part in expression for part in o.only)
        if line is not None and not record.dirty(line) and not asked:
            continue
        if o.check:
            wrong.append(f"{where[0]}: {expression} has no line")
            continue
        measure = data_parallel if expression.partition("(")[0].strip() in METHODS else federated
        try:
            line = {"expression": expression, **measure(expression), **record.code()}
        except Exception as error:
            wrong.append(f"{where[0]}: {expression}: {type(error).__name__}: {error}")
            continue
        record.replace(macros.BYTES, line, {"expression": expression})
        counts = ("up", "down") if line["kind"] == "federated" else ("reduced", "gathered")
        print(*(f"{line[name]:>12,.1f} {name}" for name in counts), "", expression, flush=True)
    if not o.check:  # in order, and without those that no page names any more
        kept = sorted((line for line in record.read(macros.BYTES) if line["expression"] in wanted), key=by_expression)
        macros.BYTES.write_text("".join(json.dumps(line) + "\n" for line in kept))
    if wrong:
        sys.exit("\n".join(wrong))


def by_expression(line: record.Line) -> str:
    return str(line["expression"])


if __name__ == "__main__":
    main()
