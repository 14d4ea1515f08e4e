"""What a bound of replies costs, and what it saves: one client of ten that sends ten times the opposite of its update.

The digits that come with scikit-learn, ten clients, all of them in each of 25 rounds, a network of 4,810 parameters.
Every row is trained with and without the attack: without a bound, with ``clip="auto"``, and with bounds in units of
the honest norm: the median norm of the run without attack and bound.

    python experiments/clip/attack.py [--rounds 25] [--seeds 3] [--into experiments/clip/results/attack.jsonl]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import record

import thinwire as tw
from thinwire.algorithms.around import Around
from thinwire.data import IID, Dirichlet, Split
from thinwire.problem import standard

CLIENTS = 10
SPLITS: dict[str, Split] = {"iid": IID(), "Dirichlet(0.3)": Dirichlet(0.3)}
TIMES = (1.0, 2.0, 3.0, 10.0)  # honest norms
LOCAL = tw.LocalSGD(0.3)


@dataclass(frozen=True)
class Opposite(Around):
    """The first ``clients`` send ``times`` the opposite of their updates."""

    inner: tw.Algorithm
    clients: int = 1
    times: float = 10.0

    def client(self, view: Any, state: Any, task: Any, key: tw.Key) -> Any:
        reply, state = yield from self.inner.client(view, state, task, key)
        return (reply._replace(update=reply.update * -self.times) if key.client < self.clients else reply), state


def norm(result: tw.Result) -> dict[str, Any]:
    """The median norm of a run's replies, over its rounds; and the share of its replies that were shortened."""
    shortened = sum(line.get("clipped", 0) for line in result.rounds)
    replies = sum(line["clients"] - line["lost_replies"] for line in result.rounds)
    median = statistics.median(line["norms"]["update"][2] for line in result.rounds)
    return {"norm": median, "shortened": shortened / replies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results" / "attack.jsonl")
    given = parser.parse_args()
    for split, dealt in SPLITS.items():
        for seed in range(given.seeds):
            problem = standard("digits", clients=CLIENTS, split=dealt, seed=seed)

            def train(attacked: bool, row: str, clip: Any, problem: Any = problem, **about: Any) -> Any:
                method: tw.Algorithm = tw.FedAvg(LOCAL)
                method = Opposite(method) if attacked else method
                about |= {"row": row, "attacked": attacked, "clip": clip}
                return record.run(method, problem, given.rounds, given.into, about, norm, seed=about["seed"], clip=clip)

            about = {"split": split, "seed": seed}
            plain = train(False, "none", None, **about)
            for attacked in (False, True):
                rows = {"none": None, "auto": "auto", **{f"{times:g}": times * plain["norm"] for times in TIMES}}
                for row, clip in rows.items():
                    train(attacked, row, clip, **about)


if __name__ == "__main__":
    main()
