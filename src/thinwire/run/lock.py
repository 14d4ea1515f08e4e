"""A lock of a file that ends with the process that holds it, however that ends."""

from __future__ import annotations

from typing import IO, Any


def lock_file(file: IO[Any]) -> bool:
    """Lock a file that is open for writing; whether it could be: not where another process, or opening, has it."""
    try:
        try:
            import fcntl
        except ImportError:  # on Windows
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
