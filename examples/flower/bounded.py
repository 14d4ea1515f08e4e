"""Run a program of Flower's, but no more than so many at once: ``bounded.py FOLDER AT_MOST PROGRAM ARGUMENT ...``.

Flower starts a process for every run and for every message, and starts another one when the first is slow to report
back. On a machine that is already full those are slow as well, and ever more of them are started. Here each waits
until one of AT_MOST files in FOLDER is free to be locked, without importing anything meanwhile; the program keeps the
lock for as long as it lives. One that has waited for ten minutes, or whose parent is gone, gives up. So does one that
finds WAITING others waiting: there are never more than AT_MOST + WAITING processes of a program, however often it is
started.
"""

import fcntl
import os
import sys
import time

PATIENCE = 600  # seconds
WAITING = 32


def main() -> None:
    """Wait for a lock, then become the program."""
    folder, most, program, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[3:]
    name = os.path.join(folder, os.path.basename(program))
    parent, end = os.getppid(), time.monotonic() + PATIENCE
    place = lock(f"{name}-waiting", WAITING)  # given back when this process becomes the program, or ends
    if place is None:
        sys.exit(f"{program} is not started: {WAITING} of it wait already")
    while time.monotonic() < end and os.getppid() == parent:
        held = lock(name, most)
        if held is not None:
            os.set_inheritable(held, True)
            os.execv(program, arguments)
        time.sleep(0.2)
    sys.exit(f"{program} waited for {PATIENCE} seconds while {most} others ran")


def lock(name: str, places: int) -> int | None:
    """An open file, locked, of so many of this name; None where all of them are taken."""
    for place in range(places):
        file = os.open(f"{name}-{place}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        return file
    return None


if __name__ == "__main__":
    main()
