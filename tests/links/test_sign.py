"""One bit an entry: with a scale, without one, and the vote over signs."""

from __future__ import annotations

import pytest
import torch
from torch import Size

import thinwire as tw
from problems import octets, once, refused, seen_by, vector
from thinwire.algorithms.fedavg import Reply
from thinwire.errors import CombinationError
from thinwire.federated.mean import Mean
from thinwire.federated.messages import Form
from thinwire.key import Key
from thinwire.links import EF21, ErrorFeedback, ScaledSign, SignSGD
from thinwire.problem import standard
from thinwire.wire import dumps, loads

KEY = Key(0)

pytestmark = pytest.mark.usefixtures("kernels")  # without a compiler too


def test_scaled_sign_by_hand() -> None:
    assert seen_by(ScaledSign(), vector(1.0, -5.0, 0.0, -2.0)) == [[2.0, -2.0, 2.0, -2.0]]  # (1 + 5 + 0 + 2) / 4
    assert seen_by(ScaledSign(), vector(-0.0, -4.0)) == [[2.0, -2.0]]


def test_a_sign_of_huge_numbers_stays_finite() -> None:
    link = ScaledSign()
    packet = link.encode(torch.full((10,), 3e38), KEY)
    assert torch.isfinite(link.decode(packet, Size([10]), KEY)).all()


def test_signs_by_hand() -> None:
    # 1 1 0 1 0 0 0 0 | 1: zeros of either sign are +1
    x = vector(2.0, 0.0, -1e-30, -0.0, -5.0, -1.0, -1.0, -1.0, 1.0)
    packet, seen = once(SignSGD(), x)
    assert seen == [1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0]
    assert dumps(packet) == bytes.fromhex("01 0601 410102 0b01")


@pytest.mark.parametrize("packed", [(11, 3), (11, 128), (11,), (11, 1, 0)])
def test_hostile_signs_are_refused(packed: tuple[int, ...]) -> None:
    assert refused(SignSGD(), [octets(*packed)], 9)


def test_plain_signs_take_no_error_feedback() -> None:
    for wrapper in (ErrorFeedback, EF21):
        with pytest.raises(CombinationError, match=r"SignSGD\(\) does not say so"):
            wrapper(SignSGD())


def test_the_majority_decides_entry_by_entry() -> None:
    # Votes of three clients: ++-, +--, -+-; sums 1, 1, -3. The fourth entry: two voters of weights 3 and 3 tie.
    x = vector(0.0, 0.0, 0.0)
    form = Form.of(Reply(x), SignSGD(), "up")
    mean = Mean(form)
    for client, update in enumerate([vector(5.0, 0.1, -9.0), vector(0.2, -7.0, -0.1), vector(-8.0, 0.3, -1.0)]):
        body, _, _ = form.send([update], form.open()[0], Key(0, 1, client))
        mean.add(client, 1.0, loads(dumps(body)), form.open()[1], Key(0, 1, client))
    delta = mean.result(Key(0, 1))[0].update
    assert delta.flat.tolist() == pytest.approx([1 / 3, 1 / 3, -1.0])
    after, _ = tw.MajorityVote(0.25).step(x, delta, None)
    assert after.flat.tolist() == [0.25, 0.25, -0.25]
    after, _ = tw.MajorityVote(0.25).step(x, vector(0.0, -0.0, 1e-45), None)
    assert after.flat.tolist() == [0.0, 0.0, 0.25]  # a tie moves nothing


def test_a_majority_vote_takes_one_bit_an_entry_both_ways() -> None:
    problem = standard("digits", clients=9, seed=0)
    vote = tw.MajorityVote(0.01)
    method = tw.FedAvg(
        tw.LocalSGD(0.1, steps=1), vote, up=SignSGD(), down=EF21(ScaledSign()), weights="uniform", buffers="local"
    )
    run = tw.Simulation(method, problem.model, problem.tasks, test=problem.test)
    entries = run.algorithm.model(run.server).layout.size
    for _ in range(12):
        record = run.step()
    assert record["up_payload"] < 9 * (entries / 8 + 60)
    assert record["down_payload"] < 9 * (entries / 8 + 80)
    x, view = run.algorithm.model(run.server), run.stream.view.state.x
    # Nine voters never tie, so every entry steps by 0.01, which is all that a sign and a scale can say: the clients had
    # the model of before the last step, and were not behind.
    assert ((x - view).flat.abs() - 0.01).abs().max() < 1e-6
    assert run.result().accuracy > 0.6
