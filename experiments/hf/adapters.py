"""Adapters of pretrained models, federated: what a hundredth of the bytes costs in accuracy and perplexity.

LoRA of rank 32 on queries and values, 20 clients, 2 a round, 10 local steps of AdamW, adapters from the same seed.
FedAvg's first contacts and all headers are billed; ``Auto`` begins from adapters that are known from the seed.

- ``AG News``: all-MiniLM-L6-v2, Dirichlet(1.0), batches of 8, 64 tokens of a text, 40 rounds; 2,000 of the test texts
- ``SST-2``: the same for 60 rounds, tested on the 1,821 sentences of the treebank's test part
- ``PersonaChat``: SmolLM2-135M-Instruct, 680 personas dealt to the 20 clients in turn, none of them to two, batches of
  4 packed rows of 64 tokens, 10 rounds, and 30; tested on the last fifth of each persona's utterances, 630 rows
- ``PersonaChat, 680 personas``: each of them is a client, and 10 of them train in each of 10 rounds

Figures are means of the last five evaluations: of ten, of PersonaChat's five. An evaluation takes as long as two
rounds, and ``Auto`` has two of them, as its average is served beside the model. Rates are usual ones for adapters, .001
for MiniLM on AG News and .0005 for SmolLM2; no other was tried. On SST-2 FedAvg stays at chance with .001, which is a
row. Its rate there is the best of .0002, .0003 and .0005 on seed 100 after half of the rounds, and all rows of adapters
have that.

What says most comes first: seed 0 of every set, dense and ``Auto(0.01)``, the other seeds, ``Auto(0.003)`` for twice
the rounds, and rivals at one percent on AG News with seed 0. FLSS is there with its own bytes: its clients go by all
that they have heard, and one that was away is sent the model and the basis. After these the whole of MiniLM is trained:
``Intrinsic`` on SST-2 by dimension d, static, time-varying, and with 8 subspaces for the bytes of d, and LUAR on AG
News with 30 of 40 kernels recycled. The personas come last.

Models are in bfloat16, adapters in 32-bit floats, and where all of MiniLM is trained so is a copy of it that takes the
steps. The first line of AG News is of a model in 32-bit floats.

The models come from packages (``thinwire.hf.model_folder``). Minutes are those of one idle core, about.

    python experiments/hf/adapters.py --list
    python experiments/hf/adapters.py --only "AG News" --seed 0
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import units
from arms import Arm, Federated, patient
from record import Line

import thinwire as tw
from thinwire import data as sets
from thinwire import hf
from thinwire.data.sst2 import sst2_texts
from thinwire.data.texts import Texts
from thinwire.problem import Problem

CLIENTS, SAMPLE, STEPS, RANK, LENGTH, TESTED = 20, 2, 10, 32, 64, 2000
INTO = Path(__file__).parent / "results" / "adapters.jsonl"
ADAPTERS = {"minilm": 296_452, "smollm2": 1_843_200}  # trained parameters; of AG News, with the head of four classes
BASE = "bfloat16"  # the model's numbers; the adapters are in 32 bits
WHOLE = 22_714_756  # parameters of MiniLM with that head


@dataclass(frozen=True)
class Group:
    """A set and a model. ``minutes`` are those of FedAvg's training on one core, about."""

    name: str
    data: str
    model: str
    rounds: int
    minutes: float
    rates: tuple[float, ...]
    batch: int = 8
    looks: int = 10
    clients: int = CLIENTS
    sample: int = SAMPLE

    def setting(self, whole: bool = False) -> Line:
        """What a line says of it."""
        split = "Dirichlet(1.0)" if self.model == "minilm" else "personas in turn"
        about = {"name": self.name, "data": self.data, "model": self.model, "clients": self.clients}
        about |= {"sample": self.sample, "base": BASE}
        what = {"trained": "all"} if whole else {"rank": RANK}
        return about | what | {"split": split, "steps": STEPS, "batch": self.batch, "length": LENGTH}


NEWS = Group("AG News", "ag_news", "minilm", 40, 9, (0.001,))
REVIEWS = Group("SST-2", "sst2", "minilm", 60, 5, (0.0002, 0.0003, 0.0005))
CHAT = Group("PersonaChat", "personachat", "smollm2", 10, 13, (0.0005,), batch=4, looks=5)
LONG = replace(CHAT, name="PersonaChat, 30 rounds", rounds=30, minutes=27)
PERSONAS = replace(CHAT, name="PersonaChat, 680 personas", minutes=42, clients=680, sample=10)
GROUPS = (NEWS, REVIEWS, CHAT)


def texts(group: Group) -> Texts:
    """The set, whose personas are dealt to the clients in turn."""
    if group.data == "sst2":
        return sst2_texts(part="test")
    given = hf.load_texts(group.data)
    return given if given.owners is None else replace(given, owners=[o % group.clients for o in given.owners])


@cache
def problem(group: Group, whole: bool, seed: int) -> Problem:
    """Its test rows are in the order of their lengths, so that few are filled up."""
    split = patient(sets.Dirichlet(1.0)) if group.model == "minilm" else None
    given = texts(group)
    model = partial(hf.load_base, group.model, given.num_classes, BASE) if whole else group.model
    tokenizer = hf.load_tokenizer(group.model)
    about: dict[str, Any] = {"clients": group.clients, "split": split, "seed": seed, "length": LENGTH}
    about |= {} if whole else {"rank": RANK, "dtype": BASE}
    found = hf.standard(given, model, tokenizer=tokenizer, **about)
    some = torch.randperm(len(found.test), generator=torch.Generator().manual_seed(0))[:TESTED]
    rows = found.test.indices[some]
    return replace(found, test=replace(found.test, indices=rows[found.test.rows.sizes()[rows].argsort(stable=True)]))


# -- the methods ------------------------------------------------------------------

Make = Callable[[Group, tw.LocalAdamW], tw.Algorithm | tw.Auto]


def fedavg(group: Group, local: tw.LocalAdamW, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(local, **fields)


def auto(group: Group, local: tw.LocalAdamW, share: float) -> tw.Auto:
    return tw.Auto(share, local)


def coded(up: tw.Link, down: tw.Link) -> dict[str, tw.Link]:
    """Error feedback upwards, a message for each client downwards."""
    return {"up": tw.ErrorFeedback(up), "down": tw.PerClient(down)}


def both(link: tw.Link) -> Make:
    return partial(fedavg, **coded(link, link))


def intrinsic(group: Group, local: tw.LocalAdamW, dim: int, size: int, **fields: Any) -> tw.Algorithm:
    """What comes back of ``size`` parameters is about sqrt(size / dim) times as long as what was sent."""
    return tw.Intrinsic(dim, local=local, opt=tw.SGD(round(math.sqrt(dim / size), 4)), known=True, **fields)


def luar(group: Group, local: tw.LocalAdamW, recycle: int, **fields: Any) -> tw.Algorithm:
    return tw.LUAR(tw.FedAvg(local, **fields), recycle=recycle)


def luar_coded(group: Group, local: tw.LocalAdamW) -> tw.Algorithm:
    half = tw.TransformCoding(round(0.01 * 4 * ADAPTERS[group.model]))
    return luar(group, local, 6, **coded(half, half))  # of 25 kernels


def flss(group: Group, local: tw.LocalAdamW) -> tw.Algorithm:
    return tw.FLSS(tw.FedAvg(local), rank=8, start=16)


RIVALS: dict[str, Make] = {  # percent of FedAvg's bytes both ways
    "TopK both ways": both(tw.TopK(0.0075)),
    "top-k in 4 bits": both(tw.TopK(0.024, values=tw.Bins(16))),
    "Intrinsic": partial(intrinsic, dim=round(0.0098 * ADAPTERS["minilm"]), size=ADAPTERS["minilm"]),
    "LUAR, coded": luar_coded,
    "FLSS": flss,
}
DIMS = (200, 800, 3200, 12_800, 25_600)


def trained(make: Make, group: Group, rate: float, rounds: int) -> tw.Algorithm | tw.Auto:
    return make(group, tw.LocalAdamW(rate, batch=group.batch, steps=STEPS))


def arm(
    group: Group,
    row: str,
    make: Make,
    seeds: Sequence[int],
    effort: float = 1.0,
    times: int = 1,
    known: bool = True,
    whole: bool = False,
    rate: float | None = None,
    follows: Federated | None = None,
) -> Federated:
    """A row, for ``times`` as many rounds; ``effort`` is its time in FedAvg's."""
    rounds = group.rounds * times
    return Federated(
        setting=group.setting(whole),
        row=row + (f", {times} times the rounds" if times > 1 else ""),
        method=partial(trained, make, group),
        rates=() if follows else group.rates if rate is None else (rate,),
        follows=follows,
        tuning=0.5,
        further=0,
        problem=partial(problem, group, whole),
        rounds=rounds,
        sample=group.sample,
        seeds=seeds,
        minutes=group.minutes * effort * times,
        evaluate_every=rounds,
        looks=group.looks,
        start="known" if known else "sent",
        checkpoint_every=5,
    )


def pair(group: Group, seeds: Sequence[int]) -> list[Federated]:
    """Dense, and a hundredth of it."""
    dense = arm(group, "FedAvg", fedavg, seeds, known=False)
    return [dense, arm(group, "Auto(0.01)", partial(auto, share=0.01), seeds, 1.6, follows=dense)]


def thinner(group: Group, seeds: Sequence[int]) -> Federated:
    """Three thousandths, for twice the rounds."""
    dense = arm(group, "FedAvg", fedavg, seeds, known=False)
    return arm(group, "Auto(0.003)", partial(auto, share=0.003), seeds, 1.6, times=2, follows=dense)


def arms() -> list[Arm]:
    """What says most comes first."""
    found = [one for group in GROUPS for one in pair(group, (0,))]
    found += [one for group in (NEWS, REVIEWS) for one in pair(group, (1, 2))]
    found += [thinner(group, (0,)) for group in GROUPS]
    found += [arm(NEWS, row, make, (0,)) for row, make in RIVALS.items()]
    found += pair(LONG, (0,))
    found += pair(CHAT, (1, 2))
    found += [thinner(group, (1, 2)) for group in (NEWS, REVIEWS)]
    found.append(arm(REVIEWS, "FedAvg, rate 0.001", fedavg, (0,), known=False, rate=0.001))
    whole: dict[str, Any] = {"whole": True, "rate": 1e-4, "effort": 2.0}
    projected = partial(intrinsic, size=WHOLE)
    found.append(arm(REVIEWS, "FedAvg, all of MiniLM", fedavg, (0,), known=False, **whole))
    for dim in DIMS:
        found.append(arm(REVIEWS, f"Intrinsic, d = {dim:,}", partial(projected, dim=dim), (0,), **whole))
        varying = partial(projected, dim=dim, varying=True, epoch=10)
        found.append(arm(REVIEWS, f"Intrinsic, d = {dim:,}, time-varying", varying, (0,), **whole))
        eight = partial(projected, dim=round(dim * 2 / 9), subspaces=8)  # one up and eight down are as many numbers
        found.append(arm(REVIEWS, f"Intrinsic, K = 8, for the bytes of d = {dim:,}", eight, (0,), **whole))
    news: dict[str, Any] = {"whole": True, "rate": 5e-5, "effort": 1.5}
    found.append(arm(NEWS, "FedAvg, all of MiniLM", fedavg, (0,), known=False, **news))
    found.append(arm(NEWS, "LUAR, 30 of 40 kernels", partial(luar, recycle=30), (0,), known=False, **news))
    found += pair(PERSONAS, (0,))
    return list(found)


if __name__ == "__main__":
    units.main(arms(), INTO, __doc__ or "")
