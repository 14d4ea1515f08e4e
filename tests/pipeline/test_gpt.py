"""The example of a GPT whose layers lie in several processes: examples/pipeline/gpt.py."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys

import pytest

import processes
from places import ROOT

SCRIPT = ROOT / "examples/pipeline/gpt.py"
SMALL = ["--seconds", "0", "--batch", "4", "--context", "16", "--width", "16", "--depth", "2"]  # 100 batches


def gpt(*words: str) -> None:
    sys.argv = [str(SCRIPT), *SMALL, *words]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def ran(*words: str) -> subprocess.CompletedProcess[str]:
    return processes.torchrun(gpt, *words)


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (None, "DSP((1, 0), m=(2, 0))"),
        ("1F1B(4)", "OneFOneB(4)"),
        ("FR(True)", "FR(True)"),
        ("BPK(activations=AQSGD(QSGD(7), examples=4096))", "BPK(activations=AQSGD(QSGD(7), examples=4096))"),
    ],
)
def test_the_example_trains_on_two_ranks_under_the_schedules_that_the_command_takes(typed, shown):
    done = ran(*([] if typed is None else ["--schedule", typed]))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    summary = next(line for line in lines if line.startswith(f"{shown}: 100 batches, loss "))
    assert 0 < float(summary.rpartition(" ")[2]) < 5.0  # of 128 characters alike: 4.85
    parts = [re.search(r"sent ([\d,]+) bytes, received ([\d,]+), kept", line) for line in lines if "part " in line[:5]]
    (sent, received), (back, there) = [[int(n.replace(",", "")) for n in found.groups()] for found in parts if found]
    assert (sent, received) == (there, back)
    assert re.search(r"a batch took [\d.]+ ms, and [\d.]+ ms by the law", lines[-1])


@pytest.mark.deployment
def test_a_schedule_that_there_is_none_of_is_one_line():
    done = ran("--schedule", "GPip(4)")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if "gpt.py: error:" in line]
    assert said[0].endswith(
        "--schedule: no schedule 'GPip' (did you mean GPipe?); known are " + said[0].partition("are ")[2]
    )
