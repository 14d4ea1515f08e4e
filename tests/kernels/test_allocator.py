"""Memory that a training step frees is kept for the next step."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from thinwire.train import allocator

# A step's arrays, 80 MB, freed together.
FREED = """
import resource, torch
from thinwire.train.allocator import keep_freed_memory
{call}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step = [torch.ones(2**20) for _ in range(20)]
        del step
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(call: str) -> int:
    """Pages that a process had to be given anew for five steps of 20,480 pages of 4 kB.

    The C library chooses its limits by what was freed before. Here they are fixed, so that it gives back each array.
    """
    fixed = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    code = FREED.format(call=call)
    done = subprocess.run([sys.executable, "-c", code], env=fixed, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library cannot be told")
def test_pages_of_freed_arrays_are_used_again():
    without, kept = faults(""), faults("assert keep_freed_memory()")
    assert kept < 1_000
    assert without > 100_000


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not allocator.keep_freed_memory()


def test_the_command_line_keeps_memory(monkeypatch: pytest.MonkeyPatch):
    from thinwire import cli

    called: list[bool] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: called.append(True))
    monkeypatch.setattr(sys, "argv", ["thinwire", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert called
