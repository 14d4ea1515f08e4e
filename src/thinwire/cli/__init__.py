"""The command line: ``thinwire run``, ``resume``, ``report``, ``methods``, ``look``, ``pipeline run`` and others.

A command, or a family such as ``look``, is a file, which adds itself to ``app`` when it is imported. None imports torch
before it is called.
"""

from __future__ import annotations

import os
import sys

try:
    import typer
except ImportError as error:
    sys.exit(f'thinwire: the command line needs typer ({error}): pip install "thinwire[cli]"')

from ..train.allocator import keep_freed_memory
from .app import INTERRUPTED, app

from . import resume, plot, report, table, methods, predict, plan, look, pipeline, node, watch, train  # isort: skip  # noqa: F401

train.add_all()
# In the order of `thinwire --help`: what trains first, others as they are imported, and other kinds after them.
for one in (app, pipeline.pipeline):
    one.registered_commands.sort(key=lambda command: command.name != "run")

__all__ = ["app", "main"]


def main() -> None:
    """The entry point: every expected failure is one line on standard error, and the exit code 2.

    An exception in a module of the user's is shown as Python would, without our part of it; any other is a bug of
    ours and shown as it is: both have the exit code 1. A command line that cannot be read is answered with how it is
    written, by typer.
    """
    keep_freed_memory()
    try:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            from ..run.ranks import join

            join()
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        from .blame import answer

        code = answer(error)
    sys.exit(code or 0)
