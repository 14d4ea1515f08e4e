"""The pairs that go together: every one is made, opened on a small model, and the reason for a refusal noted.

There is no list of rules here. A cell says what the code itself says when it is asked.
"""

from __future__ import annotations

import functools
import re
from dataclasses import MISSING, fields, replace
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from torch import nn

from ..algorithms import Algorithm, FedAvg
from ..algorithms.around import Around
from ..expression import parse, vocabulary
from ..federated.buffered import Buffered, check_late
from ..federated.hostile import Hostile
from ..federated.letters import private
from ..federated.messages import Form
from ..federated.ruled import check_rule
from ..federated.sampler import Sampler
from ..federated.secure.run import Secured
from ..federated.setting import Setting
from ..federated.simulation import Simulation
from ..key import Key
from ..links import Link, SecureSum
from ..params import Params
from ..robust import Aggregator, Attack


class Pair(NamedTuple):
    """A part around another in a role: ``reason`` is empty where they go together."""

    outer: str  # "" for a link by itself
    inner: str
    role: str  # "algorithm", "up", "down", "personal", "aggregate", "buffer", "secret", "beside" or "attack"
    expression: str
    reason: str


def matrix() -> list[Pair]:
    """Every algorithm that holds one around every algorithm; every link that holds one around every link.

    Links are tried up and down, and as what carries a message to one client alone (``personal=``). Every aggregator is
    tried for every algorithm, and so are a buffer of replies, a secure sum of them, and every attack on clients that
    send by every link. What a run may be asked for beside a secure sum is tried too.
    """
    algorithms, links = _names(Algorithm), _names(Link)
    pairs = [_try(outer, inner, "algorithm") for outer in _holders(Algorithm) for inner in algorithms]
    for role in ("up", "down", "personal"):
        pairs += [_try(outer, inner, role) for outer in ["", *_holders(Link)] for inner in links]
    pairs += [_try_rule(rule, method) for rule in _names(Aggregator) for method in algorithms]
    pairs += [_try_buffer(method) for method in algorithms]
    pairs += [_try_secret(method) for method in algorithms]
    pairs += [_try_beside(name) for name in (*_names(Aggregator), *_names(Sampler), "Buffered", "Privacy")]
    pairs += [_try_attack(attack, link) for attack in _names(Attack) for link in links]
    return pairs


def _try_rule(rule: str, method: str) -> Pair:
    names = vocabulary()
    aggregate, algorithm = names[rule](), _example(names[method], Algorithm)
    text = f"{algorithm!r}, aggregate={aggregate!r}"
    try:
        check_rule(aggregate, algorithm, _open(algorithm), aggregate.least)
    except ValueError as refusal:
        return Pair(rule, method, "aggregate", text, str(refusal))
    return Pair(rule, method, "aggregate", text, "")


def _try_buffer(method: str) -> Pair:
    algorithm, buffer = _example(vocabulary()[method], Algorithm), Buffered(1)
    text = f"{algorithm!r}, buffer={buffer!r}"
    try:
        check_late(buffer, algorithm)
    except ValueError as refusal:
        return Pair("Buffered", method, "buffer", text, str(refusal))
    return Pair("Buffered", method, "buffer", text, "")


def _try_secret(method: str) -> Pair:
    text = f"{method}, up=SecureSum()"
    try:
        algorithm = _example(vocabulary()[method], Algorithm)
        algorithm = _with(algorithm, up=SecureSum(), coefficients=SecureSum(), weights="uniform")
        text = repr(algorithm)
        Secured.of(algorithm, _open(algorithm), Setting(), 10)
    except ValueError as refusal:
        return Pair("SecureSum", method, "secret", text, str(refusal))
    return Pair("SecureSum", method, "secret", text, "")


def _try_beside(name: str) -> Pair:
    """An aggregator, a sampler, a buffer or privacy for clients whose replies are added in secret."""
    algorithm = FedAvg(up=SecureSum(), weights="uniform")
    cls: Any = vocabulary()[name]
    field = {"Buffered": "buffer", "Privacy": "privacy"}.get(
        name, "sampler" if issubclass(cls, Sampler) else "aggregate"
    )
    value = cls() if field == "aggregate" else parse(vars(cls)["example"])
    text = f"{algorithm!r}, {field}={value!r}"
    task = torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.long)
    try:
        Simulation(algorithm, _model, [task] * 20, Setting(**{field: value})).close()
    except ValueError as refusal:
        return Pair("SecureSum", name, "beside", text, str(refusal))
    return Pair("SecureSum", name, "beside", text, "")


def _try_attack(attack: str, link: str) -> Pair:
    names = vocabulary()
    hostile, text = names[attack](), f"{attack}(), up={link}"
    try:
        algorithm = FedAvg(up=_example(names[link], Link))
        text = f"{algorithm!r}, attack={hostile!r}"
        Hostile.of(hostile, _open(algorithm), 10, 0)
    except ValueError as refusal:
        return Pair(attack, link, "attack", text, str(refusal))
    return Pair(attack, link, "attack", text, "")


def _try(outer: str, inner: str, role: str) -> Pair:
    kind = Algorithm if role == "algorithm" else Link
    text = inner
    try:
        part = _example(vocabulary()[inner], kind)
        text = repr(part)
        if outer:
            text = f"{outer}({text})"
            part = _example(vocabulary()[outer], kind, part)
            text = repr(part)
        holder = vocabulary()["SoftPull"] if role == "personal" else FedAvg
        _open(part if role == "algorithm" else holder(**{role: part}))
    except ValueError as refusal:
        return Pair(outer, inner, role, text, str(refusal))
    return Pair(outer, inner, role, text, "")


def _open(algorithm: Algorithm) -> Form:
    """Do as a run does before its first round; the form of replies."""
    module = algorithm.assemble(_model(), 2)
    start = algorithm.init_with(Params.trainable(module), None, 2, Key(0))
    message = algorithm.broadcast(start.server, start.view) if start.message is None else start.message
    up = Form.of(start.reply, algorithm.up, "up")
    up.open()
    Form.of(message, algorithm.down, "down").open()
    if (alone := private(algorithm, start)) is not None:
        alone.open()
    return up


def _model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 4))


def _names(kind: type) -> list[str]:
    return [name for name, cls in vocabulary().items() if issubclass(cls, kind)]


def _holders(kind: type) -> list[str]:
    """The names of those that are made around another of their kind, whatever else they hold."""
    return [name for name in _names(kind) if _place(vocabulary()[name], kind) is not None]


def _place(cls: Any, kind: type) -> str | None:
    """The field that holds what this is made around: ``inner``, or a dict of ``links``."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        expected = hints[field.name]
        kinds = get_args(expected) if get_origin(expected) in (dict, Union, UnionType) else (expected,)
        own = any(isinstance(k, type) and issubclass(k, kind) for k in kinds)
        if own and field.name in ("inner", "links"):
            return field.name
    return None


def _example(cls: Any, kind: type, inner: Any = None) -> Any:
    """An object of a class: its defaults, the least of what it asks for, and what it is to hold."""
    hints, place, given = get_type_hints(cls), _place(cls, kind), dict[str, Any]()
    if "example" in vars(cls):  # its defaults alone make none
        made = parse(vars(cls)["example"])
        if inner is None or place is None:
            return made
        inner = _with(inner, up=getattr(made, place).up) if kind is Algorithm else inner
        return replace(made, **{place: inner})
    for field in fields(cls):
        if field.name == place and (inner is not None or field.default is MISSING):
            held = inner if inner is not None else _plain(kind)
            given[place] = {"*": held} if get_origin(hints[place]) is dict else held
        elif field.init and field.default is MISSING and field.default_factory is MISSING:
            given[field.name] = 1 if hints[field.name] is int else 0.5
    return cls(**given)


def _with(method: Algorithm, **values: Any) -> Algorithm:
    """The method, and what it goes around, with other values of these fields, of those that each has itself."""
    own = {field.name: values[field.name] for field in fields(method) if field.name in values}
    if isinstance(method, Around):
        own["inner"] = _with(method.inner, **values)
    return replace(method, **own)


def _plain(kind: type) -> Any:
    return FedAvg() if kind is Algorithm else vocabulary()["TopK"](0.5)


def _general(pair: Pair) -> str:
    """The reason, with dots in place of the very parts that were tried."""
    if pair.role in ("secret", "beside"):
        return re.sub(r"aggregate=\S+|^[^:]*(?=: )", "...", pair.reason)
    if pair.role in ("aggregate", "buffer", "attack"):
        tried = [repr(_example(vocabulary()[pair.inner], Link if pair.role == "attack" else Algorithm))]
        tried += [repr(vocabulary()[pair.outer]())] if pair.role != "buffer" else []
        return functools.reduce(lambda reason, part: reason.replace(part, "..."), tried, pair.reason)
    kind = Algorithm if pair.role == "algorithm" else Link
    parts = (pair.expression, repr(_example(vocabulary()[pair.inner], kind)))
    named = next((part for part in parts if part in pair.reason), "")
    return pair.reason.replace(named, "...") if named else pair.reason


def show(pairs: list[Pair]) -> None:
    """As tables on the terminal: yes where two go together, else the number of the reason."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    console = console if console.is_terminal else Console(width=200)
    reasons: dict[str, int] = {}
    titles = {
        "algorithm": "an algorithm around an algorithm",
        "up": "links going up",
        "down": "links going down",
        "personal": "links to one client alone",
        "aggregate": "an aggregator (across) of a method's replies",
        "buffer": "rounds that do not wait for a method's replies",
        "secret": "a secure sum of a method's replies",
        "beside": "what goes beside a secure sum",
        "attack": "an attack (across) on clients that send by a link",
    }
    for role, title in titles.items():
        own = [pair for pair in pairs if pair.role == role]
        outers = list(dict.fromkeys(pair.outer for pair in own))
        table = Table(title=title)
        for i, name in enumerate(["", *(outer or "alone" for outer in outers)]):
            table.add_column(name, justify="center" if i else "left", no_wrap=True)
        for inner in dict.fromkeys(pair.inner for pair in own):
            row = [pair for pair in own if pair.inner == inner]
            marks = [str(reasons.setdefault(_general(p), len(reasons) + 1)) if p.reason else "yes" for p in row]
            table.add_row(inner, *marks)
        console.print(table)
    for reason, number in reasons.items():
        console.print(f"{number:3}  {escape(reason)}", highlight=False, soft_wrap=True)
