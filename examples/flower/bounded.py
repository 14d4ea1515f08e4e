"""Run a program of Flower's, but no more than so many at once: ``bounded.py FOLDER AT_MOST PROGRAM ARGUMENT ...``.

Flower starts a process for every run and for every message, and starts another one when the first is slow to report
back. On a machine that is already full those are slow as well, and ever more of them are started. Here each waits
until one of AT_MOST files in FOLDER is free to be locked, without importing anything meanwhile; the program keeps the
lock for as long as it lives. One that has waited for ten minutes, or whose parent is gone, gives up.
"""

import fcntl
import os
import sys
import time

PATIENCE = 600  # seconds


def main() -> None:
    """Wait for a lock, then become the program."""
    folder, program, arguments = sys.argv[1], sys.argv[3], sys.argv[3:]
    names = [os.path.join(folder, f"{os.path.basename(program)}-{i}.lock") for i in range(int(sys.argv[2]))]
    parent, end = os.getppid(), time.monotonic() + PATIENCE
    while time.monotonic() < end and os.getppid() == parent:
        for name in names:
            lock = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            os.set_inheritable(lock, True)
            os.execv(program, arguments)
        time.sleep(0.2)
    sys.exit(f"{program} waited for {PATIENCE} seconds while {len(names)} others ran")


if __name__ == "__main__":
    main()
