"""transformers' Trainer under Compress: two ranks are killed and resumed to the same bits, and what does not fit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from processes import torchrun
from thinwire.ddp import DEF
from thinwire.errors import RunError
from tiny import llama, lora

STEPS, EVERY = 6, 2


def start(folder: Path, resume: bool | str = False, killed: int | None = None, clipped: float = 0.01) -> None:
    """A rank's process: adapters of a tiny Llama, two batches a step, in bfloat16. Rank 1 is killed after a step."""
    torch.set_num_threads(1)
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from thinwire.hf import Compress

    class Killed(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if state.global_step == killed and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)

    rows = torch.randint(2, 20, (40, 8), generator=torch.Generator().manual_seed(0)).tolist()
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.01,
        lr_scheduler_type="constant",
        max_grad_norm=clipped,
        save_steps=EVERY,
        bf16=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    compress = Compress(DEF(4))
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(lora(llama()), arguments, train_dataset=data, callbacks=[compress, Killed()])
    trainer.train(resume_from_checkpoint=resume)
    assert compress.handle is not None
    assert compress.handle.step == STEPS
    assert arguments.max_grad_norm == clipped
    kept = torch.load(folder / f"checkpoint-{STEPS}/training_args.bin", weights_only=False)
    assert kept.max_grad_norm == clipped
    assert compress.handle.ledger.bytes < STEPS * 4 * 128 / 2  # of 128 parameters, a half of dense


def states(folder: Path, step: int) -> list[Any]:
    """Of both ranks, tensors as numbers; and the adapter."""
    from safetensors.torch import load_file

    at = folder / f"checkpoint-{step}"
    whole = [torch.load(at / f"thinwire-{rank}.pt", weights_only=True) for rank in (0, 1)]
    leaves = tree_leaves([*whole, load_file(at / "adapter_model.safetensors")])
    return [each.tolist() if torch.is_tensor(each) else each for each in leaves]


@pytest.mark.soak
def test_two_ranks_that_were_killed_and_resumed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    done = torchrun(start, tmp_path / "whole")
    assert done.returncode == 0, done.stderr[-3000:]
    assert torchrun(start, tmp_path / "broken", False, 5).returncode
    assert sorted(path.name for path in (tmp_path / "broken").iterdir()) == ["checkpoint-2", "checkpoint-4"]
    done = torchrun(start, tmp_path / "broken", True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert states(tmp_path / "whole", STEPS) == states(tmp_path / "broken", STEPS)
    own = [torch.load(tmp_path / f"whole/checkpoint-6/thinwire-{rank}.pt", weights_only=True) for rank in (0, 1)]
    moments = [next(iter(each["optimizer"]["state"].values()))["exp_avg"] for each in own]
    assert not moments[0].equal(moments[1])  # each rank's own, of which the trainer saves rank 0's alone
    other = torchrun(start, tmp_path / "other", False, None, 0.02)
    assert other.returncode == 0, other.stderr[-3000:]
    done = torchrun(start, tmp_path / "other", str(tmp_path / "whole/checkpoint-4"), None, 0.02)
    assert "of other weights than the model has: name the folder that is resumed by Compress(checkpoi" in done.stderr
    (tmp_path / "broken/checkpoint-6/thinwire-1.pt").unlink()
    done = torchrun(start, tmp_path / "broken", True)
    assert "thinwire-1.pt is missing, without which training would go on to other numbers" in done.stderr


def test_a_ranks_file_that_is_of_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from thinwire.hf import trainer

    monkeypatch.setattr(trainer, "_name", lambda: "thinwire-0.pt")
    model, loaded = llama(), list[Any]()
    end: Any = type("End", (), {"load_state_dict": lambda self, state: loaded.append(state)})()
    callback = trainer.Compress()
    callback.handle = end
    torch.save({"model": trainer._digest(model), "optimizer": 1, "compressed": 2}, tmp_path / "thinwire-0.pt")
    callback._load(tmp_path, model, end)
    assert loaded == [1, 2]
    with torch.no_grad():
        next(model.parameters()).flatten()[0] += 1e-3
    with pytest.raises(RunError, match="of other weights than the model has: name the folder that is resumed"):
        callback._load(tmp_path, model, end)
    assert loaded == [1, 2]


def test_arguments_are_whole_between_steps_and_after_a_step_that_failed(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from thinwire.hf import Compress

    clipped: list[float] = []
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], max_grad_norm=0.5)
    state, control, callback = transformers.TrainerState(), transformers.TrainerControl(), Compress()
    callback.handle = type("Handle", (), {"clip_grad_norm_": lambda self, most: clipped.append(most)})()
    for _ in range(2):
        callback.on_step_begin(args, state, control)
        assert not args.max_grad_norm  # the trainer clips none of its own
        callback.on_pre_optimizer_step(args, state, control)
        assert args.max_grad_norm == 0.5
    assert clipped == [0.5, 0.5]
    callback.on_step_begin(args, state, control)
    with pytest.raises(ValueError, match="this is one process"):
        callback.on_train_begin(args, state, control, model=llama(), optimizer=None)
    assert args.max_grad_norm == 0.5


def test_one_process_and_scaled_gradients_are_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from thinwire.hf import Compress

    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    parts = {"model": llama(), "optimizer": None}
    with pytest.raises(ValueError, match="this is one process: start it by torchrun --nproc-per-node 2"):
        Compress().on_train_begin(args, state, control, **parts)
    args.fp16 = True
    with pytest.raises(ValueError, match="take bf16=True, or max_grad_norm=0"):
        Compress().on_train_begin(args, state, control, **parts)
