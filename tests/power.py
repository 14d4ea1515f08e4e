"""A disk that loses power: what a folder would hold, had the machine stopped after any of its writes.

While :func:`recorded` runs, every ``fsync``, ``replace`` and ``unlink`` in a folder is followed by pictures of what a
loss of power there might leave. Of a file that was not synced since it was written, what it held when it last was; a
name is there if its folder was synced with it. These are the least that POSIX promises. A file system may keep more, so
there is a picture in which all names are there, and one in which all contents are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Picture = dict[str, bytes]  # a file's content, by its path


class Disk:
    """What of a folder is on disk for good."""

    def __init__(self, root: Path) -> None:
        self.root, self.busy = root, False
        self.contents: dict[int, bytes] = {}  # of files as they were last synced, by their inode
        self.names: dict[int, dict[str, int]] = {}  # of folders as they were last synced
        self.held: dict[int, int] = {}  # a descriptor of each, so that no inode is another's later
        self.pictures: dict[tuple[tuple[str, bytes], ...], None] = {}
        self._keep(root)
        for path in sorted(root.rglob("*")):  # what is there already
            self._sync(path)
        self._sync(root)

    def synced(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path == self.root or self.root in path.parents:
            self._sync(path)
        self.look()

    def look(self) -> None:
        """Take the pictures of this moment."""
        for names, contents in ((True, True), (False, True), (True, False)):  # which of them are those on disk alone
            picture = tuple(sorted(self._walk(self.root, "", names, contents)))
            self.pictures[picture] = None

    def _keep(self, path: Path) -> int:
        number = os.stat(path).st_ino
        if number not in self.held:
            self.held[number] = os.open(path, os.O_RDONLY)
        return number

    def _sync(self, path: Path) -> None:
        number = self._keep(path)
        if path.is_dir():
            self.names[number] = {child.name: self._keep(child) for child in path.iterdir()}
        else:
            self.contents[number] = path.read_bytes()

    def _walk(self, at: Path | int, name: str, names: bool, contents: bool) -> Iterator[tuple[str, bytes]]:
        number = self._keep(at) if isinstance(at, Path) else at
        path = f"/proc/self/fd/{self.held[number]}"
        if os.path.isdir(path):
            inside = self.names.get(number, {}) if names else dict.fromkeys(os.listdir(path))
            for child, its in sorted(inside.items()):
                yield from self._walk(Path(path) / child if its is None else its, f"{name}/{child}", names, contents)
        elif contents:
            yield name, self.contents.get(number, b"")
        else:
            with open(path, "rb") as file:
                yield name, file.read()

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)


@contextmanager
def recorded(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[Picture]]]:
    """Record what happens to a folder; yields a function that gives all pictures so far, each once."""
    root.mkdir(parents=True, exist_ok=True)
    disk = Disk(root)

    def then(name: str, after: Callable[..., None]) -> None:
        real = getattr(os, name)

        def called(*arguments: object, **named: object) -> object:
            done = real(*arguments, **named)
            after(*arguments)
            return done

        monkeypatch.setattr(os, name, called)

    then("fsync", disk.synced)
    for name in ("replace", "unlink"):
        then(name, lambda *_: disk.look())
    try:
        yield lambda: [dict(picture) for picture in disk.pictures]
    finally:
        monkeypatch.undo()
        disk.close()


def restored(picture: Picture, root: Path) -> Path:
    """A folder as it would be found."""
    root.mkdir(parents=True)
    for name, content in picture.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root
