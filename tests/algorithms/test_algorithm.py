"""What every method inherits: its shared fields, a model, and wrappers that write only what they change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import thinwire as tw
from problems import LOCAL, assert_same_run, mlp, trained
from thinwire import SCAFFOLD, Adam, Dense, FedAvg, FedMut, FedPara, FedProx, Half, Intrinsic, Key, Local, LocalSGD
from thinwire.algorithms.around import Around, asking
from thinwire.algorithms.base import Algorithm
from thinwire.algorithms.fedavg import Reply
from thinwire.expression import shape, vocabulary


@dataclass(frozen=True)
class Silent(Around):
    """Changes nothing."""


@pytest.mark.parametrize(
    "inner",
    [FedAvg(LOCAL, up=Half()), SCAFFOLD(LOCAL, down=Half()), FedMut(LOCAL, weights="uniform"), Intrinsic(200)],
    ids=repr,
)
def test_a_wrapper_that_writes_nothing_is_its_inner_method(inner: tw.Algorithm) -> None:
    assert_same_run(trained(Silent(inner)), trained(inner))


def test_a_wrapper_says_of_itself_what_its_inner_method_says() -> None:
    inner = tw.FLSS(FedAvg(LocalSGD(0.3), buffers="local"), rank=2, start=7)
    for around in (Silent(inner), FedPara(inner), Silent(FedPara(inner))):
        for name in ("up", "down", "weights", "buffers", "local", "warm_up", "late", "chained", "remembers"):
            assert getattr(around, name) == getattr(inner, name), name
        assert around.warm_up == 7
    assert FedPara(FedAvg()).late
    assert not tw.LUAR(FedAvg(), 1).late
    assert Silent(Intrinsic(8, varying=True)).chained
    assert Silent(tw.FedDyn()).remembers.startswith("h, the mean of the gradients")
    assert repr(Silent(FedAvg())) == "Silent(FedAvg())"


def test_fields_that_every_method_has_are_given_by_name_and_written_after_its_own() -> None:
    assert tw.complete(FedAvg()).endswith(
        "opt=SGD(lr=1.0), up=Dense(), down=Dense(), weights='examples', buffers='mean')"
    )
    assert tw.complete(FedProx()).endswith("weights='examples', buffers='mean', mu=0.01)")  # those of FedAvg come first
    assert shape(FedProx) == (
        "(local=LocalSGD(0.05), opt=SGD(1.0), up=Dense(), down=Dense(), weights='examples', buffers='mean', mu=0.01)"
    )
    with pytest.raises(TypeError):
        FedAvg(LOCAL, Adam(0.03), Half())  # type: ignore[misc]
    assert "Algorithm" not in vocabulary()  # a base of which there are no objects


@dataclass(frozen=True)
class Uniform(FedAvg):
    """Another default for a field that every method has, written in the shortest way."""

    more: float = 1.0
    weights: Any = "uniform"


@dataclass(frozen=True)
class UniformField(FedAvg):
    more: float = 1.0
    weights: Any = field(default="uniform", kw_only=True)


@pytest.mark.parametrize("kind", [Uniform, UniformField])
def test_a_shared_field_that_is_declared_again_stays_one_that_is_given_by_name(kind: Any) -> None:
    method = kind(LOCAL, Adam(0.03), 2.0)
    assert (method.local, method.opt, method.more, method.weights) == (LOCAL, Adam(0.03), 2.0, "uniform")
    assert replace(method, weights="examples").weights == "examples"
    assert kind().up == Dense()


def test_what_a_wrapper_asks_for_in_place_of_its_inner_methods_requests_is_what_is_trained() -> None:
    @dataclass(frozen=True)
    class Twice(FedAvg):
        def client(self, view: Any, state: Any, task: tw.Task, key: Key) -> Any:
            first = yield Local(view.x, self.local)
            second = yield Local(first.x, self.local)
            return Reply(second.x - view.x), state

    @dataclass(frozen=True)
    class Pulled(Around):
        """FedProx over any method, however often its clients train."""

        mu: float

        def client(self, view: Any, state: Any, task: tw.Task, key: Key) -> Any:
            work = self.inner.client(view, state, task, key)
            return (
                yield from asking(work, lambda r: r._replace(trainer=replace(r.trainer, prox=self.mu)))  # type: ignore[type-var]
            )

    pulled = replace(LOCAL, prox=0.3)
    assert_same_run(trained(Pulled(FedAvg(LOCAL), 0.3)), trained(FedAvg(pulled)))
    assert_same_run(trained(Pulled(Twice(LOCAL), 0.3)), trained(Twice(pulled)))
    nothing = Pulled(Twice(LOCAL), 0.0)
    assert_same_run(trained(nothing, mlp), trained(Twice(LOCAL), mlp))
    assert isinstance(nothing, Algorithm)
