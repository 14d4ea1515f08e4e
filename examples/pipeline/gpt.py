"""A small GPT, written with plain torch, whose layers lie in several processes.

    torchrun --nproc-per-node 4 examples/pipeline/gpt.py --seconds 60
    torchrun --nproc-per-node 4 examples/pipeline/gpt.py --schedule "1F1B(4)"
    torchrun --nproc-per-node 4 examples/pipeline/gpt.py --schedule "BPK(activations=AQSGD(QSGD(7), examples=4096))"

It continues the characters of a text, by default those of this file. The last rank prints the loss, and at the end the
time of a batch beside the law of thinwire.pipeline.law, and the bytes of each rank.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from thinwire.pipeline import law, pipeline, split
from thinwire.pipeline.schedule import DNI, DSP
from thinwire.studies.pipelined import schedule as typed


class Embed(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.characters(x) + self.positions(torch.arange(x.shape[1], device=x.device))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        joined = self.qkv(self.norm1(x)).view(n, length, 3, self.heads, width // self.heads)
        q, k, v = joined.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


def batches(text: Tensor, context: int, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same on every rank: the first one takes the inputs, the last one the targets.

    Where an example begins is its number, for links that remember by example.
    """
    generator = torch.Generator().manual_seed(0)
    while True:
        starts = torch.randint(len(text) - context, (size,), generator=generator)
        rows = torch.stack([text[s : s + context + 1] for s in starts])
        yield rows[:, :-1], rows[:, 1:], starts


def one_way(size: int, rank: int, ranks: int) -> Tensor:
    """Seconds that a message of ``size`` bytes takes from each rank to the next: half of there and back."""
    found, message = torch.zeros(ranks - 1), torch.zeros(size, dtype=torch.uint8)
    for k in range(ranks - 1):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            if rank == k:
                dist.send(message, k + 1)
                dist.recv(message, k + 1)
            elif rank == k + 1:
                dist.recv(message, k)
                dist.send(message, k)
            times.append((time.perf_counter() - began) / 2)
        if rank == k:
            found[k] = min(times)
    dist.all_reduce(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", help='as for thinwire pipeline run, such as "1F1B(4)"; by default DSP with p = 1')
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--text", type=Path, default=Path(__file__))
    o = parser.parse_args()
    try:
        given = typed(o.schedule) if o.schedule else None
    except ValueError as error:
        parser.error(f"--schedule: {error}")

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = torch.tensor([min(ord(c), 127) for c in o.text.read_text()])
    loader = batches(text, o.context, o.batch)
    model = nn.Sequential(
        Embed(128, o.context, o.width),
        *[Block(o.width, 4) for _ in range(o.depth)],
        nn.Sequential(nn.LayerNorm(o.width), nn.Linear(o.width, 128)),
    )
    schedule = given or DSP((1,) * (ranks - 1) + (0,), tuple(range(2 * ranks - 2, -1, -2)))

    stages = split(model, parts=ranks, sample=next(loader))
    train = pipeline(stages, lambda p: torch.optim.AdamW(p, lr=1e-3), schedule)

    pieces = schedule.pieces
    link = pieces * one_way(4 * o.batch * o.context * o.width // pieces, rank, ranks)
    warm, began, losses, stop = 20, 0.0, [], torch.zeros(1)
    start = time.perf_counter()
    computed = 0.0
    for number, (x, y, examples) in enumerate(loader):
        if number == warm:
            began, computed = time.perf_counter(), train.computed
        loss = train.step(x, y, examples)
        if loss is not None:
            losses.append(float(loss))
            if len(losses) % 100 == 0:
                print(f"batch {len(losses)}: loss {sum(losses[-100:]) / 100:.3f}", flush=True)
        if number % 100 == 99:  # all ranks end after the same batch
            stop[0] = time.perf_counter() - start > o.seconds
            dist.broadcast(stop, 0)
            if stop:
                break
    count = number + 1 - warm
    took, own = (time.perf_counter() - began) / count, (train.computed - computed) / count
    train.drain()

    rows: list[dict] = [{} for _ in range(ranks)]
    dist.all_gather_object(rows, {"own": own, "took": took, "held": train.held[rank], **train.bytes.summary()})
    if rank == ranks - 1:
        hops, kept = link.tolist(), "batches" if pieces == 1 else "micro-batches"
        own = [r["own"] for r in rows]
        if pieces == 1 and not schedule.barrier and not isinstance(schedule, DNI):
            least = law.tick(schedule.delays(ranks), own, [0.0] * ranks, hops, hops)
        else:  # a third of what a part computes is its forward pass, about
            ahead, back = [each / 3 for each in own], [each * 2 / 3 for each in own]
            least = law.events(schedule, ahead, back, hops, hops, 40)
        print(f"{schedule!r}: {train.batches} batches, loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
        for k, row in enumerate(rows):
            print(
                f"part {k}: computes {1e3 * row['own']:.2f} ms a batch, sent {row['sent']:,} bytes, received "
                f"{row['received']:,}, kept {row['held']} {kept} at most"
            )
        print(f"a batch took {1e3 * max(r['took'] for r in rows):.2f} ms, and {1e3 * least:.2f} ms by the law")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
