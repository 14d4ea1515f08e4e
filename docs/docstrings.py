"""Docstrings for mkdocstrings: they are reStructuredText, pages are Markdown."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).resolve().parent))
import macros


class Markdown(griffe.Extension):
    """Roles become code, blocks after ``::`` and tables become blocks. Public names are at the root, as in Python."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        import thinwire.public

        listed = re.findall(r"^from \.(\w+) import \*", Path(thinwire.public.__file__).read_text(), re.M)
        for package in listed:
            for name in getattr(thinwire, package).__all__ if pkg.name == "thinwire" else ():
                if name not in pkg.members:  # what is loaded by a lazy root cannot be read off its source
                    pkg.set_member(name, griffe.Alias(name, f"thinwire.{package}.{name}"))

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = page(obj.docstring.value)


def page(text: str) -> str:
    """A docstring as Markdown."""
    made = []
    for block in re.split(r"\n[ \t]*\n", text):
        if re.match(r"\s*=+ +=+", block):
            made.append(f"```text\n{block}\n```")
        elif re.match(r"(    |\t)", block):
            made.append(block)
        else:
            said = macros.markdown(block)
            made.append(re.sub(r"::$", ":", said) if not re.fullmatch(r"\s*::\s*", said) else "")
    return "\n\n".join(made)
