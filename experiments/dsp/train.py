"""What staleness costs: DSP beside backpropagation, FR, DDG and DNI, Tables 1 and 3 of the thesis in kind.

A. Xu, PhD thesis, University of Pittsburgh, 2023, chapter 1. There ResNet-164 and ResNet-98 are trained for 300 epochs
of CIFAR-10, cut into K = 3 and 4 parts, with batches of 128 and SGD with momentum .9. Here it is ResNet-20 for a few
epochs of a part of the pictures. It computes within ``torch.autocast`` in bfloat16, so activations and error gradients
take two bytes a number but where a link says otherwise. ``--data shakespeare`` trains the character transformer
instead, in 32 bits, with batches of 16, under SGD, AdamW, NAdam with a momentum of .99, and Muon.

Each row has a learning rate of its own, the best of those tried on seed 100, for two fifths of the steps and with texts
for all of them: rates a factor of 4 apart, until those beside the best are worse. A row with thin links has the rate of
the row without them. What is best is judged by the mean of the last five evaluations, on the same test set. With
``--lr`` all rows have one rate, as in the thesis, and a file of results of their own.

All parts lie in one process, and the numbers are those of processes, bit for bit. Simulated seconds are those of the
law with links of ``--mbit`` and ``--latency`` and the seconds that each part takes, which are measured once and written
down as a line. A row of a seed is a line too, written when it is done. A command that is stopped goes on where it was:
lines that are there are not trained again, and a row that is not finished goes on from its checkpoint in ``--work``.

    python experiments/dsp/train.py
    python experiments/dsp/train.py --data shakespeare --epochs 3
    python experiments/dsp/train.py --lr 0.01 --plain --examples 4000 --epochs 40 --model resnet8_half --autocast none
    python experiments/dsp/train.py --only "DSP" --parts 3 --seeds 0 --examples 2000 --epochs 3
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
from pages.pipelined import thesis

from thinwire import data as sets
from thinwire.config import complete
from thinwire.data import IID
from thinwire.problem import Problem, standard
from thinwire.studies.pipelined import Pipelined
from thinwire.train.slot import make_module

LAGS = {3: [(4, 2, 0), (6, 3, 0), (10, 5, 0)], 4: [(6, 4, 2, 0), (9, 6, 3, 0), (15, 10, 5, 0)]}
MOMENTUM = {"SGD": 0.9, "AdamW": 0.9, "NAdam": 0.99, "Muon": 0.95}
RESULTS = Path(__file__).parent / "results"
TUNING = 100  # the seed by which a rate is chosen
BEGIN = {"SGD": 0.02, "AdamW": 0.002, "NAdam": 0.002, "Muon": 0.002}  # the rates tried first,
FACTOR = 4  # and what is between them and the next


def rows(parts: int, text: bool) -> list[tuple[str, str]]:
    """The schedules of a number of parts, each with that whose learning rate it has.

    Thin links and DNI are tried with three parts of ResNet-20 alone.
    """
    if parts == 1:
        return [("BPK()", "BPK()")]
    lags = zip((1, 2, 3), LAGS[parts], strict=True)
    found = ["FR()", "DDG()", *(f"DSP({(*[lag] * (parts - 1), 0)}, {m})" for lag, m in lags)]
    if text:
        return [(name, name) for name in ("FR()", "PipeDream()", found[2], found[4])]
    if parts != 3:
        return [(name, name) for name in found]
    thin = [(found[2][:-1] + f", activations={link}, gradients={link})", found[2]) for link in ("Half()", "Int8()")]
    return [*((name, name) for name in found), *thin, ("DNI()", "DNI()")]


def problem(o: argparse.Namespace, seed: int, augment: tuple[sets.Augment, ...]) -> Problem:
    """``--examples`` of the training set, drawn by the seed, and the first ``--tested`` of the test set."""
    loaded = sets.load(o.data)
    some = torch.randperm(len(loaded.targets), generator=torch.Generator().manual_seed(seed))[: o.examples]
    groups = None if loaded.groups is None else loaded.groups[some]
    loaded = replace(
        loaded,
        inputs=loaded.inputs[some],
        targets=loaded.targets[some],
        groups=groups,
        test_inputs=loaded.test_inputs[: o.tested],
        test_targets=loaded.test_targets[: o.tested],
    )
    found = standard(loaded, o.model, 1, IID(), seed, augment=augment)
    return replace(
        found, model=make_module(found.model, seed).to(memory_format=torch.channels_last)
    )  # a fifth less time


def study(
    o: argparse.Namespace, schedule: str, parts: int, seed: int, optimizer: str, rate: float, epochs: float
) -> Pipelined:
    """One row of one seed, evaluated after each epoch, or ten times where there are fewer."""
    steps = round(epochs * (o.examples // o.batch))
    return Pipelined(
        methods=(schedule,),
        seeds=(seed,),
        data=o.data,
        model=o.model,
        augment=("Crop(4)", "Flip()") if o.data == "cifar10" and not o.plain else (),
        batch=o.batch,
        steps=steps,
        lr=rate,
        momentum=MOMENTUM[optimizer],
        weight_decay=5e-4 if o.data == "cifar10" else 0.0,
        decay=(0.5, 0.75),
        evaluate_every=max(1, steps // max(10, round(epochs))),
        checkpoint_every=max(1, o.examples // o.batch),
        parts=parts,
        optimizer=optimizer,
        clip=None if o.data == "cifar10" else 1.0,
        mbit=o.mbit,
        latency=o.latency,
        autocast=None if o.autocast == "none" else o.autocast,
    )


def timed(o: argparse.Namespace, one: Pipelined, given: Problem) -> Pipelined:
    """The study with the seconds of its parts, and with its cut: from the line that has them, or measured."""
    key = {"experiment": "dsp", "part": "costs", "data": o.data, "model": o.model, "parts": one.parts}
    key |= {"batch": o.batch, "autocast": one.autocast}
    there = record.found(o.into, key)
    if there is None:
        began, found = time.time(), one.as_measured(given)
        costs = {name: list(getattr(found, name)) for name in ("cut", "forward", "backward")}
        there = {**key, **costs, **record.about("split", began)}
        record.replace(o.into, there, key)
    return replace(one, **{name: tuple(there[name]) for name in ("cut", "forward", "backward")})


def trained(o: argparse.Namespace, one: Pipelined, given: Problem, row: str) -> record.Line:
    """Train what has no line yet, and write it. Returns the line."""
    method, seed = one.parse_methods()[0], one.seeds[0]
    key = {
        "experiment": "dsp",
        "part": "rate" if seed == TUNING else "curve",
        "data": o.data,
        "model": o.model,
        "row": row,
        "parts": one.parts,
        "optimizer": one.optimizer,
        "lr": one.lr,
        "batch": one.batch,
        "examples": o.examples,
        "tested": o.tested,
        "steps": one.steps,
        "mbit": one.mbit,
        "latency": one.latency,
        "autocast": one.autocast,
        **({"augment": []} if o.plain else {}),
        "seed": seed,
    }
    there = record.found(o.into, key)
    if there is not None:
        print(f"there already: {row}, {one.optimizer} at {one.lr:g}, {one.parts} parts, seed {seed}", flush=True)
        return there
    began = time.time()
    name = "-".join(str(each) for each in (*key.values(), record.source()))  # a line says what code trained it
    name = re.sub(r"\W+", "-", name).strip("-")
    failed = one.run(o.work / name, problems={seed: given})
    line = {**key, "thesis": thesis(one.parts).get(row) if o.data == "cifar10" else None}
    if failed:
        line |= {"diverged": failed[0]}
    else:
        folder = o.work / name / next(one.runs())[2]
        found = json.loads((folder / "summary.json").read_text())
        names = ("accuracy", "best_accuracy", "test_loss", "train_loss", "bytes_up", "bytes_down", "held", "clock")
        line |= {each: found[each] for each in names}
        looked = record.read(folder / "rounds.jsonl")
        line["curve"] = [[r["step"], r["clock"], r.get("accuracy"), r["test_loss"], r["train_loss"]] for r in looked]
    line |= record.about(complete(method), began)
    record.replace(o.into, line, key)
    shown = failed[0] if failed else f"{100 * line['accuracy']:.1f} %, best {100 * line['best_accuracy']:.1f} %"
    what = f"{row}, {one.optimizer} at {one.lr:g}, {one.parts} parts, seed {seed}"
    print(f"{what}: {shown}, {line['seconds']:.0f} s", flush=True)
    return line


def chosen(o: argparse.Namespace, schedule: str, parts: int, optimizer: str) -> float:
    """The best learning rate of a row, which has a worse one on each side."""
    row = "BP" if parts == 1 else schedule
    given, epochs = None, o.epochs * (1.0 if o.data == "shakespeare" else 0.4)
    found: dict[int, float] = {}  # by the power of the factor
    tried = [0]
    while tried:
        for power in tried:
            rate = float(f"{BEGIN[optimizer] * FACTOR**power:.3g}")
            one = study(o, schedule, parts, TUNING, optimizer, rate, epochs)
            given = given or problem(o, TUNING, one.augments())
            found[power] = trained(o, timed(o, one, given), given, row).get("accuracy", 0.0)
        best = max(found, key=lambda power: found[power])
        tried = [power for power in (best - 1, best + 1) if power not in found]
    return float(f"{BEGIN[optimizer] * FACTOR**best:.3g}")


def settings(words: list[str] | None = None) -> argparse.Namespace:
    """What was typed, or ``words``, with what follows from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["cifar10", "shakespeare", "digits"], default="cifar10")
    parser.add_argument("--parts", type=int, nargs="+", help="by default 3 and 4, of texts 3")
    parser.add_argument("--optimizers", nargs="+", choices=list(MOMENTUM), help="by default SGD, of texts all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", help="rows with this in their name alone")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--tested", type=int, default=2_000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, help="by default 64, of texts 16")
    parser.add_argument("--lr", type=float, help="by default each row's best one")
    parser.add_argument("--plain", action="store_true", help="pictures as they are, neither cropped nor flipped")
    parser.add_argument("--model", help="by default resnet20, of texts char_transformer")
    parser.add_argument("--autocast", choices=["bfloat16", "none"], help="by default bfloat16, of texts none")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds one way")
    parser.add_argument("--into", type=Path)
    parser.add_argument("--work", type=Path, default=Path("runs/dsp"), help="checkpoints of rows that are not done")
    o = parser.parse_args(words)
    text = o.data == "shakespeare"
    o.batch = o.batch or (16 if text else 64)
    o.model = o.model or {"cifar10": "resnet20", "shakespeare": "char_transformer", "digits": "mlp"}[o.data]
    o.autocast = o.autocast or ("bfloat16" if o.data == "cifar10" else "none")
    o.into = o.into or RESULTS / (f"{o.data}_one_rate.jsonl" if o.lr else f"{o.data}.jsonl")
    o.optimizers = o.optimizers or (list(MOMENTUM) if text else ["SGD"])
    o.parts = o.parts or ([3] if text else [3, 4])
    return o


def main() -> None:
    o = settings()
    for seed in o.seeds:
        given = None
        for optimizer in o.optimizers:
            for parts in [1, *o.parts]:
                for schedule, like in rows(parts, o.data == "shakespeare"):
                    row = "BP" if parts == 1 else schedule
                    if o.only and o.only not in row:
                        continue
                    rate = o.lr or chosen(o, like, parts, optimizer)
                    one = study(o, schedule, parts, seed, optimizer, rate, o.epochs)
                    given = given or problem(o, seed, one.augments())
                    trained(o, timed(o, one, given), given, row)


if __name__ == "__main__":
    main()
