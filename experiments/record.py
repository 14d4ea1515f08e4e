"""One run of an experiment: trained, printed, and written down as a JSON line."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import thinwire as tw
from thinwire.config import complete
from thinwire.errors import NonFinite
from thinwire.problem import Problem
from thinwire.version import code_version


def hardware() -> str:
    """What the numbers were made on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{os.cpu_count()} cores of {model}, torch {torch.__version__}{gpu}"


def command() -> str:
    """How this process was started, from the root of a checkout."""
    script = Path(sys.argv[0]).resolve()
    root = Path(__file__).resolve().parents[1]
    return shlex.join(["python", str(script.relative_to(root)), *sys.argv[1:]])


def about(expression: str, began: float) -> dict[str, Any]:
    """What made a line: the complete method, the code, how long it took, and how to do it again."""
    return {
        "expression": expression,
        "version": code_version(),
        "seconds": round(time.time() - began, 1),
        "command": command(),
        "hardware": hardware(),
    }


def write(into: Path, line: dict[str, Any]) -> None:
    """Append a JSON line."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with open(into, "a") as file:
        file.write(json.dumps(line) + "\n")


def run(
    method: tw.Algorithm,
    problem: Problem,
    rounds: int,
    into: Path,
    row: dict[str, Any],
    measure: Callable[[tw.Result], dict[str, Any]] = lambda result: {},
    **options: Any,
) -> list[dict[str, Any]]:
    """Train, print a line, append a JSON line to ``into``; returns the rounds, none of a training that diverged.

    ``row`` is said besides, and what ``measure`` finds in the result.
    """
    began = time.time()
    try:
        result = tw.simulate(method, problem.model, problem.tasks, rounds, test=problem.test, **options)
    except NonFinite as error:
        write(into, {**row, "name": repr(method), "diverged": str(error), **about(complete(method), began)})
        print(f"diverged: {error}  {method!r}", flush=True)
        return []
    summary = result.summary()
    looked = [r for r in result.rounds if r.get("accuracy") is not None]
    tail = [r["accuracy"] for r in looked[-5:]]
    line = {
        **row,
        **(found := measure(result)),
        "name": summary["name"],
        "accuracy": summary["accuracy"],
        "accuracy_mean_of_last_5": sum(tail) / len(tail),
        "best_accuracy": summary["best_accuracy"],
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "floats_up": summary["up_floats"],
        "rounds": summary["rounds"],
        "clients": summary["clients"],
        "sample": summary["sample"],
        "examples": summary["examples"],
        "seed": summary["seed"],
        **about(summary["expression"], began),
        "curve": [
            [r["round"], r["accuracy"], r["up_bytes"], r["down_bytes"]]
            for r in result.rounds
            if r.get("accuracy") is not None
        ],
    }
    write(into, line)
    print(
        f"{100 * line['accuracy']:5.1f} %  best {100 * line['best_accuracy']:5.1f} %  "
        f"{line['bytes_up'] / 1e6:8.2f} MB up {line['bytes_down'] / 1e6:8.2f} MB down  "
        f"{line['seconds']:6.1f} s  {summary['name']}"
        + "".join(f"  {name} {value:.3g}" for name, value in found.items() if isinstance(value, float)),
        flush=True,
    )
    return result.rounds


def spending(result: tw.Result) -> dict[str, Any]:
    """Of every evaluated round: its number, the accuracy, the bytes sent up and those sent down since the start."""
    up, down, spent = 0, 0, []
    for r in result.rounds:
        up, down = up + r["up_bytes"], down + r["down_bytes"]
        if r.get("accuracy") is not None:
            spent.append([r["round"], r["accuracy"], up, down])
    return {"spent": spent}


def within(rounds: list[dict[str, Any]], budget: float) -> float | None:
    """The best accuracy of the rounds that fit into a budget of bytes; None where not one evaluated round does."""
    used, best = 0, None
    for r in rounds:
        used += r["up_bytes"] + r["down_bytes"]
        if used > budget:
            break
        if r.get("accuracy") is not None:
            best = max(best or 0.0, r["accuracy"])
    return best


def shown(value: float | None) -> str:
    """In percent; - for None."""
    return "-" if value is None else f"{100 * value:.1f}"
