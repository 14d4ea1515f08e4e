"""``thinwire table``."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app
from .options import Folders, Json, print_json


@app.command("table")
def tabulate(
    folders: Folders,
    latex: Annotated[bool, typer.Option("--latex", help="A tabular of LaTeX, with booktabs' rules.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Comma-separated values, not rounded: bytes, shares, seconds.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table of Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """The table of studies that are there, on the terminal or as text for a paper, a spreadsheet, a page."""
    from ..report import table
    from ..report.about import title
    from ..studies.read import arms

    forms = {"--latex": (latex, table.latex), "--csv": (csv, table.csv), "--markdown": (markdown, table.markdown)}
    wanted = {name: form for name, (asked, form) in forms.items() if asked}
    if len(wanted) > 1:
        raise ValueError(f"{' and '.join(wanted)} are two formats: leave one out")
    methods = arms(folders)
    rows = table.rows(methods)
    for form in wanted.values():
        typer.echo(form(rows), nl=False)
    if not wanted:
        table.show(rows, title(methods, folders))
    print_json(as_json, {"rows": rows})
