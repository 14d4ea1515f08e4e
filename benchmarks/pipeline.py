"""Pipelined training over a slow link: times of a batch beside the law, and beside torch.distributed.pipelining.

Two processes have half a model each: ResNet-20, the character transformer, or ``waits``. That is a chain of 14 modules
which wait in place of computing, 1.2 ms forward and 2.4 ms back, as long in all as ResNet-20 takes for 8 pictures on an
idle core of the machine where this was written, and hand on as much as its second stage. So each of the two has, in
effect, a processor of its own, however many the machine has and whatever else they do.

All schedules take turns in one run, with micro-batches of the same size. Over slow links a model is cut once, so that
all of them hand on as many bytes. Over loopback it is cut once more for those schedules whose first part replays its
forward passes. (Modules of ``waits`` all hand on as much, so it has two cuts everywhere.) A turn begins with batches
that are not counted, so that queues are full. What is measured is the time of a micro-batch: DSP, FR and BPK make a
step of each, GPipe, 1F1B and torch's schedules one of ``MICRO``. With --slowlink, the path of a program that runs a
command on hosts joined by slow links (``PROGRAM --hosts 2 --rate MBIT --delay MS -- COMMAND``, each host with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT), the two are hosts whose messages take 10 ms one way, at 100 and at 20 Mbit/s.
Without, they are over loopback.

    python benchmarks/pipeline.py [--quick] [--slowlink PROGRAM] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

MICRO = 4  # micro-batches of a batch, of the schedules that have them
EXAMPLES = 8  # of a micro-batch
SLOWED = (50, 100, 150)  # percent
WAITS, SECONDS = 14, 0.0012  # modules, and what each waits forward
CUTS = {(2, True): [6], (2, False): [7], (4, False): [3, 7, 10]}  # of waits, by parts and whether the first replays
HERE = Path(__file__).resolve().parent


def model(name: str, tiny: bool) -> tuple[Any, Any, Any]:
    """A model that is a chain, and a micro-batch."""
    import torch

    import thinwire.models as models

    torch.manual_seed(0)
    n = 2 if tiny else EXAMPLES
    if name == "waits":
        return waits(), torch.randn(n, 32, 16, 16), torch.randint(16, (n, 32, 16))
    if name == "resnet20":
        return models.resnet20(), torch.randn(n, 3, 32, 32), torch.randint(10, (n,))
    rows = torch.randint(65, (n, 81))
    return models.char_transformer(depth=2 if tiny else 6), rows[:, :-1], rows[:, 1:]


def waits() -> Any:
    """A chain of modules that wait, twice as long back as forward."""
    import torch
    from torch import nn

    class Later(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
            time.sleep(SECONDS)
            return x * gain

        @staticmethod
        def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(2 * SECONDS)
            return slopes[0], torch.zeros(())

    class Wait(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = Later.apply(x, self.gain)  # type: ignore[no-untyped-call]
            return found

    return nn.Sequential(*[Wait() for _ in range(WAITS)])


LIKE = {"late": (2, True), "plain": (2, False), "chunks": (4, False)}  # parts, and whether the first replays


def cut(o: argparse.Namespace, net: Any, like: str, sample: Any) -> list[int]:
    """Where a model is cut: the costliest part, or link, takes as little as can be."""
    from thinwire.pipeline import DSP, split
    from thinwire.pipeline.split import places

    parts, late = LIKE[like]
    if o.model == "waits":
        return CUTS[parts, late]
    schedule = DSP((1, 0), (2, 0)) if late else None
    return list(places(split(net, parts, sample=sample, schedule=schedule, mbit=o.rate or None)))


class Arm:
    """A training of this process's part; ``step`` is a micro-batch, or ``MICRO`` of them."""

    def __init__(self, name: str, o: argparse.Namespace, profile: Any, slowed: tuple[int, float] | None = None) -> None:
        import torch
        from torchs import SINGLE, Torchs

        from thinwire import Int8
        from thinwire.losses import cross_entropy
        from thinwire.pipeline import BPK, DSP, FR, GPipe, OneFOneB, pipeline, split
        from thinwire.pipeline.split import replays

        net, x, y = model(o.model, o.tiny)
        torchs, _, kind = name.partition(" ")
        self.flushed = torchs == "torch" or name in ("GPipe", "1F1B")
        self.counts = MICRO if self.flushed else 1
        self.x, self.y = (torch.cat([t] * self.counts) for t in (x, y))
        self.slowed, self.slept, self.dice = slowed, 0.0, random.Random(torch.distributed.get_rank())
        self.train: Any
        sgd = lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)  # noqa: E731
        self.schedule: Any = None
        if torchs == "torch":
            like = "plain" if kind in SINGLE else "chunks"
            stages = split(net, LIKE[like][0], at=profile["cuts"][like])
            self.train = Torchs(kind, stages, MICRO, sgd, lambda out, y: cross_entropy(out, y).mean())
            return
        small = {"activations": Int8(), "gradients": Int8()} if "Int8" in name else {}
        spare = 4 if "spare" in name else 0
        known = {
            "BPK": BPK(),
            "FR": FR(),
            "FR, barrier": FR(barrier=True),
            "GPipe": GPipe(MICRO),
            "1F1B": OneFOneB(MICRO),
        }
        ahead = profile["delay"]["Int8" if small else "dense"] + spare
        self.schedule = known.get(name) or DSP((1, 0), (ahead, 0), **small)
        like = "late" if any(replays(self.schedule, 2)) else "plain"
        self.train = pipeline(split(net, 2, at=profile["cuts"][like]), sgd, self.schedule)

    def step(self) -> None:
        before = getattr(self.train, "computed", 0.0)
        self.train.step(self.x, self.y)
        if self.slowed is not None:
            percent, chance = self.slowed
            if self.dice.random() < chance:
                wait = (self.train.computed - before) * percent / 100
                self.slept += wait
                time.sleep(wait)

    def turn(self, warm: int, count: int) -> dict[str, float]:
        """Seconds a micro-batch, and of them those that this process computed."""
        import torch.distributed as dist

        dist.barrier()
        for _ in range(warm):
            self.step()
        began, own = time.perf_counter(), getattr(self.train, "computed", 0.0) + self.slept
        for _ in range(count):
            self.step()
        took = time.perf_counter() - began
        own = getattr(self.train, "computed", 0.0) + self.slept - own
        return {"took": took / count / self.counts, "own": own / count / self.counts}


def rank_main(o: argparse.Namespace) -> None:
    """One process: every arm in turn."""
    import torch
    import torch.distributed as dist

    from thinwire.pipeline import split
    from thinwire.pipeline.plan import least, measure

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net, x, y = model(o.model, o.tiny)
    found: list[Any] = [None]
    cuts = {like: cut(o, net, like, x) for like in LIKE}  # as rank 0 measures them
    if o.rate and o.model != "waits":
        cuts["plain"] = cuts["late"]
    stages = split(net, 2, at=cuts["late"])
    if rank == 0:
        profile = measure(stages, x, y)
        size, rate, late = profile.inputs[1], o.rate or 1e5, o.latency / 1e3
        delay = {
            name: least(profile.forward, profile.backward, ([size // by], [size // by]), rate, late).m[0]
            for name, by in (("dense", 1), ("Int8", 4))
        }
        found = [
            {"forward": profile.forward, "backward": profile.backward, "bytes": size, "delay": delay, "cuts": cuts}
        ]
    dist.broadcast_object_list(found, 0)
    profile = found[0]
    slow = {0: (o.slow, o.chance)} if o.chance == 1 else dict.fromkeys((0, 1), (o.slow, o.chance))
    arms = {name: Arm(name, o, profile, slow.get(rank) if o.slow else None) for name in o.arms}
    turns: dict[str, list[list[dict[str, float]]]] = {name: [] for name in arms}
    for turn in range(o.turns):
        for name in o.arms if turn % 2 else o.arms[::-1]:
            arm = arms[name]
            delay = 0 if arm.schedule is None else max(arm.schedule.delays(2))
            mine = arm.turn(1 if arm.flushed else 2 * delay + 2, max(1, o.steps // arm.counts))
            both: list[Any] = [None, None]
            dist.all_gather_object(both, mine)
            turns[name].append(both)
    held: list[Any] = [None, None]
    mine = {n: [a.train.held[rank], a.schedule.delays(2)[rank] + 1] for n, a in arms.items() if a.schedule is not None}
    for most, bound in mine.values():
        assert most <= bound, f"part {rank} kept {most} micro-batches, and its queue is for {bound}"
    dist.all_gather_object(held, mine)
    for name, arm in arms.items():
        if arm.schedule is not None:
            boxes = [box for ways in (arm.train.out, arm.train.into) for way, box in ways.items() if way != "look"]
            bound = (arm.schedule.slack(0, 2) + 1) * sum(box.size for box in boxes) + 256  # and an announcement
            frames = arm.train.frames
            assert frames <= bound, f"{name}: frames of part {rank} took {frames} bytes, and there is room for {bound}"
    sizes: list[Any] = [None, None]
    dist.all_gather_object(sizes, {n: a.train.bytes.summary() for n, a in arms.items() if a.schedule is not None})
    if rank == 0:
        shown = {n: repr(a.schedule) for n, a in arms.items() if a.schedule is not None}
        result = {"turns": turns, "held": held, "schedules": shown, "profile": profile, "bytes": sizes}
        o.found.write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def measured(o: argparse.Namespace, name: str, arms: list[str], rate: float, slow: int = 0, chance: float = 1.0) -> Any:
    """What two processes found: over loopback where ``rate`` is 0, in Mbit/s over slow links otherwise."""
    late = o.late if rate else 0.0
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        words = [sys.executable, __file__, "--rank", "--model", name, "--arms", *arms, "--found", str(into)]
        words += ["--steps", str(o.steps), "--turns", str(o.turns), "--rate", str(rate), "--latency", str(late)]
        words += ["--slow", str(slow), "--chance", str(chance)] + ["--tiny"] * o.tiny
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        if rate:
            link = [sys.executable, o.slowlink, "--hosts", "2", "--rate", str(rate), "--delay", str(late / 2), "--"]
            subprocess.run([*link, *words], env=env, stdout=subprocess.DEVNULL, check=True)
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            here = {**env, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            running = [subprocess.Popen(words, env={**here, "RANK": str(rank)}) for rank in (0, 1)]
            codes = [process.wait() for process in running]
            if any(codes):
                raise SystemExit("a rank failed")
        return json.loads(into.read_text())


def figures(found: Any, rate: float, late: float) -> dict[str, Any]:
    """Of each arm: milliseconds of a micro-batch, those by the law, bytes a micro-batch, and what was kept."""
    from thinwire.expression import parse, vocabulary
    from thinwire.pipeline import law
    from thinwire.pipeline.schedule import SCHEDULES

    rows: dict[str, Any] = {}
    for name, turns in found["turns"].items():
        took = [max(r["took"] for r in both) for both in turns]
        row: dict[str, Any] = {"ms": 1e3 * median(took)}
        if name in found["schedules"]:
            schedule = parse(found["schedules"][name], names={**vocabulary(), **SCHEDULES})
            sent = [found["bytes"][r][name] for r in (0, 1)]
            pieces = schedule.pieces
            bytes_ = [sent[0]["forward_sent"] / sent[0]["batches"], sent[1]["backward_sent"] / sent[1]["batches"]]
            busy = [each * 8 / (rate * 1e6) if rate else 0.0 for each in bytes_]
            hops = [late / 1e3 * pieces + each for each in busy]
            laws = []
            for both, seconds in zip(turns, took, strict=True):
                own = [r["own"] * pieces for r in both]
                if schedule.pieces == 1 and not schedule.barrier:
                    least = law.tick(schedule.delays(2), own, [0.0, 0.0], hops[:1], hops[1:], (busy[:1], busy[1:]))
                else:  # of the seconds of a batch a third is forward
                    parts = [each / 3 for each in own], [each * 2 / 3 for each in own]
                    least = law.events(schedule, *parts, hops[:1], hops[1:], 40, (busy[:1], busy[1:]))
                laws.append((least / pieces, seconds / (least / pieces)))
            row |= {"law_ms": 1e3 * median(x for x, _ in laws), "over_law": median(x for _, x in laws)}
            row |= {"schedule": found["schedules"][name], "bytes": [each / pieces for each in bytes_]}
            row |= {"held": [found["held"][r][name] for r in (0, 1)]}
            row |= {"own_ms": [1e3 * median(both[r]["own"] for both in turns) for r in (0, 1)]}
        rows[name] = row
    return rows


def ratio(found: Any, arm: str, other: str) -> float:
    """How many times as long an arm takes as another: the median over turns."""
    took = {name: [max(r["took"] for r in both) for both in found["turns"][name]] for name in (arm, other)}
    return median(a / b for a, b in zip(took[arm], took[other], strict=True))


def compare(o: argparse.Namespace, name: str, rate: float) -> dict[str, Any]:
    """DSP beside all others, over one link."""
    arms = ["DSP", "BPK", "FR", "GPipe", "1F1B", "torch GPipe", "torch 1F1B"]
    if not o.quick:
        arms += ["torch Interleaved1F1B", "torch InterleavedZeroBubble"]
    if rate and rate < 50:
        arms += ["DSP, Int8"]
    found = measured(o, name, arms, rate)
    rows = figures(found, rate, o.late if rate else 0.0)
    line = {"arms": rows, "profile": found["profile"]}
    line |= {f"over_{other}": ratio(found, other, "DSP") for other in arms if other != "DSP"}
    line["over_law"] = rows["DSP"]["over_law"]
    line["of_speedup_by_law"] = line["over_BPK"] / (rows["BPK"]["law_ms"] / rows["DSP"]["law_ms"])
    show(f"{name}, {f'{rate:g} Mbit/s, {o.late:g} ms one way' if rate else 'loopback'}", rows)
    return line


def stragglers(o: argparse.Namespace, name: str, rate: float) -> dict[str, Any]:
    """What slow processes cost: one that is always slow, and both, each batch with a chance of a third."""
    arms = ["DSP", "DSP, spare", "FR, barrier"]
    base = measured(o, name, arms, rate)
    plain = figures(base, rate, o.late if rate else 0.0)
    line: dict[str, Any] = {"arms": plain, "slowed": {}}
    for chance in (1.0, 1 / 3):
        for percent in SLOWED[:1] if o.tiny else SLOWED:
            rows = figures(measured(o, name, arms, rate, percent, chance), rate, o.late if rate else 0.0)
            line["slowed"][f"{'one' if chance == 1 else 'any'} {percent}"] = {
                arm: {
                    "loss": rows[arm]["ms"] / plain[arm]["ms"] - 1,
                    "law": rows[arm]["law_ms"] / plain[arm]["law_ms"] - 1,
                    "over_law": rows[arm]["over_law"],
                }
                for arm in arms
            }
            show(f"{name}, {'one' if chance == 1 else 'any'} slowed by {percent} %", rows)
    return line


def show(title: str, rows: dict[str, Any]) -> None:
    print(title, file=sys.stderr)
    for name, row in rows.items():
        laws = f"law {row['law_ms']:8.2f} ms, {row['over_law']:5.3f}" if "law_ms" in row else ""
        extra = f"  own {row['own_ms'][0]:.1f} {row['own_ms'][1]:.1f} {row['schedule']}" if "law_ms" in row else ""
        print(f"  {name:28} {row['ms']:8.2f} ms {laws}{extra}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer arms and repetitions")
    parser.add_argument("--slowlink", help="the program that joins hosts by slow links (it needs root)")
    parser.add_argument("--late", type=float, default=10.0, help="ms that a message takes from host to host, one way")
    parser.add_argument("--models", nargs="+", default=["waits", "resnet20", "char_transformer"])
    parser.add_argument("--rates", type=float, nargs="+", default=[100.0, 20.0], help="Mbit/s")
    parser.add_argument("--only", choices=["links", "stragglers"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--steps", type=int, help="micro-batches of a turn")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--arms", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--slow", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--chance", type=float, help=argparse.SUPPRESS)
    o = parser.parse_args()
    o.steps = o.steps or (4 if o.tiny else 24 if o.quick else 48)
    o.turns = o.turns or (1 if o.tiny else 3 if o.quick else 5)
    if o.rank:
        rank_main(o)
        return
    sys.path[1:1] = [str(HERE), str(HERE.parent / "experiments")]
    import record

    def kept(part: str, work: Callable[[], dict[str, Any]], **setting: Any) -> dict[str, Any]:
        key = {"benchmark": "pipeline", "part": part, "quick": o.quick, **setting} | ({"tiny": True} if o.tiny else {})
        return record.measured(o.into, key, work, "numpy")

    rates = [0.0, *(o.rates if o.slowlink else [])]
    result: dict[str, Any] = {"links": {}, "stragglers": {}}
    if o.only != "stragglers":
        for name in o.models:
            for rate in rates:
                late = o.late if rate else 0.0
                line = kept("links", lambda: compare(o, name, rate), model=name, mbit=rate, latency_ms=late)  # noqa: B023
                result["links"][f"{name} {rate:g}"] = line
    if o.only != "links":
        rate = rates[1] if o.slowlink else 0.0
        for name in o.models:
            setting = {"model": name, "mbit": rate, "latency_ms": o.late if rate else 0.0}
            result["stragglers"][name] = kept("stragglers", lambda: stragglers(o, name, rate), **setting)  # noqa: B023
    if not o.slowlink:
        print("no --slowlink: times over slow links were not measured", file=sys.stderr)
    if o.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
