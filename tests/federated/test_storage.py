"""States of clients that lie on disk between rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import thinwire as tw
from places import ROOT
from test_folder import resumed
from test_train import linear, tasks
from thinwire.errors import RunError
from thinwire.links import LBGM


@pytest.mark.parametrize(("first", "then"), [("memory", "disk"), ("disk", "memory")])
def test_states_are_found_again_where_they_were_put(tmp_path: Path, first, then) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path, states=first)
    with pytest.raises(RunError, match=f"resume it with states='{first}'"):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, states=then, resume=True)


def test_a_bit_that_flips_in_a_state_on_disk_is_noticed(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path, states="disk")
    path = next(tmp_path.glob("states/*/0-*.thinwire"))
    data = bytearray(path.read_bytes())
    data[60] ^= 64
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"the state of client 0 cannot be read from .*: its checksum is another"):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, states="disk", resume=True)


def test_the_state_of_another_run_client_or_version_is_refused_by_name(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, run in enumerate(runs):
        tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=run, seed=seed, states="disk")
    first, second = (run / "states" / "000" / "0-2.thinwire" for run in runs)
    good = first.read_bytes()
    first.write_bytes(second.read_bytes())
    said = (
        r"0-2.thinwire is not the state that this run wrote there, but that of client 0 after version 2 of another run"
    )
    with pytest.raises(RunError, match=said):
        resumed(runs[0], states="disk")
    first.write_bytes((runs[0] / "states" / "001" / "1-2.thinwire").read_bytes())
    with pytest.raises(RunError, match="but that of client 1 after version 2 of this run: put back what was in"):
        resumed(runs[0], states="disk")
    first.write_bytes(good)
    assert len(resumed(runs[0], states="disk").rounds) == 3


@pytest.mark.deployment
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing here says the most memory a process had")
def test_a_client_that_is_not_sampled_takes_no_more_memory_than_is_said() -> None:
    # 18,000 more of them, 36 MB at most; a client's states, which lie on disk, would be 400 kB each.
    program = ROOT / "benchmarks" / "scale.py"
    words = ["--clients", "2000", "--clients", "20000", "--rounds", "2", "--json"]
    done = subprocess.run([sys.executable, str(program), *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["bytes_a_client"] < 2_000
    for clients in ("2000", "20000"):
        assert 100 < found[clients]["states_on_disk"] <= 200  # of those that were sampled: 100 a round
