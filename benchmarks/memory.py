"""The most memory that a process takes in each phase of a federated run, with one worker.

One client trains in a round, the one with the most examples, and everything is tested. Memory is that of the whole
process, which torch alone makes 220 MB of. A phase is set-up, one of the client's trainings, or the tests. ``kept`` are
the bytes that autograd keeps of one batch: what a training takes beside, model and optimiser aside, is not the model's.

    python benchmarks/memory.py ["FedSM(LocalAdam(0.001, batch=4))" ...] [--data retina] [--model unet] [--json]
    python benchmarks/memory.py --into benchmarks/results/memory.jsonl
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METHODS = ["FedAvg(LocalAdam(0.001, batch=4))", "FedSM(LocalAdam(0.001, batch=4))"]
MB = 2**20


class Peaks:
    """The most memory of each phase, MB."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is forgotten
        yield
        peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
        self.phases[name] = round(max(peak, self.phases.get(name, 0.0)))


@contextmanager
def autograd_memory(most: dict[str, float], name: str) -> Iterator[None]:
    """Note the most bytes that autograd keeps at once, MB: storages whose tensors are still there."""
    import torch

    alive: dict[int, int] = {}

    class Held:
        def __init__(self, x: torch.Tensor) -> None:
            self.x, storage = x, x.untyped_storage()
            self.place = storage.data_ptr()
            alive[self.place] = storage.nbytes()
            most[name] = max(most.get(name, 0), round(sum(alive.values()) / MB))

        def __del__(self) -> None:
            alive.pop(self.place, None)

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.x):
        yield


def measure(method: str, data: str, model: str) -> dict[str, Any]:
    """Of a method in this process."""
    peaks, kept = Peaks(), dict[str, float]()
    with peaks.phase("set-up"):
        import torch

        import thinwire as tw
        from thinwire.data import load
        from thinwire.federated import client
        from thinwire.problem import standard

        torch.set_num_threads(1)
        problem = standard(load(data), model, clients=None, split=None, seed=0)
        tests = {"test": problem.test, "client_tests": problem.client_tests}
        run = tw.Simulation(tw.parse(method), problem.model, problem.tasks, workers=1, **tests)
    train = client.train

    def train_and_look(slot: Any, task: Any, request: Any, key: Any) -> Any:
        loss = "" if request.loss is None else ", loss of the method's own"
        name = f"training, batch {request.trainer.batch}{loss}"
        with peaks.phase(name), autograd_memory(kept, name):
            return train(slot, task, request, key)

    client.train = train_and_look
    with run:
        run.step(evaluate=False, cohort=[max(range(len(run.tasks)), key=lambda number: len(run.tasks[number]))])
        with peaks.phase("tests"):
            run.evaluate()
    return {"peak_mb": peaks.phases, "kept_mb": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--data", default="retina")
    parser.add_argument("--model", default="unet")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--here", action="store_true", help="in this process, which must not have measured before")
    chosen = parser.parse_args()
    if chosen.here:
        print(json.dumps(measure(chosen.methods[0], chosen.data, chosen.model)))
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    def apart(method: str) -> dict[str, Any]:
        """In a process of its own."""
        command = [sys.executable, __file__, method, "--here", "--data", chosen.data, "--model", chosen.model]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    found = {}
    for method in chosen.methods:
        key = {"benchmark": "memory", "method": method, "data": chosen.data, "model": chosen.model}
        found[method] = record.measured(chosen.into, key, lambda method=method: apart(method))
        print(method, found[method], file=sys.stderr)
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
