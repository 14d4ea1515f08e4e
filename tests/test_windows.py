"""A run where Python's library behaves as on Windows (``windows.py``), as far as that can be had elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JOB = """
import pathlib, sys
from thinwire.cli import main

def command(*words):
    sys.argv = ["thinwire", *map(str, words)]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)

out = pathlib.Path(sys.argv[1]) / "study"
job = ["FedPer(up=Partition({'<100': Dense(), '*': Ternary()}))", "--data", "digits", "--clients", 4, "--sample", 2,
       "--holdout", 0.2, "--checkpoint-every", 1, "--workers", 2, "--out", out]
command("run", *job, "--rounds", 1)
command("run", *job, "--rounds", 2, "--overwrite")
command("resume", out, "--rounds", 3)
"""


@pytest.mark.soak
def test_a_study_is_trained_overwritten_and_resumed_as_on_windows_with_the_same_files(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    there, here = tmp_path / "there", tmp_path / "here"
    for words in ([str(HERE / "windows.py"), str(there), str(job), str(there)], [str(job), str(here)]):
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True)  # with nothing imported before
        assert done.returncode == 0, done.stderr
    names = sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file())
    same = [name for name in names if name.name in ("ledger.jsonl", "model.safetensors") or "personal" in name.parts]
    assert len(same) == 2 + 4
    for name in same:
        assert (there / name).read_bytes() == (here / name).read_bytes(), name
    text = [name for name in names if name.suffix in (".json", ".jsonl", ".md", ".txt")]
    assert [name for name in text if b"\r" in (there / name).read_bytes()] == []
