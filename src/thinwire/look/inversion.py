"""A picture from its gradient: the inputs are sought whose gradient, sent the same way, is the nearest.

Zhu, Liu, Han, "Deep Leakage from Gradients", NeurIPS 2019, arXiv:1906.08935, Algorithm 1 (DLG); Zhao, Mopuri, Bilen,
"iDLG: Improved Deep Leakage from Gradients", 2020, arXiv:2001.02610. How it differs from the papers is said in
:mod:`~thinwire.look.leakage`, which has the gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..key import Key
from ..params import Layout, call_with

Distance = Literal["squares", "cosine"]
Sent = Callable[[Tensor], Tensor]  # what the server sees of a gradient [d]

ROUGH: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Threshold,
)
ROUGH += (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


class Match(NamedTuple):
    """The result of L-BFGS."""

    inputs: Float[Tensor, "1 ..."]
    label: int
    match: float


def rough(module: nn.Module) -> list[str]:
    """The kinds of layers that have no useful second derivatives, so that gradients cannot be inverted through them."""
    return sorted({type(part).__name__ for part in module.modules() if isinstance(part, ROUGH)})


def idlg(module: nn.Module, gradient: Float[Tensor, " d"], classes: int) -> int:
    """The label of one example, from the gradient of the last layer: the one output that should grow.

    Of cross-entropy the gradient of the last bias is the probabilities less 1 at the label. Without a bias the rows of
    the last matrix are summed: right where the features are not negative. Raises ``ValueError`` where no parameter of
    the last layer has ``classes`` rows.
    """
    layout = Layout.of((name, p) for name, p in module.named_parameters() if p.requires_grad)
    for name in reversed(layout.names):
        begin, size, shape = layout.spans[name]
        if shape and shape[0] == classes:
            return int(gradient[begin : begin + size].view(classes, -1).sum(1).argmin())
    raise ValueError(f"the model's last layer has no row for each of {classes} classes: give the label, --attack label")


def invert(
    module: nn.Module,
    gradient: Float[Tensor, " d"],
    shape: Sequence[int],
    classes: int,
    label: int | None,
    sent: Sent | None = None,
    distance: Distance = "squares",
    iterations: int = 300,
    tries: int = 3,
    seed: int = 0,
    between: tuple[float, float] = (0.0, 1.0),
    clips: tuple[float, float] = (math.inf, math.inf),
) -> Match:
    """The example whose gradient, sent the same way, is the nearest to ``gradient``.

    ``module`` maps [1, *shape] to [1, classes] and its loss is cross-entropy. ``gradient`` has its trainable parameters
    one after the other. ``label`` None: it is sought with the example, as in DLG. ``sent`` is a linear, symmetric
    function of a gradient (None: the gradient itself). Each of ``tries`` begins with numbers drawn uniformly
    ``between`` two, and makes ``iterations`` steps of L-BFGS. ``clips`` are the greatest lengths of a gradient before
    it is sent and after, to which the attacker, who knows them, shortens its own as the client's was.
    """
    twin = double(module)
    named: dict[str, Tensor] = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    seen = gradient.double()
    best: Match | None = None
    for number in range(tries):
        draw = Key(seed, number).at("leakage").generator("picture")
        x = torch.rand([1, *shape], generator=draw, dtype=torch.float64) * (between[1] - between[0]) + between[0]
        soft = torch.randn([1, classes], generator=draw, dtype=torch.float64)
        unknown = [x.requires_grad_(), *([soft.requires_grad_()] if label is None else [])]
        search = torch.optim.LBFGS(
            unknown,
            max_iter=iterations,
            max_eval=4 * iterations,
            history_size=100,
            tolerance_grad=1e-14,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
        lowest, at = float("inf"), [u.detach().clone() for u in unknown]

        def closure(unknown: list[Tensor] = unknown, x: Tensor = x, soft: Tensor = soft) -> float:
            nonlocal lowest, at
            target = soft.softmax(1) if label is None else torch.tensor([label])
            loss = F.cross_entropy(call_with(twin, named, (x,)), target)
            own = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(named.values()), create_graph=True)])
            made = sent_as(own.detach(), sent, clips)
            value, slope = distance_to(made.shown, seen, distance)
            slope = shorten_slope(made.whole, clips[1], slope)
            slope = slope if sent is None else sent(slope)  # symmetric: its own transpose
            slope = shorten_slope(own.detach(), clips[0], slope)
            for u, g in zip(unknown, torch.autograd.grad(own, unknown, slope), strict=True):
                u.grad = g
            if value < lowest:
                lowest, at = value, [u.detach().clone() for u in unknown]
            return value

        search.step(closure)  # type: ignore[no-untyped-call]
        if best is None or lowest < best.match:
            best = Match(at[0], label if label is not None else int(at[1].argmax()), lowest)
    assert best is not None
    return best


class SentAs(NamedTuple):
    """A gradient as it is sent: before the last clipping, and after."""

    whole: Tensor
    shown: Tensor


def sent_as(gradient: Float[Tensor, " d"], sent: Sent | None, clips: tuple[float, float]) -> SentAs:
    """Clip a gradient, send it, and clip it again."""
    short = shorten(gradient, clips[0])
    whole = short if sent is None else sent(short)
    return SentAs(whole, shorten(whole, clips[1]))


def shorten(v: Tensor, most: float) -> Tensor:
    """A vector whose length is at most ``most``, in the direction that it had."""
    length = float(v.norm())
    return v if length <= most else v * (most / length)


def shorten_slope(v: Tensor, most: float, slope: Tensor) -> Tensor:
    """The derivative of a function of :func:`shorten`, from that by the shortened vector."""
    length = float(v.norm())
    if length <= most:
        return slope
    unit = v / length
    return (most / length) * (slope - torch.dot(slope, unit) * unit)


def distance_to(own: Tensor, seen: Tensor, kind: Distance) -> tuple[float, Tensor]:
    """How far a gradient is from the one that was seen, and the derivative of that."""
    if kind == "squares":
        whole = seen.square().sum().clamp_min(1e-300)
        return float((own - seen).square().sum() / whole), 2 * (own - seen) / whole
    length, other = own.norm().clamp_min(1e-150), seen.norm().clamp_min(1e-150)
    cosine = torch.dot(own, seen) / length / other
    return float(1 - cosine), (cosine * own / length - seen / other) / length


def double(module: nn.Module) -> nn.Module:
    """A copy that computes with 64 bits, on the CPU, in training mode."""
    return copy.deepcopy(module).double().to("cpu").train()


def gradient_of(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of a batch, [d], in 64 bits."""
    twin = double(module)
    loss = F.cross_entropy(twin(inputs.double()), targets)
    trained = [p for p in twin.parameters() if p.requires_grad]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)])
