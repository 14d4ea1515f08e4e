"""``thinwire report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .options import Folders, Json, print_json

PORT = 8642


@app.command()
def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(help="A file that ends with .html, or a folder for report.html (default: the first DIR)."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Instead of a file: a page for this machine that follows a run.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"Of --serve, {PORT} by default; 0 is any free one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """One page of HTML that needs no network: the table, curves, bytes, clients and complete expressions."""
    if not serve:
        if port is not None:
            raise ValueError(f"--port {port} is that of --serve, which was not given: leave it out, or add --serve")
        from ..report import html

        file = html.write(folders, out or folders[0])
        typer.echo(str(file))
        print_json(as_json, {"file": str(file)})
        return
    if out is not None:
        raise ValueError(f"--out {out} is not used with --serve, which writes no file: leave one of the two out")
    if as_json:
        raise ValueError("--json is not used with --serve, which ends with Ctrl-C: leave one of the two out")
    from ..report.serve import HERE, server

    with server(folders, PORT if port is None else port) as made:
        typer.echo(f"http://{HERE}:{made.server_port} (Ctrl-C ends it)")
        made.serve_forever()
