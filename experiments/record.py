"""One run of an experiment: trained, printed, and written down as a JSON line, once."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch

import thinwire as tw
from thinwire.config import complete
from thinwire.data import Split
from thinwire.errors import NonFinite
from thinwire.problem import Problem, standard
from thinwire.train.allocator import keep_freed_memory
from thinwire.version import code_version

keep_freed_memory()  # as the command line does
Line = dict[str, Any]
Method = tw.Algorithm | tw.Auto
ROOT = Path(__file__).resolve().parents[1]


def processor() -> str:
    """Its maker's name for it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def hardware() -> str:
    """What the numbers were made on, with the vector instructions that torch uses there."""
    kind = torch.backends.cpu.get_cpu_capability()
    return ", ".join([f"{os.cpu_count()} cores of {processor()} with {kind}, torch {torch.__version__}", *gpu()])


def gpu() -> list[str]:
    """The GPU's name; none where torch has no CUDA device."""
    return [torch.cuda.get_device_name()] if torch.cuda.is_available() else []


def code() -> Line:
    """The version with its commit, whether files in it were changed since, and what it was started as."""
    made = code_version()
    return {"version": made, "dirty": made.endswith("-dirty"), "command": command()}


def versions(*packages: str) -> dict[str, str]:
    """Of Python, torch, and of other packages where they are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command() -> str:
    """How this process was started, from the root of a checkout.

    A program that lies elsewhere is PROGRAM. Options that name another place outside of the checkout are left out: they
    say where something is written, and not what.
    """
    words = list[str]()
    for before, word in pairwise(sys.argv):
        word = "PROGRAM" if before == "--slowlink" else word.replace(f"{ROOT}/", "")
        _, sign, value = word.rpartition("=")
        if not Path(value).is_absolute():
            words.append(word)
        elif before.startswith("-") and not (sign and word.startswith("-")):
            words.pop()
    return shlex.join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *words])


def source() -> str | None:
    """Of the library's code alone: a commit of results leaves it as it is. None outside a checkout."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD:src"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def measured(into: Path | None, key: Line, measure: Callable[[], Line], *packages: str) -> Line:
    """What a benchmark found, with the machine, the code and the versions of ``packages``; also a line of ``into``.

    A line with the fields of ``key`` that the same source on the same kind of machine wrote is returned as it is.
    """
    machine = {"processor": processor(), "cores": os.cpu_count()} | ({"gpu": gpu()[0]} if gpu() else {})
    key = {**key, **machine}
    there = found(into, {**key, "source": source()}) if into else None
    if there is not None:
        return there
    load = round(os.getloadavg()[0], 2)  # before: other work on the machine makes every figure larger
    line = {**key, **measure(), "load": load, "source": source(), "versions": versions(*packages), **code()}
    if into:
        replace(into, line, key)
    return line


def options(text: str | None, methods: Iterable[str], splits: Iterable[str], into: Path) -> argparse.ArgumentParser:
    """The options of trials of some methods on some splits, by name; a program may add its own."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(methods))
    parser.add_argument("--split", action="append", choices=list(splits))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--into", type=Path, default=into)
    return parser


def trials(
    given: argparse.Namespace, methods: Mapping[str, Method], splits: Mapping[str, Split], data: str, clients: int
) -> Iterator[tuple[int, str, Problem, str, Method]]:
    """Those that the options ask for: a seed, a split's name and the problem, a method's name and the method."""
    for seed in range(given.seeds):
        for split, dealt in splits.items():
            if given.split and split not in given.split:
                continue
            problem = standard(data, clients=clients, split=dealt, seed=seed)
            for name, method in methods.items():
                if not given.only or name in given.only:
                    yield seed, split, problem, name, method


def about(expression: str, began: float) -> Line:
    """What made a line: the complete method, the code, how long it took, and how to do it again."""
    return {"expression": expression, **code(), "seconds": round(time.time() - began, 1), "hardware": hardware()}


def read(into: Path) -> list[Line]:
    """The lines of a file; none of a file that is not there."""
    return [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []


def text_of(line: Line) -> str:
    """A line of a file, without spaces: files are small."""
    return json.dumps(line, separators=(",", ":")) + "\n"


def write(into: Path, line: Line) -> None:
    """Append a JSON line."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with open(into, "a") as file:
        file.write(text_of(line))


def found(into: Path, key: Line) -> Line | None:
    """The last line with the fields of ``key`` that clean code wrote."""
    return next((line for line in reversed(read(into)) if _has(line, key) and not dirty(line)), None)


def replace(into: Path, line: Line, key: Line) -> None:
    """Write a line in place of those with the fields of ``key``. Other processes may do so at the same time."""
    into.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(into.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        kept = [old for old in read(into) if not _has(old, key)]
        whole = into.with_suffix(".new")  # a kill leaves the one file or the other
        whole.write_text("".join(map(text_of, [*kept, line])))
        whole.replace(into)
    finally:
        os.close(folder)


def _has(line: Line, key: Line) -> bool:
    return all(line.get(name) == value for name, value in key.items())


def dirty(line: Line) -> bool:
    """Whether the code that wrote a line is in no commit."""
    return bool(line.get("dirty", "-dirty" in line.get("version", "")))


def run(
    method: tw.Algorithm | tw.Auto,
    problem: Problem,
    rounds: int,
    into: Path,
    row: Line,
    measure: Callable[[tw.Result], Line] = lambda result: {},
    **options: Any,
) -> Line | None:
    """Train, print a line, append a JSON line to ``into`` and return it; None of a training that diverged.

    ``row`` is said besides, and what ``measure`` finds in the result. A line of the same row, method, rounds, clients,
    examples and seed that is there is returned as it is; to train again, delete it. A line by code that is in no commit
    is replaced.

    The rows of ``curve`` are an evaluated round, its accuracy, the bytes of that round up and down, and the bytes of
    all rounds up to its end, up and down. A line that a rate is chosen by (``kind`` is "rate") has the last five.
    """
    began, clients = time.time(), len(problem.tasks)
    key = {
        **row,
        "name": repr(method),
        "expression": complete(method),
        "rounds": rounds,
        "clients": clients,
        "sample": options.get("sample") or clients,
        "examples": sum(map(len, problem.tasks)),
        "seed": options.get("seed", 0),
    }
    key = json.loads(json.dumps(key))  # tuples are lists there
    there = found(into, key)
    if there is not None and all(len(point) == 6 for point in there.get("curve", ())):
        print("there already:", end=" ")
        return said(there)
    try:
        result = tw.simulate(method, problem.model, problem.tasks, rounds, test=problem.test, **options)
    except NonFinite as error:
        line = {**key, "diverged": str(error), **about(complete(method), began)}
        replace(into, line, key)
        return said(line)
    summary = result.summary()
    looked = [r for r in result.rounds if r.get("accuracy") is not None]
    tail = [r["accuracy"] for r in looked[-5:]]
    up, down = (list(accumulate(r[f"{way}_bytes"] for r in result.rounds)) for way in ("up", "down"))
    curve = [
        [r["round"], round(r["accuracy"], 5), r["up_bytes"], r["down_bytes"], sent, received]
        for r, sent, received in zip(result.rounds, up, down, strict=True)
        if r.get("accuracy") is not None
    ]
    line = {
        **key,
        **measure(result),
        "accuracy": summary["accuracy"],
        "accuracy_mean_of_last_5": sum(tail) / len(tail),
        "best_accuracy": summary["best_accuracy"],
        "bytes_up": summary["bytes_up"],
        "bytes_down": summary["bytes_down"],
        "floats_up": summary["up_floats"],
        "network_seconds": summary["network_seconds"],
        **about(summary["expression"], began),
        "curve": curve[-5:] if key.get("kind") == "rate" else curve,
    }
    replace(into, line, key)
    return said(line)


def said(line: Line) -> Line | None:
    """Print a line in short; None if its training diverged."""
    if "diverged" in line:
        print(f"diverged: {line['diverged']}  {line['name']}", flush=True)
        return None
    others = {name: line[name] for name in ("comm", "recycled", "saved_up", "saved_both_ways") if name in line}
    print(
        f"{100 * line['accuracy']:5.1f} %  best {100 * line['best_accuracy']:5.1f} %  "
        f"{line['bytes_up'] / 1e6:8.2f} MB up {line['bytes_down'] / 1e6:8.2f} MB down  "
        f"{line['seconds']:6.1f} s  {line['name']}"
        + "".join(f"  {name} {value:.3g}" for name, value in others.items()),
        flush=True,
    )
    return line


def within(line: Line, budget: float) -> float | None:
    """The best accuracy of a run until it had used a budget of bytes, both directions added.

    None where not one evaluated round fits.
    """
    return max((accuracy for _, accuracy, _, _, up, down in line["curve"] if up + down <= budget), default=None)


def shown(value: float | None) -> str:
    """In percent; - for None."""
    return "-" if value is None else f"{100 * value:.1f}"
