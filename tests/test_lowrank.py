"""LowRank, ATOMO and PowerSGD by hand: approximations, chances, iterations, hostile packets."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, Tensor

from thinwire.errors import CombinationError, WireError
from thinwire.key import Key
from thinwire.links import ATOMO, LBGM, ErrorFeedback, Flat, Link, LowRank, PowerSGD
from thinwire.links.atomo import probabilities
from thinwire.params import Layout, Params
from thinwire.wire import clone, dumps, loads

KEY = Key(1)

# Orthogonal columns of length 2: H D H^T / 4 has the singular values D.
HADAMARD = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
KNOWN = HADAMARD @ torch.diag(torch.tensor([6.0, 2.0, 1.0, 1.0])) @ HADAMARD / 4  # 4 x 4, length^2 = 42


def matrix(x: Tensor) -> Params:
    return Params.of([("a", x)])


def seen_of(link: Link, x: Tensor, key: Key = KEY) -> Tensor:
    params = matrix(x)
    return link.send(params, link.open(params.zeros())[0], key)[1]["a"]


def lost(x: Tensor, seen: Tensor) -> float:
    return (x.double() - seen.double()).square().sum().item()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# -- truncated singular value decomposition ---------------------------------------


def test_the_leading_singular_value_is_what_is_seen() -> None:
    # 6 h h^T with h = (1, 1, 1, 1) / 2; what is lost has length^2 2^2 + 1 + 1.
    seen = seen_of(LowRank(1), KNOWN)
    torch.testing.assert_close(seen, torch.full((4, 4), 1.5), atol=1e-6, rtol=0)
    assert lost(KNOWN, seen) == pytest.approx(6.0, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 50), (50, 8), (12, 4, 3, 3), (30, 30)])
def test_no_matrix_of_the_same_rank_is_nearer(shape: tuple[int, ...]) -> None:
    # Eckart and Young: what is lost is what the other singular values say.
    x = noise(*shape)
    values = torch.linalg.svdvals(x.double().reshape(shape[0], -1))
    for rank in (1, 3):
        assert lost(x, seen_of(LowRank(rank), x)) == pytest.approx(values[rank:].square().sum().item(), rel=1e-5)


def test_a_matrix_without_a_leading_direction_keeps_one_part_in_so_many() -> None:
    # All singular values alike, the worst case: a quarter of 16 is kept by each rank.
    assert lost(HADAMARD, seen_of(LowRank(1), HADAMARD)) == pytest.approx(12.0, rel=1e-6)
    wide = torch.cat([HADAMARD] * 3, 1)  # 4 x 12: two factors of 16 are fewer than 48
    assert lost(wide, seen_of(LowRank(2), wide)) == pytest.approx(24.0, rel=1e-6)


@pytest.mark.parametrize(("shape", "rank", "kept"), [((4, 5), 1, 1 / 4), ((5, 4), 2, 1 / 2), ((6, 8), 3, 1 / 2)])
@given(data=st.data())
@settings(max_examples=30)
def test_low_rank_is_a_contraction(shape: tuple[int, int], rank: int, kept: float, data: st.DataObject) -> None:
    size = math.prod(shape)
    values = data.draw(st.lists(st.floats(-1e4, 1e4, width=32), min_size=size, max_size=size))
    x = torch.tensor(values).view(shape)
    assert LowRank(rank).contraction
    # Numbers near the smallest that 32 bits hold are rounded to multiples of it.
    assert lost(x, seen_of(LowRank(rank), x)) <= (1 - kept) * (1 + 1e-6) * lost(x, torch.zeros(shape)) + 1e-80


@pytest.mark.parametrize("link", [LowRank(2), ATOMO(2), PowerSGD(2), PowerSGD(2, warm=False)], ids=repr)
def test_a_matrix_of_no_higher_rank_gets_through_to_rounding(link: Link) -> None:
    for x in (noise(9, 2) @ noise(2, 31, seed=1), noise(31, 1) @ noise(1, 9, seed=1)):
        torch.testing.assert_close(seen_of(link, x), x, atol=3e-6, rtol=0)


@pytest.mark.parametrize("link", [LowRank(2), ATOMO(2), PowerSGD(2)], ids=repr)
@pytest.mark.parametrize("shape", [(40,), (), (4, 4), (2, 1000), (1, 9), (9, 1), (0, 3), (3, 0)])
def test_what_factors_would_not_shorten_is_sent_as_it_is(link: Link, shape: tuple[int, ...]) -> None:
    x = matrix(noise(*shape))
    packet, seen, _ = link.send(x, link.open(x.zeros())[0], Key(1))
    assert packet[0].tolist() == x.flat.tolist()
    assert seen.flat.equal(x.flat)


def test_the_bytes_are_those_of_the_factors() -> None:
    # 30 x 70: 2,100 floats. 01 06 01 48 01 c8 01 and a byte of padding, then 200 floats; three atoms 300 floats.
    x = matrix(noise(30, 10, 7))
    for link in (LowRank(2), PowerSGD(2), ErrorFeedback(LowRank(2))):
        packet, _, _ = link.send(x, link.open(x.zeros())[0], Key(1))
        assert len(dumps(packet)) == 808
        assert link.floats(packet) == 200.0
    whole = Flat(LowRank(2)).send(x, None, Key(1))[0]
    assert len(dumps(whole)) == 8_408


@pytest.mark.parametrize("link", [LowRank(3), ATOMO(3)], ids=repr)
def test_where_a_message_lies_in_memory_does_not_change_a_bit(link: LowRank | ATOMO) -> None:
    x, key = noise(33, 131), Key(1)
    packet = link.encode(x, key)
    expected = link.decode(packet, x.shape, key)
    data = packet.numpy().tobytes()
    for offset in range(4, 68, 4):
        moved = torch.frombuffer(bytearray(offset) + data, dtype=torch.float32, offset=offset)
        assert link.decode(moved, x.shape, key).equal(expected)


# -- chances of atoms ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "budget", "expected"),
    [
        # Algorithm 1 by hand: 6 * 2 > 10, so the first is certain; 2 * 1 <= 4, so the rest share what is left
        ((6.0, 2.0, 1.0, 1.0), 2, (1.0, 0.5, 0.25, 0.25)),
        ((6.0, 2.0, 1.0, 1.0), 1, (0.6, 0.2, 0.1, 0.1)),
        ((3.0, 2.0, 2.0, 1.0), 2, (0.75, 0.5, 0.5, 0.25)),
        ((5.0, 3.0, 1.0, 1.0), 3, (1.0, 1.0, 0.5, 0.5)),  # 15 > 10, 6 > 5, 1 <= 2
        ((1.0, 1.0, 1.0, 1.0), 3, (0.75, 0.75, 0.75, 0.75)),
        ((4.0, 0.0, 0.0, 0.0), 2, (1.0, 0.0, 0.0, 0.0)),
        ((0.0, 0.0, 0.0, 0.0), 2, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_chances_of_atoms_are_those_of_the_papers_algorithm(
    values: tuple[float, ...], budget: int, expected: tuple[float, ...]
) -> None:
    found = probabilities(torch.tensor(values, dtype=torch.float64), budget)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=9), st.integers(1, 4))
def test_chances_are_chances_and_add_up_to_the_budget(values: list[float], budget: int) -> None:
    p = probabilities(torch.tensor(sorted(values, reverse=True), dtype=torch.float64), budget)
    assert p.min() > 0
    assert p.max() <= 1
    assert p.sum().item() == pytest.approx(budget, rel=1e-9)


def test_atoms_are_right_on_average_with_the_variance_that_their_chances_give() -> None:
    # Chances .6, .2, .1, .1: the variance is 36/.6 + 4/.2 + 1/.1 + 1/.1 - 42 = 58, 3.625 an entry.
    rounds, total, squares = 800, torch.zeros(4, 4, dtype=torch.float64), 0.0
    for t in range(rounds):
        seen = seen_of(ATOMO(1), KNOWN, Key(1, t))
        total += seen
        squares += lost(KNOWN, seen)
    # Five standard errors: 5 sqrt(3.625 / 800)
    assert (total / rounds - KNOWN).abs().max() < 0.337
    assert squares / rounds == pytest.approx(58.0, rel=0.1)


def test_as_many_atoms_are_sent_as_asked_for_on_average() -> None:
    # 40 x 60, singular values far from alike: between 5 and 15 sent, each 100 floats.
    x = (noise(40, 40) * torch.logspace(0, -1.5, 40)) @ noise(40, 60, seed=1)
    counts = [len(ATOMO(8).encode(x, Key(1, t))) / 100 for t in range(400)]
    assert all(count == int(count) for count in counts)
    assert len(set(counts)) > 5
    # The variance is at most 8 and the standard error of the mean at most 0.14.
    assert sum(counts) / 400 == pytest.approx(8.0, abs=0.6)


def test_atoms_that_would_be_longer_than_the_layer_are_sent_as_their_sum() -> None:
    # 4 x 4: one atom is 8 floats, two would be the 16 of the layer.
    sizes = [len(ATOMO(1).encode(KNOWN, Key(1, t))) for t in range(300)]
    assert {size: sizes.count(size) > 30 for size in set(sizes)} == {0: True, 8: True, 16: True}


def test_rounds_clients_and_layers_draw_atoms_of_their_own() -> None:
    x = noise(40, 60)
    keys = [Key(1, 1, 1, "a"), Key(1, 2, 1, "a"), Key(1, 1, 2, "a"), Key(1, 1, 1, "b"), Key(2, 1, 1, "a")]
    drawn = [dumps(ATOMO(8).encode(x, key)) for key in keys]
    assert len(set(drawn)) == 5
    assert drawn[0] == dumps(ATOMO(8).encode(x, keys[0]))


# -- power iteration ----------------------------------------------------------------


def test_two_rounds_of_power_iteration_are_those_worked_out_by_hand() -> None:
    """Numpy::

    m = np.array([[3, 1, 0], [1, 2, 0], [0, 0, 1.0]]); e = np.zeros((3, 3)); q = np.array([1, 0, 0.0])
    for x in (m, 0 * m):
        p = (x + e) @ q; p /= np.linalg.norm(p); q = (x + e).T @ p
        seen = np.outer(p, q); e = x + e - seen; print(seen, e, q)
    """
    x = matrix(torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]))
    link = PowerSGD(1)
    tx = link.open(x.zeros())[0]._replace(start={"a": torch.tensor([[1.0, 0.0, 0.0]])})
    _, seen, tx = link.send(x, tx, Key(1))
    assert seen.flat.tolist() == pytest.approx([3, 1.5, 0, 1, 0.5, 0, 0, 0, 0], abs=1e-6)
    assert tx.residual.flat.tolist() == pytest.approx([0, -0.5, 0, 0, 1.5, 0, 0, 0, 1], abs=1e-6)
    assert tx.start["a"].abs().flatten().tolist() == pytest.approx([3.1622777, 1.5811388, 0], abs=1e-6)
    _, seen, tx = link.send(x.zeros(), tx, Key(1, 1))
    assert seen.flat.tolist() == pytest.approx([0, -0.5, 0, 0, 1.5, 0, 0, 0, 0], abs=1e-6)
    assert tx.residual.flat.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0, 0, 1], abs=1e-6)


def rotating(rounds: int, fresh: float = 0.0) -> list[Tensor]:
    """A 24 x 40 matrix whose directions turn a little every round, and new noise each time."""
    turn = torch.matrix_exp(0.02 * (noise(24, 24) - noise(24, 24).T))
    x, found = torch.diag(0.8 ** torch.arange(24.0)) @ torch.linalg.qr(noise(40, 24, seed=2)).Q.T, []
    for t in range(rounds):
        x = turn @ x
        found.append(x + fresh * noise(24, 40, seed=t))
    return found


def missed(link: PowerSGD, xs: list[Tensor]) -> list[float]:
    """What each message leaves out of its matrix, which is given to it alone."""
    tx, found = link.open(matrix(xs[0]).zeros())[0], []
    for t, x in enumerate(xs):
        tx = tx._replace(residual=tx.residual.zeros())
        _, seen, tx = link.send(matrix(x), tx, Key(1, t))
        found.append(lost(x, seen["a"]))
    return found


def owed(link: Link, xs: list[Tensor]) -> list[float]:
    """How long what is still owed is after each round."""
    tx, found = link.open(matrix(xs[0]).zeros())[0], []
    for t, x in enumerate(xs):
        _, _, tx = link.send(matrix(x), tx, Key(1, t))
        found.append(tx.residual.norm())
    return found


def test_a_warm_start_beats_a_cold_one_on_a_rotating_matrix() -> None:
    xs = rotating(20)
    warm, cold = missed(PowerSGD(2), xs), missed(PowerSGD(2, warm=False), xs)
    best = [lost(x, seen_of(LowRank(2), x)) for x in xs]
    assert warm[0] == cold[0]  # the first start is drawn either way
    # Once it is warm it is nearly as good as the decomposition; a cold start leaves half as much again.
    assert all(w <= 1.02 * b for w, b in zip(warm[4:], best[4:], strict=True))
    assert sum(cold[4:]) > 1.4 * sum(best[4:])


def test_a_warm_start_owes_less_than_a_cold_one_where_updates_are_noisy() -> None:
    xs = rotating(40, fresh=0.1)
    warm, cold = owed(PowerSGD(2), xs), owed(PowerSGD(2, warm=False), xs)
    assert sum(owed(ErrorFeedback(LowRank(2)), xs)) < sum(warm) < 0.97 * sum(cold)


def test_what_power_iteration_delivers_and_still_owes_is_what_it_was_given() -> None:
    xs, link = rotating(25), PowerSGD(1)
    tx, given_, delivered = link.open(matrix(xs[0]).zeros())[0], torch.zeros(960), torch.zeros(960)
    for t, x in enumerate(xs):
        _, seen, tx = link.send(matrix(x), tx, Key(1, t))
        given_ += x.flatten()
        delivered += seen.flat
    torch.testing.assert_close(delivered + tx.residual.flat, given_, atol=1e-4, rtol=0)
    assert tx.residual.norm() > 0.1


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_iteration_goes_on_after_rounds_of_nothing_and_at_any_scale(scale: float) -> None:
    x, link = matrix(scale * noise(20, 1) @ noise(1, 30, seed=1)), PowerSGD(1)
    tx = link.open(x.zeros())[0]
    for t, update in enumerate([x.zeros(), x.zeros(), x, x * 2.0, x.zeros(), x]):
        _, seen, tx = link.send(update, tx, Key(1, t))
        assert (seen - update).norm() <= 1e-5 * x.norm()


def test_layers_that_a_round_leaves_out_keep_their_factors() -> None:
    x = Params.of([("a", noise(5, 9)), ("b", noise(6, 7)), ("c", noise(3))])
    link = PowerSGD(1)
    _, _, tx = link.send(x, link.open(x.zeros())[0], Key(1))
    _, _, after = link.send(x.only(["b", "c"]), tx, Key(1, 1))
    assert list(after.start) == ["a", "b"]
    assert after.start["a"].equal(tx.start["a"])
    assert not after.start["b"].equal(tx.start["b"])
    assert after.residual["a"].equal(tx.residual["a"])


def test_a_cold_start_keeps_no_factors() -> None:
    x = matrix(noise(5, 9))
    link = PowerSGD(1, warm=False)
    _, first, tx = link.send(x, link.open(x.zeros())[0], Key(1))
    assert tx.start["a"].abs().max() == 0
    _, second, _ = link.send(x, clone(link.open(x.zeros())[0]), Key(1, 1))
    assert not second.flat.equal(first.flat)


# -- refused ------------------------------------------------------------------------

LAYER = Layout(("a",), (Size([6, 2, 4]),))  # 6 x 8: an atom is 14 floats, the layer 48

HOSTILE: list[Any] = [
    torch.zeros(47),
    torch.zeros(15),
    torch.zeros(13),
    torch.zeros(62),
    torch.zeros(56),  # four atoms, more floats than the layer
    torch.zeros(14, dtype=torch.float64),
    torch.zeros(14, dtype=torch.float16),
    torch.zeros(14, dtype=torch.int32),
    torch.zeros(14, 1),
    torch.zeros(1, 14),
    torch.zeros(1, 48),
    torch.zeros(()),
    [torch.zeros(6), torch.zeros(8)],
    [1, torch.zeros(14)],
    [-1, torch.zeros(0)],
    [2**62, torch.zeros(0)],
    {"rank": 1},
    14,
    -1,
    None,
    "factors",
]


@pytest.mark.parametrize("link", [LowRank(1), ATOMO(1), PowerSGD(1), LBGM(ATOMO(1))], ids=repr)
@pytest.mark.parametrize("packet", HOSTILE, ids=lambda p: str(getattr(p, "shape", p)))
def test_factors_of_another_size_or_kind_are_refused(link: Link, packet: Any) -> None:
    whole: Any = [[packet]] if isinstance(link, LBGM) else [packet]
    with pytest.raises(WireError, match=r"a packet of another shape: .* expected"):
        link.recv(loads(dumps(whole)), LAYER, link.open(LAYER.zeros())[1], Key(1))


@pytest.mark.parametrize("link", [LowRank(1), PowerSGD(1)], ids=repr)
@pytest.mark.parametrize("size", [0, 28, 42, 48])
def test_a_rank_is_agreed_on_beforehand(link: Link, size: int) -> None:
    with pytest.raises(WireError):
        link.recv([torch.zeros(size)], LAYER, None, Key(1))


def test_a_layer_that_is_sent_whole_takes_no_atoms() -> None:
    square = Layout(("a",), (Size([4, 4]),))
    with pytest.raises(WireError):
        ATOMO(2).recv([torch.zeros(8)], square, None, Key(1))  # rank 1 would fit, rank 2 never does


def test_a_rank_below_one_is_refused() -> None:
    for cls in (LowRank, ATOMO, PowerSGD):
        for rank in (0, -3):
            message = f"{cls.__name__}(rank={rank}): rank must be at least 1"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                cls(rank)


def test_error_feedback_over_what_is_no_contraction_or_has_its_own_is_refused() -> None:
    for link in (ATOMO(2), PowerSGD(2)):
        with pytest.raises(CombinationError, match="needs a link that always keeps a part"):
            ErrorFeedback(link)
