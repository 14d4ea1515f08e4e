"""Data-parallel training over slow links: step times, and bytes on the wire, as ratios measured in one run.

Over loopback plain DistributedDataParallel and DEF take turns, step by step, with a network that has little to compute,
which is the hardest case, and with that of examples/ddp. With --slowlink, the path of a
program that runs a command on hosts joined by slow links (``PROGRAM --hosts 2 --rate MBIT --delay MS -- COMMAND``,
each host with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and as its last line the bytes each host sent as JSON),
also the step time at 100 Mbit/s and 10 ms round trip, that of exchanges behind the training over the same step without
any message, and the bytes that crossed the hub.

    python benchmarks/ddp.py [--quick] [--slowlink PROGRAM] [--only PART] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

RATIO = 64


def network(example: bool = False) -> Any:
    """1,333,642 parameters, and little to compute: what is measured is what is sent. Or that of examples/ddp."""
    from torch import nn

    if example:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "ddp"))
        import cifar10

        return cifar10.network()

    convs = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*convs, nn.Linear(4096, 320), nn.ReLU(), nn.Linear(320, 10))


def methods() -> dict[str, Any]:
    """Every arm: None for plain DDP, "fp16" for torch's own hook."""
    import thinwire as tw
    from thinwire.ddp import DEF, EF, Hook

    return {
        "dense": None,
        "fp16": "fp16",
        "def64": DEF(64),
        "def64_tensor": DEF(64, scope="tensor"),
        "def256": DEF(256),
        "ef64": EF(64),
        "topk1": Hook(tw.ErrorFeedback(tw.TopK(0.01))),
        "powersgd2": Hook(tw.PowerSGD(2)),
        "half": Hook(tw.Half()),
    }


def late() -> dict[str, Any]:
    """A step that sends nothing ("alone"), and DEF whose exchange is waited for, or runs behind the next steps."""
    from thinwire.ddp import DEF

    return {"alone": "alone", "def64": DEF(64), "def64_delay1": DEF(64, delay=1)}


def stepper(method: Any, example: bool) -> tuple[Callable[[], None], Any]:
    """A step of a training, and what compress returned."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    from thinwire.ddp import compress

    torch.manual_seed(0)
    model = DistributedDataParallel(network(example))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    compressed = None
    if method == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method == "alone":
        model.require_backward_grad_sync = False  # as inside of no_sync(), from now on
    elif method is not None:
        compressed = compress(model, optimizer, method)
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, compressed


def rank_main(names: list[str], steps: int, pairs: int, into: Path, example: bool) -> None:
    """One rank: blocks of steps of each arm in turn, or single steps of two."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    known = methods() | late()
    arms = {name: stepper(known[name], example) for name in names}
    for step, _ in arms.values():  # DDP rebuilds its buckets after the first step
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(pairs):
        for name in names if turn % 2 else names[::-1]:
            dist.barrier()
            began = time.perf_counter()
            for _ in range(steps):
                arms[name][0]()
            times[name].append((time.perf_counter() - began) / steps)
    if dist.get_rank() == 0:
        given = {n: c.ledger.bytes / c.ledger.steps for n, (_, c) in arms.items() if c is not None}
        into.write_text(json.dumps({"times": times, "given": given}))
    dist.barrier()
    dist.destroy_process_group()


def child(names: list[str], steps: int, pairs: int, into: Path) -> list[str]:
    words = [sys.executable, __file__, "--rank", ",".join(names), "--steps", str(steps), "--pairs", str(pairs)]
    return [*words, "--found", str(into)]


def here(names: list[str], steps: int, pairs: int, example: bool = False) -> dict[str, Any]:
    """Two processes on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        env = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        env["OMP_NUM_THREADS"] = "1"
        command = child(names, steps, pairs, into) + ["--example"] * example
        running = [subprocess.Popen(command, env={**env, "RANK": str(rank)}) for rank in (0, 1)]
        if any(process.wait() for process in running):
            raise SystemExit("a rank failed")
        found: dict[str, Any] = json.loads(into.read_text())
        return found


def slow(
    program: str, names: list[str], steps: int, pairs: int, rate: float, delay: float, example: bool = False
) -> dict[str, Any]:
    """Two hosts joined by slow links."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "found.json"
        command = [sys.executable, program, "--hosts", "2", "--rate", str(rate), "--delay", str(delay), "--"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += child(names, steps, pairs, into) + ["--example"] * example
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        found: dict[str, Any] = json.loads(into.read_text())
        found["hosts"] = json.loads(done.stdout.splitlines()[-1])["hosts"]
        return found


def medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(found) for name, found in times.items()}


def show(title: str, times: dict[str, float], given: dict[str, float]) -> None:
    print(title, file=sys.stderr)
    for name, seconds in times.items():
        sent = f"{given[name]:>12,.0f} B given" if name in given else ""
        print(f"  {name:14} {1000 * seconds:9.1f} ms  {seconds / times['dense']:6.3f} of dense {sent}", file=sys.stderr)


def loopback(o: argparse.Namespace) -> dict[str, Any]:
    """DEF(64) over plain DDP, step by step in turn: medians of pairs."""
    line: dict[str, Any] = {}
    for name, example in (("def64_over_dense", False), ("def64_over_dense_example", True))[: 1 if o.tiny else 2]:
        found = here(["dense", "def64"], 1, 2 if o.tiny else (30 if example else 40) if o.quick else 150, example)
        ratios = [b / a for a, b in zip(found["times"]["dense"], found["times"]["def64"], strict=True)]
        show(f"loopback, step by step in turn{', the network of the example' * example}", medians(found["times"]), {})
        line |= {name: statistics.median(ratios), f"{name}_pairs": len(ratios)}
    return line


def slow_steps(o: argparse.Namespace) -> dict[str, Any]:
    """A step of every arm over slow links."""
    every = ["dense", "fp16", "def64", "def256"] if o.quick else list(methods())
    found = slow(o.slowlink, every, 4 if o.quick else 10, 3, o.rate, o.delay)
    times = medians(found["times"])
    show(f"{o.rate:g} Mbit/s, {4 * o.delay:g} ms round trip", times, found["given"])
    return {
        "def64_over_dense": times["def64"] / times["dense"],
        "def64_over_fp16": times["def64"] / times["fp16"],
        "ms": {name: 1000 * seconds for name, seconds in times.items()},
        "given": found["given"],
    }


def behind(o: argparse.Namespace) -> dict[str, Any]:
    """A step with its exchange in it, or behind it, over a step that sends nothing: medians of ratios, turn by turn."""
    line: dict[str, Any] = {}
    for name, example in (("", False), ("_example", True)):
        steps, turns = (4 if example else 10), (5 if o.quick else 15)
        found = slow(o.slowlink, list(late()), steps, turns, o.rate, o.delay, example)
        rounds = zip(*found["times"].values(), strict=True)
        ratios = [dict(zip(found["times"], (seconds / each[0] for seconds in each), strict=True)) for each in rounds]
        over = {arm: statistics.median(ratio[arm] for ratio in ratios) for arm in found["times"]}
        times = {arm: 1000 * seconds for arm, seconds in medians(found["times"]).items()}
        line |= {f"over_alone{name}": over, f"ms{name}": times}
        for arm, ratio in over.items():
            print(f"behind{name}: {arm:14} {times[arm]:9.1f} ms  {ratio:6.3f} of alone", file=sys.stderr)
    return line


def wire(o: argparse.Namespace) -> dict[str, Any]:
    """Bytes that a host sends in a step of DEF(64), beside the formula's."""
    short, long = (slow(o.slowlink, ["def64"], n, 1, o.rate, o.delay) for n in (10, 110))
    sent = [b["sent_bytes"] - a["sent_bytes"] for a, b in zip(short["hosts"], long["hosts"], strict=True)]
    a_step = statistics.fmean(sent) / 100
    d = sum(p.numel() for p in network().parameters())
    theory = d * 4 / RATIO * 2 * (2 - 1) / 2
    print(f"wire: {a_step:,.0f} B a host and step, {a_step / theory:.4f} of {theory:,.0f}", file=sys.stderr)
    return {"over_theory": a_step / theory, "bytes_a_step": a_step, "theory": theory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer arms and repetitions: under four minutes")
    parser.add_argument("--slowlink", help="the program that joins hosts by slow links (it needs root)")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of every host's link")
    parser.add_argument("--delay", type=float, default=2.5, help="ms from a host to the hub: a fourth of a round trip")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="the smallest size: that it runs, not how fast")
    parser.add_argument("--only", choices=["loopback", "slow", "behind", "wire"], help="one part alone")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--example", action="store_true", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.rank:
        rank_main(o.rank.split(","), o.steps, o.pairs, o.found, o.example)
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    def kept(part: str, work: Callable[[], dict[str, Any]], **setting: Any) -> dict[str, Any]:
        key = {"benchmark": "ddp", "part": part, "quick": o.quick, **setting} | ({"tiny": True} if o.tiny else {})
        return record.measured(o.into, key, work, "numpy")

    result: dict[str, Any] = {"slow": None, "behind": None, "loopback": None, "wire": None}
    setting = {"mbit": o.rate, "round_trip_ms": 4 * o.delay}
    if o.only in (None, "loopback"):
        result["loopback"] = kept("loopback", lambda: loopback(o))
    if o.slowlink:
        for part, work in {"slow": slow_steps, "behind": behind, "wire": wire}.items():
            if o.only in (None, part):
                result[part] = kept(part, partial(work, o), **setting)
    else:
        print("no --slowlink: step times over slow links, and bytes on the wire, were not measured", file=sys.stderr)
    if o.json:
        print(json.dumps(result))
    else:
        print(result[o.only or "loopback"])


if __name__ == "__main__":
    main()
