"""Memory that a training step frees is kept for the next step.

The C library gives large freed arrays back to the operating system. The next step then takes new pages, which the
system fills with zeros first. A step of a convolutional network takes and frees tens of megabytes, so a good part of
its time goes into that (``benchmarks/allocator.py``).
"""

from __future__ import annotations

import ctypes
import platform

# Parameters of mallopt(3), with what is set: no array below 32 MiB, the largest limit there is, has a mapping of its
# own; up to 2 GiB at the heap's end are kept; and the heap grows by 64 MiB.
_OPTIONS = ((-3, 2**25), (-1, 2**31 - 1), (-2, 2**26))  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD


def keep_freed_memory() -> bool:
    """Keep what this process frees until it ends, instead of giving it back. True if the C library does so now.

    For processes of our own: the command line begins with it, and a program that imports the package may. The process
    holds on to the most that it ever needed. With another C library than glibc nothing changes, and False is returned.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(min(mallopt(option, value) for option, value in _OPTIONS) == 1)


def give_back_freed_memory() -> None:
    """Give back to the system what is free in this process now.

    A thread takes memory from a heap of its own, so what another has freed stays unused beside it. Nothing is done with
    another C library than glibc.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
