"""Workers spread over the processors while a short job lasts.

Whoever wakes threads finds them on its own processor, and Linux moves one to an idle processor some milliseconds
later. A round of small clients may be over by then, with all its workers on one processor.
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
        self.free = sorted(every) if 1 < workers == len(every) else []

    @contextmanager
    def spread(self) -> Iterator[None]:
        """Within the block this thread stays on a processor on which no other thread is within one.

        Where it was told since to stay elsewhere, it does that. Afterwards it goes where it went before.
        """
        try:
            mine = self.free.pop()
        except IndexError:
            yield
            return
        before = os.sched_getaffinity(0)
        try:
            if mine in before:
                with contextlib.suppress(OSError):  # the processor was taken away meanwhile
                    os.sched_setaffinity(0, {mine})
            yield
        finally:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)
            self.free.append(mine)
