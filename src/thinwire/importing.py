"""Imports without searches for garbage.

What is imported stays. While it comes, Python searches all that is there for garbage again and again, and finds none.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """No search for garbage until the block ends. Then what is there counts as old, so that few searches go over it."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else the two would put back what somebody has frozen
            gc.freeze()
            gc.unfreeze()
        gc.enable()
