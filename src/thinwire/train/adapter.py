"""Adapters around a frozen base: what PEFT writes of them, and which base they sit on."""

from __future__ import annotations

import hashlib
import json
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

ADAPTER = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
# What of a configuration changes what an adapter computes, and is in no name, shape or value of its weights.
SCALES = ("lora_alpha", "alpha", "alpha_pattern", "rank_pattern", "use_rslora", "scaling", "lora_dropout")


def is_adapter(module: nn.Module) -> bool:
    """Whether a module is a PEFT model with one active adapter around a base, which is all that PEFT writes as one."""
    model = _bare(module)
    known = any(kind.__name__ == "PeftModel" and kind.__module__.startswith("peft.") for kind in type(model).__mro__)
    return known and len(model.active_adapters) == 1


def adapter_files(module: nn.Module) -> dict[str, bytes]:
    """The files of the active adapter by name, as PEFT writes them; no page about it, and no base."""
    model, name = _bare(module), _active(module)
    with TemporaryDirectory() as there:
        # To find out whether embeddings are to be saved, PEFT would ask the hub.
        model.save_pretrained(there, selected_adapters=[name], save_embedding_layers=False)
        inside = Path(there) / ("" if name == "default" else name)
        return {path.name: path.read_bytes() for path in sorted(inside.glob("adapter_*"))}


def names_in_adapter(module: nn.Module) -> set[str]:
    """The names, in the state of a PEFT model, of what :func:`adapter_files` has as it is."""
    there = {x.data_ptr() for x in _adapter_state(module).values() if x.numel()}
    return {name for name, x in module.state_dict().items() if x.numel() and x.data_ptr() in there}


def names_beside_adapter(module: nn.Module) -> list[str]:
    """The trained parameters of a PEFT model that :func:`adapter_files` leaves out, by name."""
    if _bare(module).active_peft_config.is_prompt_learning:  # PEFT writes what is made of them
        return []
    there = {x.data_ptr() for x in _adapter_state(module).values() if x.numel()}
    return [name for name, p in module.named_parameters() if p.requires_grad and p.data_ptr() not in there]


def scales(module: nn.Module) -> dict[str, Any]:
    """The settings by which the active adapter is scaled, and dropped in training; none for what is no adapter."""
    if not is_adapter(module):
        return {}
    config = _bare(module).active_peft_config
    return {name: getattr(config, name) for name in SCALES if getattr(config, name, None) is not None}


def _check_scales(module: nn.Module, folder: Path) -> None:
    """Raise ``RuntimeError`` where the adapter of a folder is scaled otherwise than that of a PEFT model."""
    there = json.loads((folder / CONFIG).read_text()) if (folder / CONFIG).exists() else {}
    for name, own in scales(module).items():
        same = name == "lora_dropout" or there.get(name, own) == own
        if not same:
            raise RuntimeError(f"its adapter has {name}={there[name]}, and that of the model {name}={own}")


def adapter_weights(module: nn.Module, folder: Path) -> dict[str, Tensor]:
    """What :func:`adapter_files` gave, put into a PEFT model and by the names of its state. ``RuntimeError`` for the
    files of another model, or of one that is scaled otherwise, or for none.
    """
    from safetensors.torch import load_file

    if not (folder / ADAPTER).exists():
        raise RuntimeError(f"{folder / ADAPTER} is missing")
    weights = load_file(folder / ADAPTER)
    if odd := sorted(weights.keys() ^ _adapter_state(module).keys()):
        raise RuntimeError(f"{odd[0]} is in one of the two alone")
    _check_scales(module, folder)
    import_module("peft").set_peft_model_state_dict(_bare(module), weights, adapter_name=_active(module))
    names, state = names_in_adapter(module), module.state_dict()
    return {name: state[name] for name in names}


def _adapter_state(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Tensor] = import_module("peft").get_peft_model_state_dict(
        _bare(module), adapter_name=_active(module), save_embedding_layers=False
    )
    return state


def _bare(module: Any) -> Any:
    """A module without what ``torch.compile`` puts around it, which gives every name a prefix."""
    return getattr(module, "_orig_mod", module)


def _active(module: nn.Module) -> str:
    """The name of the active adapter: that which is trained."""
    (name,) = _bare(module).active_adapters
    return str(name)


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
