"""The module that is trained is the module that was given: what can be trained here, and what is refused by name.

A worker trains a copy, whose parameters it moves into one vector. This module makes the copy, says what cannot be
moved or kept in step, and puts back what a forward pass leaves on the module, so that one client's training is not
seen by the next.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

STANDARD = frozenset(vars(nn.Module()))  # attributes that every module has
FIXED = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, type)


def copy_module(module: nn.Module, beside: bool = False) -> nn.Module:
    """A deep copy of a module, and of tensors that a forward pass left on it (an output, the weight of the old
    ``weight_norm``) their values.

    With ``beside``, parameters without gradients lie where those of the module lie: a frozen base is in memory once.
    Whoever writes to it writes to both, so that is for copies that thinwire makes of its own module.

    Raises ``ValueError``, naming the attribute, for what cannot be copied.
    """
    memo: dict[int, Any] = {id(t): t.detach().clone() for m in module.modules() for t in _outputs(vars(m), set())}
    if beside:
        memo |= {id(p): _beside(p) for p in module.parameters() if not p.requires_grad and type(p) is nn.Parameter}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise ValueError(
            f"{type(module).__name__} cannot be copied{_culprit(module)} ({type(error).__name__}: {error}): keep it "
            f"out of the module, or give the module a __deepcopy__ that leaves it out"
        ) from error


def _beside(p: nn.Parameter) -> nn.Parameter:
    """Another parameter in the same memory: to move the one to a device leaves the other where it is."""
    other = nn.Parameter(p.detach(), requires_grad=False)
    vars(other).update(vars(p))
    return other


def _outputs(value: Any, known: set[int]) -> Iterator[Tensor]:
    """The tensors within a value that a graph made."""
    if id(value) in known or isinstance(value, FIXED):
        return
    known.add(id(value))
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, dict):
        for item in list(value.values()):
            yield from _outputs(item, known)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        for item in list(value):
            yield from _outputs(item, known)
    elif not isinstance(value, nn.Module) and hasattr(value, "__dict__"):
        yield from _outputs(vars(value), known)


def _culprit(module: nn.Module) -> str:
    """The attribute that cannot be copied, for an error."""
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute in STANDARD:
                continue
            try:
                copy.deepcopy(value, {id(m): m for m in module.modules()})
            except Exception:
                return f" for the sake of {_path(name, attribute)!r}, a {type(value).__name__}"
    return ""


def _path(*names: str) -> str:
    return ".".join(name for name in names if name)


# -- what cannot be trained here ----------------------------------------------


def refuse_module(module: nn.Module) -> None:
    """Raise ``ValueError`` for a module whose parameters cannot be moved, or whose state cannot be kept in step."""
    refuse_moving(module)
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(
                f"{_who(name, part)} has a state of its own kind (get_extra_state), which is neither averaged nor "
                f"sent: make it a buffer, or leave get_extra_state out"
            )


def _who(name: str, part: nn.Module) -> str:
    return f"layer {name!r}" if name else f"the model, a {type(part).__name__},"


def refuse_moving(module: nn.Module) -> None:
    """Raise ``ValueError`` for a module whose parameters cannot be moved into one vector."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise ValueError("the model is wrapped in DistributedDataParallel, which speaks to other ranks: give .module")
    for name, part in module.named_modules():
        who = _who(name, part)
        lazy = [n for n, t in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)] if is_lazy(t)]
        if lazy:
            raise ValueError(
                f"{who} has no shape yet ({lazy[0]!r}, a lazy layer): let it see a batch before, model(inputs)"
            )
        meta = [n for n, p in part.named_parameters(recurse=False) if p.device.type == "meta"]
        if meta:
            raise ValueError(
                f"{who} has no numbers yet ({meta[0]!r}, on the device meta): give it memory, "
                f"module.to_empty(device='cpu'), and a start"
            )
        if isinstance(part, torch.jit.ScriptModule) and any(p.requires_grad for p in part.parameters()):
            raise ValueError(
                f"{who} was compiled by torch.jit (script or trace), whose parameters cannot be moved into the vector "
                f"that is trained: give the module that it was made from, and compile the result"
            )
    refuse_shared_memory(module)


def refuse_shared_memory(module: nn.Module) -> None:
    """Raise ``ValueError`` where a trained parameter lies in memory that something else of the module lies in.

    Two parameters that were tied through ``.data`` are two for whoever moves parameters, and come apart.
    """
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    others: list[tuple[str, Tensor]] = [(n, p) for n, p in module.named_parameters() if not p.requires_grad]
    others += module.named_buffers()
    spans = sorted((*_span(t), name, number) for number, (name, t) in enumerate([*trained, *others]) if _lies(t))
    end, before = -1, ("", 0)
    for first, last, name, number in spans:
        if first < end and min(number, before[1]) < len(trained):
            one, two = sorted([(before[1], before[0]), (number, name)])
            raise ValueError(
                f"{two[1]!r} lies in the memory of {one[1]!r} without being the same parameter, as `.data` ties them, "
                f"and the two would come apart: make it one parameter of two names, b.weight = a.weight"
            )
        if last > end:
            end, before = last, (name, number)
    for name, p in trained:
        if any(size > 1 and stride == 0 for size, stride in zip(p.shape, p.stride(), strict=True)):
            raise ValueError(
                f"parameter {name!r} has one number for many entries (expand): give it memory of its own, "
                f"nn.Parameter(x.clone())"
            )


def aliases(module: nn.Module) -> list[tuple[str, str]]:
    """Attributes that are tensors in the memory of a trained parameter: the name of the layer, and the attribute."""
    own = {id(t) for t in (*module.parameters(), *module.buffers())}
    spans = [_span(p) for p in module.parameters() if p.requires_grad and _lies(p)]
    places = []
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key in STANDARD or not isinstance(value, Tensor) or id(value) in own or not _lies(value):
                continue
            first, last = _span(value)
            if any(begin < last and first < end for begin, end in spans):
                places.append((name, key))
    return places


def _lies(x: Tensor) -> bool:
    """Whether a tensor is memory here, and some."""
    return x.layout == torch.strided and x.device.type != "meta" and x.numel() > 0 and type(x) in (Tensor, nn.Parameter)


def _span(x: Tensor) -> tuple[int, int]:
    """Where a tensor begins and ends in memory, in bytes."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


# -- buffers ------------------------------------------------------------------


def moving_buffers(module: nn.Module) -> set[str]:
    """The buffers that a forward pass in training writes, as far as the module itself says: no example decides.

    Those are the running statistics of torch's norm layers, and what a line of a module's own methods assigns. The
    module is in the mode of its training: a layer that its user froze moves none. The counter of a norm layer that has
    a momentum decides nothing, and is not among them.
    """
    names = set()
    for name, part in module.named_modules():
        if not part.training:
            continue
        if isinstance(part, _NormBase):
            # How many batches it has seen decides something only where the mean is over all of them.
            statistics = {"running_mean", "running_var"} | ({"num_batches_tracked"} if part.momentum is None else set())
            written: Iterable[str] = statistics & part._buffers.keys() if part.track_running_stats else ()
        else:
            kind: Any = type(part)
            hooks = [hook for hook in part._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
            vectors = {f"{hook.name}_{vector}" for hook in hooks for vector in "uv"}  # of its power iteration
            written = (_assignments(kind) | vectors) & part._buffers.keys()
        names |= {_path(name, buffer) for buffer in written if part._buffers[buffer] is not None}
    return names


@functools.cache
def _assignments(kind: Any) -> frozenset[str]:
    """The attributes of ``self`` that ``forward``, or a method that it calls, assigns or writes to in place."""
    names, methods, waiting = set[str](), set[str](), {"forward"}
    while waiting:
        method = waiting.pop()
        methods.add(method)
        function = inspect.unwrap(getattr(kind, method, None) or _nothing)
        if inspect.isfunction(function) and not (function.__module__ or "").startswith("torch.nn.modules"):
            tree = _tree(function)
            names |= _writes(tree, function.__code__.co_varnames[0] if function.__code__.co_argcount else "self")
            waiting |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & _methods(kind) - methods
    return frozenset(names)


def _nothing() -> None:
    """What a module without a method has in its place."""


@functools.cache
def _methods(kind: Any) -> frozenset[str]:
    """The names of the methods that a class adds to those of a module."""
    return frozenset(name for name in dir(kind) if not hasattr(nn.Module, name) and callable(getattr(kind, name)))


def _tree(function: Any) -> ast.AST:
    """The source of a function; an empty one where it has none here."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def _writes(tree: ast.AST, own: str) -> set[str]:
    """The attributes of the module, ``own``, that are assigned, added to, or of which a method in place is called."""
    names = set()
    for node in ast.walk(tree):
        targets: Sequence[ast.AST] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_") and node.func.attr[0] != "_":
                targets = [node.func.value]
            targets = [*targets, *(word.value for word in node.keywords if word.arg == "out")]
        names |= {name for target in targets for name in _attributes(target, own)}
    return names


def _attributes(target: ast.AST, own: str) -> Iterator[str]:
    """The attributes of ``own`` that a target of an assignment writes to: self.x, self.x[...], self.x.data."""
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _attributes(part, own)
    while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
            yield target.attr
            return
        target = target.value


class Written:
    """Which buffers were written to since, whatever the values that were written."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before = {name: (b, _version(b)) for name, b in module.named_buffers()}

    def names(self) -> set[str]:
        """Their names, and those of buffers that are new."""
        now = dict(self.module.named_buffers())
        return {name for name, b in now.items() if not self._same(name, b)} | (self.before.keys() - now.keys())

    def _same(self, name: str, b: Tensor) -> bool:
        known, version = self.before.get(name, (None, 0))
        return known is b and _version(b) == version


def norm_buffers(module: nn.Module) -> set[str]:
    """The buffers of torch's norm layers, of which the layer alone says whether they move."""
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, _NormBase)]
    return {_path(name, buffer) for name, part in layers for buffer in part._buffers}


def _version(x: Tensor) -> int:
    """How often a tensor was written to; of one that was made for inference nobody counts."""
    return -1 if x.is_inference() else x._version


def values_a_channel(part: nn.Module, inputs: Sequence[Any]) -> int:
    """How many values a channel a batch-norm layer is given by one example, at most 2: with one it cannot train."""
    x = inputs[0]
    return min(2, x.numel() // max(1, x.shape[0] * x.shape[1])) if x.ndim > 1 and x.numel() else 1


def by_batch(part: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of the batch, in the mode in which it is."""
    return isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)


# -- what a forward pass leaves on a module -----------------------------------


class Attributes:
    """What modules have beside parameters, buffers and layers, as it was: :meth:`restore` puts it back.

    Numbers, texts and functions are kept as they are. What can be changed in place (lists, tensors, objects) is kept as
    a copy, of which each :meth:`restore` puts a copy into the module.
    """

    def __init__(self, module: nn.Module) -> None:
        # What stays what it is: the module's own layers, parameters and buffers, which attributes may refer to too.
        self.own: dict[int, Any] = {id(x): x for x in (*module.modules(), *module.parameters(), *module.buffers())}
        self.places = [vars(part) for part in module.modules()]
        # The handles of hooks refer weakly to the dicts that hold them: a handle's copy is of the same hooks.
        hooks = [v for place in self.places for n, v in place.items() if n in STANDARD and isinstance(v, dict)]
        self.own |= {id(x): x for x in hooks}
        self.sizes = [len(place) for place in self.places]
        self.fixed = [{n: v for n, v in place.items() if n not in STANDARD} for place in self.places]
        self.loose = [
            (number, name) for number, values in enumerate(self.fixed) for name, v in values.items() if not _is_fixed(v)
        ]
        self.buffers = [(part._buffers, dict(part._buffers)) for part in module.modules() if part._buffers]
        self.kept = self._copies([self.fixed[number][name] for number, name in self.loose])

    def now(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """What modules have at this moment, for :meth:`resume`."""
        own = [(place, {n: v for n, v in place.items() if n not in STANDARD}) for place in self.places]
        return own + [(buffers, dict(buffers)) for buffers, _ in self.buffers]

    def resume(self, values: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Put back what :meth:`now` gave."""
        for place, known in values:
            place.update(known)

    def restore(self) -> None:
        """Put all of it back, buffers too: those that are others by now become the tensors that they were."""
        for place, values, size in zip(self.places, self.fixed, self.sizes, strict=True):
            place.update(values)
            if len(place) > size:
                for name in [n for n in place if n not in STANDARD and n not in values]:
                    del place[name]
        for (number, name), value in zip(self.loose, self._copies(self.kept), strict=True):
            self.places[number][name] = value
        for buffers, tensors in self.buffers:
            buffers.update(tensors)

    def _copies(self, values: list[Any]) -> list[Any]:
        return copy.deepcopy(values, dict(self.own)) if values else []


def _is_fixed(value: Any) -> bool:
    """Whether a value cannot be changed in place."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, FIXED) or (inspect.isroutine(value) and not inspect.ismethod(value))
