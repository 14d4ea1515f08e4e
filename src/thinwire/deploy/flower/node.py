"""``thinwire node``: Flower's SuperNode, whose messages are answered without waiting for Python to import Flower.

It is ``flower-supernode`` with its own options. Two things are in its environment: a program ``flwr-clientapp`` before
Flower's, which runs Flower's as a copy of a process that has imported it (:mod:`thinwire.deploy.flower.copies`), and
how often its SuperExec asks whether there is something to start, which is Flower's setting.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import require
from . import copies

NAME = "flwr-clientapp"
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
SECONDS = "0.1"  # between two looks of a SuperExec's; Flower's default is 1, the least that it takes 0.01
PRELOADED = "flwr.supernode.cli", "flwr.clientapp", "httpcore", f"{__package__}.app", f"{__package__}.resident"


def run(arguments: Sequence[str]) -> int:
    """Run a SuperNode with these arguments until it ends; its exit status. SIGTERM and SIGINT are handed on to it."""
    with copy_programs(os.environ) as environment:
        process = subprocess.Popen([program("flower-supernode"), *arguments], env=environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: process.send_signal(number))
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def copy_programs(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """An environment in which a client's program is a copy of a process, which lives as long as this is entered."""
    with tempfile.TemporaryDirectory(prefix="thinwire-node-") as folder:  # which this user alone may enter
        path, script = Path(folder) / "socket", Path(folder) / NAME
        command = [sys.executable, "-I", "-S", copies.__file__, str(path), program(NAME)]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o700)
        serves = f"from {copies.__name__} import serve; serve({str(path)!r}, {PRELOADED!r})"
        process = subprocess.Popen([sys.executable, "-c", serves], stdin=subprocess.DEVNULL)
        try:
            searched = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
            yield {POLL: SECONDS, **environment, "PATH": searched}
        finally:
            process.kill()
            process.wait()


def program(name: str) -> str:
    """The path of one of Flower's programs: beside this Python, or where the shell finds it."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    require(path is not None, f'{name} is not here: pip install "thinwire[flower]"')
    return str(path)
