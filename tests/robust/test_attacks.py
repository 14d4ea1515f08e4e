"""What hostile clients send, and that nothing else of a run is another."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import thinwire as tw
from blobs import blobs, mlp
from problems import ONE
from test_federation import Still, pulls
from thinwire import ALIE, IPM, GaussianNoise, Key, LabelFlip, Params, ResidualFlip, RhoFlip, SignFlip, Simulation
from thinwire.errors import CombinationError
from thinwire.robust.attack import Attack, swap

VALUES = (3.0, 1.0, 2.0, 4.0, 6.0)


class Watched(Simulation):
    """Keeps what the server decodes of each client in the newest round."""

    def add(self, answer: Any, body: Any, rx: Any, late: bool = False) -> Any:
        values, _ = self.up.recv(body, rx, self.at(answer.client, answer))
        self.seen = getattr(self, "seen", {}) | {answer.client: values[0].flat.clone()}
        return super().add(answer, body, rx, late)


def watched(attack: Attack | None, up: str = "Dense()", rounds: int = 1, **asked: Any) -> Watched:
    algorithm = tw.parse(f"FedAvg(LocalSGD(1.0), up={up}, weights='uniform')")
    run = Watched(algorithm, Still, pulls(*VALUES), workers=1, seed=2, attack=attack, **asked)
    with run.pool:
        for _ in range(rounds):
            run.step(evaluate=False)
    return run


def hostile_of(attack: Attack) -> list[int]:
    return sorted(attack.hostile(5, 2))


@pytest.mark.parametrize("up", ["Dense()", "TopK(1.0)", "LBGM()", "EF21(TopK(1.0))"])
def test_a_flipped_sign_is_the_opposite_and_the_others_are_as_they_are(up: str) -> None:
    attack = SignFlip(0.4, scale=10)
    seen = watched(attack, up).seen
    assert len(hostile_of(attack)) == 2
    for client, value in enumerate(VALUES):
        assert seen[client].item() == pytest.approx(-10 * value if client in hostile_of(attack) else value)


def test_who_is_hostile_is_drawn_from_the_seed_and_rounded_down() -> None:
    attack = SignFlip(0.3)
    assert [len(attack.hostile(n, 0)) for n in (4, 6, 10, 20)] == [1, 1, 3, 6]
    drawn = [attack.hostile(10, seed) for seed in range(200)]
    counts = [sum(client in some for some in drawn) for client in range(10)]
    assert 40 <= min(counts) <= max(counts) <= 80
    assert SignFlip(1.0).hostile(4, 0) == {0, 1, 2, 3}


def test_colluding_clients_send_what_the_mean_and_the_deviation_of_the_honest_ones_say() -> None:
    for attack in (ALIE(0.4, z=1.5), IPM(0.4, scale=3.0)):
        seen = watched(attack).seen
        honest = [value for client, value in enumerate(VALUES) if client not in hostile_of(attack)]
        mean, deviation = statistics.fmean(honest), statistics.pstdev(honest)
        expected = mean - 1.5 * deviation if isinstance(attack, ALIE) else -3.0 * mean
        for client, value in enumerate(VALUES):
            own = client in hostile_of(attack)
            assert seen[client].item() == pytest.approx(expected if own else value, rel=1e-5)


def test_the_papers_z_is_that_of_a_majority() -> None:
    """50 workers, 12 of which are hostile: s = 26 - 12 = 14 and z = the quantile at 24 / 38."""
    from thinwire.robust.attack import Others

    zero = ONE.zeros()
    ones = Params(ONE, torch.ones(1_000))
    bent = ALIE().bend(zero, Others(zero, ones, 38, 12), Key(0))
    assert bent.flat[0].item() == pytest.approx(-0.33604, abs=1e-4)  # scipy.stats.norm.ppf(24 / 38)
    assert ALIE().bend(zero, Others(zero, ones, 8, 2), Key(0)).norm() == 0  # z would be zero


BENT: dict[str, tuple[str, Any]] = {
    "a tensor": ("bend gave Tensor in place of update", lambda x: x.flat),
    "nothing": ("bend gave NoneType in place of update", lambda x: None),
    "other layers": ("bend gave Params in place of update", lambda x: x.only(())),
    "another type": ("bend gave Params in place of update", lambda x: Params(x.layout, x.flat.double())),
}


@pytest.mark.parametrize("what", BENT)
def test_what_an_attack_of_ones_own_bends_is_of_the_layers_that_it_was_given(what: str) -> None:
    said, change = BENT[what]

    @dataclass(frozen=True)
    class Mine(Attack):
        share: float = 0.4

        def bend(self, x: Any, others: Any, key: Any) -> Any:
            return change(x)

    with pytest.raises(ValueError, match=said):
        watched(Mine())


@pytest.mark.parametrize(
    "task", [None, (torch.zeros(3, 1), torch.zeros(3)), tw.Supervised(torch.zeros(3, 1), torch.zeros(3), [])]
)
def test_what_an_attack_of_ones_own_poisons_is_a_task_with_examples(task: Any) -> None:
    @dataclass(frozen=True)
    class Mine(Attack):
        share: float = 0.4

        def poison(self, given: Any, tasks: Any) -> Any:
            return task

    with pytest.raises(ValueError, match=f"poison gave {type(task).__name__}: a Task with examples is expected"):
        watched(Mine())


def test_noise_is_about_as_long_as_said_and_another_for_each_client_and_round() -> None:
    x = Params(ONE, torch.full((1_000,), 2.0))
    attack = GaussianNoise(0.2, scale=3.0)
    first, second = (attack.bend(x, None, Key(0, 1, client)) for client in (1, 2))
    assert first.norm() == pytest.approx(3.0 * x.norm(), rel=0.1)
    assert abs(float(np.corrcoef(first.flat, second.flat)[0, 1])) < 0.15
    assert attack.bend(x, None, Key(0, 1, 1)).flat.equal(first.flat)


def test_flipped_labels_are_the_last_class_less_the_label_of_hostile_clients_alone() -> None:
    tasks = blobs((12,) * 5)
    run = Simulation(tw.FedAvg(), mlp, tasks, attack=LabelFlip(0.4), seed=2, workers=1)
    run.close()
    for client, (task, given) in enumerate(zip(run.tasks, tasks, strict=True)):
        _, now = task.batch(torch.arange(12))
        _, before = given.batch(torch.arange(12))
        expected = 2 - before if client in hostile_of(LabelFlip(0.4)) else before
        assert torch.equal(now, expected)
    for mark in (-100, 255):  # of the classes 1 and 2
        hidden = (t.targets.where(t.targets != 0, mark) for t in tasks)
        masked = [tw.Supervised(t.inputs, y, t.indices, ignore_index=mark) for t, y in zip(tasks, hidden, strict=True)]
        flipped = LabelFlip().poison(masked[0], masked)
        assert isinstance(flipped, tw.Supervised)
        assert set(flipped.targets.unique().tolist()) == {mark, 0, 1}
    with pytest.raises(CombinationError, match="changes classes, one an example"):
        Simulation(tw.FedAvg(), Still, pulls(*VALUES), attack=LabelFlip(0.4))


@pytest.mark.parametrize("up", ["LBGM(threshold=0.5)", "Layerwise(LBGM(threshold=0.5))", "LBGM(store='packet')"])
def test_a_flipped_multiplier_turns_a_recycled_update_around_in_as_many_bytes(up: str) -> None:
    attack = RhoFlip(0.4, scale=10)
    first, later, honest = watched(attack, up, 1), watched(attack, up, 3), watched(None, up, 3)
    for client, value in enumerate(VALUES):
        assert first.seen[client].item() == pytest.approx(value)
        lied = client in hostile_of(attack)
        assert later.seen[client].item() == pytest.approx(-10 * value if lied else value)
    assert [r["up_bytes"] for r in later.records] == [r["up_bytes"] for r in honest.records]
    assert later.records[2]["up_payload"] < first.records[0]["up_payload"]
    assert [r["norms"] for r in later.records[1:]] != [r["norms"] for r in honest.records[1:]]


@pytest.mark.parametrize("up", ["ErrorFeedback(TopK(0.5))", "LBGM(ErrorFeedback(TopK(0.5)))"])
def test_a_flipped_residual_is_subtracted_and_kept_as_an_honest_one(up: str) -> None:
    link = ResidualFlip(0.4, scale=10).link(tw.parse(up))
    honest, layout = tw.parse(up), tw.params.Layout(("w",), (torch.Size([4]),))
    x = Params(layout, torch.tensor([4.0, 3.0, 2.0, 1.0]))
    ends, lying = honest.open(x.zeros())[0], link.open(x.zeros())[0]
    _, seen, ends = honest.send(x, ends, Key(0, 1, 0))
    _, lied, lying = link.send(x, lying, Key(0, 1, 0))
    assert seen.flat.tolist() == lied.flat.tolist() == [4.0, 3.0, 0.0, 0.0]  # nothing is owed yet
    assert link.residual(lying).flat.tolist() == honest.residual(ends).flat.tolist() == [0.0, 0.0, 2.0, 1.0]
    packet, lied, lying = link.send(x, lying, Key(0, 2, 0))  # 4, 3, 2 - 20, 1 - 10
    if isinstance(packet, list):
        assert lied.flat.tolist() == [0.0, 0.0, -18.0, -9.0]
    _, _, ends = honest.send(x, ends, Key(0, 2, 0))
    if "LBGM" not in up:
        assert link.residual(lying).flat.tolist() == honest.residual(ends).flat.tolist()


@pytest.mark.parametrize("attack", [RhoFlip(), ResidualFlip()], ids=repr)
def test_a_lying_sender_that_owes_nothing_sends_what_the_receiver_makes_of_its_packet(attack: Attack) -> None:
    """The law of every link: what `send` says will be seen is what `recv` makes of the packet."""
    for up in ("LBGM(ErrorFeedback(TopK(0.2)), threshold=0.9)", "Layerwise(LBGM(ErrorFeedback(TopK(0.5))))"):
        link, honest = attack.link(tw.parse(up)), tw.parse(up)
        draw = torch.Generator().manual_seed(1)
        base = Params(ONE, torch.randn(1_000, generator=draw))
        tx, rx = link.open(base.zeros())
        for round in range(1, 5):
            x = base + Params(ONE, torch.randn(1_000, generator=draw) * 0.1)
            packet, seen, tx = link.send(x, tx, Key(0, round, 0))
            packet = tw.loads(tw.dumps(packet))
            got, rx = honest.recv(packet, ONE, rx, Key(0, round, 0))
            assert got.flat.equal(seen.flat)


def test_a_link_is_swapped_wherever_it_is_held_and_others_are_left_as_they_are() -> None:
    def make(own: Any) -> Any:
        return tw.LBGM(own.inner, threshold=0.9)

    for text, expected in {
        "Layerwise(LBGM())": "Layerwise(LBGM(threshold=0.9))",
        "Partition({'*.bias': Dense(), '*': LBGM(TopK(0.1))})": (
            "Partition({'*.bias': Dense(), '*': LBGM(TopK(0.1), threshold=0.9)})"
        ),
    }.items():
        assert repr(swap(tw.parse(text), tw.LBGM, make)) == expected
    link = tw.parse("ErrorFeedback(TopK(0.1))")
    assert swap(link, tw.LBGM, make) is link


def test_a_run_without_attack_is_the_run_it_was_and_an_attack_of_nobody_else_moves_no_honest_reply() -> None:
    plain, attacked = watched(None), watched(SignFlip(0.4))
    honest = [c for c in range(5) if c not in hostile_of(SignFlip(0.4))]
    assert all(plain.seen[c].equal(attacked.seen[c]) for c in honest)
    assert [r["up_bytes"] for r in plain.records] == [r["up_bytes"] for r in attacked.records]
