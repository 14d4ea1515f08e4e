"""What share of what they owe clients have in common, and whether ``Auto`` lets them begin ahead.

For each set of ``curve.py`` and each seed ``Auto`` rehearses as a run of ``curve.py`` does. For each budget below half
a percent it is then said which share of the squared length of four clients' residuals is common to them, after two
visits with the chosen uplink (``common``), and by how much clients begin ahead (``ahead``). Nothing is trained beyond
that. It takes about four minutes on one core.

    python experiments/onepercent/ahead.py
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import groups
import record
import torch

import thinwire as tw
from thinwire.algorithms.choice import residuals
from thinwire.federated.auto_run import Chosen
from thinwire.federated.setting import Setting

SEEDS, SHARES = (0, 1, 2), (0.004, 0.002, 0.001)
INTO = Path(__file__).parent / "results" / "ahead.jsonl"


def measure(group: groups.Group, seed: int, into: Path) -> None:
    """Write a line for each budget that has none."""
    settings = {**group.setting(), "rate": groups.RATES[group.name], "seed": seed}
    local, began = tw.LocalSGD(groups.RATES[group.name]), time.time()
    missing = [share for share in SHARES if record.found(into, settings | {"share": share}) is None]
    if not missing:
        return
    problem, key = groups.problem(group, seed), tw.Key(seed).at("auto")
    setting = Setting(sample=group.sample, workers=1, seed=seed)
    with Chosen(tw.Auto(missing[0], local), problem.model, problem.tasks, setting) as run:
        measured = run.look(None)
    for share in missing:
        auto = tw.Auto(share, local)
        choice = auto.choose(measured, key).choice
        each, common = residuals(measured, choice, key)
        line = {**settings, "share": share, "common": common / each, "ahead": choice.ahead}
        line |= record.about(tw.complete(auto), began)
        record.replace(into, line, settings | {"share": share})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=INTO)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for group in groups.GROUPS:
        for seed in SEEDS:
            measure(group, seed, asked.into)
            lines = [line for line in record.read(asked.into) if (line["name"], line["seed"]) == (group.name, seed)]
            said = (f"{line['share']:.1%}: {line['common']:.2f} in common, {line['ahead']} ahead" for line in lines)
            print(f"{group.name}, seed {seed}:", *said, sep="  ", flush=True)


if __name__ == "__main__":
    main()
