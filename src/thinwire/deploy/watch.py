"""How a deployment stands: a file that its server keeps up to date, and what is to be read from it.

``watch.json`` in the folder of a run says what each client does, at most a second ago. Nothing of the run depends on
it. ``thinwire watch`` shows it, with the bytes of the ledger, and gives it to Prometheus. Nothing here imports torch.
"""

from __future__ import annotations

import json
import logging
import statistics
import time
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..errors import RunError

FILE = "watch.json"
STATES = ("absent", "here", "called", "late", "answered", "refused", "failed")
"""What a client does in a round: its node is not there; it was not called; it was, and has not answered; that for more
than twice as long as answers take in the median; its answer counts; it was refused; its node says that it failed."""
EVERY = 1.0  # seconds between two writes
SILENT = 30.0  # seconds after which a server that has written nothing is thought gone
NEWEST = 10  # rounds whose seconds say how long a round takes
HERE = "127.0.0.1"


class Board:
    """What the server knows of its clients, on its way to the file. ``path`` is None where there is no folder."""

    def __init__(self, folder: Path | None, rounds: int) -> None:
        self.path, self.rounds = None if folder is None else folder / FILE, rounds
        self.states: dict[int, tuple[str, float]] = {}  # client -> what it does, since when
        self.chunks: dict[int, tuple[str, int, int]] = {}  # client -> direction, chunks that have come, of how many
        self.took: dict[int, float] = {}  # client -> seconds that its newest answer took
        self.written = 0.0

    def begin(self, clients: Iterable[int]) -> None:
        """A round begins, in which these are called."""
        self.states, self.chunks = {client: ("called", time.time()) for client in clients}, {}

    def note(self, client: int, state: str) -> None:
        """A client has come to another state."""
        if state == "answered" and client in self.states:
            self.took[client] = time.time() - self.states[client][1]
        self.states[client] = state, time.time()
        self.chunks.pop(client, None)

    def state(self, client: int, online: bool) -> tuple[str, float]:
        """What a client does, since when."""
        state, since = self.states.get(client, ("here", 0.0))
        usual = statistics.median(self.took.values()) if self.took else float("inf")
        if not online and state in ("here", "called"):
            return "absent", since
        return ("late" if state == "called" and time.time() - since > 2 * usual else state), since

    def write(self, round: int, names: list[str], online: set[int], force: bool = False) -> None:
        """Write the file, unless it is new."""
        now = time.time()
        if self.path is None or (now - self.written < EVERY and not force):
            return
        self.written, clients = now, []
        for client, name in enumerate(names):
            state, since = self.state(client, client in online)
            clients.append({"client": client, "name": name, "state": state, "since": since or None})
            clients[-1]["chunks"] = self.chunks.get(client)
        about = {"round": round, "rounds": self.rounds, "time": now, "clients": clients}
        draft = self.path.with_name(f".{FILE}.draft")
        draft.write_text(json.dumps(about))
        draft.replace(self.path)


def read_status(folder: Path) -> dict[str, Any]:
    """How the run of a folder stands.

    ``round`` of ``rounds`` is under way, ``clients`` have ``name``, ``state``, ``since`` (seconds of the clock),
    ``chunks`` (direction, how many have come, of how many) of a large message that is on its way, and the ``up`` and
    ``down`` bytes of all finished rounds. ``seconds`` is the median of the newest rounds', ``left`` that times the
    rounds that are left, ``silent`` the seconds since the server last wrote, ``complete`` whether the run is, and
    ``record`` the last line of ``rounds.jsonl``. Raises :class:`RunError` where there is no deployment.
    """
    try:
        status: dict[str, Any] = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        raise RunError(f"{folder} is no folder of a deployment: there is no {FILE} in it") from None
    records = list(read_lines(folder / "rounds.jsonl"))
    sums: dict[tuple[int, str], int] = {}
    for entry in read_lines(folder / "ledger.jsonl"):
        key = entry["client"], entry["direction"]
        sums[key] = sums.get(key, 0) + entry["payload"] + entry["framing"] + entry["retries"]
    for one in status["clients"]:
        one |= {way: sums.get((one["client"], way), 0) for way in ("up", "down")}
    times = [record["seconds"] for record in records[-NEWEST:]]
    seconds = statistics.median(times) if times else None
    summary = folder / "summary.json"
    complete = summary.exists() and summary.stat().st_mtime >= status["time"]  # a run may go on for more rounds
    left = None if seconds is None else 0.0 if complete else seconds * (status["rounds"] - len(records))
    status |= {"seconds": seconds, "left": left, "complete": complete, "silent": max(time.time() - status["time"], 0.0)}
    return status | {"record": records[-1] if records else None, "made": len(records)}


def read_lines(path: Path) -> Iterable[dict[str, Any]]:
    """The lines of a file that are whole."""
    if path.exists():
        for line in path.read_text().split("\n")[:-1]:
            yield json.loads(line)


MEASURES = ("accuracy", "dice", "mae", "test_loss", "train_loss")


def metrics(status: Mapping[str, Any]) -> str:
    """A status as Prometheus reads it: gauges, and counters of bytes by client and direction."""
    record = status["record"] or {}
    lines = [
        *gauge("round", "Rounds that are made.", status["made"]),
        *gauge("rounds", "Rounds that are asked for.", status["rounds"]),
        *gauge("complete", "Whether the run is complete.", int(status["complete"])),
        *gauge("silent_seconds", "Seconds since the server last said how the run stands.", status["silent"]),
        *(gauge("round_seconds", "The median of the newest rounds.", status["seconds"]) if status["seconds"] else ()),
        *(gauge("left_seconds", "Seconds that are left.", status["left"]) if status["left"] is not None else ()),
    ]
    for name in MEASURES:
        if record.get(name) is not None:
            lines += gauge(name, f"{name} of the newest round.", record[name])
    lines += ["# HELP thinwire_clients Clients by what they do.", "# TYPE thinwire_clients gauge"]
    states = [client["state"] for client in status["clients"]]
    lines += [f'thinwire_clients{{state="{state}"}} {states.count(state)}' for state in STATES]
    lines += ["# HELP thinwire_bytes_total Bytes of finished rounds.", "# TYPE thinwire_bytes_total counter"]
    for client in status["clients"]:
        name = client["name"].replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines += [f'thinwire_bytes_total{{client="{name}",direction="{way}"}} {client[way]}' for way in ("up", "down")]
    return "\n".join(lines) + "\n"


def gauge(name: str, help: str, value: float) -> list[str]:
    """One number as Prometheus reads it."""
    return [f"# HELP thinwire_{name} {help}", f"# TYPE thinwire_{name} gauge", f"thinwire_{name} {value}"]


def server(folder: Path, port: int, host: str = HERE) -> ThreadingHTTPServer:
    """A server of ``/metrics`` of a run's folder, which reads its files anew each time; port 0 is any free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                code, body = (200, metrics(read_status(folder))) if self.path == "/metrics" else (404, "/metrics\n")
            except RunError as error:
                code, body = 503, f"{error}\n"
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: it is asked every few seconds."""

    try:
        made = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise OSError(
            error.errno, f"--metrics {port}: {error.strerror}; name another, or 0 for any free one"
        ) from error
    made.daemon_threads = True
    return made


class Lines(logging.Formatter):
    """A line of JSON for each line of the log: time, level, run, round, client where it is about one, text."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.about = about  # what is the same for all, or changes by itself

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(record.created, 3), "level": record.levelname.lower()}
        line |= {name: value() if callable(value) else value for name, value in self.about.items()}
        client = getattr(record, "client", None)
        line |= {} if client is None else {"client": client}
        line["text"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
