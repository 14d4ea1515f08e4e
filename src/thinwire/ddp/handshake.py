"""What ranks say before the first step, and whether all of them want the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import OutOfSync, WireError
from ..wire import loads


def compare(answers: Sequence[bytes]) -> None:
    """Raise ``OutOfSync`` unless all have one library and ask for the same."""
    everyone = [_request_of(data) for data in answers]
    for number, (theirs, *_) in enumerate(everyone):
        if theirs != everyone[0][0]:
            raise OutOfSync(
                f"rank {number} has {theirs}, and rank 0 has {everyone[0][0]}: install one version on all ranks"
            )
    names = ("method", "seed", "debug", "trained parameters")
    for number, (_, *asked) in enumerate(everyone):
        for name, theirs, expected in zip(names, asked, everyone[0][1:], strict=True):
            if theirs != expected:
                raise OutOfSync(f"rank {number} has another {name} than rank 0: give all ranks the same")


def _request_of(data: bytes) -> list[Any]:
    """What a rank asked for, behind the version of its library; of an older one, which did not say, that alone."""
    try:
        asked = loads(data, max_values=None)
    except WireError:
        return ["a thinwire of other messages"]
    said = isinstance(asked, list) and len(asked) == 5 and str(asked[0]).startswith("thinwire ")
    return asked if said else ["a thinwire that does not say its version"]
