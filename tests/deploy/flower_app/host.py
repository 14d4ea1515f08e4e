"""One host of a federation behind slow links, which says which of them it is: the first has the SuperLink.

``host.py FOLDER`` on each: FOLDER/plan.json names the app, what is run with it, and what goes wrong meanwhile. Every
other host has one SuperNode, or several where the plan has more ``clients``: they are dealt to the hosts in turn. The
first host writes to FOLDER/wire.jsonl how many IP bytes it had been sent, and had sent, when a round was over.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples" / "flower"))

from federation import Federation  # noqa: E402

COUNTERS = Path("/sys/class/net/wire0/statistics")


def main() -> None:
    folder, host = Path(sys.argv[1]), int(os.environ["RANK"])
    plan = json.loads((folder / "plan.json").read_text())
    address = f"{os.environ['MASTER_ADDR']}:29512"
    others = int(os.environ["WORLD_SIZE"]) - 1
    for name in ("RANK", "WORLD_SIZE"):  # hosts are no ranks: `thinwire node` would join them
        del os.environ[name]
    clients = plan.get("clients", others)
    here = Federation(folder, clients, plan["environment"], address)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    threading.Thread(target=guard, args=(folder, os.getppid()), daemon=True).start()
    try:
        lead(here, plan) if host == 0 else follow(here, plan, range(host - 1, clients, others))
    finally:
        if host == 0:
            (folder / "done").touch()
        here.stop()


def guard(folder: Path, parent: int) -> None:
    """Stop this host when the test says so, or is gone."""
    while not (folder / "stop").exists() and os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def lead(here: Federation, plan: dict[str, Any]) -> None:
    """The SuperLink, and one run after the other; a server that is killed is started again."""
    here.open()
    (here.folder / "ready").touch()
    threading.Thread(target=count, args=(here.folder,), daemon=True).start()
    draw = random.Random(plan["seed"])
    for name, config in plan["runs"].items():
        out = here.folder / "runs" / name
        given, app = {**config, "out": str(out)}, Path(plan["app"])
        run = here.submit(given, app)
        while plan["server"] and not (out / "summary.json").exists():
            end = time.monotonic() + draw.expovariate(1 / plan["server"])
            while time.monotonic() < end and not (out / "summary.json").exists():
                time.sleep(0.5)
                if (out / "pid").exists() and not Path("/proc", (out / "pid").read_text()).exists():
                    here.wait(run, out, 60)  # it is done, or has failed, which is an error
            if (out / "rounds.jsonl").exists() and (out / "pid").exists() and not (out / "summary.json").exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int((out / "pid").read_text()), signal.SIGKILL)
                (out / "pid").unlink()  # the number may be another's soon
                note(here.folder, "the server")
                run = here.submit(given, app)
        for what, round in plan.get("kills", ()):
            run = kill(here, plan, what, round)
        here.wait(run, out, plan["seconds"])


def follow(here: Federation, plan: dict[str, Any], nodes: Sequence[int]) -> None:
    """SuperNodes; the first may be killed, and is started again."""
    node = nodes[0]
    done, name, draw = here.folder / "done", f"supernode-{node}", random.Random(plan["seed"] + node + 1)
    while not (here.folder / "ready").exists():
        time.sleep(0.1)
    for each in nodes:
        here.start_node(each)
    if plan.get("cut") == node:
        threading.Thread(target=lose, args=(here.folder, plan), daemon=True).start()
    if "midway" in plan:
        threading.Thread(target=cut_midway, args=(here.folder, plan, node), daemon=True).start()
    while not done.exists():
        end = time.monotonic() + (draw.expovariate(1 / plan["nodes"]) if plan["nodes"] else 1e9)
        while time.monotonic() < end and not done.exists():
            time.sleep(0.2)
        if not done.exists() and list(here.folder.glob("runs/*/rounds.jsonl")):  # the first round waits for everyone
            here.kill(name)
            note(here.folder, name)
            here.restart_node(node, 600)


def lose(folder: Path, plan: dict[str, Any]) -> None:
    """Cut this host off twice: with a reply that is made and not yet sent, and before it hears that one was taken."""
    ((name, config),) = plan["runs"].items()
    out, hold, node = folder / "runs" / name, Path(config["hold"]), plan["cut"]
    for lost in ("a reply", "an acknowledgement"):
        if lost == "a reply":
            wait_for(hold.with_suffix(".held").exists)
        else:
            rounds = len(answered(out, node))
            wait_for(lambda rounds=rounds: len(answered(out, node)) > rounds)
        link("down")
        note(folder, lost)
        failures = said(out, f"client {node} failed")
        hold.unlink(missing_ok=True)
        wait_for(lambda failures=failures: said(out, f"client {node} failed") > failures)
        link("up")


def cut_midway(folder: Path, plan: dict[str, Any], node: int) -> None:
    """Cut this host off for so many seconds in each round, while a message to it, or from it, has come in part."""
    ((name, config),) = plan["runs"].items()
    for round in range(1, config["rounds"] + 1):
        way = "down" if (round + node) % 2 else "up"
        about = round, way, [node], plan.get("small", False)
        wait_for(lambda about=about: begun(folder / "runs" / name, *about))
        link("down")
        note(folder, f"host {node} is cut off in round {round}, {way}")
        time.sleep(plan["midway"])
        link("up")


def kill(here: Federation, plan: dict[str, Any], what: str, round: int) -> int:
    """Kill the server, or the SuperLink with it, in a round, once an answer has come in part; the run that goes on."""
    ((name, config),) = plan["runs"].items()
    out = here.folder / "runs" / name
    wait_for(lambda: begun(out, round, "up", range(3), plan.get("small", False)))
    if what == "superlink":
        superlink = here.processes.pop("superlink")
        superlink.kill()
        superlink.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((out / "pid").read_text()), signal.SIGKILL)
    note(here.folder, f"the {what} in round {round}")
    (out / "watch.json").unlink()
    if what == "superlink":
        here.start_link()
    return here.submit({**config, "out": str(out)}, Path(plan["app"]))


def begun(out: Path, round: int, way: str, clients: Sequence[int], small: bool = False) -> bool:
    """Whether a message this way, of one of these clients, has come in part in this round, or the round is over.

    Of ``small`` messages, which go as one: whether one of them is called and has not answered.
    """
    try:
        status = json.loads((out / "watch.json").read_text())
    except FileNotFoundError:
        return False
    if status["round"] != round:
        return bool(status["round"] > round)
    there = [status["clients"][client] for client in clients if client < len(status["clients"])]
    if small:
        return any(one["state"] in ("called", "late") for one in there)
    chunks = [one["chunks"] for one in there]
    return any(one is not None and one[0] == way and 0 < one[1] < one[2] for one in chunks)


def link(state: str) -> None:
    subprocess.run(["ip", "link", "set", "wire0", state], check=True)


def answered(out: Path, client: int) -> list[int]:
    """The rounds that a client has taken part in."""
    entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return [e["round"] for e in entries if (e["client"], e["direction"], e["used"]) == (client, "up", True)]


def said(out: Path, text: str) -> int:
    """How many lines of the server's log begin so."""
    return len([line for line in (out / "log").read_text().splitlines() if line.startswith(text)])


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


def count(folder: Path) -> None:
    """Note what the network had brought and taken when a round was over."""
    seen: dict[Path, int] = {}
    while True:
        for path in sorted(folder.glob("runs/*/rounds.jsonl")):
            rounds = path.read_text().count("\n")
            if rounds > seen.get(path, 0):
                seen[path] = rounds
                with open(folder / "wire.jsonl", "a") as file:
                    up, down = (int((COUNTERS / f"{way}_bytes").read_text()) for way in ("rx", "tx"))
                    print(json.dumps({"run": path.parent.name, "round": rounds, "up": up, "down": down}), file=file)
        time.sleep(0.02)


def note(folder: Path, what: str) -> None:
    with open(folder / "killed", "a") as file:
        print(f"{time.strftime('%H:%M:%S')} {what}", file=file)


if __name__ == "__main__":
    main()
