"""The types of the values in a run's files that tables, reports and looks read.

A file that was edited by hand, or damaged, may hold text where a number belongs. :mod:`thinwire.studies.read`, through
which all files are read, refuses such a value here, by its name, before anything computes with it. A value that is not
in the table is not checked: it may be a metric of the user's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Type(NamedTuple):
    """The values of a type, and its name in a sentence."""

    has: Callable[[Any], bool]
    name: str

    def or_null(self) -> Type:
        """The same with null."""
        return Type(lambda x: x is None or self.has(x), f"{self.name} or null")

    def each(self) -> Type:
        """A list of them."""
        return Type(lambda x: isinstance(x, list) and all(map(self.has, x)), f"a list, each item {self.name}")


NUMBER = Type(lambda x: isinstance(x, int | float) and not isinstance(x, bool), "a number")
FINITE = Type(lambda x: NUMBER.has(x) and math.isfinite(x), "a finite number")
WHOLE = Type(lambda x: type(x) is int and x >= 0, "a whole number that is not negative")
TEXT = Type(lambda x: isinstance(x, str), "a text")
OBJECT = Type(lambda x: isinstance(x, dict), "an object")
NORMS = Type(
    lambda x: OBJECT.has(x) and all(map(NUMBER.or_null().each().has, x.values())), "an object of lists of numbers"
)
WAYS = Type(
    lambda x: OBJECT.has(x) and all(OBJECT.has(x.get(way)) for way in ("up", "down")), "an object of up and down"
)
BOUND = Type(lambda x: x is None or NUMBER.has(x) or TEXT.has(x), "a number, a text or null")


def _all(kind: Type, names: str) -> dict[str, Type]:
    return dict.fromkeys(names.split(), kind)


MEASURES = "accuracy dice mae loss test_loss mape perplexity"
PARTS = ("", "_spread", "_p10", "_worst", "_before", "_shared", "_x")
EVALUATED = {
    f"{model}{measure}{part}": NUMBER.or_null()
    for model in ("", "client_", "served_", "predicted_")
    for measure in MEASURES.split()
    for part in PARTS
}
"""What a model is judged by, of a run's lines and its summary."""

OF_RUN = {
    **_all(TEXT, "method name kind"),
    **_all(WHOLE, "clients parameters parts rounds steps workers"),
    **_all(WHOLE.or_null(), "sample take"),
    **_all(FINITE.or_null(), "dropout lr momentum weight_decay batch mbit latency examples epochs holdout"),
    **_all(FINITE.each(), "forward backward staleness cut decay rates"),
    **_all(TEXT.each(), "versions"),
    **_all(TEXT.or_null(), "network privacy aggregate buffer attack sampler start optimizer autocast"),
    **_all(BOUND, "clip"),
}
"""Of ``run.json``, most of which ``study.json`` and ``summary.json`` repeat."""

TYPES: Mapping[str, Mapping[str, Type]] = {
    "rounds.jsonl": {
        **EVALUATED,
        **_all(WHOLE, "round step"),
        **_all(FINITE, "up_bytes down_bytes slowest_bytes up_floats seconds clock reduced_bytes gathered_bytes"),
        **_all(FINITE, "down_floats up_payload up_framing down_payload down_framing lost_replies clients"),
        **_all(FINITE.each(), "forward_bytes backward_bytes"),
        **_all(NUMBER.or_null(), "train_loss lam lam_star residual distance apart clipped"),
        **_all(NUMBER.or_null().each(), "moved weights difference gradient part_parameters"),
        **_all(NUMBER.or_null().each(), "forward_difference forward_gradient ways"),
        **_all(OBJECT, "layers change chosen"),
        "norms": NORMS,
        "layer_bytes": WAYS,
        "looks": OBJECT.each(),
        **_all(TEXT.each(), "unsent"),
        **_all(NUMBER.each(), "far expelled"),
    },
    "clients.jsonl": {**dict.fromkeys(EVALUATED, NUMBER.or_null().each()), "round": WHOLE},
    "ledger.jsonl": {**_all(WHOLE, "round client payload framing retries"), **_all(TEXT, "direction")},
    "run.json": OF_RUN,
    "summary.json": {
        **OF_RUN,
        **EVALUATED,
        **_all(WHOLE, "rounds steps"),
        **_all(FINITE, "seconds bytes_up bytes_down"),
    },
    "study.json": {
        **OF_RUN,
        **_all(WHOLE.or_null(), "clients"),
        **_all(TEXT.each(), "methods folders use augment"),
        **_all(TEXT.or_null(), "data model task hf split"),
        **_all(WHOLE.each(), "seeds"),
    },
}
"""By the name of a file, and of a value in it."""


def find_odd_value(file: str, values: Mapping[str, Any]) -> str | None:
    """The first value in a file's object that is of another type, in words; None where all are as they should be."""
    known = TYPES.get(file, {})
    for name, value in values.items():
        kind = known.get(name)
        if kind is not None and not kind.has(value):
            shown = repr(value)
            return f"its {name} is {shown if len(shown) <= 60 else f'{shown[:60]}...'}, and {kind.name} is expected"
    return None
