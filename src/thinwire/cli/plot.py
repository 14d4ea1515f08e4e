"""``thinwire plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import Folders, Json, print_json


@app.command()
def plot(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for all plots (default: the first DIR), or one file for the overview: plots.svg."),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="png, svg, pdf...: of every file in a folder.", show_default="png")
    ] = None,
    title: Annotated[str | None, typer.Option(help="A line above the curves.")] = None,
    size: Annotated[str | None, typer.Option(help="Width and height in inches, e.g. 8x5.")] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The best accuracy and loss until then, in files that begin with best_.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Curves of accuracy and loss against rounds or steps, bytes, floats and seconds; of what was sent, by round."""
    from ..report.plots import plot as draw
    from ..studies.read import arms

    files = draw(arms(folders), out or folders[0], form, title, _inches(size), best)
    for file in files:
        typer.echo(str(file))
    print_json(as_json, {"files": [str(file) for file in files]})


def _inches(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        width, height = (float(word) for word in text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (0 < width <= 100 and 0 < height <= 100):
        raise ValueError(f"--size {text}: width x height in inches, such as 8x5")
    return width, height
