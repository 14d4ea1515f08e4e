"""A study as one page of HTML that needs no network: ``thinwire report``.

:func:`gather` makes the contents, an object of JSON; ``page/report.js`` draws them; :func:`page` puts contents, script,
style and the drawing library (plotly.js, compressed) into one file. A study that trains is drawn anew from new contents
by the same script (:mod:`thinwire.report.serve`).

What every evaluation of a long run would take is thinned (``POINTS``), and of thousands of clients or rounds
neighbours share a cell of a heat map (``CELLS``), so that a page stays below 5 MB.
"""

from __future__ import annotations

import base64
import html
import json
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..config import complete
from ..expression import parse, vocabulary
from ..run.folder import write_atomic
from ..version import code_version
from . import table
from .curves import NAMES, axes, curve, has
from .read import Arm, Record, Run, arms, chosen, counted, read, trainers
from .read import setting as setting_of

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"
POINTS = 400  # of a curve
CELLS = 240, 400  # rows and columns of a heat map
FULL = 6  # runs whose heat maps have as many

# A page loads nothing. `connect-src` is for the one that is served, which asks for its contents again.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'"
)


def write(folders: Sequence[Path], out: Path) -> Path:
    """The page of all runs below ``folders``, as a file; of a folder ``out`` its ``report.html``.

    Raises :class:`RunError` where there is no run to read.
    """
    out = out / "report.html" if out.is_dir() else out
    write_atomic(out, page(gather(folders)).encode())
    return out


def page(contents: Record, live: bool = False) -> str:
    """The file. With ``live`` it asks the server that it came from for newer contents, every few seconds."""
    files = resources.files(__package__) / "page"
    packed = base64.b64encode((files / PLOTLY).read_bytes()).decode()
    # "<" in a script could end it; in JSON its escape says the same.
    data = json.dumps({**contents, "live": live}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    made = (files / "report.html").read_text()
    for name, text in {
        "title": html.escape(contents["title"]),
        "policy": POLICY,
        "style": (files / "report.css").read_text(),
        "contents": data,
        "plotly": packed,
        "script": (files / "report.js").read_text(),
    }.items():
        made = made.replace(f"<!--{name}-->", text, 1)
    return made


def gather(folders: Sequence[Path]) -> Record:
    """All that the page shows of the runs below ``folders``. Raises :class:`RunError` where there is none to read."""
    found = arms(list(folders))
    rows = table.rows(found)
    study = _study(folders)
    whole = [counted(arm) for arm in found]
    sections = {
        "layers": _layers(whole),
        "clients": _clients(whole),
        "taking_part": _taking_part(found),
        "unsent": _unsent(found),
        "recycled": _recycled(found),
    }
    return {
        "title": title(found, folders),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": code_version(),
        "unit": found[0].unit,
        "setting": [list(pair) for pair in [*setting(found, study, folders), *_chosen(found)]],
        "warnings": warnings(found),
        "methods": [{"label": arm.label} for arm in found],
        "expressions": [{"label": label, "expression": text} for arm in found for label, text in _written(arm)],
        "table": _table(rows),
        "axes": _axes(found),
        "values": {name: NAMES[name] for name in NAMES if has(found, name)},
        "curves": [_curves(arm) for arm in found],
        "measure": {"accuracy": "accuracy", "dice": "Dice coefficient"}[rows[0]["measure"]],
        "targets": [_targets(arm) for arm in whole],
        "bytes": _bytes(whole),
        "bytes_said": SAID[found[0].kind],
        **{name: value for name, value in sections.items() if value is not None},
        "missing": [why for name, why in MISSING.items() if _wanted(name, found) and sections[name] is None],
    }


MISSING = {
    "layers": "Bytes by layer, and the layers that methods such as LUAR leave out: `--record bytes` records them.",
    "clients": "Accuracy by client: `--holdout 0.2` keeps a fifth of each client's examples for a test of its own.",
    "taking_part": "Who took part: these runs have no ledger.jsonl.",
    "recycled": "Clients whose updates LBGM recycled: `--record looks` records them.",
}
"""What is said in place of a section of federated studies, whose runs do not have it."""


def _wanted(name: str, found: Sequence[Arm]) -> bool:
    """Whether runs of this kind, with these methods, could have a section."""
    return found[0].kind == "federated" and (name != "recycled" or any("LBGM(" in arm.expression for arm in found))


# -- what was asked for, and what to beware of ----------------------------------


def _study(folders: Sequence[Path]) -> Record:
    """What the first folder that holds a study, or is a part of one, says of it. Empty where none does."""
    for folder in map(Path.resolve, folders):
        for place in (folder, *folder.parents[:2]):
            if (place / "study.json").exists():
                study = read(place / "study.json")
                if place == folder or folder.relative_to(place).parts[0] in study.get("folders", ()):
                    return study
    return {}


def title(found: Sequence[Arm], folders: Sequence[Path]) -> str:
    """What is above the page and the table."""
    study, about = _study(folders), found[0].runs[0].about
    data = study.get("task") or study.get("data") or found[0].runs[0].path.parent.name
    if found[0].kind == "data-parallel":
        return f"{data}, {about['workers']} workers, {about['steps']} steps"
    if found[0].kind == "pipelined":
        return f"{data}, {about['parts']} parts, batches of {about['batch']}, {about['steps']} steps"
    rounds = study.get("rounds") or max(run.length for arm in found for run in arm.runs)
    return f"{data}, {about['clients']} clients, {rounds} rounds" if "clients" in about else f"{data}, {rounds} rounds"


def setting(found: Sequence[Arm], study: Record, folders: Sequence[Path]) -> list[tuple[str, str]]:
    """What was trained and how, in words: pairs of a name and what is said of it."""
    runs = [run for arm in found for run in arm.runs]
    about = runs[0].about
    parameters = next((run.summary["parameters"] for run in runs if run.summary and "parameters" in run.summary), None)
    parameters = about.get("parameters", parameters)
    examples = f", {about['examples']:,} examples in all" if "examples" in about else ""
    said = [
        ("Data", f"{study['task']} (a task of the user's own){examples}" if study.get("task") else None),
        ("Data", f"{study['data']}{examples}" if study.get("data") and not study.get("task") else None),
        ("Pictures", "changed batch by batch: " + ", ".join(study["augment"]) if study.get("augment") else None),
        (
            "Model",
            ", ".join(
                [
                    *(
                        [study["model"] or "one that suits the data"]
                        if "model" in study and not study.get("task")
                        else []
                    ),
                    *([f"{parameters:,} parameters"] if parameters else []),
                ]
            ),
        ),
        *SETTINGS[found[0].kind](about, study),
        ("Local training", _shared_trainer(found)),
        ("Seeds", ", ".join(map(str, sorted({run.seed for run in runs})))),
        ("Folders", ", ".join(map(str, folders))),
        ("Made with", "; ".join(dict.fromkeys(str(v) for run in runs for v in run.about.get("versions", ())))),
    ]
    return [(name, text) for name, text in said if text]


def _of_rounds(about: Record, study: Record) -> list[tuple[str, str | None]]:
    clients, sample = about.get("clients"), about.get("sample")
    everyone = "all of them take part in each round" if sample == clients else f"{sample} of them take part in a round"
    split = f", with shares of the data by {study['split']}" if study.get("split") else ""
    dropout, holdout = about.get("dropout") or 0, study.get("holdout") or 0
    return [
        ("Clients", f"{clients}{split}; {everyone}" if clients else None),
        ("Rounds", str(study["rounds"]) if study.get("rounds") else None),
        ("Lost replies", f"a client that takes part does not answer with probability {dropout:g}" if dropout else None),
        ("Network", _plain(about.get("network")) or "none simulated"),
        ("Privacy", _plain(about.get("privacy"))),
        (
            "Own tests",
            f"{100 * holdout:g} % of each client's examples, which it does not train on" if holdout else None,
        ),
    ]


def _of_steps(about: Record, study: Record) -> list[tuple[str, str | None]]:
    kind = "AdamW" if about.get("adamw") else "SGD"
    more = "" if about.get("adamw") else f", momentum {about.get('momentum', 0):g}"
    more += " (Nesterov's)" if about.get("nesterov") else ""
    more += f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
    decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
    return [
        ("Workers", f"{about['workers']}, each of which takes {about['batch']} examples in a step"),
        ("Steps", f"{about['steps']:,}"),
        ("Optimiser", f"{kind}, learning rate {about['lr']:g}{more}"),
        ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
    ]


def _of_parts(about: Record, study: Record) -> list[tuple[str, str | None]]:
    own = [f"{f + b:.3g}" for f, b in zip(about["forward"], about["backward"], strict=True)]
    decay = ", ".join(f"{100 * share:g} %" for share in about.get("decay") or ())
    rates = _listed([f"{factor:g}" for factor in about["rates"]]) if about.get("rates") else None
    more = f", weight decay {about['weight_decay']:g}" if about.get("weight_decay") else ""
    begin = _listed([str(place) for place in about["cut"]]) if about["cut"] else None
    return [
        ("Parts", f"{about['parts']}" + (f"; from the second on they begin at module {begin}" if begin else "")),
        ("Steps", f"{about['steps']:,}, of {about['batch']} examples"),
        ("Optimiser", f"{about['optimizer']}, learning rate {about['lr']:g}, momentum {about['momentum']:g}{more}"),
        ("Rates", f"{rates} times that, by part" if rates else None),
        ("Clipping", f"gradients of a part to a norm of {about['clip']:g}" if about.get("clip") else None),
        ("Decay", f"to a tenth of the rate after {decay} of the steps" if decay else None),
        ("Links", f"{about['mbit']:g} Mbit/s each way, {about['latency']:g} s one way"),
        ("Seconds", f"a batch takes parts {_listed(own)} s forward and back"),
    ]


SETTINGS = {"federated": _of_rounds, "data-parallel": _of_steps, "pipelined": _of_parts}
"""What is said of a run, from its ``run.json`` and its study, by its kind."""


def _chosen(found: Sequence[Arm]) -> list[tuple[str, str]]:
    """What Auto chose in each run, and why."""
    return [
        (f"{arm.label}, seed {run.seed}, round {made['round']}", " ".join([f"{made['expression']}.", *made["why"]]))
        for arm in found
        for run in arm.runs
        for made in chosen(run)
    ]


def _written(arm: Arm) -> list[tuple[str, str]]:
    """The expressions of a method: its own, and those that it chose."""
    made = [(f"{arm.label}, seed {run.seed}", one["expression"]) for run in arm.runs for one in chosen(run)]
    return [(arm.label, arm.expression), *dict.fromkeys(made)]


def _plain(text: str | None) -> str | None:
    """An expression without what it leaves at its default, where it can be read."""
    try:
        return None if text is None else repr(parse(text, names=vocabulary()))
    except ValueError:
        return text


def _shared_trainer(found: Sequence[Arm]) -> str | None:
    """How clients train, where that is the same with every method: labels leave it out then."""
    try:
        each = [trainers(parse(arm.expression)) for arm in found]
    except ValueError:
        return None
    kinds = {complete(trainer) for some in each for trainer in some}
    return _plain(kinds.pop()) if len(kinds) == 1 else None


def warnings(found: Sequence[Arm]) -> list[str]:
    """What a reader should know before comparing methods."""
    unit, said = found[0].unit, []
    runs = [run for arm in found for run in arm.runs]
    if single := [arm.label for arm in found if len({run.seed for run in arm.runs}) == 1]:
        whose = "Every method" if len(single) == len(found) else _listed(single)
        said.append(
            f"{whose} was trained with one seed: a difference may be chance. `--seeds 0,1,2` trains with three, and "
            f"the table then has deviations."
        )
    longest = max(run.length for run in runs)
    for arm in found:
        for run in arm.runs:
            figures = "its figures are those of what there is"
            if run.summary is None:
                state = f"has {run.length} {unit}s so far and is not finished"
                if any(other.summary is not None for other in arm.runs):
                    figures = "the method's figures are those of its other seeds"
            elif run.length < longest:
                state = f"has {run.length} {unit}s, and others have {longest}"
            else:
                continue
            said.append(f"{arm.label}, seed {run.seed}, {state}: {figures}.")
    seeds = {tuple(sorted({run.seed for run in arm.runs})) for arm in found}
    if len(seeds) > 1:
        said.append("Methods have different seeds: a seed draws the split and the model, so they met different ones.")
    each = [{n: v for n, v in run.about.items() if n not in MAY_DIFFER} | setting_of(run) for run in runs]
    fixed = dict.fromkeys(name for one in each for name in one)
    found_by = {name: sorted({str(one.get(name)) for one in each}) for name in fixed}
    return said + [f"Runs differ in {name}: {_listed(values)}." for name, values in found_by.items() if len(values) > 1]


MAY_DIFFER = (
    *("method", "name", "seed", "model", "data", "test", "examples", "versions", "plan", "device", "staleness"),
)
"""What ``run.json`` says that may differ between runs of one study."""


def _listed(words: Sequence[str]) -> str:
    shown = [*words[:6], *([f"{len(words) - 6} more"] if len(words) > 6 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


# -- numbers --------------------------------------------------------------------


def _table(rows: Sequence[Record]) -> Record:
    columns, form = table.columns_of(rows), table.FORMS[rows[0]["kind"]]
    return {
        "head": [HEADS.get(name, name) for name, _ in columns],
        "rows": [[cell(row) for _, cell in columns] for row in rows],
        "note": table.noted(form.notes, [name for name, _ in columns]),
    }


HEADS = {"10": "s at 10", "100": "s at 100"}
"""Columns whose names need the one before them, which sorting and narrow pages part them from."""


def _axes(found: Sequence[Arm]) -> Record:
    labels = {name: label for name, (_, label) in axes(found[0].kind).items()}
    timed = any(run.rounds and run.rounds[-1].get("clock") for arm in found for run in arm.runs)
    if not timed and "seconds" in labels:
        labels["seconds"] = "seconds of the slowest client's bytes at 10 Mbit/s"
    return labels


def _curves(arm: Arm) -> Record:
    """By value: the mean over seeds, the band, and the place on every axis."""
    made: Record = {}
    for value in NAMES:
        for name, (axis, _) in axes(arm.kind).items():
            found = curve(arm, axis, value)
            if found is None:
                continue
            kept = _thinned(len(found.x))
            if value not in made:
                made[value] = {"y": _short(found.middle[kept]), "seeds": found.seeds, "x": {}}
                if found.seeds > 1:
                    made[value] |= {"low": _short(found.low[kept]), "high": _short(found.high[kept])}
            made[value]["x"][name] = _short(found.x[kept])
    return made


def _thinned(length: int) -> Any:
    """Which of so many points stay: the first, the last, and some evenly between."""
    return np.unique(np.linspace(0, length - 1, min(length, POINTS)).round().astype(int))


def _short(values: Iterable[float]) -> list[float | None]:
    """Six digits, which is more than is drawn. JSON has no word for what is no number but null."""
    return [float(f"{x:.6g}") if np.isfinite(x) else None for x in values]


def _targets(arm: Arm) -> list[Record]:
    """Of each seed: the evaluations at which the model was better than ever before, and what they had cost.

    ``accuracy``, in percent, is the Dice coefficient where pictures are segmented.
    """
    found, measure = [], table.judged(arm)
    for run in arm.runs:
        best, kept = -1.0, list[int]()
        for i, line in enumerate(run.rounds):
            accuracy = line.get(measure)
            if accuracy is not None and accuracy > best:
                best, kept = accuracy, [*kept, i]
        costs = {name: np.array(axis(run))[kept] for name, (axis, _) in axes(arm.kind).items()}
        reached = [100 * run.rounds[i][measure] for i in kept]
        thin = _thinned(len(kept)) if kept else []
        made = {name: _short(cost[thin]) for name, cost in costs.items()} if kept else {}
        found.append({"seed": run.seed, "accuracy": _short(np.array(reached)[thin]) if kept else [], **made})
    return found


PARTS = {
    "federated": {
        "up_payload": "up, payload",
        "up_framing": "up, headers",
        "down_payload": "down, payload",
        "down_framing": "down, headers",
    },
    "data-parallel": {
        "reduced_bytes": "up, in all-reduces",
        "gathered_bytes": "up, in all-gathers",
        "down_bytes": "down",
    },
    "pipelined": {"up_bytes": "activations, ahead", "down_bytes": "error gradients, back"},
}
"""What all bytes of a run are made of, by its kind."""
SAID = {
    "federated": "All bytes of a run, in the mean over seeds. Headers are what a message has around its payload.",
    "data-parallel": "All bytes of one worker's run, in the mean over seeds.",
    "pipelined": "All bytes between parts, in the mean over seeds.",
}


def _bytes(found: Sequence[Arm]) -> list[Record]:
    """What of all bytes went where, in the mean over seeds; a list with ``name`` and ``values``, one a method."""
    parts = PARTS[found[0].kind]
    return [{"name": said, "values": [table.mean(arm, name) for arm in found]} for name, said in parts.items()]


def _layers(found: Sequence[Arm]) -> list[Record] | None:
    """Of each method the bytes of each layer, up and down, in the mean over seeds; ``*`` is what has no one layer."""
    made = []
    for arm in found:
        runs = [run for run in arm.runs if any("layer_bytes" in line for line in run.rounds)]
        for way in ("up", "down"):
            sums: dict[str, float] = {}
            for run in runs:
                for line in run.rounds:
                    for name, size in line.get("layer_bytes", {}).get(way, {}).items():
                        sums[name] = sums.get(name, 0) + size / len(runs)
            if sums:
                made.append({"method": found.index(arm), "way": way, "bytes": sums})
    return made or None


def _clients(found: Sequence[Arm]) -> list[Record] | None:
    """What clients reach on tests of their own at the last evaluation: of each method all seeds' clients, sorted."""
    made = []
    for number, arm in enumerate(found):
        last = [line for line in (_last_line(run.path / "clients.jsonl") for run in arm.runs) if line]
        measure = table.judged(arm)
        each = [sorted(100 * x for x in line[measure] if x is not None) for line in last if line.get(measure)]
        if not any(each):
            continue
        everyone = sorted(x for values in each for x in values)
        tenth = [statistics.fmean(values[: max(1, len(values) // 10)]) for values in each if values]
        kept = _thinned(len(everyone))
        made.append(
            {
                "method": number,
                "share": _short(100 * (kept + 0.5) / len(everyone)),
                "accuracy": _short(np.array(everyone)[kept]),
                "mean": statistics.fmean(everyone),
                "median": statistics.median(everyone),
                "worst_tenth": statistics.fmean(tenth),
                "worst": everyone[0],
                "clients": len(everyone),
            }
        )
    return made or None


def _last_line(path: Path) -> Record | None:
    """The last line of a file that is whole."""
    for line in reversed(path.read_text().splitlines() if path.exists() else []):
        try:
            found: Record = json.loads(line)
            return found
        except json.JSONDecodeError:
            continue  # the line that a kill cut short
    return None


# -- heat maps --------------------------------------------------------------------

NOT_CALLED, ANSWERED, LOST, LATE = range(4)


def _taking_part(found: Sequence[Arm]) -> list[Record] | None:
    """Of each seed of each method: which client was called in which round, and what became of the call."""
    made = []
    for number, run in _runs(found):
        states = _states(run.path / "ledger.jsonl")
        if not states:
            continue
        clients = run.about.get("clients") or 1 + max(client for _, client in states)
        rounds = max(round for round, _ in states)
        grid = np.full((clients, rounds), NOT_CALLED, dtype=np.int8)
        for (round, client), state in states.items():
            grid[client, round - 1] = state
        cells, by = _coarse(grid, _most(found))
        said = {
            name: int((grid == state).sum()) for name, state in (("answered", ANSWERED), ("lost", LOST), ("late", LATE))
        }
        text = ["".join(map(str, row)) for row in cells.astype(int).tolist()]
        made.append({"method": number, "seed": run.seed, "cells": text, "by": by, **said})
    return made or None


def _states(path: Path) -> dict[tuple[int, int], int]:
    """By round and client, of those that were called: whether they answered."""
    states: dict[tuple[int, int], int] = {}
    if not path.exists():
        return states
    with open(path) as file:
        for line in file:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                break  # the line that a kill cut short
            where = entry["round"], entry["client"]
            if entry["direction"] == "up":
                states[where] = ANSWERED if entry.get("used", True) else LATE
            else:
                states.setdefault(where, LOST)
    return states


def _runs(found: Sequence[Arm]) -> list[tuple[int, Run]]:
    """Every run, with the number of its method."""
    return [(number, run) for number, arm in enumerate(found) for run in arm.runs]


def _most(found: Sequence[Arm]) -> tuple[int, int]:
    """Rows and columns of a heat map: fewer columns where there are many runs, for the sake of the page's size."""
    rows, columns = CELLS
    return rows, max(40, columns * FULL // max(FULL, len(_runs(found))))


def _coarse(grid: Any, most: tuple[int, int] = CELLS) -> tuple[Any, list[int]]:
    """A grid of at most so many rows and columns. Neighbours share a cell, their highest: so many each way."""
    by = [-(-size // limit) for size, limit in zip(grid.shape, most, strict=True)]
    if by != [1, 1]:
        pads = [(0, -size % one) for size, one in zip(grid.shape, by, strict=True)]
        grid = np.pad(grid, pads, constant_values=grid.min())
        rows, columns = (size // one for size, one in zip(grid.shape, by, strict=True))
        grid = grid.reshape(rows, by[0], columns, by[1]).max((1, 3))
    return grid, by


def _unsent(found: Sequence[Arm]) -> list[Record] | None:
    """Of each seed of methods that leave layers out of replies: which, in each round."""
    made = []
    for number, run in _runs(found):
        lines = [line for line in run.rounds if line.get("layer_bytes", {}).get("unsent") is not None]
        names = list(dict.fromkeys(name for line in lines for name in line["layer_bytes"]["unsent"]))
        order = [name for line in lines for name in line["layer_bytes"]["up"]]
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        if not names:
            continue
        grid = np.array([[float(name in line["layer_bytes"]["unsent"]) for line in lines] for name in names])
        made.append({"method": number, "seed": run.seed, "rows": names, **_heat(grid, _most(found))})
    return made or None


def _recycled(found: Sequence[Arm]) -> list[Record] | None:
    """Of each seed of methods whose links look back: the share of layers that a client's reply recycled."""
    made = []
    for number, run in _runs(found):
        shares: dict[tuple[int, int], list[bool]] = {}
        for line in run.rounds:
            for look in line.get("looks") or ():
                shares.setdefault((look["client"], line["round"]), []).append(look["recycled"])
        if not shares:
            continue
        clients = run.about.get("clients") or 1 + max(client for client, _ in shares)
        grid = np.full((clients, run.length), -1.0)
        for (client, round), each in shares.items():
            grid[client, round - 1] = statistics.fmean(each)
        made.append({"method": number, "seed": run.seed, "rows": None, **_heat(grid, _most(found))})
    return made or None


def _heat(grid: Any, most: tuple[int, int]) -> Record:
    """Cells of a heat map, null where there is nothing, and how many rows and rounds share one."""
    cells, by = _coarse(grid, most)
    return {"cells": [[None if x < 0 else round(float(x), 3) for x in row] for row in cells], "by": by}
