"""How long until a model is as accurate as asked for, over 100 Mbit/s and 10 ms round trip.

Two workers train on CIFAR-10. Accuracy by step comes from exact logical workers; seconds a step are measured over
links that another program makes slow (see benchmarks/ddp.py for what --slowlink must be); their product is the time.
With --real a named method is also trained end to end over such links, for so many steps, and its measured time and
accuracy stand beside what the product says. --model is a name of thinwire.models, "example" for the network of
examples/ddp, or "strided" for that of benchmarks/ddp.py, which has as many parameters and less to compute.

    python experiments/def/time_to_accuracy.py --slowlink PROGRAM --steps 3000 --target 0.7 --seeds 0 1 2
    python experiments/def/time_to_accuracy.py --slowlink PROGRAM --real "DEFA(64)" --real-steps 500
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments"), str(ROOT / "examples" / "ddp"), str(ROOT / "benchmarks")]
import cifar10 as example  # noqa: E402
import ddp as benchmark  # noqa: E402
import record  # noqa: E402
import torch  # noqa: E402

import thinwire as tw  # noqa: E402
from thinwire import models  # noqa: E402
from thinwire.config import complete  # noqa: E402
from thinwire.data import Crop, Flip  # noqa: E402
from thinwire.ddp import compare  # noqa: E402
from thinwire.ddp.simulate import batches, evaluate, simulate  # noqa: E402
from thinwire.errors import NonFinite  # noqa: E402
from thinwire.key import Key  # noqa: E402
from thinwire.run.train import to_device  # noqa: E402

METHODS = [
    "Hook(Dense())",
    "Hook(Half())",
    "Hook(ErrorFeedback(TopK(0.01)))",
    "Hook(PowerSGD(2))",
    "DEF(64)",
    "DEFA(64)",
]
WORKERS = 2


def tasks(o: argparse.Namespace) -> tuple[tw.Supervised, tw.Supervised]:
    data = tw.data.load(o.data)
    kind = {"mean": data.mean, "std": data.std}
    train = tw.Supervised(data.inputs[: o.examples], data.targets[: o.examples], augment=(Crop(4), Flip()), **kind)
    return train, tw.Supervised(data.test_inputs[: o.tested], data.test_targets[: o.tested], **kind)


def optimizer(o: argparse.Namespace, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=o.lr, momentum=0.9, weight_decay=5e-4)


def rate(o: argparse.Namespace, step: int) -> float:
    return 0.1 ** sum(step >= at * o.steps for at in (0.5, 0.75))


def made(o: argparse.Namespace, seed: int) -> torch.nn.Module:
    """The network as both kinds of runs begin with it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key(seed).number("model") % (1 << 32))
        if o.model in ("example", "strided"):
            return example.network() if o.model == "example" else benchmark.network()
        return models.build(o.model, (3, 32, 32), 10)


def curve(o: argparse.Namespace, text: str, seed: int) -> dict[str, Any]:
    """Accuracy by step, the first step at which it was as asked for, and why it ended early."""
    train, test = tasks(o)
    found: list[dict[str, Any]] = []
    diverged = None
    try:
        simulate(
            compare.method(text),
            made(o, seed),
            train,
            test,
            workers=WORKERS,
            steps=o.steps,
            batch=o.batch,
            optimizer=lambda parameters: optimizer(o, parameters),
            rate=lambda step: rate(o, step),
            seed=seed,
            evaluate_every=o.every,
            on_record=found.append,
        )
    except NonFinite as error:
        diverged = str(error)
    return {
        "seed": seed,
        "steps_to_target": next((r["step"] for r in found if r["accuracy"] >= o.target), None),
        "accuracy": found[-1]["accuracy"] if found else None,
        "diverged": diverged,
        "curve": [[r["step"], r["accuracy"], r.get("accuracy_x")] for r in found],
    }


def rank_main(o: argparse.Namespace) -> None:
    """One real rank: ``steps`` steps of one method on the batches of a logical worker."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from thinwire.ddp import compress

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch.device("cpu")
    train, test = tasks(o)
    seed = o.seeds[0]
    model = DistributedDataParallel(made(o, seed))
    sgd = optimizer(o, model.parameters())
    c = compress(model, sgd, compare.method(o.rank), seed=seed)
    seconds = []
    for step, rows in zip(range(o.real_steps), batches(len(train), WORKERS, o.batch, seed), strict=False):
        began = time.perf_counter()
        batch = to_device(train.batch(rows[rank], Key(seed, step, rank, "ddp").generator("augment")), device)
        sgd.param_groups[0]["lr"] = o.lr * rate(o, step)
        sgd.zero_grad()
        train.loss(model, batch).mean().backward()
        sgd.step()
        seconds.append(time.perf_counter() - began)
    with c.averaged():
        accuracy = evaluate(model.module, test, "cpu")["accuracy"] if rank == 0 and o.tested else None
        dist.barrier()
    if rank == 0:
        line = {"step_seconds": statistics.median(seconds[2:]), "seconds": sum(seconds), "accuracy": accuracy}
        o.found.write_text(json.dumps(line | {"bytes": c.ledger.bytes / o.real_steps}))
    dist.barrier()
    dist.destroy_process_group()


def real(o: argparse.Namespace, text: str, steps: int, tested: int) -> dict[str, Any]:
    """A training over slow links."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        words = [sys.executable, __file__, "--rank", text, "--real-steps", str(steps), "--found", str(found)]
        for name in ("steps", "batch", "lr", "data", "model", "examples"):
            words += [f"--{name}", str(getattr(o, name))]
        words += ["--seeds", str(o.seeds[0])]
        links = [sys.executable, o.slowlink, "--hosts", str(WORKERS), "--rate", str(o.rate), "--delay", str(o.delay)]
        command = [*links, "--timeout", "36000", "--", *words, "--tested", str(tested)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
        line: dict[str, Any] = json.loads(found.read_text())
        return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slowlink", help="the program that joins hosts by slow links")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of every host's link")
    parser.add_argument("--delay", type=float, default=2.5, help="ms from a host to the hub: a fourth of a round trip")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="examples a rank takes in a step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--target", type=float, default=0.7)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="strided")
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--tested", type=int, default=10_000)
    parser.add_argument("--only", action="append", help="a method, as an expression; may be repeated")
    parser.add_argument("--timed", type=int, default=30, help="steps that are timed over slow links")
    parser.add_argument("--real", action="append", default=[], help="a method to train end to end; may be repeated")
    parser.add_argument("--real-steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="the real training has the first")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.rank:
        rank_main(o)
        return
    if not o.slowlink:
        parser.error("--slowlink PROGRAM is needed: the seconds of a step are measured")
    dense = None
    for text in o.only or METHODS:
        began = time.time()
        timed = real(o, text, o.timed, 0)
        runs = [curve(o, text, seed) for seed in o.seeds]
        steps = [run["steps_to_target"] for run in runs]
        seconds = None if None in steps else statistics.mean(steps) * timed["step_seconds"]
        dense = seconds if text == "Hook(Dense())" else dense
        ends = [100 * run["accuracy"] for run in runs if run["accuracy"] is not None]
        line: dict[str, Any] = {
            "name": repr(compare.method(text)),
            "target": o.target,
            "steps_to_target": steps,
            "seconds_to_target": seconds,
            "over_dense": seconds / dense if seconds and dense else None,
            "accuracy_mean": statistics.mean(ends) if ends else None,
            "accuracy_deviation": statistics.stdev(ends) if len(ends) > 1 else None,
            "step_seconds": timed["step_seconds"],
            "bytes_a_step": timed["bytes"],
            "mbit": o.rate,
            "round_trip_ms": 4 * o.delay,
        }
        if text in o.real:
            whole = real(o, text, o.real_steps, o.tested)
            first = {step: accuracy for step, accuracy, _ in runs[0]["curve"]}
            line["real"] = {**whole, "steps": o.real_steps, "seconds_foretold": o.real_steps * timed["step_seconds"]}
            line["real"]["accuracy_foretold"] = first.get(o.real_steps)
        line |= {
            "steps": o.steps,
            "batch": o.batch,
            "lr": o.lr,
            "data": o.data,
            "model": o.model,
            "examples": o.examples,
            "tested": o.tested,
            "runs": runs,
            **record.about(complete(compare.method(text)), began),
        }
        record.write(o.into / f"time_to_accuracy_{o.data}.jsonl", line)
        shown = "not reached" if seconds is None else f"{seconds:8.0f} s"
        share = "" if line["over_dense"] is None else f"{line['over_dense']:6.3f} of dense"
        end = f"{statistics.mean(ends):5.1f} ± {statistics.stdev(ends) if len(ends) > 1 else 0:.1f} %" if ends else ""
        print(
            f"{shown} {share}  {1000 * timed['step_seconds']:7.1f} ms a step  {timed['bytes']:9.0f} B a step  "
            f"steps {steps}  end {end}  {line['name']}  {line.get('real', '')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
