"""How a model is tied to what compresses it, so that a copy or a pickle of the model is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Tie:
    """What a compressed model calls. A copy of the model, or a pickle of it, has one that does nothing."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        if self.call is not None:
            self.call(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tie:
        if self.call is not None:
            self.call.__self__.on_copy(memo)  # type: ignore[attr-defined]
        return Tie()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.call is not None:
            self.call.__self__.on_pickle()  # type: ignore[attr-defined]
        return Tie, ()
