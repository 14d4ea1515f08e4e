"""Has a process behave, as far as Python's library can be replaced, as on Windows.

No ``fcntl``, ``fork``, ``prctl`` or Unix sockets; ``msvcrt`` locks files; folders cannot be opened, nor what was opened
for reading be flushed to disk; what is open, or mapped, cannot be replaced, renamed or deleted; names may not have
``<>:"|?*`` in them; text without an encoding is of code page 1252, and without ``newline`` its lines end in two
characters. The rules of files are for one folder, and for calls from Python: torch was made for this system.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import multiprocessing
import os
import platform
import runpy
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORBIDDEN = set('<>:"|?*')


def run(folder: str, program: str, *words: str) -> None:
    """Run a program as ``__main__`` there; every file that it names below ``folder`` obeys."""
    import torch._dynamo  # noqa: F401  what torch imports for this system, before this system is gone

    forget_unix()
    forbid(os.path.realpath(folder) + os.sep)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


def forget_unix() -> None:
    """Take away what Windows has not, and give it its own way to lock a file."""
    import fcntl

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1), "a lock that waits, or of more than a byte"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    msvcrt: Any = types.ModuleType("msvcrt")
    msvcrt.locking, msvcrt.LK_NBLCK = locking, 2
    sys.modules["msvcrt"] = msvcrt
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]
    del os.fork, os.O_DIRECTORY, socket.AF_UNIX
    platform.libc_ver = lambda *_: ("", "")  # type: ignore[assignment]
    multiprocessing.get_all_start_methods = lambda: ["spawn"]  # type: ignore[assignment]
    load = ctypes.CDLL.__init__

    def cdll(self: ctypes.CDLL, name: Any, *rest: Any, **more: Any) -> None:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        load(self, name, *rest, **more)

    ctypes.CDLL.__init__ = cdll  # type: ignore[method-assign]


def forbid(inside: str) -> None:
    """The rules of Windows for files below a folder."""
    open_file, open_descriptor, flush = io.open, os.open, os.fsync

    def name_of(path: Any) -> str | None:
        name = None if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
        return name if name is not None and name.startswith(inside) else None

    def check(path: Any) -> str | None:
        name = name_of(path)
        if name is not None and FORBIDDEN & set(name[len(inside) :]):
            raise OSError(22, f"Invalid argument: {name!r}")
        return name

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
               newline: Any = None, *rest: Any, **more: Any) -> Any:  # fmt: skip
        if check(file) is not None and "b" not in mode:
            encoding = encoding or "cp1252"
            newline = "\r\n" if newline is None and set(mode) & set("wax+") else newline
        return open_file(file, mode, buffering, encoding, errors, newline, *rest, **more)

    def descriptor(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if check(path) is not None and os.path.isdir(path):
            raise PermissionError(13, f"Permission denied: {path!r}")
        return open_descriptor(path, flags, *rest, **more)

    def flushed(number: int) -> None:
        with open_file(f"/proc/self/fdinfo/{number}") as about:
            flags = int(next(line for line in about if line.startswith("flags")).split()[1], 8)
        if flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        flush(number)

    def unused(path: Any) -> None:
        name = check(path)
        if name is None or not os.path.lexists(name):
            return
        below = tuple(filter(None, (name, os.path.isdir(name) and name + os.sep)))
        held = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
        with open_file("/proc/self/maps") as maps:
            held += [line.split(None, 5)[5].strip() for line in maps if line.count(" ") >= 5 and "/" in line]
        if used := [one for one in held if one == name or (len(below) > 1 and one.startswith(below[1]))]:
            raise PermissionError(13, f"The process cannot access the file because it is in use: {used[0]!r}")

    def guarded(function: Callable[..., Any], paths: int) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            for path in words[:paths]:
                if more.get("dir_fd") is None and more.get("src_dir_fd") is None:
                    unused(path)
            return function(*words, **more)

        return call

    def made(path: Any, *rest: Any, **more: Any) -> None:
        check(path)
        make(path, *rest, **more)

    make = os.mkdir
    builtins.open = io.open = opened  # type: ignore[assignment]
    os.open, os.fsync, os.mkdir = descriptor, flushed, made  # type: ignore[assignment]
    for name, paths in {"replace": 2, "rename": 2, "unlink": 1, "remove": 1, "rmdir": 1}.items():
        setattr(os, name, guarded(getattr(os, name), paths))
    import shutil

    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # as where folders have no descriptors
    Path(inside).mkdir(exist_ok=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
