"""A whole federation on this machine: a SuperLink and its SuperNodes, with TLS and authenticated nodes.

``python federation.py`` starts them on free ports of the loopback interface, runs the app
beside this file with FedLUAR and with LBGM, prints what crossed the wire, and stops what it
started. Nothing outlives it, and nothing is written outside a temporary folder. With ``--adapters`` the
app of ``adapters`` is run instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guard import Guard

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
BACK = "SuperNode ID: "  # what a SuperNode says when it is connected
MOST = {"flwr-serverapp": 8, "flwr-clientapp": 4}  # of Flower's processes that run at once
LOOPBACK = 1000.0  # Mbit/s, which the server cannot know before the first answers
METHODS = {
    "fedluar": "LUAR(FedAvg(LocalSGD(0.05, batch=32)), recycle=2)",
    "lbgm": "FedAvg(LocalSGD(0.05, batch=32), up=LBGM(threshold=0.7))",
}


def started_by(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have, whatever session they are in."""
    lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(child): int(parent) for child, parent in map(str.split, lines.splitlines())}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def free_port() -> int:
    """A port that nobody listens on, and none of those from which Linux makes connections meanwhile (32768 on)."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


class Federation:
    """A SuperLink and ``nodes`` SuperNodes, in ``folder``: started on entry, stopped on exit, by their process ids.

    They are stopped as well when this process is killed: see ``guard.py``.

    ``address`` is where the SuperLink is reached, ``HOST:PORT``: by default a free port of this machine alone.
    ``programs`` is the folder of the programs that Flower starts: by default that of this Python. ``warm``: SuperNodes
    are started by ``thinwire node``, else by ``flower-supernode``.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        environment: Mapping[str, str] | None = None,
        address: str = "",
        programs: Path = BIN,
        warm: bool = True,
    ) -> None:
        self.folder, self.nodes, self.address = folder, nodes, address or f"127.0.0.1:{free_port()}"
        self.keys, self.programs, self.warm = folder / "keys", programs, warm
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(folder / "bin"), str(BIN), os.environ["PATH"]]),  # for what Flower starts
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # what runs is what is installed here
            **(environment or {}),
        }
        self.guard = Guard(self.environment)

    def __enter__(self) -> Federation:
        try:
            self.open()
            for node in range(self.nodes):
                self.start_node(node)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open(self) -> None:
        """Make keys, start the SuperLink, and tell it the SuperNodes' public keys."""
        self.folder.mkdir(parents=True, exist_ok=True)
        host = self.address.rpartition(":")[0]
        certificates = [HERE / "certificates.sh", self.keys, str(self.nodes), host]
        subprocess.run(certificates, env=self.environment, check=True)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.keys / "ca.pem"}"\n'
        )
        self.start_link()
        with ThreadPoolExecutor(2) as pool:  # each is a process that imports Flower, and waits
            list(pool.map(self.register, range(self.nodes)))

    def register(self, node: int) -> None:
        """Tell the SuperLink a SuperNode's public key."""
        self.flwr("supernode", "register", str(self.keys / f"node-{node}.pub"))

    # -- processes ------------------------------------------------------------

    def bound(self) -> None:
        """Put programs of Flower's names before its own, which start no more than ``MOST`` of them at once."""
        (self.folder / "bin").mkdir(parents=True, exist_ok=True)
        for name, most in MOST.items():
            bounded = [sys.executable, "-I", "-S", str(HERE / "bounded.py"), str(self.folder / "bin"), str(most)]
            command = shlex.join(bounded)
            path = self.folder / "bin" / name
            path.write_text(f'#!/bin/sh\nexec {command} {shlex.quote(str(self.programs / name))} "$@"\n')
            path.chmod(0o755)

    def start(self, name: str, *command: str) -> None:
        """Start a process; its output goes to a file of its name, after what is there."""
        self.bound()
        with open(self.folder / f"{name}.log", "ab") as file:
            self.processes[name] = subprocess.Popen(
                [BIN / command[0], *command[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that it can be stopped with what it has started
            )

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it answers."""
        keys, (host, _, port) = self.keys, self.address.rpartition(":")
        self.start(
            *("superlink", "flower-superlink", "--host", host, "--port", port),
            *("--ssl-ca-certfile", str(keys / "ca.pem"), "--ssl-certfile", str(keys / "server.pem")),
            *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
            *("--database", str(self.folder / "superlink.db")),
        )
        end = time.monotonic() + 600  # on a machine that has other work
        while time.monotonic() < end:
            if self.processes["superlink"].poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink does not start:\n{self.log('superlink')}")

    def start_node(self, node: int) -> None:
        """Start a SuperNode. Its key is its identity: it may be killed and started again."""
        folder = self.folder / f"client-{node}"
        self.start(
            *(f"supernode-{node}", *(("thinwire", "node") if self.warm else ("flower-supernode",))),
            *("--superlink", self.address),
            *("--root-certificates", str(self.keys / "ca.pem")),
            *("--auth-supernode-private-key", str(self.keys / f"node-{node}")),
            *("--node-config", f'partition-id={node} folder="{folder}"'),
            *("--host", "127.0.0.1", "--port", str(free_port())),
        )

    def restart_node(self, node: int, seconds: float = 150) -> None:
        """Start a SuperNode that was killed, as its supervisor would: again and again.

        The SuperLink takes it back only when the heartbeats of the one before have run out, after a minute.
        """
        end, name = time.monotonic() + seconds, f"supernode-{node}"
        already = self.log(name).count(BACK)
        while self.log(name).count(BACK) == already:
            if time.monotonic() > end:
                raise RuntimeError(f"the SuperNode does not start:\n{self.log(name)[-4000:]}")
            if name not in self.processes:
                self.start_node(node)
            elif self.processes[name].poll() is not None:
                self.kill(name)  # what it has started goes with it
                time.sleep(9)  # every attempt costs a process
            time.sleep(1)

    def kill(self, name: str) -> None:
        """Kill a process and what it has started, at once."""
        process = self.processes.pop(name)
        for pid in started_by(process.pid):  # a ServerApp is in a session of its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop everything that was started: SuperNodes first."""
        theirs = [pid for process in self.processes.values() for pid in started_by(process.pid)]
        for name in reversed(list(self.processes)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.processes[name].pid, signal.SIGTERM)
        for name in reversed(list(self.processes)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(10)
            self.kill(name)
        for pid in theirs:  # a ServerApp outlives a SuperLink that was stopped before its run was over
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.guard.close()

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # -- runs -----------------------------------------------------------------

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's, and give what it says."""
        done = subprocess.run(
            [BIN / "flwr", *arguments], env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise RuntimeError(f"flwr {arguments[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, config: Mapping[str, Any], app: Path = HERE) -> int:
        """Start a run of the app with this configuration; its number."""
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        found = json.loads(self.flwr("run", str(app), "--run-config", text, "--format", "json"))
        if "run-id" not in found:
            raise RuntimeError(f"flwr run failed: {found}")
        return int(found["run-id"])

    def status(self, run: int) -> str:
        """How a run stands, as Flower says it: running, finished:completed and so on."""
        found = json.loads(self.flwr("ls", "--run-id", str(run), "--format", "json"))
        return str(found["runs"][0]["status"])

    def wait(self, run: int, out: Path, seconds: float = 900) -> dict[str, Any]:
        """Wait until a run is complete in its folder; its summary. ``RuntimeError`` where it fails."""
        end, look = time.monotonic() + seconds, time.monotonic() + 30
        while not (out / "summary.json").exists():
            time.sleep(0.2)
            if self.processes["superlink"].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no summary in {out}; the SuperLink says:\n{self.log('superlink')[-8000:]}")
            if time.monotonic() > look:
                look = time.monotonic() + 30  # to ask takes seconds of a processor: Flower's command imports all of it
                if self.status(run) == "finished:failed" and not (out / "summary.json").exists():
                    raise RuntimeError(f"the run failed:\n{self.flwr('log', str(run), '--show')[-8000:]}")
        return dict(json.loads((out / "summary.json").read_text()))


def show(name: str, out: Path) -> None:
    """The rounds of a run and its ledger, as bytes."""
    print(f"\n{name}")
    print(f"{'round':>5} {'accuracy':>9} {'up, payload':>12} {'framing':>8} {'down, payload':>14} {'framing':>8}")
    for record in map(json.loads, (out / "rounds.jsonl").read_text().splitlines()):
        accuracy = f"{record['accuracy']:.1%}"
        print(
            f"{record['round']:5} {accuracy:>9} {record['up_payload']:12,} {record['up_framing']:8,} "
            f"{record['down_payload']:14,} {record['down_framing']:8,}"
        )
    print(f"{'client':>6} {'bytes up':>12} {'bytes down':>12}")
    entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    for client in sorted({e["client"] for e in entries}):
        sums = {
            d: sum(e["payload"] + e["framing"] for e in entries if e["client"] == client and e["direction"] == d)
            for d in ("up", "down")
        }
        print(f"{client:6} {sums['up']:12,} {sums['down']:12,}")


def main() -> None:
    """Start everything, run both methods, stop everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes, each of them a client")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", default="fashion_mnist")
    parser.add_argument("--model", default="fedavg_cnn")
    parser.add_argument("--examples", type=int, default=600, help="of each client")
    parser.add_argument("--tested", type=int, default=2000, help="examples that the server tests on; 0: all there are")
    parser.add_argument("--adapters", action="store_true", help="fine-tune SmolLM2 by the app of adapters/ instead")
    parser.add_argument("--out", type=Path, help="where the runs are kept (default: nowhere)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is stopped
    with (
        tempfile.TemporaryDirectory(prefix="thinwire-") as temporary,
        Federation(Path(temporary), options.nodes) as here,
    ):
        print(f"a SuperLink at {here.address} and {options.nodes} SuperNodes, logs in {temporary}", flush=True)
        if options.adapters:
            out = (options.out.resolve() if options.out else Path(temporary) / "runs") / "adapters"
            config = {"clients": options.nodes, "sample": min(2, options.nodes), "rounds": options.rounds}
            run = here.submit({**config, "out": str(out)}, HERE / "adapters")
            here.wait(run, out, seconds=600 * options.rounds)
            show("adapters", out)
            return
        for name, method in METHODS.items():
            out = (options.out.resolve() if options.out else Path(temporary) / "runs") / name
            config = {"method": method, "rounds": options.rounds, "data": options.data, "model": options.model}
            sizes = {"clients": options.nodes, "sample": options.nodes, "take": options.nodes}
            sizes |= {"tested": options.tested, "mbit": LOOPBACK}
            run = here.submit({**config, **sizes, "examples": options.examples, "out": str(out)})
            here.wait(run, out)
            show(f"{name}: {method}", out)


if __name__ == "__main__":
    main()
