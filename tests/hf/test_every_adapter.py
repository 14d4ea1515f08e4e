"""Every federated method on adapters: it trains and sends them and nothing else, or says in one sentence why not."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import pytest

import thinwire as tw
from tables import METHODS
from thinwire.problem import Problem
from tiers import tiers
from tiny import Letters, bert, llama, lora

pytest.importorskip("transformers")
pytest.importorskip("peft")

ROWS = {row.name: row.trained[0] for row in METHODS} | {
    "DeComFL": "DeComFL(1, directions=2)",
    "Intrinsic": "Intrinsic(20)",  # of 179 and 128 parameters
}
ONE_TENSOR = "a selector looks at examples in one tensor, not in a dict: give FedSM's model one input"
SEVERAL = "predicts by several models for examples in one tensor, and this task gives its model input_ids,"
REFUSED = {
    ("FedNTD", "llama"): "FedNTD needs batches of (inputs, targets) with whole numbers (int64) as targets",
    ("FedGen", "llama"): "FedGen(head=None): the head is a linear layer that is trained, this is Linear",  # frozen
    ("FedPara", "bert"): "FedPara(ratio=1.0): no layer of the model would get smaller; use a plain method",
    ("FedPara", "llama"): "FedPara(ratio=1.0): no layer of the model would get smaller; use a plain method",
    ("FedBN", "bert"): "FedBN(stay=('2.*',)): norm layers of this model have other names",
    **{("FedSM", kind): ONE_TENSOR for kind in ("bert", "llama")},
    **{(name, kind): f"{name} {SEVERAL}" for name in ("FedSMExtra", "Ensemble") for kind in ("bert", "llama")},
}
WORDS = ["abc", "de", "fgh", "ij", "klm", "nop", "qr", "st"]
TEXTS = [word * (1 + number % 4) for number, word in enumerate(WORDS * 3)]


@functools.cache
def problem(kind: str) -> Problem:
    if kind == "llama":
        return tw.hf.problem(
            lora(llama()), TEXTS, clients=3, task="causal-lm", tokenizer=Letters(), test=TEXTS[:9], holdout=0.3
        )
    data: Any = (TEXTS, [len(text) % 3 for text in TEXTS])
    return tw.hf.problem(
        lora(bert()), data, clients=3, task="classification", tokenizer=Letters(), test=data, holdout=0.3
    )


@pytest.mark.parametrize("kind", tiers(["bert", "llama"], fast=1))
@pytest.mark.parametrize("name", ROWS)
def test_a_method_trains_adapters_alone_or_says_why_not(name: str, kind: str) -> None:
    method, given = tw.parse(ROWS[name], {"lr": 0.05, "batch": 4, "epochs": 1}), problem(kind)
    tests = given.client_tests if method.personal_models else None
    about: dict[str, Any] = {"rounds": 2, "sample": 2, "test": given.test, "client_tests": tests, "workers": 1}
    if (name, kind) in REFUSED:
        with pytest.raises(ValueError, match=re.escape(REFUSED[name, kind])):
            tw.simulate(method, given.model, given.tasks, **about)
        return
    result = tw.simulate(method, given.model, given.tasks, **about)
    assert 0 < result.rounds[-1]["test_loss"] < math.log(40)
    before, after = given.model.state_dict(), result.module.state_dict()
    moved = {layer for layer, value in after.items() if not value.equal(before[layer])}
    assert moved
    assert all("lora_" in layer or "modules_to_save" in layer for layer in moved)
    most = 4 * sum(p.numel() for p in given.model.parameters() if p.requires_grad)
    assert result.bytes_up <= 2 * 2 * (3 * most + 4_000)  # no base, of 2,000 parameters and more, is among it
