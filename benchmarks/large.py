"""One round of a large model over a Flower deployment of this machine, and the most memory that each process had.

A SuperLink and one SuperNode of ``thinwire node``, over loopback, with TLS and keys: FedAvg of a model of four wide
linear layers and two narrow ones, all of whose numbers go both ways, in chunks. Memory is the resident set of a process
at its largest, as the kernel counts it (``VmHWM``), looked up twice a second; what was resident in two processes at
once counts in both.

    python benchmarks/large.py [--mb 758] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "flower"), str(ROOT / "experiments")]

from federation import Federation, started_by  # noqa: E402

DEPTH = 4  # wide layers
KINDS = {  # what is in a command line -> whose memory it is
    "flwr-serverapp": "server",
    "resident": "worker",
    "copies": "client app",
    "flower-superlink": "superlink",
    "flower-supernode": "supernode",
}


class Peaks:
    """The largest resident sets of processes that this one has started, by what they are, in bytes."""

    def __init__(self) -> None:
        self.most, self.over = dict.fromkeys(KINDS.values(), 0), threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.5):
            for pid in started_by(os.getpid()):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                    status = Path(f"/proc/{pid}/status").read_text()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                kind = next((kind for word, kind in KINDS.items() if word in command), None)
                sizes = [int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")]
                if kind is not None and sizes:
                    self.most[kind] = max(self.most[kind], sizes[0])


def main() -> None:
    """The round, as text and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=758.0, help="megabytes of the model")
    parser.add_argument("--into", type=Path, help="a file of lines, in which this one replaces its like")
    options = parser.parse_args()
    import record

    width, peaks = int((options.mb * 1e6 / 4 / DEPTH) ** 0.5), Peaks()
    config = {"clients": 1, "rounds": 1, "width": width, "depth": DEPTH, "norm": False, "deadline": 7200.0}
    model = 4 * (DEPTH * width * (width + 1) + 7 * width + 3 * width + 3)  # bytes: six inputs, three classes
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        out = Path(folder) / "out"
        environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        began = time.monotonic()
        with Federation(Path(folder), 1, environment) as here:
            app = ROOT / "tests" / "deploy" / "flower_app"
            here.wait(here.submit({**config, "out": str(out)}, app), out, 7200)
        seconds = time.monotonic() - began
        (line,) = map(json.loads, (out / "rounds.jsonl").read_text().splitlines())
    peaks.over.set()
    peaks.thread.join()
    for kind, size in peaks.most.items():
        print(f"{kind:>10}: {size / 1e6:8,.0f} MB at most, {size / model:.1f} times the model")
    key = {"benchmark": "large", "model_bytes": model}
    found = key | {"peaks": peaks.most, "round_seconds": round(line["seconds"], 1), "seconds": round(seconds, 1)}
    found |= {name: line[name] for name in ("up_bytes", "down_bytes", "resent_bytes")}
    found |= {"load": round(os.getloadavg()[0], 1), "processor": record.processor(), "cores": os.cpu_count()}
    found |= {"versions": record.versions("flwr"), **record.code()}
    print(json.dumps(found))
    if options.into:
        record.replace(options.into, found, key)


if __name__ == "__main__":
    main()
