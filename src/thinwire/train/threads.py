"""One torch thread for each operation: the bits of a sum must not depend on the machine's cores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch's for what runs inside, and as many as before afterwards. Workers call :func:`single`."""
    before = torch.get_num_threads()
    single()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def single() -> None:
    """One thread of torch's from now on: how a worker, a thread or a process, begins."""
    torch.set_num_threads(1)
