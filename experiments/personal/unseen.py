"""What a model is worth at a site that was not there when it was trained: each site is left out once.

A site is a client: a natural owner of the data (``--split "Natural()"``, the default where there are any), or what
another split deals. A method is trained by all sites but one. Then that one comes, with a tenth of its examples
(``--share``) and the newest broadcast. It begins as any client of the method does, with the shared model in place of
the initial one, and makes the method's half of ``--alone`` rounds by itself, whose replies nobody takes. Its own model
is tested on its test where the data have one for each site, else on the rest of its examples; beside it the shared
model, and what its own model was before it was fine-tuned.

    python experiments/personal/unseen.py --data shakespeare --clients 6 --rounds 20 [--site 2] [--method "FedAvg()"]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.config import complete
from thinwire.data import Split, holdout
from thinwire.expression import parse, settings
from thinwire.federated.client import Turn, adapt_model, one_round, statistics_of, unheard
from thinwire.federated.own_tests import Metrics, Model, evaluate_models
from thinwire.key import Key
from thinwire.problem import Problem, standard

METHODS = (
    "FedAvg()",
    "FT(FedAvg(), epochs=5.0)",
    "FedPer()",
    "FedRep(head_epochs=2)",
    "Ditto()",
    "APFL()",
    "APFL(adaptive=True)",
    "PerFedAvg(alpha=0.1)",
    "pFedMe(lam=5.0, eta=0.1)",
)


def parts(problem: Problem, site: int, share: float, seed: int) -> tuple[tw.Supervised, tw.Supervised]:
    """The few examples that a newcomer has to adapt to, and those that it is tested on."""
    task = problem.tasks[site]
    everything = torch.arange(len(task.inputs)) if task.indices is None else task.indices
    rest, few = holdout(everything, share, Key(seed, client=site).number("unseen"))
    if not len(few):
        few, rest = everything[:1], everything[1:]
    test = None if problem.client_tests is None else problem.client_tests[site]
    return replace(task, indices=few), replace(task, indices=rest, augment=()) if test is None else test


def newcomer(run: tw.Simulation, few: tw.Task, test: tw.Task, alone: int) -> Metrics:
    """What a client that comes after the last round reaches, and what the shared model does."""
    method, slot, client = run.algorithm, run.slot, run.num_clients
    shared = run.kept_model(None)
    run.publish()  # the newest broadcast, which it is sent with all that it missed
    view = run.stream.view
    begun = method.init(shared.x, client + 1, Key(run.seed))
    own = unheard(method, begun, run.up, shared.statistics)
    for number in range(alone):
        turn = Turn(few, view, own, Key(run.seed, run.round + 1 + number, client))
        own = one_round(method, run.up, slot, turn).next
    x = method.at_client(view.state, client, own.state) if method.personal_models else shared.x
    before = Model(x, statistics_of(method, own, shared.statistics))
    key = Key(run.seed, run.round + alone, client).at("adapt")
    after = Model(*adapt_model(method, slot, few, *before, key))
    return evaluate_models(lambda x, buffers: run.pool.evaluate(x, buffers, test), after, before, shared)


def left_out(method: tw.Algorithm, problem: Problem, site: int, o: argparse.Namespace) -> Metrics:
    """Train without a site, then let it come."""
    others = [task for number, task in enumerate(problem.tasks) if number != site]
    few, test = parts(problem, site, o.share, o.seed)
    with tw.Simulation(method, problem.model, others, seed=o.seed, plan="each") as run:
        for _ in range(o.rounds):
            run.step(evaluate=False)
        return newcomer(run, few, test, o.alone)


def measured(expression: str, problem: Problem, site: int, o: argparse.Namespace) -> record.Line:
    """A line of the results, made or found."""
    method = tw.parse(expression, {"lr": o.lr, "batch": o.batch})
    key: dict[str, Any] = {"experiment": "unseen", "data": o.data, "row": expression, "site": site}
    key |= {"name": repr(method), "rounds": o.rounds, "alone": o.alone, "share": o.share, "sites": len(problem.tasks)}
    key |= {"examples": sum(map(len, problem.tasks)), "split": o.split, "seed": o.seed}
    into, began = o.into / f"unseen_{o.data}.jsonl", time.time()
    line = record.found(into, key)
    if line is None:
        found = {"found": left_out(method, problem, site, o)}
        line = {**key, **found, **record.about(complete(method), began)}
        record.replace(into, line, key)
    print(f"site {site}  {said(line['found'])}  {line['name']}", flush=True)
    return line


def said(found: Metrics) -> str:
    """Every metric but the loss, of its own model, of what that was made of and of the shared one."""
    return "  ".join(f"{name} {value:.3f}" for name, value in found.items() if not name.startswith("loss"))


def means(lines: Sequence[record.Line]) -> Metrics:
    """Over the sites that were left out."""
    names = lines[0]["found"]
    return {name: statistics.fmean(line["found"][name] for line in lines) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="shakespeare")
    parser.add_argument("--model")
    parser.add_argument("--clients", type=int, default=6, help="sites in all")
    parser.add_argument("--split", help='"Natural()", "Dirichlet(0.5)"...')
    parser.add_argument("--method", action="append", help="in place of those of the list")
    parser.add_argument("--site", type=int, action="append", help="to be left out; all of them by default")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--alone", type=int, default=5, help="rounds that the newcomer makes by itself")
    parser.add_argument("--share", type=float, default=0.1, help="of the newcomer's examples, to adapt to")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args()
    split = None if o.split is None else parse(o.split, names=settings(Split))
    problem = standard(o.data, o.model, o.clients, split, o.seed)
    for expression in o.method or METHODS:
        lines = [measured(expression, problem, site, o) for site in o.site or range(len(problem.tasks))]
        print(f"mean    {said(means(lines))}  {lines[0]['name']}", flush=True)


if __name__ == "__main__":
    main()
