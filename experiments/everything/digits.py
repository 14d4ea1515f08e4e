"""Every method and every link, one short run each: whether it learns, and what it sends both ways.

The digits that come with scikit-learn, 20 clients with labels dealt by Dirichlet(0.5), 10 of them a round, a network
of 4,810 parameters. No method is tuned, except that FedPM, whose scores move little, has a rate of 1,000: this shows
that each of them trains on real data, not which is best. Methods that give each client a model of its own are tested
on a quarter of each client's examples, which are kept for that; their lines, and FedAvg's beside them, are in a file
of their own.

    python experiments/everything/digits.py [--rounds 40] [--only FedGen] [--personal]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.data import Dirichlet
from thinwire.federated.result import CLIENTS
from thinwire.problem import standard

METHODS = """
    FedAvg()
    FedAvg(opt=Momentum(0.5))
    FedAvg(opt=Adam(0.03))
    FedAvg(opt=Yogi(0.03))
    FedAvg(opt=Adagrad(0.03))
    FedProx(mu=0.01)
    SCAFFOLD()
    SCAFFOLD(option='I')
    FedDyn(alpha=0.1)
    FedDC(alpha=0.1)
    MOON(mu=0.5)
    FedNTD(beta=0.5)
    FedGen()
    FedMut(alpha=0.5)
    FedACG(momentum=0.5)
    FedAvgSM(opt=Momentum(0.5, beta=0.5))
    FedAvgLM(LocalSGD(0.05, momentum=0.6))
    FedAvgLMZ(LocalSGD(0.05, momentum=0.6))
    FedAvgSLM(LocalSGD(0.05, momentum=0.6), opt=Momentum(0.5, beta=0.5))
    FedAvgSLMZ(LocalSGD(0.05, momentum=0.6), opt=Momentum(0.5, beta=0.5))
    DOMO(0.9, LocalSGD(0.05, momentum=0.6), opt=Momentum(0.5, beta=0.5))
    DOMO(0.9, LocalSGD(0.05, momentum=0.6), opt=Momentum(0.5, beta=0.5), intra=True)
    DOMO(0.9, LocalSGD(0.05, momentum=0.6), opt=Momentum(0.5, beta=0.5), momentum='sent')
    FedPara(FedAvg(LocalSGD(0.1, momentum=0.8)), ratio=0.8)
    PruneFL(FedAvg(), every=10)
    LUAR(FedAvg(), recycle=1)
    LUAR(FedAvg(), recycle=1, drop=True)
    LUAR(MOON(mu=0.5), recycle=1)
    FLSS(FedAvg(), rank=5, start=10, every=5)
    FLSS(FedAvg(), rank=5, start=10, every=5, project='gradient')
    Intrinsic(500)
    Intrinsic(500, subspaces=4)
    Intrinsic(500, varying=True, epoch=10)
    Intrinsic(500, basis=PerTensor())
    FetchSGD(500, 200, momentum=0.5, lr=0.5)
    ClusteredLBGM(4, threshold=0.4)
    FedAvg(opt=MajorityVote(0.005), up=SignSGD(), weights='uniform')
    FedAvg(up=ErrorFeedback(STC(0.05)), down=EF21(STC(0.1)))
    FedAvg(down=EF21(TopK(0.1)))
    Averaged(FedAvg())
    Detached(FedAvg(up=ErrorFeedback(TopK(0.05))))
    FedPM(LocalSGD(1000.0))
    DeComFL()
    FedAvg(down=PerClient(TopK(0.1)))
    FedAvg(weights='uniform')
    FedAvg(up=SecureSum(clip=0.5), weights='uniform')
    FedAvg(up=SecureSum(RandK(0.3), clip=0.5), weights='uniform')
"""
PERSONAL = """
    FedAvg()
    FT(FedAvg(), epochs=3.0)
    FedPer()
    FedRep(head_epochs=2)
    Ditto(lam=0.1)
    APFL(alpha=0.5)
    APFL(adaptive=True)
    PerFedAvg(alpha=0.1)
    PerFedAvg(alpha=0.1, hessian='HF')
    pFedMe(lam=5.0, eta=0.1)
    LUAR(Ditto(lam=0.1), recycle=1)
    FedPer(up=ErrorFeedback(TopK(0.1)))
"""
LINKS = """
    Half() BF16() Sparse() TopK(0.1) TopK(0.1,sampled=True) RandK(0.3) RandomBlock(4.0) ScaledSign() QSGD(16) Ternary()
    Int8() DropoutAvg(0.5) ATOMO(4) Projection(500) CountSketch(3,400) PowerSGD(4) LBGM(threshold=0.4)
    LBGM(TopK(0.1),threshold=0.4,compare='dense') LBGM(TopK(0.1),threshold=0.4,store='packet') Layerwise(LBGM())
    ErrorFeedback(TopK(0.05)) ErrorFeedback(ScaledSign()) ErrorFeedback(LowRank(2)) EF21(TopK(0.1)) Flat(TopK(0.1))
    Entropy(QSGD(16)) Partition({'<100':Dense(),'*':Ternary()}) Budget(2000)
    Bins(4) ErrorFeedback(ChunkTopK(64)) ErrorFeedback(DCT(ChunkTopK(64))) ErrorFeedback(TransformCoding(1500))
    ErrorFeedback(Switch(TopK(0.05),then=TopK(0.1),rounds=20)) ByBandwidth({'1':Half(),'0':BF16()})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", action="append", help="expressions with this in them")
    parser.add_argument("--personal", action="store_true", help="only methods with models of clients' own")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results", help="folder of the results")
    o = parser.parse_args()
    problem = standard("digits", clients=20, split=Dirichlet(0.5))
    into = o.into / "digits.jsonl"
    expressions = [line.strip() for line in METHODS.strip().splitlines()]
    expressions += [f"FedAvg(up={link})" for link in LINKS.split()]
    for expression in () if o.personal else expressions:
        if o.only is None or any(word in expression for word in o.only):
            row = {"experiment": "everything", "data": "digits", "row": expression}
            method = tw.parse(expression, {"lr": 0.1})
            record.run(method, problem, o.rounds, into, row, sample=10, evaluate_every=o.rounds)
    kept = standard("digits", clients=20, split=Dirichlet(0.5), holdout=0.25)
    for expression in (line.strip() for line in PERSONAL.strip().splitlines()):
        if o.only is None or any(word in expression for word in o.only):
            row = {"experiment": "everything", "data": "digits", "row": expression, "holdout": 0.25}
            options = {"sample": 10, "evaluate_every": o.rounds, "client_tests": kept.client_tests}
            into, method = o.into / "personal.jsonl", tw.parse(expression, {"lr": 0.1})
            record.run(method, kept, o.rounds, into, row, own_tests, **options)


def own_tests(result: tw.Result) -> record.Line:
    """What clients reach on their own tests, each with its own model."""
    last = result.rounds[-1]
    return {name: last[name] for name in CLIENTS if name in last}


if __name__ == "__main__":
    main()
