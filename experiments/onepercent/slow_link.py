"""How much sooner a hundredth of the bytes reaches an accuracy, over Flower behind slow links.

A SuperLink and three hosts of clients, each host in a network of its own behind 0.3 Mbit/s up and 1 Mbit/s down; so is
the SuperLink's. Every host has two SuperNodes, which are six clients, of which three take part in a round: a client is
away for a while and is then sent what it missed, as by ``PerClient``. More would be possible, but every SuperNode is
several processes that import torch. The clients hold Fashion-MNIST in equal parts, and train ten steps of the CNN of
the FedAvg paper a round.

``auto`` is what ``Auto(0.01)`` chooses before round 1, written out, from a start that is known; ``fedavg`` is FedAvg.
``auto`` is run with three seeds, FedAvg with one. A simulation, which trains the same models, says how many rounds each
needs, and three more are run. Seconds are those of the server's records until the accuracy is first reached, with all
that Flower takes. Bytes of each host are those that the program between them counts: IP packets, with TLS and polls.
The SuperLink's link is as slow as a host's and carries what all hosts are sent, so it says most of the time: the lines
have the seconds that its bytes down take, too. A line each; what is there is not run again.

    python experiments/onepercent/slow_link.py --slowlink PROGRAM

PROGRAM makes the links (``--hosts N --rate MBIT --down MBIT --delay MS --timeout S -- COMMAND`` runs a command on N
hosts and prints JSON); THINWIRE_SLOWLINK names it otherwise. It needs root. FedAvg takes most of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "flower"))
import record
from quickstart.task import problem

import thinwire as tw

INTO = Path(__file__).parent / "results" / "slow_link.jsonl"
ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "examples" / "flower"
HOSTS, GOAL, MOST, MORE = 3, 0.7, 60, 3  # MOST rounds are tried for GOAL, and MORE are run than it takes
SEEDS = {"auto": (0, 1, 2), "fedavg": (0,)}
LOCAL = "LocalSGD(0.06, batch=32, steps=10)"
LINK = ("--rate", "0.3", "--down", "1", "--delay", "20")
ONE_BY_ONE = {  # with two on the way at a time Flower opens a new connection every ten seconds or so
    f"FLWR_PRIVATE_MAX_CONCURRENT_OBJ_{way}": "1" for way in ("PULLS", "PUSHES")
}
FULL: dict[str, Any] = {"data": "fashion_mnist", "model": "fedavg_cnn", "clients": 6, "sample": 3, "take": 3}
FULL |= {"examples": 0, "tested": 1000, "deadline": 3000.0}
TINY = {**FULL, "data": "digits", "model": "mlp", "clients": 4, "sample": 2, "take": 2, "tested": 100}


def behind(
    folder: Path, program: str, plan: dict[str, Any], *options: str, nodes: int = HOSTS, seconds: float
) -> dict[str, Any]:
    """Run a plan (``tests/deploy/flower_app/host.py``) on a SuperLink and ``nodes`` hosts; what the hub counted.

    Raises ``RuntimeError``, with the ends of all logs, where a host has failed.
    """
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HOME": str(folder / "home")}
    environment |= plan.get("environment", {})
    plan = {"seed": 0, "server": 0, "nodes": 0, "seconds": seconds, **plan, "environment": environment}
    (folder / "home").mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    host = [sys.executable, str(ROOT / "tests" / "deploy" / "flower_app" / "host.py"), str(folder)]
    limits = ["--hosts", str(nodes + 1), "--timeout", str(seconds + 120)]
    command = [sys.executable, program, *limits, *options, "--", *host]
    with open(folder / "hub.log", "wb") as log:
        hub = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **environment})
    try:
        said = hub.communicate(timeout=seconds + 60)[0].decode().splitlines()
    finally:
        (folder / "stop").touch()  # each host stops what it has started
        if hub.poll() is None:
            try:
                hub.wait(60)
            except subprocess.TimeoutExpired:
                hub.send_signal(signal.SIGINT)
                hub.wait()
    found = dict(json.loads(said[-1]))
    if found["exit_codes"] != [0] * (nodes + 1):
        raise RuntimeError("\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log"))))
    return found


def methods(config: dict[str, Any], seed: int) -> dict[str, tuple[str, str]]:
    """The expressions, with how their clients get the starting model."""
    parts = problem(config)
    share = 0.01 if config["model"] == FULL["model"] else 0.1  # of a very small model headers are more
    asked = tw.parse(f"Auto({share}, {LOCAL})")
    about: dict[str, Any] = {"sample": config["sample"], "workers": 1, "plan": "each", "seed": seed}
    run = tw.simulate(asked, parts.model, parts.tasks, 1, **about)
    return {"auto": (run.chosen[0]["expression"], "known"), "fedavg": (f"FedAvg({LOCAL})", "sent")}


def rounds_to(goal: float, expression: str, start: Any, config: dict[str, Any], seed: int) -> int:
    """The rounds after which the model first has this accuracy, by a simulation."""
    parts = problem(config)
    about: dict[str, Any] = {"sample": config["sample"], "start": start, "workers": 1, "plan": "each", "seed": seed}
    found = tw.simulate(tw.parse(expression), parts.model, parts.tasks, MOST, test=parts.test, **about)
    reached = [r["round"] for r in found.rounds if r["accuracy"] >= goal]
    if not reached:
        sys.exit(f"{expression} does not reach {goal:.0%} in {MOST} rounds: choose another rate, or more rounds")
    return int(reached[0])


def measure(
    program: str, expression: str, start: str, config: dict[str, Any], goal: float, seed: int, *link: str
) -> record.Line:
    """A run behind slow links until the accuracy is reached; ``time`` and ``rounds`` are None where it is not."""
    rounds = rounds_to(goal, expression, start, config, seed) + MORE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = {**config, "method": expression, "start": start, "rounds": rounds, "seed": seed}
        plan = {"app": str(QUICKSTART), "runs": {"run": run}, "environment": ONE_BY_ONE, "clients": config["clients"]}
        hub = behind(folder, program, plan, *link, seconds=3 * 3600.0)
        records = record.read(folder / "runs" / "run" / "rounds.jsonl")
    seconds, accuracies = ([r[field] for r in records] for field in ("seconds", "accuracy"))
    until = next((t for t, accuracy in enumerate(accuracies, 1) if accuracy >= goal), None)
    counts = [{way: host[f"{way}_bytes"] for way in ("sent", "received")} for host in hub["hosts"]]
    sent = [r["down_bytes"] for r in records[:until]]
    rate = float(link[link.index("--rate") + 1])
    return {
        "rounds": until,
        "time": None if until is None else round(sum(seconds[:until]), 1),
        "server_uplink": round(8e-6 * sum(sent) / rate, 1),  # seconds that the payload down takes on its link
        "run_rounds": rounds,
        "bytes_up": sum(r["up_bytes"] for r in records[:until]),
        "bytes_down": sum(sent),
        "hosts": counts,  # of all rounds; the first is the SuperLink's
        "curve": [list(point) for point in zip(accumulate(seconds), accuracies, strict=True)],
    }


def lines(into: Path, program: str, tiny: bool = False) -> dict[tuple[str, int], record.Line]:
    """A line of each method and seed, run where it is not there."""
    config, goal, link = (TINY, 0.3, ("--rate", "20", "--delay", "5")) if tiny else (FULL, GOAL, LINK)
    config = {**config, "data-dir": os.environ.get("THINWIRE_DATA", "")}
    asked = {name: value for name, value in config.items() if name != "data-dir"}
    found: dict[tuple[str, int], record.Line] = {}
    for run, seed in ((run, seed) for run, seeds in SEEDS.items() for seed in (seeds[:1] if tiny else seeds)):
        expression, start = methods(config, seed)[run]
        key = {"run": run, "seed": seed, "method": expression, "start": start, "goal": goal, "link": " ".join(link)}
        key |= {**asked, **({"tiny": True} if tiny else {})}
        line = record.found(into, key)
        if line is None:
            began = time.time()
            line = {**key, **measure(program, expression, start, config, goal, seed, *link)}
            line |= {**record.about(expression, began), "versions": record.versions("flwr")}
            record.replace(into, line, key)
        found[run, seed] = line
        sent = sum(host["sent"] for host in line["hosts"])
        reached = f"{line['rounds']} rounds, {line['time']:,.1f} s" if line["rounds"] else "it does not get there"
        print(f"{run}, seed {seed}: {reached}, {sent:,} bytes on all links", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slowlink", default=os.environ.get("THINWIRE_SLOWLINK"), metavar="PROGRAM")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--tiny", action="store_true", help="digits, over faster links: it says nothing about methods")
    asked = parser.parse_args()
    if not asked.slowlink:
        sys.exit("say --slowlink PROGRAM, or set THINWIRE_SLOWLINK: a program that makes slow links")
    found = lines(asked.into, asked.slowlink, asked.tiny)
    dense = found["fedavg", 0]
    for (run, seed), line in found.items():
        if run != "fedavg" and line["time"] and dense["time"]:
            print(f"{run}, seed {seed}, takes {line['time'] / dense['time']:.3f} of FedAvg's time", end="")
            less = [each["time"] - each["server_uplink"] for each in (line, dense)]
            print(f", and {less[0] / less[1]:.3f} without what the server's uplink takes")


if __name__ == "__main__":
    main()
