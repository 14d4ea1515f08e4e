"""A run on disk.

``run.json`` (what it is), ``rounds.jsonl`` and ``ledger.jsonl`` (a line a round; a line a
message), ``clients.jsonl`` (where clients have tests of their own: a line an evaluation, every metric's values
in the order of clients), ``summary.json`` and ``model.safetensors`` (when complete; where the method
has such, ``selector.safetensors``, ``served.safetensors`` and ``personal/<client>.safetensors`` beside it; of a PEFT
model ``adapter/`` as PEFT loads it, which these files are then without, and no file has the base),
``checkpoint/``.

Everything is written so that a process killed at any moment, and a loss of power at any moment, leave a run that can
be resumed: whole files replace each other, lines past the last checkpoint are cut off. What a checkpoint goes by, lines
above all, is on disk before the checkpoint is. This is done once a checkpoint, and not once a line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..config import differing
from ..errors import RunError, WireError
from ..wire import Packet, State, loads, pieces
from .lock import lock_file

if TYPE_CHECKING:
    from torch import nn

CHECKPOINT = Path("checkpoint") / "state.thinwire"
LINES = ("rounds.jsonl", "ledger.jsonl")


CHECKSUM = 16  # bytes before a state on disk


def checksum(state: State) -> bytes:
    """What :func:`write_state` writes before a state."""
    digest = hashlib.blake2b(digest_size=CHECKSUM)
    for piece in pieces(state):
        digest.update(piece)
    return digest.digest()


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


def write_atomic(path: Path, write: bytes | Callable[[IO[bytes]], object], private: bool = False) -> None:
    """Replace ``path`` as a whole, by these bytes or by what a function writes, and only once they are on disk.

    A ``private`` file is for this user alone.
    """
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600 if private else 0o666)) as file:
        file.write(write) if isinstance(write, bytes) else write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    to_disk(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it lies in, unless they are there. Their names are on disk then."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in new:
        to_disk(folder.parent)


def to_disk(path: Path) -> None:
    """Return once a file, or the names in a folder, would outlive a loss of power."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):  # Windows: nobody opens a folder, whose names NTFS keeps in a journal
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_held: set[int] = set()  # descriptors of the folders that this process holds


@contextlib.contextmanager
def lock_folder(
    folder: Path, other: str = "another run: choose another folder or wait for it to end"
) -> Iterator[None]:
    """Hold a folder; :class:`RunError` if another process, ``other``, does. A killed process lets go of it."""
    make_folder(folder)
    with open(folder / ".lock", "ab") as file:
        if not lock_file(file):
            raise RunError(f"{folder} is in use by {other}")
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


FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def roomy(folder: Path, command: str) -> Iterator[None]:
    """Where the disk is full, say in which folder, and that ``command`` goes on."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        kept = f"make room, then {command} goes on from the last checkpoint: nothing before it is lost"
        raise OSError(error.errno, f"no space is left on the disk of {folder}: {kept}") from error


@contextlib.contextmanager
def open_folder(path: str | Path | None, command: str, writes: bool = True) -> Iterator[Folder | None]:
    """The folder of a run, held by who ``writes`` as long as the run lasts; None for a run without one.

    ``command`` is what goes on with the run after the disk was full. Raises :class:`RunError` for a folder in use.
    """
    if path is None:
        yield None
        return
    folder = Folder(Path(path), writes)
    with roomy(folder.path, command), lock_folder(folder.path) if writes else contextlib.nullcontext():
        yield folder


class Folder:
    """The files of one run. Of several ranks one ``writes``, and all read."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self.written = {name: hashlib.sha256() for name in LINES}  # what the lines are, for the checkpoint
        self.owed = dict[Path, None]()  # files that were written to, and would not outlive a loss of power

    def write(self, name: str | Path, data: bytes | Callable[[IO[bytes]], object]) -> None:
        """Replace a file, by these bytes or by what a function writes."""
        if self.writes:
            write_atomic(self.path / name, data)

    def about(self) -> dict[str, Any] | None:
        """What ``run.json`` says this run is; None where there is none yet."""
        path = self.path / "run.json"
        try:
            about = json.loads(path.read_text()) if path.exists() else None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is damaged ({error}): delete the folder to start this run anew") from error
        return about if isinstance(about, dict) or about is None else {}

    def agree(self, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        """What ``run.json`` says, None where there is none. Raises :class:`RunError` where it has another fact."""
        about = self.about()
        for name, value in facts.items():
            if about is not None and about.get(name) != value:
                raise RunError(f"{self.path} is another run: its {differing(name, about.get(name), value)}")
        return about

    def describe(self, values: Mapping[str, Any]) -> None:
        """Write ``run.json``: the method, the seed, the setting."""
        self.write("run.json", (json.dumps(values, indent=2) + "\n").encode())

    def append(self, record: Mapping[str, Any], ledger: str, by_client: Mapping[str, Any] | None = None) -> None:
        """One round: a line of ``rounds.jsonl``, the lines of ``ledger.jsonl``, one of ``clients.jsonl`` if any."""
        if not self.writes:
            return
        if by_client is not None:
            self.add("clients.jsonl", json.dumps(by_client) + "\n")
        for name, text in zip(LINES, (json.dumps(record) + "\n", ledger), strict=True):
            self.add(name, text)
            self.written[name].update(text.encode())

    def add(self, name: str, text: str) -> None:
        """Write at the end of a file. The next checkpoint, or the summary, sees to it that it is on disk."""
        if self.writes:
            with open(self.path / name, "ab") as file:
                file.write(text.encode())
            self.owe(self.path / name)

    def owe(self, path: Path) -> None:
        """Note that a file of this folder was written to by other means than these."""
        self.owed[path] = None

    def settle(self) -> None:
        """Return once all files that were written to, and the names in this folder, are on disk."""
        for path in (*self.owed, self.path):
            to_disk(path)
        self.owed.clear()

    def lines(self) -> dict[str, str]:
        """A digest of the lines of each file, for the checkpoint."""
        return {name: digest.hexdigest() for name, digest in self.written.items()}

    def cut(self, round: int, lines: Mapping[str, str] | None = None) -> tuple[list[dict[str, Any]], str]:
        """Forget every line after ``round``; returns the records and the ledger's text that stay.

        ``lines`` are the digests in the checkpoint: :class:`RunError` where what stays is not what was written.
        """
        kept, odd = dict[str, list[dict[str, Any]]](), dict[str, str]()
        for name in LINES:
            kept[name], odd[name] = self._entries(name, round)
        texts = {name: "".join(json.dumps(entry) + "\n" for entry in kept[name]) for name in LINES}
        records = kept["rounds.jsonl"]
        if [r["round"] for r in records] != list(range(1, round + 1)):
            raise RunError(f"{self.path / 'rounds.jsonl'} does not hold the rounds up to the checkpoint's ({round})")
        self.written = {name: hashlib.sha256(texts[name].encode()) for name in LINES}
        for name, digest in self.lines().items():
            if lines is not None and lines[name] != digest:
                raise RunError(
                    f"{self.path / name} is not what this run wrote up to round {round}{odd[name]}: put it back as it "
                    f"was, or delete the folder to start this run anew"
                )
        for name in LINES:
            self.write(name, texts[name].encode())
        if (self.path / "clients.jsonl").exists():
            evaluated, _ = self._entries("clients.jsonl", round)
            self.write("clients.jsonl", "".join(json.dumps(entry) + "\n" for entry in evaluated).encode())
        return records, texts["ledger.jsonl"]

    def _entries(self, name: str, round: int) -> tuple[list[dict[str, Any]], str]:
        """The entries up to a round, and where a line is that is none, if it is not the last."""
        path, kept, cut = self.path / name, list[dict[str, Any]](), list[int]()
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line that a kill cut short
                cut.append(number)
                continue
            if not isinstance(entry, dict) or type(entry.get("round")) is not int:
                raise RunError(f"{path} has a line that is no round: {line[:60]}")
            if entry["round"] <= round:
                kept.append(entry)
        return kept, f" (line {cut[0]} is damaged)" if cut and cut[0] < len(lines) else ""

    def save(self, state: State) -> None:
        """Replace the checkpoint: a checksum, then the state. Whatever was written before it is on disk before it."""
        if self.writes:
            make_folder((self.path / CHECKPOINT).parent)
            self.settle()
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

    def drop_checkpoint(self) -> None:
        """Delete the checkpoint of a run that is complete: it may be large."""
        if self.writes:
            shutil.rmtree((self.path / CHECKPOINT).parent, ignore_errors=True)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``: the run is complete, and all of it on disk."""
        if self.writes:
            self.settle()
        self.write("summary.json", (json.dumps(values, indent=2) + "\n").encode())

    def module(self, module: nn.Module, metadata: Mapping[str, str], name: str = "model") -> None:
        """Write a module as ``name.safetensors``. A PEFT model's adapter is written as PEFT loads it, into ``adapter``,
        or ``adapter/name``, unless more than it was trained. Neither it nor the base is then in
        ``name.safetensors``, whose metadata say where the adapter is and which base it was.
        """
        from ..train import adapter

        about, left = dict(metadata), set(base := adapter.base_parameters(module))
        if adapter.is_adapter(module) and not adapter.names_beside_adapter(module):
            below = "adapter" if name == "model" else f"adapter/{name}"
            if there := adapter.names_in_adapter(module):
                about["adapter"], left = below, left | there
            if self.writes:
                for file, data in adapter.adapter_files(module).items():
                    self.write(f"{below}/{file}", data)
        if base:
            about["base"] = adapter.base_digest(module)
        self.model({key: x for key, x in module.state_dict().items() if key not in left}, about, name)

    def model(self, tensors: Mapping[str, Any], metadata: Mapping[str, str], name: str = "model") -> None:
        """Write ``name.safetensors``."""
        import torch
        from safetensors.torch import save

        # Tied weights are one tensor of two names, and a filter may have its channels last in memory.
        apart = {name: x.clone(memory_format=torch.contiguous_format) for name, x in tensors.items()}
        data = save(apart, metadata=dict(metadata))
        # The library draws the order of the header's metadata anew each time: sorted, equal models are equal files.
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.dumps(json.loads(data[8:start]), sort_keys=True, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        parts: list[bytes | memoryview] = [len(header).to_bytes(8, "little"), header, memoryview(data)[start:]]
        del apart
        self.write(f"{name}.safetensors", lambda file: file.writelines(parts))
