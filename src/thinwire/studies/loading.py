"""The models of a run, read back from its folder: modules that predict."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..errors import RunError, require
from ..expression import parse
from ..federated.result import Predictor
from ..train.adapter import adapter_weights, base_digest, base_parameters
from ..train.slot import make_module
from .study import Study


@dataclass
class Loaded(Predictor):
    """The trained models of a run: those parts of a :class:`Result` that predict."""

    algorithm: Algorithm
    module: nn.Module
    path: Path
    clients: int = 0
    own_module: Callable[[int], nn.Module] | None = None
    beside: Mapping[str, nn.Module] = field(default_factory=dict)
    served: nn.Module | None = None


def load(folder: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> Loaded:
    """The trained models of a run that is complete, from its folder: ``model``, ``personal(client)``, ``predict(x)``;
    ``served`` where the method served another one.

    ``folder`` is that of ``simulate(..., out=folder)`` or ``serve``, or that of one run of a study,
    ``study/01-FedAvg/seed-0``. ``model`` is the module, or the function that makes it, that the run was given. A run of
    a study knows its own. Models that a method makes of clients' examples (FT, Per-FedAvg) are there where clients had
    tests of their own.

    Raises :class:`RunError` for a folder without a complete run, and ``ValueError`` where ``model`` is needed, or is
    another one.
    """
    path = Path(folder)
    files = path / "run.json", path / "model.safetensors"
    if not all(file.exists() for file in files):
        raise RunError(f"{path} has no complete run: give the folder of one run, or let it end first")
    about = json.loads(files[0].read_text())
    known = study_of(path)
    algorithm = parse(about["method"]) if known is None else known.method(about["method"], known.use)
    if isinstance(algorithm, Auto):  # what it chose trained the model that it began with
        algorithm = algorithm.plain()
    if not isinstance(algorithm, Algorithm):
        raise RunError(f"{path} is no run of a federated method, but of {algorithm!r}")
    if model is None:
        require(known is not None, f"{path} is the run of no study: give its model too, load({str(path)!r}, model)")
        assert known is not None
        model = known.problem(about["seed"]).model
    module = copy.deepcopy(model if isinstance(model, nn.Module) else make_module(model, about["seed"]))
    clients = int(about["clients"])
    whole = algorithm.assemble(module, clients).eval()
    beside = algorithm.beside(whole)
    first = algorithm.finish(whole)

    def fill(target: nn.Module, name: str) -> nn.Module:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file

        file = path / f"{name}.safetensors"
        require(file.exists(), f"{file} is missing: the run has not ended, or the file was removed")
        try:
            weights = load_file(file)
            with safe_open(file, "pt") as opened:
                about = opened.metadata() or {}
        except SafetensorError as error:
            raise RunError(f"{file} is damaged ({error}): take a copy of it, or train the run again") from error
        if "base" in about:  # the file has all but the base of an adapter
            same = about["base"] == base_digest(target)
            require(same, f"{path} was trained on another base: give its model with that base")
            weights = {**base_parameters(target), **weights}
        try:
            if "adapter" in about:
                weights = adapter_weights(target, path / about["adapter"]) | weights
            target.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{path} was trained with another model: {str(error).partition(chr(10))[0]}") from error
        return target.eval()

    def own(client: int) -> nn.Module:
        name = str(client) if (path / "personal" / f"{client}.safetensors").exists() else "others"
        if not (path / "personal" / f"{name}.safetensors").exists():
            raise RunError(f"{path} has no model of client {client}'s own")
        return fill(copy.deepcopy(first), f"personal/{name}")

    shared = fill(copy.deepcopy(first), "model")
    others = {name: fill(copy.deepcopy(other), name) for name, other in beside.items()}
    here = (path / "personal").exists()
    served = fill(copy.deepcopy(first), "served") if (path / "served.safetensors").exists() else None
    return Loaded(algorithm, shared, path, clients if here else 0, own if here else None, others, served)


def study_of(path: Path) -> Study | None:
    """The study that a run is a part of, if any: not one that the run merely lies below."""
    from . import load as load_study

    above = path.resolve().parents
    study = load_study(above[1]) if len(above) > 1 and (above[1] / "study.json").exists() else None
    return study if study is not None and above[0].name in study.folders else None
