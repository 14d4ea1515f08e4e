"""Data-parallel training by transformers' ``Trainer`` that sends what a method sends: a callback, two lines."""

from __future__ import annotations

import gc
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from ..ddp import DEF, Compressed, compress
from ..ddp.feedback import Method
from ..errors import RunError, require


class Compress(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Compress what the ranks of a ``Trainer`` send one another::

        from thinwire.ddp import DEF
        from thinwire.hf import Compress

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Compress(DEF(64))])

    under ``torchrun --nproc-per-node 2``. ``method`` and ``seed`` are those of :func:`thinwire.ddp.compress`, which is
    called when training begins. Gradients are clipped to the arguments' ``max_grad_norm`` by
    :meth:`~thinwire.ddp.Compressed.clip_grad_norm_`, for all ranks together. Accumulated gradients, ``bf16=True`` and
    adapters need nothing else.

    A checkpoint of the trainer has a file ``thinwire-<rank>.pt`` beside its own, written before them: what that rank
    owes, and the state of its optimiser, of which the trainer saves rank 0's alone. A training that is resumed goes on
    to the same bits. ``checkpoint`` is the folder that is resumed where it is none of the arguments' ``output_dir``.

    ``handle`` is what ``compress`` returned, with the bytes in its ``ledger``; None before training.

    Raises ``ValueError`` for one process, for FSDP and DeepSpeed, and for ``fp16`` with clipping, and
    :class:`RunError` for a checkpoint without this rank's file, or with one that was written beside other weights.
    """

    def __init__(self, method: Method = DEF(), *, seed: int = 0, checkpoint: str | Path | None = None) -> None:  # noqa: B008  frozen
        self.method, self.seed, self.checkpoint = method, seed, checkpoint
        self.handle: Compressed | None = None
        self.most: float | None = None  # of the norm of gradients, while the trainer is not told
        self.saved = -1  # the step whose files are written

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._tell(args)  # an error may have ended another training within a step
        model, optimizer = parts["model"], parts["optimizer"]
        require(
            not (args.fsdp or args.deepspeed), "Compress is for ranks with whole models: leave out fsdp and deepspeed"
        )
        require(
            not (args.fp16 and args.max_grad_norm),
            "Compress clips gradients as they are, and with fp16=True they are scaled: take bf16=True, or "
            "max_grad_norm=0",
        )
        self.handle = compress(_wrapper(model), optimizer, self.method, seed=self.seed)
        if state.global_step:
            self._load(_folder(args, state) if self.checkpoint is None else Path(self.checkpoint), model, optimizer)
        self.saved = state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        # Else each rank's own would be clipped. Arguments that a checkpoint has are whole: it is written between steps.
        self.most, args.max_grad_norm = args.max_grad_norm or 0.0, 0.0

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._tell(args)
        if self.handle is not None and args.max_grad_norm:
            self.handle.clip_grad_norm_(args.max_grad_norm)

    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if control.should_save:
            self._save(args, state, **parts)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.on_step_end(args, state, control, **parts)

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self._save(args, state, **parts)  # an evaluation has asked for it, after the step

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.handle is not None:
            self.handle.remove()

    def _tell(self, args: Any) -> None:
        """Put ``max_grad_norm`` back into the arguments."""
        if self.most is not None:
            self.most, args.max_grad_norm = None, self.most

    def _save(self, args: Any, state: Any, *, model: nn.Module, optimizer: Any, **_: Any) -> None:
        """Write this rank's file, and wait for the others: the trainer's own come after."""
        if self.handle is None or self.saved == state.global_step or args.save_only_model:
            return
        folder = _folder(args, state)
        folder.mkdir(parents=True, exist_ok=True)
        whole = {"compressed": self.handle.state_dict(), "optimizer": optimizer.state_dict(), "model": _digest(model)}
        path = folder / _name()
        torch.save(whole, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        self.saved = state.global_step
        dist.barrier()

    def _load(self, folder: Path, model: nn.Module, optimizer: Any) -> None:
        path = folder / _name()
        if not path.exists():
            raise RunError(
                f"{path} is missing, without which training would go on to other numbers: resume from a checkpoint "
                f"that was saved under Compress, and name one that lies elsewhere by Compress(checkpoint=...)"
            )
        assert self.handle is not None
        whole = torch.load(path, map_location="cpu", weights_only=True)
        if whole.get("model", _digest(model)) != _digest(model):
            raise RunError(
                f"{path} is of other weights than the model has: name the folder that is resumed by "
                f"Compress(checkpoint=...)"
            )
        optimizer.load_state_dict(whole["optimizer"])
        self.handle.load_state_dict(whole["compressed"])


def _wrapper(model: nn.Module) -> DistributedDataParallel:
    """The ``DistributedDataParallel`` around a model, which a trainer does not hand to callbacks."""
    around = [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel) and o.module is model]
    require(
        bool(around),
        "Compress is for the ranks of one training, and this is one process: start it by torchrun --nproc-per-node 2",
    )
    wrapper: DistributedDataParallel = around[-1]
    return wrapper


def _digest(model: nn.Module) -> str:
    """What names the trained parameters of a model, and no others."""
    digest = hashlib.blake2b(digest_size=16)
    for name, p in model.named_parameters():
        if p.requires_grad:
            digest.update(name.encode())
            digest.update(p.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _folder(args: Any, state: Any) -> Path:
    """The trainer's checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _name() -> str:
    return f"thinwire-{dist.get_rank()}.pt"
