"""All tables of personal models, the most important rows first: a queue that may be stopped and begun again.

    python experiments/personal/everything.py --out runs/personal                # retina at 64 pixels, Fashion-MNIST
    python experiments/personal/everything.py --out runs/personal --queue middle  # at 128, rates as chosen at 64
    python experiments/personal/everything.py --out runs/personal --queue large  # retina at 256 pixels
    python experiments/personal/everything.py --out runs/personal --queue long   # at 64 pixels, for 300 rounds

A run whose line is in the results is not made again, and one that was stopped goes on from its last checkpoint. The
queues write different files, so both may run at once. Each run takes one core. Only code that is in a commit is run,
because a line of other code would be replaced. ``--list`` prints the commands.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import retina

from thinwire.version import code_version

FIRST = ["centralised", "FedAvg", "FedSM"]
SHARED = ["FedProx", "SCAFFOLD"]
OWN = ["FT", "SoftPull", "FedBN", "Ditto", "APFL", "FedSM-extra", "Ensemble", "Per-FedAvg", "pFedMe"]
UNSEEN = ["FedAvg", "FedSM", "Ensemble"]
MIDDLE = {  # the rates that were chosen at 64 pixels
    "centralised": 0.001,
    "FedAvg": 0.009,
    "FedSM": 0.009,
    "FT": 0.009,
    "Ditto": 0.009,
    "FedProx": 0.009,
    "SCAFFOLD": 1,
    "SoftPull": 0.009,
    "FedBN": 0.03,
    "FedSM-extra": 0.009,
    "Ensemble": 0.009,
    "APFL": 1,
    "Per-FedAvg": 1,
    "pFedMe": 1,
}
LARGE = "--size 256 --width 16 --rounds 24 --last 1 --lr 0.003 --selector nets:vgg11_at_64"  # the thesis' networks
LONG = f"--rounds 300 --tune-rounds 100 --into {shlex.quote(str(retina.RESULTS / 'retina_64_long.jsonl'))} --seeds 0"
TWO = "--rates 0.003 0.009"  # those that FedSM and FedAvg chose of five
SITES = "--data fashion_sites --examples 3000 --rounds 30 --tune-rounds 10"
LABELS = "--data fashion_mnist --examples 3000 --rounds 30 --tune-rounds 10"


def rows(names: Sequence[str], more: str = "") -> list[str]:
    """A command a row."""
    return [f"--only {name} {more}".strip() for name in names]


QUEUES = {
    "small": [
        *rows([*FIRST, *SHARED, *OWN], "--seeds 0 1 2"),
        *rows(UNSEEN, "--unseen all --seeds 0 1 2"),
        "--sweep --seeds 0 1 2",
        *rows([*FIRST, *SHARED, *OWN], f"{SITES} --seeds 0 1 2"),
        *rows([*FIRST, *SHARED, *(name for name in OWN if name != "FedBN")], f"{LABELS} --seeds 0 1 2"),
    ],
    "middle": [
        *(f"--only {name} --size 128 --seeds 0 1 2 --lr {rate:g}" for name, rate in MIDDLE.items()),
        f"--sweep --size 128 --seeds 0 1 2 --lr {MIDDLE['FedSM']:g}",
    ],
    "large": rows(FIRST, LARGE),
    "long": [
        *rows(["FedAvg", "FedSM"], LONG),
        *rows(["SoftPull", "FT", "'FedSM-extra, on top'"], f"{TWO} {LONG}"),
    ],
}
"""FedBN is left out where the model has no norm: there it is FedAvg."""


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queue", default="small", choices=tuple(QUEUES))
    parser.add_argument("--out", type=Path, help="a folder for whole runs")
    parser.add_argument("--list", action="store_true", help="print the commands and train nothing")
    o = parser.parse_args(words)
    failed = []
    for command in QUEUES[o.queue]:
        print(f"{time.strftime('%H:%M:%S')} python experiments/personal/retina.py {command}", flush=True)
        if o.list:
            continue
        if code_version().endswith("-dirty"):
            parser.error("files are changed that are in no commit: commit them, or put them back")
        given = [*shlex.split(command), "--workers", "1", *(["--out", str(o.out)] if o.out else [])]
        sys.argv = [str(Path(retina.__file__).resolve()), *shlex.split(command)]  # what a line says it was started as
        try:
            retina.main(given)
        except Exception:
            traceback.print_exc()
            failed.append(command)
    if failed:
        sys.exit("failed: " + "; ".join(failed))


if __name__ == "__main__":
    main()
