"""A run on disk.

``run.json`` (what it is), ``rounds.jsonl`` and ``ledger.jsonl`` (a line a round; a line a
message), ``clients.jsonl`` (where clients have tests of their own: a line an evaluation, every metric's values
in the order of clients), ``summary.json`` and ``model.safetensors`` (when complete), ``checkpoint/``.

Everything is written so that a process killed at any moment leaves a run that can be
resumed: whole files replace each other, lines past the last checkpoint are cut off.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import RunError, WireError
from ..wire import Packet, State, loads, pieces

CHECKPOINT = Path("checkpoint") / "state.thinwire"


CHECKSUM = 16  # bytes before a state on disk


def write_state(file: IO[bytes], state: State) -> None:
    """A state behind its checksum, piece by piece: it is never whole in memory."""
    digest = hashlib.blake2b(digest_size=CHECKSUM)
    file.write(bytes(CHECKSUM))
    for piece in pieces(state):
        digest.update(piece)
        file.write(piece)
    file.seek(0)
    file.write(digest.digest())


def read_state(path: Path) -> Packet:
    """What :func:`write_state` wrote; ``WireError`` where a bit of it has flipped."""
    with open(path, "rb") as file:
        expected, data = file.read(CHECKSUM), file.read()
    if hashlib.blake2b(data, digest_size=CHECKSUM).digest() != expected:
        raise WireError("its checksum is another")
    return loads(data, max_values=None, finite=False)


def write_atomic(path: Path, write: bytes | Callable[[IO[bytes]], object]) -> None:
    """Replace ``path`` as a whole, by these bytes or by what a function writes, and only once they are on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb") as file:
        file.write(write) if isinstance(write, bytes) else write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Return once a file, or the names in a folder, would outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_held: set[int] = set()  # descriptors of the folders that this process holds


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; :class:`RunError` if another process does. A killed process lets go of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{folder} is in use by another run: choose another folder or wait for it to end") from None
        _held.add(file.fileno())
        try:
            yield
        finally:
            _held.discard(file.fileno())


def release() -> None:
    """Close, in a process just forked, what the one before holds: else a folder stays locked as long as both live."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


class Folder:
    """The files of one run. Of several ranks one ``writes``, and all read."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes

    def write(self, name: str | Path, data: bytes) -> None:
        """Replace a file."""
        if self.writes:
            write_atomic(self.path / name, data)

    def about(self) -> dict[str, Any] | None:
        """What ``run.json`` says this run is; None where there is none yet."""
        path = self.path / "run.json"
        try:
            found = json.loads(path.read_text()) if path.exists() else None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is damaged ({error}): delete the folder to start this run anew") from error
        return found if isinstance(found, dict) or found is None else {}

    def describe(self, values: Mapping[str, Any]) -> None:
        """Write ``run.json``: the method, the seed, the setting."""
        self.write("run.json", (json.dumps(values, indent=2) + "\n").encode())

    def append(self, record: Mapping[str, Any], ledger: str, by_client: Mapping[str, Any] | None = None) -> None:
        """One round: a line of ``rounds.jsonl``, the lines of ``ledger.jsonl``, one of ``clients.jsonl`` if any."""
        if not self.writes:
            return
        if by_client is not None:
            with open(self.path / "clients.jsonl", "a") as file:
                file.write(json.dumps(by_client) + "\n")
        with open(self.path / "rounds.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        with open(self.path / "ledger.jsonl", "a") as file:
            file.write(ledger)

    def cut(self, round: int) -> tuple[list[dict[str, Any]], str]:
        """Forget every line after ``round``; returns the records and the ledger's text that stay."""
        records = self._kept("rounds.jsonl", round)
        entries = self._kept("ledger.jsonl", round)
        if (self.path / "clients.jsonl").exists():
            self._kept("clients.jsonl", round)
        if [r["round"] for r in records] != list(range(1, round + 1)):
            raise RunError(f"{self.path / 'rounds.jsonl'} does not hold the rounds up to the checkpoint's ({round})")
        return records, "".join(json.dumps(e) + "\n" for e in entries)

    def _kept(self, name: str, round: int) -> list[dict[str, Any]]:
        path, kept = self.path / name, []
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # the line that a kill cut short
                    entry = json.loads(line)
                    if not isinstance(entry, dict) or "round" not in entry:
                        raise RunError(f"{path} has a line that is no round: {line[:60]}")
                    if entry["round"] <= round:
                        kept.append(entry)
        self.write(name, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        return kept

    def save(self, state: State) -> None:
        """Replace the checkpoint: a checksum, then the state."""
        if self.writes:
            write_atomic(self.path / CHECKPOINT, lambda file: write_state(file, state))

    def load(self) -> Packet | None:
        """The checkpoint, or None where there is none yet."""
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            return read_state(path)
        except WireError as error:
            raise RunError(f"{path} is damaged ({error}): delete it to start this run anew") from error

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``: the run is complete."""
        self.write("summary.json", (json.dumps(values, indent=2) + "\n").encode())

    def model(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        """Write ``model.safetensors``."""
        from safetensors.torch import save

        apart = {name: tensor.clone() for name, tensor in tensors.items()}  # tied weights are one tensor of two names
        self.write("model.safetensors", save(apart, metadata=dict(metadata)))
