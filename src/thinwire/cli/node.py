"""``thinwire node``."""

from __future__ import annotations

import typer

from .app import app


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def node(given: typer.Context) -> None:
    """A client of a real federation: Flower's flower-supernode with its options, kept warm between two messages."""
    from ..deploy.flower.node import run

    raise typer.Exit(run(given.args))
