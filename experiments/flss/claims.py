"""FLSS in the paper's own proportions: 400 rounds, L = 200, R = 50, s = 5, lambda = 1, a plain mean, three seeds.

20 clients, all of them in every round. A part of each client's examples is for the test, and the tests of all clients
together are what is evaluated, as in the paper. What is scaled down is the data: 1,500 pictures of Fashion-MNIST or
6,000 texts to train on and one local epoch of batches of 16, where the paper has 52,500 or 95,700 and five epochs of
batches of 128. A client makes about five steps a round with pictures, and a hundred in the paper. The test has 3,500
pictures or 2,000 texts: more than the paper's quarter of the pictures, so that a point is more than chance. The model
of pictures computes in bfloat16 where a setting says so. Its parameters and updates have 32 bits.

- ``AG News``: fastText by clients of Dirichlet(1), as the paper has it, its largest gain, and what it is compared with.
  Rates are tried for all of the rounds there. FedDC and FedDyn have an alpha of .05. A round moves them by a gradient
  over alpha at most: at the paper's .5 no rate takes them further than its own does, .01 times 187 steps
- ``Dirichlet(.1)`` and ``pathological``: FedAvg and FLSS over it, and both with signs, on pictures
- ``ablations``: lambda, L, R and a fixed subspace, on AG News. All have 400 rounds, where the paper's figure of L has L
  + 100
- ``ablations, pictures``: the same on Dirichlet(.1), where the basis of R directions does not hold the whole update.
  These and ``scale`` compute in 32 bits, so FLSS and FedAvg are trained again beside them
- ``scale, rate .01``: the paper's table 5. FLSS with the rate of rounds within the subspace 3 or 10 times as large, and
  FedAvg with its rate raised so in round L, on Dirichlet(.1), all at the paper's rate
- ``scale``: the same with seed 0 at the rate that FedAvg has there, ten times as large. All four diverge in round L
- ``E = 1``: one local epoch of all the texts, beside ``E = 5``
- ``N`` and ``M``: clients, and clients a round, on AG News too
- ``E``: five local epochs, as the paper has them, on AG News too. All the texts that there are, 16,600 to train on, in
  batches of 22: a client makes the paper's 187 steps a round
- ``rate .01``: the same at the paper's rate, and FedDC at its alpha

Each row has a learning rate of its own, where the paper has .01 for all, but the ablations, which have that of FLSS on
AG News. AG News and Dirichlet(.1), which come first, try the main claim, that FLSS is ahead of FedAvg for fewer bytes.

    python experiments/flss/claims.py --list
    python experiments/flss/claims.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
import units
from arms import Arm, Federated, patient

import thinwire as tw
from thinwire import data as sets
from thinwire import models
from thinwire.problem import Problem

ROUNDS, CLIENTS = 400, 20
SPLITS: dict[str, sets.Split] = {
    "Dirichlet(0.1)": sets.Dirichlet(0.1, min_examples=4),
    "Dirichlet(1.0)": sets.Dirichlet(1.0, min_examples=4),
    "Pathological(2)": sets.Pathological(2),
}
WORDS = 320_100  # parameters of fastText for AG News
Make = Callable[[float, int], tw.Algorithm]


@cache
def problem(data: str, model: str, examples: int, tested: float, split: str, clients: int, seed: int) -> Problem:
    """Training and test set merged, a part of them dealt to clients, a share of each kept for the test."""
    loaded = sets.load(data)
    inputs, targets = torch.cat([loaded.inputs, loaded.test_inputs]), torch.cat([loaded.targets, loaded.test_targets])
    part = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))[:examples]
    small = replace(loaded, inputs=inputs[part], targets=targets[part])
    dealt = patient(SPLITS[split])(small.targets, None, clients, seed)
    cut = [sets.holdout(indices, tested, seed + k) for k, indices in enumerate(dealt)]

    def task(indices: torch.Tensor) -> tw.Supervised:
        return tw.Supervised(small.inputs, small.targets, indices, mean=loaded.mean, std=loaded.std)

    shape = tuple(loaded.inputs.shape[1:])
    return Problem(
        lambda: models.build(model, shape, loaded.num_classes, vocabulary=loaded.vocabulary),
        [task(train) for train, _ in cut],
        task(torch.cat([test for _, test in cut])),
    )


def fedavg(rate: float, rounds: int, epochs: float = 1.0, batch: int = 16, **fields: Any) -> tw.Algorithm:
    return tw.FedAvg(tw.LocalSGD(rate, epochs=epochs, batch=batch), weights="uniform", **fields)


def flss(rate: float, rounds: int, inner: Make = fedavg, **fields: Any) -> tw.Algorithm:
    """L is half of the rounds and R an eighth, as in the paper; R is L at most."""
    given = {"rank": max(1, rounds // 8), "start": max(1, rounds // 2)} | fields
    return tw.FLSS(inner(rate, rounds), **{**given, "rank": min(given["rank"], given["start"])})


def raised(rate: float, rounds: int, times: float) -> tw.Algorithm:
    """The rate is larger from round L on."""
    return fedavg(tw.Decay(rate, rounds=(rounds // 2,), factor=times), rounds)  # type: ignore[arg-type]


signs = partial(fedavg, up=tw.ErrorFeedback(tw.ScaledSign()))


def arm(name: str, row: str, method: Make, split: str = "Dirichlet(0.1)", **fields: Any) -> Federated:
    clients, examples, batch = fields.pop("clients", CLIENTS), fields.pop("examples", 5000), fields.pop("batch", 16)
    data, model, tested = (
        fields.pop("data", "fashion_mnist"),
        fields.pop("model", "fedavg_cnn"),
        fields.pop("test", 0.7),
    )
    narrow = fields.pop("narrow", model != "fasttext")
    about = {"data": data, "model": model, "clients": clients, "examples": examples, "tested": tested, "split": split}
    given: dict[str, Any] = {
        "setting": {"name": name, **about, "batch": batch, **({"precision": "bfloat16"} if narrow else {})},
        "narrow": narrow,
        "row": row,
        "method": method,
        "problem": partial(problem, data, model, examples, tested, split, clients),
        "rounds": ROUNDS,
        "evaluate_every": 10,
        "minutes": 8.0,
        "tuning": 0.3,
    }
    return Federated(**(given | fields))


def news(row: str, method: Make, name: str = "AG News", **fields: Any) -> Federated:
    given = {"data": "ag_news", "model": "fasttext", "examples": 8000, "test": 0.25, "split": "Dirichlet(1.0)"}
    return arm(name, row, method, **{**given, "minutes": 0.6, "tuning": 1.0, **fields})


def moon(rate: float, rounds: int) -> tw.Algorithm:
    return tw.MOON(tw.LocalSGD(rate, batch=16), mu=0.01, temperature=1.0, weights="uniform")


def drifting(rate: float, rounds: int, alpha: float = 0.05, epochs: float = 1.0, batch: int = 16) -> tw.Algorithm:
    return tw.FedDC(tw.LocalSGD(rate, epochs=epochs, batch=batch), alpha=alpha, weights="uniform")


def dynamic(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedDyn(tw.LocalSGD(rate, batch=16), alpha=0.05)


def distilled(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedNTD(tw.LocalSGD(rate, batch=16), beta=0.001, temperature=1.0, weights="uniform")


def generated(rate: float, rounds: int) -> tw.Algorithm:
    """50 steps of the generator a round, where the paper makes 1,000."""
    return tw.FedGen(tw.LocalSGD(rate, batch=16), weights="uniform")


def prox(rate: float, rounds: int) -> tw.Algorithm:
    return tw.FedProx(tw.LocalSGD(rate, batch=16), mu=0.01, weights="uniform")


def controlled(rate: float, rounds: int) -> tw.Algorithm:
    return tw.SCAFFOLD(tw.LocalSGD(rate, batch=16), weights="uniform")


def sketched(rate: float, rounds: int) -> tw.Algorithm:
    """A quarter of the model's floats up, as in the paper."""
    cols = WORDS // 20
    return tw.FetchSGD(cols, k=cols // 10, local=tw.LocalSGD(rate, batch=16), weights="uniform")


THIN = tw.STC(1 / 32)  # the paper says no more of it than this share
COMPARED: dict[str, tuple[Make, Any]] = {
    "FedProx, mu .01": (prox, 75.33),
    "MOON, mu .01": (moon, 75.54),
    "FedDC, alpha .05": (drifting, None),
    "SCAFFOLD": (controlled, None),
    "FedDyn, alpha .05": (dynamic, None),
    "FedNTD, beta .001": (distilled, 75.11),
    "FedGen": (generated, 75.98),
    "LBGM, delta .05": (partial(fedavg, up=tw.LBGM(threshold=0.05)), None),
    "STC, 1/32, both ways": (partial(fedavg, up=tw.ErrorFeedback(THIN), down=tw.EF21(THIN)), None),
}


def arms() -> list[Arm]:
    one: dict[str, Any] = {"seeds": (0,)}
    words, pictures = {"rates": [1.0, 3.0, 10.0]}, {"rates": [0.02, 0.05, 0.1]}
    dense = news("FedAvg", fedavg, paper=75.13, **words)
    streaming = news("FedAvg+FLSS", flss, paper=81.35, **words)
    both = {"FedAvg": fedavg, "FedAvg+FLSS": flss}
    dense2 = arm("Dirichlet(.1)", "FedAvg", fedavg, paper=85.06, **pictures)
    streaming2 = arm("Dirichlet(.1)", "FedAvg+FLSS", flss, paper=86.25, **pictures)
    signed = arm("Dirichlet(.1)", "Sign+EF", signs, paper=80.79, **pictures, **one)
    shown = partial(arm, "ablations, pictures", follows=streaming2, narrow=False, minutes=3.0)
    scaled = partial(arm, "scale, rate .01", rates=[0.01], narrow=False, minutes=4.0)
    diverging = partial(arm, "scale", follows=dense2, narrow=False, minutes=3.0, seeds=(0,))
    once: dict[str, Any] = {"minutes": 0.3, "examples": 22_104, "batch": 22}
    ablation = partial(news, name="ablations", follows=streaming, **one)
    few: dict[str, Any] = {"sample": 10, "minutes": 0.3, **one}
    many: dict[str, Any] = {"clients": 50, **one}
    long: dict[str, Any] = {"minutes": 1.0, "examples": 22_104, "batch": 22, **one}
    five = partial(fedavg, epochs=5.0, batch=22)
    streamed = partial(flss, inner=five)
    two = "pathological", "Pathological(2)"
    at_scale = {f"FedAvg, {times} times": partial(raised, times=float(times)) for times in (3, 10)}
    at_scale |= {f"FedAvg+FLSS, scale {times}": partial(flss, scale=float(times)) for times in (3, 10)}
    return [
        dense,
        streaming,
        dense2,
        streaming2,
        arm(two[0], "FedAvg", fedavg, two[1], paper=79.02, **pictures, **one),
        arm(two[0], "FedAvg+FLSS", flss, two[1], paper=81.09, **pictures, **one),
        signed,
        arm("Dirichlet(.1)", "Sign+EF+FLSS", partial(flss, inner=signs), paper=81.32, **pictures, **one),
        *(news(row, method, paper=paper, **words, **one) for row, (method, paper) in COMPARED.items()),
        news("FetchSGD, a quarter of the floats up", sketched, rates=[0.1, 0.3, 1.0], **one),
        news("Sign+EF", signs, **words, **one),
        news("Sign+EF+FLSS", partial(flss, inner=signs), **words, **one),
        ablation("fixed subspace", partial(flss, every=None)),
        ablation("lambda .7", partial(flss, decay=0.7)),
        ablation("lambda .5", partial(flss, decay=0.5)),
        ablation("L = 100", partial(flss, start=100)),
        ablation("L = R = 50", partial(flss, start=50)),
        ablation("R = 12", partial(flss, rank=12)),
        shown("FedAvg+FLSS", flss),
        shown("fixed subspace", partial(flss, every=None)),
        shown("lambda .7", partial(flss, decay=0.7)),
        shown("lambda .5", partial(flss, decay=0.5)),
        shown("L = 100", partial(flss, start=100)),
        shown("R = 12", partial(flss, rank=12)),
        *(one(row, make) for one in (scaled, diverging) for row, make in (both | at_scale).items()),
        news("FedAvg", partial(fedavg, batch=22), "E = 1", **words, **once),
        news("FedAvg+FLSS", partial(flss, inner=partial(fedavg, batch=22)), "E = 1", **words, **once),
        *(news(row, make, "N = 20, M = 10", **words, **few) for row, make in both.items()),
        *(news(row, make, "N = 50, M = 50", **words, **many) for row, make in both.items()),
        news("FedAvg", five, "E = 5", **words, **long),
        news("FedAvg+FLSS", streamed, "E = 5", **words, **long),
        news("FedAvg", five, "rate .01", paper=75.13, rates=[0.01], **long),
        news("FedAvg+FLSS", streamed, "rate .01", paper=81.35, rates=[0.01], **long),
        news(
            "FedDC, alpha .5",
            partial(drifting, alpha=0.5, epochs=5.0, batch=22),
            "rate .01",
            paper=79.53,
            rates=[0.01],
            **long | {"minutes": 5.0},
        ),
    ]


if __name__ == "__main__":
    once = [arm for arm in arms() if arm.setting["name"] == "scale"]
    others = [arm for arm in arms() if arm.setting["name"] != "scale"]
    units.main([*units.thrice(others), *once], Path(__file__).parent / "results" / "claims.jsonl", str(__doc__))
