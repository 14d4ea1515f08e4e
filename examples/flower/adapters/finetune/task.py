"""What is trained, on what: the part to write anew, with :func:`thinwire.hf.problem` for a model of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import thinwire as tw
from thinwire import hf
from thinwire.problem import Problem


def problem(config: Mapping[str, Any]) -> Problem:
    """The model, every client's texts, the test set. A client with texts of its own reads those, and no others'."""
    clients, tested = int(config["clients"]), int(config["tested"])
    texts = hf.load_texts(str(config["data"]), str(config["data-dir"]) or None)
    if texts.owners is not None:  # more than there are clients: each has every so many-th owner's
        texts = replace(texts, owners=[owner % clients for owner in texts.owners])
    sizes = {"rank": int(config["rank"]), "length": int(config["length"])}
    found = hf.standard(texts, str(config["model"]), clients=clients, **sizes)
    test = replace(found.test, indices=found.test.indices[: tested or None])
    return replace(found, test=test)


def method(config: Mapping[str, Any]) -> tw.Algorithm:
    """The method, as it is typed."""
    return tw.parse(str(config["method"]))


def dense(parameters: int, config: Mapping[str, Any]) -> int:
    """The bytes of a run that sends all trained parameters as 32-bit floats, both ways."""
    return 4 * parameters * 2 * int(config["sample"]) * int(config["rounds"])
