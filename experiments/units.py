"""The trainings of a group of claims: each writes one JSON line, once, whatever stops the process that makes them.

A group is a list of arms (``arms.py``): a row of a table in one setting. An arm that is tried with several learning
rates is first trained with each of them, on a split and a start of their own (seed 100), and for a share of the rounds
that the arm says. While the best of them is the smallest or the largest, one more beyond it is tried, up to three. The
rate of the best mean of the last five evaluations is taken for the seeds that count, and the best of the smaller ones
where one of these diverges at it. What is best is judged on the same test set. A method's settings are chosen likewise:
an arm with ``best_of`` is the best of some others.

Units are made in the order of the list. A unit whose line is there is not trained again. Nothing is trained by code
that is in no commit, since its lines would not count. Two processes with the same command share the units: each takes
the next one that nobody holds. A training has checkpoints beside the results, in ``.running``, so a process that is
killed loses the rounds since the last of them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import record
import torch
from arms import SEEDS, TUNING, Arm
from record import Line


@dataclass(frozen=True)
class Unit:
    """One training of an arm."""

    arm: Arm
    rate: float
    seed: int
    key: Line = field(repr=False)

    @property
    def minutes(self) -> float:
        return self.arm.minutes * self.arm.share(self.seed)

    @property
    def name(self) -> str:
        what = "choosing" if self.seed == TUNING else f"seed {self.seed}"
        return f"{self.arm.setting['name']}: {self.arm.row}, {what}, rate {self.rate:g}"


def unit(arm: Arm, rate: float, seed: int) -> Unit:
    return Unit(arm, rate, seed, json.loads(json.dumps(arm.key(rate, seed))))  # tuples are lists there


def thrice(arms: Sequence[Arm]) -> list[Arm]:
    """The arms, and after all of them once more those that lack seeds, with these: what says most comes first.

    An arm with no seeds at all is left so: its rates are tried, and no more.
    """
    rest = [(one, [seed for seed in SEEDS if seed not in one.seeds]) for one in arms if one.seeds]
    return [*arms, *(replace(one, seeds=seeds) for one, seeds in rest if seeds)]


def digest(key: Line) -> str:
    """The name of its folder of checkpoints."""
    return hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()


def there(lines: Sequence[Line], key: Line) -> Line | None:
    """The last line of clean code with the fields of ``key``."""
    has = (line for line in reversed(lines) if all(line.get(name) == value for name, value in key.items()))
    return next((line for line in has if not record.dirty(line)), None)


def judged(line: Line) -> float:
    """What a rate is chosen by; below 0 where training diverged."""
    return -1.0 if "diverged" in line else float(line["accuracy_mean_of_last_5"])


def trials(arm: Arm, lines: Sequence[Line]) -> list[Unit]:
    """By which its rate is chosen, as far as they are known: one more while the best one is at an end."""
    rates = [*arm.rates]
    while len(rates) > 1:
        tried = [unit(arm, rate, TUNING) for rate in rates]
        found = {one.rate: there(lines, one.key) for one in tried}
        done = {rate: judged(line) for rate, line in found.items() if line is not None}
        best, ordered = max(done, key=lambda rate: done[rate], default=0.0), sorted(rates)
        ends = {ordered[0]: ordered[1], ordered[-1]: ordered[-2]}
        if len(done) < len(rates) or best not in ends or len(rates) == len(arm.rates) + arm.further:
            return tried
        rates.append(float(f"{best * best / ends[best]:.2g}"))
    return []


def chosen(arm: Arm, lines: Sequence[Line]) -> float | None:
    """Its learning rate: the best below those at which a seed that counts has diverged. None before all are tried."""
    if arm.follows is not None:
        return chosen(arm.follows, lines)
    tried = [there(lines, trial.key) for trial in trials(arm, lines)]
    found = [line for line in tried if line is not None]
    if len(found) < len(tried):
        return None
    held = [line for line in found if not lost(arm, line["rate"], lines)]
    return float(max(held or found, key=judged)["rate"]) if found else arm.rates[0]


def lost(arm: Arm, rate: float, lines: Sequence[Line]) -> bool:
    """Whether a training with one of the seeds that count diverged at a rate, or at a smaller one."""
    smaller = [trial.rate for trial in trials(arm, lines) if trial.rate <= rate]
    runs = [there(lines, unit(arm, each, seed).key) for each in smaller for seed in (*SEEDS, *arm.seeds)]
    return any(line is not None and "diverged" in line for line in runs)


def units(arm: Arm, lines: Sequence[Line]) -> tuple[list[Unit], bool]:
    """Those whose key is known by now, and whether these are all: not before rate and setting are chosen.

    The run with the last of its seeds is the last of them.
    """
    if arm.best_of:
        tried = [units(replace(one, seeds=[arm.by]), lines) for one in arm.best_of]
        known = [each for some, _ in tried for each in some]
        last = [there(lines, some[-1].key) if whole else None for some, whole in tried]
        found = [line for line in last if line is not None]
        if len(found) < len(last):
            return known, False
        best = arm.best_of[max(range(len(found)), key=lambda i: judged(found[i]))]
        runs, whole = units(replace(best, seeds=arm.seeds), lines)
        return [*known, *runs], whole
    rate = chosen(arm, lines)
    runs = [] if rate is None else [unit(arm, rate, seed) for seed in arm.seeds]
    return [*trials(arm, lines), *runs], rate is not None


@contextlib.contextmanager
def held(place: Path) -> Iterator[bool]:
    """Whether nobody else trains this unit, with this code or other. A process that is killed lets go."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def make(arms: Sequence[Arm], into: Path, stop: float = float("inf"), device: str = "cpu") -> bool:
    """Train what is missing, in order, until ``stop`` (seconds of the clock). Whether nothing is missing then."""
    mine: set[str] = set()  # a line of code that is in no commit is trained again, but not by the same process
    while time.time() < stop and _made(arms, into, mine, device):
        pass
    lines = record.read(into)
    known = [units(arm, lines) for arm in arms]
    return all(whole and all(there(lines, one.key) for one in some) for some, whole in known)


def _made(arms: Sequence[Arm], into: Path, mine: set[str], device: str) -> bool:
    """Train the first unit that is missing and that nobody holds. False where there is none."""
    for one in (one for arm in arms for one in units(arm, record.read(into))[0]):
        name = digest(one.key)
        if name in mine or there(record.read(into), one.key):
            continue
        place = into.parent / ".running" / name
        folder = place.with_name(f"{name}-{record.source()}")  # a line says what code trained it
        with held(place) as free:
            if free and there(record.read(into), one.key) is None:  # nobody made it meanwhile
                print(one.name, end=": ", flush=True)
                mine.add(name)
                try:
                    one.arm.train(one.rate, one.seed, into, folder, device)
                except Exception:  # the others are made all the same, and this one is still missing at the end
                    traceback.print_exc()
                shutil.rmtree(folder, ignore_errors=True)
                return True
    return False


def listed(arms: Sequence[Arm], into: Path) -> None:
    """Every unit once, whether it is there, after how many core-hours it will be, and what all take."""
    lines, left, whole_hours, told = record.read(into), 0.0, 0.0, set[str]()

    def line(done: bool, minutes: float, name: str) -> None:
        nonlocal left, whole_hours
        left, whole_hours = left + (0.0 if done else minutes / 60), whole_hours + minutes / 60
        after = "" if done else f"{left:.1f} h"
        print(f"{'there' if done else 'missing':8s}{minutes:6.1f} min {after:>8s}  {name}")

    for arm in arms:
        known, whole = units(arm, lines)
        for one in known:
            if (name := digest(one.key)) not in told:  # a row may stand in several places, with other seeds
                told.add(name)
                line(there(lines, one.key) is not None, one.minutes, one.name)
        if not whole:
            wait = [one for one in arm.best_of if not one.seeds and one.follows and chosen(one, lines) is None]
            minutes = arm.minutes * len(arm.seeds) + sum(one.minutes * one.share(arm.by) for one in wait)
            line(False, minutes, f"{arm.setting['name']}: {arm.row}, then")
    print(f"{left:.1f} core-hours of {whole_hours:.1f} are missing")


def main(arms: Sequence[Arm], into: Path, about: str) -> None:
    """The command line of a group."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="train nothing: say what is there and what is missing")
    parser.add_argument("--only", action="append", help="settings or rows with this in their name; may be repeated")
    parser.add_argument("--seed", action="append", type=int, help="may be repeated; by default those of each row")
    parser.add_argument("--hours", type=float, help="begin no training after so many")
    parser.add_argument("--tiny", action="store_true", help="at a size that says nothing about methods")
    parser.add_argument("--device", default="cpu", help="where models are trained: cpu or cuda")
    parser.add_argument("--into", type=Path, default=into, help="the file of the results")
    o = parser.parse_args()
    torch.set_num_threads(1)
    asked = [arm for arm in arms if not o.only or any(part in f"{arm.setting['name']}: {arm.row}" for part in o.only)]
    asked = [replace(arm, seeds=[s for s in arm.seeds if s in o.seed]) if o.seed else arm for arm in asked]
    if not asked:
        sys.exit(f"no row has {' or '.join(o.only)} in its name; --list shows them")
    if o.tiny:
        asked = [arm.tiny() for arm in asked]
    if o.list:
        listed(asked, o.into)
        return
    if not o.tiny and record.dirty(record.code()):
        sys.exit("files here were changed since the last commit: commit them first, so that a line says what made it")
    stop = float("inf") if o.hours is None else time.time() + 3600 * o.hours
    if make(asked, o.into, stop, o.device):
        if not (o.only or o.seed):  # else neighbours may train other units
            shutil.rmtree(o.into.parent / ".running", ignore_errors=True)
        print("nothing is missing")
    else:
        print("some are missing: another process trains them, or time is up, or --only left out what they follow")
