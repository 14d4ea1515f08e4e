"""What is kept of every client, from its first contact on: in memory, or on disk.

A hundred thousand clients with a look-back gradient each do not fit in memory. On disk a
client is one file, read when it is sampled and written when its reply is taken; what stays
in memory is one number a client. A file that the last checkpoint refers to is never
overwritten or removed before the next checkpoint has taken its place. It says whose it is: of
which run, which client, after which version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import RunError, WireError
from ..run.folder import read_state, to_disk, write_state
from ..wire import Packet, State, restore
from .client import ClientState


class Unreadable(RunError):
    """What was kept of a client is not there any more, damaged, or not what this run wrote."""


class Ends(NamedTuple):
    """Both ends of one client's wire: committed together, when its reply was taken."""

    version: int  # of the broadcasts, that the client acknowledged
    rx: State  # the server's: the receiving ends of `up`
    own: ClientState  # the client's
    tx: State = None  # the server's: the sending ends of `personal`
    down: State = None  # the server's: the sending ends of `down`, where each client has ends of its own


class Pending(NamedTuple):
    """The server's sending ends after a call that is not answered yet."""

    tx: State = None  # of `personal`
    down: State = None


class Stored(NamedTuple):
    """What a file holds."""

    run: str
    client: int
    ends: Ends


class ClientStates:
    """Ends in a dict."""

    def __init__(self, fresh: Callable[[], Ends]) -> None:
        self.fresh = fresh
        self.run = ""  # whose they are, where they lie in files
        self.ends: dict[int, Ends] = {}

    def version(self, client: int) -> int:
        """The version that a client acknowledged; 0 before its first reply."""
        ends = self.ends.get(client)
        return ends.version if ends else 0

    def get(self, client: int) -> Ends:
        """A client's ends; fresh ones before its first reply. Raises :class:`Unreadable`."""
        return self.ends.get(client) or self.fresh()

    def commit(self, client: int, ends: Ends) -> None:
        """Keep a client's ends: its reply was taken."""
        self.ends[client] = ends

    def drop(self, client: int) -> None:
        """Forget a client, if it is known."""
        self.ends.pop(client, None)

    def clients(self) -> list[int]:
        """The clients that have replied."""
        return sorted(self.ends)

    kind = "memory"

    def state(self) -> State:
        """For a checkpoint."""
        return {self.kind: self.ends}

    def load(self, packet: Packet) -> None:
        """Continue from what :meth:`state` gave, after bytes and back."""
        like = self.fresh()
        self.ends = {client: restore(ends, like) for client, ends in self.entries(packet).items()}

    def entries(self, packet: Packet) -> dict[int, Packet]:
        """What :meth:`state` gave for a store of this kind."""
        if self.kind not in packet:
            (kind,) = packet
            raise RunError(f"this run keeps its clients' states in another way: resume it with states={kind!r}")
        entries: dict[int, Packet] = packet[self.kind]
        return entries

    def settle(self) -> None:
        """The checkpoint is on disk."""


class Disk(ClientStates):
    """Ends in files under ``folder``, one a client and version; an index of versions in memory."""

    def __init__(self, fresh: Callable[[], Ends], folder: Path, writes: bool = True) -> None:
        super().__init__(fresh)
        self.folder, self.writes = folder, writes  # of several ranks one writes, and all read
        self.versions: dict[int, int] = {}
        self.written: list[Path] = []  # since the last checkpoint
        self.stale: list[Path] = []  # superseded since the last checkpoint, which may still refer to them

    def version(self, client: int) -> int:
        return self.versions.get(client, 0)

    def clients(self) -> list[int]:
        return sorted(self.versions)

    def get(self, client: int) -> Ends:
        if client not in self.versions:
            return self.fresh()
        path = self._path(client, self.versions[client])
        try:
            stored: Stored = restore(read_state(path), Stored("", 0, self.fresh()))
        except (OSError, WireError) as error:
            raise Unreadable(f"the state of client {client} cannot be read from {path}: {error}") from error
        if (stored.run, stored.client, stored.ends.version) != (self.run, client, self.versions[client]):
            whose = f"client {stored.client} after version {stored.ends.version}"
            raise Unreadable(
                f"{path} is not the state that this run wrote there, but that of {whose} of "
                f"{'this' if stored.run == self.run else 'another'} run: put back what was in {self.folder}, or delete "
                f"the run's folder to start it anew"
            )
        return stored.ends

    def commit(self, client: int, ends: Ends) -> None:
        if self.writes:
            path = self._path(client, ends.version)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:  # nothing refers to it before the next checkpoint
                write_state(file, Stored(self.run, client, ends))
            self.written.append(path)
        if client in self.versions and self.writes:
            self.stale.append(self._path(client, self.versions[client]))
        self.versions[client] = ends.version

    def drop(self, client: int) -> None:
        if client in self.versions and self.writes:
            self.stale.append(self._path(client, self.versions[client]))
        self.versions.pop(client, None)

    kind = "disk"

    def state(self) -> State:
        for path in {part for file in self.written for part in (file, *file.parents[:3])}:  # up to where this folder is
            to_disk(path)  # before a checkpoint refers to it
        self.written.clear()
        return {self.kind: self.versions}

    def load(self, packet: Packet) -> None:
        self.versions = dict(self.entries(packet))
        known = {self._path(client, version) for client, version in self.versions.items()}
        for path in self._files() if self.writes else ():
            if path not in known:  # written after the checkpoint
                path.unlink()

    def settle(self) -> None:
        for path in self.stale:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        self.stale.clear()

    def _path(self, client: int, version: int) -> Path:
        return self.folder / f"{client % 1000:03d}" / f"{client}-{version}.thinwire"

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("*/*.thinwire")
