"""Golden runs: a few rounds of loss and bytes of each method, as text.

``pytest --golden-rewrite`` writes them anew; the commit that does so says why they moved.

They hold on every processor, with any number of threads. The last bits of a training are not the same
everywhere: how a sum is split over lanes and threads is the library's choice. So losses are compared to four
digits, which rounding alone does not reach in four rounds of a model this small, and bytes exactly: what decides
what is sent (thresholds, ties, draws) must not hang on the last bits. ``make golden`` runs them as other processors
would: with each instruction set of torch, one and two threads, and MKL's products of no instruction set in particular.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.data.digits import digits

FOLDER = Path(__file__).parent / "golden"
SIZES = (40, 60, 80, 100, 120)

GOLDEN = {
    "fedavg": "FedAvg(LocalSGD(lr=0.2, batch=16))",
    "fedprox_momentum": "FedAvg(LocalSGD(lr=0.1, batch=16, prox=0.1), opt=Momentum(0.7), weights='uniform')",
    "fedadam_halves": "FedAvg(LocalSGD(lr=0.2, batch=16), opt=Adam(0.03), up=BF16(), down=Half())",
    "topk_feedback": "FedAvg(LocalSGD(lr=0.2, batch=16), up=ErrorFeedback(TopK(0.05)), down=EF21(TopK(0.2)))",
    "sign_feedback": "FedAvg(LocalSGD(lr=0.2, batch=16), up=ErrorFeedback(ScaledSign()))",
    "lbgm": "FedAvg(LocalSGD(lr=0.2, batch=16), up=LBGM(threshold=0.6))",
    "lbgm_by_layer": "FedAvg(LocalSGD(lr=0.2, batch=16), up=Layerwise(LBGM(TopK(0.3), threshold=0.6)))",
    "scaffold": "SCAFFOLD(LocalSGD(lr=0.2, batch=16), up={'control': Half()})",
    "luar": "LUAR(FedAvg(LocalSGD(lr=0.2, batch=16), opt=Yogi(0.03)), recycle=2, layers='tensors')",
    "luar_scaffold": "LUAR(SCAFFOLD(LocalSGD(lr=0.2, batch=16), up=RandK(0.3)), recycle=1, select='gradient-norm')",
    "flss": "FLSS(FedAvg(LocalSGD(lr=0.2, batch=16), up=ErrorFeedback(ScaledSign())), rank=1, start=1, every=2)",
    "intrinsic": "Intrinsic(200, subspaces=2, varying=True, epoch=2, local=LocalSGD(lr=0.1, batch=16))",
    "low_rank": "FedAvg(LocalSGD(lr=0.2, batch=16), up=ErrorFeedback(LowRank(2)))",
    "powersgd": "FedAvg(LocalSGD(lr=0.2, batch=16), up=PowerSGD(2))",
    "fetchsgd": "FetchSGD(200, 60, momentum=0.5, local=LocalSGD(lr=0.2, batch=16))",
    "projection": "FedAvg(LocalSGD(lr=0.2, batch=16), up=Projection(200))",
    "fedpaq": "FedAvg(LocalSGD(lr=0.2, batch=16), up=QSGD(16))",
    "stc": "FedAvg(LocalSGD(lr=0.2, batch=16), up=ErrorFeedback(STC(0.05)), down=EF21(STC(0.1)))",
    "majority_vote": "FedAvg(LocalSGD(lr=0.2, batch=16), opt=MajorityVote(0.02), up=SignSGD(), weights='uniform')",
    "fed_dropout_avg": "FedAvg(LocalSGD(lr=0.2, batch=16), up=DropoutAvg(0.3))",
    "scaffold_gradient": "SCAFFOLD(LocalSGD(lr=0.2, batch=16), option='I')",
    "feddyn": "FedDyn(LocalSGD(lr=0.2, batch=16), alpha=0.2)",
    "feddc": "FedDC(LocalSGD(lr=0.2, batch=16), alpha=0.2, down={'g': Half()})",
    "moon": "MOON(LocalSGD(lr=0.2, batch=16), mu=0.5, up=ErrorFeedback(TopK(0.1)))",
    "fedntd": "FedNTD(LocalSGD(lr=0.2, batch=16), beta=0.5, temperature=2.0)",
    "fedgen": "FedGen(LocalSGD(lr=0.2, batch=16), hidden=8, noise=4, steps=10)",
    "fedmut": "FedMut(LocalSGD(lr=0.2, batch=16), alpha=1.0)",
    "luar_fedacg": "LUAR(FedACG(LocalSGD(lr=0.2, batch=16), momentum=0.7), recycle=1)",
    "local_momentum": "FedAvgSLM(LocalSGD(lr=0.1, batch=16, momentum=0.6), up={'momentum': Half()})",
    "domo": "DOMO(0.9, LocalSGD(lr=0.1, batch=16, momentum=0.6), opt=Momentum(0.7, beta=0.5))",
    "luar_domo_s": "LUAR(DOMO(0.9, LocalSGD(lr=0.1, batch=16, momentum=0.6), intra=True), recycle=1)",
    "fedpara": "FedPara(FedAvg(LocalSGD(lr=0.2, batch=16, momentum=0.6)), rank=4)",
    "prunefl": "PruneFL(FedAvg(LocalSGD(lr=0.2, batch=16)), every=2, share=0.5)",
}


@functools.cache
def problem() -> tuple[list[tw.Supervised], tw.Supervised]:
    data = digits()
    parts = torch.randperm(len(data.targets), generator=torch.Generator().manual_seed(2))[: sum(SIZES)].split(SIZES)
    return [tw.Supervised(data.inputs, data.targets, part) for part in parts], tw.Supervised(
        data.test_inputs, data.test_targets
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def recorded(expression: str) -> str:
    """The run as text: losses to four digits, bytes to the last."""
    tasks, test = problem()
    result = tw.simulate(
        tw.parse(expression), mlp, tasks, 4, sample=3, test=test, seed=1, dropout=0.25, workers=1, plan="each"
    )
    lines = [expression, "round  train_loss  test_loss  up_payload  up_framing  down_payload  down_framing"]
    lines += [
        f"{r['round']:5}  {r['train_loss']:10.4g}  {r['test_loss']:9.4g}  {r['up_payload']:10}  {r['up_framing']:10}  "
        f"{r['down_payload']:12}  {r['down_framing']:12}"
        for r in result.rounds
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_recorded_run_has_not_moved(name: str, golden_rewrite: bool) -> None:
    found, path = recorded(GOLDEN[name]), FOLDER / f"{name}.txt"
    if golden_rewrite:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(found)
    assert path.exists(), f"no {path}: write it with pytest --golden-rewrite"
    assert found == path.read_text(), f"{name} moved; if it was meant to, pytest --golden-rewrite and say why"


def test_every_recorded_run_is_compared() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(GOLDEN)
