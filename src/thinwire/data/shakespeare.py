"""Plays of Shakespeare by speaking role, for models of the next character.

The text is the 1,115,394 characters that A. Karpathy put together for char-rnn
(github.com/karpathy/char-rnn). A speech is a line ``NAME:`` and the lines below it, up to
an empty line; the split by role is that of McMahan et al., AISTATS 2017, on this smaller
text.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import DataError, require
from .dataset import DataSet
from .files import Official, gunzip, obtain
from .pieces import cut, set_of_pieces
from .texts import Texts, cut_owned

TEXT = Official(
    "input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
_LENGTH = 1_115_394  # characters, all of one byte
_VOCABULARY = 65


def plays(data_dir: str | Path | None = None, download: bool = True) -> str:
    """The whole text, 1,115,394 characters. Raises DataError for a missing or wrong file."""
    return _text(obtain("shakespeare", TEXT, data_dir, download, forms=("input.txt.gz",)))


def shakespeare(
    data_dir: str | Path | None = None,
    download: bool = True,
    min_characters: int = 1_000,
    test_share: float = 0.2,
    context: int = 80,
) -> DataSet:
    """Pieces of ``context`` characters, int64 [n, context], and the same shifted by one.

    A role is kept if its speeches have ``min_characters`` in all (141 roles have 1,000); the
    last ``test_share`` of its text is for testing. Pieces do not overlap, and no piece
    reaches from the training into the test part. ``groups`` counts the kept roles in the
    order of their first speech. Raises DataError for a missing or wrong file, ValueError
    for settings that leave nothing.
    """
    require(context >= 1, "context must be at least one character")
    require(0 < test_share < 1, "test_share must lie between 0 and 1")
    text = plays(data_dir, download)
    index = {character: i for i, character in enumerate(vocabulary(text))}
    kept = [speeches for speeches in roles(text).values() if sum(map(len, speeches)) >= min_characters]
    owned = [[index[character] for character in "\n".join(speeches)] for speeches in kept]
    cuts = [round((1 - test_share) * len(ids)) for ids in owned]
    train = [cut(ids[:end], context) for ids, end in zip(owned, cuts, strict=True)]
    test = [cut(ids[end:], context) for ids, end in zip(owned, cuts, strict=True)]
    return set_of_pieces(
        "shakespeare", train, test, _VOCABULARY, "no role has that much text: lower min_characters or context"
    )


def shakespeare_texts(
    data_dir: str | Path | None = None, download: bool = True, min_characters: int = 1_000, test_share: float = 0.2
) -> Texts:
    """The speeches, a text each, owned by their role; the last ``test_share`` of each role's are for testing.

    The roles are those of :func:`shakespeare`.
    """
    require(0 < test_share < 1, "test_share must lie between 0 and 1")
    speeches = roles(plays(data_dir, download)).values()
    kept = [each for each in speeches if sum(map(len, each)) >= min_characters]
    require(bool(kept), "no role has that much text: lower min_characters")
    return cut_owned("shakespeare", kept, test_share)


def vocabulary(text: str) -> str:
    """The distinct characters, sorted: character i of it is class i."""
    return "".join(sorted(set(text)))


def roles(text: str) -> dict[str, list[str]]:
    """The speeches of every role, in the order of the text; empty ones are left out."""
    speeches: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text.strip("\n")):
        name, _, speech = block.partition("\n")
        if speech:
            speeches.setdefault(name.removesuffix(":"), []).append(speech)
    return speeches


def _text(path: Path) -> str:
    try:
        data = gunzip(path, most=_LENGTH) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("ascii")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not the text expected ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if len(text) != _LENGTH or len(set(text)) != _VOCABULARY:
        raise DataError(
            f"{path}: holds {len(text):,} characters, {len(set(text))} distinct, "
            f"instead of {_LENGTH:,} and {_VOCABULARY}; it is truncated or another text"
        )
    return text
