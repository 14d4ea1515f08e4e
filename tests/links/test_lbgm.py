"""Look-back by hand, over other links, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size, Tensor

import thinwire as tw
from problems import LAYOUT, ONE, TWO, UPDATES, VECTORS, bits, drifting, eight, key, rounds, thousand, through, vector
from thinwire.key import Key
from thinwire.links import (
    ATOMO,
    BF16,
    LBGM,
    QSGD,
    STC,
    Budget,
    ByBandwidth,
    CountSketch,
    Dense,
    DropoutAvg,
    Entropy,
    ErrorFeedback,
    Flat,
    Half,
    Int8,
    Layerwise,
    Link,
    LowRank,
    Partition,
    PowerSGD,
    Projection,
    RandK,
    RandomBlock,
    ScaledSign,
    SignSGD,
    Sparse,
    Ternary,
    TopK,
)
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

KEY = Key(0)


def test_lbgm_by_hand() -> None:
    """Numpy::

    l = None
    for g in (3, 4), (4, 3), (6, 8), (-3, -4), (4, -3), (8, -6):
        if l is not None: sin2, rho = 1 - (g @ l)**2 / (g @ g) / (l @ l), g @ l / (l @ l)
        if l is None or sin2 > 0.2: l = g          # sent whole
        print(sin2, rho, rho * l)
    # 0.0784 0.96 (2.88, 3.84); 0 2 (6, 8); 0 -1 (-3, -4); 1 -> whole; 0 2 (8, -6)
    """
    xs = [vector(3, 4), vector(4, 3), vector(6, 8), vector(-3, -4), vector(4, -3), vector(8, -6)]
    results = list(rounds(LBGM(threshold=0.2), *(x.map(Tensor.float) for x in xs)))
    whole = [isinstance(packet, list) for packet, _, _ in results]
    assert whole == [True, False, False, False, True, False]
    assert [packet.item() for packet, _, _ in results if isinstance(packet, Tensor)] == [
        pytest.approx(0.96, rel=1e-7),
        2.0,
        -1.0,
        2.0,
    ]
    assert results[1][1] == pytest.approx([2.88, 3.84], rel=1e-6)
    assert [seen for _, seen, _ in results[2:]] == [[6, 8], [-3, -4], [4, -3], [8, -6]]
    assert [tx.gradient.flat.tolist() for _, _, tx in results] == [[3, 4]] * 4 + [[4, -3]] * 2


@pytest.mark.parametrize(
    ("threshold", "whole"),
    [(0.0, [True, True, False]), (0.0783, [True, True, False]), (0.0785, [True, False, False])],
)
def test_the_threshold_is_a_squared_sine(threshold: float, whole: list[bool]) -> None:
    # 0.0784 = 1 - (24/25)^2; the third is collinear with both of the look-backs it may meet only where it was stored
    third = vector(8.0, 6.0) if whole[1] else vector(6.0, 8.0)
    results = rounds(LBGM(threshold=threshold), vector(3.0, 4.0), vector(4.0, 3.0), third)
    assert [isinstance(packet, list) for packet, _, _ in results] == whole


@pytest.mark.parametrize(
    ("delta", "whole"), [(1.0, [True, True, True]), (1.5, [True, False, True]), (2.9, [True, False, False])]
)
def test_delta_is_the_length_that_a_recycled_update_may_lose(delta: float, whole: list[bool]) -> None:
    # (4, 3) leaves 1.4 of its length outside (3, 4), and twice it 2.8: with sin^2 = .0784 in both cases.
    results = rounds(LBGM(threshold=1.0, delta=delta), vector(3.0, 4.0), vector(4.0, 3.0), vector(8.0, 6.0))
    expected = [True, True, False] if whole == [True, True, True] else whole  # then l is (4, 3), and twice it is exact
    assert [isinstance(packet, list) for packet, _, _ in results] == expected


def test_threshold_and_delta_are_both_to_be_met() -> None:
    xs = vector(3.0, 4.0), vector(4.0, 3.0)
    for threshold, delta, whole in (
        (0.0783, 9.0, True),
        (0.0785, 9.0, False),
        (0.0785, 1.39, True),
        (1.0, 1.41, False),
    ):
        *_, (packet, _, _) = rounds(LBGM(threshold=threshold, delta=delta), *xs)
        assert isinstance(packet, list) == whole


def test_each_client_may_have_a_threshold_and_a_delta_of_its_own() -> None:
    xs = vector(3.0, 4.0), vector(4.0, 3.0)

    def whole(link: LBGM, client: int | None) -> bool:
        tx, _ = link.open(xs[0].zeros())
        for x in xs:
            packet, _, tx = link.send(x, tx, Key(0, 1, client))
            assert link.look(x, tx, Key(0, 1, client)).popitem()[1].recycled
        return isinstance(packet, list)

    assert [whole(LBGM(threshold=(0.07, 0.08)), client) for client in (0, 1)] == [True, False]
    assert [whole(LBGM(threshold=1.0, delta=(1.3, 1.5)), client) for client in (0, 1)] == [True, False]
    assert repr(LBGM(threshold=(0.07, 0.08), delta=(1, 2))) == "LBGM(threshold=(0.07, 0.08), delta=(1.0, 2.0))"
    assert LBGM(TopK(0.1), threshold=(0.2, 0.9), compare="dense").contraction
    assert not LBGM(TopK(0.1), threshold=(0.2, 1.0), compare="dense").contraction
    for client in (2, None):
        with pytest.raises(ValueError, match=f"for clients 0 to 1: give client {client} a threshold too"):
            whole(LBGM(threshold=(0.07, 0.08)), client)


def test_a_delta_that_is_negative_or_that_nobody_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LBGM\(delta=-1\.0\): delta must not be negative"):
        LBGM(delta=-1.0)
    with pytest.raises(ValueError, match=r"LBGM\(threshold=2\.0\): threshold is a squared sine"):
        LBGM(threshold=(0.2, 2.0))
    with pytest.raises(ValueError, match=r"LBGM\(delta=\(\)\): a number is expected, or a tuple"):
        LBGM(delta=())


def test_a_threshold_of_one_sends_one_full_update_and_then_scalars_for_ever() -> None:
    results = list(
        rounds(LBGM(threshold=1.0), vector(3.0, 4.0), vector(4.0, -3.0), vector(1.0, 0.0), vector(-3.0, 9.0))
    )
    assert [isinstance(packet, list) for packet, _, _ in results] == [True, False, False, False]
    assert results[1][1] == [0.0, 0.0]  # orthogonal: rho = 0
    assert results[2][1] == pytest.approx([0.36, 0.48], rel=1e-6)
    assert results[3][1] == pytest.approx([3.24, 4.32], rel=1e-6)  # 27 / 25


def test_an_update_of_zero_sends_rho_zero_and_keeps_the_look_back() -> None:
    results = list(rounds(LBGM(threshold=0.0), vector(3.0, 4.0), vector(0.0, 0.0), vector(6.0, 8.0)))
    assert results[1][0].item() == 0.0
    assert results[1][1] == [0.0, 0.0]
    assert results[1][2].gradient.flat.tolist() == [3.0, 4.0]
    assert results[2][0].item() == 2.0


def test_without_a_look_back_the_update_is_sent_in_full_even_at_threshold_one() -> None:
    results = list(rounds(LBGM(threshold=1.0), vector(0.0, 0.0), vector(0.0, 0.0), vector(3.0, 4.0), vector(0.0, 4.0)))
    assert [isinstance(packet, list) for packet, _, _ in results] == [True, True, True, False]


@given(VECTORS, st.integers(-3, 3))
def test_an_update_along_the_look_back_is_a_scalar_at_threshold_zero(values: list[float], exponent: int) -> None:
    x = eight(values)
    scale = -(2.0**exponent)  # exact, so exactly collinear; rounding must not make the sine positive
    link = LBGM(threshold=0.0)
    _, _, tx = link.send(x, link.open(x.zeros())[0], key(0))
    if x.norm() > 0 and (x * scale * (1 / scale)).flat.equal(x.flat):
        packet, seen, _ = link.send(x * scale, tx, key(1))
        assert packet.item() == scale
        assert seen.flat.equal((x * scale).flat)


def test_rho_is_seen_as_the_32_bits_that_are_sent() -> None:
    results = list(rounds(LBGM(threshold=0.5), vector(3.0, 1.0, 7.0), vector(2.0, 1.0, 7.0)))
    # numpy: 56 / 59 = 0.9491525423728814, in 32 bits 0.9491525292396545
    assert results[1][0].dtype == torch.float32
    assert results[1][0].item() == 0.9491525292396545


@given(VECTORS, VECTORS)
def test_a_recycled_update_is_off_by_no_more_than_the_threshold(first: list[float], second: list[float]) -> None:
    link, x, y = LBGM(threshold=0.3), eight(first), eight(second)
    _, _, tx = link.send(x, link.open(x.zeros())[0], key(0))
    packet, seen, _ = link.send(y, tx, key(1))
    lost = (y.flat.double() - seen.flat.double()).square().sum().item()
    # rho is rounded to 32 bits, and rho * l once more
    assert lost <= (0.3 + 1e-6) * y.flat.double().square().sum().item() + 1e-80
    if isinstance(packet, list):
        assert lost == 0.0


def test_looking_back_sends_whole_what_no_finite_multiple_reaches() -> None:
    link, layout = LBGM(threshold=1.0), tw.Layout(("a",), (Size([2]),))
    _, _, tx = link.send(tw.Params(layout, torch.tensor([1e-30, 0.0])), link.open(layout.zeros())[0], KEY)
    packet, seen, _ = link.send(tw.Params(layout, torch.tensor([1e15, 0.0])), tx, KEY)
    assert isinstance(packet, list)
    assert seen.flat.tolist() == pytest.approx([1e15, 0.0])


# -- over other links ------------------------------------------------------------


def test_looking_back_is_a_contraction_only_over_what_loses_nothing() -> None:
    assert LBGM().contraction
    assert LBGM(Sparse()).contraction
    assert not LBGM(ScaledSign(), 0.2).contraction
    with pytest.raises(tw.errors.CombinationError, match="needs a link that always keeps a part"):
        tw.ErrorFeedback(LBGM(ScaledSign()))


def test_a_recycled_round_keeps_the_inner_links_residual() -> None:
    # Top-1 of two with error feedback. Round 2: p = (2, 5); u = (0, 5) is orthogonal to l = (4, 0), so rho = 0 is sent
    # and nothing seen, but the base took u out of its residual: (2, 0) is left.
    link = LBGM(ErrorFeedback(TopK(0.5)), threshold=1.0)
    results = list(rounds(link, vector(4.0, 3.0), vector(2.0, 2.0), vector(1.0, 0.0)))
    assert [seen for _, seen, _ in results] == [[4, 0], [0, 0], [3, 0]]
    assert [tx.inner.residual.flat.tolist() for _, _, tx in results] == [[0, 3], [2, 0], [0, 0]]
    assert [tx.gradient.flat.tolist() for _, _, tx in results] == [[4, 0]] * 3
    assert [isinstance(packet, Tensor) for packet, _, _ in results] == [False, True, True]


def test_against_the_dense_update_by_hand() -> None:
    """Top-1 of two. Numpy, g the dense update and l what was delivered::

    l = None
    for g in (4, 3), (8, 2), (3, 4), (3, 4):
        if l is not None: sin2, rho = 1 - (g @ l)**2 / (g @ g) / (l @ l), g @ l / (l @ l)
        if l is None or sin2 > 0.1: l = np.where(np.abs(g) == np.abs(g).max(), g, 0)   # sent
        print(sin2, rho, l)
    # (4, 0); 0.0588 2.0 -> recycled; 0.64 -> (0, 4); 0.36 -> (0, 4) again, though top-1 delivers the same as before
    """
    xs = [vector(4.0, 3.0), vector(8.0, 2.0), vector(3.0, 4.0), vector(3.0, 4.0)]
    results = list(rounds(LBGM(TopK(0.5), threshold=0.1, compare="dense"), *xs))
    assert [isinstance(packet, list) for packet, _, _ in results] == [True, False, True, True]
    assert [seen for _, seen, _ in results] == [[4, 0], [8, 0], [0, 4], [0, 4]]
    assert [tx.gradient.flat.tolist() for _, _, tx in results] == [[4, 0], [4, 0], [0, 4], [0, 4]]
    delivered = rounds(LBGM(TopK(0.5), threshold=0.1), *xs)
    assert [isinstance(packet, list) for packet, _, _ in delivered] == [True, False, True, False]


@given(VECTORS, VECTORS)
def test_against_the_dense_update_recycling_over_a_compressor_is_bounded_too(
    first: list[float], second: list[float]
) -> None:
    link, x, y = LBGM(TopK(0.25), threshold=0.3, compare="dense"), eight(first), eight(second)
    _, _, tx = link.send(x, link.open(x.zeros())[0], key(0))
    packet, seen, _ = link.send(y, tx, key(1))
    lost = (y.flat.double() - seen.flat.double()).square().sum().item()
    most = 6 / 8 if isinstance(packet, list) else 0.3
    assert lost <= (most + 1e-6) * y.flat.double().square().sum().item() + 1e-80


def test_against_the_dense_update_a_recycled_round_leaves_the_inner_links_residual_alone() -> None:
    # Top-1 of two with error feedback: (4, 0) is sent and (0, 3) owed. (8, 1) is within .0154 of it: rho = 2, and what
    # is owed is still (0, 3), where top-1 would have been handed (8, 4) and owe (0, 4).
    link = LBGM(ErrorFeedback(TopK(0.5)), threshold=0.1, compare="dense")
    results = list(rounds(link, vector(4.0, 3.0), vector(8.0, 1.0), vector(0.0, 2.0)))
    assert [seen for _, seen, _ in results] == [[4, 0], [8, 0], [0, 5]]
    assert [tx.inner.residual.flat.tolist() for _, _, tx in results] == [[0, 3], [0, 3], [0, 0]]


def test_error_feedback_around_lbgm_owes_what_recycling_left_out() -> None:
    # p = g + e: (4, 3), sent as (4, 0); (4, 4), sin^2 = .5, recycled as (4, 0); (0, 5), orthogonal, sent as it is
    link = ErrorFeedback(LBGM(TopK(0.5), threshold=0.6, compare="dense"))
    results = list(rounds(link, vector(4.0, 3.0), vector(4.0, 1.0), vector(0.0, 1.0)))
    assert [isinstance(packet, list) for packet, _, _ in results] == [True, False, True]
    assert [seen for _, seen, _ in results] == [[4, 0], [4, 0], [0, 5]]
    assert [tx.residual.flat.tolist() for _, _, tx in results] == [[0, 3], [0, 4], [0, 0]]


def test_what_top_k_with_feedback_delivers_of_a_constant_update_has_no_direction_to_keep() -> None:
    # Residuals 0; (0, 3, 1); (4, 0, 2); (0, 3, 3): each delivery is at a right angle to the one before.
    x = vector(4.0, 3.0, 1.0)
    over = list(rounds(LBGM(ErrorFeedback(TopK(0.01)), threshold=0.98), x, x, x, x))
    assert [seen for _, seen, _ in over] == [[4, 0, 0], [0, 6, 0], [8, 0, 0], [0, 6, 0]]
    assert [isinstance(packet, list) for packet, _, _ in over] == [True, True, True, True]
    dense = list(rounds(LBGM(threshold=0.001), x, x, x, x))  # what the authors' code tests
    assert [isinstance(packet, list) for packet, _, _ in dense] == [True, False, False, False]


MEMORYLESS = [
    *[Dense(), Half(), BF16(), Sparse(), TopK(0.3), RandK(0.4), RandK(0.4, unbiased=True), ScaledSign()],
    *[
        Flat(TopK(0.3)),
        Flat(ScaledSign()),
        Projection(16),
        Flat(Projection(90)),
        Budget(700, (TopK(0.01), TopK(0.1), Half())),
    ],
    *[SignSGD(), QSGD(16), Int8(), Ternary(), STC(0.3), RandomBlock(3.0), DropoutAvg(0.5), Entropy(TopK(0.3))],
    *[LowRank(2), ATOMO(2), PowerSGD(2), CountSketch(3, 60)],
    *[ErrorFeedback(TopK(0.3)), ErrorFeedback(Flat(ScaledSign())), Layerwise(TopK(0.3))],
    Partition({"*.bias": Dense(), "*": ErrorFeedback(TopK(0.3))}),
]


memoryless = pytest.mark.parametrize("inner", MEMORYLESS, ids=repr)


@memoryless
@pytest.mark.parametrize("compare", ["delivered", "dense"])
def test_how_the_look_back_is_stored_changes_nothing_that_is_sent_or_seen(inner: Link, compare: Any) -> None:
    dense, packet = (LBGM(inner, 0.99, compare, store) for store in ("dense", "packet"))  # type: ignore[arg-type]
    ends, others, whole = dense.open(LAYOUT.zeros()), packet.open(LAYOUT.zeros()), 0
    for t, x in enumerate(drifting(12)):
        data, seen, *ends = through(dense, x, *ends, key(t))
        other, again, *others = through(packet, x, *others, key(t))
        assert data == other
        assert bits(seen) == bits(again)
        whole += isinstance(loads(data), list)
    assert 0 < whole < 12


@pytest.mark.parametrize("compare", ["delivered", "dense"])
def test_a_look_back_gradient_is_decoded_by_the_link_of_the_rate_it_was_sent_at(compare: Any) -> None:
    inner = ByBandwidth({"1": Half(), "0": RandK(0.5)})
    dense, packet = (LBGM(inner, 0.9, compare, store) for store in ("dense", "packet"))  # type: ignore[arg-type]
    ends, others, kinds = dense.open(LAYOUT.zeros()), packet.open(LAYOUT.zeros()), []
    for t, (x, mbit) in enumerate(zip(drifting(8), [2.0, 0.5] * 4, strict=True)):
        data, seen, *ends = through(dense, x, *ends, key(t)._replace(mbit=mbit))
        other, again, *others = through(packet, x, *others, key(t)._replace(mbit=mbit))
        assert data == other
        assert bits(seen) == bits(again)
        kinds.append(isinstance(loads(data), list))
    assert kinds[:2] == [True, False]  # what was sent at 2 Mbit/s is looked back on at 0.5


@memoryless
@pytest.mark.parametrize("compare", ["delivered", "dense"])
def test_at_threshold_zero_lbgm_sees_what_the_link_it_holds_sees(inner: Link, compare: Any) -> None:
    link = LBGM(inner, 0.0, compare)
    ends, others = link.open(LAYOUT.zeros()), inner.open(LAYOUT.zeros())
    for t, x in enumerate(drifting(5)):
        _, seen, *ends = through(link, x, *ends, key(t))
        _, plain, *others = through(inner, x, *others, key(t))
        assert bits(seen) == bits(plain)


def test_over_a_dense_link_it_is_all_the_same_what_is_compared() -> None:
    delivered, dense = LBGM(threshold=0.3), LBGM(threshold=0.3, compare="dense")
    ends, others, sizes = delivered.open(LAYOUT.zeros()), dense.open(LAYOUT.zeros()), []
    for t, x in enumerate([*UPDATES, *drifting(12)]):
        data, seen, *ends = through(delivered, x, *ends, key(t))
        other, again, *others = through(dense, x, *others, key(t))
        assert (data, bits(seen), dumps(ends)) == (other, bits(again), dumps(others))
        sizes.append(len(data))
    assert 0 < sizes.count(8) < len(sizes)


# -- bytes -----------------------------------------------------------------------


SECOND = [
    (LBGM(), 8, 8),  # 01 48 00, a byte of padding, four of rho
    (LBGM(TopK(0.1)), 8, 8),
    (LBGM(Layerwise(TopK(0.1))), 8, 8),
    (Layerwise(LBGM()), 12, 16),  # 01 06 01 48 00: a scalar a layer
    (Layerwise(LBGM(TopK(0.1))), 12, 16),
    (Partition({"b": LBGM(), "*": LBGM()}), 12, 16),
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("link", "one", "two"), SECOND, ids=lambda v: repr(v) if isinstance(v, Link) else "")
def test_an_update_of_the_same_direction_takes_these_bytes(link: Link, one: int, two: int) -> None:
    for layout, expected in ((ONE, one), (TWO, two)):
        x = thousand(layout)
        tx, rx = link.open(x.zeros())
        _, first, tx, rx = through(link, x, tx, rx, key(0))
        data, seen, tx, rx = through(link, x * 2, tx, rx, key(1))
        assert len(data) == expected
        assert bits(seen) == bits(first * 2)


def test_the_bytes_of_a_scalar_are_these() -> None:
    link, x = LBGM(), Params(Layout(("a",), (Size([2]),)), torch.tensor([3.0, 4.0]))
    data, _, tx, rx = through(link, x, *link.open(x.zeros()), key(0))
    assert data == bytes.fromhex("010601 480102 0000 00004040 00008040")
    data, _, tx, rx = through(link, x * -0.5, tx, rx, key(1))
    assert data == bytes.fromhex("014800 00 000000bf")


# Bytes of the receiver's state after one update of a thousand entries; 4,008 where l is kept dense. Beside the packet
# (see BYTES) there are some 40 for the key, the layer's name, its shape and the padding.
STORED = [
    (Dense(), 4_047),
    (Half(), 2_047),
    (TopK(0.1), 515),
    (ScaledSign(), 180),
    (ErrorFeedback(TopK(0.1)), 515),
]


@pytest.mark.parametrize(("inner", "size"), STORED, ids=lambda v: repr(v) if isinstance(v, Link) else "")
def test_a_look_back_gradient_stored_as_it_came_takes_these_bytes(inner: Link, size: int) -> None:
    layout = Layout(("a",), (Size([1_000]),))
    dense, packet = LBGM(inner), LBGM(inner, store="packet")
    _, _, dense_tx, dense_rx = through(dense, thousand(layout), *dense.open(layout.zeros()), key(0))
    _, _, packet_tx, packet_rx = through(packet, thousand(layout), *packet.open(layout.zeros()), key(0))
    assert len(dumps(dense_rx)) == 4_008
    assert len(dumps(packet_rx)) == size
    saved = len(dumps(dense_tx)) - len(dumps(packet_tx))  # the sender's residual, where it has one, stays
    assert abs(saved - (4_008 - size)) <= 3


def test_of_the_messages_that_were_kept_those_that_are_superseded_go() -> None:
    x = Params.of([(name, torch.tensor([1.0, 2.0])) for name in "abc"])
    link, kept = LBGM(threshold=0.0, store="packet"), []
    tx, rx = link.open(x.zeros())
    turned = x.map(lambda f: f * torch.tensor([1.0, -1.0] * 3))
    for t, (update, names) in enumerate([(x, "abc"), (turned, "ab"), (x, "bc"), (turned, "ac")]):
        _, _, tx, rx = through(link, update.only(names), tx, rx, key(t))
        kept.append([list(loads(message)[1]) for message in rx])
    assert kept == [
        [["a", "b", "c"]],
        [["a", "b", "c"], ["a", "b"]],
        [["a", "b"], ["b", "c"]],
        [["b", "c"], ["a", "c"]],
    ]
    _, seen, _, _ = through(link, Params(x.layout, torch.tensor([2.0, -4.0, 2.0, 4.0, 2.0, -4.0])), tx, rx, key(4))
    assert seen.flat.tolist() == [2.0, -4.0, 2.0, 4.0, 2.0, -4.0]  # twice what was last sent of each: a scalar
