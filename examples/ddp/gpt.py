"""A small GPT of characters by DistributedDataParallel, whose ranks exchange every 20 steps.

    torchrun --nproc-per-node 2 examples/ddp/gpt.py

The two lines that make it thin are marked. Kill it and start it again, and it goes on from its last checkpoint to the
same bits. The text is Shakespeare's plays, from THINWIRE_DATA or the user's cache, or downloaded; ``--text`` takes
another file.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.data.shakespeare import plays
from thinwire.ddp import DetachedLoCo, compress  # the first line


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, depth: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def windows(text: Tensor, context: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Characters [batch, context] from random places, and the same shifted by one."""
    starts = torch.randint(len(text) - context - 1, (batch,), generator=generator).tolist()
    rows = torch.stack([text[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def evaluate(model: nn.Module, text: Tensor, o: argparse.Namespace, device: torch.device) -> float:
    """The mean loss over the same windows each time."""
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(20):
        x, y = windows(text, o.context, 32, generator)
        losses.append(F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten()).item())
    return sum(losses) / len(losses)


def rate(step: int, steps: int) -> float:
    """Warm-up over a twentieth of the steps, then a cosine to a tenth."""
    done = max(0.0, (step - steps / 20) / (0.95 * steps))
    return min(1.0, (step + 1) * 20 / steps) * (0.55 + 0.45 * math.cos(math.pi * done))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--apart", type=int, default=20, help="steps from one exchange to the next")
    parser.add_argument("--batch", type=int, default=8, help="windows a rank takes in a step")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--text", type=Path, help="a text file; Shakespeare's plays where it is left out")
    parser.add_argument("--every", type=int, default=100, help="steps from one checkpoint and evaluation to the next")
    parser.add_argument("--out", type=Path, default=Path("gpt"), help="the folder of checkpoints")
    o = parser.parse_args()
    if o.text and not o.text.is_file():
        parser.error(f"--text {o.text}: there is no such file")

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if rank == 0:
        o.text or plays()  # downloads it, if it is nowhere
    dist.barrier()
    text = o.text.read_text() if o.text else plays()
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])
    train, test = tokens[: len(tokens) * 9 // 10], tokens[len(tokens) * 9 // 10 :]
    if len(test) < o.context + 2:
        parser.error(
            f"--text has {len(text):,} characters; a test of --context {o.context} takes {10 * o.context + 11:,}"
        )

    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(len(characters), o.context, o.width, o.depth).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, betas=(0.9, 0.95), weight_decay=0.1)
    c = compress(model, optimizer, DetachedLoCo(o.apart))  # the second line
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, o.steps))

    # Each rank has a checkpoint of its own: its residual and its optimiser's moments are no other's.
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "compressed": c}
    o.out.mkdir(parents=True, exist_ok=True)
    saved = [int(path.stem.split("-")[1]) for path in o.out.glob(f"{rank}-*.pt")]
    last = torch.tensor([max(saved, default=0)], device=device)
    dist.all_reduce(last, dist.ReduceOp.MIN)  # the last that all ranks have
    first = int(last)
    if first:
        states = torch.load(o.out / f"{rank}-{first}.pt", map_location=device)
        for name, part in parts.items():
            part.load_state_dict(states[name])

    began = time.perf_counter()
    for step in range(first, o.steps):
        generator = torch.Generator().manual_seed(step * ranks + rank)
        x, y = windows(train, o.context, o.batch, generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)).flatten(0, 1), y.to(device).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        made = step + 1
        if made % o.every == 0 or made == o.steps:
            with c.averaged():  # the model that all ranks share
                judged = evaluate(model, test, o, device)
            if rank == 0:
                kilobytes = c.ledger.summary()["bytes"] / 1000
                seconds = time.perf_counter() - began
                print(f"step {made}: loss {judged:.3f}, {kilobytes:,.0f} kB given, {seconds:.0f} s", flush=True)
            draft = o.out / f"{rank}.draft"  # renamed once it is whole: it may be killed while it writes
            torch.save({name: part.state_dict() for name, part in parts.items()}, draft)
            draft.rename(o.out / f"{rank}-{made}.pt")
            for old in sorted(saved)[:-1]:  # the last two stay: another rank may not have the newest yet
                (o.out / f"{rank}-{old}.pt").unlink(missing_ok=True)
            saved = [*saved[-1:], made]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
