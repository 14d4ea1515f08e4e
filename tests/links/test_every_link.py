"""Every link through the same mill: each law over each setting of the table."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from torch import Size, Tensor

import processes
import thinwire as tw
from problems import LAYOUT, ONE, TWO, UPDATES, VECTORS, bits, drifting, eight, flags, key, packed, thousand, through
from tables import LINKS
from thinwire import params
from thinwire.errors import CombinationError, NonFinite, WireError
from thinwire.expression import vocabulary
from thinwire.kernels import native
from thinwire.links import (
    ATOMO,
    BF16,
    LBGM,
    QSGD,
    Budget,
    Codec,
    CountSketch,
    Dense,
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
    Sparse,
    Ternary,
    TopK,
)
from thinwire.params import Layout, Params
from thinwire.wire import clone, dumps, loads, restore
from tiers import tiers


def columns(column: str) -> list[tuple[str, Any]]:
    """The settings that a column of the table has, and what it says of each."""
    return [(text, said) for row in LINKS for text, said in getattr(row, column).items()]


def settings_of(column: str) -> list[Any]:
    """The same as parameters."""
    return tiers(columns(column), name=lambda row: str(row[0]))


class Row(NamedTuple):
    """A setting of a link, as the laws take it."""

    link: Link
    most: int  # bytes of a packet of LAYOUT, whatever is sent
    flags: str


BY_LINK = [[Row(tw.parse(text), *law) for text, law in row.laws.items()] for row in LINKS]
ROWS = [row for rows in BY_LINK for row in rows]
every = pytest.mark.parametrize(
    "row", [each for rows in BY_LINK for each in tiers(rows, fast=2, slow=3, name=lambda row: repr(row.link))]
)
means = [row for row in ROWS if "l" in row.flags and not set("eh") & set(row.flags)]
linear = pytest.mark.parametrize("row", means, ids=lambda row: repr(row.link))
MEDIANS = [row.link for row in ROWS if "h" in row.flags]


def test_every_link_has_one_row_with_laws_and_settings_to_be_measured() -> None:
    names = [row.name for row in LINKS]
    assert sorted(names) == sorted(name for name, cls in vocabulary().items() if issubclass(cls, Link))
    for row in LINKS:
        assert row.laws, row.name
        assert row.measured, row.name
        assert {type(tw.parse(text)).__name__ for text in (*row.laws, *row.same)} == {row.name}
        assert all(row.name + "(" in text for text in row.measured)


def test_the_table_names_a_link_as_it_names_itself() -> None:
    for row in LINKS:
        assert [repr(tw.parse(text)) for text in row.laws] == list(row.laws)


def test_tests_are_made_without_a_compiler_too(kernels: str) -> None:
    assert (native.library(torch.zeros(1)) is None) is (kernels == "reference")


@every
def test_what_is_said_of_a_link_is_what_the_table_says(row: Row) -> None:
    for letter, flag in zip("lcma", ("linear", "contraction", "memory", "absolute"), strict=True):
        assert getattr(row.link, flag) is (letter in row.flags), flag


@cache
def straight(link: Link) -> list[tuple[bytes, ...]]:
    """Ten rounds in which nothing is lost: the message of each, what is seen, and the states of both ends after it."""
    (tx, rx), found = link.open(LAYOUT.zeros()), []
    for t, x in enumerate(UPDATES):
        data, seen, tx, rx = through(link, x, tx, rx, key(t))
        found.append((data, bits(seen), dumps(tx), dumps(rx)))
    return found


@pytest.mark.usefixtures("kernels")
@every
def test_the_receiver_sees_bit_for_bit_what_the_sender_says_in_every_round(row: Row) -> None:
    tx, rx = row.link.open(LAYOUT.zeros())
    for t, x in enumerate(UPDATES):
        data, seen, tx, rx = through(row.link, x, tx, rx, key(t))
        assert len(data) <= row.most, t
        # The same of the kernels in C and of their references, whichever came first.
        assert (data, bits(seen), dumps(tx), dumps(rx)) == straight(row.link)[t]


@every
def test_entries_that_are_all_alike_take_no_more_bytes_than_the_table_says(row: Row) -> None:
    x = Params(LAYOUT, torch.tensor([0.5, -0.5, 0.5, 0.5] * 88))
    data, _, _, _ = through(row.link, x, *row.link.open(LAYOUT.zeros()), key(0))
    assert len(data) <= row.most


@every
def test_both_ends_continue_from_saved_states_with_the_same_bits(row: Row) -> None:
    # Restored into the states of a fresh start: their structure is fixed from then on.
    tx, rx = start_tx, start_rx = row.link.open(LAYOUT.zeros())
    for t, x in enumerate(UPDATES):
        tx, rx = restore(loads(dumps(tx)), start_tx), restore(loads(dumps(rx)), start_rx)
        data, seen, tx, rx = through(row.link, x, tx, rx, key(t))
        assert (data, bits(seen), dumps(tx), dumps(rx)) == straight(row.link)[t]


@every
def test_nothing_that_is_handed_in_is_written_to(row: Row) -> None:
    tx, rx = row.link.open(LAYOUT.zeros())
    for t, x in enumerate(UPDATES[:5]):
        before = [dumps(v) for v in (x, tx, rx)]
        packet, seen, next_tx = row.link.send(x, tx, key(t))
        data = dumps(packet)
        received = loads(data)
        _, next_rx = row.link.recv(received, x.layout, rx, key(t))
        assert [dumps(v) for v in (x, tx, rx)] == before
        assert dumps(received) == dumps(packet) == data
        del seen
        tx, rx = next_tx, next_rx


# -- memory ----------------------------------------------------------------------


def own(x: Params) -> Params:
    """The same values in memory of its own, not read-only as that of a message may be."""
    return Params(x.layout, x.flat.clone())


def spoil(x: Any) -> None:
    """Other values for every tensor in ``x``, in place: what the owner of a buffer does for its next round."""
    if isinstance(x, Params):
        x = x.flat
    if isinstance(x, Tensor):
        x.fill_(7)
    elif isinstance(x, list):
        for part in x:
            spoil(part)


ONE_LAYER = Layout(("w",), (Size([10, 30]),))


def as_held(link: Link) -> list[Link]:
    """A link as it is, inside ``Layerwise``, and around the vector as a whole where it is a codec."""
    return [link, Layerwise(link), *([Flat(link)] if isinstance(link, Codec) else [])]


def directions(layout: Layout) -> list[Params]:
    """A direction, nearly the same, another one, nearly that: what recycles, and what sends anew."""
    generator = torch.Generator().manual_seed(5)
    a, b, c = (Params(layout, torch.randn(layout.size, generator=generator)) for _ in range(3))
    return [a, a * -0.5 + c * 0.01, b, b * 2.0 + c * 0.01]


@every
@pytest.mark.parametrize("layout", [LAYOUT, ONE_LAYER], ids=["several layers", "one layer"])
def test_a_state_shares_no_memory_with_what_was_given_or_returned(row: Row, layout: Layout) -> None:
    for link in as_held(row.link):
        like = directions(layout)[0] if row.link.absolute else layout.zeros()
        tx, rx = link.open(like)  # these are given and returned copies of all, and are what is right
        given = own(like)
        spoiled_tx, spoiled_rx = link.open(given)
        spoil(given)
        assert dumps([spoiled_tx, spoiled_rx]) == dumps([tx, rx])
        buffer = own(like)  # one for all rounds, as a hook has
        for t, x in enumerate(directions(layout)):
            packet, _, tx = link.send(own(x), tx, key(t))
            data, tx = dumps(packet), clone(tx)
            _, rx = link.recv(loads(data), layout, rx, key(t))
            rx = clone(rx)

            buffer.flat.copy_(x.flat)
            packet, seen, spoiled_tx = link.send(buffer, spoiled_tx, key(t))
            assert dumps(packet) == data, (link, t)
            received = clone(loads(data))
            for returned in (buffer, seen, packet):
                spoil(returned)
            got, spoiled_rx = link.recv(received, layout, spoiled_rx, key(t))
            for returned in (got, received):
                spoil(returned)
            assert dumps(spoiled_tx) == dumps(tx), (link, t)
            assert dumps(spoiled_rx) == dumps(rx), (link, t)


# -- rounds, layers and values that are special ----------------------------------


@every
def test_after_messages_that_were_lost_or_not_acknowledged_the_next_is_exact(row: Row) -> None:
    tx, rx = row.link.open(LAYOUT.zeros())
    for t, x in enumerate(UPDATES[:6]):
        row.link.send(UPDATES[-t], tx, key(100 + t))  # never arrives: neither end commits
        # This one arrives, is decoded, and is undone at both ends.
        through(row.link, UPDATES[(t + 3) % 10], tx, rx, key(200 + t))
        data, seen, tx, rx = through(row.link, x, tx, rx, key(t))
        assert (data, bits(seen), dumps(tx), dumps(rx)) == straight(row.link)[t]


@every
def test_zeros_are_seen_as_zeros(row: Row) -> None:
    zeros = LAYOUT.zeros()
    tx, rx = row.link.open(zeros)
    for t in range(3):
        _, seen, tx, rx = through(row.link, zeros, tx, rx, key(t))
        assert seen.flat.abs().max() == 0.0 or ("s" in row.flags and (seen.flat == 1.0).all())


@every
def test_a_model_of_one_entry_gets_through(row: Row) -> None:
    for shape in (Size([]), Size([1]), Size([1, 1])):
        layout = Layout(("one",), (shape,))
        tx, rx = row.link.open(layout.zeros())
        for t, value in enumerate([1.5, 1.5, -3.0, 0.0]):
            x = Params(layout, torch.tensor([value]))
            _, seen, tx, rx = through(row.link, x, tx, rx, key(t))
            if "s" in row.flags:
                value = 1.0 if value >= 0 else -1.0
            if "unbiased" not in repr(row.link):
                assert seen.flat.tolist() == [value]  # whatever keeps a part keeps the only entry


@every
def test_a_model_of_empty_layers_gets_through(row: Row) -> None:
    for layout in (Layout(("empty", "void"), (Size([0]), Size([3, 0]))), Layout((), ())):
        tx, rx = row.link.open(layout.zeros())
        for t in range(2):
            data, _, tx, rx = through(row.link, layout.zeros(), tx, rx, key(t))
            assert len(data) < 60


@every
def test_a_layer_that_was_not_sent_keeps_its_state(row: Row) -> None:
    xs = UPDATES
    tx, rx = row.link.open(LAYOUT.zeros())
    for t in (0, 3):
        _, _, tx, rx = through(row.link, xs[t], tx, rx, key(t))
    _, _, after_tx, after_rx = through(row.link, xs[0].drop(LAYOUT.names), tx, rx, key(4))
    assert dumps(after_tx) == dumps(tx)
    assert dumps(after_rx) == dumps(rx)


NO_NUMBERS = {"nan": [math.nan], "inf": [1.0, math.inf], "huge": [3.2e38, -3.2e38, 3.1e38]}


@every
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_not_finite_or_nearly_not_is_refused_by_name_and_no_state_is_the_worse_for_it(
    row: Row, kind: str
) -> None:
    values = torch.tensor(NO_NUMBERS[kind]).repeat(352)[:352]
    tx, rx = row.link.open(LAYOUT.zeros())
    _, _, tx, rx = through(row.link, UPDATES[0], tx, rx, key(0))
    for t in range(1, 5):
        try:
            packet, seen, after = row.link.send(Params(LAYOUT, values), tx, key(t))
        except NonFinite as error:
            named = re.fullmatch(
                r"(\S.*) was given NaN, infinity, or numbers too large .*; lower the .* or clip", str(error)
            )
            assert named is not None
            assert named[1] in repr(row.link)
            return
        try:
            got, rx = row.link.recv(loads(dumps(packet)), LAYOUT, rx, key(t))
        except WireError:  # the policy of every receiver: the message is lost, and its sender does not go on from it
            assert kind != "huge"
            return
        assert bits(got) == bits(seen)
        assert seen.finite()
        loads(dumps([after, rx]))  # raises where a state holds what is no number
        tx = after
    assert kind != "nan" or "s" in row.flags or "sampled" in repr(row.link)  # signs alone; above a threshold is nothing


@pytest.mark.parametrize(
    "link",
    [
        *[LowRank(1), ATOMO(1), PowerSGD(1), CountSketch(1, 3), Projection(3), Flat(CountSketch(3, 5)), Budget(9_000)],
        *[RandK(0.1, unbiased=True), RandomBlock(8.0, unbiased=True), TopK(0.5, values=Projection(3))],
        *[QSGD(16), QSGD(16, bucket=7), Ternary(), Int8()],
    ],
    ids=repr,
)
def test_numbers_that_a_link_can_make_nothing_of_are_named_as_such(link: Link) -> None:
    layout = Layout(("a",), (Size([12, 12]),))
    x = torch.full((144,), 3e38)
    if "Q" in repr(link) or repr(link) in ("Ternary()", "Int8()", "Budget(9000)"):
        x[5] = math.inf  # what is merely large they take
    tx, _ = link.open(layout.zeros())
    with pytest.raises(NonFinite, match=re.escape(f"{link!r} was given NaN, infinity, or numbers too large")):
        link.send(Params(layout, x), tx, key(0))


@every
def test_sending_leaves_the_global_generator_alone(row: Row) -> None:
    before = torch.get_rng_state()
    tx, rx = row.link.open(LAYOUT.zeros())
    for t in range(2):
        _, _, tx, rx = through(row.link, UPDATES[t], tx, rx, key(t))
    assert torch.get_rng_state().equal(before)


@every
def test_a_receiver_of_another_layout_refuses(row: Row) -> None:
    x = UPDATES[3]
    tx, rx = row.link.open(LAYOUT.zeros())
    data = dumps(row.link.send(x, tx, key(0))[0])
    for other in (LAYOUT.only(["fc.weight"]), LAYOUT.only(LAYOUT.names[:-1]), LAYOUT.only([])):
        try:
            got, _ = row.link.recv(loads(data), other, rx, key(0))
        except WireError:
            continue
        # A few positions of a longer vector may also be some of a shorter one: then they must fit.
        assert got.layout == other


# -- linear links ----------------------------------------------------------------


@linear
def test_the_mean_of_packets_decodes_to_the_mean_of_what_was_sent(row: Row) -> None:
    generator = torch.Generator().manual_seed(2)
    sent, packets, weights = [], [], [3.0, 1.0, 2.0, 10.0]
    for client in range(4):
        x = Params(LAYOUT, torch.randn(352, generator=generator))
        packet, seen, _ = row.link.send(x, row.link.open(LAYOUT.zeros())[0], key(5, client))
        packets.append(loads(dumps(packet)))
        sent.append(seen.flat.double())
    rx = row.link.open(LAYOUT.zeros())[1]
    got, _ = row.link.recv(row.link.mean(packets, weights), LAYOUT, rx, key(5, None))
    expected = sum(w * s for w, s in zip(weights, sent, strict=True)) / 16
    assert got.layout == LAYOUT
    assert (got.flat - expected).abs().max() < 3e-6  # some values are ten times those sent
    assert expected.abs().max() > 0.5
    # What was averaged is not written into.
    again, _ = row.link.recv(row.link.mean(packets, weights), LAYOUT, rx, key(5, None))
    assert bits(again) == bits(got)


@pytest.mark.parametrize("link", MEDIANS, ids=repr)
def test_the_mean_of_sketches_is_the_sketch_of_the_mean(link: Link) -> None:
    generator = torch.Generator().manual_seed(2)
    xs, weights = [Params(LAYOUT, torch.randn(352, generator=generator)) for _ in range(4)], [3.0, 1.0, 0.5, 10.0]
    packets = [loads(dumps(link.send(x, None, key(5, client))[0])) for client, x in enumerate(xs)]
    mean = Params(LAYOUT, params.mean([x.flat for x in xs], weights))
    got, _ = link.recv(link.mean(packets, weights), LAYOUT, None, key(5, None))
    _, expected, _ = link.send(mean, None, key(5, None))
    assert (got.flat - expected.flat).abs().max() < 3e-6
    medians = params.mean([link.send(x, None, key(5))[1].flat for x in xs], weights)
    assert (got.flat - medians).abs().max() > 0.1


# -- identities, bounds, bytes: columns of the table ------------------------------------


@pytest.mark.parametrize(("text", "parent"), settings_of("same"))
def test_at_a_neutral_setting_a_link_is_the_one_that_the_table_says(text: str, parent: str) -> None:
    link, other = tw.parse(text), tw.parse(parent)
    ends, others = link.open(LAYOUT.zeros()), other.open(LAYOUT.zeros())
    for t, x in enumerate(drifting(5)):
        _, seen, *ends = through(link, x, *ends, key(t))
        _, expected, *others = through(other, x, *others, key(t))
        assert bits(seen) == bits(expected), t


@pytest.mark.parametrize(("text", "bound"), settings_of("lost"))
@given(values=VECTORS)
@settings(max_examples=50)
def test_a_contraction_keeps_a_part_of_whatever_it_is_given(
    text: str, bound: tuple[float, float], values: list[float]
) -> None:
    link, x = tw.parse(text), eight(values)
    assert link.contraction
    _, seen, _ = link.send(x, link.open(x.zeros())[0], key(0))
    lost = (x.flat.double() - seen.flat.double()).square().sum().item()
    assert lost <= bound[0] * (1 + 1e-6) * x.flat.double().square().sum().item() + bound[1]


TWENTY = torch.arange(1.0, 21.0) * torch.tensor([1.0, -1.0] * 10)  # |x| = 53.572, max 20


@pytest.mark.slow
@pytest.mark.parametrize(("text", "most"), tiers(columns("unbiased"), slow=2, name=lambda row: row[0]))
def test_what_is_seen_is_the_vector_on_average(text: str, most: float) -> None:
    # Rounding to multiples of d has a variance of at most d^2 / 4: five standard errors of 10,000 draws are 0.025 d.
    x, total = Params.of([("a", TWENTY.repeat(500))]), torch.zeros(20, dtype=torch.float64)
    for t in range(20):
        total += tw.parse(text).send(x, None, key(t))[1].flat.view(500, 20).sum(0)
    assert 0 < (total / 10_000 - TWENTY).abs().max() < most


def sent(text: str, x: Params) -> bytes:
    link = tw.parse(text)
    return dumps(link.send(x, link.open(x.zeros())[0], key(0))[0])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("text", "lengths"), settings_of("bytes"))
def test_messages_of_a_thousand_entries_have_these_bytes(text: str, lengths: tuple[int, int]) -> None:
    assert (len(sent(text, thousand(ONE))), len(sent(text, thousand(TWO)))) == lengths


PAIRS = {"wire": Params.of([("a", torch.tensor([3.0, 4.0])), ("b", torch.tensor([1.0, -2.0]))])}
PAIRS["ties"] = Params.of([("a", torch.tensor([3.0, -3.0])), ("b", torch.tensor([1.0, 0.0]))])


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("column", PAIRS)
def test_messages_have_these_bytes(column: str) -> None:
    literal = {text: data for row in LINKS for text, data in getattr(row, column).items()}
    assert {text: sent(text, PAIRS[column]) for text in literal} == {k: bytes.fromhex(v) for k, v in literal.items()}


def test_how_links_are_stacked_shows_in_the_bytes() -> None:
    stacks = [text for row in LINKS for text in row.ties]
    stacks += ["RandomBlock(1.0)", "Flat(RandomBlock(1.0))", "Entropy(STC(0.5))"]
    assert len({sent(text, PAIRS["ties"]) for text in stacks}) == len(stacks) - 1  # a bucket may be the layer


@pytest.mark.parametrize(("text", "expected"), settings_of("floats"))
def test_the_papers_figure_counts_values_and_nothing_else(text: str, expected: float) -> None:
    assert tw.parse(text).floats(loads(sent(text, thousand(TWO)))) == expected


# -- hostile packets -------------------------------------------------------------


NASTY = [
    None,
    True,
    -1,
    0.5,
    "x",
    [],
    [[], []],
    {"a": 1},
    torch.zeros(()),
    torch.tensor(True),
    torch.zeros((), dtype=torch.float64),
    torch.zeros(1),
    torch.zeros(0),
    torch.zeros(15, dtype=torch.int64),
    torch.zeros(15, dtype=torch.bool),
    [3, packed("01"), packed("111")],
    [torch.zeros(()), packed("1111")],
]


def replaced(packet: Any) -> Iterator[Any]:
    """The packet with one part, at any depth, put in another's place, left out or doubled."""
    yield from NASTY
    if isinstance(packet, list):
        for i, part in enumerate(packet):
            for bad in replaced(part):
                yield [*packet[:i], bad, *packet[i + 1 :]]
            yield packet[:i] + packet[i + 1 :]
            yield [*packet[:i], part, part, *packet[i + 1 :]]
    elif isinstance(packet, Tensor) and packet.ndim:
        yield packet[:-1]
        yield torch.cat([packet, packet])
        yield packet.reshape(1, -1)
        yield packet.to(torch.float64)
        yield packet.to(torch.int8)
        yield packet.tolist()


@pytest.mark.usefixtures("kernels")
@every
def test_hostile_packets_are_refused_or_fit_and_nothing_else(row: Row) -> None:
    layout = LAYOUT.only(["conv.bias", "scale", "fc.bias"])
    x = UPDATES[3].only(layout.names)
    tx, rx = row.link.open(layout.zeros())
    first, _, tx = row.link.send(x, tx, key(0))
    _, rx = row.link.recv(first, layout, rx, key(0))
    refused = 0
    for bad in replaced(first):
        try:
            got, _ = row.link.recv(loads(dumps(bad)), layout, rx, key(1))
        except WireError:
            refused += 1
            continue
        assert got.layout == layout
        assert got.flat.dtype == torch.float32
        assert got.flat.shape == (layout.size,)
    assert refused > 20


def mutated(packet: Any, draw: random.Random) -> Any:
    """The packet with one part, at any depth, that is a little or altogether another."""
    if isinstance(packet, list) and packet and draw.random() < 0.9:
        i = draw.randrange(len(packet))
        if draw.random() < 0.15:
            return draw.choice([packet[:i] + packet[i + 1 :], [*packet, packet[i]], packet[::-1]])
        return [*packet[:i], mutated(packet[i], draw), *packet[i + 1 :]]
    if type(packet) is int:
        return packet + draw.choice([-1, 1, 7, 1 << 40, -(1 << 62)])
    if type(packet) is float:
        return packet * draw.choice([-1.0, 0.0, 1e30])
    if not isinstance(packet, Tensor) or draw.random() < 0.1:
        return draw.choice(NASTY)
    if draw.random() < 0.3:
        if packet.ndim and draw.random() < 0.7:
            return draw.choice([packet[:-1], packet[1:], torch.cat([packet, packet[:1]]), torch.cat([packet] * 3)])
        other = draw.choice([torch.float64, torch.float32, torch.float16, torch.uint8, torch.int16, torch.bool])
        return packet.to(other) if draw.random() < 0.5 else packet.reshape(draw.choice([(1, -1), (-1, 1), (-1,)]))
    flat = packet.clone().reshape(-1)
    if not len(flat):
        return torch.ones(1, dtype=packet.dtype)
    place = draw.randrange(len(flat))
    if flat.is_floating_point():
        flat[place] = draw.choice([0.0, -1.0, 1e4, 1e38, -3e38, 1e-44])
    elif flat.dtype == torch.bool:
        flat[place] = not flat[place]
    else:
        flat[place] ^= 1 << draw.randrange(7)
    return flat.reshape(packet.shape)


def is_right(seen: Params, layout: Layout) -> bool:
    return seen.layout == layout and seen.flat.dtype == torch.float32 and seen.finite()


@pytest.mark.parametrize("times", [12, pytest.param(2_000, marks=pytest.mark.soak)])
@every
def test_whatever_a_packet_became_it_is_refused_or_can_be_received_and_averaged(row: Row, times: int) -> None:
    link, draw = row.link, random.Random(repr(row.link))
    tx, rx = link.open(LAYOUT.zeros())
    sent = []
    for t in (3, 3, 8):  # the second time what was seen may be looked back on
        packet, _, tx = link.send(UPDATES[t], tx, key(t))
        sent.append((packet, rx, t))
        _, rx = link.recv(packet, LAYOUT, rx, key(t))
        assert is_right(link.check(loads(dumps(packet)), LAYOUT, sent[-1][1], key(t))[0], LAYOUT)
    refused = 0
    for _ in range(times):
        packet, rx, t = draw.choice(sent)
        bad = packet
        for _ in range(draw.choice([1, 1, 2, 4])):
            bad = mutated(bad, draw)
        try:
            data = dumps(bad)
        except TypeError:  # a number of more than 64 bits
            continue
        before = dumps(rx)
        try:
            got, _ = link.check(loads(data), LAYOUT, rx, key(t))
        except WireError:
            refused += 1
            assert dumps(rx) == before
            continue
        assert is_right(got, LAYOUT)
        again, after = link.recv(loads(data), LAYOUT, rx, key(t))
        assert bits(again) == bits(got)
        assert restore(loads(dumps(after)), after) is not None or after is None
        if link.linear:
            total = link.fold(link.fold(None, packet, 1.0), loads(data), 2.0**32)
            assert is_right(link.recv(link.scale(total, 1 + 2.0**32), LAYOUT, None, key(t, None))[0], LAYOUT)
    assert refused > times // 4


VECTOR = Layout(("a",), (Size([4]),))


@pytest.mark.parametrize(
    ("link", "packet"),
    [
        (Dense(), torch.zeros(5)),
        (Dense(), torch.zeros(4, dtype=torch.float64)),
        (Dense(), torch.zeros(4, dtype=torch.float16)),
        (Dense(), torch.zeros(2, 2)),
        (Dense(), [torch.zeros(4)]),
        (Half(), torch.zeros(4, dtype=torch.float16)),
        (Half(), [torch.zeros(4, dtype=torch.bfloat16)]),
        (Half(), [torch.zeros(3, dtype=torch.float16)]),
        (Half(), []),
        (BF16(), [torch.zeros(4, dtype=torch.float16)]),
        (Sparse(), [[None, torch.zeros(3)]]),
        (Sparse(), [[packed("1000"), torch.zeros(2)]]),
        (TopK(0.5), [[None, torch.zeros(4), None]]),
        (TopK(0.5), [torch.zeros(4)]),
        (TopK(0.5), [[packed("1100"), torch.zeros(2, dtype=torch.float16)]]),
        (TopK(0.5), [[packed("1100"), 1.0]]),
        (TopK(0.5, values=Half()), [[packed("1100"), torch.zeros(2, dtype=torch.bfloat16)]]),
        (RandK(0.5), [torch.zeros(4)]),
        (RandK(0.5), [[None, torch.zeros(2)]]),
        (RandK(0.5), [torch.zeros(2), torch.zeros(2)]),
        (ScaledSign(), [[torch.zeros(1), packed("1100")]]),
        (ScaledSign(), [[0.5, packed("1100")]]),
        (ScaledSign(), [[torch.zeros(()), flags(1, 1, 0, 0)]]),
        (ScaledSign(), [[torch.zeros(()), packed("11001")]]),
        (ScaledSign(), [[torch.zeros(()), packed("110000000")]]),
        (ScaledSign(), [[torch.zeros(()), torch.ones(4)]]),
        (LBGM(), 0.5),
        (LBGM(), None),
        (LBGM(), torch.zeros(1)),
        (LBGM(), torch.zeros((), dtype=torch.float64)),
        (LBGM(), torch.zeros((), dtype=torch.int64)),
        (LBGM(), torch.zeros(4)),
        (LBGM(), []),
        (LBGM(), [torch.zeros(())]),
        (LBGM(), [torch.zeros(4), torch.zeros(4)]),
        (LBGM(store="packet"), torch.zeros(1)),
        (LBGM(store="packet"), [torch.zeros(3)]),
        (Budget(99), [torch.zeros(1, dtype=torch.uint8)]),
        (Budget(99), [[0], [torch.zeros(4)]]),
        (Budget(99), [torch.zeros(1, dtype=torch.int64), [torch.zeros(4)]]),
        (Budget(99), [torch.full((1,), 9, dtype=torch.uint8), [torch.zeros(4)]]),
        (Budget(99), [torch.full((2,), 8, dtype=torch.uint8), [torch.zeros(4)]]),
        (Budget(99), [torch.full((1,), 8, dtype=torch.uint8), [torch.zeros(4), torch.zeros(4)]]),
        (Budget(99), [torch.full((1,), 8, dtype=torch.uint8), torch.zeros(4)]),
        (Budget(99), [torch.full((1,), 7, dtype=torch.uint8), [torch.zeros(4, dtype=torch.float64)]]),
        (Flat(TopK(0.5)), [[None, torch.zeros(4)]]),
        (Layerwise(LBGM()), torch.zeros(())),
        (Layerwise(LBGM()), [torch.zeros(()), torch.zeros(())]),
        (Partition({"b": Dense(), "*": Dense()}), [torch.zeros(4), torch.zeros(4)]),
        (Partition({"b": Dense(), "*": Dense()}), [None, None]),
        (Partition({"b": Dense(), "*": Dense()}), [torch.zeros(4)]),
    ],
    ids=repr,
)
def test_packets_of_another_shape_are_refused(link: Link, packet: Any) -> None:
    _, rx = link.open(VECTOR.zeros())
    with pytest.raises(WireError, match=r"a packet of another shape: .* expected"):
        link.recv(loads(dumps(packet)), VECTOR, rx, key(0))


@every
def test_a_nan_never_reaches_a_decoder(row: Row) -> None:
    def spoil(part: Any) -> Any:
        if isinstance(part, list):
            return [spoil(one) for one in part]
        return part * float("nan") if isinstance(part, Tensor) and part.is_floating_point() else part

    x = UPDATES[3]
    tx, _ = row.link.open(x.zeros())
    first, _, tx = row.link.send(x, tx, key(0))
    second, _, tx = row.link.send(x, tx, key(1))  # of LBGM a scalar
    for packet in (first, second):
        spoiled = dumps(spoil(packet))
        if spoiled == dumps(packet):  # signs or whole numbers alone; coded bytes, which have a test of their own
            coders = ("Entropy", "TransformCoding", "SecureSum")
            assert "s" in row.flags or any(coder in repr(row.link) for coder in coders)
            continue
        with pytest.raises(WireError, match="NaN or infinity"):
            loads(spoiled)


# -- arguments -------------------------------------------------------------------


@pytest.mark.parametrize(("text", "message"), settings_of("refused"))
def test_arguments_out_of_range_say_what_to_change(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tw.parse(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LBGM(threshold=math.nan), "LBGM(threshold=nan): threshold is a squared sine, 0 to 1"),
        (lambda: TopK(math.nan), "TopK(share=nan): share must be above 0 and at most 1"),
        (lambda: RandomBlock(math.nan), "RandomBlock(ratio=nan): ratio must be at least 1 and finite"),
    ],
)
def test_no_number_is_out_of_every_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(("text", "message"), settings_of("conflicts"))
def test_links_without_a_meaning_together_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(CombinationError) as caught:
        tw.parse(text)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


WRONG_KINDS = {
    "Flat(ErrorFeedback(Half()))": "Flat(inner=ErrorFeedback(Half())): Codec such as Half() is expected",
    "Flat(Flat(Half()))": "Flat(inner=Flat(Half())): Codec such as Half() is expected",
    "TopK(0.1, values=ErrorFeedback())": "TopK(values=ErrorFeedback()): Codec such as Half() is expected",
    "ErrorFeedback(3)": "ErrorFeedback(inner=3): Link such as TopK(0.01) is expected",
    "EF21(None)": "EF21(inner=None): Link such as TopK(0.01) is expected",
    "LBGM('TopK')": "LBGM(inner='TopK'): Link such as TopK(0.01) is expected",
    "LBGM(compare='angle')": "LBGM(compare='angle'): one of 'delivered', 'dense' is expected",
    "LBGM(store='disk')": "LBGM(store='disk'): one of 'dense', 'packet' is expected",
    "Budget(9, ladder=[Half()])": "Budget(ladder=[Half()]): tuple[Codec, ...] is expected",
    "Budget(9, ladder=(Flat(Half()),))": "Budget(ladder=(Flat(Half()),)): tuple[Codec, ...] is expected",
    "Layerwise(None)": "Layerwise(inner=None): Link such as TopK(0.01) is expected",
    "Partition({'*': 0.1})": "Partition(links={'*': 0.1}): dict[str, Link] is expected",
}


def test_what_is_no_link_is_named() -> None:
    # In a process of its own: here the checked annotations would speak first.
    program = f"""
from thinwire.links import *
for text, message in {WRONG_KINDS!r}.items():
    try:
        eval(text)
    except ValueError as error:
        assert str(error) == message, f"{{text}}: {{error}}"
    else:
        raise AssertionError(text)
"""
    done = processes.program(program)
    assert done.returncode == 0, done.stderr


def test_links_are_values() -> None:
    assert LBGM(TopK(0.1)) == LBGM(TopK(0.1))
    assert LBGM(TopK(0.1)) != LBGM(TopK(0.2))
    assert len({TopK(0.1), TopK(0.1), Dense(), Partition({"*": Dense()}), Partition({"*": Dense()})}) == 3
    with pytest.raises(AttributeError):
        TopK(0.1).share = 0.2
