"""Accuracy against the bytes of a whole run, up and down together: the README's first picture.

Every method at several settings, from all of FedAvg's bytes to a thousandth of them, at equal rounds. All headers are
billed, and FedAvg's first contacts; all other methods start from a model that is known from the seed. Around every
method an average is served (``Averaged``, no byte), so that a line has both figures: L5, the mean of the last five
evaluations, and EMA, the served average at the end.

- ``Fashion-MNIST``: 100 clients, Dirichlet(0.1), 10 a round, 50 rounds of the CNN of the FedAvg paper
- ``CIFAR-10``: 100 clients, Dirichlet(0.3), 10 a round, 60 rounds of a CNN with group norm, crops and flips
- ``EMNIST letters``: 100 clients, Dirichlet(0.1), 10 a round, 60 rounds of the CNN of the FedAvg paper
- ``Shakespeare``: 100 roles, 10 a round, 60 rounds of a character transformer, test pieces of all roles

``Auto`` is given a share of FedAvg's bytes and nothing else: seven budgets. All others are tried at up to three
settings of their own. The learning rate is one for all methods of a set. FedPM and DeComFL, which do not step along
gradients of weights, choose theirs of three (on seed 100, for fewer rounds). Minutes are those of one idle core, about.

What says most comes first. On one core every method at its first setting on Fashion-MNIST takes two hours, and its
other two seeds less than three more. Other budgets and settings follow, then the other sets: FedAvg, Auto, and what can
save in both directions. A method whose broadcast is dense takes at least half of FedAvg's bytes, and is trained on
Fashion-MNIST alone.

    python experiments/onepercent/curve.py --list
    python experiments/onepercent/curve.py --only "Fashion-MNIST" --seed 0 --hours 2
    python experiments/onepercent/curve.py --picture curve.svg --only "Fashion-MNIST"
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record
import torch
import units
from torch import nn

import thinwire as tw
from thinwire import data as sets
from thinwire.models import build
from thinwire.problem import Problem, standard

TESTED = 4000
BUDGETS = (0.001, 0.002, 0.004, 0.01, 0.02, 0.05, 0.1)  # of FedAvg's bytes
INTO = Path(__file__).parent / "results" / "curve.jsonl"


def group_cnn() -> nn.Module:
    """Two convolutions of 5 x 5 with group norm, for pictures of 3 x 32 x 32 in 10 classes: 878,730 parameters."""
    convolutions = [nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)]
    body = [[c, nn.GroupNorm(8, c.out_channels), nn.ReLU(), nn.MaxPool2d(2)] for c in convolutions]
    head = [nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*body[0], *body[1], *head)


@dataclass(frozen=True)
class Group:
    """A set, dealt to clients. ``minutes`` are those of FedAvg's training on one core, about."""

    name: str
    data: str
    rounds: int
    rate: float
    minutes: float
    kernels: int  # which LUAR can recycle
    split: sets.Split | None = None
    model: Callable[[], nn.Module] | None = None
    augment: tuple[sets.Augment, ...] = ()
    clients: int = 100
    sample: int = 10

    def setting(self) -> record.Line:
        """What a line says of it."""
        about = {"name": self.name, "data": self.data, "clients": self.clients, "sample": self.sample}
        return about | {"split": repr(self.split), "augment": repr(self.augment), "rate": self.rate, "tested": TESTED}


GROUPS = (
    Group("Fashion-MNIST", "fashion_mnist", 50, 0.05, 4.0, 4, sets.Dirichlet(0.1)),
    Group(
        "CIFAR-10",
        "cifar10",
        60,
        0.05,
        12.0,
        4,
        sets.Dirichlet(0.3),
        model=group_cnn,
        augment=(sets.Crop(4), sets.Flip()),
    ),
    Group("EMNIST letters", "emnist_letters", 60, 0.05, 10.0, 4, sets.Dirichlet(0.1)),
    Group("Shakespeare", "shakespeare", 60, 0.5, 15.0, 8),
)


@cache
def problem(group: Group, seed: int) -> Problem:
    split = None if group.split is None else units.patient(group.split)
    found = standard(group.data, None, group.clients, split, seed, augment=group.augment)
    some = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[:TESTED]
    found = replace(found, test=replace(found.test, indices=some))
    return found if group.model is None else replace(found, model=group.model)


@cache
def size(group: Group) -> int:
    """How many parameters its model has."""
    shapes = {"fashion_mnist": ((1, 28, 28), 10), "emnist_letters": ((1, 28, 28), 26)}
    if group.model is not None:
        model = group.model()
    elif group.data in shapes:
        model = build("fedavg_cnn", *shapes[group.data])
    else:
        model = build("char_transformer", (80,), 65, vocabulary=65)
    return sum(p.numel() for p in model.parameters())


# -- the methods: each by a number that says how much it sends --------------------

Make = Callable[[Group, tw.LocalSGD, float], tw.Algorithm | tw.Auto]


def fedavg(group: Group, local: tw.LocalSGD, _: float) -> tw.Algorithm:
    return tw.FedAvg(local)


def half(group: Group, local: tw.LocalSGD, _: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.Half(), down=tw.Half())


def stc(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(share)), down=tw.EF21(tw.STC(share)))


def stc_per_client(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(share)), down=tw.PerClient(tw.STC(share)))


def luar(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.LUAR(tw.FedAvg(local), recycle=max(1, round(share * group.kernels)))


def luar_both(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.LUAR(tw.FedAvg(local), recycle=max(1, round(share * group.kernels)), both=True)


def lbgm(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.LBGM(threshold=threshold))


def flss(group: Group, local: tw.LocalSGD, rank: float) -> tw.Algorithm:
    return tw.FLSS(tw.FedAvg(local), rank=int(rank), start=2 * int(rank))


def intrinsic(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.Intrinsic(max(16, round(share * size(group))), local=local)


def fetchsgd(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    cols = max(16, round(share * size(group) / 5))
    return tw.FetchSGD(cols, cols // 2, local=local)


def fedpm(group: Group, local: tw.LocalSGD, reset: float) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(local.lr), reset=int(reset), down=tw.Entropy(tw.Dense()))


def decomfl(group: Group, local: tw.LocalSGD, scalars: float) -> tw.Algorithm:
    return tw.DeComFL(int(scalars) // 20, 20, local=local)


def stream(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.FedAvg(local, **coded(group, share, lambda link: tw.EF21(link)))


def per_client(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.FedAvg(local, **coded(group, share, lambda link: tw.PerClient(link)))


def coded(group: Group, share: float, around: Callable[[tw.Link], tw.Link]) -> dict[str, Any]:
    """Both directions coded, a fifth of the bytes upwards."""
    whole = 8 * size(group) * share
    return {"up": tw.TransformCoding(round(0.2 * whole)), "down": around(tw.TransformCoding(round(0.8 * whole)))}


def auto(group: Group, local: tw.LocalSGD, share: float) -> tw.Auto:
    return tw.Auto(share, local)


@dataclass(frozen=True)
class Way:
    """A method, at settings of which the first says most. ``effort`` is its time in FedAvg's."""

    make: Make
    numbers: tuple[float, ...]
    effort: float = 1.3
    rates: tuple[float, ...] = ()  # to choose from; none: the set's
    start: Literal["sent", "known"] = "known"


METHODS: dict[str, Way] = {
    "FedAvg": Way(fedavg, (1.0,), 1.0, start="sent"),
    "FedAvg, 16 bits": Way(half, (0.5,), 1.1),
    "Auto": Way(auto, (0.01, *(budget for budget in BUDGETS if budget != 0.01)), 1.7),
    "TransformCoding, stream": Way(stream, (0.01, 0.002, 0.05), 1.4),
    "TransformCoding, per client": Way(per_client, (0.01, 0.002, 0.05), 1.5),
    "STC both ways": Way(stc, (0.01, 0.0025, 0.04)),
    "STC, per client": Way(stc_per_client, (0.04, 0.01, 0.0025), 1.4),
    "FetchSGD": Way(fetchsgd, (0.02, 0.005, 0.08)),
    "Intrinsic": Way(intrinsic, (0.01, 0.003, 0.03), 2.0),
    "LUAR": Way(luar, (0.5, 0.25, 0.75), 1.0),
    "LUAR, both": Way(luar_both, (0.5,), 1.2),
    "LBGM": Way(lbgm, (0.2, 0.5, 0.8), 1.2),
    "FLSS": Way(flss, (8, 4, 16)),
    "FedPM": Way(fedpm, (1, 10), 3.0, (0.03, 0.1, 0.3)),
    "DeComFL": Way(decomfl, (100, 20), 2.5, (0.0003, 0.001, 0.003)),
}
THIN = ("FedAvg", "Auto", "STC both ways", "STC, per client", "FetchSGD", "Intrinsic")  # what can save both ways


def served(make: Make, group: Group, number: float, rate: float, rounds: int) -> tw.Algorithm | tw.Auto:
    """The method, with an average served beside it; Auto serves one anyway."""
    made = make(group, tw.LocalSGD(rate), number)
    return made if isinstance(made, tw.Auto) else tw.Averaged(made)


def arm(group: Group, row: str, number: float, seeds: Sequence[int], times: int = 1) -> units.Federated:
    """A row; of ``times`` as many rounds."""
    way = METHODS[row]
    name = row if len(way.numbers) == 1 else f"{row}, {number:g}"
    return units.Federated(
        setting=group.setting(),
        row=name if times == 1 else f"{name}, {times} times the rounds",
        method=partial(served, way.make, group, number),
        rates=way.rates or [group.rate],
        problem=partial(problem, group),
        rounds=group.rounds * times,
        sample=group.sample,
        seeds=seeds,
        minutes=group.minutes * way.effort * times,
        evaluate_every=2,
        start=way.start,
    )


def arms() -> list[units.Arm]:
    """What says most comes first."""
    fashion, others = GROUPS[0], GROUPS[1:]
    first = [(row, way.numbers[0]) for row, way in METHODS.items()]
    rest = [(row, number) for row, way in METHODS.items() for number in way.numbers[1:]]
    plan: list[tuple[Group, str, float, tuple[int, ...]]] = []
    plan += [(fashion, *each, (0,)) for each in first]
    plan += [(fashion, *each, (1, 2)) for each in first]
    plan += [(fashion, *each, (0,)) for each in rest]
    plan += [(group, row, number, (0,)) for group in others for row, number in first if row in THIN]
    plan += [(group, row, number, (1, 2)) for group in others for row, number in first if row in THIN[:2]]
    plan += [(fashion, *each, (1, 2)) for each in rest if each[0] == "Auto"]
    plan += [(group, row, number, (0,)) for group in others for row, number in rest if row in THIN]
    found = [arm(*each) for each in plan]
    found[len(first) : len(first)] = [arm(fashion, "Auto", 0.002, (0, 1, 2), times=2)]
    return list(found)


# -- the picture -----------------------------------------------------------------

PALETTE = "0.1", "0.55", "C3", "C1", "C4", "C0", "navy", "C2", "C5", "C6", "pink", "C8", "C9", "gold", "teal"
COLOURS = dict(zip(METHODS, PALETTE, strict=True))


Points = dict[str, list[tuple[float, list[float], list[float]]]]


def points(lines: list[record.Line], name: str) -> Points:
    """By method: megabytes of a run both ways, L5 and EMA in percent, a value a seed; in the order of bytes."""
    found: dict[str, dict[str, list[record.Line]]] = {}
    for line in lines:
        if line["setting"]["name"] == name and line["kind"] == "run" and "diverged" not in line:
            method = max((m for m in METHODS if line["row"].startswith(m)), key=len)
            more = line["row"].partition(" times the rounds")
            method += f", {more[0].rpartition(' ')[2]} times the rounds" if more[1] else ""
            found.setdefault(method, {}).setdefault(line["row"], []).append(line)
    return {
        method: sorted(
            (
                statistics.fmean(line["bytes_up"] + line["bytes_down"] for line in some) / 1e6,
                [100 * line["accuracy_mean_of_last_5"] for line in some],
                [100 * line["served"][-1][1] for line in some if line.get("served")],
            )
            for some in rows.values()
        )
        for method, rows in found.items()
    }


def digest(drawn: dict[str, Points]) -> str:
    """Which points a picture shows: it is kept in the file, so that a test can tell an old picture."""
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()[:16]


def drawable(lines: list[record.Line], only: Sequence[str] | None) -> dict[str, Points]:
    """The points of each set, or of those with one of these words in their names."""
    names = [group.name for group in GROUPS if any(line["setting"]["name"] == group.name for line in lines)]
    return {name: points(lines, name) for name in names if not only or any(part in name for part in only)}


def picture(lines: list[record.Line], only: Sequence[str] | None, out: Path) -> None:
    """Accuracy against bytes both ways on a log axis: L5 and EMA side by side, a row a set."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawn = drawable(lines, only)
    if not drawn:
        sys.exit("there is no line to draw: train some first")
    figure, axes = plt.subplots(len(drawn), 2, figsize=(11, 0.6 + 3.8 * len(drawn)), squeeze=False, sharey="row")
    for row, (name, methods) in zip(axes, drawn.items(), strict=True):
        titles = "mean of the last five evaluations", "served average"
        for axis, which, title in zip(row, (1, 2), titles, strict=True):
            for method, found in methods.items():
                there = [(point[0], point[which]) for point in found if point[which]]
                spread = [statistics.stdev(y) if len(y) > 1 else 0.0 for _, y in there]
                own = method.startswith("Auto")
                axis.errorbar(
                    [x for x, _ in there],
                    [statistics.fmean(y) for _, y in there],
                    yerr=spread,
                    label=method,
                    color=COLOURS[max((m for m in METHODS if method.startswith(m)), key=len)],
                    marker="D" if "times" in method else "o",
                    markersize=6 if own else 4,
                    linewidth=2.5 if own else 1,
                    capsize=2,
                )
            axis.set_xscale("log")
            axis.set_title(f"{name}: {title}", fontsize=9)
            axis.set_xlabel("MB of a run, up and down together")
            axis.grid(alpha=0.3)
        row[0].set_ylabel("accuracy, %")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), fontsize=8, loc="center right", frameon=False)
    figure.tight_layout(rect=(0, 0, 0.8, 1))
    said = {"Title": "Accuracy against bytes both ways", "Description": digest(drawn)}
    with mpl.rc_context({"svg.hashsalt": "thinwire", "svg.fonttype": "none"}):  # the same lines are the same file
        figure.savefig(out, metadata=said | ({"Date": None} if out.suffix == ".svg" else {}))
    plt.close(figure)
    print(f"{out}: {out.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--only", action="append")
    asked, _ = parser.parse_known_args()
    if asked.picture is not None:
        picture(record.read(asked.into), asked.only, asked.picture)
    else:
        units.main(arms(), INTO, f"{__doc__}\n--picture FILE draws what is there, and trains nothing.")


if __name__ == "__main__":
    main()
