"""examples/ddp/gpt.py: a rank is killed while it saves, the script is started again, and nothing is lost."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from places import ROOT
from processes import torchrun

SIZES = {"steps": 30, "every": 6, "apart": 4, "width": 16, "depth": 1, "context": 16, "batch": 4}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


def start(folder: Path, killed: int | None = None) -> None:
    """The script as a rank's process runs it; rank 1 is killed in the middle of its checkpoint of that number."""
    torch.set_num_threads(1)
    save, saved = torch.save, [0]

    def save_or_die(states: Any, path: Path) -> None:
        saved[0] += 1
        if os.environ["RANK"] == "1" and saved[0] == killed:
            path.write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)
        save(states, path)

    torch.save = save_or_die  # type: ignore[assignment]
    sys.argv = ["gpt.py", *SMALL, "--text", str(folder / "text"), "--out", str(folder / "saved")]
    runpy.run_path(str(ROOT / "examples/ddp/gpt.py"), run_name="__main__")


def leaves(state: Any) -> list[Any]:
    """What a state holds, tensors as numbers."""
    return [each.tolist() if torch.is_tensor(each) else each for each in tree_leaves(state)]


@pytest.mark.slow
def test_a_script_that_was_killed_while_it_saved_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    lasts = []
    for name, killed in (("whole", None), ("broken", 3)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "text").write_text("to be or not to be, that is the question. " * 60)
        done = torchrun(start, folder, killed)
        if killed:
            assert done.returncode
            assert sorted(path.name for path in (folder / "saved").glob("1-*.pt")) == ["1-12.pt", "1-6.pt"]
            done = torchrun(start, folder)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "step 30: loss" in done.stdout
        lasts.append([torch.load(folder / "saved" / f"{rank}-30.pt") for rank in (0, 1)])
    whole, broken = lasts
    for rank in (0, 1):
        for part in ("model", "optimizer", "compressed"):
            assert leaves(broken[rank][part]) == leaves(whole[rank][part])
    # 30 is in the middle of a round: models are those of the exchange after step 28, the same on both.
    assert leaves(whole[0]["model"]) == leaves(whole[1]["model"])
    assert leaves(whole[0]["optimizer"]) != leaves(whole[1]["optimizer"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        (
            "to be or not to be, that is the question. " * 3,
            "--text has 126 characters; a test of --context 16 takes 171",
        ),
    ],
)
def test_a_text_that_is_missing_or_too_short_is_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text:
        (tmp_path / "text").write_text(text)
    done = torchrun(start, tmp_path)
    assert done.returncode
    assert said in done.stderr
    assert "Traceback" not in done.stderr.partition("gpt.py: error")[0]
