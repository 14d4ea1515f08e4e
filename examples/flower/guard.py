"""End what a process has started when that process is gone, however it ended, be it by ``kill -9``.

Flower starts processes in sessions of their own, and others begin where it ends them: neither a signal to a group nor
the death of a parent reaches all of them. But each has the environment of the one that started it. So a process that
begins with ``Guard(environment)`` puts a mark there, and what it starts with that environment, and what these start,
can be found by the mark. A process beside it, ``guard.py PARENT MARK``, waits until its parent is gone and then kills
whatever has the mark.

Linux alone shows the environment of other processes, in ``/proc``. Elsewhere nothing is found and nothing is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

VARIABLE = "THINWIRE_STARTED_BY"  # in the environment: the marks of all guards under which a process was started


class Started(NamedTuple):
    """A process: its number, its command, and the environment that it was started with."""

    pid: int
    command: str
    environment: dict[str, str]


class Guard:
    """Marks an environment, and what is started with it ends at the latest when this process does."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), self.mark],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,  # Ctrl-C ends what is guarded, not the guard
        )
        environment[VARIABLE] = f"{environment.get(VARIABLE, '')} {self.mark}".strip()

    def left(self) -> list[Started]:
        """The processes that have the mark."""
        return marked(self.mark)

    def close(self) -> None:
        """End what is left, then the guard itself."""
        sweep(self.mark)
        self.process.kill()
        self.process.wait()


def marked(mark: str) -> list[Started]:
    """The processes that were started with a mark. A dead one whose parent has not waited for it is none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(word.split("=", 1) for word in words if "=" in word)
            if mark in environment.get(VARIABLE, "").split():
                command = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
                found.append(Started(int(folder.name), command, environment))
    return found


def sweep(mark: str) -> None:
    """Kill what has a mark, until nothing is found any more: one of them may just be starting another."""
    clear = 0
    while clear < 3:
        found = marked(mark)
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one.pid, signal.SIGKILL)
        clear = 0 if found else clear + 1
        time.sleep(0.05)


def main() -> None:
    """Wait until the parent is gone; then end what it has left."""
    parent, mark = int(sys.argv[1]), sys.argv[2]
    while os.getppid() == parent:
        time.sleep(0.2)
    sweep(mark)


if __name__ == "__main__":
    main()
