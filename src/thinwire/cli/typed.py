"""What was typed, as numbers and as a study."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

N = TypeVar("N")


def numbers(option: str, text: str | None, what: str, example: str) -> tuple[float, ...]:
    """Numbers with commas between them; none where nothing was typed."""
    return _split(option, text, what, example, float) if text else ()


def integers(option: str, text: str | None, what: str, example: str) -> tuple[int, ...]:
    """As :func:`numbers`, whole ones."""
    return _split(option, text, what, example, int) if text else ()


def decay(text: str | None) -> tuple[float, ...]:
    """The values of ``--decay``."""
    return numbers("decay", text, "shares of the steps", "0.5,0.75")


def seeds(text: str | None, one: int) -> tuple[int, ...]:
    """The values of ``--seeds``, or the one of ``--seed``."""
    return (one,) if text is None else _split("seeds", text, "numbers", "0,1,2", int)


def _split(option: str, text: str, what: str, example: str, kind: Callable[[str], N]) -> tuple[N, ...]:
    try:
        return tuple(kind(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"--{option} {text}: {what} separated by commas, such as {example}") from None


def refuse_beside_task(given: dict[str, Any]) -> None:
    """What a user's own task makes is not typed beside it. Raises ``ValueError``."""
    for name in ("data", "model", "split", "holdout", "unseen", "augment", "data_dir"):
        if given.get("task") is not None and name in given["typed"]:
            option, why = f"--{name.replace('_', '-')}", "which makes model and data itself"
            raise ValueError(f"{option} is not used with --task {given['task']}, {why}: leave {option} out")


def study(cls: type, methods: list[str], given: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """The study of one kind; ``local`` is what expressions leave open."""
    refuse_beside_task(given)
    held = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    held = {field.name: held[field.name] for field in fields(cls) if held.get(field.name) is not None}
    return cls(cls.resolved(methods, held.get("use", ()), local), **held)  # type: ignore[attr-defined]


def federated(methods: list[str], given: dict[str, Any], local: dict[str, Any], several: str | None = None) -> Any:
    """The federated study; ``several`` is ``--seeds``."""
    from ..federated.setting import Setting
    from ..studies.federated import Federated, settled

    setting = settled({field.name: given[field.name] for field in fields(Setting) if field.name in given})
    return study(Federated, methods, {**given, "setting": setting, "seeds": seeds(several, setting.seed)}, local)


def refuse_other_clients(study: Any, typed: set[str], made: int) -> None:
    """A user's own task may have made another number of clients than ``--clients``. Raises ``ValueError`` then."""
    if study.task is not None and "clients" in typed and study.clients != made:
        how = "leave --clients out, or let its function take `clients` and make so many"
        raise ValueError(f"--clients {study.clients}: --task {study.task} made {made} of them; {how}")
