"""Accuracy against the bytes of a whole run, up and down together: the README's first picture.

Every method at several settings, from all of FedAvg's bytes to a thousandth of them, with three seeds, at equal rounds.
All first contacts and headers are billed. Around every method an average is served (``Averaged``, no byte), so that a
line has both figures: L5, the mean of the last five evaluations, and EMA, the served average at the end.

- ``Fashion-MNIST``: 100 clients, Dirichlet(0.1), 10 a round, 50 rounds of the CNN of the FedAvg paper
- ``CIFAR-10``: 100 clients, Dirichlet(0.3), 10 a round, 60 rounds of a CNN with group norm, crops and flips
- ``EMNIST letters``: 100 clients, Dirichlet(0.1), 10 a round, 60 rounds of the CNN of the FedAvg paper
- ``Shakespeare``: 100 roles, 10 a round, 60 rounds of a character transformer, test pieces of all roles

``Auto`` is given a share of FedAvg's bytes and nothing else: seven budgets. All others are tried at three settings of
their own. The learning rate is one for all methods of a set. Minutes are rough guesses.

    python experiments/onepercent/curve.py --list
    python experiments/onepercent/curve.py --only "Fashion-MNIST" --seed 0 --hours 2
    python experiments/onepercent/curve.py --picture curve.svg --only "Fashion-MNIST"
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

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


def luar(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.LUAR(tw.FedAvg(local), recycle=max(1, round(share * group.kernels)))


def lbgm(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.LBGM(threshold=threshold))


def flss(group: Group, local: tw.LocalSGD, rank: float) -> tw.Algorithm:
    return tw.FLSS(tw.FedAvg(local), rank=int(rank), start=2 * int(rank))


def intrinsic(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    return tw.Intrinsic(max(16, round(share * size(group))), local=local, known=True)


def fetchsgd(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    cols = max(16, round(share * size(group) / 5))
    return tw.FetchSGD(cols, cols // 2, local=local, known=True)


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


METHODS: dict[str, tuple[Make, tuple[float, ...]]] = {
    "FedAvg": (fedavg, (1.0,)),
    "FedAvg, 16 bits": (half, (0.5,)),
    "Auto": (auto, BUDGETS),
    "TransformCoding, stream": (stream, (0.001, 0.004, 0.02)),
    "TransformCoding, per client": (per_client, (0.001, 0.004, 0.02)),
    "STC both ways": (stc, (0.0025, 0.01, 0.04)),
    "FetchSGD": (fetchsgd, (0.005, 0.02, 0.08)),
    "Intrinsic": (intrinsic, (0.003, 0.01, 0.03)),
    "LUAR": (luar, (0.25, 0.5, 0.75)),
    "LBGM": (lbgm, (0.2, 0.5, 0.8)),
    "FLSS": (flss, (4, 8, 16)),
}
KNOWN = ("Auto", "TransformCoding, stream", "TransformCoding, per client", "STC both ways")  # start from the seed


def served(make: Make, group: Group, number: float, rate: float, rounds: int) -> tw.Algorithm | tw.Auto:
    """The method, with an average served beside it; Auto serves one anyway."""
    made = make(group, tw.LocalSGD(rate), number)
    return made if isinstance(made, tw.Auto) else tw.Averaged(made)


def arms() -> list[units.Arm]:
    return [
        units.Federated(
            setting=group.setting(),
            row=row if len(numbers) == 1 else f"{row}, {number:g}",
            method=partial(served, make, group, number),
            rates=[group.rate],
            problem=partial(problem, group),
            rounds=group.rounds,
            sample=group.sample,
            minutes=group.minutes * (2 if row in KNOWN else 1.3),
            evaluate_every=2,
            start="known" if row in KNOWN else "sent",
        )
        for group in GROUPS
        for row, (make, numbers) in METHODS.items()
        for number in numbers
    ]


# -- the picture -----------------------------------------------------------------

COLOURS = dict(zip(METHODS, ("0.1", "0.55", "C3", "C1", "C4", "C0", "C2", "C5", "C6", "C8", "C9"), strict=True))


def points(lines: list[record.Line], name: str) -> dict[str, list[tuple[float, list[float], list[float]]]]:
    """By method: megabytes of a run both ways, L5 and EMA in percent, a value a seed; in the order of bytes."""
    found: dict[str, dict[str, list[record.Line]]] = {}
    for line in lines:
        if line["setting"]["name"] == name and line["kind"] == "run" and "diverged" not in line:
            method = max((m for m in METHODS if line["row"].startswith(m)), key=len)
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


def picture(lines: list[record.Line], only: list[str] | None, out: Path) -> None:
    """Accuracy against bytes both ways on a log axis: L5 above, EMA below, a column a set."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.hashsalt": "thinwire", "svg.fonttype": "none"}  # the same lines are the same file
    import matplotlib.pyplot as plt

    names = [group.name for group in GROUPS if any(line["setting"]["name"] == group.name for line in lines)]
    names = [name for name in names if not only or any(part in name for part in only)]
    if not names:
        sys.exit("there is no line to draw: train some first")
    figure, axes = plt.subplots(2, len(names), figsize=(1.5 + 4.5 * len(names), 7.5), squeeze=False, sharex="col")
    for column, name in enumerate(names):
        for method, found in points(lines, name).items():
            for axis, which in zip(axes[:, column], (1, 2), strict=True):
                there = [(point[0], point[which]) for point in found if point[which]]
                spread = [statistics.stdev(y) if len(y) > 1 else 0.0 for _, y in there]
                axis.errorbar(
                    [x for x, _ in there],
                    [statistics.fmean(y) for _, y in there],
                    yerr=spread,
                    label=method,
                    color=COLOURS[method],
                    marker="o",
                    markersize=6 if method == "Auto" else 4,
                    linewidth=2.5 if method == "Auto" else 1,
                    capsize=2,
                )
        for axis, what in zip(axes[:, column], ("mean of the last five evaluations", "served average"), strict=True):
            axis.set_xscale("log")
            axis.set_title(f"{name}: {what}", fontsize=9)
            axis.grid(alpha=0.3)
        axes[1, column].set_xlabel("MB of a run, up and down together")
    for row in axes:
        row[0].set_ylabel("accuracy, %")
    axes[0, -1].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
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
