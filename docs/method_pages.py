"""The pages of methods, docs/methods: the macros of each, what it is the page of, and whose bytes it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from code_names import KINDS, Wrong, catalogued, owner, paper_of

DOCS = Path(__file__).resolve().parent
MACRO = re.compile(r"^\{\{ *(.*?) *\}\} *$", re.M)
OWNING = ("paper", "differences", "code")  # the macros that say whose page it is


class Call(NamedTuple):
    """A macro of a page."""

    name: str
    words: list[str]


def calls(text: str) -> list[Call]:
    """The macros of a page."""
    return [call_of(found[1]) for found in MACRO.finditer(text)]


def call_of(inside: str) -> Call:
    """The macro that is written between its braces. Raises :class:`Wrong`."""
    try:
        name, *words = shlex.split(inside) or [""]
    except ValueError as error:
        raise Wrong(f"{inside}: {error}") from None
    return Call(name, words)


class Page(NamedTuple):
    """A page of docs/methods."""

    path: Path
    name: str
    about: str
    names: list[str]  # in full, of what it is the page of
    kind: str  # of KINDS

    @property
    def link(self) -> str:
        return self.path.name


def pages() -> list[Page]:
    """All pages of methods, by name."""
    paths = [path for path in (DOCS / "methods").glob("*.md") if path.name != "index.md"]
    return sorted((page(path) for path in paths), key=lambda each: each.name.lower())


def page(path: Path) -> Page:
    """What a page says of itself. Raises :class:`Wrong`."""
    text, where = path.read_text(), f"docs/methods/{path.name}"
    head = re.match(r"# (.+?) \((.+)\)\n", text)
    if not head:
        raise Wrong(f'{where}: it begins with "# Name (what it is in words)"')
    names = list(dict.fromkeys(name for call in calls(text) if call.name == "paper" for name in call.words))
    names = [owner(name)[0] for name in names]
    # What has no paper has no such line: it is on the page that has its name, its code or its differences.
    known = {name.removeprefix("thinwire."): name for name in catalogued()}
    names += [known[word] for word in re.findall(r"[\w.]+", head[1]) if word in known]
    for call in calls(text):
        names += [owner(word)[0] for word in call.words if call.name in OWNING and not paper_of(word)]
    names = [name for name in dict.fromkeys(names) if name in catalogued()]
    if not names:
        raise Wrong(
            f"{where}: it is the page of nothing in the catalogue; name what it is about with {{{{ paper X }}}}"
        )
    kind = next(kind for kind, words in KINDS.items() if catalogued()[names[0]] in words)
    return Page(path, head[1], head[2], names, kind)


def expressions() -> dict[str, list[str]]:
    """Every expression that a page has the bytes of -> the pages."""
    found: dict[str, list[str]] = {}
    for path in sorted((DOCS / "methods").glob("*.md")):
        for call in calls(path.read_text()):
            for word in call.words if call.name == "bytes" else ():
                found.setdefault(word, []).append(f"docs/methods/{path.name}")
    return found
