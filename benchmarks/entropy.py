"""What the lossless last stage gains on a real update: bytes of each link's message, plain and through Entropy.

One client trains for an epoch; its change of the model goes through every link. Beside the bytes stands the order-0
entropy bound of the plain message (what the best code of single bytes would take), which way was taken, how long
sending and receiving take without and with the last stage (the fastest of three), and the share of the squared length
that the receiver sees.

    python benchmarks/entropy.py [--data digits] [--model mlp] [--clients 10] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import thinwire as tw
from thinwire.links import entropy_bound
from thinwire.problem import standard

LINKS = [
    "Dense()",
    "BF16()",
    "Int8()",
    "QSGD(16)",
    "QSGD(16, bucket=512)",
    "QSGD(127, norm='max')",
    "Ternary()",
    "SignSGD()",
    "TopK(0.01)",
    "TopK(0.1, values=Int8())",
    "STC(0.01)",
    "LowRank(2)",
    "TransformCoding(4000)",
    "TransformCoding(16000)",
]
WAYS = ("stored", "zstd", "range coding", "rows and columns")


def passed(link: tw.Link, update: tw.Params) -> tuple[int, int, float]:
    """The bytes of a message, the way that Entropy took, and the seconds there and back."""
    key, seconds = tw.Key(0).at("up"), []
    for _ in range(3):
        began = time.perf_counter()
        packet, _, _ = link.send(update, link.open(update)[0], key)
        data = tw.dumps(packet)
        link.recv(tw.loads(data), update.layout, None, key)
        seconds.append(time.perf_counter() - began)
    return len(data), packet[0] if isinstance(link, tw.Entropy) else 0, min(seconds)


def bound(link: tw.Link, update: tw.Params) -> float:
    return entropy_bound(tw.dumps(link.send(update, link.open(update)[0], tw.Key(0).at("up"))[0]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", default="digits")
    arguments.add_argument("--model")
    arguments.add_argument("--clients", type=int, default=10)
    arguments.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments.add_argument("--into", type=Path, help="a file of JSON lines")
    options = arguments.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    key = {"benchmark": "entropy", "data": options.data, "model": options.model, "clients": options.clients}
    line = record.measured(options.into, key, lambda: {"found": measure(options)}, "numpy", "zstandard")
    if options.json:
        print(json.dumps(line))


def measure(options: argparse.Namespace) -> dict[str, dict]:
    problem = standard(options.data, options.model, options.clients)
    run = tw.Simulation(tw.FedAvg(), problem.model, problem.tasks, sample=1)
    before = run.algorithm.model(run.server)
    with run.pool:
        run.step()
    update = run.algorithm.model(run.server) - before

    print(f"{update.layout.size:,} entries in {len(update.names)} layers, {4 * update.layout.size:,} bytes\n")
    print(
        f"{'link':26} {'plain':>10} {'bound':>12} {'Entropy':>10} {'share':>8}  {'way':12} "
        f"{'ms':>8} {'ms, both':>8} {'kept':>7}"
    )
    found = {}
    for expression in LINKS:
        link = tw.parse(expression)
        plain, _, alone = passed(link, update)
        data, way, both = passed(tw.Entropy(link), update)
        _, seen, _ = link.send(update, link.open(update)[0], tw.Key(0).at("up"))
        row = {
            "kept": 1 - ((update - seen).norm() / update.norm()) ** 2,
            "plain": plain,
            "bound": round(bound(link, update), 1),
            "entropy": data,
            "way": WAYS[way],
            "seconds": [alone, both],
        }
        found[expression] = row
        print(
            f"{expression:26} {row['plain']:10,} {row['bound']:12,.1f} {row['entropy']:10,} "
            f"{row['entropy'] / row['plain']:7.1%}  {row['way']:12} {1e3 * alone:8.1f} {1e3 * both:8.1f} "
            f"{row['kept']:7.3f}"
        )
    return found


if __name__ == "__main__":
    main()
