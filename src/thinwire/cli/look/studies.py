"""What a whole study shows: what its methods reached, by a setting or by what they sent."""

from __future__ import annotations

from typing import Annotated

import typer

from ..options import Folders, Json
from .command import Out, look, said, table


@look.command("sweep")
def of_sweep(
    folders: Folders,
    across: Annotated[
        str | None,
        typer.Option(
            help="A number of the methods, e.g. opt.beta (default: the only one that differs), or what was sent: "
            "bytes (both directions), bytes_up or floats_up."
        ),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(help="accuracy, dice, loss, perplexity... (default: what the methods are judged by)."),
    ] = None,
    tuned: Annotated[
        str | None,
        typer.Option(help="A number that was tuned, e.g. local.lr: of methods that differ in it the best counts."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """What methods reached by a number in their expressions, or by what they sent; bars are over seeds.

    Needs a study with several methods that were evaluated: the mean of the last five evaluations counts.
    """
    from ...look import drawing as figures
    from ...look import sweep
    from ...studies.read import arms

    name, value, found = sweep.swept(arms(folders), across, tuned, of)
    rows = [
        [line.name, f"{p.at:g}", f"{p.mean:.4g}", f"{p.low:.4g}", f"{p.high:.4g}"]
        for line in found
        for p in line.points
    ]
    table(sweep.NAMES[value], ("methods", name, "mean", "lowest", "highest"), rows)
    drawn = [figures.swept(found, name, sweep.NAMES[value], (out or folders[0] / "look") / "sweep.png")]
    lines = [{"name": line.name, "points": [point._asdict() for point in line.points]} for line in found]
    said(as_json, {"across": name, "value": value, "lines": lines}, drawn)
