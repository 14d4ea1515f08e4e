"""What is trained, on what: the part to write anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

import thinwire as tw
from thinwire.data import IID
from thinwire.problem import Problem, standard


def problem(config: Mapping[str, Any]) -> Problem:
    """The model, every client's part, the test set. A client with data of its own reads that, and no others'."""
    data, most, tested = str(config["data"]), int(config["examples"]), int(config["tested"])
    folder = str(config["data-dir"]) or None
    found = standard(data, str(config["model"]), int(config["clients"]), IID(), data_dir=folder)
    tasks = [replace(task, indices=task.indices[: most or None]) for task in found.tasks]
    test = replace(found.test, indices=torch.arange(min(tested, len(found.test)))) if tested else found.test
    return replace(found, tasks=tasks, test=test)


def method(config: Mapping[str, Any]) -> tw.Algorithm:
    """The method, as it is typed."""
    return tw.parse(str(config["method"]))
