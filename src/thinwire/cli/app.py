"""The program that all commands belong to, and ``thinwire --version``."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells have it


def _version(wanted: bool) -> bool:
    if wanted:
        from ..version import code_version

        typer.echo(f"thinwire {code_version()}")
        raise typer.Exit
    return wanted


@app.callback()
def thinwire(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compare federated, data-parallel and pipelined training on real data, counting every byte."""
