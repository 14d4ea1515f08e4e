"""What models make of pictures: masks beside the true ones, in colours."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from ..data.dataset import VOID
from ..errors import RunError
from ..task import Supervised, Task, dice, each_mask, masks

WHITE, RED, BLUE, GREY = (255, 255, 255), (230, 40, 40), (60, 110, 255), (90, 90, 90)
GAP = 190


class Segmented(NamedTuple):
    """A test picture, its mask, and what models found in it."""

    client: int
    picture: Float[Tensor, "c h w"]  # as the data has it: 0 to 1
    truth: UInt8[Tensor, "h mw 3"]  # several masks side by side
    found: list[UInt8[Tensor, "h mw 3"]]
    dice: list[float]  # 0 to 1, a number each


def compared(found: Bool[Tensor, "m h w"], truth: UInt8[Tensor, "m h w"]) -> UInt8[Tensor, "h mw 3"]:
    """Masks that a model made, and the true ones: white is right, red was missed, blue is none, grey not labelled.

    Several are side by side, with a gap between them.
    """
    right, seen = truth == 1, truth != VOID
    out = torch.zeros(*truth.shape, 3, dtype=torch.uint8)
    for where, colour in ((found & right, WHITE), (~found & right, RED), (found & ~right & seen, BLUE), (~seen, GREY)):
        out[where] = torch.tensor(colour, dtype=torch.uint8)
    gap = torch.full((truth.shape[1], max(1, truth.shape[2] // 32), 3), GAP, dtype=torch.uint8)
    return torch.cat([part for mask in out for part in (gap, mask)][1:], dim=1)


@torch.no_grad()
def segmented(client: int, task: Task, example: int, modules: list[nn.Module]) -> Segmented:
    """One test picture of a client by each module. Raises :class:`RunError` for a task that is no segmentation."""
    if not (isinstance(task, Supervised) and masks(task.targets)):
        raise RunError(f"client {client}'s test has no masks: look at a run such as --data retina")
    rows = torch.tensor([example % len(task)])
    inputs, targets = task.batch(rows)
    truth = each_mask(targets)[0]
    outputs = [module.eval()(inputs) for module in modules]
    picture = task.inputs[rows[0] if task.indices is None else task.indices[rows[0]]]
    return Segmented(
        client,
        picture.float() / 255 if picture.dtype == torch.uint8 else picture.float(),
        compared(truth == 1, truth),
        [compared(out[0] > 0, truth) for out in outputs],
        [float(dice(out, targets)) for out in outputs],
    )
