"""Workers spread over the processors while a short job lasts.

Whoever wakes threads finds them on its own processor, and Linux moves one to an idle processor some milliseconds
later. A round of small clients is over by then: two workers did the work of one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager


class Processors:
    """Those that this process may use, one for each of so many workers where they fill all of them; else none."""

    def __init__(self, workers: int) -> None:
        every = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        self.every = every if 1 < workers == len(every) else set()
        self.free = sorted(self.every)

    @contextmanager
    def spread(self) -> Iterator[None]:
        """Within the block this thread stays on a processor on which no other thread is within one."""
        try:
            mine = self.free.pop()
        except IndexError:
            yield
            return
        try:
            with contextlib.suppress(OSError):  # it was taken away from this process meanwhile
                os.sched_setaffinity(0, {mine})
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self.every)
            self.free.append(mine)
