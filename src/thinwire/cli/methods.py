"""``thinwire methods``."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import app
from .options import Json, Use, print_json


@app.command()
def methods(
    what_with_what: Annotated[
        bool, typer.Option("--matrix", help="Instead: which go together, and why others do not.")
    ] = False,
    use: Use = None,
    as_json: Json = False,
) -> None:
    """Every public name: what it is, how it is called, where it comes from."""
    if what_with_what:
        if use:
            raise ValueError("--matrix tries thinwire's own methods and links alone: leave out --matrix or --use")
        from ..studies import matrix

        pairs = matrix.matrix()
        if not as_json:
            matrix.show(pairs)
        print_json(as_json, {"pairs": [pair._asdict() for pair in pairs]})
        return
    from ..studies.catalogue import catalogue, show

    entries = catalogue(use or ())
    if not as_json:
        show(entries)
    print_json(as_json, {"methods": [entry._asdict() for entry in entries]})
