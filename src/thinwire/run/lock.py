"""A lock of a file that ends with the process that holds it, however that ends."""

from __future__ import annotations

from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has another way
    fcntl = None  # type: ignore[assignment]


def lock_file(file: IO[Any]) -> bool:
    """Lock a file that is open for writing; whether it could be: not where another process, or opening, has it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except (BlockingIOError, PermissionError):
        return False
    return True
