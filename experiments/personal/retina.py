"""Chapter 3 of the thesis in kind: one model for all hospitals, or one for each, on pictures of the retina.

Seven sites (DRIVE, CHASE_DB1, STARE, HRF, LES-AV, DR HAGIS, ORVS), a client each: blood vessels by a U-Net, Dice loss,
one local epoch of batches of 4, flipped and turned by quarters. The thesis segments disc and cup at six other sites, at
256 pixels in 150 rounds, and tunes the rate of each row. Here the rate of a row is that of its grid with the best mean
over sites on a quarter of each site's training pictures, kept aside in a run of ``--tune-rounds`` with seed 0. The row
is then trained on all training pictures with every seed, and tested on each site's test pictures. Where a seed
diverges, all take the next best rate. A figure is the mean of evaluations after each of the last five rounds
(``--last``). There are two tests:

- ``own``: with the model that the site has (its own, or where a method has none the one that all share);
- ``any``: as ``result.predict`` does it for a patient of whom no site is named (FedSM: the selector chooses; all other
  methods: the model that all share).

The defaults are a picture of 64 pixels and a U-Net of half the thesis' channels, which a processor trains in minutes.

    python experiments/personal/retina.py --seeds 0 1 2
    python experiments/personal/retina.py --sweep --seeds 0 1 2           # FedSM with lam of .1 to .9
    python experiments/personal/retina.py --unseen all --only FedAvg --only FedSM --only Ensemble --seeds 0 1 2
    python experiments/personal/retina.py --size 128 --lr 0.009 --only FedAvg --only FedSM --seeds 0 1 2
    python experiments/personal/retina.py --size 256 --width 16 --lr 0.003 --rounds 24 --last 1 --only FedSM
    python experiments/personal/retina.py --data fashion_sites            # six cameras, the same classes: feature shift
    python experiments/personal/retina.py --data fashion_mnist            # Dirichlet(0.1) over 20 clients: label shift
    python experiments/personal/retina.py --table
    python experiments/personal/everything.py                             # all of it, in order of importance

Each row is a JSON line in ``results``; a row that is there is not trained again. With ``--out`` a run that was stopped
goes on from its last checkpoint. A method that this version does not know is left out, with a word.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
from pages import Missing
from pages.personal import GAMMAS, by_client, compared
from rows import ROWS, SWEEP, Row, expression, rounds_of
from sites import data_of, problem_of

import thinwire as tw
from thinwire.config import complete
from thinwire.errors import ExpressionError, NonFinite, RunError
from thinwire.problem import Problem
from thinwire.version import code_version

RESULTS = Path(__file__).parent / "results"


def judged(task: tw.Supervised) -> str:
    """What a task's model is judged by: dice or accuracy."""
    return next(iter(task.metrics_of))


def score(predict: Callable[[Tensor], Tensor], task: tw.Supervised, size: int = 50) -> float:
    """The mean over a task's examples of what it is judged by."""
    total = 0.0
    with torch.no_grad():
        for part in torch.arange(len(task)).split(size):
            inputs, targets = task.batch(part)
            total += float(task.metrics_of[judged(task)](predict(inputs), targets).double().sum())
    return total / len(task)


def module_of(result: tw.Result, client: int) -> nn.Module:
    """A client's own model, or where there is none the one that all share."""
    try:
        return result.personal(client)
    except ValueError:
        return result.module


def tested(result: tw.Result, problem: Problem, tune: bool) -> record.Line:
    """``own`` and ``any`` of every client, and over all examples of the shared test; of a run that tunes ``own``."""
    tests: Sequence[Any] = problem.client_tests or ()
    found: record.Line = {"measure": judged(problem.test)}
    found["own"] = [score(module_of(result, k), task) for k, task in enumerate(tests)]
    if not tune:
        found["any"] = [score(result.predict, task) for task in tests]
        found["test"] = score(result.predict, problem.test)
    return found


def train(
    name: str, row: Row, lr: float, seed: int, o: argparse.Namespace, tune: bool = False, unseen: int | None = None
) -> tuple[record.Line | None, tw.Result | None]:
    """The line of a run, from the results or trained now (then with its result); None where a method is not known."""
    rounds, began = rounds_of(row, o, tune), time.time()
    text = expression(row, lr, o.tune_rounds if tune else o.rounds, o)
    try:
        method = tw.parse(text)
    except ExpressionError as error:
        print(f"left out: {name} is not in this version ({str(error).partition(chr(10))[0]})", flush=True)
        return None, None
    key = {"experiment": "tune" if tune else "table", "data": o.data, "row": name, "lr": lr, "seed": seed}
    key |= {"expression": complete(method), "rounds": rounds, "batch": o.batch}
    key |= {"size": o.size, "width": o.width} if o.data == "retina" else {"examples": o.examples}
    last = 1 if tune else o.last
    own = {**({} if unseen is None else {"unseen": unseen}), **({} if last == 1 else {"last": last})}
    same = {**key, "unseen": unseen}  # a line takes the place of one with fewer evaluations; None: without the field
    key, fields = {**same, "last": own.get("last")}, {**key, **own}
    there = record.found(o.into, key)
    if there is not None:
        return there, None
    problem = problem_of(o, seed, row.sites, tune, unseen)
    evaluated = []
    try:
        for result in simulated(method, problem, name, rounds, lr, seed, o, last, tune, unseen):
            evaluated.append({"round": len(result.rounds), **tested(result, problem, tune)})
            evaluated[-1] |= {} if unseen is None else at_unseen(result, unseen, lr, o)
    except NonFinite as error:
        line = {**fields, "diverged": str(error), **record.about(complete(method), began)}
        record.replace(o.into, line, same)
        print(f"diverged: {name} at {lr:g}", flush=True)
        return line, None
    line = {
        **fields,
        **mean_of(evaluated),
        **({} if last == 1 else {"evaluated": evaluated}),
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "personal_up": result.personal_up,
        "personal_down": result.personal_down,
        "train_seconds": round(sum(r["seconds"] for r in result.rounds), 1),
        **record.about(complete(method), began),
    }
    record.replace(o.into, line, same)
    said = "" if tune else f"any {statistics.fmean(line['any']):.4f} test {line['test']:.4f}  "
    print(
        f"{'tune ' if tune else ''}{name} lr {lr:g} seed {seed}{'' if unseen is None else f' without {unseen}'}: "
        f"own {statistics.fmean(line['own']):.4f} (worst {min(line['own']):.4f}) {said}"
        f"{line['bytes_up'] / 1e6:.1f} MB up {line['bytes_down'] / 1e6:.1f} MB down  {line['seconds']:.0f} s",
        flush=True,
    )
    return line, result


def mean_of(evaluated: Sequence[record.Line]) -> record.Line:
    """Of several evaluations of a run, field by field and client by client."""
    names = ("own", "any", "test", "tuned", "chosen", "weights", "by_gamma")
    parts = [part for part in names if part in evaluated[0]]
    means = {part: torch.tensor([x[part] for x in evaluated], dtype=torch.float64).mean(0).tolist() for part in parts}
    return {name: value for name, value in evaluated[0].items() if name in ("measure", "tuned_on")} | means


def simulated(
    method: tw.Algorithm,
    problem: Problem,
    name: str,
    rounds: int,
    lr: float,
    seed: int,
    o: argparse.Namespace,
    last: int,
    tune: bool = False,
    unseen: int | None = None,
) -> Iterator[tw.Result]:
    """What a run came to after each of its last rounds. Where ``--out`` has a checkpoint, it goes on from there."""
    options: dict[str, Any] = {"seed": seed, "workers": o.workers, "evaluate_every": rounds}
    ends = range(max(1, rounds - last + 1), rounds + 1)
    if not o.out:
        with tw.Simulation(method, problem.model, problem.tasks, **options) as run:
            yield from (run.until(end, run.step, evaluate_every=rounds) for end in ends)
        return
    shape = (o.size, o.width) if o.data == "retina" else (o.examples,)
    folder = "-".join(map(str, (o.data, *shape, name, f"{lr:g}", rounds, f"seed{seed}")))
    folder += ("-tune" if tune else "") + ("" if unseen is None else f"-unseen{unseen}")
    folder += f"-{code_version()}"  # checkpoints of other code may not fit, and their numbers are not of this one
    out = o.out / re.sub(r"[^\w.-]+", "_", folder)
    for end in ends:
        go_on = partial(tw.simulate, method, problem.model, problem.tasks, end, out=out, resume=True, **options)
        try:
            result = go_on()
        except RunError:  # a command that was interrupted among the last rounds has made more: what was before is lost
            shutil.rmtree(out)
            result = go_on()
        yield result


def at_unseen(result: tw.Result, unseen: int, lr: float, o: argparse.Namespace) -> record.Line:
    """At the site that took no part: what the selector says, and the shared model after a tenth of its examples."""
    data = data_of(o.data, o.size, o.examples)
    assert data.groups is not None
    assert data.test_groups is not None
    rows = (data.groups == unseen).nonzero().flatten()
    tenth = rows[: max(2, len(rows) // 10)]
    common = {"mean": data.mean, "std": data.std}
    few = tw.Supervised(data.inputs, data.targets, tenth, **common)
    test = tw.Supervised(
        data.test_inputs, data.test_targets, (data.test_groups == unseen).nonzero().flatten(), **common
    )
    local = tw.LocalAdam(0.001, batch=2, epochs=5)
    tuned = tw.simulate(tw.FedAvg(local), result.module, [few], 1, workers=1)
    found: record.Line = {"tuned_on": len(tenth), "tuned": score(tuned.module, test)}
    selector = selector_of(result)
    if selector is not None:
        with torch.no_grad():
            parts = torch.arange(len(test)).split(50)
            shares = torch.cat([selector(test.batch(part)[0]) for part in parts]).softmax(1)
        found["chosen"] = shares.argmax(1).bincount(minlength=shares.shape[1]).tolist()
        found["weights"] = [round(share, 4) for share in shares.mean(0).tolist()]  # Ensemble's
    if type(method := result.algorithm) is tw.FedSM:  # whose selector is asked anew, and nothing is trained
        found["by_gamma"] = [score(partial(replace(method, gamma=gamma).predict, result), test) for gamma in GAMMAS]
    return found


def selector_of(result: tw.Result) -> nn.Module | None:
    """The selector that FedSM trained beside the model, where there is one."""
    beside = getattr(result, "beside", None) or {}
    found = beside.get("selector") if isinstance(beside, Mapping) else None
    return found if isinstance(found, nn.Module) else None


def tuned(name: str, row: Row, o: argparse.Namespace) -> list[float]:
    """The rates by the mean over clients of their own models, on examples that were kept aside; the best one first.

    Where the best of the grid is at its end, the next beyond is tried too, and once more. Those that diverge are left
    out.
    """
    if o.lr is not None:
        return [float(o.lr)]
    found: dict[float, float] = {}
    rates = list(o.rates or row.rates)
    while rates:
        lr = rates.pop(0)
        line, _ = train(name, row, lr, 0, o, tune=True)
        if line is None:
            return []
        found[lr] = statistics.fmean(line["own"]) if "own" in line else -1.0
        best = max(found, key=lambda rate: found[rate])
        if not (o.rates or rates) and len(found) < len(row.rates) + 2 and best in (min(found), max(found)):
            rates.append(float(f"{best * 3:.1g}" if best == max(found) else f"{best / 3:.1g}"))
    return sorted((lr for lr in found if found[lr] >= 0), key=lambda lr: -found[lr])


def diverged(name: str, row: Row, lr: float, o: argparse.Namespace) -> bool:
    """Whether a run of the table ended in numbers that are not finite: no seed counts at such a rate."""
    rounds = rounds_of(row, o, tune=False)
    same = {"experiment": "table", "row": name, "lr": lr, "rounds": rounds, "batch": o.batch, "examples": o.examples}
    lines = (line for line in record.read(o.into) if "diverged" in line)
    return any(all(line.get(part) == value for part, value in same.items()) for line in lines)


def rows_of(o: argparse.Namespace) -> dict[str, Row]:
    """The rows that are asked for."""
    rows = SWEEP if o.sweep else ROWS
    return {name: row for name, row in rows.items() if not o.only or name in o.only}


def table(o: argparse.Namespace) -> None:
    """Print what is in the results."""
    try:
        lines = record.read(o.into)
        print("\n".join([*compared(lines, [*ROWS, *SWEEP]), "", *by_client(lines, [*ROWS, *SWEEP])]))
    except Missing:
        print(f"no lines in {o.into}")


def options() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="retina", choices=("retina", "fashion_sites", "fashion_mnist"))
    parser.add_argument("--size", type=int, default=64, help="side of the retina's pictures, in pixels: it divides 256")
    parser.add_argument("--width", type=int, default=8, help="first channels of the U-Net; the thesis has 16")
    parser.add_argument("--examples", type=int, help="training examples of Fashion-MNIST, drawn at random")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tune-rounds", type=int, default=15, help="rounds of the runs that choose a rate")
    parser.add_argument("--last", type=int, default=5, help="rounds, the last ones, whose evaluations are averaged")
    parser.add_argument("--batch", type=int, help="examples of a step (default: 4 of the retina, 32 of Fashion-MNIST)")
    parser.add_argument("--lr", type=float, help="this rate for every row, and no tuning")
    parser.add_argument("--rates", type=float, nargs="+", help="of these alone in place of a row's grid")
    parser.add_argument("--selector", default="nets:vgg_small_at_32", help="FedSM's, of the retina")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", action="append", help="the row of this name")
    parser.add_argument("--sweep", action="store_true", help="FedSM with other lam, in place of the rows")
    parser.add_argument("--unseen", help="a site that takes no part, or all, one after the other")
    parser.add_argument("--workers", type=int, help="clients trained at once (default: one a core)")
    parser.add_argument("--into", type=Path, help="file of the results (default: one for each data set and size)")
    parser.add_argument("--out", type=Path, help="a folder for whole runs, which then resume where they stopped")
    parser.add_argument("--list", action="store_true", help="print the rows and their methods, and train nothing")
    parser.add_argument("--table", action="store_true", help="print what is in the results, and train nothing")
    return parser


def read(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> argparse.Namespace:
    """The options, and the defaults that follow from the data."""
    o = parser.parse_args(words)
    pictures = o.data == "retina"
    unknown = [name for name in o.only or () if name not in {**ROWS, **SWEEP}]
    if unknown:
        parser.error(f"--only {unknown[0]}: the rows are {', '.join([*ROWS, *SWEEP])}")
    o.batch = o.batch or (4 if pictures else 32)
    o.into = o.into or RESULTS / (f"retina_{o.size}.jsonl" if pictures else f"{o.data}.jsonl")
    return o


def main(words: Sequence[str] | None = None) -> None:
    o = read(options(), words)
    if o.table:
        table(o)
        return
    if o.list:
        for name, row in rows_of(o).items():
            print(f"{name}: {expression(row, o.lr or row.rates[0], o.rounds, o)}")
        return
    left_out: Sequence[int | None] = [None if o.unseen in (None, "all") else int(o.unseen)]
    if o.unseen == "all":
        left_out = range(len(problem_of(o, 0).tasks))
    for name, row in rows_of(o).items():
        tuned_as = name.partition(",")[0]
        for lr in tuned(tuned_as, ROWS[tuned_as], o):
            for seed, unseen in product(o.seeds, left_out):
                if not diverged(name, row, lr, o):
                    train(name, row, lr, seed, o, unseen=unseen)
            if not diverged(name, row, lr, o):
                break


if __name__ == "__main__":
    main()
