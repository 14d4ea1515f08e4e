"""A client's worker, which stays from one call to the next: processes of their own, and a ClientApp without torch."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from places import ROOT
from thinwire.deploy.client import Node
from thinwire.deploy.server import Deployment
from thinwire.errors import RunError, WireError

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from thinwire.deploy.flower import resident

pytestmark = pytest.mark.timeout(600)

APP = """
import os, time
from pathlib import Path
import torch
import thinwire as tw
from thinwire.deploy import flower

def tasks():
    generator = torch.Generator().manual_seed(0)
    return [tw.Supervised(torch.randn(12, 4, generator=generator), torch.arange(12) % 3)]

def model():
    return torch.nn.Linear(4, 3)

def method():
    return tw.parse("FedAvg(LocalSGD(0.1, batch=4), up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.6))")

class client(flower.Node):
    def __init__(self, context):
        self.config = context.run_config
        super().__init__(method(), model, tasks()[0], flower.folder_of(context))
        if self.config.get("wrong"):
            raise ValueError("this client has no data: mount the disk")

    def answer(self, data):
        with open(self.folder / "pids", "a") as file:
            print(os.getpid(), file=file)
        wait = self.folder / "wait"
        while wait.exists():
            time.sleep(0.02)
        found = super().answer(data)
        while (self.folder / "linger").exists():
            time.sleep(0.02)
        return found
"""
CLIENTAPP = """
from thinwire.deploy import flower
app = flower.client_app("little.node:client")
"""
# What Flower's process does with a message: it loads the ClientApp, and answers.
FLOWER = """
import json, sys
from pathlib import Path
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from thinwire.deploy.flower.post import pack, unpack
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
from little.app import app
here = Path(sys.argv[1])
context = Context(1, 7, {"name": "a", "folder": str(here)}, RecordDict(), {}, 0)
message = Message(pack((here / "call").read_bytes()), 7, "train")
message.metadata.__dict__["_message_id"] = "m"
(here / "answer").write_bytes(unpack(app(message, context).content))
heavy = {"torch", "little.node", "thinwire.deploy.client"} & sys.modules.keys()
(here / "modules").write_text(json.dumps(sorted(heavy)))
"""


class Little:
    """A client with a folder, and the app that it runs."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = folder, folder / "client"
        package = folder / "app" / "little"
        package.mkdir(parents=True)
        for name, text in {"__init__": "", "node": APP, "app": CLIENTAPP}.items():
            (package / f"{name}.py").write_text(text)
        self.node = package / "node.py"
        self.config: dict[str, Any] = {}
        space: dict[str, Any] = {}
        exec(APP, space)
        self.run = Deployment(space["method"](), space["model"], 1, seed=5)
        self.twin = Node(space["method"](), space["model"], space["tasks"]()[0], folder / "twin")

    @property
    def context(self) -> Context:
        return Context(1, 7, {"name": "a", "folder": str(self.folder)}, RecordDict(), self.config, 0)

    def ask(self, call: bytes, idle: float = 900.0) -> bytes:
        return resident.ask(self.folder, "little.node:client", self.context, call, idle)[0]

    def pids(self) -> list[int]:
        """The worker of each call so far."""
        path = self.folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def process(self, call: bytes) -> subprocess.Popen[bytes]:
        """A process as Flower starts them."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "call").write_bytes(call)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(self.root / "app")])}
        command = [sys.executable, "-c", FLOWER, str(self.folder)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Little]:
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    found = Little(tmp_path)
    yield found
    for pid in set(found.pids()):
        if runs(pid):
            os.kill(pid, signal.SIGKILL)
    for name in [name for name in sys.modules if name.split(".")[0] == "little"]:
        del sys.modules[name]


def runs(pid: int) -> bool:
    """Whether a process is there, and is not dead and unburied."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def same_but_for_the_time(one: bytes, other: bytes) -> None:
    from thinwire.federated.envelope import read_answer

    first, second = (read_answer(data, 1 << 20)._replace(seconds=0.0) for data in (one, other))
    assert first == second
    assert first.examples == 12


def test_the_process_that_flower_starts_imports_neither_torch_nor_the_client(little: Little) -> None:
    for _ in range(2):
        (call,) = little.run.begin([0]).values()
        process = little.process(call)
        assert process.wait(60) == 0
        assert json.loads((little.folder / "modules").read_text()) == []
        answer = (little.folder / "answer").read_bytes()
        same_but_for_the_time(answer, little.twin.answer(call))
        assert little.run.accept(0, answer)
        little.run.end()


def test_a_worker_stays_answers_as_the_client_does_and_is_nobody_elses(little: Little) -> None:
    for _ in range(3):
        (call,) = little.run.begin([0]).values()
        answer = little.ask(call)
        same_but_for_the_time(answer, little.twin.answer(call))
        assert little.run.accept(0, answer)
        little.run.end()
    assert len(set(little.pids())) == 1
    assert len(little.pids()) == 3
    mode = (little.folder / resident.SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) & 0o077 == 0
    assert stat.S_IMODE(little.folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_other_code_is_another_worker_and_other_settings_are_another_client_in_it(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    first = little.ask(call)
    little.node.write_text(APP + "\n# as before\n")
    same_but_for_the_time(little.ask(call), first)
    little.config = {"tests": True}
    same_but_for_the_time(little.ask(call), first)
    little.config = {"wrong": 1}
    with pytest.raises(RuntimeError, match="this client has no data"):
        little.ask(call)
    assert [little.pids().index(pid) for pid in little.pids()] == [0, 1, 1]
    until(lambda: not runs(little.pids()[0]))


@pytest.mark.slow
def test_a_call_whose_worker_is_killed_is_asked_once_more(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    linger = little.folder / "linger"
    little.folder.mkdir()
    linger.touch()
    process = little.process(call)
    until(lambda: list(little.folder.glob("*/1-*")))  # what it keeps of its answer is written
    os.kill(little.pids()[0], signal.SIGKILL)
    linger.unlink()
    assert process.wait(60) == 0
    same_but_for_the_time((little.folder / "answer").read_bytes(), little.twin.answer(call))
    assert len(set(little.pids())) == 2


@pytest.mark.slow
def test_a_worker_ends_with_who_asked_and_with_its_owner_and_when_it_is_idle(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    little.folder.mkdir()
    wait = little.folder / "wait"
    wait.touch()
    process = little.process(call)
    until(little.pids)
    process.kill()
    process.wait()
    until(lambda: not runs(little.pids()[0]))  # nobody waits for this job
    wait.unlink()
    assert not list(little.folder.glob("*/1-*"))

    owner = (
        f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {FLOWER!r}, sys.argv[1]]).returncode)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(little.root / "app")])}
    done = subprocess.run([sys.executable, "-c", owner, str(little.folder)], env=environment, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    until(lambda: not runs(little.pids()[1]))  # the process that started the one that asked is gone

    little.ask(call, idle=0.2)
    until(lambda: not runs(little.pids()[2]))
    assert not (little.folder / resident.SOCKET).exists()


@pytest.mark.slow
def test_what_a_worker_raises_is_raised_where_it_was_asked(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    little.config = {"wrong": 1}
    with pytest.raises(RuntimeError, match=r"^ValueError: this client has no data: mount the disk$"):
        little.ask(call)
    little.config = {}
    with pytest.raises(WireError, match="unknown tag"):
        little.ask(b"\x01nonsense")
    other = Deployment(tw.FedAvg(), torch.nn.Linear(4, 3), 1)
    (wrong,) = other.begin([0]).values()
    with pytest.raises(RunError, match="another method or another model"):
        little.ask(wrong)
    assert little.run.accept(0, little.ask(call))  # and goes on
    assert len(set(little.pids())) == 1


@pytest.mark.slow
def test_a_folder_whose_name_is_too_long_for_a_socket_has_one(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    little.folder = little.root / ("long" * 30)
    same_but_for_the_time(little.ask(call), little.twin.answer(call))


@pytest.mark.slow
def test_two_that_ask_at_once_are_answered_by_one_worker(little: Little) -> None:
    (call,) = little.run.begin([0]).values()
    both = [little.process(call) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(set(little.pids())) == 1
