"""Looking at a run: what it did, what of it can be drawn, and what a server sees of a client.

A look is a file here, with a class over :class:`~thinwire.look.base.Look`, and a row of :data:`LOOKS`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..errors import find_class, require

if TYPE_CHECKING:
    from .base import Look

LOOKS = {
    "gradients:Gradients": "Principal components of a run's gradients, their overlap and cosines by layer; LBGM's "
    "tests; Equation 45's bound.",
    "layers:Layers": "How far each layer moved beside how large it is, which were recycled, and their share of the "
    "gradient (kappa).",
    "subspace:Subspace": "The spectrum of a run's updates, what R directions leave out, and the cosine of each update "
    "to FLSS's basis.",
    "feedback:Feedback": "How long residuals are, how far x is from y, and the best lambda, by step.",
    "theory:Theory": "What the theorems of a run's method speak of, in numbers: constants, conditions, bounds beside "
    "what they bound.",
    "staleness:Staleness": "How far each part of a pipeline moves while a batch is on its way, and its gradient from "
    "backpropagation's.",
    "sweep:Sweep": "What methods reached by a number in their expressions, or by what they sent; bars are over seeds.",
    "surface:Surface": "The test loss around a run's final model, along two random directions with filters as long as "
    "the model's.",
    "line:Line": "The test loss along one random direction from the final model of each method, all in one figure.",
    "path:Trajectory": "The way of a run's models on the plane of their two principal directions, and the test loss "
    "around it.",
    "embedding:Embedding": "Where a run's models put the examples of each client: t-SNE of what goes into the last "
    "layer.",
    "pictures:Pictures": "A test picture of each client, its mask, and what each method's model finds in it, with the "
    "Dice coefficient.",
    "dimension:Dimension": "The measured intrinsic dimension: the smallest whose training reaches a share of what the "
    "whole model reaches.",
    "leakage:Leakage": "Rebuild a client's picture from what it sends under each method: PSNR, SSIM, pictures side by "
    "side.",
}
"""Where the class of each look is, by the name of its module and command, and a line for ``--help``, in its order.

With these ``thinwire look --help`` is written without importing a look, and so torch.
"""


def load(place: str) -> type[Look[Any]]:
    """The class at a place of ``LOOKS``, such as ``"layers:Layers"``. Its module is imported here and not before.

    Raises ``ValueError`` for a place where there is none, and for a field that is no option.
    """
    module, _, name = place.partition(":")
    look: type[Look[Any]] = find_class(f".{module}", __name__, name, f"LOOKS[{place!r}]")
    bare = next((field.name for field in fields(look) if "help" not in field.metadata), None)
    require(bare is None, f"{name}.{bare} is no option: write `{bare}: ... = option(default, help)`")
    return look
