"""The loss of a causal language model without all of its logits, where its last layer is frozen.

Logits are large: of 256 tokens over 49,152 words they are 50 MB, and cross-entropy and its gradient take three times as
much beside them. Of a frozen last layer only its inputs need a gradient, which is of each token's loss a row of
``(softmax - target) weight``. So the layer is computed for some tokens at a time, forward and backward at once.

Models of transformers' own classes are known, alone or with PEFT's adapters. They run as they are. Their last layer
gives :class:`Deferred` logits, which are computed as soon as anything but a loss looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as modules

from ..losses import IGNORED, wide_enough

MOST_LOGITS = 1 << 23  # at once: 32 MiB of 32-bit floats

_about: tuple[Any, ...] = (Tensor.shape, Tensor.ndim, Tensor.dtype, Tensor.device)
ABOUT = tuple(attribute.__get__ for attribute in _about)  # what can be asked of outputs before they are computed


class Deferred(Tensor):
    """The outputs of a linear layer, [..., v], which nobody has computed. Any operation on them computes them first."""

    inputs: Float[Tensor, "... d"]
    weight: Float[Tensor, "v d"]
    bias: Float[Tensor, " v"] | None
    whole: Tensor | None
    recorded: tuple[bool, bool]

    @staticmethod
    def of(layer: nn.Linear, inputs: Float[Tensor, "... d"]) -> Deferred:
        """What ``layer`` makes of these inputs."""
        shape = (*inputs.shape[:-1], layer.out_features)
        made: Deferred = Tensor._make_wrapper_subclass(Deferred, shape, dtype=inputs.dtype, device=inputs.device)
        made.inputs, made.weight, made.bias, made.whole = inputs, layer.weight, layer.bias, None
        made.recorded = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return made

    def outputs(self) -> Tensor:
        """What the layer gives, computed once, with a graph if one was recorded when the layer was called."""
        if self.whole is None:
            inference, graph = self.recorded
            with torch.inference_mode(inference), torch.set_grad_enabled(graph):
                self.whole = F.linear(self.inputs, self.weight, self.bias)
        return self.whole

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args)
        return func(*map(resolve, args), **{name: resolve(value) for name, value in (kwargs or {}).items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} would record no graph here")


def resolve(value: Any) -> Any:
    """A value, or a list or tuple of values, with outputs in place of deferred ones."""
    if isinstance(value, Deferred):
        return value.outputs()
    if type(value) in (tuple, list):
        return type(value)(map(resolve, value))
    return value


class Score(NamedTuple):
    """What a model makes of the token that comes next, [b, t]: both are 0 where it does not count."""

    nats: Float[Tensor, "b t"]  # its cross-entropy, in 32 bits or in 64
    right: Bool[Tensor, "b t"]  # whether the largest logit is its own


def logits_of(module: nn.Module, **inputs: Any) -> Float[Tensor, "b t v"]:
    """The logits of a causal language model, deferred where its last layer is known and frozen."""
    layer = frozen_head(module)
    if layer is None:
        out: Tensor = module(**inputs).logits
        return out
    with _deferring(layer):
        out = module(**inputs).logits
    return out


def nats(logits: Float[Tensor, "b t v"], targets: Int64[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """The cross-entropy of each target, in 32 bits or in 64; 0 where it is -100."""
    if _unread(logits, targets):
        return _by_parts(logits, targets).nats
    flat = F.cross_entropy(wide_enough(resolve(logits)).flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def score(logits: Float[Tensor, "b t v"], targets: Int64[Tensor, "b t"]) -> Score:
    """:func:`nats`, and which targets the largest logits name."""
    if _unread(logits, targets):
        return _by_parts(logits, targets)
    return Score(nats(logits, targets), logits.argmax(-1) == targets)


def frozen_head(module: Any) -> nn.Linear | None:
    """The last layer of a module that is known to give this layer's outputs as they are, or to look at them by torch's
    operations alone; None for any other module.
    """
    base: Any = module.get_base_model() if _of(module, "peft") and hasattr(module, "get_base_model") else module
    layer = base.get_output_embeddings() if _of(base, "transformers") and _has_head(base) else None
    if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
        return None
    trained = any(p.requires_grad for p in layer.parameters())
    changed = any("forward" in vars(part) or part._compiled_call_impl is not None for part in (module, base, layer))
    hooks = layer._backward_hooks, layer._backward_pre_hooks, modules._global_backward_hooks
    watched = any(hooks) or bool(modules._global_backward_pre_hooks)
    narrowed = torch.is_autocast_enabled(layer.weight.device.type)
    return None if trained or changed or watched or narrowed else layer


def _of(module: nn.Module, package: str) -> bool:
    """Whether a package defines the module's class: what a class of the user's does is not known."""
    return type(module).__module__.partition(".")[0] == package


def _has_head(base: Any) -> bool:
    return hasattr(base, "get_output_embeddings")


@contextmanager
def _deferring(layer: nn.Linear) -> Iterator[None]:
    """Within the block the layer's outputs are deferred."""
    vars(layer)["forward"] = lambda inputs: Deferred.of(layer, inputs)
    try:
        yield
    finally:
        vars(layer).pop("forward", None)  # another thread may have been here, with the same module


def _unread(logits: Tensor, targets: Tensor) -> bool:
    """Whether logits are those of a layer, and nobody has looked at them."""
    return isinstance(logits, Deferred) and logits.whole is None and logits.inputs.shape[:-1] == targets.shape


def _by_parts(logits: Any, targets: Int64[Tensor, "b t"]) -> Score:
    counted = targets != IGNORED
    own = targets[counted]
    each, best = _Nats.apply(logits.inputs[counted], logits.weight, logits.bias, own)  # type: ignore[no-untyped-call]
    right = torch.zeros_like(counted)
    right[counted] = best == own
    return Score(each.new_zeros(targets.shape).masked_scatter(counted, each), right)


class _Nats(torch.autograd.Function):
    """Inputs [n, d], weight [v, d], bias [v] and targets [n] to the cross-entropy and the largest output of each, [n].

    The gradient of the inputs is computed together with these, and held in place of the outputs.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        slope = torch.empty_like(inputs) if ctx.needs_input_grad[0] else None
        parts = -(-len(inputs) * len(weight) // MOST_LOGITS)
        size = max(1, -(-len(inputs) // max(1, parts)))
        slopes = repeat(None) if slope is None else torch.split(slope, size)
        rows = zip(torch.split(inputs, size), torch.split(targets, size), slopes, strict=False)
        each, best = map(torch.cat, zip(*(_part(weight, bias, *row) for row in rows), strict=True))
        ctx.save_for_backward(inputs, weight, bias, targets, slope)
        ctx.mark_non_differentiable(best)
        return each, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
        inputs, weight, bias, targets, slope = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (grad[:, None] * slope).to(inputs.dtype), None, None, None
        # Somebody asks for the gradient of a gradient.
        each = F.cross_entropy(wide_enough(F.linear(inputs, weight, bias)), targets, reduction="none")
        return torch.autograd.grad(each, inputs, grad, create_graph=True)[0], None, None, None


def _part(
    weight: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None,
    inputs: Float[Tensor, "n d"],
    targets: Int64[Tensor, " n"],
    slope: Float[Tensor, "n d"] | None,
) -> tuple[Float[Tensor, " n"], Int64[Tensor, " n"]]:
    """The cross-entropy and the largest output of these; ``slope`` becomes the gradient of the first."""
    x = wide_enough(F.linear(inputs, weight, bias))
    top, best = x.max(1)
    x.sub_(top[:, None])
    own = x.gather(1, targets[:, None])[:, 0]
    total = x.exp_().sum(1)
    if slope is not None:
        x.div_(total[:, None])
        x[torch.arange(len(x), device=x.device), targets] -= 1
        torch.mm(x.to(weight.dtype), weight, out=slope)
    return total.log() - own, best
