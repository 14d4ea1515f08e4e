"""Adapters of pretrained models, federated: what a hundredth of the bytes costs in accuracy and perplexity.

LoRA of rank 32 on queries and values, 20 clients, 2 a round, 10 local steps of AdamW, adapters from the same seed.
FedAvg's first contacts and all headers are billed; ``Auto`` begins from adapters that are known from the seed.

- ``AG News``: all-MiniLM-L6-v2, Dirichlet(1.0), batches of 8, 64 tokens of a text, 40 rounds; 2,000 of the test texts
- ``SST-2``: the same for 60 rounds, tested on the 1,821 sentences of the treebank's test part
- ``SST-2, IID``: labels alike at all clients, batches of 16, 40 rounds, for all of MiniLM
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
on AG News by LUAR with 30 of 41 kernels, and on SST-2 by ``Intrinsic`` by dimension d, static, time-varying, and with 8
subspaces for the bytes of d. There clients have labels alike, as in the paper: with Dirichlet(1.0) and 2 clients a
round all of MiniLM swings between the two classes. The 680 personas come then, and last more seeds of ``Auto(0.003)``
and 30 rounds of PersonaChat, all of whose rows are one seed.

The rate of an ``Intrinsic`` row is how many times as long as FedAvg's the server's step is: the server's own rate is
that times sqrt(d / D), of D trained parameters. It is chosen on seed 100 after half of the rounds, of 1, 4 and 16 for
the adapters on AG News and on PersonaChat's 20 clients, whose choice the 680 personas have too, and of 4, 16 and 64 for
the static subspace of each d of MiniLM; time-varying and several subspaces have that of their d. The clients' rate is
FedAvg's.

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
WHOLE = 22_714_756  # parameters of MiniLM with that head; with SST-2's of two classes 770 fewer


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
    split: sets.Split | None = sets.Dirichlet(1.0)  # None: personas in turn

    def setting(self, whole: bool = False) -> Line:
        """What a line says of it."""
        split = "personas in turn" if self.split is None else repr(self.split)
        about = {"name": self.name, "data": self.data, "model": self.model, "clients": self.clients}
        about |= {"sample": self.sample, "base": BASE}
        what = {"trained": "all"} if whole else {"rank": RANK}
        return about | what | {"split": split, "steps": STEPS, "batch": self.batch, "length": LENGTH}


NEWS = Group("AG News", "ag_news", "minilm", 40, 9, (0.001,))
REVIEWS = Group("SST-2", "sst2", "minilm", 60, 5, (0.0002, 0.0003, 0.0005))
ALIKE = replace(REVIEWS, name="SST-2, IID", rounds=40, minutes=5, batch=16, split=sets.IID())
CHAT = Group("PersonaChat", "personachat", "smollm2", 10, 13, (0.0005,), batch=4, looks=5, split=None)
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
    split = patient(group.split) if isinstance(group.split, sets.Dirichlet) else group.split
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

Make = Callable[[Group, float], tw.Algorithm | tw.Auto]  # from a rate


def trainer(group: Group, rate: float) -> tw.LocalAdamW:
    return tw.LocalAdamW(rate, batch=group.batch, steps=STEPS)


def fedavg(group: Group, rate: float, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(trainer(group, rate), **fields)


def auto(group: Group, rate: float, share: float) -> tw.Auto:
    return tw.Auto(share, trainer(group, rate))


def links(up: tw.Link, down: tw.Link) -> dict[str, tw.Link]:
    """Error feedback upwards, a message for each client downwards."""
    return {"up": tw.ErrorFeedback(up), "down": tw.PerClient(down)}


def both(link: tw.Link) -> Make:
    return partial(fedavg, **links(link, link))


def plain(link: tw.Link) -> Make:
    """A message for each client downwards, no error feedback upwards: a residual would wait until a client is back."""
    return partial(fedavg, up=link, down=tw.PerClient(link))


def intrinsic(group: Group, rate: float, local: float, dim: int, size: int, **fields: Any) -> tw.Algorithm:
    """``rate`` is the length of the server's step over FedAvg's, and ``local`` the clients' rate.

    What comes back of ``dim`` numbers is about sqrt(size / dim) times as long as what was projected.
    """
    server = tw.SGD(round(rate * math.sqrt(dim / size), 4))
    return tw.Intrinsic(dim, local=trainer(group, local), opt=server, known=True, **fields)


def luar(group: Group, rate: float, recycle: int, **fields: Any) -> tw.Algorithm:
    return tw.LUAR(fedavg(group, rate, **fields), recycle=recycle)


def luar_coded(group: Group, rate: float) -> tw.Algorithm:
    half = tw.TransformCoding(round(0.01 * 4 * ADAPTERS[group.model]))
    return luar(group, rate, 6, **links(half, half))  # of 25 kernels


def flss(group: Group, rate: float) -> tw.Algorithm:
    return tw.FLSS(fedavg(group, rate), rank=8, start=16)


SPARSE, NARROW = tw.TopK(0.0075), tw.TopK(0.036, values=tw.Bins(16))
RIVALS: dict[str, Make] = {
    "TopK both ways": both(SPARSE),
    "top-k in 4 bits": both(NARROW),
    "TopK both ways, no error feedback": plain(SPARSE),
    "top-k in 4 bits, no error feedback": plain(NARROW),
    "LUAR, coded": luar_coded,
    "FLSS": flss,
}
DIMS = (3200, 200, 800, 12_800, 25_600)
LENGTHS = {"adapters": (1.0, 4.0, 16.0), "whole": (4.0, 16.0, 64.0)}  # of FedAvg's step, that of a subspace


def arm(
    group: Group,
    row: str,
    make: Make,
    seeds: Sequence[int],
    effort: float = 1.0,
    times: int = 1,
    known: bool = True,
    whole: bool = False,
    rates: Sequence[float] | None = None,
    follows: Federated | None = None,
) -> Federated:
    """A row, for ``times`` as many rounds; ``effort`` is its time in FedAvg's."""
    rounds = group.rounds * times
    return Federated(
        setting=group.setting(whole),
        row=row + (f", {times} times the rounds" if times > 1 else ""),
        method=lambda rate, rounds: make(group, rate),
        rates=() if follows else rates or group.rates,
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


def rivals() -> list[Federated]:
    """What else there is for a hundredth, on AG News."""
    found = [arm(NEWS, row, make, (0,)) for row, make in RIVALS.items()]
    make, lengths = make_intrinsic(NEWS, 0.0098, NEWS.rates[0]), LENGTHS["adapters"]
    return [*found, arm(NEWS, "Intrinsic", make, (0,), rates=lengths)]


def adapter_subspaces() -> list[Federated]:
    """Of SmolLM2's adapters; where every persona is a client, with the length of a step that 20 clients chose."""
    of = {group.name: make_intrinsic(group, 0.0098, group.rates[0]) for group in (CHAT, PERSONAS)}
    few = arm(CHAT, "Intrinsic", of[CHAT.name], (0,), rates=LENGTHS["adapters"])
    return [few, arm(PERSONAS, "Intrinsic", of[PERSONAS.name], (0,), follows=few)]


def make_intrinsic(group: Group, share: float, local: float) -> Make:
    """Adapters in a subspace of a share of their numbers; ``local`` is the clients' rate."""
    size = ADAPTERS[group.model]
    return partial(intrinsic, local=local, dim=round(share * size), size=size)


def subspace(row: str, dim: int, follows: Federated | None = None, **fields: Any) -> Federated:
    """All of MiniLM, in a subspace."""
    make = partial(intrinsic, local=1e-4, dim=dim, size=WHOLE, **fields)
    lengths = LENGTHS["whole"]
    return arm(ALIKE, f"Intrinsic, {row}", make, (0,), 2.0, whole=True, rates=lengths, follows=follows)


def subspaces() -> list[Federated]:
    """By dimension; time-varying and several ones have the length of a step that was chosen for the static one."""
    found = []
    for dim in DIMS:
        eight = round(dim * 2 / 9)  # one up and eight down are as many numbers
        found.append(static := subspace(f"d = {dim:,}", dim))
        found.append(subspace(f"d = {dim:,}, time-varying", dim, static, varying=True, epoch=10))
        found.append(subspace(f"K = 8, for the bytes of d = {dim:,}", eight, static, subspaces=8))
    return found


def arms() -> list[Arm]:
    """What says most comes first."""
    found = [one for group in GROUPS for one in pair(group, (0,))]
    found += [one for group in (NEWS, REVIEWS) for one in pair(group, (1, 2))]
    found += [thinner(group, (0,)) for group in GROUPS]
    found += rivals()
    news: dict[str, Any] = {"known": False, "whole": True, "rates": (5e-5,), "effort": 1.5}
    found.append(arm(NEWS, "FedAvg, all of MiniLM", fedavg, (0,), **news))
    found.append(arm(NEWS, "LUAR, 30 of 40 kernels", partial(luar, recycle=30), (0,), **news))
    found.append(arm(REVIEWS, "FedAvg, rate 0.001", fedavg, (0,), known=False, rates=(0.001,)))
    found.append(arm(ALIKE, "FedAvg, all of MiniLM", fedavg, (0,), 2.0, known=False, whole=True, rates=(1e-4,)))
    found += subspaces()
    found += pair(PERSONAS, (0,))
    found += adapter_subspaces()
    found += [thinner(group, (1, 2)) for group in (NEWS, REVIEWS)]
    found += pair(LONG, (0,))
    return list(found)


if __name__ == "__main__":
    units.main(arms(), INTO, __doc__ or "")
