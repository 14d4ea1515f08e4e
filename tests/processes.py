"""Processes in which tests run functions, programs and commands: forked from one that has imported torch already.

To import torch and thinwire takes a process seconds, so one does it for all tests of a session, and each of theirs
begins as its copy. None runs under pytest, checks annotations or turns warnings into errors: each is as a user's is.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

FORKED = multiprocessing.get_context("forkserver")
PROGRAMS = ["pytest", "hypothesis", "thinwire.cli", "thinwire.public", "thinwire.report.plots", "sklearn.datasets"]
LATER = ["torch._dynamo", "torch.distributed.fsdp"]  # which torch imports for its optimisers, and under DDP
FORKED.set_forkserver_preload([*PROGRAMS, *LATER])
LONG = 3000  # seconds that a test waits at most; a machine may have other work


class Process:
    """A process that calls ``function(*arguments)``, a function of a module; what it prints goes to two files.

    ``environment`` is added to this process's own. What it exits with, and how it is ended, is as of ``Popen``.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: Any,
        cwd: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = TemporaryDirectory()
        self.out, self.err = (Path(self.folder.name) / name for name in ("out", "err"))
        self.out.touch()
        self.err.touch()
        surroundings = (str(cwd or Path.cwd()), {**os.environ, **(environment or {})})
        self.process = FORKED.Process(
            target=_begin, args=(str(self.out), str(self.err), *surroundings, function, arguments)
        )
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float = LONG) -> int:
        """How it ended. ``TimeoutError`` where it has not in so many seconds."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise TimeoutError(f"process {self.pid} is still at work after {seconds} s; it says: {self.stderr[-3000:]}")
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def until(self, condition: Callable[[], object], seconds: float = LONG) -> None:
        """Wait for something that it does. Fails where it ends before."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.poll() is None, f"it ended before that: {self.stderr[-3000:]}"
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.005)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, it has ended afterwards, and what it has printed is gone."""
        self.kill()
        self.folder.cleanup()


def called(function: Callable[..., object], *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """A function in a process of its own, from its beginning to its end."""
    with Process(function, *arguments, **options) as process:
        code = process.wait()
        return subprocess.CompletedProcess(function.__name__, code, process.stdout, process.stderr)


def program(code: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``python -c CODE WORDS...``."""
    return called(_program, code, words, **options)


def thinwire(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``thinwire WORDS...``."""
    return called(typed, words, **options)


def torchrun(
    function: Callable[..., object], *arguments: Any, restarts: int = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``torchrun --standalone --nproc-per-node 2 --max-restarts RESTARTS``: its launcher and agent, and a function."""
    return called(_torchrun, function, arguments, restarts, **options)


def _torchrun(function: Callable[..., object], arguments: tuple[Any, ...], restarts: int) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    here = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(1, 1, 2, max_restarts=restarts, start_method="fork", **here), _rank)(
        function, arguments
    )


def _rank(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    except SystemExit as end:  # of a command; the launcher waits for a function that returns
        if end.code:
            raise RuntimeError(f"it ended with {end.code}") from end


def _program(code: str, words: tuple[str, ...]) -> None:
    sys.argv = ["-c", *words]
    exec(compile(code, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})


def typed(words: tuple[str, ...]) -> None:
    """``thinwire WORDS...``, in this process."""
    from thinwire.cli import main

    sys.argv = ["thinwire", *words]
    main()


def _begin(
    out: str, err: str, cwd: str, environment: dict[str, str], function: Callable[..., object], arguments: Any
) -> None:
    """In the process: what ``python`` does before and after a program."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout, sys.stderr = (_opened(path, number) for path, number in ((out, 1), (err, 2)))
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()


def _opened(path: str, number: int) -> IO[str]:
    """The file as that descriptor, for this process and what it starts."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, number)
    os.close(file)
    return io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), line_buffering=True)


def pytest_sessionfinish() -> None:
    """The process that has imported torch ends with the session, and so does the one that Python starts beside it."""
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
