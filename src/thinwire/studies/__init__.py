"""Several methods on one problem: a study is a folder, and the table and plots are made from what is in it."""

from __future__ import annotations

from pathlib import Path

from ..errors import RunError
from .data_parallel import DataParallel
from .federated import Federated
from .pipelined import Pipelined
from .study import Study, described

__all__ = ["KINDS", "DataParallel", "Federated", "Pipelined", "Study", "load"]

KINDS: dict[str, type[Study]] = {cls.kind: cls for cls in (Federated, DataParallel, Pipelined)}


def load(out: Path) -> Study:
    """The study in a folder, of whatever kind. Raises :class:`RunError` where there is none."""
    values = described(out)
    kind = values.get("kind")
    if kind not in KINDS:
        raise RunError(f"{out / 'study.json'}: kind is {kind!r}; known are {', '.join(KINDS)}")
    return KINDS[kind].of(values, out / "study.json")
