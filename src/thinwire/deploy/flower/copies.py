"""Programs that begin as copies of one process, which has imported what they need: a message to a client is a program.

To import Flower takes two seconds of a processor, and Flower starts its program ``flwr-clientapp`` for each message.
:func:`serve` imports modules and listens. ``copies.py SOCKET PROGRAM ARGUMENT ...`` runs a program of Python's there:
with the environment, the folder and the output of this process, which waits, exits with its status, and takes it along
when it is killed. It is a file that Python runs without its libraries, so it begins in hundredths of a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence

PATIENCE = 600  # seconds until the copied process listens, on a machine that has other work


def main() -> None:
    """Have a program run, and wait for it."""
    path, arguments = sys.argv[1], sys.argv[2:]
    end = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_UNIX) as there:
        while True:
            try:
                there.connect(path)
                break
            except FileNotFoundError:  # it does not listen yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        asked = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
        socket.send_fds(there, [len(asked).to_bytes(4, "little")], [0, 1, 2])
        there.sendall(asked)
        said = there.recv(4)
    sys.exit(int(said) if said else 1)  # nothing: the other end is gone


def serve(path: str, modules: Sequence[str]) -> None:
    """Import modules, listen, and run each program that is asked for in a copy of this process.

    It ends with the process that started it.
    """
    import gc
    import importlib
    import runpy

    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # what is here is shared with the copies, as long as neither writes to it
    arguments, folder, environment, files = listen(path)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")


def listen(path: str) -> tuple[list[str], str, dict[str, str], list[int]]:
    """Copy this process for each that asks; in a copy, what was asked: arguments, folder, environment and files."""
    import select
    import signal

    children: dict[int, tuple[int, socket.socket]] = {}  # by a file that is ready when the child has ended
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o077)
        listener.bind(f"{path}-")
        os.umask(before)
        listener.listen(64)
        os.rename(f"{path}-", path)  # from now on it is there
        while os.getppid() == parent:
            waiting = {connection: pid for pid, connection in children.values()}
            either: list[int | socket.socket] = [listener, *children, *waiting]
            ready, _, _ = select.select(either, [], [], 1.0)
            for gone in waiting.keys() & set(ready):  # who asked is gone
                os.kill(waiting[gone], signal.SIGKILL)
            for ended in children.keys() & set(ready):
                pid, connection = children.pop(ended)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # who asked is gone
                    connection.sendall(str(status if status >= 0 else 128 - status).encode())
                os.close(ended)
                connection.close()
            if listener in ready:
                connection, _ = listener.accept()
                asked = read_request(connection)
                if asked is None:
                    connection.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    for file, (_, other) in children.items():
                        os.close(file)
                        other.close()
                    return asked
                for file in asked[3]:
                    os.close(file)
                children[os.pidfd_open(pid)] = pid, connection
    sys.exit(0)


def read_request(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]] | None:
    """What a process asks for; None where it is gone before it has said so."""
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as file:
        asked = file.read(int.from_bytes(size, "little"))
    if len(files) < 3 or not asked:
        return None
    return *json.loads(asked), files


if __name__ == "__main__":
    main()
