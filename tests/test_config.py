"""Configurations: what their fields take, as someone sees it whose annotations are not checked."""

from __future__ import annotations

import pytest

import thinwire as tw
from processes import program


@pytest.mark.parametrize(
    "make", [lambda: tw.SGD(float("inf")), lambda: tw.Network(float("inf")), lambda: tw.Cosine(1.0, 10, -1.0)]
)
def test_rates_are_finite_and_not_negative(make) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


def test_a_field_of_a_class_that_is_no_dataclass_is_an_error() -> None:
    class Clipped(tw.FedAvg):
        most: float = 1.0

    with pytest.raises(
        TypeError, match=r"^Clipped: write @dataclass\(frozen=True\) before the class, or most is no field"
    ):
        Clipped()

    class Double(tw.Link):
        def send(self, x, tx, key):
            return x.flat * 2, x * 2, tx

        def recv(self, packet, layout, rx, key):
            return tw.Params(layout, packet), rx

    with pytest.raises(TypeError, match=r"^Double: write @dataclass\(frozen=True\) before the class$"):
        repr(Double())


WRONG = {
    "LUAR(FedAvg(), 1, layers='kernel')": "LUAR(layers='kernel'): one of 'kernels', 'tensors', 'modules' is expected",
    "LUAR(FedAvg(), 1, select='best')": (
        "LUAR(select='best'): one of 'metric', 'uniform', 'round-robin', 'gradient-norm' is expected"
    ),
    "LUAR(TopK(), 1)": "LUAR(inner=TopK(0.01)): Algorithm such as FedAvg() is expected",
    "LUAR(FedAvg, 1)": ("LUAR(inner=FedAvg): FedAvg is a class, not FedAvg(); Algorithm such as FedAvg() is expected"),
    "FedAvg(weights='example')": "FedAvg(weights='example'): one of 'examples', 'uniform', 'steps' is expected",
    "FedAvg(buffers='average')": "FedAvg(buffers='average'): one of 'mean', 'local' is expected",
    "FedAvg(down='auto')": "dict[str, Link] is expected; PerClient(TopK(0.1), auto=True) chooses between one stream",
    "FedAvg(up='TopK(0.1)')": "FedAvg(up='TopK(0.1)'): Link such as TopK(0.01) or dict[str, Link] is expected",
    "FedAvg(opt='adam')": "FedAvg(opt='adam'): Optimizer such as Adam(0.03) is expected",
    "FedAvg(0.1)": "FedAvg(local=0.1): Trainer such as LocalSGD(0.1) is expected",
    "LUAR(FedAvg(), recycle=1.0)": "LUAR(recycle=1.0): int is expected",
    "LocalSGD(batch=2.5)": "LocalSGD(batch=2.5): int or None is expected",
    "FLSS(FedAvg(), rank=2, start=3, every=2.5)": "FLSS(every=2.5): int or None is expected",
    "FLSS(FedAvg(), rank='a', start=3)": "FLSS(rank='a'): int is expected",
    "FLSS(FedAvg(), rank=2.5, start=3)": "FLSS(rank=2.5): int is expected",
    "Intrinsic(8.5)": "Intrinsic(dim=8.5): int is expected",
    "Intrinsic(8, varying=True, epoch=2.5)": "Intrinsic(epoch=2.5): int is expected",
    "Intrinsic(8, basis=3)": "Intrinsic(basis=3): Basis such as Fastfood() is expected",
    "Projection(8, basis='x')": "Projection(basis='x'): Basis such as Fastfood() is expected",
    "Projection(8.5)": "Projection(dim=8.5): int is expected",
    "QSGD(1.5)": "QSGD(levels=1.5): int is expected",
    "QSGD(16, bucket=1.5)": "QSGD(bucket=1.5): int or None is expected",
    "LowRank(2.0)": "LowRank(rank=2.0): int is expected",
    "CountSketch(1.5, 3)": "CountSketch(rows=1.5): int is expected",
    "TopK('a')": "TopK(share='a'): float is expected",
    "FedAvg(up=TopK)": "FedAvg(up=TopK): TopK is a class, not TopK(); Link such as TopK(0.01)",
    "TopK(True)": "TopK(share=True): float is expected",
    "RandK(0.1, unbiased=1)": "RandK(unbiased=1): bool is expected",
    "Budget(200.5)": "Budget(bytes=200.5): int is expected",
    "ATOMO(1.5)": "ATOMO(rank=1.5): int is expected",
    "PowerSGD('2')": "PowerSGD(rank='2'): int is expected",
    "FetchSGD(10.5, 5)": "FetchSGD(cols=10.5): int is expected",
    "ClusteredLBGM(None)": "ClusteredLBGM(clusters=None): int is expected",
    "Momentum(beta='0.9')": "Momentum(beta='0.9'): float is expected",
    "Decay(0.1, rounds=[100])": "Decay(rounds=[100]): tuple[int, ...] is expected",
    "MOON(layer=3)": "MOON(layer=3): str or None is expected",
    "Network('fast')": "Network(mbit='fast'): float or tuple[float, ...] is expected",
    "sets.Dirichlet('0.1')": "Dirichlet(alpha='0.1'): float is expected",
    "ddp.DEF(lam='x')": "DEF(lam='x'): float or None is expected",
    "simulate('FedAvg()', 3, data, 1)": "'FedAvg()' is text: give the method itself, without quotation marks",
    "simulate(PerClient(TopK(0.1)), 3, data, 1)": "such as FedAvg(down=PerClient())",
    "simulate(TopK(0.1), 3, data, 1)": "TopK(0.1) is a link: give a method that holds it, such as FedAvg(up=TopK(0.1))",
    "problem.standard('digits', split='iid')": "split='iid': give an object such as IID() or Dirichlet(0.3)",
    "problem.standard('digits', split=sets.IID)": "IID'>: give an object such as IID() or Dirichlet(0.3)",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), [1], 1)": "int is not a task",
    "simulate(FedAvg(), 3, data, 1)": "3 is neither a module nor makes one",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, sample=2.0)": "Setting(sample=2.0): int or None is expected",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, seed='a')": "Setting(seed='a'): int is expected",
    "simulate(FedAvg(), torch.nn.Linear(6, 3), data, 1, seed=2**63)": "it must not be negative, and fit 63 bits",
}


def test_a_wrong_kind_of_argument_is_one_clear_line_for_users_of_the_library() -> None:
    lines = [
        "from thinwire import *",
        "import torch",
        "from thinwire import data as sets, ddp, problem",
        "data = [(torch.zeros(4, 6), torch.zeros(4).long())] * 2",
    ]
    for text in WRONG:
        lines += ["try:", f"    {text}", "    print('accepted')", "except ValueError as e:", "    print(e)"]
    done = program("\n".join(lines))
    assert done.returncode == 0, done.stderr
    for said, (text, expected) in zip(done.stdout.splitlines(), WRONG.items(), strict=True):
        assert expected in said, text
