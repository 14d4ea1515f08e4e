"""The simulator: resume and kill, catching up, who is billed what, workers, evaluation, what is refused.

Parts of this module are run in processes of their own: see ``first_halves``, ``run_slowly`` and ``hold``.
"""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import (
    MODELS,
    assert_same_model,
    assert_same_run,
    bills,
    blobs,
    chosen,
    mlp,
    normed,
    random_layers,
    rounds_of,
    simulate,
)
from processes import Process, called
from thinwire import FedAvg, Key, LocalSGD, Network, Simulation, Supervised
from thinwire.data import Crop, Flip
from thinwire.errors import NonFinite, RunError
from thinwire.federated.stream import SLACK, Parcel, catch_up
from thinwire.kernels import native
from thinwire.run.folder import lock_folder
from thinwire.task import as_task
from tiers import tiers

# -- resume ------------------------------------------------------------------------

RESUMED: dict[str, tuple[str, str, dict[str, Any]]] = {  # every method is resumed in test_every_method.py
    "fedavg": ("FedAvg()", "mlp", {}),
    "lost replies": ("FedAvg(weights='uniform')", "mlp", {"dropout": 0.3, "network": Network(0.1, deadline=0.07)}),
    "lbgm": ("FedAvg(up=LBGM(ErrorFeedback(TopK(0.2)), threshold=0.7))", "mlp", {"dropout": 0.2}),
    "everything": (
        "LUAR(SCAFFOLD(up={'update': LBGM(ErrorFeedback(TopK(0.3)), threshold=0.8)}, "
        "down={'x': EF21(TopK(0.3)), 'c': Half()}, opt=Yogi(0.03)), recycle=1)",
        "normed",
        {"dropout": 0.2, "network": Network(1.0, spread=1.0)},
    ),
    "mean statistics": ("FedAvg(opt=Momentum(0.5))", "normed", {}),
    "local statistics": ("FedAvg(buffers='local')", "normed", {}),
    "random layers": ("FedAvg(up=RandK(0.3))", "random_layers", {}),
    "moon": ("MOON(mu=0.5)", "random_layers", {"dropout": 0.2}),
}


def half_run(name: str, folder: Path, rounds: int, **more: Any) -> tw.Result:
    expression, model, options = RESUMED[name]
    return simulate(expression, MODELS[model], rounds, out=folder, **options, **more)


def first_halves(folder: str) -> None:
    for name in RESUMED:
        half_run(name, Path(folder) / name, 3)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of runs of three rounds, made by another process."""
    folder = tmp_path_factory.mktemp("halves")
    done = called(first_halves, str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_goes_on_in_a_new_process_is_the_run_that_never_stopped(
    name: str, halves: Path, tmp_path: Path
) -> None:
    straight = half_run(name, tmp_path / "straight", 6)
    resumed = half_run(name, halves / name, 6, resume=True)
    assert len(resumed.rounds) == 6
    assert_same_run(resumed, straight)
    assert rounds_of(halves / name) == rounds_of(tmp_path / "straight")
    assert (halves / name / "ledger.jsonl").read_text() == (tmp_path / "straight" / "ledger.jsonl").read_text()
    ours, theirs = (json.loads((f / "summary.json").read_text()) for f in (halves / name, tmp_path / "straight"))
    assert ours | {"seconds": 0} == theirs | {"seconds": 0}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2, 4, 5])
def test_a_run_goes_on_from_its_last_checkpoint_wherever_it_stopped(stop: int, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def listen(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise Stopped

    options: dict[str, Any] = {"dropout": 0.2, "checkpoint_every": 2}
    method = "LUAR(SCAFFOLD(up=ErrorFeedback(TopK(0.3))), recycle=1)"
    with pytest.raises(Stopped):
        simulate(method, rounds=6, out=tmp_path / "run", on_round=listen, **options)
    assert len(rounds_of(tmp_path / "run")) == stop
    seen: list[int] = []
    resumed = simulate(
        method, rounds=6, out=tmp_path / "run", resume=True, on_round=lambda r: seen.append(r["round"]), **options
    )
    assert seen == {1: [1, 2, 3, 4, 5, 6], 2: [3, 4, 5, 6], 4: [5, 6], 5: [5, 6]}[stop]
    assert_same_run(resumed, simulate(method, rounds=6, **options))


@pytest.mark.slow
def test_a_complete_run_can_be_resumed_and_read_again(tmp_path: Path) -> None:
    first = simulate("FedAvg()", normed, out=tmp_path / "run")
    files = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file() and p.suffix == ".jsonl"}
    again = simulate("FedAvg()", normed, out=tmp_path / "run", resume=True, on_round=lambda _: pytest.fail("a round"))
    assert_same_run(first, again)
    assert first.rounds == again.rounds  # seconds too: they are read
    assert files == {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.name in files}


class Tied(nn.Module):
    """Two layers of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def test_tied_weights_are_saved_under_both_their_names(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    result = simulate("FedAvg()", Tied, rounds=1, out=tmp_path / "run")
    saved = load_file(tmp_path / "run/model.safetensors")
    assert set(saved) == {"first.weight", "second.weight"}
    assert torch.equal(saved["first.weight"], saved["second.weight"])
    assert torch.equal(saved["first.weight"], result.params["first.weight"])


def test_a_test_loss_that_overflows_is_null_in_every_file(tmp_path: Path) -> None:
    test = (torch.full((5, 6), 3e38), torch.arange(5) % 3)
    result = simulate("FedAvg()", lambda: nn.Linear(6, 3), rounds=1, test=test, out=tmp_path / "run")
    assert result.rounds[-1]["test_loss"] is None
    for name in ("rounds.jsonl", "summary.json"):
        text = (tmp_path / "run" / name).read_text()
        assert "NaN" not in text
        assert "Infinity" not in text
        assert json.loads(text)["test_loss"] is None


def test_what_was_reached_last_is_of_the_last_evaluation_although_it_is_no_number(tmp_path: Path) -> None:
    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        asked.append(1)
        return torch.full((len(targets),), 0.5 if len(asked) < 3 else math.nan)

    asked: list[int] = []
    test = Supervised(torch.ones(5, 6), torch.arange(5) % 3, metrics_of={"accuracy": accuracy})
    result = simulate("FedAvg()", lambda: nn.Linear(6, 3), rounds=3, test=test, out=tmp_path / "run")
    assert [line["accuracy"] for line in result.rounds] == [0.5, 0.5, None]
    assert (result.accuracy, result.best_accuracy) == (None, 0.5)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] is None


@pytest.mark.slow
def test_the_saved_model_is_the_final_one(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    result = simulate("FedAvg()", normed, out=tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for name, tensor in result.module.state_dict().items():
        assert torch.equal(saved[name], tensor)
    assert torch.equal(saved["0.weight"], result.params["0.weight"])
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["bytes_up"] == result.bytes_up


# -- kill -9 -------------------------------------------------------------------------

KILLED = {  # name: (rounds between checkpoints, lines of rounds.jsonl at which the process is killed)
    "everything": (1, (2, 6)),
    "lbgm": (3, (4, 8)),
    "local statistics": (3, (1, 5)),
}
LONG = 14


def run_slowly(name: str, folder: str, lines: int) -> None:
    """A run to be killed: its rounds take long enough to be hit at any moment, and it never ends."""

    def linger(record: dict[str, Any]) -> None:
        time.sleep(0.03 if record["round"] < lines + 4 else 600)

    every, _ = KILLED[name]
    half_run(name, Path(folder), LONG, resume=True, checkpoint_every=every, on_round=linger)


def kill_at(process: Process, folder: Path, lines: int, moment: float) -> None:
    """SIGKILL a little after so many rounds are on disk."""
    path = folder / "rounds.jsonl"
    process.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines)
    time.sleep(moment)
    process.kill()
    assert process.poll() == -signal.SIGKILL


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_very_run_it_would_have_been(tmp_path: Path) -> None:
    moments = random.Random(4)
    for attempt in (0, 1):
        with ExitStack() as stack:
            running = {
                name: stack.enter_context(Process(run_slowly, name, str(tmp_path / name), kills[attempt]))
                for name, (_, kills) in KILLED.items()
            }
            for name, process in running.items():
                kill_at(process, tmp_path / name, KILLED[name][1][attempt], moments.random() * 0.08)
    for name, (every, kills) in KILLED.items():
        assert len(rounds_of_torn(tmp_path / name)) >= kills[1]
        resumed = half_run(name, tmp_path / name, LONG, resume=True, checkpoint_every=every)
        assert_same_run(resumed, half_run(name, tmp_path / f"{name} straight", LONG))
        assert rounds_of(tmp_path / name) == rounds_of(tmp_path / f"{name} straight")
        ledgers = [(tmp_path / f / "ledger.jsonl").read_text() for f in (name, f"{name} straight")]
        assert ledgers[0] == ledgers[1]


def rounds_of_torn(folder: Path) -> list[str]:
    return (folder / "rounds.jsonl").read_text().splitlines()


def test_lines_and_drafts_that_a_kill_cut_short_are_forgotten(tmp_path: Path) -> None:
    simulate("FedAvg()", rounds=2, out=tmp_path / "run")
    with open(tmp_path / "run" / "rounds.jsonl", "a") as file:
        file.write('{"round": 3, "train_loss": 0.1}\n{"round": 4, "tra')
    with open(tmp_path / "run" / "ledger.jsonl", "a") as file:
        file.write('{"round": 3, "client": 1')
    (tmp_path / "run" / "checkpoint" / ".state.thinwire.draft").write_bytes(b"half a checkp")
    resumed = simulate("FedAvg()", rounds=4, out=tmp_path / "run", resume=True)
    assert_same_run(resumed, simulate("FedAvg()", rounds=4, out=tmp_path / "straight"))
    assert rounds_of(tmp_path / "run") == rounds_of(tmp_path / "straight")


# -- folders that cannot be used -------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 6}, "seed is 5, not 6"),
        ({"expression": "FedAvg(weights='uniform')"}, "method.weights is 'examples', not 'uniform'$"),
        ({"expression": "FedAvg(LocalSGD(0.3, batch=8))"}, r"method.local.lr is 0\.2, not 0\.3$"),
        ({"expression": "FedAvg(up=TopK(0.1))"}, r"method.up is Dense\(\), not TopK\(share=0\.1.*\)$"),
        ({"expression": "SCAFFOLD()"}, r"method is FedAvg\(.*not SCAFFOLD\("),
        ({"tasks": blobs((8, 12, 16, 20, 25, 39))}, "data is"),
        ({"tasks": blobs((8, 12, 16, 20, 24, 40, 9))}, "clients is 6, not 7"),
        ({"sample": 4}, "sample is 3, not 4"),
        ({"dropout": 0.1}, r"dropout is 0\.0, not 0\.1"),
        ({"network": Network(3.0)}, r"network is None, not Network\(mbit=3\.0"),
        ({"model": lambda: nn.Sequential(nn.Linear(6, 3))}, "parameters is 83, not 21"),
        ({"model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))}, "model is"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_the_checkpoint_of_another_run_is_refused_and_the_difference_named(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    simulate("FedAvg()", rounds=2, out=tmp_path / "run")
    before = rounds_of(tmp_path / "run")
    with pytest.raises(RunError, match=f"another run: its {named}"):
        simulate(**{"expression": "FedAvg()", "rounds": 3, "out": tmp_path / "run", "resume": True} | change)
    assert rounds_of(tmp_path / "run") == before
    assert len(simulate("FedAvg()", rounds=3, out=tmp_path / "run", resume=True).rounds) == 3


def test_a_checkpoint_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    simulate("FedAvg(up=LBGM())", rounds=2, out=tmp_path / "run")
    path = tmp_path / "run" / "checkpoint" / "state.thinwire"
    good = path.read_bytes()
    for length in [0, 1, 2, 10, *range(50, len(good), 997), len(good) - 1]:
        path.write_bytes(good[:length])
        with pytest.raises(RunError, match="damaged"):
            simulate("FedAvg(up=LBGM())", rounds=3, out=tmp_path / "run", resume=True)
    path.write_bytes(b"\x80\x04" + good[2:])
    with pytest.raises(RunError, match=r"state\.thinwire is damaged .*delete it to start this run anew"):
        simulate("FedAvg(up=LBGM())", rounds=3, out=tmp_path / "run", resume=True)
    path.write_bytes(good)
    assert len(simulate("FedAvg(up=LBGM())", rounds=3, out=tmp_path / "run", resume=True).rounds) == 3


def test_a_checkpoint_without_its_records_is_refused(tmp_path: Path) -> None:
    simulate("FedAvg()", rounds=3, out=tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(RunError, match=r"rounds\.jsonl does not hold the rounds up to the checkpoint's \(3\)"):
        simulate("FedAvg()", rounds=4, out=tmp_path / "run", resume=True)


def hold(folder: str) -> None:
    with lock_folder(Path(folder)):
        print("held")
        time.sleep(600)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"), pytest.raises(RunError, match=r"run is in use by another run: choose another"):
        simulate("FedAvg()", out=tmp_path / "run")
    with Process(hold, str(tmp_path / "other")) as holder:
        holder.until(lambda: holder.stdout == "held\n")
        with pytest.raises(RunError, match="in use by another run"):
            simulate("FedAvg()", out=tmp_path / "other")
    simulate("FedAvg()", out=tmp_path / "other", resume=True)  # a killed process lets go


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    simulate("FedAvg()", rounds=2, out=tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already: resume it, or choose another folder"):
        simulate("FedAvg()", rounds=2, out=tmp_path / "run")


def test_resuming_where_nothing_is_starts_a_run(tmp_path: Path) -> None:
    fresh = simulate("FedAvg()", rounds=2, out=tmp_path / "run", resume=True)
    assert_same_run(fresh, simulate("FedAvg()", rounds=2))


# -- workers, and random numbers -----------------------------------------------------------


@pytest.mark.parametrize(
    "model", tiers([normed, random_layers, mlp], fast=1, slow=2, name=lambda model: model.__name__)
)
@pytest.mark.parametrize(
    "method",
    [
        "FedAvg()",
        "LUAR(SCAFFOLD(up=ErrorFeedback(TopK(0.3)), down=EF21(TopK(0.3))), recycle=1)",
        "MOON(mu=0.5)",
        "FedGen(hidden=4, noise=2, steps=3)",
    ],
)
def test_the_number_of_workers_changes_nothing(method: str, model: Any) -> None:
    # Random layers draw from torch's one generator: two and three workers are processes there, threads elsewhere.
    test = blobs((2345,), seed=0)[0]  # more than one job of evaluation
    one, *more = [simulate(method, model, workers=n, rounds=3, sample=5, dropout=0.1, test=test) for n in (1, 2, 3)]
    for other in more:
        assert_same_run(one, other)


def test_a_model_with_random_layers_is_repeated_and_depends_on_the_seed() -> None:
    one, two = (simulate("FedAvg()", random_layers, rounds=2) for _ in range(2))
    assert_same_run(one, two)
    module = random_layers()
    kept, dropped = ([simulate("FedAvg()", module.train(mode), 1, seed=s) for s in (1, 2)] for mode in (False, True))
    for a, b in zip(kept, dropped, strict=True):
        assert_same_run(a, b)  # the mode in which a model is given does not matter
    assert not torch.equal(kept[0].params.flat, kept[1].params.flat)


def test_dropout_masks_differ_between_clients_and_rounds() -> None:
    seen: list[list[bool]] = []

    class Watched(nn.Dropout):
        def forward(self, input: Tensor) -> Tensor:
            out = super().forward(input)
            if self.training and len(input) == 4:
                seen.append((out == 0).flatten().tolist())
            return out

    module = nn.Sequential(Watched(0.5), nn.Linear(6, 3))
    tasks = [Supervised(torch.ones(4, 6), torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    simulate(FedAvg(LocalSGD(batch=4)), module, 3, tasks=tasks, test=None)
    assert len(seen) == 9
    assert len({tuple(mask) for mask in seen}) == 9


@pytest.mark.parametrize("model", [mlp, random_layers])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_global_generators_are_left_as_they_were(model: Any, workers: int) -> None:
    torch.manual_seed(123)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first = simulate("LUAR(FedAvg(up=RandK(0.3)), recycle=1)", model, rounds=2, workers=workers, dropout=0.2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    torch.manual_seed(77)
    again = simulate("LUAR(FedAvg(up=RandK(0.3)), recycle=1)", model, rounds=2, workers=workers, dropout=0.2)
    assert_same_run(first, again)


# -- many clients trained as one -------------------------------------------------------------

SMALL = (3, 5, 4, 5, 2, 5, 5, 1, 4, 5)
TOGETHER = [
    "FedAvg(LocalSGD(batch=2, epochs=2))",
    "FedAvg(LocalSGD(batch=None, prox=0.3, momentum=0.5, weight_decay=0.01), weights='uniform')",
    "FLSS(FedAvg(LocalSGD(batch=2)), rank=1, start=2, every=2, project='gradient')",
    "Intrinsic(8, local=LocalSGD(batch=2), varying=True, epoch=2)",
    "LUAR(SCAFFOLD(LocalSGD(batch=2), up=Half()), recycle=1)",
    "SCAFFOLD(LocalSGD(batch=2, momentum=0.5), option='I')",
    "SCAFFOLD(LocalSGD(batch=2, warmup=3, clip=0.5))",
    "SCAFFOLD(LocalAdam(0.02, batch=2, eps=0.001, keep=True), option='I')",
    "FedAvg(LocalAdamW(0.02, batch=2, epochs=2, eps=0.001, warmup=3, clip=1.0))",
    "FedDC(LocalSGD(batch=2), alpha=0.3)",
    "MOON(LocalSGD(batch=2), mu=0.5)",
    "FedAvgLM(LocalSGD(batch=2, momentum=0.6))",
    "DOMO(0.8, LocalSGD(batch=2, momentum=0.6), intra=True)",
    "PruneFL(FedAvg(LocalSGD(batch=2)), every=1000)",
]


@pytest.mark.parametrize("method", tiers(TOGETHER, slow=5))
def test_clients_trained_as_one_are_clients_trained_one_by_one_to_rounding(method: str) -> None:
    each, one = (simulate(method, tasks=blobs(SMALL), sample=7, plan=plan) for plan in ("each", "together"))
    torch.testing.assert_close(each.params.flat, one.params.flat, atol=1e-5, rtol=1e-4)
    assert [e.total for e in each.ledger] == [e.total for e in one.ledger]
    for a, b in zip(each.rounds, one.rounds, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-5)
    frozen = mlp()
    frozen[0].requires_grad_(False)  # type: ignore[index,operator]
    each, one = (
        simulate(method.replace("recycle=1", "recycle=0"), frozen, 2, plan=plan) for plan in ("each", "together")
    )
    torch.testing.assert_close(each.params.flat, one.params.flat, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", TOGETHER)
def test_a_cohort_on_a_gpu_is_that_of_a_cpu_to_rounding(method: str) -> None:
    here = simulate(method, tasks=blobs(SMALL), sample=7)
    for plan in ("each", "together"):
        there = simulate(method, tasks=blobs(SMALL), sample=7, plan=plan, device="cuda")
        torch.testing.assert_close(there.params.flat, here.params.flat, atol=1e-4, rtol=1e-3)
        assert [e.total for e in there.ledger] == [e.total for e in here.ledger]


@pytest.mark.parametrize("method", tiers(TOGETHER, slow=5))
def test_clients_trained_as_one_are_the_same_with_any_number_of_workers(method: str) -> None:
    options: dict[str, Any] = {"tasks": blobs((3, 4, 5) * 20), "sample": 60, "rounds": 2, "plan": "together"}
    assert_same_run(simulate(method, workers=1, **options), simulate(method, workers=3, **options))


def test_a_resumed_run_keeps_its_plan(tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": blobs(SMALL), "sample": 7}
    straight = simulate(TOGETHER[0], rounds=4, plan="together", **options)
    simulate(TOGETHER[0], rounds=2, plan="together", out=tmp_path / "run", **options)
    assert_same_run(simulate(TOGETHER[0], out=tmp_path / "run", resume=True, plan=None, **options), straight)


def test_models_that_cannot_be_trained_as_one_are_not() -> None:
    for model in (normed, random_layers):
        assert_same_run(simulate("FedAvg()", model, plan=None), simulate("FedAvg()", model, plan="each"))


class Attention(nn.Module):
    """What torch.func has no batching rule for: it warns, and goes one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.drop = nn.Linear(1, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x[:, None, :, None])
        return self.drop(nn.functional.scaled_dot_product_attention(h, h, h, is_causal=True).mean((1, 2)))


def test_a_model_without_batching_rules_is_trained_client_by_client_and_nothing_is_said(monkeypatch) -> None:
    monkeypatch.setattr("thinwire.federated.pool.WORTH", 0)
    monkeypatch.setattr("thinwire.federated.pool.MARGIN", float("inf"))  # together, where it is possible at all
    for model, plan in ((mlp, "together"), (Attention, "each")):
        for asked in (None, "measured"):
            run = Simulation(FedAvg(), model, blobs(), workers=1, plan=asked)
            with run.pool:
                run.step()
            assert run.plan == plan


def gelu(width: int) -> nn.Module:
    """Linear layers that the loops in C do not know: 8 x width + 3 parameters are trained."""
    return nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("make", "plan"),
    [
        (lambda: nn.Linear(4, 3), "together"),  # in C, however little there is to do
        (lambda: gelu(16), "together"),
        (lambda: gelu(62_501), "each"),  # 500,011 parameters
        (lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 4), nn.Flatten()), "each"),
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)), "each"),
    ],
)
def test_the_plan_is_a_matter_of_model_and_sizes_and_no_clock_is_read(monkeypatch, make, plan) -> None:
    def never() -> float:
        raise AssertionError("the clock was read")

    monkeypatch.setattr("thinwire.federated.pool.WORTH", 0)
    monkeypatch.setattr("thinwire.federated.pool.time.thread_time", never)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 4, generator=g), torch.randint(3, (12,), generator=g)
    tasks = [Supervised(x, y, part) for part in torch.arange(12).split(3)]
    run = Simulation(FedAvg(), make, tasks, workers=1)
    with run.pool:
        run.step()
    assert run.plan == plan


@pytest.mark.parametrize(("vocabulary", "plan"), [(9, "together"), (62_500, "each")])  # 16 a word, and 51 parameters
def test_texts_are_trained_as_one_in_c_unless_each_client_holds_a_large_model(vocabulary, plan) -> None:
    g = torch.Generator().manual_seed(0)
    words, labels = torch.randint(9, (12, 5), generator=g), torch.randint(3, (12,), generator=g)
    tasks = [Supervised(words, labels, part) for part in torch.arange(12).split(3)]
    run = Simulation(FedAvg(), lambda: tw.models.fasttext(vocabulary, 3), tasks, workers=1)
    with run.pool:
        run.step()
    assert run.plan == (plan if native.library() is not None else "each")


# -- augmentation ----------------------------------------------------------------------------


def pictures(augment: tuple[Any, ...], test: bool = False) -> list[Supervised]:
    """Six clients with ten pictures each of 6 by 6; a class is a bright column on the left, in the middle, right."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(120, (60, 1, 6, 6), generator=generator, dtype=torch.uint8)
    targets = torch.randint(3, (60,), generator=generator)
    inputs[torch.arange(60), 0, :, 2 * targets] = 255
    parts = [torch.arange(60)] if test else torch.arange(60).split(10)
    return [Supervised(inputs, targets, part, mean=(0.3,), std=(0.3,), augment=augment) for part in parts]


def seen(augment: tuple[Any, ...], **options: Any) -> tw.Result:
    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    return simulate("FedAvg(LocalSGD(0.05))", net, tasks=pictures(augment), test=pictures((), True)[0], **options)


def test_augmented_runs_are_the_same_with_any_number_of_workers_and_when_resumed(tmp_path: Path) -> None:
    both = (Crop(1), Flip())
    straight = seen(both, workers=1)
    assert_same_run(straight, seen(both, workers=3))
    assert_same_run(straight, seen(both, plan="together"))  # which it cannot be
    seen(both, rounds=2, out=tmp_path / "run")
    assert_same_run(straight, seen(both, rounds=4, out=tmp_path / "run", resume=True))
    with pytest.raises(RunError, match="data"):
        seen((Crop(1),), rounds=5, out=tmp_path / "run", resume=True)


def test_augmentation_changes_training_batches_and_nothing_else() -> None:
    plain, augmented = (pictures(augment)[0] for augment in ((), (Crop(2),)))
    which, generator = torch.arange(10), torch.Generator().manual_seed(0)
    assert torch.equal(plain.batch(which)[0], augmented.batch(which)[0])  # to be evaluated
    changed = augmented.batch(which, generator)[0]
    black = torch.tensor(-1.0)  # (0 - .3) / .3: zeros are added before pictures are normalised
    assert torch.isclose(changed, black).all(dim=(1, 2, 3)).sum() == 0
    assert torch.isclose(changed, black).any(dim=(1, 2, 3)).sum() >= 8
    assert not torch.equal(seen(()).params.flat, seen((Flip(),)).params.flat)


def test_what_is_no_picture_is_not_augmented() -> None:
    with pytest.raises(ValueError, match=r"augment=\[Flip\(\)\] changes pictures.*these inputs are \[60, 6\]"):
        Supervised(torch.zeros(60, 6), torch.zeros(60), augment=(Flip(),))


# -- the downlink is one stream --------------------------------------------------------------


@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize(
    "method",
    [
        "FedAvg()",
        "LUAR(FedAvg(), recycle=1)",
        "FedAvg(down=EF21(TopK(0.1)))",
        "FedAvg(down=EF21(TopK(0.6)))",
        "FedAvg(down=Half())",
        "LUAR(SCAFFOLD(down={'c': EF21(TopK(0.1)), 'x': Half()}), recycle=1)",
        "DOMO(0.8)",
        "LUAR(DOMO(0.8, momentum='sent', down=Half()), recycle=1)",
        "PruneFL(FedAvg(), every=2, share=0.5)",
    ],
)
def test_a_client_that_was_away_ends_with_the_view_of_those_that_were_not(method: str, model: Any) -> None:
    run = Simulation(tw.parse(method, {"lr": 0.2}), model, blobs(), sample=2, seed=3, workers=1, plan="each")
    stream, key = run.stream, Key(3)
    views, blobs_sent, by_messages, by_snapshot = [stream.view], [], 0, 0
    with run.pool:
        for newest in range(1, 9):
            run.step()
            views.append(stream.view)
            blobs_sent.append(len(stream.log[-1].blob))
            expected = tw.dumps(stream.view)
            whole = Parcel(True, [stream.snapshot()])
            for version, view in enumerate(views):
                parcel = stream.parcel(version)
                parcels = [parcel, whole]
                if version >= stream.since:
                    parcels.append(Parcel(False, [m for m in stream.log if m.version > version]))
                for each in parcels:
                    assert tw.dumps(catch_up(run.algorithm, stream.form, view, each, key)) == expected
                assert parcel.size <= whole.size + SLACK
                if version > 0:
                    assert parcel.size <= sum(blobs_sent[version:])
                by_messages += not parcel.snapshot and newest > version
                by_snapshot += parcel.snapshot
            assert stream.parcel(newest) == Parcel(False, [])
    assert by_messages > 0
    assert by_snapshot > 0 or "EF21" not in method


def test_a_client_that_was_away_is_billed_for_what_it_got() -> None:
    # Client 0 is away in rounds 2 and 3; client 1 never; client 2 comes in round 6 for the first time.
    cohorts: list[Any] = [([0, 1], set()), ([1], set()), ([1], set()), ([0, 1], set()), ([1], set()), ([1, 2], set())]

    def bill(method: str) -> dict[int, list[int]]:
        run = chosen(method, cohorts)
        return {c: [e.payload for e in run.ledger.of("down") if e.client == c] for c in (0, 1, 2)}

    # One message of 12 + 4 x 83 bytes holds everything, whatever was missed.
    assert bill("FedAvg()") == {0: [344, 344], 1: [344] * 6, 2: [344]}
    # Halves: version 1, lists of fields, field and layers 6, all layers 1, 4 tensors of 3, 83 numbers of 2.
    assert bill("FedAvg(down=Half())") == {0: [186, 186], 1: [186] * 6, 2: [186]}
    # Differences: at first a snapshot, of the view alone, which is the receiver's estimate (16 + 332); those that
    # follow add up. 5 of 83 values and where they are take about 100 bytes.
    found = bill("FedAvg(down=EF21(TopK(0.05)))")
    assert found[1][0] == 348
    assert all(88 <= size <= 112 for size in found[1][1:])
    assert found[0] == [348, sum(found[1][1:4])]
    assert found[2] == [348]


# -- clients that do not answer ---------------------------------------------------------------

STATEFUL = [
    "FedAvg(up=LBGM(ErrorFeedback(TopK(0.3)), threshold=0.6), buffers='local')",
    "LUAR(SCAFFOLD(up=ErrorFeedback(TopK(0.3)), down=EF21(TopK(0.3)), opt=Adam(0.03)), recycle=1)",
    "FedDyn(up=ErrorFeedback(TopK(0.3)))",
    "MOON(mu=0.5, buffers='local')",
    "FedMut(alpha=1.0)",
    "DOMO(0.8, intra=True)",
    "FedAvg(LocalAdamW(0.02, keep=True))",
]


def everything_held(run: Simulation) -> list[bytes]:
    states = [run.server, run.buffers, run.stream.state(), dict(run.states.ends)]
    return [tw.dumps(state) for state in states]


@pytest.mark.parametrize("method", STATEFUL)
def test_a_client_that_drops_out_is_billed_down_and_otherwise_was_not_there(method: str) -> None:
    absent: list[Any] = [([0, 2], set()), ([0, 1], set()), ([1, 4], set()), ([0, 2], set())]
    silent: list[Any] = [([0, 2], set()), ([0, 1, 2], {2}), ([1, 2, 4], {2}), ([0, 2], set())]
    was, never = chosen(method, silent, normed), chosen(method, absent, normed)
    assert everything_held(was) == everything_held(never)
    # Not acknowledged, so sent again in round 4.
    assert list(was.ledger.of(round=4)) == list(never.ledger.of(round=4))
    for t in (2, 3):
        extra = [e for e in was.ledger.of(round=t) if e.client == 2]
        assert [(e.direction, e.retries) for e in extra] == [("down", 0)]
        assert extra[0].payload > 0
        assert was.records[t - 1]["lost_replies"] == 1
        assert was.records[t - 1]["down_bytes"] == never.records[t - 1]["down_bytes"] + extra[0].total
        assert was.records[t - 1]["up_bytes"] == never.records[t - 1]["up_bytes"]


@pytest.mark.parametrize("method", STATEFUL)
def test_a_reply_that_comes_too_late_costs_its_bytes_and_moves_nothing(method: str) -> None:
    cohorts: list[Any] = [([0, 2, 3], set()), ([0, 2], set()), ([2, 3], set()), ([0, 2, 4], set())]
    absent: list[Any] = [([0, 3], set()), ([0], set()), ([3], set()), ([0, 4], set())]
    rates = (1.0, 1.0, 0.001, 1.0, 1.0, 1.0)
    late = chosen(method, cohorts, normed, network=Network(rates, deadline=0.5))
    never = chosen(method, absent, normed)
    assert everything_held(late) == everything_held(never)
    assert late.states.version(2) == 0
    assert late.clock == 2.0  # every round waits for the client that does not come
    for record in late.records:
        up = [e for e in late.ledger.of("up", record["round"]) if e.client == 2]
        assert [(e.used, e.payload > 12) for e in up] == [(False, True)]
        assert record["lost_replies"] == 1
        assert record["up_bytes"] == never.ledger.bytes("up", record["round"]) + up[0].total
    assert all(e.used for e in late.ledger if e.client != 2)


def test_the_clock_is_that_of_the_slowest_reply() -> None:
    # A first round of FedAvg: 344 + 63 bytes down, 344 + 93 up; later 344 + 71 down. Client 1 at first:
    # 437 * 8 / 1e5 + 407 * 8 / 2e5 = 0.05124 s at 0.1 Mbit/s up and 0.2 down. Client 5 trains 5 steps of 0.5 s, and
    # sends at 1 Mbit/s: 437 * 8 / 1e6 = 0.003496 s. 0.25 s each way.
    network = Network((1.0, 0.1, 1.0, 1.0, 1.0, 1.0), down=0.2, latency=0.25, step=0.5)
    run = chosen("FedAvg()", [([1], set()), ([5], set()), ([1, 5], set())], network=network)
    assert run.records[0]["clock"] == pytest.approx(0.05124 + 0.5 + 2 * 0.5)
    assert run.records[1]["clock"] - run.records[0]["clock"] == pytest.approx(0.003496 + 0.01628 + 0.5 + 5 * 0.5)
    assert run.records[2]["clock"] - run.records[1]["clock"] == pytest.approx(0.003496 + 0.0166 + 0.5 + 5 * 0.5)


@pytest.mark.parametrize("method", ["FedAvg()", *STATEFUL])
def test_a_round_in_which_nobody_answers_leaves_the_model_as_it_was(method: str) -> None:
    nobody: list[Any] = [([0, 1], set()), ([1, 2], {1, 2}), ([0, 1], set())]
    run, before = chosen(method, nobody, normed), chosen(method, nobody[:1], normed)
    quiet = run.records[1]
    assert (quiet["train_loss"], quiet["lost_replies"], quiet["up_bytes"], quiet["clients"]) == (None, 2, 0, 2)
    assert quiet["down_bytes"] > 700
    assert run.records[2]["train_loss"] is not None
    still = chosen(method, nobody[:2], normed)
    assert tw.dumps([still.server, still.buffers]) == tw.dumps([before.server, before.buffers])
    assert tw.dumps(still.states.ends) == tw.dumps(before.states.ends)


def test_a_run_in_which_nobody_ever_answers_returns_the_first_model() -> None:
    module = mlp()
    result = simulate("FedAvg()", module, 3, dropout=0.9999999)
    assert torch.equal(result.params.flat, tw.Params.trainable(module).flat)
    assert (result.bytes_up, result.rounds[-1]["lost_replies"]) == (0, 3)
    assert result.summary()["train_loss"] is None


# -- training that diverges ---------------------------------------------------------------------

POISONED = False


class Poisonable(Supervised):
    """A client whose loss is NaN while POISONED."""

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        loss = super().loss(module, batch)
        return loss * float("nan") if POISONED else loss


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_is_no_number_names_round_and_client_and_the_folder_can_be_resumed(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[Any] = blobs()
    tasks[4] = Poisonable(tasks[4].inputs, tasks[4].targets, tasks[4].indices)
    options: dict[str, Any] = {"tasks": tasks, "rounds": 8, "sample": 2, "checkpoint_every": 2, "workers": workers}
    straight = simulate("FedAvg(up=LBGM())", **options)
    first = min(e.round for e in straight.ledger if e.client == 4)
    assert first == FIRST_OF_CLIENT_4
    monkeypatch.setattr(sys.modules[__name__], "POISONED", True)
    with pytest.raises(NonFinite, match=f"round {first}, client 4: the loss became nan; lower lr=0.2 or clip"):
        simulate("FedAvg(up=LBGM())", out=tmp_path / "run", **options)
    assert len(rounds_of(tmp_path / "run")) == first - 1
    monkeypatch.setattr(sys.modules[__name__], "POISONED", False)
    assert_same_run(simulate("FedAvg(up=LBGM())", out=tmp_path / "run", resume=True, **options), straight)


FIRST_OF_CLIENT_4 = 4


def test_a_rate_that_is_too_high_is_said_to_be() -> None:
    with pytest.raises(
        NonFinite, match=r"round 1, client 0: the loss became nan; lower lr=1e\+30 or clip the gradients"
    ):
        simulate(FedAvg(LocalSGD(lr=1e30, epochs=2)), sample=6)
    # After one step nothing is infinite yet.
    with pytest.raises(NonFinite, match=r"round 1, client 0: update has numbers beyond 8e\+28; lower lr"):
        simulate(FedAvg(LocalSGD(lr=1e30)), sample=6)


# -- bytes -------------------------------------------------------------------------------------


def test_the_bytes_of_a_small_run_are_these() -> None:
    # Dense: version 1, list of fields 2, field 2, all layers 1, tensor 3, padding 3, 83 numbers of 4 bytes.
    # Header down: version 1, list 2, run 18, incarnation 10, seed, clients, client, round, base 2 each, mbit 9,
    # snapshot 1, list 2, a piece's list 2, its round 2, its tensor 4, and the state 2, or 10 where there was an answer.
    # Header up: version 1, list 2, run 18, incarnation 10, client, round, base 2 each, mbit 9, held 1, examples 2,
    # loss 9, steps 2, seconds 9, tensor 4, the marks of call and state 10 each.
    result = simulate("FedAvg()", rounds=3, sample=2)  # of clients 1 and 5 twice, then of 0 and 5
    assert bills(result, "down") == [[(344, 63), (344, 63)], [(344, 71), (344, 71)], [(344, 63), (344, 71)]]
    assert bills(result, "up") == [[(344, 93), (344, 93)]] * 3
    assert (result.bytes_up, result.bytes_down) == (2622, 2466)
    assert [(r["up_floats"], r["down_floats"]) for r in result.rounds] == [(166.0, 166.0)] * 3


def test_the_bytes_of_recycled_layers_are_these() -> None:
    # Down: one more tensor (3) of four bits (1). Up: the same instead of "all layers" (-1), and a layer less:
    # 11 + 1 + 4 x (83 - 48) or 11 + 1 + 4 x (83 - 24).
    result = simulate("LUAR(FedAvg(), recycle=1, select='round-robin')", rounds=4, sample=2)
    assert bills(result, "down") == [[(345, 63)] * 2, [(345, 71)] * 2, [(345, 63), (345, 71)], [(345, 63)] * 2]
    assert bills(result, "up") == [[(344, 93)] * 2, [(248, 93)] * 2, [(152, 93)] * 2, [(248, 93)] * 2]
    assert (result.bytes_up, result.bytes_down) == (2728, 3288)


def test_the_bytes_of_looking_back_are_these() -> None:
    # Whole: a list (2) around the tensor. A scalar: version 1, lists 4, all layers 1, tensor 2, a number of 4.
    # The header of a scalar says its length in a byte less.
    result = simulate("FedAvg(up=LBGM(threshold=1.0))", rounds=3, sample=6)
    assert bills(result, "up") == [[(344, 93)] * 6, [(12, 92)] * 6, [(12, 92)] * 6]
    assert (result.bytes_up, result.bytes_down) == (3870, 7422)
    assert [r["up_floats"] for r in result.rounds] == [498.0, 6.0, 6.0]


def test_the_bytes_of_statistics_are_these() -> None:
    # 99 parameters and 16 statistics: version 1, list 2, two fields of 6, padding 1.
    assert bills(simulate("FedAvg()", normed, 1, sample=1), "up") == [[(476, 93)]]
    # Kept by the clients: 12 + 4 x 99.
    assert bills(simulate("FedAvg(buffers='local')", normed, 1, sample=1), "up") == [[(408, 93)]]


@pytest.mark.parametrize("name", RESUMED)
def test_records_are_sums_of_the_ledger(name: str) -> None:
    expression, model, options = RESUMED[name]
    result = simulate(expression, MODELS[model], **options)
    for record in result.rounds:
        for direction in ("up", "down"):
            entries = result.ledger.of(direction, record["round"])  # type: ignore[arg-type]
            assert record[f"{direction}_payload"] == sum(e.payload for e in entries)
            assert record[f"{direction}_framing"] == sum(e.framing for e in entries)
            assert record[f"{direction}_bytes"] == sum(e.payload + e.framing for e in entries)
            assert record[f"{direction}_floats"] == sum(e.floats for e in entries)
        assert len(result.ledger.of("down", record["round"])) == 3  # the cohort
        answered = [e for e in result.ledger.of("up", record["round"]) if e.used]
        assert record["lost_replies"] == 3 - len(answered)
        by_client = {e.client: 0 for e in result.ledger.of(round=record["round"])}
        for entry in result.ledger.of(round=record["round"]):
            by_client[entry.client] += entry.payload + entry.framing
        assert record["slowest_bytes"] == max(by_client.values())
    assert result.bytes_up == result.ledger.bytes("up")
    assert result.bytes_down == result.ledger.bytes("down")
    assert result.summary()["bytes_up"] + result.summary()["bytes_down"] == result.ledger.bytes()


# -- what of a model travels ----------------------------------------------------------------------


def test_frozen_parameters_are_neither_sent_nor_changed() -> None:
    module = mlp()
    module[0].requires_grad_(False)  # type: ignore[index,operator]
    first = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    result = simulate("LUAR(FedAvg(), recycle=0)", module, 2, sample=1)
    assert result.params.names == ("2.weight", "2.bias")
    assert bills(result, "up") == [[(120, 92)]] * 2  # 12 + 4 x 27
    for name in ("0.weight", "0.bias"):
        assert torch.equal(result.module.state_dict()[name], first[name])
    assert not torch.equal(result.module.state_dict()["2.weight"], first["2.weight"])


def test_parameters_that_are_shared_are_sent_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(torch.relu(self.one(x)))[:, :3]

    result = simulate("FedAvg()", Tied, 2, sample=1)
    assert result.params.names == ("one.weight",)
    assert bills(result, "up") == [[(156, 93)]] * 2  # 12 + 4 x 36
    assert torch.equal(result.module.one.weight, result.module.two.weight)  # type: ignore[union-attr,arg-type]


class Gauge(nn.Module):
    """Remembers, in a float buffer, the mean of the last batch it was trained on; counts calls in an integer one."""

    level: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.register_buffer("level", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.level.add_(x.mean())
                self.calls.add_(1)
        return self.line(x)


def gauge_tasks() -> list[Any]:
    return [(torch.full((n, 2), value), torch.zeros(n, dtype=torch.long)) for n, value in ((1, 2.0), (3, 6.0))]


@pytest.mark.parametrize(("weights", "levels"), [("examples", [5.0, 10.0]), ("uniform", [4.0, 8.0])])
def test_float_buffers_are_averaged_like_the_model_and_sent_out_again(weights: Any, levels: list[float]) -> None:
    # Clients with 1 and 3 examples of 2 and 6: (2 + 3 x 6) / 4 = 5, then 5 + 5.
    run = Simulation(FedAvg(LocalSGD(batch=None), weights=weights), Gauge, gauge_tasks(), workers=1, plan="each")
    with run.pool:
        for level in levels:
            run.step()
            assert run.buffers is not None
            assert run.buffers.flat.tolist() == [pytest.approx(level), run.round]  # a call in each round
    assert [e.floats for e in run.ledger.of("up")] == [8.0] * 4  # 6 parameters, a statistic and a counter
    module = run.result().module
    assert module.level.tolist() == [pytest.approx(levels[-1])]  # type: ignore[union-attr,operator]
    assert torch.equal(module.calls, torch.tensor([2]))  # type: ignore[arg-type]


def test_local_buffers_stay_with_their_client() -> None:
    run = Simulation(FedAvg(LocalSGD(batch=None), buffers="local"), Gauge, gauge_tasks(), workers=1, plan="each")
    with run.pool:
        for t in (1, 2):
            run.step()
            assert run.buffers is None
            held = [run.states.get(i).own.buffers.flat.tolist() for i in (0, 1)]  # type: ignore[union-attr]
            assert held == [[2.0 * t, t], [6.0 * t, t]]
    assert [e.floats for e in run.ledger] == [6.0] * 8


# -- evaluation ---------------------------------------------------------------------------------------


def identity() -> nn.Module:
    module = nn.Linear(2, 2, bias=False)
    nn.init.eye_(module.weight)
    return module


def points(*targets: int) -> tuple[Tensor, Tensor]:
    """As many points for which the identity says class 0, with a margin of 2."""
    return torch.tensor([[2.0, 0.0]]).repeat(len(targets), 1), torch.tensor(targets)


def test_the_accuracy_of_a_known_model_is_known() -> None:
    # -log softmax([2, 0]) = 0.126928 and 2.126928.
    tests = [points(0), points(0, 1), points(1, 1, 1)]
    result = simulate(
        FedAvg(LocalSGD(lr=1e-12)),
        identity(),
        1,
        tasks=[points(0), points(1), points(0)],
        test=points(0, 0, 0, 1),
        client_tests=tests,
    )
    record = result.rounds[0]
    assert record["accuracy"] == 0.75 == result.accuracy == result.best_accuracy
    assert record["test_loss"] == pytest.approx(0.626928, abs=1e-6)
    assert record["client_accuracy"] == pytest.approx(0.5)  # of 1, 1/2 and 0
    assert record["client_accuracy_p10"] == pytest.approx(0.1)
    assert record["client_loss"] == pytest.approx((0.126928 + 1.126928 + 2.126928) / 3, abs=1e-6)


def test_evaluation_takes_the_averaged_statistics_and_does_not_move_them() -> None:
    tasks = [(torch.full((4, 2), 3.0) + torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]))]
    module = nn.Sequential(nn.BatchNorm1d(2, affine=False, momentum=1.0), identity())
    # The statistics become the mean 4.5 and the variance 5/3 of the one batch: (7 - 4.5) / sqrt(5/3) = 1.936 and
    # (2 - 4.5) / sqrt(5/3) = -1.936 in evaluation.
    result = simulate(
        FedAvg(LocalSGD(lr=1e-12, batch=None)),
        module,
        3,
        tasks=tasks,
        sample=1,
        test=(torch.tensor([[7.0, 2.0]]), torch.tensor([0])),
    )
    assert result.module.eval()(torch.tensor([[7.0, 2.0]])).tolist() == [
        [pytest.approx(1.936488, abs=1e-4), pytest.approx(-1.936488, abs=1e-4)]
    ]
    assert result.rounds[-1]["test_loss"] == pytest.approx(0.020583, abs=1e-6)  # log(1 + exp(-3.872983))


def test_rounds_are_evaluated_as_often_as_asked_and_after_the_last() -> None:
    result = simulate("FedAvg()", rounds=7, evaluate_every=3)
    assert [r["round"] for r in result.rounds if "accuracy" in r] == [3, 6, 7]
    assert "accuracy" not in simulate("FedAvg()", rounds=2, test=None).rounds[-1]
    often = simulate("FedAvg()", rounds=7)
    assert_same_model(result, often)
    assert result.rounds[2]["accuracy"] == often.rounds[2]["accuracy"]


# -- models and data as they are given ------------------------------------------------------------------


def test_a_model_given_as_a_module_is_not_changed() -> None:
    module = normed().eval()
    module[0].bias.requires_grad_(False)  # type: ignore[index,union-attr]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    addresses = [p.data_ptr() for p in module.parameters()]
    result = simulate("SCAFFOLD()", module, 3, workers=2)
    assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in state.items())
    assert [p.data_ptr() for p in module.parameters()] == addresses
    assert all(p.grad is None for p in module.parameters())
    assert [p.requires_grad for p in module.parameters()] == [True, False, True, True, True, True]
    assert not any(m.training for m in module.modules())
    assert result.module is not module
    with torch.no_grad():
        result.module[0].weight.zero_()  # type: ignore[index,union-attr,operator]
    assert result.params["0.weight"].norm() > 0


def test_a_module_and_the_function_that_makes_it_are_the_same_run() -> None:
    made: list[nn.Module] = []

    def factory() -> nn.Module:
        made.append(mlp())
        return made[-1]

    assert_same_run(simulate("FedAvg()", factory), simulate("FedAvg()", made[0]))
    assert len(made) == 1


def test_data_sets_and_pairs_of_tensors_are_tasks() -> None:
    tasks = blobs()
    pairs: list[Any] = [(t.inputs[t.indices], t.targets[t.indices]) for t in tasks]
    sets: list[Any] = [torch.utils.data.TensorDataset(*pair) for pair in pairs]
    plain = simulate("FedAvg()")
    assert_same_run(simulate("FedAvg()", tasks=pairs), plain)
    assert_same_run(simulate("FedAvg()", tasks=sets), plain)
    arrays = [(inputs.numpy(), targets.numpy()) for inputs, targets in pairs]
    assert_same_run(simulate("FedAvg()", tasks=arrays), plain)


class Texts(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Four sequences, drawn when they are read, and what follows each of their words."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return torch.randn(5), torch.arange(5) + i


def test_a_data_set_is_read_once_and_alike_and_its_targets_may_be_sequences() -> None:
    before = torch.get_rng_state()
    one, other = as_task(Texts()), as_task(Texts())
    assert torch.equal(before, torch.get_rng_state())
    assert isinstance(one, Supervised)
    assert one.targets.tolist() == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [3, 4, 5, 6, 7]]
    (inputs, _), (again, _), (elsewhere, _) = (task.batch(torch.arange(4)) for task in (one, one, other))
    assert torch.equal(inputs, again)
    assert torch.equal(inputs, elsewhere)


@pytest.mark.parametrize("x", [([1.0, 2.0], [0, 1]), 3, [1, 2], (torch.zeros(3, 2),)], ids=str)
def test_what_is_no_task_is_refused_with_what_is(x: Any) -> None:
    with pytest.raises(ValueError, match="is not a task: give a Task, a Dataset of"):
        as_task(x)


def test_a_dataset_without_examples_is_named() -> None:
    with pytest.raises(ValueError, match="client 3: the data set has no examples: leave it out, or give it some"):
        as_task(torch.utils.data.TensorDataset(torch.zeros(0, 2), torch.zeros(0)), "client 3")


def test_inputs_and_targets_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 inputs and 2 targets are no pairs: give a target for each input"):
        as_task((torch.zeros(3, 2), torch.zeros(2)))


def test_a_last_batch_of_one_example_is_left_out_where_norms_cannot_use_it() -> None:
    def steps(model: Any, sizes: tuple[int, ...]) -> float:
        network = Network(1e9, step=1.0)
        return simulate("FedAvg()", model, 1, tasks=blobs(sizes), sample=1, network=network).rounds[0]["clock"]

    assert steps(normed, (17,)) == pytest.approx(2, abs=0.01)  # of 8, 8 and 1
    assert steps(mlp, (17,)) == pytest.approx(3, abs=0.01)
    assert steps(normed, (18,)) == pytest.approx(3, abs=0.01)


def test_a_client_with_one_example_cannot_train_norms_and_is_told_so() -> None:
    with pytest.raises(ValueError, match="client 1 has 1 example: batch norm needs 2"):
        simulate("FedAvg()", normed, tasks=blobs((8, 1, 8)))
    simulate("FedAvg()", mlp, tasks=blobs((8, 1, 8)))


# -- bad arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0: it must be at least 1"),
        ({"sample": 0}, "sample=0: it must be at least 1"),
        ({"sample": 7}, "sample=7: it must be between 1 and the 6 clients"),
        ({"dropout": 1.0}, "dropout=1.0: it is a probability below 1"),
        ({"dropout": -0.1}, "dropout=-0.1: it is a probability below 1"),
        ({"workers": 0}, "workers=0: it must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every=0: it must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every=0: it must be at least 1"),
        ({"resume": True}, "resume=True needs the folder of the run: out=..."),
        ({"client_tests": [points(0)]}, "client_tests has 1 entries for 6 clients"),
        ({"tasks": [3]}, "int is not a task: give a Task, a Dataset of (input, target) pairs, or two tensors"),
        (
            {"tasks": [(torch.zeros(3, 6), torch.zeros(3)), (torch.zeros(0, 6), torch.zeros(0))], "sample": 1},
            "has no examples: choose another split or fewer clients",
        ),
        ({"model": mlp().requires_grad_(False)}, "the model has no trainable parameters: nothing would be sent"),
        ({"model": mlp().half()}, "parameter '0.weight' is torch.float16: models are trained and sent in float32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bad_argument_is_answered_by_one_clear_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        simulate(**{"expression": "FedAvg()"} | options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_without_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no clients: tasks is empty"):
        tw.simulate(FedAvg(), mlp, [], 1)
