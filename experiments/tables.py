"""Every table of figures in the pages is printed from the committed results.

Before such a table stands a comment, ``<!-- table: NAME -->``, and NAME is a function in ``pages`` that makes the table
from the JSON lines of experiments/*/results and benchmarks/results. ``--write`` writes the tables, ``--check`` compares
them. Where there are no results, the page has the comment alone, and the command that makes them is printed.

    python experiments/tables.py --check
    python experiments/tables.py --write
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pages import (  # noqa: F401  pages fill TABLES
    ROOT,
    TABLES,
    Missing,
    adapters,
    analysis,
    buffered,
    claims,
    data_parallel,
    federated,
    local_steps,
    onepercent,
    personal,
    pipelined,
    robust,
    sampling,
    suites,
    users,
)

PAGES = [
    *(f"docs/claims/{name}.md" for name in ("index", "lbgm", "fedluar", "thesis", "intrinsic", "flss", "every-method")),
    "docs/measured/results.md",
    "docs/measured/speed.md",
    "docs/measured/everyday.md",
    "docs/measured/ddp.md",
    "docs/measured/federation.md",
    "docs/measured/links.md",
    "docs/measured/adapters.md",
    "docs/measured/leakage.md",
    "docs/measured/personal.md",
    "docs/measured/pipeline.md",
    "docs/measured/robust.md",
    "docs/measured/buffered.md",
    "docs/measured/sampling.md",
    "docs/reference/suites.md",
    "docs/methods/auto.md",
    *(f"docs/methods/{name}.md" for name in ("def", "domo", "flss", "intrinsic", "lbgm", "local-steps", "luar")),
    "docs/methods/transform-coding.md",
]
MARK = re.compile(r"<!-- table: (\S+) -->\n((?:\|.*\n)*)")


def made(name: str) -> str:
    """A table as it is printed: nothing where there are no results."""
    try:
        return "".join(f"{line}\n" for line in TABLES[name]())
    except Missing as command:
        print(f"{name}: no results; {command}", file=sys.stderr)
        return ""


def printed() -> dict[str, tuple[str, str]]:
    """Every table that a page announces: name -> its page and its lines."""
    return {name: (page, lines) for page in PAGES for name, lines in MARK.findall((ROOT / page).read_text())}


def write() -> None:
    for page in PAGES:
        path = ROOT / page
        path.write_text(MARK.sub(lambda found: f"<!-- table: {found[1]} -->\n{made(found[1])}", path.read_text()))


def check() -> list[str]:
    """The tables that are not what the results say."""
    return [f"{page}: {name}" for name, (page, lines) in printed().items() if lines != made(name)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    o = parser.parse_args()
    if o.write:
        write()
    if wrong := check():
        sys.exit("not what the results say: " + ", ".join(wrong) + "; python experiments/tables.py --write")


if __name__ == "__main__":
    main()
