"""Adaptive range coding: both implementations alike, near the entropy, and bounded whatever the bytes are."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems import octets
from thinwire.errors import WireError
from thinwire.kernels import native
from thinwire.kernels.adaptive import Reader, Writer


def coded(values: Tensor, contexts: Tensor, row: int = 0, negative: bool = True, room: int = 1 << 16) -> Tensor | None:
    writer = Writer(3, room)
    done = writer.put(values, contexts, row, negative)
    found = writer.bytes()
    assert done or found is None
    return found


def read(data: Tensor, contexts: Tensor, row: int = 0, negative: bool = True) -> Tensor:
    reader = Reader(data, 3)
    values = reader.get(len(contexts), contexts, row, negative)
    reader.end()
    return values


def drawn(n: int, scale: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    values = (torch.randn(n, generator=g) * scale).round().clamp(-2e9, 2e9).to(torch.int32)
    return values, torch.randint(0, 3, (n,), generator=g).to(torch.uint8)


@pytest.mark.parametrize("scale", [0.1, 1.0, 40.0, 1e9])
def test_the_loop_in_c_and_the_one_in_python_write_and_read_the_same(scale: float) -> None:
    before = native._level()
    try:
        for n in (0, 1, 2, 300):
            values, contexts = drawn(n, scale, n)
            for negative, row in ((True, 0), (True, 7), (False, 20)):
                own, found = values if negative else values.abs(), []
                for level in ("avx512", "reference"):
                    native.use(level)
                    data = coded(own, contexts, row, negative)
                    assert data is not None
                    assert read(data, contexts, row, negative).equal(own)
                    found.append(data)
                assert found[0].equal(found[1])
    finally:
        native.use(before)


@pytest.mark.usefixtures("kernels")
def test_matrices_in_one_call_are_the_bytes_of_one_call_each() -> None:
    shapes = [(1, 30), (4, 5), (0, 3), (20, 1), (3, 64), (2, 0)]
    matrices = [drawn(rows * n, 2.0, i)[0].view(rows, n) for i, (rows, n) in enumerate(shapes)]
    contexts = torch.arange(sum(rows for rows, _ in shapes)).remainder(3).to(torch.uint8)
    for room in (1 << 16, 40):  # without end, and too little
        one, many = Writer(3, room), Writer(3, room)
        done = [
            many.put(x.reshape(-1), each.repeat_interleave(x.shape[1]), x.shape[1])
            for x, each in zip(matrices, contexts.split([rows for rows, _ in shapes]), strict=True)
        ]
        assert one.put_rows(matrices, contexts) == all(done) == (room > 40)
        found, expected = one.bytes(), many.bytes()
        assert (found is None) == (expected is None) == (room == 40)
        assert found is None or found.equal(expected)
    assert Writer(3, 9).put_rows([], contexts[:0])
    for wrong in (contexts[1:], contexts + 3):
        with pytest.raises(ValueError, match=r"a context for each row|contexts below 3"):
            Writer(3, 1 << 16).put_rows(matrices, wrong)


@pytest.mark.usefixtures("kernels")
@given(st.lists(st.integers(-(2**31) + 1, 2**31 - 1), max_size=40), st.integers(0, 5))
@settings(max_examples=40)
def test_any_numbers_survive(numbers: list[int], row: int) -> None:
    values = torch.tensor(numbers, dtype=torch.int32)
    contexts = torch.arange(len(numbers)).remainder(3).to(torch.uint8)
    data = coded(values, contexts, row)
    assert data is not None
    assert read(data, contexts, row).equal(values)


def test_bytes_come_near_the_entropy_of_what_is_drawn_independently() -> None:
    n, p = 1 << 15, 0.05
    values = (torch.rand(n, generator=torch.Generator().manual_seed(0)) < p).to(torch.int32)
    contexts = torch.zeros(n, dtype=torch.uint8)
    data = coded(values, contexts, negative=False)
    assert data is not None
    bound = -(p * math.log2(p) + (1 - p) * math.log2(1 - p)) * n / 8  # 1,173.1 bytes
    assert 0.97 * bound < len(data) < 1.04 * bound


@pytest.mark.usefixtures("kernels")
def test_literal_bytes() -> None:
    # 3, 0, 0, -1: a zero's chance 1/2 at first; nothing of this may move while messages of one version are read.
    values, contexts = torch.tensor([3, 0, 0, -1], dtype=torch.int32), torch.zeros(4, dtype=torch.uint8)
    data = coded(values, contexts)
    assert data is not None
    assert data.numpy().tobytes().hex() == "a880"
    assert coded(torch.zeros(4, dtype=torch.int32), contexts).numel() == 0  # type: ignore[union-attr]


@pytest.mark.usefixtures("kernels")
def test_numbers_of_one_kind_share_what_was_learnt_and_those_of_another_do_not() -> None:
    values = torch.tensor([0, 9] * 200, dtype=torch.int32)
    apart, together = torch.tensor([0, 1] * 200, dtype=torch.uint8), torch.zeros(400, dtype=torch.uint8)
    mixing = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    known, mixed = coded(values, apart), coded(values[mixing], together)
    assert known is not None
    assert mixed is not None
    assert len(known) < 60 < 90 < len(mixed)  # a bit for each sign is in both


@pytest.mark.usefixtures("kernels")
def test_no_more_bytes_are_written_than_there_is_room_for() -> None:
    values, contexts = drawn(200, 50.0)
    whole = coded(values, contexts)
    assert whole is not None
    for room in (-3, *range(8), len(whole) // 2, len(whole) - 1):
        assert coded(values, contexts, room=room) is None
    again = coded(values, contexts, room=len(whole) + 4)
    assert again is not None
    assert again.equal(whole)


@pytest.mark.usefixtures("kernels")
def test_any_bytes_are_refused_or_read_as_so_many_numbers() -> None:
    draw, contexts = random.Random(1), torch.zeros(60, dtype=torch.uint8)
    with pytest.raises(WireError, match="do not end in a zero"):
        Reader(octets(1, 2, 0), 1)
    with pytest.raises(WireError, match="no more bytes than the numbers take"):
        read(octets(*[7] * 500), contexts)
    for _ in range(60):
        data = octets(*(draw.randrange(256) for _ in range(draw.randrange(60))), 255)
        values = Reader(data, 1).get(60, contexts, draw.randrange(9), draw.random() < 0.5)
        assert values.shape == (60,)
    assert read(octets(), contexts).abs().max() == 0


@pytest.mark.usefixtures("kernels")
def test_nothing_is_put_where_there_was_no_room_or_the_bytes_were_taken() -> None:
    values, contexts = drawn(40, 9.0)
    writer = Writer(3, 5)
    assert not writer.put(values, contexts)
    assert not writer.put(values[:0], contexts[:0])
    assert writer.bytes() is None
    done = Writer(3, 500)
    assert done.put(values, contexts)
    assert done.bytes() is not None
    assert not done.put(values, contexts)


def test_arguments_out_of_range_are_refused() -> None:
    one = torch.ones(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="300 contexts: 1 to 256"):
        Writer(300, 9)
    with pytest.raises(ValueError, match="contexts below 3"):
        Writer(3, 9).put(one, torch.full((1,), 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="at most 31 bits"):
        Writer(3, 9).put(-one, torch.zeros(1, dtype=torch.uint8), negative=False)
    with pytest.raises(ValueError, match="a context for each number"):
        Writer(3, 9).put(one, torch.zeros(2, dtype=torch.uint8))
