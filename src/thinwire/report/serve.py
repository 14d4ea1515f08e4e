"""The report of a study that trains, from this machine to this machine: ``thinwire report DIR --serve``."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from ..errors import RunError
from ..studies.read import Record
from .html import gather, page

HERE = "127.0.0.1"
WATCHED = ("study.json", "run.json", "rounds.jsonl", "summary.json", "clients.jsonl")


def server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server of the report of all runs below ``folders``, bound to the loopback address alone; port 0 is any free.

    It answers once ``serve_forever`` is called. ``/`` is the page. ``/contents.json?known=...`` is its contents, or
    204 where they are those that are known. Raises ``OSError`` where the port is taken, and :class:`RunError` where a
    folder does not exist.
    """
    for folder in folders:
        if not folder.exists():
            raise RunError(f"{folder} does not exist")
    contents = Contents(folders)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Else a page from elsewhere could read this one, by a name of its own that resolves to this machine.
            if self.headers.get("Host", "") not in (f"{HERE}:{made.server_port}", f"localhost:{made.server_port}"):
                self._answer(403, "text/plain", b"this report is served to this machine alone")
                return
            asked = urlsplit(self.path)
            try:
                if asked.path == "/":
                    self._answer(200, "text/html; charset=utf-8", page(contents.now(), live=True).encode())
                elif asked.path == "/contents.json":
                    newest = contents.now()
                    known = parse_qs(asked.query).get("known") == [newest["changed"]]
                    body = b"" if known else json.dumps(newest, allow_nan=False).encode()
                    self._answer(204 if known else 200, "application/json", body)
                else:
                    self._answer(404, "text/plain", b"there is / and /contents.json")
            except RunError as error:  # nothing is there yet, say
                self._answer(503, "text/plain; charset=utf-8", str(error).encode())

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Cache-Control", "no-store")
            if code != 204:
                self.send_header("Content-Length", str(len(body)))
            if code == 503:
                self.send_header("Refresh", "2")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a page asks every two seconds."""

    try:
        made = ThreadingHTTPServer((HERE, port), Handler)
    except OSError as error:
        raise OSError(error.errno, f"--port {port}: {error.strerror}; name another, or 0 for any free one") from error
    made.daemon_threads = True
    return made


class Contents:
    """The contents of the page, gathered anew when a file changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders, self.lock = list(folders), threading.Lock()
        self.newest: Record = {}

    def now(self) -> Record:
        """With ``changed``, which is another text whenever the rest is. Raises :class:`RunError` where nothing is."""
        with self.lock:
            changed = self._digest()
            if self.newest.get("changed") != changed:
                self.newest = {**gather(self.folders), "changed": changed}
            return self.newest

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for folder in self.folders:
            for path in sorted(path for name in WATCHED for path in folder.rglob(name)):
                about = path.stat()
                digest.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]
