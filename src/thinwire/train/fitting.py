"""Whether examples go with the model, found out before training: what does not is said, with the client's name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..algorithms.selector import Super, logits
from ..data.dataset import VOID
from ..dice import Dice
from ..errors import require
from ..losses import IGNORED, cross_entropy, dice_loss, each_mask, squared_error
from ..task import Supervised, Task
from .precision import without_cache
from .slot import Slot


def fitting(slot: Slot, tasks: Iterable[tuple[str, Task]]) -> None:
    """Raise ``ValueError`` where the model does not take a task's inputs, or has no output for its targets.

    ``tasks`` come with the names they have in errors. Those with a loss of their own are not looked at, and an
    exception of the user's own code comes through as it is.
    """
    outputs: dict[Any, Tensor] = {}  # of the first task with such inputs
    looked: set[int] = set()  # masks that many share
    within: dict[tuple[int, int], bool] = {}  # whether all targets in a tensor that many share are among the classes
    for who, task in tasks:
        known = (
            isinstance(task, Supervised) and len(task) > 0 and task.loss_of in (cross_entropy, squared_error, dice_loss)
        )
        if not known:
            continue
        assert isinstance(task, Supervised)
        shape, targets = (task.inputs.shape[1:], task.inputs.dtype), task.targets
        if shape not in outputs:
            outputs[shape] = _outputs(slot, task, who)
        given = outputs[shape]
        if task.loss_of is dice_loss:
            wanted = each_mask(targets).shape[1:]
            require(
                given.shape[1:] == wanted,
                f"{who}: for masks of {list(targets.shape)} the model should give one output for each pixel of each "
                f"mask, [examples, {', '.join(map(str, wanted))}], as unet does; it gives {list(given.shape)} for "
                f"{len(given)} examples",
            )
            if id(targets) not in looked:
                looked.add(id(targets))
                strange = targets[(targets > 1) & (targets != VOID)]
                require(
                    len(strange) == 0,
                    f"{who}: targets of bytes [n, height, width] or [n, masks, height, width] are masks, of 0, 1 and "
                    f"{VOID} for a pixel that nobody labelled; these have {int(strange[0]) if len(strange) else 0}: to "
                    f"predict values make them floats",
                )
            continue
        if task.loss_of is squared_error or targets.is_floating_point():
            continue
        require(
            given.ndim > 1 and given.shape[1:-1] == targets.shape[1:],
            f"{who}: for targets of {list(targets.shape)} the model should give a score for every class of each, "
            f"[examples, {'..., ' if targets.ndim > 1 else ''}classes]; it gives {list(given.shape)} for {len(given)} "
            f"examples",
        )
        place, classes = (id(targets), given.shape[-1]), given.shape[-1]
        if place not in within:
            low, high = torch.aminmax(targets)
            within[place] = int(low) >= 0 and int(high) < classes
        if not within[place]:
            _check_labels(targets if task.indices is None else targets[task.indices], classes, task.ignore_index, who)


def _check_labels(own: Tensor, classes: int, ignored: int, who: str) -> None:
    """Raise ``ValueError`` for a label that is not one of the classes."""
    bad = ((own < 0) | (own >= classes)) & (own != IGNORED) & (own != ignored)
    if bad.any():
        place = bad.nonzero()[0].tolist()
        raise ValueError(
            f"{who}: the label of example {place[0]} is {int(own[bad][0])}, and the model has {classes} outputs, for "
            f"labels 0 to {classes - 1}: change the labels, or give the model more outputs"
        )


def _outputs(slot: Slot, task: Supervised, who: str) -> Tensor:
    """What the model makes of a task's first examples. Torch's generator and the buffers stay as they were."""
    inputs = slot.batch(task, torch.arange(2, device="cpu") % len(task))[0]
    dice = Dice.now()
    try:
        slot.module.eval()  # norms cannot train on one example
        with torch.no_grad(), without_cache(slot.device):
            outputs = slot.module(inputs)
            if isinstance(slot.module, Super):  # which is asked after many rounds, if its method says so
                logits(slot.module, inputs)
    except Exception as error:
        if not _of_torch(error):
            raise
        kind, why = str(inputs.dtype).removeprefix("torch."), str(error).partition("\n")[0]
        raise ValueError(f"{who}: the model does not take inputs of {list(inputs.shape)} ({kind}): {why}") from error
    finally:
        dice.restore()
        slot.attributes.restore()
        slot.load_buffers(None)
    require(isinstance(outputs, Tensor), f"{who}: the model gives a {type(outputs).__name__}, a tensor is expected")
    assert isinstance(outputs, Tensor)
    return outputs


def _of_torch(error: BaseException) -> bool:
    """Whether an exception was raised by a layer of torch, and not by a line of the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(os.path.dirname(torch.__file__))
