"""examples/ddp/adapters.py: a loop of accelerate's on two ranks, with accumulated and clipped gradients."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from places import ROOT
from processes import torchrun
from tiny import small_news

pytest.importorskip("accelerate")
pytest.importorskip("peft")

SCRIPT = ROOT / "examples/ddp/adapters.py"


def start(folder: Path) -> None:
    """A rank's process, with a tiny model; it leaves its trained parameters and how often gradients were clipped."""
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from thinwire import ddp

    clipped = list[float]()
    real = ddp.compress

    def watched(*given: Any) -> ddp.Compressed:
        made = real(*given)
        clip = made.clip_grad_norm_
        made.clip_grad_norm_ = lambda most: clipped.append(float(clip(most)))  # type: ignore[method-assign,assignment]
        return made

    ddp.compress = watched  # type: ignore[assignment]
    rank = os.environ["RANK"]
    (folder / rank).mkdir()
    sys.argv = ["adapters.py", "--epochs", "8", "--batch", "4", "--lr", "0.01", "--out", str(folder / "adapter")]
    with small_news(folder / rank):
        names = runpy.run_path(str(SCRIPT), run_name="script")
        kept = dict[str, Any]()
        names["main"].__globals__["accuracy"] = lambda a, m, t: kept.update(model=m) or names["accuracy"](a, m, t)
        names["main"]()
    state = {name: p.detach() for name, p in kept["model"].module.named_parameters() if p.requires_grad}
    torch.save({"state": state, "clipped": clipped}, folder / f"{rank}.pt")


@pytest.mark.slow
def test_the_loop_of_accelerate_learns_on_two_ranks_and_sends_a_part(tmp_path: Path) -> None:
    done = torchrun(start, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("epoch ")]
    assert len(lines) == 8  # rank 0's
    assert float(lines[-1].rpartition(" ")[2]) > 0.6  # of four classes
    told = re.search(r"(\d+) steps, ([\d,]+) bytes a step and rank in place of ([\d,]+)", done.stdout)
    assert told
    steps, sent, dense = (int(number.replace(",", "")) for number in told.groups())
    assert steps == 8 * 10  # epochs; of 160 texts each of two ranks has 80, 4 at once, 2 times a step
    assert sent < dense / 20  # a 64th, and whole layers at that
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert found[0]["clipped"] == found[1]["clipped"]  # one norm, of all ranks
    assert len(found[0]["clipped"]) == steps
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "adapter/adapter_model.safetensors")
    for name, tensor in found[0]["state"].items():
        adapter = name.replace(".default", "").replace(".modules_to_save", "")
        assert saved[adapter].equal(tensor)
