"""What transform coding costs: sending and receiving an update, on one thread, of two sizes or three.

0.6 million entries are the CNN of FedAvg's paper, 11.7 million ResNet-18 (62 layers), and with ``--large`` 124 million
a transformer of the size of GPT-2 (148 layers, 3.5 GB of memory). Entries are a few terms that fall off, and noise, as
updates are. ``send`` finds the step and codes, ``recv`` decodes. Milliseconds of the
processor, the fastest of some, beside a torch copy of the update; the bytes; the share of the squared length that is
seen.

    python benchmarks/transform.py [--rounds 5] [--large] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Size

import thinwire as tw

CNN = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,)]


def resnet18() -> list[tuple[int, ...]]:
    """The shapes of its layers."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (1000, 512), (1000,)]


def transformer() -> list[tuple[int, ...]]:
    """The shapes of its layers: twelve blocks of width 768, and embeddings of 50,257 words and 1,024 places."""
    block: list[tuple[int, ...]] = [(768,), (768,), (2304, 768), (2304,), (768, 768), (768,)]
    block += [(768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)]
    return [(50_257, 768), (1024, 768), *(12 * block), (768,), (768,)]


RUNS = {"0.6 M": (lambda: CNN, (1_000, 4_000, 16_000)), "11.7 M": (resnet18, (20_000, 100_000))}
LARGE = {"124 M": (transformer, (200_000,))}


def update(shapes: list[tuple[int, ...]]) -> tw.Params:
    """Layers of nearly low rank: forty terms, each three quarters of the one before, and noise."""
    layout, g = (
        tw.Layout(tuple(map(str, range(len(shapes)))), tuple(map(Size, shapes))),
        torch.Generator().manual_seed(0),
    )
    x = tw.Params(layout, 1e-3 * torch.randn(layout.size, generator=g))
    for name, shape in zip(layout.names, shapes, strict=True):
        if len(shape) > 1:
            m, n = shape[0], Size(shape[1:]).numel()
            rank = min(m, n, 40)
            falling = 0.75 ** torch.arange(rank)
            right = torch.randn(rank, n, generator=g) * falling[:, None]
            x[name].mul_(0.15).add_(1e-3 * (torch.randn(m, rank, generator=g) @ right).view(shape))
    return x


def fastest(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds of the processor."""
    found = []
    for _ in range(rounds + 1):  # the first is not counted: it loads libraries
        began = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - began))
    return min(found[1:])


def measure(rounds: int, large: bool) -> list[dict[str, float | str]]:
    lines: list[dict[str, float | str]] = []
    print(f"{'entries':>10} {'bytes':>8} {'sent':>8} {'kept':>7} {'send ms':>9} {'recv ms':>9} {'copy ms':>9}")
    for name, (shapes, budgets) in (RUNS | (LARGE if large else {})).items():
        x = update(shapes())
        copy = fastest(x.flat.clone, rounds)
        for budget in budgets:
            link, key = tw.parse(f"TransformCoding({budget})"), tw.Key(0)
            packet, seen, _ = link.send(x, None, key)
            line = {
                "update": name,
                "entries": x.layout.size,
                "link": repr(link),
                "bytes": len(tw.dumps(packet)),
                "kept": 1 - ((x - seen).norm() / x.norm()) ** 2,
                "send": fastest(lambda link=link, x=x, key=key: link.send(x, None, key), rounds),
                "recv": fastest(lambda link=link, p=packet, x=x, key=key: link.recv(p, x.layout, None, key), rounds),
                "copy": copy,
            }
            lines.append(line)
            print(
                f"{x.layout.size:10,} {budget:8,} {line['bytes']:8,} {line['kept']:7.4f} "
                f"{line['send']:9.1f} {line['recv']:9.1f} {copy:9.2f}"
            )
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--large", action="store_true", help="124 million entries too")
    options.add_argument("--json", action="store_true", help="print the figures as JSON too")
    options.add_argument("--into", type=Path, help="append them to this file")
    chosen = options.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    torch.set_num_threads(1)
    key = {"benchmark": "transform", "rounds": chosen.rounds, **({"large": True} if chosen.large else {})}
    line = record.measured(chosen.into, key, lambda: {"found": measure(chosen.rounds, chosen.large)}, "numpy")
    if chosen.json:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
