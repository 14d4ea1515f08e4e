"""The entries that are kept and where they are: top-k, random k, and the code of positions."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size, Tensor

import thinwire as tw
from problems import EIGHT, ONE, UPDATES, bits, flags, key, noise, once, packed, rounds, seen_by, vector
from thinwire.errors import WireError
from thinwire.kernels.select import top_k
from thinwire.key import Key
from thinwire.links import EF21, STC, Dense, DropoutAvg, Flat, Layerwise, Link, RandK, ScaledSign, Sparse, TopK
from thinwire.links.sparse import count_of, pack_positions, unpack_positions
from thinwire.params import Layout, Params
from thinwire.wire import dumps, loads

# -- top-k -----------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
def test_top_k_takes_the_largest_magnitudes_in_ascending_order_of_place() -> None:
    assert top_k(torch.tensor([1.0, -5.0, 3.0, 0.0, -4.0]), 3).tolist() == [1, 2, 4]
    assert top_k(torch.zeros(0), 0).tolist() == []
    assert seen_by(TopK(0.4), vector(1.0, -5.0, 3.0, 0.0, -4.0)) == [[0.0, -5.0, 0.0, 0.0, -4.0]]


def test_a_share_keeps_at_least_one_entry_of_every_layer() -> None:
    x = Params.of([("a", torch.tensor([1.0, 2.0])), ("b", torch.tensor([0.001]))])
    _, seen, _ = TopK(0.01).send(x, None, key(0))
    assert seen.flat.tolist() == [0.0, 2.0, 0.0010000000474974513]
    _, seen, _ = Flat(TopK(0.01)).send(x, None, key(0))
    assert seen.flat.tolist() == [0.0, 2.0, 0.0]


def test_top_k_of_everything_is_dense() -> None:
    for x in UPDATES:
        _, seen, _ = TopK(1.0).send(x, None, key(0))
        assert bits(seen) == bits(Dense().send(x, None, key(0))[1])
    negative_zero = vector(-0.0, 1e-45, 0.0)
    assert bits(TopK(1.0).send(negative_zero, None, key(0))[1]) == bits(vector(0.0, 1e-45, 0.0))  # no zero is sent


@pytest.mark.usefixtures("kernels")
def test_zeros_stay_zero_and_are_not_sent_where_fewer_entries_are_not_zero_than_the_share() -> None:
    x = vector(0.0, -4.0, 0.0, -0.0, 2.0, 0.0, 0.0, 0.0)
    assert seen_by(TopK(0.5), x) == [x.flat.tolist()]
    assert seen_by(TopK(0.5, values=ScaledSign()), x) == [[0, -3, 0, 0, 3, 0, 0, 0]]
    assert seen_by(STC(0.5), x) == [[0, -3, 0, 0, 3, 0, 0, 0]]
    nothing = [dumps(packet) for packet, _, _ in rounds(STC(0.5), vector(0.0, -0.0))]
    assert nothing == [bytes.fromhex("01 0601 0604 4800 410100 410100 410100 00000000")]


@pytest.mark.usefixtures("kernels")
def test_all_that_equal_the_last_that_is_kept_are_kept() -> None:
    x = vector(1.0, -5.0, 2.0, 1.0, -2.0, 2.0, 0.0, 0.5)  # of 8 a share of 0.25 is 2; three are equal to the second
    assert seen_by(TopK(0.25), x) == [[0, -5, 2, 0, -2, 2, 0, 0]]
    assert seen_by(TopK(0.25, sampled=True), x) == [[0, -5, 2, 0, -2, 2, 0, 0]]
    assert seen_by(STC(0.25), x) == [[0, -2.75, 2.75, 0, -2.75, 2.75, 0, 0]]  # (5 + 2 + 2 + 2) / 4


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("link", [STC(0.25), TopK(0.25), EF21(STC(0.25))], ids=repr)
def test_what_rounding_made_unequal_is_sent_together(link: Link) -> None:
    # 0.003 added to numbers of other sizes, and they taken off again: four ties but for the last bits.
    larger = torch.tensor([0.25, 0.7, 0.1, 0.9, 0.3, 0.6, 0.2, 0.5])
    added = larger + torch.tensor([0.0, 0.003, 0.003, 0.0, -0.003, 0.003, 0.0, 0.001])
    x = Params(EIGHT, added - larger)
    assert len(set(x.flat.abs().tolist())) == 5
    _, seen, _ = link.send(x, link.open(x.zeros())[0], key(0))
    assert seen.flat.nonzero().view(-1).tolist() == [1, 2, 4, 5]


@pytest.mark.usefixtures("kernels")
def test_where_all_are_alike_top_k_keeps_its_share_and_stc_sends_what_repeats_in_next_to_nothing() -> None:
    x = Params(ONE, torch.tensor([0.5, -0.5] * 500))
    for sampled in (False, True):
        _, seen, _ = TopK(0.01, sampled=sampled).send(x, None, key(0))
        assert seen.flat.nonzero().view(-1).tolist() == list(range(10))
    packet, seen, _ = STC(0.01).send(x, None, key(0))
    assert bits(seen) == bits(x)
    assert len(dumps(packet)) == 23  # 11 of structure, 5 of padding, a magnitude, 3: signs that alternate


def test_a_share_is_rounded_up_as_it_is_written() -> None:
    shares = [(0.01, 100), (0.01, 101), (0.07, 100), (0.25, 10), (0.35, 10), (1.0, 7), (1e-9, 5), (0.5, 0), (1 / 3, 3)]
    assert [count_of(share, n) for share, n in shares] == [1, 2, 7, 3, 4, 7, 1, 0, 1]
    assert 0.07 * 100 > 7
    packet, _, _ = DropoutAvg(0.7).send(Params(EIGHT, torch.ones(8)), None, key(0))  # 5.6 of 8 go
    assert packet[0][1].numel() == 3
    assert 1 - 0.7 > 0.3
    packet, _, _ = DropoutAvg(0.7).send(vector(*range(10)), None, key(0))
    assert packet[0][1].numel() == 3


def test_sparse_loses_nothing_not_even_the_sign_of_zero() -> None:
    x = vector(0.0, -0.0, 1e-45, 0.0, 0.0, 0.0, -3.0, 0.0)
    packet, seen, _ = Sparse().send(x, None, key(0))
    assert bits(seen) == bits(x)
    assert packet[0][1].tolist() == [-0.0, 1.401298464324817e-45, -3.0]


@pytest.mark.usefixtures("kernels")
def test_a_sampled_threshold_keeps_about_the_share_and_always_the_largest() -> None:
    x = noise(300_000)
    packet, _ = once(TopK(0.02, sampled=True), x)
    count = packet[0][1].numel()
    assert 0.9 * 6_000 < count < 1.1 * 6_000
    assert count != 6_000
    assert unpack_positions(packet[0][0], 300_000).equal(top_k(x.flat, count))


@pytest.mark.usefixtures("kernels")
def test_in_a_small_layer_a_sampled_threshold_is_exact() -> None:
    x = vector(*(i * 7_919 % 1_009 for i in range(1_000)))  # no two of them equal, nor nearly so
    assert dumps(once(TopK(0.03, sampled=True), x)[0]) == dumps(once(TopK(0.03), x)[0])
    # ... but equal magnitudes stay together, and zeros are never sent.
    assert once(TopK(0.2, sampled=True), vector(1.0, -3.0, 3.0, 0.0, 2.0))[1] == [0.0, -3.0, 3.0, 0.0, 0.0]
    assert once(TopK(0.2, sampled=True), vector(0.0, 0.0, 0.0, 0.0, 0.0))[0][0][1].numel() == 0


# -- random positions ------------------------------------------------------------


def test_random_k_keeps_its_share_on_average() -> None:
    x = Params(EIGHT, torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0]))  # ||x||^2 = 204
    lost = [(x - RandK(0.25).send(x, None, key(t))[1]).norm() ** 2 for t in range(1_000)]
    assert sum(lost) / 1_000 == pytest.approx(153.0, abs=4.4)  # 6/8 of 204; five standard errors


def test_unbiased_random_k_is_the_vector_on_average() -> None:
    x = torch.arange(1.0, 21.0) * torch.tensor([1.0, -1.0] * 10)
    layout = Layout(("a",), (Size([4, 5]),))
    total = torch.zeros(20, dtype=torch.float64)
    for t in range(3_000):
        total += RandK(0.1, unbiased=True).send(Params(layout, x), None, key(t))[1].flat
    # 2 of 20 kept, times ten: variance 9 x^2, standard error 3 |x| / sqrt(3000) = 0.0548 |x|; five of them
    assert ((total / 3_000 - x).abs() / x.abs()).max() < 0.28


def test_unbiased_values_are_divided_by_the_share_kept_not_by_the_share_asked_for() -> None:
    # 10 % of 7 is one entry: times 7, not times 10.
    layout = Layout(("a",), (Size([7]),))
    _, seen, _ = RandK(0.1, unbiased=True).send(Params(layout, torch.full((7,), 2.0)), None, key(0))
    assert sorted(seen.flat.tolist()) == [0, 0, 0, 0, 0, 0, 14.0]


def chosen(link: Link, name: str, k: Key) -> set[int]:
    """The positions of a layer of 1,000 entries which get through."""
    layout = Layout(("a", "b"), (Size([1_000]), Size([1_000])))
    _, seen, _ = link.send(Params(layout, torch.ones(2_000)), link.open(layout.zeros())[0], k)
    return set(seen[name].nonzero().view(-1).tolist())


@pytest.mark.parametrize("link", [RandK(0.05), RandK(0.05, unbiased=True), Layerwise(RandK(0.05))], ids=repr)
def test_no_two_layers_fields_or_rounds_share_their_positions(link: Link) -> None:
    base = Key(1, 5, 2).at("up").at("update")
    masks = [
        chosen(link, "a", base),
        chosen(link, "b", base),
        chosen(link, "a", base._replace(round=6)),
        chosen(link, "a", base._replace(seed=2)),
        chosen(link, "a", Key(1, 5, 2).at("up").at("control")),
        chosen(link, "a", Key(1, 5, 2).at("down").at("update")),
    ]
    assert [len(mask) for mask in masks] == [50] * 6
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert len(one & other) < 15  # 2.5 expected of independent ones


def test_everyone_in_a_round_sends_the_same_positions() -> None:
    masks = [chosen(RandK(0.05), "a", key(3, client)) for client in (None, 0, 1, 77)]
    assert masks[0] == masks[1] == masks[2] == masks[3]


def test_over_the_rounds_every_position_is_sent() -> None:
    seen = set().union(*(chosen(RandK(0.05), "a", key(t)) for t in range(200)))
    assert len(seen) == 1_000  # each is missed with probability 0.95^200 = 0.000035


# -- positions -------------------------------------------------------------------


def bits_of(packed: Tensor) -> list[int]:
    """The bits of bytes, the lowest of each first."""
    return [byte >> place & 1 for byte in packed.tolist() for place in range(8)]


def read_positions(packet: Any, n: int) -> list[int]:
    """The coding of positions as its description has it: one bit after the other."""
    if packet is None:
        return list(range(n))
    if isinstance(packet, Tensor):
        return [i for i, bit in enumerate(bits_of(packet)[:n]) if bit]
    b, quotients, rests = packet[0], bits_of(packet[1]), bits_of(packet[2])
    positions: list[int] = []
    gap, place = 0, 0
    for bit in quotients:
        if not bit:
            gap += 1 << b
            continue
        for i in range(b):
            gap += rests[place + i] << i
        place += b
        positions.append((positions[-1] if positions else -1) + 1 + gap)
        gap = 0
    assert len(rests) - 8 < place <= len(rests)
    return positions


def cost(packet: Any) -> int:
    """Bytes."""
    if isinstance(packet, Tensor):
        return packet.numel()
    return packet[1].numel() + packet[2].numel()


def test_positions_by_hand() -> None:
    # Gaps 9, 20, 14, 34 with b = 4: quotients 0, 1, 0, 2; rests 9, 4, 14, 2, the lowest bit first.
    b, quotients, rests = pack_positions(torch.tensor([9, 30, 45, 80]), 100)
    assert b == 4
    assert "".join(map(str, bits_of(quotients))) == "10110010"
    assert "".join(map(str, bits_of(rests))) == "1001001001110100"
    assert unpack_positions([b, quotients, rests], 100).tolist() == [9, 30, 45, 80]


@pytest.mark.usefixtures("kernels")
def test_positions_by_hand_in_bytes() -> None:
    packet = pack_positions(torch.tensor([9, 30, 45, 80]), 100)
    # list of 3; 4; a byte and two of them; 1011001 and 1001001001110100 lowest bit first
    assert dumps(packet).hex() == "01060303084101014101024d492e"


def test_all_positions_need_no_bytes_and_dense_ones_a_bit_each() -> None:
    assert pack_positions(torch.arange(5), 5) is None
    packet = pack_positions(torch.tensor([0, 2, 4]), 5)  # gaps 0, 1, 1 would take five bits too
    assert packet.tolist() == [0b10101]
    assert pack_positions(torch.arange(0), 0) is None
    nothing = pack_positions(torch.arange(0), 50)
    assert cost(nothing) == 0
    assert unpack_positions(nothing, 50).tolist() == []
    assert unpack_positions(None, 3).tolist() == [0, 1, 2]
    assert unpack_positions(None, 0).tolist() == []


def by_levels(packet: Any, n: int) -> bool:
    """Whether positions are coded by the adaptive coder: in fewer bytes than one bit an entry."""
    return isinstance(packet, Tensor) and packet.numel() < (n + 7) // 8


@pytest.mark.usefixtures("kernels")
@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_packed_positions_are_read_by_an_independent_reader(case: tuple[int, set[int]]) -> None:
    n, positions = case[0], sorted(case[1])
    packet = loads(dumps(pack_positions(torch.tensor(positions, dtype=torch.int64), n)))
    if not by_levels(packet, n):
        assert read_positions(packet, n) == positions
    assert unpack_positions(packet, n).tolist() == positions


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("n", [1_000, 3_000])
def test_the_smaller_of_rice_and_bits_is_sent(share: float, n: int) -> None:
    draw = random.Random(int(share * 10_000) + n)
    for _ in range(5):
        positions = sorted(draw.sample(range(n), max(1, round(share * n))))
        packet = pack_positions(torch.tensor(positions), n)
        gaps = [b - a - 1 for a, b in zip([-1, *positions], positions, strict=False)]
        rice, b = min((sum((gap >> b) + 1 + b for gap in gaps), b) for b in range(16))
        if by_levels(packet, n):
            assert packet.numel() < min((rice + 7) // 8, (n + 7) // 8)
            continue
        assert isinstance(packet, Tensor) is (rice >= n)
        rest = b * len(gaps)
        assert cost(packet) == ((n + 7) // 8 if rice >= n else (rest + 7) // 8 + (rice - rest + 7) // 8)
        assert read_positions(packet, n) == positions


# log2 of 100,000 over 1,000 / 5,000 / 10,000: what any code for random positions needs on average.
@pytest.mark.parametrize(("kept", "entropy"), [(1_000, 8_073.0), (5_000, 28_632.3), (10_000, 46_891.7)])
def test_random_positions_cost_no_more_than_five_percent_over_the_entropy(kept: int, entropy: float) -> None:
    positions = torch.randperm(100_000, generator=torch.Generator().manual_seed(kept))[:kept].sort().values
    packet = pack_positions(positions, 100_000)
    assert entropy <= 8 * cost(packet) <= 1.05 * entropy
    assert len(dumps(packet)) <= 1.05 * entropy / 8 + 20


def test_far_apart_positions_of_a_large_vector_survive() -> None:
    n = 2**33
    positions = torch.tensor([0, 5, 2**32, n - 1])
    packet = loads(dumps(pack_positions(positions, n)))
    assert unpack_positions(packet, n).tolist() == [0, 5, 2**32, n - 1]
    assert len(dumps(packet)) < 40


def test_clustered_positions_take_next_to_nothing() -> None:
    packet = pack_positions(torch.arange(10_000), 1_000_000)
    assert len(tw.dumps(packet)) < 100  # a bit each would be 1,250
    assert unpack_positions(tw.loads(tw.dumps(packet)), 1_000_000).tolist() == list(range(10_000))


HOSTILE_POSITIONS = {
    "a number": 3,
    "true": True,
    "text": "all",
    "an empty list": [],
    "a dict": {},
    "two parts": [1, packed("1")],
    "four parts": [1, packed("1"), packed("0"), None],
    "b of another type": [1.0, packed("1"), packed("0")],
    "b is true": [True, packed("1"), packed("0")],
    "b as a tensor": [torch.tensor(1), packed("1"), packed("0")],
    "a negative b": [-1, packed("1"), packed("")],
    "b of 48": [48, packed("1"), packed("0" * 48)],
    "b beyond any shift": [2**62, packed("1"), packed("")],
    "quotients of another type": [1, packed("1").to(torch.int8), packed("0")],
    "quotients as truth values": [1, flags(1), packed("0")],
    "quotients of two dimensions": [1, packed("1").view(1, 1), packed("0")],
    "a scalar quotient": [1, torch.tensor(1, dtype=torch.uint8), packed("0")],
    "quotients as a list": [1, [1], packed("0")],
    "no quotients": [1, None, packed("0")],
    "quotients that do not end": [1, torch.cat([packed("1"), packed("0")]), packed("0")],
    "quotients that never end": [1, packed("0"), packed("")],
    "too few rests": [3, packed("111"), packed("1")],
    "too many rests": [2, packed("1"), packed("0" * 9)],
    "bits beyond the rests": [2, packed("1"), packed("001")],
    "rests without positions": [2, packed(""), packed("1")],
    "rests of another type": [1, packed("1"), torch.zeros(1)],
    "rests as numbers": [1, packed("1"), 1],
    "a position at the end": [0, packed("0" * 10 + "1"), packed("")],
    "a position far beyond": [3, packed("001"), packed("111")],
    "a rest far beyond": [4, packed("1"), packed("1111")],
    "rests whose sum is far beyond": [4, packed("1" * 10), packed("1" * 40)],
    "a run of many bytes": [0, torch.cat([torch.zeros(1_000, dtype=torch.uint8), packed("1")]), packed("")],
    "a run that a shift would wrap": [4, torch.cat([torch.zeros(1_000, dtype=torch.uint8), packed("1")]), packed("1")],
    "more positions than entries": [0, packed("1" * 11), packed("")],
    "too few bits": packed("1" * 8),
    "too many bits": packed("1" * 17),
    "bits beyond the end": packed("1" * 11),
    "bits of two dimensions": packed("1" * 10).view(1, 2),
    "positions as they are": torch.tensor([1, 2, 3]),
    "bits as truth values": flags(*[1] * 10),
    "bits as floats": torch.ones(2),
}


@pytest.mark.parametrize("packet", HOSTILE_POSITIONS.values(), ids=HOSTILE_POSITIONS.keys())
def test_hostile_positions_are_refused(packet: Any) -> None:
    with pytest.raises(WireError):
        unpack_positions(loads(dumps(packet)), 10)


def test_a_rice_parameter_that_would_wrap_round_is_refused() -> None:
    k = 65_537
    ones = torch.full((k // 8 + 1,), 255, dtype=torch.uint8)
    ones[-1] = 1  # 65,537 quotients of zero
    rests = torch.full((-(-k * 47 // 8),), 255, dtype=torch.uint8)
    rests[-1] = 127
    packet = [47, ones, rests]
    with pytest.raises(WireError, match="a Rice parameter for gaps below 65537"):
        unpack_positions(tw.loads(tw.dumps(packet)), k)


def test_random_bits_are_positions_or_refused() -> None:
    draw = random.Random(4)
    good = 0
    for _ in range(3_000):
        n, b = draw.randint(1, 40), draw.choice([0, 0, 1, 1, 2, 3, 5, 47])
        quotients = "".join("01"[draw.random() < 0.7] for _ in range(draw.randint(0, 12)))
        length = max(0, b * quotients.count("1") + draw.choice([0, 0, 0, 1, 8, -1]))
        rests = "".join("01"[draw.random() < 0.3] for _ in range(length))
        packet = [b, packed(quotients), packed(rests)]
        try:
            positions = unpack_positions(packet, n).tolist()
        except WireError:
            continue
        good += 1
        assert positions == sorted(set(positions))
        assert all(0 <= p < n for p in positions)
        assert positions == read_positions(packet, n)
    assert good > 300
