"""Wrappers pass everything on: each public name of a method and of a link, asked of each that goes around one."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import thinwire as tw
from problems import LAYOUT, LOCAL, handwriting, key, mlp
from processes import called
from thinwire import FedAvg, Key, Params
from thinwire.algorithms.around import Around
from thinwire.algorithms.base import Algorithm
from thinwire.algorithms.own import Own
from thinwire.expression import vocabulary
from thinwire.links import LBGM, Dense, ErrorFeedback, Layerwise, Link, RandK, TopK, Wrapper
from thinwire.passing import pass_on, public
from thinwire.studies.matrix import _example

# -- what each wrapper writes itself; all else has to be asked of what it goes around ---------------------------------

FLAGS = "linear contraction memory absolute sparse feedback"
WRITTEN = {
    "Averaged": "bypass init_with served server",
    "Detached": "depart init_with",
    "FLSS": "admit afresh broadcast chained client depart down init_with late outlines see sent server supersedes take "
    "up warm_up",
    "FT": "adapt personal_models",
    "FedPara": "assemble finish prepare",
    "LUAR": "afresh broadcast chained client depart init_with late outlines see server supersedes take whole",
    "PruneFL": "client depart down init_with late outlines server up",
    "SoftPull": "admit afresh alone at_client at_server broadcast buffers client depart init_with model outlines "
    "personal personal_models remembers see sent served server statistics statistics_at_client supersedes take",
    "ByBandwidth": "by_layer floats linear look open recv send",
    "EF21": "absolute by_layer contraction linear memory open recv send",
    "Entropy": "floats linear recv send",
    "ErrorFeedback": "absolute contraction feedback look open residual send",
    "DCT": "mean_of_senders open recv residual send sparse",
    "Flat": "floats fold recv scale send sparse",
    "LBGM": "absolute by_layer contraction floats linear look memory open recv residual send",
    "Layerwise": "by_layer floats fold look open recv residual scale send sparse",
    "Partition": "by_layer floats fold look open recv residual scale send sparse",
    "PerClient": "absolute by_layer contraction floats linear memory open recv send",
    "SecureSum": "absolute by_layer check contraction feedback floats fold recv scale send shape sparse",
    "Switch": "by_layer check floats linear look open recv send",
}
SPARED = (*FLAGS.split(), "fold", "scale", "mean")  # of several links, whose flags are all of theirs
MADE = {  # of others that a wrapper writes, as the base class makes them
    "assemble": {"prepare"},
    "init_with": {"init"},
    "weigh": {"weights", "local"},
    "whole": {"see"},
    "init": {"init_with"},
    "bypass": {"inner"},  # a copy of the wrapper, around what the inner method's returns
    "check": {"recv"},
    "by_layer": {"recv"},
    "mean_of_senders": {"recv"},
    "sparse": {"recv"},  # entries may be moved
    "shape": {"open", "send"},
    "mean": {"fold", "scale"},
    "look": {"open"},
    "residual": {"open"},
    "feedback": {"open"},  # states of a wrapper's own hide what the inner link's say
}


@dataclass(frozen=True)
class Mute(Around):
    """A method around another one of one's own, which writes nothing."""


@dataclass(frozen=True)
class Quiet(Wrapper):
    """A link around another one of one's own, which writes nothing."""

    inner: Link


@dataclass(frozen=True)
class Noted(Wrapper):
    """A link around another one of one's own, which looks at what is sent."""

    inner: Link
    sizes: ClassVar[list[int]] = []

    def send(self, x: Params, tx: Any, key: Key) -> Any:
        self.sizes.append(x.layout.size)
        return self.inner.send(x, tx, key)


KINDS: list[tuple[type, Any]] = [(Around, Algorithm), (Wrapper, Link)]
WRAPPERS = [
    (cls, kind)
    for around, kind in KINDS
    for cls in (*vocabulary().values(), Mute, Quiet, Noted)
    if issubclass(cls, around)
]
EACH = [(cls, kind, name) for cls, kind in WRAPPERS for name in public(kind)]


def base_of(kind: type) -> type:
    return next(around for around, other in KINDS if other is kind)


def written(cls: type, kind: type) -> set[str]:
    """The public names of a kind that a wrapper's class writes itself."""
    own = cls.__mro__[: cls.__mro__.index(base_of(kind))]
    return {name for name in public(kind) if any(name in vars(c) for c in own)}


class Asked:
    """In place of what a wrapper goes around: says what it was asked, and answers with that."""

    def __getattr__(self, name: str) -> Any:
        if name in FLAGS.split():
            return name  # read by `all`, which makes True of it
        if callable(getattr(Algorithm, name, None) or getattr(Link, name, None)):
            return lambda *given, **named: ("asked", name, given, named)
        return ("asked", name)


@pytest.mark.parametrize(("cls", "kind"), WRAPPERS, ids=lambda value: value.__name__)
def test_what_a_wrapper_writes_itself_is_what_the_table_says(cls: type, kind: type) -> None:
    if cls.__module__.startswith("thinwire"):
        assert sorted(written(cls, kind)) == WRITTEN[cls.__name__].split()


def ask(found_at: Path) -> None:
    """Ask each name of each wrapper, and write which were passed on, and which were not though they should be."""
    passed, lost = list[str](), list[str]()
    for cls, kind, name in EACH:
        own = written(cls, kind)
        several = kind is Link and cls.held is not Wrapper.held
        if name in own or MADE.get(name, set()) & (own | {"inner"}) or (several and name in SPARED):
            continue
        wrapper = object.__new__(cls)
        object.__setattr__(wrapper, "inner", Asked())
        found, expected = getattr(wrapper, name), ("asked", name)
        if name in FLAGS.split():
            expected = True
        elif callable(getattr(kind, name, None)):
            names = tuple(inspect.signature(getattr(kind, name)).parameters)[1:]
            nests = getattr(cls, "nests", ())
            given = [SimpleNamespace(inner=x) if x in nests else x for x in names]  # the inner one's state
            found, expected = found(*given), ("asked", name, names, {})
        (passed if found == expected else lost).append(f"{cls.__name__}.{name}")
    found_at.write_text(json.dumps([passed, lost]))


def test_what_a_wrapper_does_not_write_is_asked_of_what_it_goes_around(tmp_path: Path) -> None:
    done = called(ask, tmp_path / "found")  # in a process that does not check the types of what is asked
    assert done.returncode == 0, done.stderr
    passed, lost = json.loads((tmp_path / "found").read_text())
    assert lost == []
    assert {f"Mute.{name}" for name in public(Algorithm)} - set(passed) == {"Mute.bypass"}
    assert {f"Quiet.{name}" for name in public(Link)} - set(passed) == set()
    assert {"FT.weigh", "Averaged.weigh", "LUAR.weigh", "ErrorFeedback.check", "ErrorFeedback.mean"} <= set(passed)


def test_a_hook_that_a_base_class_gets_later_is_passed_on_by_a_wrapper_that_knows_nothing_of_it() -> None:
    class Kind:
        level: int = 3

        def begin(self, a: int) -> str:
            return f"base {a}"

        def twice(self, a: int) -> str:
            return self.begin(a) * 2

    class Special(Kind):
        level = 7

        def begin(self, a: int) -> str:
            return f"special {a}"

        def twice(self, a: int) -> str:
            return "special twice"

    @pass_on(Kind, twice=("begin",))
    class Over(Kind):
        def __init__(self, inner: Kind) -> None:
            self.inner = inner

    class Other(Over):
        def begin(self, a: int) -> str:
            return "other"

    assert (Over(Special()).begin(4), Over(Special()).level, Over(Special()).twice(1)) == (
        "special 4",
        7,
        "special twice",
    )
    assert Over(Over(Special())).begin(a=4) == "special 4"
    assert Other(Special()).twice(1) == "otherother"


@pytest.mark.parametrize("kind", [Algorithm, Own])
def test_a_hook_of_a_method_costs_one_edit(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "cheer", lambda self, word: word, raising=False)  # the edit
    pass_on(Algorithm)(Around)  # as when its class is made
    try:
        monkeypatch.setattr(FedAvg, "cheer", lambda self, word: f"{word}, {self!r}!", raising=False)
        around = [cls for cls, base in WRAPPERS if base is Algorithm]
        assert len(around) >= 7
        for cls in around:
            wrapper = object.__new__(cls)
            object.__setattr__(wrapper, "inner", Mute(FedAvg()))
            assert wrapper.cheer("go") == "go, FedAvg()!"
    finally:
        del Around.cheer


# -- one that has states of its own says where the inner one's is, or writes all that is given them ------------------

MAKES = {"server": {"server"}, "view": {"see", "take", "depart"}}  # hooks that return a state


@pytest.mark.parametrize("cls", [cls for cls, kind in WRAPPERS if kind is Algorithm], ids=lambda cls: cls.__name__)
def test_a_method_with_states_of_its_own_nests_them_or_writes_every_hook_that_is_given_one(cls: Any) -> None:
    method = _example(cls, Algorithm) if cls is not Mute else Mute(FedAvg())
    start = method.init_with(Params.trainable(method.prepare(mlp())), None, 4, Key(0))
    inner = method.inner.init_with(Params.trainable(method.prepare(mlp())), None, 4, Key(0))
    own = {"server": type(start.server) is not type(inner.server), "view": type(start.view) is not type(inner.view)}
    given = {
        name: set(inspect.signature(getattr(Algorithm, name)).parameters)
        for name in public(Algorithm)
        if callable(getattr(Algorithm, name, None))
    }
    owned = [state for state in own if own[state]]
    assert set(cls.nests) <= set(owned)
    outside = [state for state in owned if state not in cls.nests]
    needed = {name for name, names in given.items() if any(state in names for state in outside)}
    needed |= {name for state in owned for name in MAKES[state]}
    assert needed <= written(cls, Algorithm)
    assert all(type(getattr(start, state).inner) is type(getattr(inner, state)) for state in cls.nests)


# -- the same, seen from outside -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heavy(FedAvg):
    """A method that weighs replies in its own way."""

    def weigh(self, examples: int) -> float:
        return 1000.0 if examples < 20 else 1.0


@dataclass(frozen=True)
class Alike(Around):
    """A wrapper with weights of its own."""

    weights = "uniform"


def test_a_wrapper_weighs_replies_as_its_inner_method_does() -> None:
    assert Mute(Heavy(LOCAL)).weigh(12) == 1000.0
    for around in (Mute(Heavy(LOCAL)), tw.FT(Heavy(LOCAL)), tw.Averaged(Heavy(LOCAL)), tw.LUAR(Heavy(LOCAL), 0)):
        plain, wrapped = (
            tw.simulate(method, mlp, handwriting()[0], 2, sample=4, workers=1, plan="each")
            for method in (Heavy(LOCAL), around)
        )
        assert torch.equal(plain.params.flat, wrapped.params.flat)
    other = tw.simulate(FedAvg(LOCAL), mlp, handwriting()[0], 2, sample=4, workers=1, plan="each")
    assert not torch.equal(plain.params.flat, other.params.flat)
    assert (Alike(FedAvg()).weigh(12), Alike(FedAvg()).weights) == (1.0, "uniform")


def test_the_tests_and_parts_of_a_link_are_seen_through_wrappers_that_write_nothing_of_them() -> None:
    inner = Layerwise(LBGM(threshold=0.5))
    for link in (Quiet(inner), Noted(inner), Quiet(Noted(inner))):
        x = Params(LAYOUT, torch.arange(352.0))
        tx, rx = link.open(LAYOUT.zeros())
        packet, _, tx = link.send(x, tx, key(0))
        assert link.look(x * 2, tx, key(1)) == inner.look(x * 2, tx, key(1)) != {}
        assert link.by_layer(packet, LAYOUT).keys() == set(LAYOUT.names)
        assert link.check(packet, LAYOUT, rx, key(0))[0].flat.equal(x.flat)


def test_a_link_that_checks_in_its_own_way_does_so_inside_of_a_wrapper() -> None:
    @dataclass(frozen=True)
    class Strict(Dense):
        """A link that takes no packet of anyone."""

        def check(self, packet: Any, layout: Any, rx: Any, key: Key) -> Any:
            raise tw.errors.WireError("nobody is trusted")

        def mean(self, packets: Any, weights: Any) -> Any:
            return "mine"

        def shape(self, layout: Any, key: Key) -> Any:
            return "shape"

    for link in (Quiet(Strict()), ErrorFeedback(Strict())):
        with pytest.raises(tw.errors.WireError, match="nobody is trusted"):
            link.check(torch.zeros(352), LAYOUT, None, key(0))
        assert link.mean([torch.zeros(1)], [1.0]) == "mine"
    assert Quiet(Strict()).shape(LAYOUT, key(0)) == "shape"


def test_a_wrapper_with_packets_of_its_own_is_checked_by_its_own_recv() -> None:
    @dataclass(frozen=True)
    class Boxed(Wrapper):
        """Puts the inner packet into a list."""

        inner: Link
        linear = False

        def send(self, x: Params, tx: Any, key: Key) -> Any:
            packet, seen, tx = self.inner.send(x, tx, key)
            return [packet], seen, tx

        def recv(self, packet: Any, layout: Any, rx: Any, key: Key) -> Any:
            return self.inner.recv(packet[0], layout, rx, key)

    link, x = Boxed(TopK(0.5)), Params(LAYOUT, torch.arange(352.0))
    packet, seen, _ = link.send(x, None, key(0))
    assert link.check(packet, LAYOUT, None, key(0))[0].flat.equal(seen.flat)
    assert link.by_layer(packet, LAYOUT) == {"*": packet}


def test_a_link_around_several_that_leaves_out_a_method_is_refused_when_its_class_is_made() -> None:
    with pytest.raises(
        TypeError, match=r"Either holds several links, and does not write look and by_layer and floats: "
    ):

        class Either(Wrapper):
            one: Link = RandK(0.5)
            other: Link = TopK(0.5)
            linear = False

            @property
            def held(self) -> Iterable[Link]:
                return self.one, self.other

            def open(self, like: Params) -> Any:
                return None, None

            def send(self, x: Params, tx: Any, key: Key) -> Any:
                return self.one.send(x, tx, key)

            def recv(self, packet: Any, layout: Any, rx: Any, key: Key) -> Any:
                return self.one.recv(packet, layout, rx, key)


def test_a_wrapper_of_ones_own_around_flss_trains_what_flss_trains() -> None:
    inner = tw.FLSS(FedAvg(LOCAL), rank=2, start=2, every=2)
    runs = [
        tw.simulate(method, mlp, handwriting()[0], 4, sample=4, workers=1, plan="each")
        for method in (inner, Mute(inner))
    ]
    assert torch.equal(runs[0].params.flat, runs[1].params.flat)
    assert list(runs[0].ledger) == list(runs[1].ledger)
