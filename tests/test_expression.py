"""Typed methods: what they become, how they are written back, and that nothing is ever evaluated."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import pickle
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thinwire as tw
from thinwire.config import Config
from thinwire.errors import CombinationError, ExpressionError, ThinwireError
from thinwire.expression import parse, vocabulary

OBJECTS: dict[str, Any] = {
    "FedAvg()": tw.FedAvg(),
    "TopK(0.1)": tw.TopK(0.1),
    "TopK(0.1, values=Half())": tw.TopK(0.1, values=tw.Half()),
    "TopK(0.01, values=Half())": tw.TopK(values=tw.Half()),
    "RandK(0.25, unbiased=True)": tw.RandK(0.25, unbiased=True),
    "RandK(0.01, unbiased=True)": tw.RandK(unbiased=True),
    "LBGM(ErrorFeedback(TopK(0.1)), threshold=0.4)": tw.LBGM(tw.ErrorFeedback(tw.TopK(0.1)), threshold=0.4),
    "LBGM(threshold=0.0)": tw.LBGM(threshold=0.0),
    "LBGM(Half(), threshold=0.2, compare='dense', store='packet')": tw.LBGM(tw.Half(), compare="dense", store="packet"),
    "Budget(2000)": tw.Budget(2000),
    "Budget(2000, ladder=(TopK(0.1), Half()))": tw.Budget(2000, ladder=(tw.TopK(0.1), tw.Half())),
    "ClusteredLBGM(8, local=LocalSGD(0.1))": tw.ClusteredLBGM(local=tw.LocalSGD(0.1)),
    "Layerwise(LBGM(threshold=0.2))": tw.Layerwise(tw.LBGM()),
    "TopK(0.01, sampled=True)": tw.TopK(sampled=True),
    "Entropy(QSGD(7, bucket=512, norm='max'))": tw.Entropy(tw.QSGD(7, 512, "max")),
    "RandomBlock(256.0, unbiased=True)": tw.RandomBlock(256, unbiased=True),
    "FedAvg(opt=MajorityVote(0.01), up=SignSGD())": tw.FedAvg(opt=tw.MajorityVote(0.01), up=tw.SignSGD()),
    "EF21(ScaledSign())": tw.EF21(tw.ScaledSign()),
    "Flat(TopK(0.1))": tw.Flat(tw.TopK(0.1)),
    "Partition({'*.bias': Dense(), '*': ErrorFeedback(TopK(0.1))})": tw.Partition(
        {"*.bias": tw.Dense(), "*": tw.ErrorFeedback(tw.TopK(0.1))}
    ),
    "LUAR(FedAvg(opt=Adam(0.1)), recycle=2)": tw.LUAR(tw.FedAvg(opt=tw.Adam(0.1)), recycle=2),
    "LUAR(SCAFFOLD(), recycle=0, select='uniform', drop=True)": tw.LUAR(tw.SCAFFOLD(), 0, select="uniform", drop=True),
    "FedAvg(LocalSGD(0.1, batch=None, steps=5), up=Sparse(), weights='uniform')": tw.FedAvg(
        tw.LocalSGD(0.1, batch=None, steps=5), up=tw.Sparse(), weights="uniform"
    ),
    "FedAvg(LocalSGD(Decay(0.2, rounds=(100, 150)), momentum=0.9))": tw.FedAvg(
        tw.LocalSGD(tw.Decay(0.2, rounds=(100, 150)), momentum=0.9)
    ),
    "FedAvg(LocalSGD(Decay(0.2, rounds=(100,))))": tw.FedAvg(tw.LocalSGD(tw.Decay(0.2, rounds=(100,)))),
    "FedAvg(up={'update': TopK(0.1)}, down=BF16())": tw.FedAvg(up={"update": tw.TopK(0.1)}, down=tw.BF16()),
    "FedAvg(down=EF21(TopK(0.05)))": tw.FedAvg(down=tw.EF21(tw.TopK(0.05))),
    "Adagrad(0.5, beta1=0.1, tau=1e-05)": tw.Adagrad(0.5, beta1=0.1, tau=1e-5),
    "Momentum(1.0, beta=0.0)": tw.Momentum(beta=0.0),
    "Yogi(1e-10)": tw.Yogi(1e-10),
    "Cosine(0.1, rounds=10, end=0.01)": tw.Cosine(0.1, 10, 0.01),
    "Triangle(0.1, top=5, rounds=24)": tw.Triangle(0.1, 5, 24),
    "Warmup(0.1)": tw.Warmup(0.1),
    "Warmup(Decay(0.1, rounds=(120, 160)), rounds=10)": tw.Warmup(tw.Decay(0.1, rounds=(120, 160)), 10),
    "FedAvgSLMZ(LocalSGD(0.1, momentum=0.6))": tw.FedAvgSLMZ(tw.LocalSGD(0.1, momentum=0.6)),
    "DOMO(0.8, local=LocalSGD(0.1), intra=True)": tw.DOMO(0.8, tw.LocalSGD(0.1), intra=True),
    "LUAR(FedPara(FedAvg(), ratio=0.2), recycle=1)": tw.LUAR(tw.FedPara(tw.FedAvg(), 0.2), 1),
    "PruneFL(FedAvg(), every=20, share=0.1)": tw.PruneFL(tw.FedAvg(), 20, 0.1),
    "Exponential(0.1)": tw.Exponential(0.1),
    "Privacy(0.5, noise=1.0)": tw.Privacy(0.5, 1.0),
    "Network(5.0, latency=0.02, deadline=3.0)": tw.Network(5.0, latency=0.02, deadline=3.0),
}


@pytest.mark.parametrize(("text", "x"), OBJECTS.items(), ids=OBJECTS.keys())
def test_an_expression_is_its_object_and_the_object_its_expression(text: str, x: Any) -> None:
    assert parse(text) == x
    assert repr(x) == text
    assert type(parse(text)) is type(x)
    assert parse(tw.complete(x)) == x
    assert tw.complete(parse(tw.complete(x))) == tw.complete(x)


def test_a_complete_expression_leaves_nothing_to_defaults() -> None:
    assert tw.complete(tw.TopK()) == "TopK(share=0.01, values=Dense(), sampled=False)"
    assert tw.complete(tw.Adagrad()) == "Adagrad(lr=0.03, beta1=0.0, beta2=0.99, tau=0.001)"
    assert tw.complete(tw.LBGM(tw.Partition({"a": tw.Flat(tw.RandK())}), 0.5)) == (
        "LBGM(inner=Partition(links={'a': Flat(inner=RandK(share=0.01, unbiased=False))}), threshold=0.5, "
        "compare='delivered', store='dense')"
    )
    assert tw.complete(tw.LBGM(delta=0.1)).endswith("store='dense', delta=0.1)")  # later than others: where it is given
    assert tw.complete(tw.Decay(0.2, (100,))) == "Decay(start=0.2, rounds=(100,), factor=0.1)"
    assert tw.complete(tw.FedAvg(up={"update": tw.EF21()})) == (
        "FedAvg(local=LocalSGD(lr=0.05, epochs=1.0, batch=32, momentum=0.0, weight_decay=0.0, prox=0.0, steps=None, "
        "warmup=0, clip=None, keep=False), "
        "opt=SGD(lr=1.0), up={'update': EF21(inner=TopK(share=0.1, values=Dense(), sampled=False))}, down=Dense(), "
        "weights='examples', buffers='mean')"
    )


def test_every_public_configuration_can_be_typed() -> None:
    known = vocabulary()
    assert {"FedAvg", "LUAR", "SCAFFOLD", "TopK", "LBGM", "Adam", "LocalSGD", "Decay", "Partition"} <= set(known)
    # Neither the abstract ones nor what is no configuration.
    assert not {"Link", "Codec", "Algorithm", "Optimizer", "Schedule", "Params", "Key", "simulate", "loads"} & set(
        known
    )
    for name, cls in known.items():
        assert getattr(tw, name) is cls
        required = [f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]
        if not required:
            made = parse(vars(cls).get("example", f"{name}()"))  # of some no default alone makes one
            assert type(made) is cls
            assert parse(repr(made)) == made
            assert parse(tw.complete(made)) == made


def test_a_method_alone_needs_no_brackets() -> None:
    assert parse("FedAvg") == tw.FedAvg()
    assert parse("  SCAFFOLD \n") == tw.SCAFFOLD()


def test_whole_numbers_in_a_tuple_of_floats_are_floats() -> None:
    network = tw.parse("Network(mbit=(10, 2.5))")
    assert repr(network.mbit) == "(10.0, 2.5)"
    with pytest.raises(ExpressionError, match=r"mbit=\('a', 1\)"):
        tw.parse("Network(mbit=('a', 1))")


def test_spaces_lines_and_trailing_commas_do_not_matter() -> None:
    assert parse("LUAR(\n  FedAvg( up = TopK( 0.1 , ) ),\n  recycle = 2,\n)") == tw.LUAR(
        tw.FedAvg(up=tw.TopK(0.1)), recycle=2
    )


def test_numbers_may_be_written_in_any_way_python_has() -> None:
    assert parse("SGD(1e-3)") == tw.SGD(0.001)
    assert parse("SGD(+.5)") == tw.SGD(0.5)
    assert parse("SGD(--0.5)") == tw.SGD(0.5)
    assert parse("SGD(2)") == tw.SGD(2.0)
    assert parse("LUAR(FedAvg(), 1_0)").recycle == 10
    assert parse("LUAR(FedAvg(), 0x10)").recycle == 16


@given(st.floats(1e-300, 1.0), st.floats(0.0, 1.0), st.booleans())
def test_every_number_survives_being_written(share: float, threshold: float, unbiased: bool) -> None:
    x = tw.LBGM(tw.RandK(share, unbiased), threshold)
    assert parse(repr(x)) == x
    assert parse(tw.complete(x)) == x


NAMES = st.text(max_size=8).filter(lambda text: text[:1] not in ("<", ">"))  # which begin a size


@given(st.lists(NAMES, min_size=1, max_size=3, unique=True))
def test_every_text_survives_being_written(rules: list[str]) -> None:
    x = tw.Partition({rule: tw.Half() for rule in rules})
    assert parse(repr(x)) == x
    assert list(parse(tw.complete(x)).links) == rules


# -- defaults -----------------------------------------------------------------

DEFAULTS = {"lr": 0.3, "batch": 10, "epochs": None, "momentum": 0.9}


def test_defaults_fill_what_is_left_open() -> None:
    local = tw.LocalSGD(0.3, batch=10, momentum=0.9)
    assert parse("FedAvg", DEFAULTS) == tw.FedAvg(local)
    assert parse("FedAvg()", DEFAULTS) == tw.FedAvg(local)
    assert parse("LUAR(FedAvg(opt=Adam()), recycle=1)", DEFAULTS) == tw.LUAR(tw.FedAvg(local, tw.Adam()), recycle=1)
    assert parse("SCAFFOLD()", {"lr": 0.3}).local == tw.LocalSGD(0.3)
    assert parse("LocalSGD()", DEFAULTS) == local
    assert parse("Averaged(SoftPull(lam=0.5))", DEFAULTS).inner == tw.SoftPull(tw.FedAvg(local), lam=0.5)


def test_what_is_written_wins_over_defaults() -> None:
    x = parse("FedAvg(LocalSGD(0.1, momentum=0.0, steps=3))", DEFAULTS)
    assert x.local == tw.LocalSGD(0.1, batch=10, momentum=0.0, steps=3)
    assert parse("FedAvg(local=LocalSGD(batch=None))", DEFAULTS).local.batch is None


def test_defaults_are_of_local_training_alone() -> None:
    assert parse("SGD()", DEFAULTS) == tw.SGD(1.0)
    assert parse("FedAvg(opt=Momentum())", DEFAULTS).opt == tw.Momentum(1.0)


def test_the_completed_name_needs_no_defaults() -> None:
    x = parse("LUAR(FedAvg(), recycle=2)", {"lr": tw.Decay(0.2, (3,)), "batch": 5})
    assert parse(tw.complete(x)) == x
    assert parse(repr(x)) == x


def test_defaults_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^LocalSGD\(lr=-1.0\): lr must be positive and finite$"):
        parse("FedAvg()", {"lr": -1.0})


# -- nothing is evaluated -----------------------------------------------------

EVIL = [
    "tw.FedAvg()",
    "FedAvg().up",
    "FedAvg.client",
    "FedAvg().__class__.__bases__",
    "().__class__",
    "''.join(['a'])",
    "(FedAvg)().up",
    "SGD()[0]",
    "SGD()()",
    "[SGD][0]()",
    "(lambda: SGD())()",
    "lambda: 1",
    "[x for x in (1, 2)]",
    "{x for x in (1, 2)}",
    "{x: x for x in (1, 2)}",
    "(x for x in (1, 2))",
    "FedAvg(up=(x := TopK()))",
    "(x := 1)",
    "f'{1}'",
    "f'a'",
    "FedAvg(weights=f'{print(1)}')",
    "1 + 1",
    "SGD(0.1 * 2)",
    "SGD(10 ** 9)",
    "'a' * 10 ** 9",
    "1 < 2",
    "not True",
    "SGD(not False)",
    "~1",
    "-True",
    "-'a'",
    "-SGD()",
    "SGD() or SGD()",
    "SGD() if True else SGD()",
    "*SGD()",
    "[*[1]]",
    "{**{}}",
    "{1, 2}",
    "FedAvg(*[1])",
    "FedAvg(**{'up': 1})",
    "b'bytes'",
    "1j",
    "...",
    "await SGD()",
    "yield SGD()",
    "SGD(x)",
    "__name__",
    "__builtins__",
    "FedAvg(up=__import__)",
    "[SGD, SGD]",
    "import os",
    "SGD(); SGD()",
    "SGD() # x\nSGD()",
    "x = SGD()",
    "",
    "   ",
    "(",
    "SGD(",
    "SGD)",
    "SGD(lr=)",
    "SGD(lr=1, 2)",
    "1 2",
    "\0",
    "SGD(\0)",
    "SGD('\ud800')",
    "(" * 1_000 + ")" * 1_000,
    "[" * 150 + "SGD" + "]" * 150,
]


@pytest.mark.parametrize("text", EVIL, ids=lambda t: repr(t[:40]))
def test_what_is_neither_a_literal_nor_a_call_of_a_public_name_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert "\n" not in str(caught.value).replace(text, "")


@pytest.mark.parametrize(
    "name",
    [
        "print",
        "eval",
        "exec",
        "open",
        "__import__",
        "getattr",
        "os",
        "simulate",
        "loads",
        "Params",
        "Key",
        "Link",
        "object",
    ],
)
def test_functions_and_other_classes_cannot_be_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    for function in ("eval", "exec", "print", "open"):
        monkeypatch.setattr(builtins, function, lambda *a, **_: called.append(a))
    with pytest.raises(ExpressionError, match=f"^unknown name '{name}'"):
        parse(f"{name}('1')")
    monkeypatch.undo()
    assert called == []


def test_only_the_names_that_are_given_are_known() -> None:
    assert parse("TopK(0.5)", names={"TopK": tw.TopK}) == tw.TopK(0.5)
    with pytest.raises(ExpressionError, match="unknown name 'Half'"):
        parse("TopK(0.5, values=Half())", names={"TopK": tw.TopK})


@given(st.text(alphabet="FedAvgTopK()[]{},.:=*+-'\"0123456789 _lr", max_size=30))
def test_any_text_is_an_object_or_one_of_our_errors(text: str) -> None:
    with contextlib.suppress(ValueError):  # ExpressionError and CombinationError are among them
        parse(text)


# -- errors -------------------------------------------------------------------

USE = ", and one of your own needs --use its_module"
ERRORS = {
    "FedAvgg()": "unknown name 'FedAvgg' (did you mean FedAvg?); `thinwire methods` lists them all" + USE,
    "fedavg": "unknown name 'fedavg' (did you mean FedAvg?); `thinwire methods` lists them all" + USE,
    "FedAvg(up=Topk(0.1))": "unknown name 'Topk' (did you mean TopK?); `thinwire methods` lists them all" + USE,
    "FedAvg(up=ErrorFeadback())": "unknown name 'ErrorFeadback' (did you mean ErrorFeedback?); "
    "`thinwire methods` lists them all" + USE,
    "Xyzzyxyzzy()": "unknown name 'Xyzzyxyzzy'; `thinwire methods` lists them all" + USE,
    "TopK(shore=0.1)": "TopK has no argument 'shore' (did you mean share?): "
    "it is TopK(share=0.01, values=Dense(), sampled=False)",
    "SGD(xyz=0.1)": "SGD has no argument 'xyz': it is SGD(lr=1.0)",
    "SGD(1, 2)": "SGD: too many positional arguments; it is SGD(lr=1.0)",
    "SGD(0.1, lr=0.2)": "SGD: multiple values for argument 'lr'; it is SGD(lr=1.0)",
    "LUAR(FedAvg())": "LUAR: missing a required argument: 'recycle'; "
    "it is LUAR(inner, recycle, layers='kernels', select='metric', drop=False, both=False, past=True)",
    "Partition": "Partition: missing a required argument: 'links'; it is Partition(links)",
    "FedAvg(up=TopK)": "TopK needs its brackets here: TopK()",
    "TopK('0.1')": "TopK(share='0.1'): float is expected",
    "TopK(True)": "TopK(share=True): float is expected",
    "TopK(None)": "TopK(share=None): float is expected",
    "TopK([0.1])": "TopK(share=[0.1]): float is expected",
    "TopK(0.1, values=ErrorFeedback())": "TopK(values=ErrorFeedback()): Codec such as Half() is expected",
    "Flat(LBGM())": "Flat(inner=LBGM(threshold=0.2)): Codec such as Half() is expected",
    "LUAR(FedAvg(), recycle=1.5)": "LUAR(recycle=1.5): int is expected",
    "LUAR(FedAvg(), recycle=True)": "LUAR(recycle=True): int is expected",
    "LUAR(TopK(), recycle=1)": "LUAR(inner=TopK(0.01)): Algorithm such as FedAvg() is expected",
    "LUAR(FedAvg(), 1, select='best')": "LUAR(select='best'): one of 'metric', 'uniform', 'round-robin', "
    "'gradient-norm' is expected",
    "FedAvg(weights='n')": "FedAvg(weights='n'): one of 'examples', 'uniform', 'steps' is expected",
    "FedAvg(up=3)": "FedAvg(up=3): Link such as TopK(0.01) or dict[str, Link] is expected",
    "FedAvg(up={1: Dense()})": "'{1: Dense()}': its keys are different texts, 1 is not",
    "FedAvg(LocalSGD(batch=2.5))": "LocalSGD(batch=2.5): int or None is expected",
    "Decay(0.1, rounds=[1])": "Decay(rounds=[1]): tuple[int, ...] is expected",
    "RandK(unbiased=1)": "RandK(unbiased=1): bool is expected",
    "FedAvg(*[1])": "'FedAvg(*[1])': write the arguments out, * and ** are not understood",
    "FedAvg().up": "'FedAvg().up' is neither a literal nor a call of a public name",
    "FedAvg(": "'FedAvg(' is not an expression such as FedAvg(up=TopK(0.01)): '(' was never closed",
    "FedAvg(up=LBGM(0.4)": "'FedAvg(up=LBGM(0.4)' is not an expression such as FedAvg(up=TopK(0.01)): "
    "'(' was never closed",
}


@pytest.mark.parametrize(("text", "message"), ERRORS.items(), ids=ERRORS.keys())
def test_an_error_is_one_line_that_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ThinwireError)


RANGES = {
    "TopK(0)": "TopK(share=0.0): share must be above 0 and at most 1",
    "TopK(1.5)": "TopK(share=1.5): share must be above 0 and at most 1",
    "LBGM(threshold=-0.1)": "LBGM(threshold=-0.1): threshold is a squared sine, 0 to 1",
    "SGD(0)": "SGD(lr=0.0): lr must be positive and finite",
    "Momentum(beta=1.0)": "Momentum(beta=1.0): beta must be in [0, 1)",
    "Adam(beta1=-0.1)": "Adam(beta1=-0.1): beta1 must be in [0, 1)",
    "Yogi(beta2=1)": "Yogi(beta2=1.0): beta2 must be in [0, 1)",
    "Adagrad(tau=0)": "Adagrad(tau=0.0): tau must be positive",
    "LocalSGD(0.0)": "LocalSGD(lr=0.0): lr must be positive and finite",
    "LocalSGD(epochs=0)": "LocalSGD(epochs=0.0): epochs must be positive",
    "LocalSGD(batch=0)": "LocalSGD(batch=0): batch must be positive or None",
    "LocalSGD(momentum=1.0)": "LocalSGD(momentum=1.0): momentum must be in [0, 1)",
    "LocalSGD(weight_decay=-1)": "LocalSGD(weight_decay=-1.0): it must not be negative",
    "LocalSGD(prox=-1)": "LocalSGD(prox=-1.0): prox must not be negative",
    "LocalSGD(steps=0)": "LocalSGD(steps=0): steps must be positive or None",
    "Decay(0.0, rounds=(1,))": "Decay(start=0.0): start must be positive",
    "Decay(1.0, rounds=(1,), factor=0)": "Decay(factor=0.0): factor must be positive",
    "Exponential(-1.0)": "Exponential(start=-1.0): start must be positive",
    "Exponential(1.0, factor=0.0)": "Exponential(factor=0.0): factor must be positive",
    "Cosine(1.0, rounds=1)": "Cosine(rounds=1): rounds must be at least 2",
    "Warmup(0.1, rounds=0)": "Warmup(rounds=0): rounds must be at least 1",
    "Warmup(0.0)": "Warmup(lr=0.0): lr must be positive",
    "Triangle(1.0, top=5, rounds=5)": "Triangle(top=5): top must lie between 0 and rounds=5",
    "Triangle(1.0, top=0, rounds=5)": "Triangle(top=0): top must lie between 0 and rounds=5",
    "Network(0)": "Network(mbit=0.0): a rate in Mbit/s must be finite, and at least 1e-06",
    "Network(down=-1)": "Network(down=-1.0): a rate in Mbit/s must be finite, and at least 1e-06",
    "Network(spread=-1)": "Network(spread=-1.0): spread must be from 0 to 10",
    "Network(latency=-1)": "Network(latency=-1.0): seconds must be from 0 to 1e+09, so that clocks are finite",
    "Network(step=-1)": "Network(step=-1.0): seconds must be from 0 to 1e+09, so that clocks are finite",
    "Network(deadline=0)": "Network(deadline=0.0): it must be positive",
    "Privacy(0, noise=1)": "Privacy(clip=0.0): a norm is positive",
    "Privacy(1, noise=-1)": "Privacy(noise=-1.0): noise must not be negative, nor infinite",
    "Privacy(1e999, noise=1)": "Privacy(clip=inf, noise=1.0): noise is in units of clip, which must be finite",
    "Partition({})": 'Partition needs at least one rule, such as {"*": Dense()}',
}


@pytest.mark.parametrize(("text", "message"), RANGES.items(), ids=RANGES.keys())
def test_an_argument_out_of_its_range_is_one_line_that_says_the_range(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(text)


def test_a_combination_without_meaning_is_refused_while_parsing() -> None:
    with pytest.raises(CombinationError, match=r"^LBGM needs an inner link whose receiver has no memory; EF21\(\) has"):
        parse("FedAvg(up=LBGM(EF21()))")


# -- configurations -----------------------------------------------------------


@dataclass(frozen=True)
class Holder(Config):
    first: int = 1
    items: list[Any] = dataclasses.field(default_factory=list)
    flag: bool = False


def test_a_name_leaves_out_defaults_and_names_all_but_the_first_field() -> None:
    assert repr(Holder()) == "Holder(1)"
    assert repr(Holder(2)) == "Holder(2)"
    assert repr(Holder(flag=True)) == "Holder(1, flag=True)"
    assert repr(Holder(2, [1, (tw.Dense(),)], True)) == "Holder(2, items=[1, (Dense(),)], flag=True)"
    assert repr(Holder(items=[{"a": tw.TopK(0.5)}])) == "Holder(1, items=[{'a': TopK(0.5)}])"
    assert tw.complete(Holder()) == "Holder(first=1, items=[], flag=False)"


@dataclass(frozen=True)
class Typed(Config):
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    rates: tuple[float, ...] = ()
    each: dict[str, int | None] = dataclasses.field(default_factory=dict)
    word: str | None = None

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"{type(self).__name__}(rate={self.rate}): rate must not be negative")


@dataclass(frozen=True)
class Narrower(Typed):
    more: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.more > self.count:
            raise ValueError(f"Narrower(more={self.more}): no more than count")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 2.0}, "Typed(count=2.0): int is expected"),
        ({"count": True}, "Typed(count=True): int is expected"),
        ({"count": None}, "Typed(count=None): int is expected"),
        ({"rate": "0.1"}, "Typed(rate='0.1'): float is expected"),
        ({"rate": False}, "Typed(rate=False): float is expected"),
        ({"flag": 1}, "Typed(flag=1): bool is expected"),
        ({"rates": (1, "2")}, "Typed(rates=(1, '2')): tuple[float, ...] is expected"),
        ({"rates": [1.0]}, "Typed(rates=[1.0]): tuple[float, ...] is expected"),
        ({"each": {"a": 1.5}}, "Typed(each={'a': 1.5}): dict[str, int or None] is expected"),
        ({"word": 3}, "Typed(word=3): str or None is expected"),
        ({"rate": -1}, "Typed(rate=-1.0): rate must not be negative"),
    ],
)
def test_fields_are_of_their_types_before_their_values_are_checked(arguments: dict[str, Any], message: str) -> None:
    for cls in (Typed, Narrower):  # what a class adds or does not add to its check changes nothing
        with pytest.raises(ValueError, match=f"^{re.escape(message.replace('Typed', cls.__name__, 1))}$"):
            cls(**arguments)
    with pytest.raises(ValueError, match=re.escape("Narrower(more='x'): int is expected")):
        Narrower(more="x")  # type: ignore[arg-type]


def test_numbers_become_pythons_own_so_that_what_is_written_can_be_typed_back() -> None:
    x = Typed(np.int64(3), np.float64(0.1), np.True_, (1, np.float32(0.5)), {"a": np.int8(2)}, np.str_("b"))  # type: ignore[arg-type]
    assert repr(x) == "Typed(3, rate=0.1, flag=True, rates=(1.0, 0.5), each={'a': 2}, word='b')"
    assert [type(v) for v in dataclasses.astuple(x)] == [int, float, bool, tuple, dict, str]
    assert parse(repr(x), names={"Typed": Typed}) == x
    assert repr(Typed(rate=2)) == "Typed(1, rate=2.0)"


def test_a_configuration_keeps_a_dict_of_its_own() -> None:
    given: dict[str, int | None] = {"a": 1}
    x = Typed(each=given)
    given["b"] = 2
    assert x.each == {"a": 1}


def test_configurations_survive_pickling_and_replacing() -> None:
    x = Narrower(4, each={"a": None}, more=2)
    assert pickle.loads(pickle.dumps(x)) == x
    assert dataclasses.replace(x, rate=1) == Narrower(4, 1.0, each={"a": None}, more=2)


def test_an_annotation_that_only_a_function_knows_is_not_checked() -> None:
    class Inside:
        pass

    @dataclass(frozen=True)
    class Local(Config):
        inside: Inside
        count: int = 1

    assert isinstance(Local(Inside()).inside, Inside)


def test_a_users_own_configuration_can_be_typed() -> None:
    assert parse("Holder(3, items=[1, 'a', None, -2.5])", names={"Holder": Holder}) == Holder(3, [1, "a", None, -2.5])


@pytest.mark.parametrize(
    "text",
    [
        "x" * 60_000,
        "[" * 60_000,
        "FedAvg(" + "y" * 50_000 + "=1)",
        "FedAvg(up=" + repr("z" * 50_000) + ")",
        "Partition({" + repr("k" * 30_000) + ": Dense(), " + repr("k" * 30_000) + ": Dense()})",
        "Partition({" + ", ".join(f"'{i % 900}': Dense()" for i in range(3_000)) + "})",
        "-" + repr("w" * 50_000),
    ],
    ids=range(7),
)
def test_an_error_quotes_little_of_what_is_long(text: str) -> None:
    with pytest.raises((ExpressionError, TypeError, ValueError)) as said:
        parse(text)
    if isinstance(said.value, ExpressionError):
        assert len(str(said.value)) < 400


def test_longer_expressions_than_anyone_types_are_refused_unread() -> None:
    with pytest.raises(ExpressionError, match=r"^an expression of 50000000 characters; at most 65536 are read$"):
        parse("(" * 50_000_000)
    rules = ", ".join(f"'{i}': Dense()" for i in range(3_000))
    assert len(parse(f"Partition({{{rules}}})").links) == 3_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SGD(" + "-" * 1500 + "1)", "is not an expression such as"),
        ("SGD(" + "9" * 400 + ")", "is not an expression such as"),
        ("Partition({[]: Dense()})", r"its keys are different texts, \[\] is not"),
        ('Partition({"*": Dense(), "*": Half()})', "its keys are different texts, '\\*' is not"),
        ("SGD(lr=1.0, lr=2.0)", "lr is given twice"),
    ],
)
def test_an_odd_expression_is_refused_and_nothing_else_happens(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=said):
        tw.parse(text)


def test_one_object_has_one_name() -> None:
    assert repr(tw.parse("SGD(1)")) == repr(tw.SGD(1.0)) == "SGD(1.0)"
    assert tw.complete(tw.LocalSGD(epochs=2)) == tw.complete(tw.LocalSGD(epochs=2.0))


def test_a_method_with_a_dict_of_links_has_a_hash() -> None:
    assert hash(tw.FedAvg(up={"update": tw.TopK(0.1)})) == hash(tw.parse('FedAvg(up={"update": TopK(0.1)})'))
