"""Typed options as numbers and as a study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

N = TypeVar("N")


def numbers(option: str, text: str | None, what: str, example: str, kind: Callable[[str], N]) -> tuple[N, ...]:
    """Numbers with commas between them, each made by ``kind``; none where nothing was typed."""
    try:
        return tuple(kind(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--{option} {text}: {what} separated by commas, such as {example}") from None


def refuse_beside_task(given: dict[str, Any]) -> None:
    """Raise ``ValueError`` for an option that names what a user's own task makes itself."""
    for name in ("data", "model", "split", "holdout", "unseen", "augment", "data_dir"):
        if given.get("task") is not None and name in given["typed"]:
            option, why = f"--{name.replace('_', '-')}", "which makes model and data itself"
            raise ValueError(f"{option} is not used with --task {given['task']}, {why}: leave {option} out")


def study(cls: Any, methods: Sequence[str], given: dict[str, Any]) -> Any:
    """The study of a kind that options make, ``given`` by their names; those of numbers with commas are texts."""
    refuse_beside_task(given)
    if given.get("seeds") is not None and "seed" in given["typed"]:
        raise ValueError(f"--seed {given['seed']} is not used with --seeds {given['seeds']}, which has all of them")
    made = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    made |= {name: numbers(name, given[name], *row[:3]) for name, row in cls.lists.items() if name in given}
    if given.get("seeds") is not None:
        made["seeds"] = numbers("seeds", given["seeds"], "numbers", "0,1,2", int)
    return cls.from_options(methods, made)
