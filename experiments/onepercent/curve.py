"""Accuracy against the bytes of a whole run, up and down together: the README's first picture.

Methods from all of FedAvg's bytes to a thousandth of them, at equal rounds. All headers are billed, and FedAvg's first
contacts; all other methods start from a model that is known from the seed. Around every method an average is served
(``Averaged``, no byte), so that a line has both figures: L5, the mean of the last five evaluations, and EMA, the served
average at the end.

- ``Fashion-MNIST``: 100 clients, Dirichlet(0.1), 10 a round, 50 rounds of the CNN of the FedAvg paper
- ``CIFAR-10``: 100 clients, Dirichlet(0.3), 10 a round, 60 rounds of a CNN with group norm, crops and flips
- ``EMNIST letters``: 100 clients, Dirichlet(0.1), 10 a round, 60 rounds of the CNN of the FedAvg paper
- ``Shakespeare``: 100 roles, 10 a round, 60 rounds of a character transformer, test pieces of all roles

A set's learning rate is that of three by which FedAvg does best on seed 100 in two fifths of the rounds. ``Auto`` and
most others follow it. FetchSGD and Intrinsic, whose steps are longer, choose theirs of shares of it. FedPM and DeComFL
do not step along gradients of weights, and choose of three of their own.

``Auto`` is given a share of FedAvg's bytes and nothing else: seven budgets. Its rivals at one percent are FetchSGD,
Intrinsic, STC and LUAR and LBGM with coded messages, each at three settings of about the bytes of ``Auto(0.01)``, .98 %
of FedAvg's. LBGM sends less than that where it recycles: .83 to .99 %, which only a training says. Both have a setting
with error feedback and as many bytes upwards as down, beside two without and with a fifth upwards. STC's positions are
coded, so its bytes depend on what moves: trainings on Fashion-MNIST, at a rate of 0.1, sent 1.03 to 1.09 %, and lines
of other sets have theirs. The best setting on seed 100, by the mean of the last five evaluations after half of the
rounds, is trained in whole, and its served average is what stands beside Auto's. So nothing but the share was told to
``Auto``, and each rival has had five trials or three. Two cannot come so low:

- FLSS refuses ``down=PerClient(...)``, as its clients go by all that they have heard. Over a stream of coded
  differences a client that was away is sent the model and the basis: more than FedAvg's bytes where ten of a hundred
  take part.
- ``LUAR(..., both=True)`` refuses a coded downlink, as clients repeat the server's step. LUAR with coded messages saves
  upwards alone by recycling.

They and others whose broadcasts are dense are trained at their own bytes, on Fashion-MNIST alone, for the picture.
``Auto, detached`` is Auto with clients that begin ahead by a half of what they owe (``Detached``). At its four budgets,
the least that there are, Auto without it is trained on all sets too.

What says most comes first: FedAvg and ``Auto(0.01)`` on all sets, ``Auto(0.002)`` for twice the rounds and the other
budgets, the rivals on all sets with seed 0, and the best of them with two seeds more. Minutes are those of one idle
core, about.

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
from arms import Arm, Federated, patient
from pages import of_best_rate
from torch import nn

import thinwire as tw
from thinwire import data as sets
from thinwire.models import build
from thinwire.problem import Problem, standard
from thinwire.report.plots import logarithmic

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
    minutes: float
    split: sets.Split | None = None
    model: Callable[[], nn.Module] | None = None
    augment: tuple[sets.Augment, ...] = ()
    rates: tuple[float, float, float] = (0.02, 0.05, 0.1)
    tested: int = 4000
    clients: int = 100
    sample: int = 10

    def setting(self) -> record.Line:
        """What a line says of it."""
        about = {"name": self.name, "data": self.data, "clients": self.clients, "sample": self.sample}
        return about | {"split": repr(self.split), "augment": repr(self.augment), "tested": self.tested}


GROUPS = (
    Group("Fashion-MNIST", "fashion_mnist", 50, 1.6, sets.Dirichlet(0.1)),
    Group("CIFAR-10", "cifar10", 60, 4.2, sets.Dirichlet(0.3), group_cnn, (sets.Crop(4), sets.Flip())),
    Group("EMNIST letters", "emnist_letters", 60, 2.2, sets.Dirichlet(0.1)),
    Group("Shakespeare", "shakespeare", 60, 3.0, rates=(0.05, 0.1, 0.2), tested=1000),  # pieces of 80
)


@cache
def problem(group: Group, seed: int) -> Problem:
    split = None if group.split is None else patient(group.split)
    found = standard(group.data, None, group.clients, split, seed, augment=group.augment)
    some = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[: group.tested]
    found = replace(found, test=replace(found.test, indices=some))
    return found if group.model is None else replace(found, model=group.model)


@cache
def shapes(group: Group) -> list[torch.Size]:
    """Of its model's parameters."""
    given = {"fashion_mnist": ((1, 28, 28), 10), "emnist_letters": ((1, 28, 28), 26)}
    if group.model is not None:
        model = group.model()
    elif group.data in given:
        model = build("fedavg_cnn", *given[group.data])
    else:
        model = build("char_transformer", (80,), 65, vocabulary=65)
    return [p.shape for p in model.parameters()]


def size(group: Group) -> int:
    """How many parameters its model has."""
    return sum(shape.numel() for shape in shapes(group))


def kernels(group: Group) -> int:
    """How many of its layers LUAR can recycle: tensors of more than one dimension."""
    return sum(len(shape) > 1 for shape in shapes(group))


# -- the methods ------------------------------------------------------------------

Make = Callable[[Group, tw.LocalSGD], tw.Algorithm | tw.Auto]


def fedavg(group: Group, local: tw.LocalSGD) -> tw.Algorithm:
    return tw.FedAvg(local)


def half(group: Group, local: tw.LocalSGD) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.Half(), down=tw.Half())


def auto(group: Group, local: tw.LocalSGD, share: float) -> tw.Auto:
    return tw.Auto(share, local)


def detached(group: Group, local: tw.LocalSGD, share: float) -> tw.Auto:
    """Clients begin where a half of what they still owe is done already."""
    return tw.Auto(share, local, detach=0.5)


def stream(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, share)
    return tw.FedAvg(local, up=up, down=tw.EF21(down))


def per_client(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, share)
    return tw.FedAvg(local, up=up, down=tw.PerClient(down))


def codecs(group: Group, share: float, upwards: float = 0.2) -> tuple[tw.Link, tw.Link]:
    """For both directions, ``upwards`` of the bytes for the one."""
    whole = 8 * size(group) * share
    return tw.TransformCoding(round(upwards * whole)), tw.TransformCoding(round((1 - upwards) * whole))


def stc(group: Group, local: tw.LocalSGD, up: float, down: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(up)), down=tw.EF21(tw.STC(down)))


def stc_per_client(group: Group, local: tw.LocalSGD, up: float, down: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.ErrorFeedback(tw.STC(up)), down=tw.PerClient(tw.STC(down)))


def fetchsgd(group: Group, local: tw.LocalSGD, cols: float, k: float) -> tw.Algorithm:
    """Columns and entries as shares of the model."""
    return tw.FetchSGD(max(16, round(cols * size(group))), max(8, round(k * size(group))), local=local)


def intrinsic(group: Group, local: tw.LocalSGD, share: float, **fields: Any) -> tw.Algorithm:
    """The dimension as a share of the model."""
    return tw.Intrinsic(max(16, round(share * size(group))), local=local, **fields)


def luar(group: Group, local: tw.LocalSGD, share: float, both: bool = False, **fields: Any) -> tw.Algorithm:
    """Recycles a share of the layers that can be."""
    return tw.LUAR(tw.FedAvg(local, **fields), recycle=max(1, round(share * kernels(group))), both=both)


def luar_coded(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    up, down = codecs(group, 0.0103)
    return luar(group, local, share, up=up, down=tw.PerClient(down))


def luar_even(group: Group, local: tw.LocalSGD, share: float) -> tw.Algorithm:
    """Half of the bytes upwards, with error feedback."""
    up, down = codecs(group, 0.0103, 0.5)
    return luar(group, local, share, up=tw.ErrorFeedback(up), down=tw.PerClient(down))


def lbgm(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    return tw.FedAvg(local, up=tw.LBGM(threshold=threshold))


def lbgm_coded(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    """Looks back on coded updates."""
    up, down = codecs(group, 0.01)[0], tw.TransformCoding(round(4 * size(group) * 0.0163))
    return tw.FedAvg(local, up=tw.LBGM(up, threshold=threshold), down=tw.PerClient(down))


def lbgm_even(group: Group, local: tw.LocalSGD, threshold: float) -> tw.Algorithm:
    """Looks back on coded updates, half of the bytes upwards, with error feedback."""
    up, down = codecs(group, 0.0103, 0.5)
    return tw.FedAvg(local, up=tw.LBGM(tw.ErrorFeedback(up), threshold=threshold), down=tw.PerClient(down))


def flss(group: Group, local: tw.LocalSGD, rank: int) -> tw.Algorithm:
    return tw.FLSS(tw.FedAvg(local), rank=rank, start=2 * rank)


def fedpm(group: Group, local: tw.LocalSGD, reset: int) -> tw.Algorithm:
    return tw.FedPM(tw.LocalAdam(local.lr), reset=reset, down=tw.Entropy(tw.Dense()))


def decomfl(group: Group, local: tw.LocalSGD, scalars: int) -> tw.Algorithm:
    return tw.DeComFL(scalars // 20, 20, local=local)


def each(make: Callable[..., Any], *numbers: float) -> dict[str, Make]:
    """A setting a number, which is its name."""
    return {f"{number:g}": lambda group, local, n=number: make(group, local, n) for number in numbers}


@dataclass(frozen=True)
class Way:
    """A method at settings of its own bytes, for the picture, or at three of Auto's (``rival``).

    ``effort`` is its time in FedAvg's. ``rates`` are to choose from, as multiples of the set's middle one where
    ``relative``; without any it follows FedAvg.
    """

    settings: dict[str, Make]
    effort: float = 1.0
    rival: bool = False
    rates: tuple[float, ...] = ()
    relative: bool = False
    start: Literal["sent", "known"] = "known"

    def tried(self, group: Group) -> tuple[float, ...]:
        """The rates to choose from."""
        return tuple(round(rate * group.rates[1], 6) for rate in self.rates) if self.relative else self.rates


SHORTER: dict[str, Any] = {"rates": (0.1, 0.3, 1.0), "relative": True}  # where a step goes further than its update
METHODS: dict[str, Way] = {  # beside settings of rivals: percent of FedAvg's bytes, both ways, on Fashion-MNIST
    "FedAvg": Way({"": fedavg}, start="sent"),
    "FedAvg, 16 bits": Way({"": half}),
    "Auto": Way(each(auto, *BUDGETS), 1.4),
    "TransformCoding, stream": Way(each(stream, 0.01), 1.2),
    "TransformCoding, per client": Way(each(per_client, 0.01), 1.3),
    "STC both ways": Way(
        {  # a client that was away is sent all that it missed: half of the rounds take less than half of these bytes
            "0.02 and 0.01": partial(stc, up=0.02, down=0.01),  # 1.04
            "0.05 and 0.007": partial(stc, up=0.05, down=0.0068),  # 1.04
            "0.1 and 0.004": partial(stc, up=0.1, down=0.0044),  # 1.09
        },
        1.1,
        rival=True,
    ),
    "STC, per client": Way(
        {
            "0.05 and 0.11": partial(stc_per_client, up=0.05, down=0.112),  # 1.03
            "0.1 and 0.07": partial(stc_per_client, up=0.1, down=0.068),  # 1.06
            "0.15 and 0.03": partial(stc_per_client, up=0.15, down=0.03),  # 1.04
        },
        1.2,
        rival=True,
    ),
    "FetchSGD": Way(
        {
            "0.002 and 0.0008": partial(fetchsgd, cols=0.00206, k=0.00082),  # 0.98
            "0.003 and 0.0004": partial(fetchsgd, cols=0.00301, k=0.0004),  # 0.98
            "0.001 and 0.0013": partial(fetchsgd, cols=0.00103, k=0.00132),  # 0.98
        },
        1.1,
        rival=True,
        **SHORTER,
    ),
    "Intrinsic": Way(
        {
            "0.01": partial(intrinsic, share=0.0099),  # 0.98
            "0.01, momentum": partial(intrinsic, share=0.0099, opt=tw.Momentum(1.0, beta=0.6)),  # 0.98
            "0.02, 16 bits": partial(intrinsic, share=0.0198, up=tw.Half(), down=tw.Half()),  # 0.98
        },
        1.2,
        rival=True,
        **SHORTER,
    ),
    "LUAR, coded": Way(  # 0.98 each
        {**each(luar_coded, 0.5, 0.25), "0.25, even": partial(luar_even, share=0.25)}, 1.3, rival=True
    ),
    "LBGM, coded": Way(  # .83 to .99 by how much is recycled, an even split 0.98
        {**each(lbgm_coded, 0.2, 0.5), "0.2, even": partial(lbgm_even, threshold=0.2)}, 1.4, rival=True
    ),
    "LUAR": Way(each(luar, 0.5)),
    "LUAR, both": Way({"": partial(luar, share=0.5, both=True)}),
    "LBGM": Way(each(lbgm, 0.2), 1.1),
    "FLSS": Way(each(flss, 8), 1.1),
    "FedPM": Way(each(fedpm, 1), 2.0, rates=(0.03, 0.1, 0.3)),
    "DeComFL": Way(each(decomfl, 100), 2.5, rates=(0.0003, 0.001, 0.003)),
    "Auto, detached": Way(each(detached, 0.001, 0.002, 0.004, 0.01), 1.4),
}
RIVALS = [row for row, way in METHODS.items() if way.rival]


def served(make: Make, group: Group, rate: float, rounds: int) -> tw.Algorithm | tw.Auto:
    """The method, with an average served beside it; Auto serves one anyway."""
    made = make(group, tw.LocalSGD(rate))
    return made if isinstance(made, tw.Auto) else tw.Averaged(made)


def arm(group: Group, row: str, name: str, seeds: Sequence[int] = (), times: int = 1) -> Federated:
    """A row at one setting, and at the rate of its first setting or of FedAvg; of ``times`` as many rounds."""
    way = METHODS[row]
    first = next(iter(way.settings)) if way.rates else ""
    rates = group.rates if row == "FedAvg" else way.tried(group) if name == first else ()
    return Federated(
        setting=group.setting(),
        row=", ".join(filter(None, (row, name))) + (f", {times} times the rounds" if times > 1 else ""),
        method=partial(served, way.settings[name], group),
        rates=rates,
        follows=None if rates else arm(group, row if way.rates else "FedAvg", first),
        problem=partial(problem, group),
        rounds=group.rounds * times,
        sample=group.sample,
        seeds=seeds,
        minutes=group.minutes * way.effort * times,
        evaluate_every=2,
        start=way.start,
        tuning=0.4 if row == "FedAvg" else 0.5,
    )


def best(group: Group, row: str, seeds: Sequence[int]) -> Federated:
    """A rival at the best of its three settings; rates are tried at the first."""
    settings = [arm(group, row, name) for name in METHODS[row].settings]
    return replace(settings[0], row=f"{row}, the best", seeds=seeds, best_of=settings)


def arms() -> list[Arm]:
    """What says most comes first."""
    fashion, more = GROUPS[0], (1, 2)
    main = [(group, *each) for group in GROUPS for each in (("FedAvg", ""), ("Auto", "0.01"))]
    budgets = [name for name in METHODS["Auto"].settings if name != "0.01"]
    rivals = {group: [best(group, row, (0,)) for row in RIVALS] for group in GROUPS}
    others = [(row, way) for row, way in METHODS.items() if row != "FedAvg" and "Auto" not in row and not way.rival]

    found = [arm(*each, seeds=(0,)) for each in main]
    found += [arm(*each, seeds=more) for each in main]
    found += [arm(fashion, "Auto", "0.002", (0, 1, 2), times=2)]
    found += [arm(fashion, "Auto", name, (0,)) for name in budgets]
    found += [one for some in rivals.values() for one in some]
    for some in rivals.values():
        found.append(replace(some[0], row="the best of the rivals", best_of=some, by=0, seeds=more))
    found += [arm(fashion, row, name, (0,)) for row, way in others for name in way.settings]
    found += [arm(fashion, "Auto", name, more) for name in budgets]
    pairs = [(name, group) for name in ("0.002", "0.001", "0.004", "0.01") for group in GROUPS]
    for seeds in (0,), more:
        found += [arm(group, row, name, seeds) for name, group in pairs for row in ("Auto, detached", "Auto")]
    return list(found)


# -- the picture -----------------------------------------------------------------

PALETTE = "0.1", "0.55", "C3", "C1", "C4", "C0", "navy", "C2", "C5", "purple", "brown", "C6", "pink", "C8", "C9"
COLOURS = dict(zip(METHODS, (*PALETTE, "gold", "teal", "black"), strict=True))


Points = dict[str, list[tuple[float, list[float], list[float]]]]


def points(lines: list[record.Line], name: str) -> Points:
    """By method: megabytes of a run both ways, L5 and EMA in percent, a value a seed; in the order of bytes."""
    found: dict[str, dict[str, list[record.Line]]] = {}
    runs = of_best_rate(line for line in lines if line["setting"]["name"] == name and line["kind"] == "run")
    for (_, row), some in runs.items():
        method = max((m for m in METHODS if row.startswith(m)), key=len)
        more = row.partition(" times the rounds")
        method += f", {more[0].rpartition(' ')[2]} times the rounds" if more[1] else ""
        if ended := [line for line in some if "diverged" not in line]:
            found.setdefault(method, {})[row] = ended
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
            logarithmic(axis)
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
