"""Adapters around a frozen base: what PEFT writes of them, and which base they sit on."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

ADAPTER = "adapter_model.safetensors"


def is_adapter(module: nn.Module) -> bool:
    """Whether a module is a PEFT model: adapters around a base."""
    return hasattr(module, "peft_config") and hasattr(module, "save_pretrained")


def adapter_files(module: Any) -> dict[str, bytes]:
    """The files of an adapter by name, as PEFT writes them; no page about it, and no base."""
    with TemporaryDirectory() as there:
        module.save_pretrained(there, save_embedding_layers=False)  # to find out whether to, it would ask the hub
        return {path.name: path.read_bytes() for path in sorted(Path(there).glob("adapter_*"))}


def names_in_adapter(module: nn.Module) -> set[str]:
    """The names, in the state of a PEFT model, of what :func:`adapter_files` has as it is."""
    there = {x.data_ptr() for x in _adapter_state(module).values() if x.numel()}
    return {name for name, x in module.state_dict().items() if x.numel() and x.data_ptr() in there}


def adapter_weights(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    """What :func:`adapter_files` gave, put into a PEFT model and by the names of its state. ``RuntimeError`` for the
    files of another model, or for none.
    """
    from safetensors.torch import load_file

    if not (folder / ADAPTER).exists():
        raise RuntimeError(f"{folder / ADAPTER} is missing")
    weights = load_file(folder / ADAPTER)
    if odd := sorted(weights.keys() ^ _adapter_state(module).keys()):
        raise RuntimeError(f"{odd[0]} is in one of the two alone")
    import_module("peft").set_peft_model_state_dict(module, weights)
    names, state = names_in_adapter(module), module.state_dict()
    return {name: state[name] for name in names}


def _adapter_state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = import_module("peft").get_peft_model_state_dict(module, save_embedding_layers=False)
    return state


def base_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The frozen parameters of a module that is an adapter, under every name they have; of any other module none."""
    if not is_adapter(module):
        return {}
    parameters = module.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in parameters if not p.requires_grad}


def base_digest(module: nn.Module) -> str:
    """SHA-256 of an adapter's base, by names and bytes: which base it is to be loaded on."""
    digest = hashlib.sha256()
    for name, p in sorted(base_parameters(module).items()):
        digest.update(f"{name} {p.dtype} {list(p.shape)}".encode())
        digest.update(p.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
