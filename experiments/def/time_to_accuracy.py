"""How long until a model is as accurate as asked for, over 100 Mbit/s and 10 ms round trip.

Two workers train on CIFAR-10. Accuracy by step comes from exact logical workers; seconds a step are measured over
links that another program makes slow (see benchmarks/ddp.py for what --slowlink must be); their product is the time.
What the product says, a training of ranks over such links confirms. Each command adds to one file the lines that are
not there yet (with --again all), and the last command makes the table of them:

    python experiments/def/time_to_accuracy.py curves --seeds 0 1 2 --only "Hook(Dense())" --only "DEF(64)"
    python experiments/def/time_to_accuracy.py times --slowlink PROGRAM --again
    python experiments/def/time_to_accuracy.py real --slowlink PROGRAM --only "DEFA(64)"
    python experiments/def/time_to_accuracy.py table --target 0.58 [--markdown]

--model is a name of thinwire.models, "example" for the network of examples/ddp, or "strided" for that of
benchmarks/ddp.py, which has as many parameters and less to compute. ``curves --lr`` and ``--steps`` try others: the
table has a line for each.
"""

from __future__ import annotations

import argparse
import json
import math
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
import record  # noqa: E402
import torch  # noqa: E402

import ddp as benchmark  # noqa: E402
import thinwire as tw  # noqa: E402
from thinwire import models  # noqa: E402
from thinwire.config import complete  # noqa: E402
from thinwire.data import Crop, Flip  # noqa: E402
from thinwire.ddp.simulation import simulate  # noqa: E402
from thinwire.ddp.worker import batches  # noqa: E402
from thinwire.errors import NonFinite  # noqa: E402
from thinwire.key import Key  # noqa: E402
from thinwire.studies import data_parallel as compare  # noqa: E402
from thinwire.train.device import to_device  # noqa: E402
from thinwire.train.evaluation import means  # noqa: E402

# With learning rates that were tried with ``curves --lr`` on the first seed, as the thesis tunes them.
METHODS = {
    "Hook(Dense())": 0.02,
    "Hook(Half())": 0.02,
    "Hook(ErrorFeedback(TopK(0.01)))": 0.02,
    "Hook(PowerSGD(2))": 0.02,
    "DEF(64)": 0.02,
    "DEFA(64)": 0.02,  # whose curves those of DEF have beside theirs
    "DEF(64, lam=0.5)": 0.02,
    "DEFA(64, lam=0.5)": 0.02,
    "DEF(64, lam=0.3)": 0.01,
    "DEFA(64, lam=0.3)": 0.01,
}
WORKERS = 2
# What tells a line from another; the rest is what was found.
SAME = ("kind", "expression", "batch", "data", "model", "lr", "steps", "seed", "tested", "examples", "mbit")


def tasks(o: argparse.Namespace) -> tuple[tw.Supervised, tw.Supervised]:
    data = tw.data.load(o.data)
    kind = {"mean": data.mean, "std": data.std}
    train = tw.Supervised(data.inputs[: o.examples], data.targets[: o.examples], augment=(Crop(4), Flip()), **kind)
    return train, tw.Supervised(data.test_inputs[: o.tested], data.test_targets[: o.tested], **kind)


def optimizer(lr: float, parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4)


def rate(o: argparse.Namespace, step: int) -> float:
    return 0.1 ** sum(step >= at * o.steps for at in (0.5, 0.75))


def made(o: argparse.Namespace, seed: int) -> torch.nn.Module:
    """The network as both kinds of runs begin with it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Key(seed).number("model") % (1 << 32))
        if o.model in ("example", "strided"):
            return example.network() if o.model == "example" else benchmark.network()
        data = tw.data.load(o.data)
        return models.build(o.model, tuple(data.inputs.shape[1:]), len(data.targets.unique()))


def curve(o: argparse.Namespace, text: str, lr: float, seed: int) -> dict[str, Any]:
    """Accuracy by step, of x too where the method is judged by another, and why it ended early."""
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
            optimizer=lambda parameters: optimizer(lr, parameters),
            rate=lambda step: rate(o, step),
            seed=seed,
            evaluate_every=o.every,
            on_record=found.append,
        )
    except NonFinite as error:
        diverged = str(error)
    return {
        "diverged": diverged,
        "curve": [[r["step"], r["accuracy"], r.get("accuracy_x")] for r in found],
        "lam": [[r["step"], round(r["lam"], 4)] for r in found if "lam" in r],
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
    sgd = optimizer(o.lr, model.parameters())
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
    given = c.ledger.bytes / o.real_steps  # of the steps alone: an evaluation of y costs the model once more
    with c.averaged():
        accuracy = means(model.module, test, "cpu")["accuracy"] if rank == 0 and o.tested else None
        dist.barrier()
    if rank == 0:
        line = {"step_seconds": statistics.median(seconds[2:]), "seconds_training": sum(seconds), "accuracy": accuracy}
        o.found.write_text(json.dumps(line | {"bytes_a_step": given}))
    dist.barrier()
    dist.destroy_process_group()


def ranks(o: argparse.Namespace, text: str, lr: float, steps: int, tested: int, seed: int) -> dict[str, Any]:
    """Steps of real ranks over slow links."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        words = [sys.executable, __file__, "rank", "--rank", text, "--real-steps", str(steps), "--found", str(found)]
        for name in ("steps", "batch", "data", "model", "examples"):
            words += [f"--{name}", str(getattr(o, name))]
        words += ["--seeds", str(seed), "--lr", str(lr)]
        links = [sys.executable, o.slowlink, "--hosts", str(WORKERS), "--rate", str(o.rate), "--delay", str(o.delay)]
        command = [*links, "--timeout", "36000", "--", *words, "--tested", str(tested)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
        line: dict[str, Any] = json.loads(found.read_text())
        return line


def table(o: argparse.Namespace, into: Path) -> None:
    """The product, for every training that there is a step time for; of a training that is there twice the last."""
    lines = [line for line in written(into) if (line["model"], line["batch"]) == (o.model, o.batch)]
    for line in lines:  # by what it was when the line was written, whatever the defaults were then
        line["name"] = repr(compare.method(line.get("expression", line["name"])))
    here = [line for line in lines if (line.get("mbit"), line.get("round_trip_ms")) == (o.rate, 4 * o.delay)]
    times = {line["name"]: line for line in here if line["kind"] == "times"}
    runs: dict[tuple[int, str, float], dict[int, dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "curve" and (line["examples"], line["tested"]) == (o.examples, o.tested):
            runs.setdefault((line["steps"], line["name"], line["lr"]), {})[line["seed"]] = line
            if line["name"].startswith("DEF("):  # DEF-A is that training, judged by x
                judged = line | {"curve": [(step, x) for step, _, x in line["curve"]]}
                name = line["name"].replace("DEF(", "DEFA(")
                runs.setdefault((line["steps"], name, line["lr"]), {})[line["seed"]] = judged
    dense: dict[int, float] = {}  # steps of the schedule -> seconds of the fastest
    if not o.markdown:
        about = f"seconds to {o.target:.0%} over {o.rate:g} Mbit/s and {4 * o.delay:g} ms, mean of seeds"
        print(f"{about}; accuracy at the end")
    for (steps, name, lr), found in sorted(runs.items(), key=lambda item: (item[0][0], "Dense" not in item[0][1])):
        step_seconds, sent = (times.get(name, {}).get(what, math.nan) for what in ("step_seconds", "bytes_a_step"))
        first = [next((row[0] for row in run["curve"] if row[1] >= o.target), None) for run in found.values()]
        seconds = None if None in first else statistics.mean(first) * step_seconds
        if "Dense" in name and seconds and seconds > 0:
            dense[steps] = min(seconds, dense.get(steps, seconds))
        ends = [100 * run["curve"][-1][1] for run in found.values() if not run["diverged"]]
        end = f"{statistics.mean(ends):5.1f} %" if ends else "diverged"
        end += f" ± {statistics.stdev(ends):.1f}" if len(ends) > 1 else ""
        end += f", {len(found) - len(ends)} diverged" if 0 < len(ends) < len(found) else ""
        if o.markdown:
            of = f"{seconds / dense[steps]:.3f}" if seconds and seconds > 0 and steps in dense else ""
            took = "not reached" if seconds is None else "not timed" if math.isnan(seconds) else f"{seconds:.0f}"
            end = end.strip().replace(" % ±", " ±") + " %" * (len(ends) > 1)
            print(f"| `{name}`, {lr} | {1000 * step_seconds:.1f} | {sent:,.0f} | {took} | {of} | {end} |")
            continue
        early = [row[1] for run in found.values() for row in run["curve"] if steps / 5 <= row[0] <= steps / 2]
        end += f", {100 * statistics.mean(early):.1f} % on average from {steps // 5} to {steps // 2}" if early else ""
        shown = "not reached" if seconds is None else "not timed" if math.isnan(seconds) else f"{seconds:9.0f} s"
        share = f"{seconds / dense[steps]:6.3f} of dense" if seconds and seconds > 0 and steps in dense else " " * 15
        step = f"{1000 * step_seconds:6.1f} ms {sent:9.0f} B a step"
        print(f"{shown} {share}  {step}  first at {first} of {steps}  {end}  lr {lr}  {name}")
    for line in here:
        if line["kind"] == "real":
            twin = runs.get((line["steps"], line["name"], line["lr"]), {}).get(
                line["seed"], {"curve": [], "diverged": ""}
            )
            foretold = f"{twin['curve'][-1][1]:.2%}" if twin["curve"] and not twin["diverged"] else "not known"
            product = line["steps"] * times[line["name"]]["step_seconds"] if line["name"] in times else math.nan
            print(
                f"{line['name']} by ranks: {line['steps']} steps took {line['seconds_training']:.0f} s, the product is "
                f"{product:.0f} s; accuracy {line['accuracy']:.2%}, of the logical workers {foretold}"
            )


def written(into: Path) -> list[dict[str, Any]]:
    """What is in the file, and nothing where there is none."""
    return [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["curves", "times", "real", "table", "rank"])
    parser.add_argument("--slowlink", help="the program that joins hosts by slow links")
    parser.add_argument("--rate", type=float, default=100, help="Mbit/s of every host's link")
    parser.add_argument("--delay", type=float, default=2.5, help="ms from a host to the hub: a fourth of a round trip")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32, help="examples a rank takes in a step")
    parser.add_argument("--lr", type=float, help="another learning rate")
    parser.add_argument("--target", type=float, default=0.58)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--model", default="strided")
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--tested", type=int, default=10_000, help="examples of the test set that are looked at")
    parser.add_argument("--only", action="append", help="a method, as an expression; may be repeated")
    parser.add_argument("--timed", type=int, default=30, help="steps that are timed over slow links")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--again", action="store_true", help="what has a line too")
    parser.add_argument("--markdown", action="store_true", help="of the table the rows of a page")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--real-steps", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    o = parser.parse_args()
    into = o.into / f"time_to_accuracy_{o.data}.jsonl"
    if o.what == "rank":
        rank_main(o)
        return
    if o.what == "table":
        table(o, into)
        return
    if o.what != "curves" and not o.slowlink:
        parser.error("--slowlink PROGRAM is needed: the seconds of a step are measured")
    rates = {repr(compare.method(text)): lr for text, lr in METHODS.items()}
    for text in o.only or [text for text in METHODS if o.what != "curves" or not text.startswith("DEFA(")]:
        name = repr(compare.method(text))
        lr = o.lr or rates.get(name, 0.02)
        about = {"name": name, "batch": o.batch, "data": o.data, "model": o.model}
        for seed in o.seeds if o.what != "times" else o.seeds[:1]:
            began = time.time()
            line: dict[str, Any] = about | {"lr": lr, "steps": o.steps, "seed": seed, "tested": o.tested}
            line |= {"kind": "curve" if o.what == "curves" else o.what, "examples": o.examples}
            if o.what == "times":
                line = about | {"kind": "times", "steps": o.timed}
            if o.what != "curves":
                line |= {"mbit": o.rate, "round_trip_ms": 4 * o.delay}
            line["expression"] = complete(compare.method(text))
            if not o.again and any(all(old.get(k) == line.get(k) for k in SAME) for old in written(into)):
                print(f"there already: {text}, seed {seed}", flush=True)
                continue
            if o.what == "curves":
                line |= curve(o, text, lr, seed)
            else:
                steps, tested = (o.steps, o.tested) if o.what == "real" else (o.timed, 0)
                line |= ranks(o, text, lr, steps, tested, seed)
            record.write(into, line | record.about(line["expression"], began))
            print(
                {key: value for key, value in line.items() if key != "curve"}, line.get("curve", [None])[-1], flush=True
            )


if __name__ == "__main__":
    main()
