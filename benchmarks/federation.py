"""What a round of a real federation takes where next to nothing is sent: three idle SuperNodes on this machine.

LBGM with a threshold that lets every update through as one number, over SuperNodes of ``thinwire node``; and Flower's
own FedAvg over one number which its clients send back at once, over ``flower-supernode``. Both are with TLS and keys,
in one run of this program, one after the other. The first two rounds are left out: in the first the model is sent.

    python benchmarks/federation.py [--rounds 12] [--into FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "flower"), str(ROOT / "experiments")]

from federation import Federation  # noqa: E402

LEFT_OUT = 2  # rounds
SCALARS = "FedAvg(LocalSGD(0.05, batch=32), up=LBGM(threshold=1.0))"


def run(folder: Path, app: Path, warm: bool, config: dict[str, Any]) -> Path:
    """An app on a federation of its own; the folder that it leaves."""
    out = folder / "out"
    with Federation(folder, int(config["clients"]), warm=warm) as here:
        here.wait(here.submit({**config, "out": str(out)}, app), out, 1800)
    return out


def ours(folder: Path, rounds: int) -> list[float]:
    """Seconds of each round of LBGM's scalars."""
    sizes = {"clients": 3, "sample": 3, "take": 3, "examples": 32, "tested": 32, "rounds": rounds}
    config = {**sizes, "method": SCALARS, "data": "digits", "model": "linear"}
    out = run(folder, ROOT / "examples" / "flower", True, config)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert all(record["up_payload"] < 200 for record in records[1:]), "the clients have not sent scalars"
    return [record["seconds"] for record in records]


def flowers(folder: Path, rounds: int) -> list[float]:
    """Seconds of each round of Flower's own."""
    out = run(folder, ROOT / "benchmarks" / "nothing", False, {"clients": 3, "rounds": rounds})
    return list(json.loads((out / "summary.json").read_text())["seconds"])


def main() -> None:
    """Both, as a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--into", type=Path, help="a file of lines, in which this one replaces its like")
    options = parser.parse_args()
    import record

    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        seconds = {
            "flower": flowers(Path(folder) / "flower", options.rounds),
            "thinwire": ours(Path(folder) / "thinwire", options.rounds),
        }
    medians = {name: statistics.median(times[LEFT_OUT:]) for name, times in seconds.items()}
    for name, times in seconds.items():
        print(f"{name:>8}: {medians[name]:5.2f} s in the median of {', '.join(f'{time:.2f}' for time in times)}")
    key = {"benchmark": "federation"}
    line = key | {"nodes": 3, "rounds": options.rounds, "left_out": LEFT_OUT, "method": SCALARS}
    line |= {f"{name}_median": round(median, 3) for name, median in medians.items()}
    line |= {"ratio": round(medians["thinwire"] / medians["flower"], 3)}
    line |= {name: [round(time, 3) for time in times] for name, times in seconds.items()}
    line |= {"load": round(load, 1), "processor": record.processor(), "cores": os.cpu_count()}
    line |= {"versions": record.versions("flwr"), **record.code()}
    print(json.dumps(line))
    if options.into:
        record.replace(options.into, line, key | {"versions": line["versions"]})  # each version of flwr has a line


if __name__ == "__main__":
    main()
