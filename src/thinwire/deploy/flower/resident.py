"""A resident worker: a process for each client that holds its model and its data from one call to the next.

Flower starts a process for every message. One that imports torch and reads the client's data takes seconds, whatever
it is asked for. So it hands the call on: to the worker of this client, over a Unix socket in the client's folder that
only this user may open. The first call starts the worker. It ends when it has had nothing to do for a while, when the
process that starts Flower's processes (a SuperExec, and with it a SuperNode) is gone, and when a call has other code
than it was started for. For a call with other settings it makes the client anew: what it holds is never older than what
the ClientApp says.

A worker does one job at a time, and none that nobody waits for: when the process that asked ends, so does the worker,
as if the job had been done in that process. What a client keeps lies on its disk as it always does
(:mod:`thinwire.deploy.client`), so a worker may be killed at any moment. A call whose worker was killed is asked once
more.

Both halves are here. Nothing is pickled: a frame is a header of JSON and a blob.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NoReturn

from flwr.app import Context, RecordDict

from ... import errors
from ...errors import RunError, ThinwireError, require

SOCKET, LOCK = ".worker.sock", ".worker.lock"  # in the client's folder
LONGEST = 100  # bytes of a socket's path: systems allow 104 to 108
PATIENCE = 120.0  # seconds until a worker listens, on a machine that has other work
GONE = EOFError, BrokenPipeError, ConnectionResetError  # what is raised where the other end is killed
TRIES = 2  # of a call whose worker is killed
CONTEXT = ("run_id", "node_id", "node_config", "run_config", "series_id")  # all of a context but its state

STARTED: list[subprocess.Popen[bytes]] = []  # so that none is waited for, or warned of, when it is out of sight

Spec = dict[str, Any]
"""What a worker is started for: the name of the client's function, all that this is given, and which code it runs."""


# -- who asks: the ClientApp -------------------------------------------------------


def ask(folder: Path, make: str, context: Context, call: bytes, idle: float = 900.0) -> tuple[bytes, float]:
    """The answer of a client's worker to a call, and the rate in Mbit/s by which the answer is to be cut.

    ``make`` is ``"module:function"``, as in :func:`~thinwire.deploy.flower.app.client_app`, ``idle`` the seconds after
    which a worker that is asked nothing ends. An exception of the worker's is raised here: one of
    :mod:`thinwire.errors` as it is, any other as a ``RuntimeError`` that names it; its traceback is in the log of the
    SuperNode. Raises :class:`RunError` where a worker does not start, or is killed twice.
    """
    header = {"spec": spec_of(make, context), "owner": os.getppid(), "idle": idle}
    tries = TRIES
    while tries:
        with connect(folder) as there:
            try:
                write_frame(there, header, call)
                reply, answer = read_frame(there)
            except GONE:
                tries -= 1
                continue
        if "error" in reply:
            raise_as(*reply["error"])
        if "mbit" in reply:
            return answer, float(reply["mbit"])
    raise RunError(f"the worker of {folder} was killed {TRIES} times in this call: is there enough memory?")


def spec_of(make: str, context: Context) -> Spec:
    """What the worker that answers in this context is started for."""
    given = {name: getattr(context, name) for name in CONTEXT}
    return {"make": make, "path": sys.path, "python": sys.executable, "context": given, "code": code_of(make)}


def code_of(make: str) -> str:
    """A digest of the files that a worker runs: the contents of the app's, the dates and sizes of thinwire's."""
    digest = hashlib.blake2b(digest_size=16)
    top = make.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(top)
    require(spec is not None, f"{make!r}: there is no module {top!r}; name the client as 'module:function'")
    assert spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in files or [Path(str(spec.origin))]:
        digest.update(f"{path}\0".encode() + path.read_bytes())
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        about = path.stat()
        digest.update(f"{path}\0{about.st_mtime_ns}\0{about.st_size}".encode())
    return digest.hexdigest()


def connect(folder: Path) -> socket.socket:
    """A connection to the worker of a folder, which is started unless it is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    end = time.monotonic() + PATIENCE
    started: subprocess.Popen[bytes] | None = None
    while time.monotonic() < end:
        there = socket.socket(socket.AF_UNIX)
        try:
            with address(folder) as path:
                there.connect(path)
            read_frame(there)  # it has taken the connection up, and not ended before
            return there
        except (FileNotFoundError, ConnectionRefusedError, *GONE):
            there.close()
        code = None if started is None else started.poll()
        if started is None or code == 0:  # 0: another one was there, which ended meanwhile
            started = start(folder)
        elif code is not None:
            raise RunError(f"the worker of {folder} ended with {code} before it listened: its log says why")
        time.sleep(0.02)
    raise RunError(f"the worker of {folder} does not listen after {PATIENCE:g} seconds")


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker. Its output goes where this process's goes."""
    command = [sys.executable, "-c", f"from {__name__} import main; main()", str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    STARTED.append(process)
    return process


def raise_as(name: str, text: str) -> NoReturn:
    """Raise an exception of another process's."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, ThinwireError):
        raise kind(text)
    raise RuntimeError(f"{name}: {text}")


# -- between them ------------------------------------------------------------------


@contextlib.contextmanager
def address(folder: Path) -> Iterator[str]:
    """The path of a folder's socket; through a descriptor of the folder where it would be too long for a socket."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        through = Path("/proc/self/fd") / str(descriptor)
        require(through.exists(), f"folder={str(folder)!r}: it is too long for a socket in it; choose a shorter one")
        yield str(through / SOCKET)
    finally:
        os.close(descriptor)


def write_frame(there: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send a header and a blob, each behind its length."""
    head = json.dumps(header).encode()
    there.sendall(len(head).to_bytes(4, "big") + len(body).to_bytes(8, "big") + head)
    there.sendall(body)


def read_frame(there: socket.socket) -> tuple[dict[str, Any], bytes]:
    """A header and a blob. Raises ``EOFError`` where the other end is gone before they are whole."""
    with there.makefile("rb") as file:

        def exactly(size: int) -> bytes:
            data = file.read(size)
            if len(data) < size:
                raise EOFError
            return data

        head, body = int.from_bytes(exactly(4), "big"), int.from_bytes(exactly(8), "big")
        return json.loads(exactly(head)), exactly(body)


# -- who answers: the worker -------------------------------------------------------


class Worker:
    """What a worker holds: the client, once it has been asked, and who it works for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec: Spec | None = None
        self.node: Any = None
        self.owner, self.idle = os.getppid(), PATIENCE

    def listen(self) -> None:
        """Answer calls, one after the other, until there is a reason to end."""
        with socket.socket(socket.AF_UNIX) as listener:
            with address(self.folder) as path:
                Path(path).unlink(missing_ok=True)  # of a worker that was killed: this one has the lock
                listener.bind(path)
            listener.listen(16)
            threading.Thread(target=self.watch, daemon=True).start()
            while select.select([listener], [], [], self.idle)[0]:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(*GONE):
                    if not self.serve(connection):
                        break
            (self.folder / SOCKET).unlink(missing_ok=True)  # before the lock is another's

    def serve(self, connection: socket.socket) -> bool:
        """Do the job of a connection; whether to go on."""
        write_frame(connection, {})
        header, call = read_frame(connection)
        spec, before = header["spec"], self.spec or header["spec"]
        if {**spec, "context": before["context"]} != before:
            write_frame(connection, {})  # for another worker
            return False
        if spec != before:  # another run, say: torch is here already
            self.node = None
        self.spec = spec
        self.owner, self.idle = header["owner"], header["idle"]
        with alive(connection):
            try:
                reply, answer = self.answer(call)
            except Exception as error:
                traceback.print_exc()
                reply, answer = {"error": [type(error).__name__, str(error)]}, b""
        write_frame(connection, reply, answer)
        return self.node is not None  # else whatever was wrong may be mended: it is looked at anew

    def answer(self, call: bytes) -> tuple[dict[str, Any], bytes]:
        """The client's answer."""
        from .app import answer_of

        if self.node is None:
            assert self.spec is not None
            sys.path[:] = self.spec["path"]
            module, _, name = self.spec["make"].partition(":")
            make = attrgetter(name)(importlib.import_module(module))
            self.node = make(Context(**self.spec["context"], state=RecordDict()))
        answer, mbit = answer_of(self.node, call)
        return {"mbit": mbit}, answer

    def watch(self) -> None:
        """End with whoever starts the processes that ask."""
        while True:
            time.sleep(0.5)
            try:
                os.kill(self.owner, 0)
            except ProcessLookupError:
                os._exit(0)


@contextlib.contextmanager
def alive(connection: socket.socket) -> Iterator[None]:
    """End this process when the other end of a connection is gone: nobody waits for the job any more."""
    mine, other = socket.socketpair()

    def watch() -> None:
        if connection in select.select([connection, mine], [], [])[0]:  # it says nothing more: so this is its end
            os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        other.close()
        thread.join()
        mine.close()


def lock(file: IO[str]) -> bool:
    """Lock a file; whether it could be."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> None:
    """A worker of the folder that is named on the command line, unless there is one already."""
    folder = Path(sys.argv[1])
    os.umask(0o077)
    with open(folder / LOCK, "w") as file:
        while not lock(file):
            with socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError), address(folder) as path:
                there.connect(path)
                return  # another one listens
            time.sleep(0.05)  # it is about to listen, or to end
        Worker(folder).listen()
        os._exit(0)
