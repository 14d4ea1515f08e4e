"""Typed methods: ``LUAR(FedAvg(opt=Adam(0.03)), recycle=2)`` as text becomes the object.

Calls to public names with literal arguments, lists, tuples and dicts of these: nothing else
is understood, and nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from . import algorithms, federated, links, local, optimizers, robust, schedules
from .config import Config, fit
from .errors import ExpressionError, nearest
from .local import Trainer


def parse(text: str, defaults: Mapping[str, Any] | None = None, names: Mapping[str, type] | None = None) -> Any:
    """The object that ``text`` describes.

    ``defaults`` fill what a LocalSGD or LocalAdam in it leaves open (``{"lr": 0.1, "batch": 10}``), so
    that the object's own expression is complete. ``names`` are the classes that may be
    called (by default every method, link, optimiser and schedule of thinwire). Raises
    :class:`ExpressionError`, and ``ValueError`` for an argument out of its range.
    """
    return _Parser(text, vocabulary() if names is None else names, defaults or {}).parse()


def vocabulary() -> dict[str, type]:
    """The classes that can be written in an expression: those of the packages' public names."""
    classes: dict[str, type] = {}
    for package in (algorithms, federated, links, local, optimizers, robust, schedules):
        classes |= configurations({name: getattr(package, name) for name in package.__all__})
    return dict(sorted(classes.items()))


def configurations(names: Mapping[str, Any]) -> dict[str, type]:
    """Those of some names that can be written in an expression: no bases, of which there are no objects."""
    classes = {n: c for n, c in names.items() if isinstance(c, type) and issubclass(c, Config) and is_dataclass(c)}
    return {n: c for n, c in classes.items() if not inspect.isabstract(c)}


LONGEST = 1 << 16  # characters of an expression
QUOTED = 60  # characters of one that an error repeats


class _Parser:
    def __init__(self, text: str, names: Mapping[str, type], defaults: Mapping[str, Any]) -> None:
        self.text, self.names, self.defaults = text, names, defaults

    def parse(self) -> Any:
        if len(self.text) > LONGEST:
            raise ExpressionError(f"an expression of {len(self.text)} characters; at most {LONGEST} are read")
        try:
            tree = self.tree()
            if isinstance(tree.body, ast.Name):  # FedAvg for FedAvg()
                return self.call(tree.body.id, [], {})
            return self.value(tree.body)
        except (RecursionError, MemoryError, OverflowError) as error:
            raise ExpressionError(self.unclear()) from error

    def tree(self) -> ast.Expression:
        try:
            return ast.parse(self.text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            why = error.msg if isinstance(error, SyntaxError) else ""
            raise ExpressionError(self.unclear() + (f": {why}" if why else "")) from error

    def unclear(self) -> str:
        return f"{_quote(self.text)} is not an expression such as FedAvg(up=TopK(0.01))"

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            number = self.value(node.operand)
            if type(number) in (int, float):
                return -number if isinstance(node.op, ast.USub) else number
        if isinstance(node, ast.List):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Tuple):
            return tuple(self.value(item) for item in node.elts)
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            return self.mapping(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if any(k.arg is None for k in node.keywords) or any(isinstance(a, ast.Starred) for a in node.args):
                raise ExpressionError(f"{self.source(node)}: write the arguments out, * and ** are not understood")
            arguments = [self.value(argument) for argument in node.args]
            if twice := _repeats(str(k.arg) for k in node.keywords):
                raise ExpressionError(f"{self.source(node)}: {twice[0][:QUOTED]} is given twice")
            return self.call(node.func.id, arguments, {str(k.arg): self.value(k.value) for k in node.keywords})
        if isinstance(node, ast.Name) and node.id in self.names:
            raise ExpressionError(f"{node.id} needs its brackets here: {node.id}()")
        raise ExpressionError(f"{self.source(node)} is neither a literal nor a call of a public name")

    def mapping(self, node: ast.Dict) -> dict[str, Any]:
        pairs = [(self.value(k), self.value(v)) for k, v in zip(node.keys, node.values, strict=True) if k is not None]
        keys = [key for key, _ in pairs]
        wrong = [key for key in keys if not isinstance(key, str)] or _repeats(keys)
        if wrong:
            raise ExpressionError(f"{self.source(node)}: its keys are different texts, {_quote(wrong[0])} is not")
        return dict(pairs)

    def call(self, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        if name not in self.names:
            near = nearest(name[:QUOTED], self.names)
            if "FedAvg" in self.names:
                raise ExpressionError(
                    f"unknown name {_quote(name)}{near}; `thinwire methods` lists them all, and one of your own "
                    f"needs --use its_module"
                )
            raise ExpressionError(f"unknown name {_quote(name)}{near}; known are {', '.join(sorted(self.names))}")
        cls = self.names[name]
        signature = inspect.signature(cls)
        for keyword in keywords:
            if keyword not in signature.parameters:
                near = nearest(keyword[:QUOTED], signature.parameters)
                raise ExpressionError(f"{name} has no argument {_quote(keyword)}{near}: it is {name}{shape(cls)}")
        try:
            bound = signature.bind(*arguments, **keywords).arguments
        except TypeError as error:
            raise ExpressionError(f"{name}: {error}; it is {name}{shape(cls)}") from None
        bound = fit(cls, bound)
        filled = {k: v for k, v in self.defaults.items() if v is not None}
        if issubclass(cls, Trainer):
            return cls(**{**filled, **bound})
        trained = {name: _fill_default(signature, name, filled) for name in ("local", "inner")}
        return cls(**{**{name: value for name, value in trained.items() if value is not None}, **bound})

    def source(self, node: ast.expr) -> str:
        return _quote(ast.get_source_segment(self.text.strip(), node) or self.text)


def _fill_default(signature: inspect.Signature, name: str, filled: Mapping[str, Any]) -> Any:
    """The default of an argument, a trainer or a method, with what an expression leaves open filled in; else None."""
    default = getattr(signature.parameters.get(name), "default", None)
    if isinstance(default, Trainer):
        return replace(default, **filled)
    if isinstance(default, algorithms.Algorithm):
        method: Any = default  # a dataclass
        return replace(method, local=replace(default.local, **filled))
    return None


def _quote(value: Any) -> str:
    """A value as it is typed, cut where it is long."""
    text = repr(value[: QUOTED + 1] if isinstance(value, str) else value)
    return text if len(text) <= QUOTED + 2 else f"{text[:QUOTED]}..."


def _repeats(names: Iterable[str]) -> list[str]:
    """The names that are there more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def shape(cls: type) -> str:
    """The signature of a configuration: its fields, and the defaults where they are short."""
    words = []
    for parameter in inspect.signature(cls).parameters.values():
        default = parameter.default
        words.append(parameter.name if default is parameter.empty else f"{parameter.name}={default!r}")
    return f"({', '.join(words)})"


def settings(kind: type) -> dict[str, type]:
    """The classes of :mod:`thinwire.data` that an option understands: those of ``--split`` or of ``--augment``."""
    from . import data

    public = {name: getattr(data, name) for name in data.__all__}
    return {n: c for n, c in public.items() if isinstance(c, type) and issubclass(c, kind) and c is not kind}
