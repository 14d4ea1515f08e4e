"""A prediction is compared with the run that it foretold; tables, with the terminal they are shown on."""

import io
from dataclasses import replace

import pytest
import rich.console
import torch

import thinwire as tw
from thinwire.ddp import DEF, EF, SAEF, Hook
from thinwire.ddp.prediction import predict
from thinwire.problem import standard
from thinwire.report import table
from thinwire.studies.predict import Prediction, Rehearsal, show
from thinwire.studies.predict_ranks import rehearse
from thinwire.studies.predict_ranks import show as show_ranks

ROUNDS = 9


@pytest.fixture(scope="module")
def problem():
    return standard("digits", model="linear", clients=6, split=None)


def simulated(method, problem, sample):
    return tw.simulate(method, problem.model, problem.tasks, rounds=ROUNDS, sample=sample, plan="each")


@pytest.mark.parametrize("sample", [2, 6])
@pytest.mark.parametrize(
    "method",
    [
        tw.FLSS(tw.FedAvg(), rank=2, start=3, every=3),  # its messages change by round
        tw.Intrinsic(64, varying=True, epoch=4),
        tw.FedAvg(down=tw.BF16()),  # a client that was away
        tw.SCAFFOLD(),
        tw.SCAFFOLD(option="I"),  # which looks before it trains
    ],
    ids=repr,
)
def test_a_run_costs_what_was_predicted_to_the_byte(problem, method, sample):
    found, result = Rehearsal(problem, ROUNDS, sample).predict(method), simulated(method, problem, sample)
    assert found.bytes_up == (result.bytes_up, result.bytes_up)
    assert found.bytes_down == (result.bytes_down, result.bytes_down)
    assert found.seconds[0] == pytest.approx(result.summary()["network_seconds"]["10"])
    sizes = [entry.total for entry in result.ledger.of("down")]
    assert found.message_down == (min(sizes), max(sizes))


def test_a_compressed_broadcast_costs_about_what_was_predicted(problem):
    method = tw.FedAvg(down=tw.EF21(tw.TopK(0.1)))
    found, result = Rehearsal(problem, ROUNDS, 2).predict(method), simulated(method, problem, 2)
    assert found.bytes_down[0] == pytest.approx(result.bytes_down, rel=0.02)


def test_a_look_back_costs_between_all_scalars_and_no_scalar(problem):
    never, always = (
        simulated(tw.FedAvg(up=tw.LBGM(threshold=threshold)), problem, 3).bytes_up for threshold in (1e-9, 1.0)
    )
    found = Rehearsal(problem, ROUNDS, 3).predict(tw.FedAvg(up=tw.LBGM(threshold=0.3)))
    assert found.bytes_up == (always, never)
    assert always < never / 2


@pytest.mark.parametrize(("mbit", "up"), [(2.0, None), (2.0, 0.5), (0.5, None), (0.5, 2.0)])
def test_a_link_that_goes_by_the_rate_is_predicted_at_that_of_the_links(problem, mbit, up):
    method = tw.FedAvg(up=tw.ByBandwidth({"1": tw.Half(), "*": tw.RandK(0.1)}))
    found = Rehearsal(problem, ROUNDS, 2, mbit=mbit, mbit_up=up).predict(method)
    network = tw.Network(mbit=up or mbit, down=mbit)
    result = tw.simulate(method, problem.model, problem.tasks, ROUNDS, sample=2, plan="each", network=network)
    assert found.bytes_up == (result.bytes_up, result.bytes_up)
    assert found.seconds[0] == pytest.approx(result.rounds[-1]["clock"])


@pytest.mark.parametrize("around", [lambda method: method, tw.Averaged], ids=["alone", "inside"])
def test_a_method_that_looks_back_costs_between_all_scalars_and_no_scalar(problem, around):
    method = around(tw.ClusteredLBGM(threshold=0.3))
    found, result = Rehearsal(problem, ROUNDS, 3).predict(method), simulated(method, problem, 3)
    assert found.bytes_up[0] < result.bytes_up < found.bytes_up[1]
    assert found.bytes_down[0] < result.bytes_down < found.bytes_down[1]
    never = around(tw.ClusteredLBGM(threshold=0.0))
    assert found.bytes_up[1] == simulated(never, problem, 3).bytes_up


def test_a_prediction_leaves_the_global_generator_alone(problem):
    before = torch.get_rng_state()
    Rehearsal(problem, 1, 1).predict(tw.FedAvg())
    assert torch.equal(before, torch.get_rng_state())


def test_a_rehearsal_makes_its_model_once_for_all_methods(problem):
    made = []

    def model():
        made.append(problem.model())
        return made[-1]

    rehearsal = Rehearsal(replace(problem, model=model), 1, 1)
    costs = [rehearsal.predict(method).bytes_up for method in (tw.FedAvg(), tw.FedAvg(up=tw.LBGM(threshold=0.3)))]
    assert len(made) == 1
    assert costs[0][0] == Rehearsal(problem, 1, 1).predict(tw.FedAvg()).bytes_up[0]


@pytest.mark.parametrize("width", [80, 100, 120, 160, 170])
def test_the_table_of_results_fits_a_terminal(monkeypatch, width):
    shown = io.StringIO()
    console = rich.console.Console(file=shown, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    row = {
        "method": "FedAvg(up=LBGM(ErrorFeedback(TopK(0.1)), threshold=0.5))",
        "kind": "federated",
        "unit": "round",
        "complete": True,
        "rounds": 50,
        "rounds_planned": 50,
        "seeds": [0, 1, 2],
        "seeds_left_out": [],
        "measure": "accuracy",
        "accuracy": 0.8123,
        "accuracy_deviation": 0.012,
        "best_accuracy": 0.8234,
        "bytes_up": 1_164_052_000.0,
        "bytes_down": 1_164_052_000.0,
        "share_up": 1.0,
        "share_total": 1.0,
        "network_seconds": {"1": 1863.0, "10": 186.3, "100": 18.6},
        "seconds": 1234.0,
        "personal_up": 0.0,
        "personal_down": 0.0,
        "floats_up": 291e6,
        "served": None,
        "predicted": None,
        "client_accuracy": None,
        "client_accuracy_spread": None,
        "client_accuracy_p10": None,
        "client_accuracy_worst": None,
        "client_accuracy_before": None,
        "client_accuracy_shared": None,
    }
    table.show([row], "a title")
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    first = next(line for line in lines if "81.2" in line)
    assert "81.2 % ± 1.2" in first
    assert first.count("1,164") == 2  # whole numbers, both ways
    assert max(map(len, first.split("│"))) >= 30  # and room for the method
    assert ("s at 1 Mbit/s ┃" in shown.getvalue()) == (width >= 120)
    assert ("M floats up ┃" in shown.getvalue()) == (width >= 170)
    # Below stands what a shown column means, and which ones there is no room for.
    below = " ".join(shown.getvalue().partition("┘")[2].split())
    assert ("M floats up is the papers' own count" in below) == (width >= 170)
    absent = {
        80: "best, up / FedAvg, total / FedAvg, s at 1 Mbit/s, s at 10, s at 100, s here, M floats up",
        100: "best, s at 1 Mbit/s, s at 10, s at 100, s here, M floats up",
        120: "best, s at 10, s at 100, s here, M floats up",
        160: "M floats up",
    }
    assert below.partition("No room here for: ")[2] == (f"{absent[width]}." if width in absent else "")
    assert "MB are 10^6 bytes" in below
    assert "Served" not in below


def test_few_bytes_and_a_short_transfer_are_not_shown_as_none(capsys: pytest.CaptureFixture[str]) -> None:
    few = Prediction("DeComFL(2)", (185.0, 185.0), (170.0, 170.0), (4_440.0, 4_440.0), (123.0, 123.0), (0.004, 0.049))
    show([few], 8, 3, 10.0)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("0.0044", "0.000123", "0.004 to 0.049"))


@pytest.mark.parametrize(
    "method", [SAEF(8.0, average=10), SAEF(8.0, average=3, steps=2), DEF(tw.RandK(0.1), steps=3), EF(8.0)], ids=repr
)
def test_a_mean_over_steps_is_that_of_a_long_training(problem, method):
    module = problem.model()
    steps = 960  # many periods of all of these
    traffic = predict(method, module, 2, steps)
    (found,) = rehearse([method], problem, 2)
    assert found.step_up == pytest.approx(traffic.bytes / steps, rel=1e-12)
    assert found.step_down == pytest.approx(traffic.received(2) / steps, rel=1e-12)


def test_a_step_of_a_link_that_looks_back_is_its_most_and_one_of_a_switch_its_first_links(problem, capsys):
    first = tw.TopK(0.5)
    pairs = [
        (tw.LBGM(threshold=0.9), tw.LBGM(threshold=0.0)),
        (tw.Switch(first, then=tw.TopK(0.01), rounds=2), first),
    ]
    for link, other in pairs:
        one, most = rehearse([Hook(link), Hook(other)], problem, 2)
        assert (one.step_up, one.step_down) == (most.step_up, most.step_down)
    show_ranks([one], 2)
    shown = " ".join(capsys.readouterr().out.split())
    assert "(LBGM) is reckoned with whole messages, the most that it sends, and a Switch as its first link." in shown
