"""Numbers of a matrix by the adaptive coder: both implementations alike, in few bytes, and bounded for any bytes."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from problems import octets
from thinwire.errors import WireError
from thinwire.kernels import native
from thinwire.kernels.levels import pack, unpack


def small(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int8)


def drawn(rows: int, width: int, most: int) -> Tensor:
    """Signs of rank one; some rows and columns have many numbers."""
    g = torch.Generator().manual_seed(rows)
    u, v = torch.randn(rows, 1, generator=g) ** 3, torch.randn(1, width, generator=g) ** 3
    return (u * v).clamp(-most, most).round().to(torch.int8).view(-1)


@pytest.mark.parametrize("most", [1, 5, 127])
def test_the_loop_in_c_and_the_one_in_python_write_and_read_the_same(most: int) -> None:
    before = native._level()
    try:
        for width, values in (
            (0, drawn(9, 60, most)),
            (30, drawn(12, 30, most)),
            (7, drawn(10, 5, most)),
            (3, small()),
            (4, small(0, 0)),
            (0, torch.ones(300, dtype=torch.int8)),
        ):
            for negative in (True, False):
                own, found = values if negative else values.abs(), []
                for level in ("avx512", "reference"):
                    native.use(level)
                    data = pack(own, 1 << 16, width, negative, most)
                    assert data is not None
                    assert unpack(data, len(own), width, negative, most).equal(own)
                    found.append(data)
                assert found[0].equal(found[1])
    finally:
        native.use(before)


@pytest.mark.usefixtures("kernels")
@given(st.lists(st.integers(-127, 127), max_size=60), st.integers(0, 9))
@settings(max_examples=40)
def test_any_numbers_survive(numbers: list[int], width: int) -> None:
    data = pack(small(*numbers), 1_000, width)
    assert data is not None
    assert unpack(data, len(numbers), width).tolist() == numbers


@pytest.mark.usefixtures("kernels")
def test_literal_bytes() -> None:
    # two rows of three; nothing of this may move while messages of one version are read
    data = pack(small(0, 1, -1, 0, 2, 0), 99, 3)
    assert data is not None
    assert data.numpy().tobytes().hex() == "c14b16"


def test_rows_and_columns_that_are_alike_take_fewer_bytes_than_the_same_numbers_in_any_order() -> None:
    values = drawn(200, 300, 1)
    mixed = values[torch.randperm(len(values), generator=torch.Generator().manual_seed(0))]
    ordered, random_order = pack(values, 1 << 20, 300, most=1), pack(mixed, 1 << 20, 300, most=1)
    assert ordered is not None
    assert random_order is not None
    assert 2 * len(ordered) < len(random_order)


def test_numbers_without_any_order_take_little_more_than_their_entropy() -> None:
    values = (torch.rand(200, 300, generator=torch.Generator().manual_seed(0)) < 0.05).to(torch.int8).view(-1)
    data = pack(values, 1 << 20, 300, negative=False, most=1)
    assert data is not None
    # -(p log2 p + (1 - p) log2 (1 - p)) * 60,000 / 8 = 2,148 bytes for p = 0.05
    assert 2_050 < len(data) < 2_300


@pytest.mark.usefixtures("kernels")
def test_no_more_bytes_are_written_than_there_is_room_for() -> None:
    values = drawn(9, 60, 5)
    whole = pack(values, 1_000, 60)
    assert whole is not None
    for room in (-3, *range(8), len(whole) // 2, len(whole) - 1):
        assert pack(values, room, 60) is None
    assert pack(torch.zeros(900, dtype=torch.int8), 0, 60) is not None  # nothing is set: no byte


@pytest.mark.usefixtures("kernels")
def test_any_bytes_are_refused_or_read_as_so_many_numbers() -> None:
    draw, read = random.Random(1), 0
    for _ in range(100):
        data = octets(*(draw.randrange(256) for _ in range(draw.randrange(40))), 255)
        try:
            values = unpack(data, 60, draw.randrange(9), draw.random() < 0.5, 5)
        except WireError:
            continue
        read += 1
        assert values.shape == (60,)
        assert values.abs().max() <= 5
    assert 0 < read < 100
    with pytest.raises(WireError, match="no more bytes than the numbers take"):
        unpack(torch.cat([pack(small(1, 0, 2), 99), octets(*[1] * 9)]), 3)  # type: ignore[list-item]


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="numbers from -3 to 3"):
        pack(small(4), 9, most=3)
    with pytest.raises(ValueError, match="numbers from 0 to 3"):
        pack(small(-1), 9, negative=False, most=3)
    with pytest.raises(ValueError, match="magnitudes up to 1 to 127"):
        pack(small(1), 9, most=128)
