"""A Flower deployment whose hosts are behind slow links, which are cut at times; they need THINWIRE_SLOWLINK."""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import thinwire as tw
from thinwire.version import code_version

pytest.importorskip("flwr")

import test_flower
from test_flower import APP, ROOT, assert_same, method, model, simulated, tasks
from thinwire.deploy.flower.chunks import CHUNK
from thinwire.deploy.flower.transfer import WINDOW

sys.path.insert(0, str(ROOT / "experiments" / "onepercent"))
import slow_link

SMALL, CNN = 50_890 * 4, 582_026 * 4  # bytes of the models mlp and fedavg_cnn
# For a shorter soak, or another one.
ROUNDS, SEED = int(os.environ.get("SOAK_ROUNDS", "200")), int(os.environ.get("SOAK_SEED", "0"))
SOAKED = "LUAR(FedAvg(up=LBGM(ErrorFeedback(TopK(0.1)), threshold=0.6)), recycle=1, layers='tensors')"
DOWN = "down=EF21(TopK(0.01))"  # the server's uplink is as slow as the clients'


class Seen(NamedTuple):
    """What there is to see of a run."""

    seconds: list[float]  # of each round
    largest: list[int]  # bytes: the largest answer of each round
    up: list[int]  # bytes of all answers of each round in the ledger, payload and framing
    wire_up: list[int]  # IP bytes that the server's host was sent since the end of the round before
    down: list[int]  # bytes of all calls of each round in the ledger
    wire_down: list[int]  # IP bytes that the server's host has sent


def links_program() -> str:
    """What makes slow links; the test is skipped where there is none."""
    program = os.environ.get("THINWIRE_SLOWLINK")
    if not program:
        pytest.skip("THINWIRE_SLOWLINK is not set: no program that makes slow links")
    if not os.access("/dev/net/tun", os.W_OK) or os.geteuid():
        pytest.skip("slow links need root and /dev/net/tun")
    return program


def behind(folder: Path, plan: dict[str, Any], *options: str, nodes: int = 3, seconds: float) -> dict[str, Any]:
    """Run a plan on a SuperLink and its SuperNodes, one host each; what the hub between them counted."""
    program = links_program()
    return slow_link.behind(folder, program, plan, *options, nodes=nodes, seconds=seconds)


def taken(out: Path, rounds: int) -> dict[int, list[int]]:
    """Whose answers counted in each round of a run."""
    ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
    return {t: sorted(e.client for e in ledger.of("up", t) if e.used) for t in range(1, rounds + 1)}


def seen(folder: Path, name: str) -> Seen:
    """What a run has left."""
    records = [json.loads(line) for line in (folder / "runs" / name / "rounds.jsonl").read_text().splitlines()]
    ledger = tw.Ledger.parse((folder / "runs" / name / "ledger.jsonl").read_text())
    rounds = range(1, len(records) + 1)
    lines = [json.loads(line) for line in (folder / "wire.jsonl").read_text().splitlines()]
    sums = [(0, 0), *((line["up"], line["down"]) for line in lines)]
    since = [(up - u, down - d) for (up, down), (u, d) in zip(sums[1:], sums, strict=False)]
    wire = [bytes for line, bytes in zip(lines, since, strict=True) if line["run"] == name]
    return Seen(
        [record["seconds"] for record in records],
        [max(e.total for e in ledger.of("up", t)) for t in rounds],
        [ledger.bytes("up", t) for t in rounds],
        [up for up, _ in wire],
        [ledger.bytes("down", t) for t in rounds],
        [down for _, down in wire],
    )


def result(
    key: dict[str, Any], found: dict[str, Any], folder: str, tests: str = "spared", file: str = "slow_link"
) -> None:
    """A line of the page docs/measured/federation.md, where THINWIRE_RESULTS names a folder for it."""
    sys.path.append(str(ROOT / "experiments"))
    import record

    made = code_version()
    about = {"processor": record.processor(), "cores": os.cpu_count(), "versions": record.versions("flwr")}
    about |= {"version": made, "dirty": made.endswith("-dirty")}
    about |= {"command": f"pytest -m 'soak or deployment' tests/deploy/test_flower_links.py -k {tests}"}
    record.replace(Path(folder) / f"{file}.jsonl", key | found | about, key)


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("model", "size", "seconds"),
    [
        pytest.param("mlp", SMALL, 400, marks=pytest.mark.timeout(500)),
        pytest.param("fedavg_cnn", CNN, 2200, marks=[pytest.mark.soak, pytest.mark.timeout(2500)]),
    ],
)
def test_over_slow_links_what_is_not_sent_is_time_that_is_spared(
    model: str, size: int, seconds: float, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    local = f"LocalSGD(0.05, batch=32), {DOWN}"
    methods = {  # in the first round of each all numbers go both ways; how fast the link is shows in the second
        "fedavg": (f"FedAvg({local})", 3 if size == CNN else 2),
        "lbgm": (f"FedAvg({local}, up=LBGM(threshold=1.0))", 2),
    }
    if size == CNN:  # all but the two convolutions and the biases; and all numbers both ways in every round
        methods["luar"] = (f"LUAR(FedAvg({local}), recycle=2, select='round-robin')", 3)
        methods["dense"] = ("FedAvg(LocalSGD(0.05, batch=32))", 2)
    given: dict[str, Any] = {"model": model, "examples": 60, "deadline": 900.0, "data-dir": str(data_dir)}
    # One SuperNode: of two that send at once the hub delivers the first one's packets and drops the other's.
    given |= {"clients": 1, "sample": 1, "take": 1}
    runs = {name: {**given, "method": method, "rounds": rounds} for name, (method, rounds) in methods.items()}
    if size == CNN:
        runs["dense"]["mbit"] = 0.3
    plan = {"app": str(ROOT / "examples" / "flower"), "runs": runs, "environment": slow_link.ONE_BY_ONE}
    hub = behind(tmp_path, plan, "--rate", "0.3", "--down", "10", "--delay", "20", nodes=1, seconds=seconds)
    found = {name: seen(tmp_path, name) for name in runs}
    dense = found.get("dense")
    fedavg, *others = (run for name, run in found.items() if name != "dense")
    with capsys.disabled():
        print("\n    run round seconds    answer        up     IP up      down   IP down")
        for name, run in found.items():
            for t, (time, *row) in enumerate(zip(*run, strict=True), 1):
                print(f"{name:>7} {t:5} {time:7.1f}", *(f"{value:9,}" for value in row))
                if folder := os.environ.get("THINWIRE_RESULTS"):
                    of = dict(zip(("largest", "up", "wire_up", "down", "wire_down"), row, strict=True))
                    result({"run": name, "round": t, "clients": 1, "floats": size // 4}, of | {"seconds": time}, folder)
        if dense is not None:
            unseen = 1 - (dense.up[1] + dense.down[1]) / (dense.wire_up[1] + dense.wire_down[1])
            print(f"dense: of the IP bytes of both directions {unseen:.2%} are not in the ledger")
            fewer, faster = (  # of the two rounds in which each large layer is sent once
                getattr(fedavg, what)[-1] / statistics.mean(getattr(found["luar"], what)[1:])
                for what in ("up", "seconds")
            )
            print(f"luar: {fewer:.2f} times fewer bytes, {faster:.2f} times faster")
    counted = json.loads((tmp_path / "wire.jsonl").read_text().splitlines()[-1])["up"]
    assert hub["hosts"][1]["sent_bytes"] == pytest.approx(counted, rel=0.02)  # the hub's count is the interface's
    assert size < fedavg.largest[-1] < size + 1000
    if dense is not None:  # of a small reply requests, polls and TLS are a larger part, and seconds are the machine's
        for t in (0, 1, 2):
            assert fedavg.wire_up[t] < 1.1 * size + (100_000 if t == 0 else 0)  # with what a node says when it joins
        assert fedavg.wire_up[2] - fedavg.up[2] < 0.05 * fedavg.wire_up[2]
        assert unseen < 0.05
    # Without the polls, which a busy machine has more of.
    assert fedavg.wire_up[-1] - others[0].wire_up[1] < 1.25 * size
    # One number instead of all, and what is left: polls, processes, the evaluation.
    for run, most in zip(others, (128, 0.1 * size), strict=False):  # of the first most is the header
        assert run.largest[1] < most
        spared = size - run.largest[1]  # bytes
        assert fedavg.wire_up[-1] - run.wire_up[1] > 0.9 * spared
        assert size < CNN or fedavg.seconds[-1] - run.seconds[1] > 0.7 * spared * 8 / 0.3e6


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_a_hundredth_of_the_bytes_reaches_an_accuracy_in_a_twentieth_of_the_time(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = links_program()
    monkeypatch.setattr(sys, "argv", [slow_link.__file__])
    monkeypatch.setenv("THINWIRE_DATA", str(data_dir))
    found = slow_link.lines(tmp_path / "lines.jsonl", program)
    bytes_each = {run: (line["bytes_up"] + line["bytes_down"]) / line["rounds"] for run, line in found.items()}
    dense = "fedavg", 0
    assert len(found) == 4
    for run in found.keys() - {dense}:
        assert bytes_each[run] < 0.01 * bytes_each[dense]
        assert found[run]["time"] <= found[dense]["time"] / 20


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_time_behind_slow_links_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, into = links_program(), tmp_path / "lines.jsonl"
    monkeypatch.setattr(sys, "argv", [slow_link.__file__])
    monkeypatch.setattr(slow_link.record, "dirty", lambda line: False)  # this checkout may have changes
    first = slow_link.lines(into, program, tiny=True)
    assert "PerClient" in first["auto", 0]["method"]
    for line in first.values():
        until, reached = line["rounds"], [accuracy >= line["goal"] for _, accuracy in line["curve"]]
        assert reached[:until] == [False] * (until - 1) + [True]
        assert len(reached) == line["run_rounds"] == until + 3
        assert line["time"] == pytest.approx(line["curve"][until - 1][0], abs=0.1)
        assert line["server_uplink"] == pytest.approx(line["bytes_down"] * 8 / 20e6, abs=0.06)
        assert sum(host["received"] for host in line["hosts"][1:]) > line["bytes_down"]
    monkeypatch.setattr(slow_link, "measure", None)
    assert slow_link.lines(into, program, tiny=True) == first


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_reply_and_an_acknowledgement_that_the_network_loses_are_as_if_their_client_had_not_taken_part(
    tmp_path: Path,
) -> None:
    hold, rounds = tmp_path / "hold", 9
    hold.write_text("after")
    config = {"method": SOAKED, "rounds": rounds, "deadline": 30.0, "hold": str(hold)}
    plan = {"app": str(APP), "runs": {"lost": config}, "cut": 2}
    behind(tmp_path, plan, "--rate", "20", "--delay", "5", seconds=800)
    out = tmp_path / "runs" / "lost"
    came = taken(out, rounds)
    assert_same(out, simulated(SOAKED, rounds, came), payload=False)
    assert [line.split(" ", 1)[1] for line in (tmp_path / "killed").read_text().splitlines()] == [
        "a reply",
        "an acknowledgement",
    ]
    there = [2 in clients for clients in came.values()]
    gone = "".join("+" if here else "-" for here in there)
    assert re.fullmatch(r"\+-+\++-+\++", gone), gone  # there, lost, there, lost, there
    assert all({0, 1} <= set(clients) for clients in came.values())


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("width", "mbit", "seconds", "rounds"),  # 48 bytes of the model each; of every uplink; of a cut
    [
        pytest.param(158_000, 40, 10.0, 2, marks=pytest.mark.timeout(900), id="a tenth"),
        pytest.param(1_580_000, 4, 360.0, 3, marks=[pytest.mark.soak, pytest.mark.timeout(3 * 3600)], id="whole"),
    ],
)
def test_a_transfer_that_is_cut_goes_on_where_it_was(
    width: int, mbit: float, seconds: float, rounds: int, tmp_path: Path
) -> None:
    size = 48 * width
    config = {"method": "FedAvg()", "rounds": rounds, "deadline": 7200.0, "width": width}
    plan = {
        "app": str(APP),
        "runs": {"large": config},
        "midway": seconds,
        "kills": [("server", rounds - 1), ("superlink", rounds)],
    }
    links = "--rate", str(mbit), "--down", str(3 * mbit), "--delay", "20"  # so that the server takes in all three
    behind(tmp_path, plan, *links, seconds=800 if rounds == 2 else 3 * 3600)
    out = tmp_path / "runs" / "large"
    given: dict[str, Any] = {"test": tasks()[0], "seed": test_flower.SEED, "workers": 1, "plan": "each"}
    expected = tw.simulate(method("FedAvg()"), partial(model, width), tasks(), rounds, **given)
    assert_same(out, expected)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    resent, cuts = sum(record["resent_bytes"] for record in records), 3 * rounds
    happened = (tmp_path / "killed").read_text()
    print(f"{happened}{resent} of {rounds * 3 * 2 * size} bytes were sent again")
    if folder := os.environ.get("THINWIRE_RESULTS"):
        sums = {name: sum(record[name] for record in records) for name in ("up_bytes", "down_bytes", "resent_bytes")}
        sums |= {"seconds": [record["seconds"] for record in records], "cuts": happened.count("is cut off")}
        key = {"run": "cut", "model_bytes": size, "rounds": rounds, "mbit": mbit, "cut": seconds}
        result(key, sums, folder, "goes_on_where_it_was", "soak")
    assert happened.count("is cut off") == cuts
    assert happened.count("the server") == happened.count("the superlink") == 1
    assert resent <= (cuts + 2 * 3) * WINDOW * CHUNK  # what was on its way at a cut, or at a kill
    assert rounds == 2 or resent <= 0.05 * rounds * 3 * 2 * size


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("width", [pytest.param(190_000, id="a tenth"), pytest.param(1_900_000, id="whole")])
def test_under_a_budget_of_a_hundredth_it_is_the_same_in_minutes(width: int, tmp_path: Path) -> None:
    rounds, size, wide = 3, 40 * width, partial(model, width, False)  # bytes, without norm layers
    given: dict[str, Any] = {"seed": test_flower.SEED, "workers": 1, "plan": "each", "start": "known"}
    # Auto's share is one of the bytes of both directions: of a hundredth of the model both ways it is a half.
    asked = tw.simulate(method("Auto(0.005)"), wide, tasks(), 1, **given)
    expression = asked.chosen[0]["expression"]
    config = {"method": expression, "rounds": rounds, "deadline": 1800.0, "width": width, "norm": False}
    plan = {
        "app": str(APP),
        "runs": {"auto": config | {"start": "known"}},
        "small": True,
        "midway": 20.0,  # a node that is away for a minute is thought gone, and what goes as one message is lost
        "kills": [("server", 2), ("superlink", 3)],
    }
    behind(tmp_path, plan, "--rate", "4", "--down", "12", "--delay", "20", seconds=2400)
    out = tmp_path / "runs" / "auto"
    came = taken(out, rounds)
    assert list(came.values()) == [[0, 1, 2]] * rounds
    expected = tw.simulate(method(expression), wide, tasks(), rounds, test=tasks()[0], **given)
    assert_same(out, expected)
    ledger = tw.Ledger.parse((out / "ledger.jsonl").read_text())
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    both = max(ledger.slowest(t) for t in (1, 2, 3))
    happened = (tmp_path / "killed").read_text()
    print(f"{happened}{expression}: {both} bytes both ways, {[record['seconds'] for record in records]} s")
    assert both <= 0.77e6 * size / 76e6
    assert happened.count("the server") == happened.count("the superlink") == 1
    if folder := os.environ.get("THINWIRE_RESULTS"):
        seen = {"method": expression, "most_both_ways": both, "seconds": [record["seconds"] for record in records]}
        key = {"run": "auto", "model_bytes": size, "rounds": rounds, "mbit": 4, "cut": 20.0}
        result(key, seen | {"cuts": happened.count("is cut off")}, folder, "in_minutes", "soak")


@pytest.mark.deployment
@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_whatever_is_killed_and_cut_the_model_is_that_of_the_replies_that_came(tmp_path: Path) -> None:
    rounds, expression = ROUNDS, SOAKED
    draw, seconds, cuts, at = random.Random(SEED), 300.0 + 60 * rounds, list[str](), 60.0
    while (at := at + draw.expovariate(1 / 60)) < seconds:  # a cut a minute, of up to a minute
        cuts += ["--cut-host", f"{draw.randrange(1, 4)}:{at:.1f}:{at + draw.uniform(2, 60):.1f}"]
    plan = {
        "app": str(APP),
        "runs": {"soak": {"method": expression, "rounds": rounds, "deadline": 30.0}},
        "seed": SEED,
        "server": 150.0,  # seconds between two kills, on average
        "nodes": 400.0,
    }
    hub = behind(tmp_path, plan, "--rate", "20", "--delay", "5", *cuts, seconds=seconds)
    out = tmp_path / "runs" / "soak"
    came = taken(out, rounds)
    assert_same(out, simulated(expression, rounds, came), payload=False)
    killed = (tmp_path / "killed").read_text().split("\n")
    absent = sum(3 - len(clients) for clients in came.values())
    happened = sum(float(cut.split(":")[1]) < hub["wall_s"] for cut in cuts[1::2])
    print(f"{rounds} rounds, {len(killed) - 1} kills, {happened} cuts, {absent} answers lost")
    if folder := os.environ.get("THINWIRE_RESULTS"):
        counts = {"kills": len(killed) - 1, "cuts": happened, "answers_lost": absent, "seconds": hub["wall_s"]}
        result({"run": "killed", "rounds": rounds, "method": expression}, counts, folder, "whatever_is_killed", "soak")
