"""The same objects on a Flower deployment: real processes, TLS, authenticated nodes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from thinwire import Key, Simulation

pytest.importorskip("flwr")

ROOT = Path(__file__).parents[1]
APP = ROOT / "tests" / "flower_app"
sys.path[:0] = [str(ROOT / "examples" / "flower"), str(APP)]

from federation import Federation  # noqa: E402
from tested.parts import SEED, method, model, tasks  # noqa: E402

METHODS = {
    "fedavg": "FedAvg()",
    "lbgm": "FedAvg(up=LBGM(ErrorFeedback(TopK(0.1)), threshold=0.6))",
    "luar": "LUAR(FedAvg(opt=Adam(0.03)), recycle=2, layers='tensors')",
    "flss": "FLSS(FedAvg(), rank=1, start=1, every=1)",
    "intrinsic": "Intrinsic(40, varying=True, epoch=2)",
    "scaffold": "SCAFFOLD()",
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and three SuperNodes, for all tests of this file; stopped by process id."""
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path_factory.mktemp("home")),
    }
    with Federation(tmp_path_factory.mktemp("federation"), 3, environment) as found:
        yield found


class Absent(Simulation):
    """A simulated run in which client 2 does not take part in some rounds."""

    absent: tuple[int, ...] = ()

    def _cohort(self, key: Key) -> tuple[list[int], set[int]]:
        return [0, 1] if key.round in self.absent else [0, 1, 2], set()


def simulated(expression: str, rounds: int, absent: tuple[int, ...] = ()) -> tw.Result:
    run = Absent(method(expression), model, tasks(), test=tasks()[0], seed=SEED, workers=1, plan="each")
    run.absent = absent
    with run.pool:
        for _ in range(rounds):
            run.step()
        return run.result()


def assert_same(out: Path, expected: tw.Result, payload: bool = True) -> None:
    """The model in a folder is that of a simulated run, bit for bit; so are the payload bytes."""
    from safetensors.torch import load_file

    found = load_file(out / "model.safetensors")
    for name, tensor in expected.module.state_dict().items():
        assert torch.equal(found[name], tensor) or not tensor.is_floating_point(), name
    if payload:
        ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
        ours, theirs = ([(*e[:4], e.floats) for e in sorted(entries)] for entries in (ledger, expected.ledger))
        assert ours == theirs


def until(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deployment_gives_the_model_and_the_bytes_of_a_simulation(federation: Federation, tmp_path: Path) -> None:
    expected = {name: simulated(expression, 3) for name, expression in METHODS.items()}
    runs = {  # all at once: nodes work on one while others wait
        name: federation.submit({"method": expression, "out": str(tmp_path / name)}, APP)
        for name, expression in METHODS.items()
    }
    for name in METHODS:
        federation.wait(runs[name], tmp_path / name, 800)
        assert_same(tmp_path / name, expected[name])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_is_killed_in_a_round_has_not_taken_part_in_it(federation: Federation, tmp_path: Path) -> None:
    out, hold = tmp_path / "run", tmp_path / "hold"
    hold.touch()
    states = federation.folder / "client-2"
    before = set(states.glob("*"))
    config = {"method": METHODS["lbgm"], "out": str(out), "hold": str(hold), "deadline": 240.0}
    run = federation.submit(config, APP)
    until(hold.with_suffix(".held").exists, 300)  # client 2 has its second call
    federation.kill("supernode-2")
    hold.unlink()
    federation.restart_node(2)
    federation.wait(run, out, 300)
    assert_same(out, simulated(METHODS["lbgm"], 3, absent=(2,)), payload=False)
    (kept,) = set(states.glob("*")) - before
    assert (kept / "committed.thinwire").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_in_a_round_goes_on_when_it_is_started_again(
    federation: Federation, tmp_path: Path
) -> None:
    out, states = tmp_path / "run", federation.folder / "client-0"
    before = set(states.glob("*"))
    config = {"method": METHODS["lbgm"], "out": str(out)}
    federation.submit(config, APP)
    # The second call says that the first answer was taken: client 0 is in round 2.
    until(lambda: any((run / "committed.thinwire").exists() for run in set(states.glob("*")) - before), 300)
    os.kill(int((out / "pid").read_text()), signal.SIGKILL)
    assert not (out / "summary.json").exists()
    federation.wait(federation.submit(config, APP), out, 300)
    assert_same(out, simulated(METHODS["lbgm"], 3))
