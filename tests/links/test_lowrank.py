"""Truncated singular value decompositions, and the factors that LowRank, ATOMO and PowerSGD send alike."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size

from problems import HADAMARD, KNOWN, gaussian, lost, matrix, seen_of
from thinwire.errors import CombinationError, WireError
from thinwire.key import Key
from thinwire.links import ATOMO, LBGM, ErrorFeedback, Flat, Link, LowRank, PowerSGD
from thinwire.links.lowrank import atoms, leading
from thinwire.params import Layout
from thinwire.wire import dumps, loads


def test_the_leading_singular_value_is_what_is_seen() -> None:
    # 6 h h^T with h = (1, 1, 1, 1) / 2; what is lost has length^2 2^2 + 1 + 1.
    seen = seen_of(LowRank(1), KNOWN)
    torch.testing.assert_close(seen, torch.full((4, 4), 1.5), atol=1e-6, rtol=0)
    assert lost(KNOWN, seen) == pytest.approx(6.0, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 50), (50, 8), (12, 4, 3, 3), (30, 30)])
def test_no_matrix_of_the_same_rank_is_nearer(shape: tuple[int, ...]) -> None:
    # Eckart and Young: what is lost is what the other singular values say.
    x = gaussian(*shape)
    values = torch.linalg.svdvals(x.double().reshape(shape[0], -1))
    for rank in (1, 3):
        assert lost(x, seen_of(LowRank(rank), x)) == pytest.approx(values[rank:].square().sum().item(), rel=1e-5)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("spectrum", ["falling", "alike", "of rank 1", "zero", "three alike", "1e-8"])
def test_of_a_large_matrix_too_no_matrix_of_the_same_rank_is_nearer(spectrum: str, turned: bool) -> None:
    # 200 by 300 goes by subspace iteration where the values fall, and by all eigenvectors where they are alike.
    values = {
        "falling": 0.8 ** torch.arange(200.0),
        "alike": torch.ones(200),
        "of rank 1": (torch.arange(200) < 1).float(),
        "zero": torch.zeros(200),
        "three alike": (torch.arange(200) < 3).float(),
        "1e-8": torch.cat([torch.ones(1), torch.full((199,), 1e-8)]),
    }[spectrum].double()
    left, right = (torch.linalg.qr(gaussian(n, 200, seed=n).double()).Q for n in (200, 300))
    x = ((left * values) @ right.T).float()
    x = x.T.contiguous() if turned else x
    exact = torch.linalg.svdvals(x.double())  # of x itself: it was rounded to 32 bits
    wide = x.double().T if turned else x.double()
    assert (leading(wide, 3) is None) == (spectrum == "alike")
    for rank in (1, 3):
        found = atoms(x, rank)
        for factor in (found[0], found[1].T):
            gram = factor.T @ factor
            torch.testing.assert_close(gram - gram.diag().diag(), torch.zeros(rank, rank).double(), atol=1e-8, rtol=0)
        missed = lost(x, found[0] @ found[1])
        assert missed == pytest.approx(exact[rank:].square().sum().item(), rel=1e-6, abs=1e-12)
        assert lost(x, seen_of(LowRank(rank), x)) == pytest.approx(missed, rel=1e-4, abs=1e-10)


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
    for x in (gaussian(9, 2) @ gaussian(2, 31, seed=1), gaussian(31, 1) @ gaussian(1, 9, seed=1)):
        torch.testing.assert_close(seen_of(link, x), x, atol=3e-6, rtol=0)


@pytest.mark.parametrize("link", [LowRank(2), ATOMO(2), PowerSGD(2)], ids=repr)
@pytest.mark.parametrize("shape", [(40,), (), (4, 4), (2, 1000), (1, 9), (9, 1), (0, 3), (3, 0)])
def test_what_factors_would_not_shorten_is_sent_as_it_is(link: Link, shape: tuple[int, ...]) -> None:
    x = matrix(gaussian(*shape))
    packet, seen, _ = link.send(x, link.open(x.zeros())[0], Key(1))
    assert packet[0].tolist() == x.flat.tolist()
    assert seen.flat.equal(x.flat)


def test_the_bytes_are_those_of_the_factors() -> None:
    # 30 x 70: 2,100 floats. 01 06 01 48 01 c8 01 and a byte of padding, then 200 floats; three atoms 300 floats.
    x = matrix(gaussian(30, 10, 7))
    for link in (LowRank(2), PowerSGD(2), ErrorFeedback(LowRank(2))):
        packet, _, _ = link.send(x, link.open(x.zeros())[0], Key(1))
        assert len(dumps(packet)) == 808
        assert link.floats(packet) == 200.0
    whole = Flat(LowRank(2)).send(x, None, Key(1))[0]
    assert len(dumps(whole)) == 8_408


@pytest.mark.parametrize("link", [LowRank(3), ATOMO(3)], ids=repr)
def test_where_a_message_lies_in_memory_does_not_change_a_bit(link: LowRank | ATOMO) -> None:
    x, key = gaussian(33, 131), Key(1)
    packet = link.encode(x, key)
    expected = link.decode(packet, x.shape, key)
    data = packet.numpy().tobytes()
    for offset in range(4, 68, 4):
        moved = torch.frombuffer(bytearray(offset) + data, dtype=torch.float32, offset=offset)
        assert link.decode(moved, x.shape, key).equal(expected)


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


def test_error_feedback_over_what_is_no_contraction_or_has_its_own_is_refused() -> None:
    for link in (ATOMO(2), PowerSGD(2)):
        with pytest.raises(CombinationError, match="needs a link that always keeps a part"):
            ErrorFeedback(link)


@pytest.mark.parametrize("link", [LowRank(2), ATOMO(2), PowerSGD(2)], ids=repr)
def test_each_product_and_each_sum_of_factors_is_rounded_once_on_every_machine(link: Link) -> None:
    # -(1 + 2^-11) and then (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, whose last bit is rounded off: they cancel. Where a
    # library fuses the product with the sum, 2^-24 is left.
    shape = Size([64, 48])
    left = torch.tensor([-(1 + 2**-11), 1 + 2**-12]).expand(64, 2)
    right = torch.tensor([[1.0], [1 + 2**-12]]).expand(2, 48)
    packet = loads(dumps([torch.cat([left.reshape(-1), right.reshape(-1)])]))
    seen, _ = link.recv(packet, Layout(("w",), (shape,)), None, Key(0))
    assert not seen.flat.any()
