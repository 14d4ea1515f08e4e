"""Checks that everything names the version of a tag, and prints what the changelog says of it.

    python .ci/release.py v0.1.0

The version is written in pyproject.toml. CITATION.cff repeats it with the day of the release, and CHANGELOG.md has a
section of it with that day. Without a tag only these three are compared; the section may then be unreleased.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def field(text: str, name: str) -> str:
    """What a line of CITATION.cff says; empty where there is no such line."""
    found = re.search(rf"^{name}: *\"?([^\"\n]*)\"?$", text, re.MULTILINE)
    return found[1] if found else ""


def newest(changelog: str) -> tuple[str, str, str]:
    """Version, day or ``unreleased``, and the sentences of the first section."""
    found = re.search(r"^## (\S+) \(([^)]+)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return (found[1], found[2], found[3].strip()) if found else ("", "", "")


def wrong(root: Path, tag: str | None) -> list[str]:
    """What does not agree, a sentence each."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    citation = (root / "CITATION.cff").read_text()
    number, day, said = newest((root / "CHANGELOG.md").read_text())
    found = []
    if field(citation, "version") != version:
        found.append(f"CITATION.cff names version {field(citation, 'version')}, pyproject.toml {version}")
    if number != version:
        found.append(f"the first section of CHANGELOG.md is of {number}, pyproject.toml names version {version}")
    if tag is None:
        return found
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, pyproject.toml names version {version}")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", day):
        found.append(f"CHANGELOG.md says ({day}) of {number}: write the day of the release, such as (2030-01-31)")
    elif field(citation, "date-released") != day:
        found.append(f"CITATION.cff has no line date-released: {day}")
    if not said:
        found.append(f"CHANGELOG.md says nothing of {number}")
    return found


if __name__ == "__main__":
    if faults := wrong(ROOT, sys.argv[1] if len(sys.argv) > 1 else None):
        sys.exit("\n".join(faults))
    print(newest((ROOT / "CHANGELOG.md").read_text())[2])
