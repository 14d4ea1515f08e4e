"""What the number of clients costs: memory and seconds a round, with 1,000, 10,000 and 100,000 of them.

Every client has 20 pictures of its own choice from 60,000 random ones; 100 are sampled a round and send
LBGM(TopK(0.1)) of an MLP's update (50,890 parameters). What a client keeps (its look-back gradient, 200 kB at each
end) lies on disk from its first contact on. Each size is a process of its own. Last comes what a client costs that is
not sampled, its task included: the growth of the peak from the fewest clients to the most, over their difference. It is
to stay below 2,000 bytes.

    python benchmarks/scale.py [--rounds 10] [--clients 1000 --clients 100000] [--json] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simulate import peak

EXAMPLES, EACH, SAMPLE = 60_000, 20, 100


def measure(clients: int, rounds: int, folder: Path) -> dict[str, float]:
    """One size, in this process."""
    import torch

    import thinwire as tw
    from thinwire import models

    g = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (EXAMPLES, 1, 28, 28), generator=g, dtype=torch.uint8)
    targets = torch.randint(10, (EXAMPLES,), generator=g)
    before = peak()
    began = time.perf_counter()
    tasks = [
        tw.Supervised(inputs, targets, torch.randint(EXAMPLES, (EACH,), generator=g), mean=(0.3,), std=(0.3,))
        for _ in range(clients)
    ]
    method = tw.FedAvg(tw.LocalSGD(0.05, batch=10), up=tw.LBGM(tw.TopK(0.1)))
    given = time.perf_counter()
    tasks_mb, seconds = peak() - before, []

    def watch(record: dict[str, float]) -> None:
        seconds.append(record["seconds"])

    tw.simulate(
        method,
        models.mlp,
        tasks,
        rounds,
        sample=min(SAMPLE, clients),
        states="disk",
        out=folder,
        plan="together",
        on_round=watch,
        checkpoint_every=rounds,
    )
    files = list(folder.glob("states/*/*"))
    return {
        "clients": clients,
        "round_seconds": round(statistics.median(seconds[1:]), 4),
        "setup_seconds": round(time.perf_counter() - given - sum(seconds), 2),
        "tasks_seconds": round(given - began, 2),
        "tasks_mb": round(tasks_mb),
        "peak_mb": round(peak(), 1),
        "states_on_disk": len(files),
        "states_mb": round(sum(f.stat().st_size for f in files) / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, action="append")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--into", type=Path, help="a file of JSON lines: what it has of this code and machine is kept")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.one:
        folder = Path(tempfile.mkdtemp())
        try:
            print(json.dumps(measure(o.one, o.rounds, folder)))
        finally:
            shutil.rmtree(folder)
        return
    sys.path.append(str(Path(__file__).resolve().parents[1] / "experiments"))
    import record

    def apart(clients: int) -> dict[str, float]:
        command = [sys.executable, __file__, "--one", str(clients), "--rounds", str(o.rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        size: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return size

    found: dict[str, dict[str, float] | float] = {}
    sizes = []
    for clients in o.clients or [1_000, 10_000, 100_000]:
        key = {"benchmark": "scale", "clients": clients, "rounds": o.rounds}
        sizes.append(record.measured(o.into, key, lambda clients=clients: apart(clients), "numpy"))
        found[str(clients)] = sizes[-1]
        print(sizes[-1], file=sys.stderr)
    fewest, most = (choose(sizes, key=lambda size: size["clients"]) for choose in (min, max))
    if most != fewest:
        grown = (most["peak_mb"] - fewest["peak_mb"]) * 2**20
        found["bytes_a_client"] = round(grown / (most["clients"] - fewest["clients"]))
        print(f"{found['bytes_a_client']:,} bytes a client that is not sampled", file=sys.stderr)
    if o.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
