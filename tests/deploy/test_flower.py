"""The same objects on a Flower deployment: real processes, TLS, authenticated nodes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from places import ROOT
from thinwire import Key, Simulation
from thinwire.federated.buffered import Arrival, Flights

pytest.importorskip("flwr")

APP = ROOT / "tests" / "deploy" / "flower_app"
sys.path[:0] = [str(ROOT / "examples" / "flower"), str(APP)]

from federation import MOST, Federation  # noqa: E402
from tested.parts import SEED, method, model, tasks  # noqa: E402

from thinwire.deploy.flower import copies  # noqa: E402

METHODS = {
    "fedavg": "FedAvg()",
    "lbgm": "FedAvg(up=LBGM(ErrorFeedback(TopK(0.1)), threshold=0.6))",
    "luar": "LUAR(FedAvg(opt=Adam(0.03)), recycle=2, layers='tensors')",
    "flss": "FLSS(FedAvg(), rank=1, start=1, every=1)",
    "intrinsic": "Intrinsic(40, varying=True, epoch=2)",
    "scaffold": "SCAFFOLD()",
    "fedsm": "FedSM(form='epoch', personal=EF21(TopK(0.3)))",
    "perclient": "FedAvg(up=ErrorFeedback(TopK(0.1)), down=PerClient(TopK(0.3)))",
    "ditto": "Ditto()",
    "apfl": "APFL()",
    "secret": "FedAvg(up=SecureSum(clip=0.5, most=8), weights='uniform', buffers='local')",
    "tuned": "FT(FedBN(stay=('1.*',)), epochs=1.0)",
}
DEPLOYED = ["luar", "scaffold", "tuned"]  # in CI, where other tests here deploy lbgm, fedsm, perclient and secret
OTHERS = [name for name in METHODS if name not in DEPLOYED]
soak = pytest.mark.soak
PRELOADED = (
    "flwr.supernode.cli.flwr_clientapp",
    "flwr.superlink.cli.flwr_serverapp",
    "sklearn.datasets",
    "thinwire.deploy.flower.app",
    "thinwire.deploy.server",
    "torch._dynamo",  # which torch imports for its optimisers
)
AT_CLIENTS = ("ditto", "apfl", "tuned")  # whose models of clients' own lie with these, which test them


@pytest.fixture
def federation(shared: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Federation]:
    """The shared federation, in which no run of a test that has failed takes time from those after it."""
    begun, submit = dict[int, Path](), shared.submit

    def submit_and_note(config: Mapping[str, Any], app: Path) -> int:
        run = submit(config, app)
        begun[run] = Path(str(config["out"]))
        return run

    monkeypatch.setattr(shared, "submit", submit_and_note)
    yield shared
    (tmp_path / "hold").unlink(missing_ok=True)
    for run, out in begun.items():
        if not (out / "summary.json").exists() and not shared.status(run).startswith("finished"):
            shared.flwr("stop", str(run))


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and SuperNodes, for all tests of this file; stopped by process id.

    There is one node where no test is asked for that needs three: each is several processes that import torch. The
    programs that Flower starts for each message begin as copies of one process, which saves minutes of a processor.
    """
    nodes = 3 if any(item.get_closest_marker("deployment") for item in request.session.items) else 1
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "HOME": str(tmp_path_factory.mktemp("home")),
    }
    programs = tmp_path_factory.mktemp("programs")
    found = Federation(tmp_path_factory.mktemp("federation"), nodes, environment, programs=programs, warm=False)
    found.start("forked", "python", *forked(programs))
    with found:
        yield found


def forked(folder: Path) -> tuple[str, str]:
    """Programs of Flower's names that are run as copies of a process, and the arguments by which that is started."""
    for name in MOST:
        path = folder / name
        program = copies.__file__, str(folder / "socket"), str(Path(sys.executable).parent / name)
        path.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", "-S", *program])} "$@"\n')
        path.chmod(0o755)
    return "-c", f"from {copies.__name__} import serve; serve({str(folder / 'socket')!r}, {PRELOADED!r})"


COPIED = """
import os, sys, time
print(sys.argv[1:], os.getcwd(), os.environ["HERE"], os.getpid(), flush=True)
print(sorted({"torch", "flwr", "thinwire"} & sys.modules.keys()), file=sys.stderr)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.mark.slow
def test_a_program_that_is_run_as_a_copy_is_as_one_that_was_started(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "program").write_text(COPIED)
    copied = (
        copies.__file__,
        federation.programs / "socket",
        tmp_path / "program",
    )
    command, environment = [sys.executable, "-I", "-S", *copied], {"HERE": "there"}
    done = subprocess.run([*command, "0", "b c"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    said, pid = done.stdout.rsplit(maxsplit=1)
    assert (done.returncode, said) == (3, f"['0', 'b c'] {tmp_path} there")
    assert done.stderr == "['flwr', 'thinwire', 'torch']\n"
    assert not runs(int(pid))

    for who in "copy", "asker":  # one that is killed takes the other along
        with subprocess.Popen([*command, "600"], env=environment, stdout=subprocess.PIPE, text=True) as asker:
            assert asker.stdout is not None
            copy = int(asker.stdout.readline().rsplit(maxsplit=1)[1])
            assert runs(copy)
            os.kill(copy if who == "copy" else asker.pid, signal.SIGKILL)
            assert asker.wait() == (128 + signal.SIGKILL if who == "copy" else -signal.SIGKILL)
        until(lambda copy=copy: not runs(copy))


class Chosen(Simulation):
    """A simulated run in which it is said who takes part."""

    cohorts: dict[int, list[int]]

    def draw_cohort(self, key: Key, available: Any = None, count: int | None = None) -> list[int]:
        return self.cohorts.get(key.round, list(range(len(self.tasks)) if available is None else sorted(available)))


class Landing(Flights):
    """Replies that land when it is said."""

    def __init__(self, rounds: list[list[int]]) -> None:
        super().__init__()
        self.rounds = iter(rounds)

    def land(self, departing: Iterable[Arrival], replies: int, clock: float) -> list[Arrival]:
        self.arrivals |= {arrival.answer.client: arrival for arrival in departing}
        return [self.arrivals.pop(client) for client in next(self.rounds)]


def simulated(
    expression: str,
    rounds: int,
    cohorts: dict[int, list[int]] | None = None,
    clients: int = 3,
    landings: list[list[int]] | None = None,
    hidden: bool = True,
    **asked: Any,
) -> tw.Result:
    """A simulated run in which all take part but in these rounds, and whose replies ``landings`` says come when."""
    dealt = tasks(max(3, clients))[:clients]
    options: dict[str, Any] = {"test": dealt[0], "client_tests": dealt, "seed": SEED, "workers": 1, "plan": "each"}
    run = Chosen(method(expression), model, dealt, **options, **asked)
    run.cohorts = cohorts or {}
    if not hidden:
        run.secured = None
    if landings is not None:
        run.flights = Landing(landings)
    with run.pool:
        for _ in range(rounds):
            run.step()
        return run.result()


def assert_same(out: Path, expected: tw.Result, payload: bool = True) -> None:
    """The models in a folder are those of a simulated run, bit for bit; so are the payload bytes."""
    from safetensors.torch import load_file

    own = range(3) if expected.algorithm.at_server else ()
    modules = {f"personal/{client}": expected.personal(client) for client in own} | dict(expected.beside)
    for file, module in {"model": expected.module, **modules}.items():
        found = load_file(out / f"{file}.safetensors")
        for name, tensor in module.state_dict().items():
            assert torch.equal(found[name], tensor) or not tensor.is_floating_point(), (file, name)
    if payload:
        ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
        ours, theirs = (
            [(*e[:4], e.floats, e.personal) for e in sorted(entries)] for entries in (ledger, expected.ledger)
        )
        assert ours == theirs


def until(condition: Callable[[], Any], seconds: float = 900) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


STARTS = """
import pathlib, subprocess, sys, time
child = "import time; time.sleep(600)"
found = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(str(found.pid))
time.sleep(600)
"""
KILLED = """
import pathlib, sys, time
from federation import Federation
Federation(pathlib.Path(sys.argv[1]), 0).start("parent", "python", "-c", sys.argv[2], sys.argv[1] + "/pid")
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_what_a_process_has_started_in_a_session_of_its_own_goes_with_it(way: str, tmp_path: Path) -> None:
    here = Federation(tmp_path, 0)
    here.start("parent", "python", "-c", STARTS, str(tmp_path / "pid"))
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    assert runs(pid)
    here.kill("parent") if way == "kill" else here.stop()
    until(lambda: not runs(pid))
    here.stop()


def test_a_federation_goes_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples" / "flower")}
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), STARTS], env=environment)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    pid = int((tmp_path / "pid").read_text())
    assert runs(pid)
    process.kill()
    process.wait()
    until(lambda: not runs(pid))


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Path]:
    """The program that Flower starts for a message, which sleeps here, for as many seconds as it is told."""
    here = Federation(tmp_path, 0)
    here.bound()
    script = tmp_path / "bin" / "flwr-clientapp"
    script.write_text(script.read_text().replace(str(Path(sys.executable).parent / "flwr-clientapp"), "/bin/sleep"))
    yield script
    here.stop()


def test_of_a_program_that_flower_starts_again_and_again_only_so_many_run(sleeper: Path) -> None:
    started = [subprocess.Popen([sleeper, "600"], start_new_session=True) for _ in range(9)]

    def asleep() -> list[int]:
        return [p.pid for p in started if Path(f"/proc/{p.pid}/comm").read_text() == "sleep\n"]

    try:
        until(lambda: len(asleep()) == 4)
        time.sleep(1)
        assert len(asleep()) == 4
        first = asleep()[0]
        os.kill(first, signal.SIGKILL)
        next(p for p in started if p.pid == first).wait()
        started = [p for p in started if p.pid != first]
        until(lambda: len(asleep()) == 4)  # one that waited has its place
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_of_a_program_that_waits_already_only_so_many_more_are_started(sleeper: Path) -> None:
    with contextlib.ExitStack() as stack:
        for place in range(32):
            file = stack.enter_context(open(sleeper.parent / f"sleep-waiting-{place}.lock", "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        done = subprocess.run([sleeper, "0"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, "/bin/sleep is not started: 32 of it wait already\n")
    assert subprocess.run([sleeper, "0"]).returncode == 0


def runs(pid: int) -> bool:
    """Whether a process is there, and is not dead and unburied."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(found.strip()) and not found.startswith("Z")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("names", "rounds"),
    [  # each call of a client is a process
        pytest.param(["lbgm"], 2, id="one"),
        pytest.param(DEPLOYED, 3, id="some", marks=pytest.mark.deployment),
        pytest.param(OTHERS, 3, id="others", marks=pytest.mark.soak),
    ],
)
def test_a_deployment_gives_the_model_and_the_bytes_of_a_simulation(
    federation: Federation, tmp_path: Path, names: list[str], rounds: int
) -> None:
    clients = federation.nodes
    expected = {name: simulated(METHODS[name], rounds, clients=clients) for name in names}
    config = {"rounds": rounds, "clients": clients, "deadline": 3000.0}
    runs = {  # all at once: nodes work on one while others wait
        name: federation.submit(
            {**config, "method": METHODS[name], "out": str(tmp_path / name), "tests": name in AT_CLIENTS}, APP
        )
        for name in names
    }
    for name in names:
        federation.wait(runs[name], tmp_path / name, 3000)
        assert_same(tmp_path / name, expected[name])
        if name in AT_CLIENTS:  # each tests what it holds before it trains
            lines = map(json.loads, (tmp_path / name / "rounds.jsonl").read_text().splitlines())
            found = [{k: v for k, v in line.items() if k.startswith("client_")} for line in lines]
            assert found[1:] == [
                {k: v for k, v in line.items() if k in found[1]} for line in expected[name].rounds[:-1]
            ]
            assert {"client_accuracy", "client_accuracy_shared", "client_loss_worst"} <= found[1].keys()


@pytest.mark.deployment
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("name", ["fedsm", pytest.param("lbgm", marks=soak), pytest.param("perclient", marks=soak)])
def test_a_node_that_is_killed_once_it_has_made_its_reply_has_not_taken_part(
    federation: Federation, tmp_path: Path, name: str
) -> None:
    out, hold = tmp_path / "run", tmp_path / "hold"
    hold.write_text("after")
    states = federation.folder / "client-2"
    before = set(states.glob("*"))
    config = {"method": METHODS[name], "out": str(out), "hold": str(hold), "deadline": 900.0}
    run = federation.submit(config, APP)
    until(hold.with_suffix(".held").exists)  # what it keeps of its second reply is written
    lose_node(federation, 2, out, hold)
    federation.wait(run, out, 900)
    assert_same(out, simulated(METHODS[name], 3, {2: [0, 1]}), payload=False)
    (kept,) = {path for path in set(states.glob("*")) - before if path.is_dir()}
    assert sorted(path.name[:2] for path in kept.iterdir()) == ["1-", "3-"]  # what was taken of the first two rounds


def lose_node(federation: Federation, node: int, out: Path, hold: Path) -> None:
    """Kill the node that is held, and start it again once the server has done without it.

    One that is back before the server has looked is asked again, and answers.
    """
    federation.kill(f"supernode-{node}")
    hold.unlink()
    until(lambda: f"client {node} failed" in (out / "log").read_text())
    federation.restart_node(node)


def landed(out: Path) -> list[list[int]]:
    """Whose answers each round of a deployment had."""
    ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
    return [sorted(e.client for e in ledger.of("up", round) if e.payload and e.used) for round in ledger.rounds]


@pytest.mark.deployment
@pytest.mark.timeout(2000)
def test_a_node_that_is_killed_between_its_keys_and_its_answer_is_not_in_the_secret_sum(
    federation: Federation, tmp_path: Path
) -> None:
    out, hold = tmp_path / "run", tmp_path / "hold"
    hold.write_text("before")
    config = {"method": METHODS["secret"], "out": str(out), "hold": str(hold), "deadline": 900.0}
    run = federation.submit(config, APP)
    until(hold.with_suffix(".held").exists)  # it has sent keys and shares in round 2, and been called
    lose_node(federation, 2, out, hold)
    federation.wait(run, out, 900)
    assert landed(out) == [[0, 1, 2], [0, 1], [0, 1, 2]]
    plain = simulated(METHODS["secret"], 3, {2: [0, 1]}, hidden=False)  # the sum of whole numbers without any mask
    assert_same(out, plain, payload=False)
    ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
    (lost,) = [entry for entry in ledger.of("up", 2) if entry.client == 2]
    assert (lost.payload, lost.used) == (0, False)
    assert lost.framing > 64 + 2 * 80  # its keys, and two shares


@pytest.mark.deployment
@pytest.mark.timeout(2000)
def test_a_server_that_waits_for_nobody_and_is_killed_goes_on_with_the_answers_of_the_same_calls(
    federation: Federation, tmp_path: Path
) -> None:
    out, hold = tmp_path / "run", tmp_path / "hold"
    hold.write_text("after")
    config = {"method": METHODS["perclient"], "out": str(out), "hold": str(hold), "buffer": 2, "rounds": 10}
    federation.submit(config, APP)
    until(hold.with_suffix(".held").exists)  # client 2 has been called again, so its first answer was taken
    until(lambda: (out / "rounds.jsonl").read_text().count("\n") >= 2)
    os.kill(int((out / "pid").read_text()), signal.SIGKILL)
    assert not (out / "summary.json").exists()
    hold.unlink()
    federation.wait(federation.submit(config, APP), out, 900)
    there = landed(out)
    assert [len(clients) for clients in there] == [2] * 10
    assert 2 in itertools.chain.from_iterable(there)
    expected = simulated(METHODS["perclient"], 10, landings=there, buffer=tw.Buffered(2))
    assert_same(out, expected, payload=False)
    lines = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [line["staleness"] for line in lines] == [line["staleness"] for line in expected.rounds]


@pytest.mark.deployment
@pytest.mark.timeout(2000)
@pytest.mark.parametrize(
    ("name", "aggregate"),
    [
        pytest.param("lbgm", "Median()", id="robust"),
        *(pytest.param(name, "", id=name, marks=soak) for name in ("secret", "lbgm", "fedsm", "perclient")),
    ],
)
def test_a_server_that_is_killed_in_a_round_goes_on_when_it_is_started_again(
    federation: Federation, tmp_path: Path, name: str, aggregate: str
) -> None:
    out, states = tmp_path / "run", federation.folder / "client-0"
    before = set(states.glob("*"))
    config = {"method": METHODS[name], "out": str(out), "aggregate": aggregate}
    federation.submit(config, APP)
    # The second call says that the first answer was taken: client 0 is in round 2.
    until(lambda: any(list(run.glob("2-*")) for run in set(states.glob("*")) - before))
    os.kill(int((out / "pid").read_text()), signal.SIGKILL)
    assert not (out / "summary.json").exists()
    federation.wait(federation.submit(config, APP), out, 900)
    asked = {"aggregate": tw.parse(aggregate)} if aggregate else {}
    assert_same(out, simulated(METHODS[name], 3, **asked))


@pytest.mark.deployment
@pytest.mark.timeout(2400)
def test_a_run_goes_on_after_its_superlink_was_killed(federation: Federation, tmp_path: Path) -> None:
    out, hold = tmp_path / "run", tmp_path / "hold"
    hold.write_text("after")
    config = {"method": METHODS["lbgm"], "out": str(out), "hold": str(hold)}
    federation.submit(config, APP)
    until(hold.with_suffix(".held").exists)  # client 2 has made its second reply; the others' are on their way
    server = int((out / "pid").read_text())
    link = federation.processes.pop("superlink")
    link.kill()  # alone: Flower stops the server when it finds its parent gone
    link.wait()
    until(lambda: not runs(server), 60)
    hold.unlink()
    federation.start_link()  # SuperNodes find it again: they are in its database
    federation.wait(federation.submit(config, APP), out, 900)
    assert_same(out, simulated(METHODS["lbgm"], 3))


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_a_run_goes_on_with_a_server_that_was_upgraded(tmp_path: Path) -> None:
    """SuperLink and ServerApp are killed in a round and started again with another version; the SuperNodes stay."""
    out, hold, upgraded = tmp_path / "run", tmp_path / "hold", tmp_path / "upgraded"
    shutil.copytree(ROOT / "src", upgraded, ignore=shutil.ignore_patterns("__pycache__"))
    with open(upgraded / "thinwire" / "version.py", "a") as file:
        file.write("\n\ndef code_version() -> str:\n    return '0.2.0+gupgraded'\n")
    hold.write_text("after")
    config = {"method": METHODS["lbgm"], "out": str(out), "hold": str(hold)}
    with Federation(tmp_path / "federation", 3, {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}) as here:
        here.submit(config, APP)
        until(hold.with_suffix(".held").exists)
        server, link = int((out / "pid").read_text()), here.processes.pop("superlink")
        link.kill()
        link.wait()
        until(lambda: not runs(server), 60)
        hold.unlink()
        here.environment["PYTHONPATH"] = str(upgraded)
        here.start_link()
        here.wait(here.submit(config, APP), out, 900)
    assert_same(out, simulated(METHODS["lbgm"], 3))
    before, after = (line.split(",")[0] for line in json.loads((out / "run.json").read_text())["versions"])
    assert before != after == "thinwire 0.2.0+gupgraded"


# What a client does, and what the log says of it. Clients 2 and 1 do one after the other of these in each round.
REFUSED = {
    "noise": "",
    "cut": "",
    "oversized": "cut short",  # it is not even put together
    "nested": "nested deeper than 32",
    "shape": "",
    "nan": "NaN or infinity in a message",
    "base": "an answer to the newest call",
    "round": "an answer to a round that has begun",
    "client": "an answer of client 2, not of",
}
FAULTS = {
    "replay": "an answer of client 1 to round 1 is dropped: it was called again",
    "lost": "client 2 failed",
    "unheard": "client 1 failed",
}


@pytest.mark.deployment
@pytest.mark.parametrize(
    "times",
    [
        pytest.param(1, marks=pytest.mark.timeout(1500)),
        pytest.param(12, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_a_node_that_lies_or_fails_is_named_and_changes_nothing(
    federation: Federation, tmp_path: Path, times: int
) -> None:
    out, expression = tmp_path / "run", METHODS["lbgm"]
    kinds = [*REFUSED, *FAULTS]
    spoil = list(zip(kinds[::2], kinds[1::2], strict=True)) * times
    rounds = len(spoil) + 2  # the first and the last are honest
    words = " ".join(map(",".join, spoil))
    config = {"method": expression, "out": str(out), "spoil": words, "rounds": rounds, "deadline": 1200.0}
    federation.wait(federation.submit(config, APP), out, 1200 * times)
    assert_same(out, simulated(expression, rounds, {t: [0] for t in range(2, rounds)}), payload=False)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [r["lost_replies"] for r in records] == [0, *[2] * len(spoil), 0]
    for name, of in ("refused", REFUSED), ("dropped", {"replay"}):
        assert [r[f"{name}_replies"] for r in records] == [0, *[sum(k in of for k in pair) for pair in spoil], 0]
    log = (out / "log").read_text().splitlines()
    for t, pair in enumerate(spoil, 2):
        for client, kind in zip((2, 1), pair, strict=True):
            if kind in REFUSED:
                said = f"round {t}: an answer of client {client} was refused"
                (line,) = (line for line in log if line.startswith(said))
                assert REFUSED[kind] in line
    assert len([line for line in log if line.startswith("client 2 sent no blob of ours: a packet")]) == times
    for kind, said in FAULTS.items():
        assert len([line for line in log if line.startswith(said)]) >= times, kind
    peaks = [int(line) for line in (out / "peaks").read_text().splitlines()]
    assert peaks[-1] - peaks[0] < 64 << 20  # bytes; each of the oversized has 4 MiB


@pytest.mark.deployment
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("nodes", [3, pytest.param(32, marks=soak)])
def test_flowers_own_simulation_gives_the_model_and_the_bytes_of_ours(nodes: int, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    runs = {name: METHODS[name] for name in ("lbgm", "scaffold")}
    words = [str(nodes), *(word for name, expression in runs.items() for word in (name, expression))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(APP)])}
    command = [sys.executable, str(APP / "on_ray.py"), str(tmp_path), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, expression in runs.items():
        assert_same(tmp_path / name, simulated(expression, 3, clients=nodes))
