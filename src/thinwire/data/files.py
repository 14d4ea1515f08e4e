"""Where the file of a data set is: given, in the environment, in the cache, or on the net.

Looked for in this order, as ``<folder>/<set>/<file>`` (or ``<folder>/<file>`` where the
folder itself is named after the set):

1. the folder given by the caller,
2. the folder named by the environment variable ``THINWIRE_DATA``,
3. the cache, ``$XDG_CACHE_HOME/thinwire`` or ``~/.cache/thinwire``.

What is in none of them is downloaded into the cache. A bare ``<folder>/<file>`` is not
taken, because sets share file names (MNIST and Fashion-MNIST do): the wrong one would
load without an error.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import os
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError

_TIMEOUT = 30.0  # seconds without a byte before a download is given up
_log = logging.getLogger(__name__)
DAMAGED = (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for an npz file that is cut, or none."""


@dataclass(frozen=True)
class Official:
    """A file as its authors publish it."""

    file: str
    address: str
    sha256: str


@dataclass(frozen=True)
class ByHand:
    """A file that is not downloaded, because it is published inside an archive only."""

    file: str
    origin: str  # where a user gets it: a sentence


def cache() -> Path:
    """The user's cache folder; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "thinwire"


def folders(set_name: str, data_dir: str | Path | None) -> list[Path]:
    """The folders in which the files of a set may lie, the first one first."""
    roots = [Path(data_dir)] if data_dir is not None else []
    if os.environ.get("THINWIRE_DATA"):
        roots.append(Path(os.environ["THINWIRE_DATA"]))
    roots.append(cache())
    return [
        place for root in roots for place in ([root / set_name, root] if root.name == set_name else [root / set_name])
    ]


def obtain(
    set_name: str, source: Official | ByHand, data_dir: str | Path | None, download: bool, forms: Sequence[str] = ()
) -> Path:
    """The path of a file, found or downloaded.

    ``forms`` are other names under which the same content is taken, in order of preference
    after ``source.file``. Raises DataError that says where to put the file, and why it could
    not be downloaded.
    """
    places = folders(set_name, data_dir)
    for place in places:
        for name in (source.file, *forms):
            if (place / name).exists():
                return place / name
    cause: Exception | None = None
    if isinstance(source, ByHand):
        why = f"it is not downloaded: {source.origin}"
    elif download:
        try:
            return fetch(source, cache() / set_name / source.file)
        except (OSError, http.client.HTTPException, DataError) as error:
            why = f"it could not be downloaded from {source.address} ({error})"
            cause = error
    else:
        why = f"it was not downloaded from {source.address}, because download is off"
    raise DataError(
        f"{set_name}: {source.file} is missing; put it at {places[0] / source.file} "
        f"(looked in {', '.join(str(place) for place in places)}); {why}"
    ) from cause


def fetch(source: Official, target: Path) -> Path:
    """Download a file. It appears under its name only when it is complete and right.

    Raises DataError for another sha256, OSError or HTTPException for a failed transfer;
    nothing is left behind then.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _log.info("downloading %s to %s", source.address, target)
    digest = hashlib.sha256()
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file, urllib.request.urlopen(source.address, timeout=_TIMEOUT) as reply:
            while chunk := reply.read(1 << 20):
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != source.sha256:
            raise DataError(f"its sha256 is {digest.hexdigest()} instead of {source.sha256}; nothing was kept")
        os.replace(part, target)
    except BaseException as error:  # an interrupt too must not leave half a file
        os.unlink(part)
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection open
        raise
    return target


def gunzip(path: Path, most: int) -> bytes:
    """The content of a gzip file of at most ``most`` bytes.

    Raises DataError for a file that is cut, damaged, longer or no gzip file.
    """
    try:
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except EOFError as error:
        raise DataError(f"{path}: the file is truncated; copy or download it again") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: not a readable gzip file ({error})") from error
    if len(data) > most:
        raise DataError(f"{path}: holds more than the {most:,} bytes that belong in it")
    return data


def read_text(path: Path, most: int) -> str:
    """The text of a UTF-8 file of at most ``most`` bytes, gzip-packed if its name ends in .gz.

    Raises DataError for one that is cut, damaged, longer or not UTF-8.
    """
    try:
        if path.suffix == ".gz":
            data = gunzip(path, most)
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(data) > most:
        raise DataError(f"{path}: holds more than the {most:,} bytes that belong in it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8 ({error})") from error
