"""Which code made a result."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def code_version() -> str:
    """The installed version, and in a source checkout the commit (``0.1.0+g1a2b3c4``, ``-dirty`` if changed)."""
    try:
        number = version("thinwire")
    except PackageNotFoundError:
        number = "0"
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return number
    git = ["git", "-C", str(root)]
    try:
        commit = _git([*git, "rev-parse", "--short=8", "HEAD"])
        parts = ["src", "experiments", "benchmarks", ":(exclude)*.jsonl"]  # results are no code
        changed = _git([*git, "status", "--porcelain", "--untracked-files=no", "--", *parts])
    except (OSError, subprocess.SubprocessError):
        return number
    return f"{number}+g{commit}{'-dirty' if changed else ''}"


def _git(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
