"""Adapters on disk: as PEFT loads them, and as thinwire does, without the base that they sit on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import nn

from ..errors import require
from ..train.adapter import adapter_files, is_adapter, names_beside_adapter

BESIDE = "beside the adapter, which PEFT would not load: name its layer in modules_to_save, or freeze it"


@runtime_checkable
class Models(Protocol):
    """A result, or a run that was loaded."""

    module: nn.Module

    def personal(self, client: int) -> nn.Module:
        """The module with a client's own model."""


def save_adapter(result: Models, folder: str | Path, client: int | None = None) -> None:
    """Write what ``PeftModel.from_pretrained(base, folder)`` loads: the trained adapter, or a client's own.

    ``result`` is that of ``simulate``, or of ``load``. Raises ``ValueError`` for a model that is no PEFT model with one
    active adapter, and for one of which parameters beside the adapter are trained.
    """
    module = result.module if client is None else result.personal(client)
    require(
        is_adapter(module),
        f"the model is a {type(module).__name__} and no PEFT model with one active adapter: it has no adapter to save; "
        f"get_peft_model makes one",
    )
    if beside := names_beside_adapter(module):
        raise ValueError(f"{beside[0]!r} is trained {BESIDE}")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, data in adapter_files(module).items():
        (path / name).write_bytes(data)
