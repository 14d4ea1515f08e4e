"""A study as one page of HTML that needs no network: ``thinwire report``.

:func:`gather` makes the contents, an object of JSON; ``page/report.js`` draws them; :func:`page` puts contents, script,
style and the drawing library (plotly.js, compressed) into one file. A study that trains is drawn anew from new contents
by the same script (:mod:`thinwire.report.serve`).

What is said comes from :mod:`~thinwire.report.about`, what is drawn from :mod:`~thinwire.report.numbers` and
:mod:`~thinwire.report.heat`.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from ..errors import require
from ..run.folder import write_atomic
from ..studies import KINDS
from ..studies.read import Arm, Record, arms, comparable
from ..version import code_version
from . import about, heat, numbers, table
from .curves import NAMES, has, sent_axes

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"

# A page loads nothing. `connect-src` is for the one that is served, which asks for its contents again.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' blob:; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'"
)


def write(folders: Sequence[Path], out: Path) -> Path:
    """The page of all runs below ``folders``, as a file whose name ends with .html; any other ``out`` is its folder.

    Raises :class:`RunError` where there is no run to read.
    """
    out = out if out.suffix == ".html" and not out.is_dir() else out / "report.html"
    there = next(one for one in (out.parent, *out.parent.resolve().parents) if one.exists())
    require(there.is_dir(), f"--out {out}: {there} is a file; name a folder, which need not exist, or a file in one")
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
    methods = arms(list(folders))
    rows, kind = table.rows(methods), KINDS[methods[0].kind]
    study = about.study_of(folders)
    whole, most = [comparable(arm) for arm in methods], numbers.points(methods)
    setting = [*about.setting(methods, study, folders), *about.lengths_said(methods), *about.chosen_said(methods)]
    sections = {
        "layers": numbers.layers(whole),
        "clients": numbers.clients(whole, most),
        "taking_part": heat.taking_part(methods),
        "unsent": heat.unsent(methods),
        "recycled": heat.recycling(methods),
    }
    return {
        "title": about.title(methods, folders),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "version": code_version(),
        "unit": methods[0].unit,
        "setting": [list(pair) for pair in setting],
        "warnings": about.warnings(methods, folders),
        "methods": [{"label": arm.label} for arm in methods],
        "expressions": [
            {"method": number, "label": label, "expression": text}
            for number, arm in enumerate(methods)
            for label, text in about.expressions_of(arm)
        ],
        "table": numbers.cells(rows),
        "axes": numbers.axes_of(methods),
        "values": {name: NAMES[name] for name in NAMES if has(methods, name)},
        "curves": [numbers.curves(arm, most) for arm in methods],
        "counted": sent_axes(methods[0].kind),
        "sent": [numbers.sent_by(arm, most) for arm in methods],
        "measure": {"accuracy": "accuracy", "dice": "Dice coefficient"}[rows[0]["measure"]],
        "targets": [numbers.targets(arm, most) for arm in whole],
        "bytes": numbers.bytes_of(whole),
        "bytes_said": kind.ways_said,
        **{name: value for name, value in sections.items() if value is not None},
        "missing": [
            why
            for name, (letters, why) in kind.absent.items()
            if _is_wanted(name, letters, methods) and sections[name] is None
        ],
    }


def _is_wanted(name: str, methods: str, arms: Sequence[Arm]) -> bool:
    """True where runs of methods whose expressions have these letters could have a section."""
    runs = [run for arm in arms if methods in arm.expression for run in arm.runs]
    recorded = name == "unsent" and any(heat.left_out(line) is not None for run in runs for line in run.rounds)
    return bool(runs) and not recorded
