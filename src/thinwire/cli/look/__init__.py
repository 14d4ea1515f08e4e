"""``thinwire look ...``: what happened in a run, and what a server sees of a client.

Each command prints a table, writes its figures into ``--out`` (the run's own folder ``look``), and with ``--json`` ends
with one object that has all that the figures show.
"""

from __future__ import annotations

from . import recorded, studies, trained, trials  # each adds its commands, in the order of --help
from .command import look

__all__ = ["look", "recorded", "studies", "trained", "trials"]
