"""Programs that begin as copies of one process, which has imported what they need: a message to a client is a program.

``forked.py SOCKET`` imports torch, Flower and thinwire, and listens. ``forked.py SOCKET PROGRAM ARGUMENT ...`` runs a
program of Python's there: with the environment, the folder and the output of this process, which waits, exits with its
status, and takes it along when it is killed. What a test starts by itself is forked by ``tests/processes.py``; these
are programs that Flower starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time

PRELOADED = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.superlink.cli.flwr_serverapp",
    "sklearn.datasets",
    "thinwire.deploy.flower",
    "torch._dynamo",  # which torch imports for its optimisers
)
PATIENCE = 600  # seconds until the copied process listens, on a machine that has other work


def run(path: str, arguments: list[str]) -> int:
    """Have a program run, and wait for it; its exit status."""
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
    return int(said) if said else 1  # nothing: the other end is gone


def serve(path: str) -> tuple[list[str], str, dict[str, str], list[int]]:
    """Copy this process for each that asks; in a copy, what was asked: arguments, folder, environment and files."""
    import select
    import signal

    children: dict[int, tuple[int, socket.socket]] = {}  # by a file that is ready when the child has ended
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}-")
        listener.listen(64)
        os.rename(f"{path}-", path)  # from now on it is there
        while True:
            waiting = {connection: pid for pid, connection in children.values()}
            ready, _, _ = select.select([listener, *children, *waiting], [], [])
            for connection in set(ready) & waiting.keys():  # who asked is gone
                os.kill(waiting[connection], signal.SIGKILL)
            for ended in set(ready) & children.keys():
                pid, connection = children.pop(ended)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # who asked is gone
                    connection.sendall(str(status if status >= 0 else 128 - status).encode())
                os.close(ended)
                connection.close()
            if listener in ready:
                connection, _ = listener.accept()
                asked = heard(connection)
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


def heard(connection: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]] | None:
    """What a process asks for; None where it is gone before it has said so."""
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as file:
        asked = file.read(int.from_bytes(size, "little"))
    if len(files) < 3 or not asked:
        return None
    return *json.loads(asked), files


def main() -> None:
    path, arguments = sys.argv[1], sys.argv[2:]
    if arguments:
        sys.exit(run(path, arguments))
    import importlib
    import runpy

    for name in PRELOADED:
        importlib.import_module(name)
    arguments, folder, environment, files = serve(path)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = arguments, os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
