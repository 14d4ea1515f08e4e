"""The serialiser: its bytes, what it refuses, and that hostile bytes cost nothing."""

from __future__ import annotations

import pickle
import random
import struct
import time
import tracemalloc
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from thinwire.errors import WireError
from thinwire.params import Layout, Params
from thinwire.wire import VERSION, clone, conform, dumps, length, loads, restore

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def _bytes(x: Tensor) -> bytes:
    return bytes(x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy())


def same(a: Any, b: Any) -> bool:
    """Bit for bit, types included; a tuple counts as a list."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        return _bytes(a) == _bytes(b)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, float):
        return isinstance(b, float) and struct.pack("<d", a) == struct.pack("<d", b)
    return type(a) is type(b) and a == b


def h(text: str) -> bytes:
    return bytes.fromhex(text)


# -- golden bytes -------------------------------------------------------------

GOLDEN = {
    "none": (None, "01 00"),
    "false": (False, "01 01"),
    "true": (True, "01 02"),
    "zero": (0, "01 03 00"),
    "one": (1, "01 03 02"),
    "minus one": (-1, "01 03 01"),
    "63 is the last in one byte": (63, "01 03 7e"),
    "64 takes two": (64, "01 03 8001"),
    "-64": (-64, "01 03 7f"),
    "-65": (-65, "01 03 8101"),
    "300": (300, "01 03 d804"),
    "the largest integer": (2**63 - 1, "01 03 feffffffffffffffff01"),
    "the smallest integer": (-(2**63), "01 03 ffffffffffffffffff01"),
    "float": (1.0, "01 04 000000000000f03f"),
    "negative zero": (-0.0, "01 04 0000000000000080"),
    "no text": ("", "01 05 00"),
    "text is UTF-8": ("hé", "01 05 03 68c3a9"),
    "empty list": ([], "01 06 00"),
    "list": ([None, [True]], "01 06 02 00 06 01 02"),
    "tuple": ((None, (True,)), "01 06 02 00 06 01 02"),
    "dict": ({"a": 1, 2: False}, "01 07 02 05 01 61 03 02 03 04 01"),
    "bool": (torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1], dtype=torch.bool), "01 40 01 09 0d01"),
    "bool, a full byte": (torch.ones(8, dtype=torch.bool), "01 40 01 08 ff"),
    "uint8": (torch.tensor([255, 7], dtype=torch.uint8), "01 41 01 02 ff07"),
    "int8": (torch.tensor([-1], dtype=torch.int8), "01 42 01 01 ff"),
    "int16": (torch.tensor([1, -2], dtype=torch.int16), "01 43 01 02 0100 feff"),
    "int32, three bytes of padding": (
        torch.tensor([[1], [2]], dtype=torch.int32),
        "01 44 02 02 01 000000 01000000 02000000",
    ),
    "int64 scalar, five bytes of padding": (torch.tensor(5), "01 45 00 0000000000 0500000000000000"),
    "float16": (torch.tensor([1.0], dtype=torch.float16), "01 46 01 01 003c"),
    "bfloat16": (torch.tensor([1.0], dtype=torch.bfloat16), "01 47 01 01 803f"),
    "float32": (torch.tensor([1.0, -2.0]), "01 48 01 02 0000803f 000000c0"),
    "float32, one entry in two": (torch.tensor([1.0, -2.0])[::2], "01 48 01 01 0000803f"),
    "float32, one entry in two of three": (torch.tensor([1.0, 9.0, -2.0])[::2], "01 48 01 02 0000803f 000000c0"),
    "float32 scalar": (torch.tensor(0.5), "01 48 00 00 0000003f"),
    "float64": (torch.tensor([0.5], dtype=torch.float64), "01 49 01 01 00000000 000000000000e03f"),
    "no entries": (torch.zeros(0, 3), "01 48 02 00 03 000000"),
    "data follow the structure in its order": (
        [torch.tensor([True, False, True]), {"w": torch.tensor([1.0])}, 7],
        "01 06 03 40 01 03 07 01 05 01 77 48 01 01 03 0e 05 000000 0000803f",
    ),
}


@pytest.mark.parametrize(("value", "expected"), GOLDEN.values(), ids=GOLDEN.keys())
def test_the_bytes_of_the_format_do_not_change(value: Any, expected: str) -> None:
    assert dumps(value).hex() == expected.replace(" ", "")
    assert same(value, loads(h(expected)))


def test_the_version_is_one() -> None:
    assert VERSION == 1


def test_params_are_sent_as_their_vector() -> None:
    params = Params.of([("a", torch.tensor([1.0])), ("b", torch.tensor([[-2.0]]))])
    assert dumps(params) == dumps(torch.tensor([1.0, -2.0])) == h("01480102 0000803f 000000c0")


def test_bytes_are_sent_as_a_vector_and_come_back_into_a_template_as_bytes_of_any_number() -> None:
    assert dumps(b"\x01\xff") == dumps(torch.tensor([1, 255], dtype=torch.uint8)) == h("01410102 01ff")
    assert dumps(b"") == h("01410100")
    for value in (b"", b"\x00", b"ABC" * 50):
        assert restore(loads(dumps([value, 1])), [b"template", 0]) == [value, 1]
        assert clone(value) == value
    for other in (1, "text", None, [1], torch.ones(2), torch.ones(1, 2, dtype=torch.uint8)):
        with pytest.raises(WireError, match=r"^state\.0: bytes expected, .* found$"):
            restore(loads(dumps([other])), [b""])


def test_messages_have_these_lengths() -> None:
    assert len(dumps(torch.zeros(1_000))) == 4_008  # 1 + 4 of structure, 3 of padding
    assert len(dumps(torch.zeros(1_000, dtype=torch.bool))) == 130
    assert len(dumps(torch.zeros(1_001, dtype=torch.bool))) == 131
    assert len(dumps(torch.zeros(1_000, dtype=torch.bfloat16))) == 2_006
    assert len(dumps(torch.zeros(10, 100, dtype=torch.float64))) == 8_008
    assert len(dumps([torch.zeros(()) for _ in range(122)])) == 736  # 488 bytes of data: one blob, not 122
    assert len(dumps(list(range(100)))) == 239
    assert len(dumps({"update": torch.zeros(3), "loss": 0.5})) == 44


# -- round trips --------------------------------------------------------------


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    count = int(np.prod(shape, dtype=int))
    if dtype == torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=dtype).view(shape)
    if dtype.is_floating_point:
        bits = 16 if dtype.itemsize == 2 else 8 * dtype.itemsize
        values = st.floats(-60_000, 60_000, width=bits)
    else:
        values = st.integers(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return torch.tensor(draw(st.lists(values, min_size=count, max_size=count)), dtype=dtype).view(shape)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
)
KEYS = st.text(max_size=5) | st.integers(-(2**63), 2**63 - 1)
PACKETS = st.recursive(
    SCALARS | tensors(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(PACKETS)
@settings(max_examples=150)
def test_what_was_written_is_read_bit_for_bit(value: Any) -> None:
    data = dumps(value)
    assert same(loads(data), value)
    assert dumps(loads(data)) == data
    assert length(value) == len(data)
    assert same(restore(loads(data), value), value)


@given(PACKETS, st.data())
@settings(max_examples=200)
def test_every_prefix_of_a_message_is_refused(value: Any, data: st.DataObject) -> None:
    whole = dumps(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        loads(whole[:cut])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point])
def test_every_bit_pattern_of_a_float_survives(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.uint8)
    x = bits[: len(bits) // dtype.itemsize * dtype.itemsize].clone().view(dtype)
    assert same(loads(dumps(x), finite=False), x)  # NaN payloads too


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1::3],
        lambda x: x[:1].expand(7, -1),
        lambda x: x.flip(0),
        lambda x: x[3],
        lambda x: x[2:, 5],
        lambda x: nn.Parameter(x.clone()) if x.is_floating_point() else x,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_views_are_written_as_they_look(make: Any, dtype: torch.dtype) -> None:
    x = make((torch.arange(60) % 7).to(dtype).view(6, 10))
    assert same(loads(dumps(x)), x.detach().clone(memory_format=torch.contiguous_format))


def test_the_order_of_a_dict_is_kept() -> None:
    packet = {"z": torch.ones(1), 3: 1, "a": torch.zeros(2)}
    assert list(loads(dumps(packet))) == ["z", 3, "a"]


def test_writing_leaves_the_tensor_alone() -> None:
    x = torch.ones(3, requires_grad=True)
    dumps(x)
    assert x.requires_grad
    assert x.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool])
def test_read_tensors_lie_in_the_message_itself(dtype: torch.dtype) -> None:
    data = dumps(["odd", torch.ones(1_001, dtype=dtype), torch.ones(3, dtype=torch.int8)])
    start = np.frombuffer(data, np.uint8).ctypes.data
    read = loads(data)
    for tensor in read[1:]:
        assert start < tensor.data_ptr() < start + len(data)
        assert tensor.data_ptr() % tensor.dtype.itemsize == 0
    assert read[1].data_ptr() + 1_001 * dtype.itemsize + 3 == start + len(data)


def test_read_tensors_outlive_the_message() -> None:
    x = loads(dumps(torch.arange(1_000.0)))
    noise = [bytes(4_008) for _ in range(100)]
    assert x.tolist() == list(map(float, range(1_000)))
    del noise


# -- what has no place in a message -------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return print, ("unpickled",)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        bytearray(b"bytes"),
        1j,
        object(),
        Evil(),
        print,
        np.float32(1),
        np.ones(2),
        nn.Linear(1, 1),
        torch.Generator(),
        torch.ones(1, dtype=torch.complex64),
        torch.ones(1, dtype=torch.float8_e5m2),
        2**63,
        -(2**63) - 1,
        {1.5: 1},
        {None: 1},
        {True: 1},
        {(1,): 1},
        {2**63: 1},
        [[{"a": {3}}]],
    ],
    ids=lambda value: type(value).__name__,  # a repr holds addresses, which differ by process
)
def test_what_is_no_state_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


def test_the_error_names_what_has_no_place() -> None:
    with pytest.raises(
        TypeError, match=r"^set has no place in a message: tensors, numbers, strings, None, lists and dicts have$"
    ):
        dumps([{1}])
    with pytest.raises(TypeError, match=r"^tensors of torch.complex64 have no place in a message$"):
        dumps(torch.ones(1, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"^9223372036854775808 does not fit 64 bits$"):
        dumps(2**63)
    with pytest.raises(TypeError, match=r"^a key of type float; keys are strings or integers$"):
        dumps({1.5: 1})


# -- what is refused ----------------------------------------------------------

REFUSED = {
    "nothing": ("", "cut short"),
    "another version": ("02 00", "not a message of format version 1"),
    "version zero": ("00 00", "not a message of format version 1"),
    "a version alone": ("01", "cut short"),
    "a tag that is not there": ("01 08", "unknown tag 8 at 1"),
    "the tag before the tensors": ("01 3f", "unknown tag 63"),
    "the tag after the tensors": ("01 4a 00", "unknown tag 74"),
    "tag 255": ("01 ff", "unknown tag 255"),
    "a byte too many": ("01 00 00", "1 bytes too many at the end"),
    "a byte too many after a tensor": ("01 41 01 01 ff 00", "1 bytes too many at the end"),
    "a zero written in two bytes": ("01 03 8000", "longer than needed"),
    "a length written in two bytes": ("01 06 8100 00", "longer than needed"),
    "a dimension written in two bytes": ("01 41 01 8100 ff", "longer than needed"),
    "an integer of 65 bits": ("01 03 ffffffffffffffffff03", "more than 64 bits"),
    "an integer of eleven bytes": ("01 03 8080808080808080808001", "more than 64 bits"),
    "an integer that never ends": ("01 03" + "ff" * 50, "more than 64 bits"),
    "an integer cut short": ("01 03 ff", "cut short"),
    "a float cut short": ("01 04 000000000000f0", "cut short"),
    "text that is not UTF-8": ("01 05 01 ff", "not UTF-8"),
    "text of an overlong sequence": ("01 05 02 c080", "not UTF-8"),
    "text with a surrogate": ("01 05 03 eda080", "not UTF-8"),
    "text longer than the message": ("01 05 05 61", "announced"),
    "a list longer than the message": ("01 06 05 00", "announced"),
    "a repeated key": ("01 07 02 05 01 61 00 05 01 61 00", "a key that is repeated"),
    "a repeated integer key": ("01 07 02 03 02 00 03 02 00", "a key that is repeated"),
    "None as a key": ("01 07 01 00 00", "neither text nor integer"),
    "True as a key": ("01 07 01 02 00", "neither text nor integer"),
    "a float as a key": ("01 07 01 04 000000000000f03f 00", "neither text nor integer"),
    "a list as a key": ("01 07 01 06 00 00", "neither text nor integer"),
    "a tensor as a key": ("01 07 01 41 00 00 ff", "neither text nor integer"),
    "a dict without its last value": ("01 07 01 05 01 61", "cut short"),
    "padding that is not zero": ("01 48 00 01 0000003f", "padding that is not zero"),
    "no padding": ("01 48 00 0000003f", "announced"),
    "bits beyond the end": ("01 40 01 03 0d", "bits beyond the end of a tensor"),
    "a tensor cut short": ("01 48 01 02 0000803f 0000", "a tensor of 8 bytes announced, 6 are there"),
    "65 dimensions": ("01 41 41" + "01" * 65 + "ff", "a tensor of"),
    "entries beyond 2^48": ("01 41 02 808080808040 02", "a tensor of"),
    "no entries but dimensions beyond 2^48": ("01 41 03 00 ffffffff0f ffffffff0f", "a tensor of"),
    "dimensions of 64 bits": ("01 40 02 ffffffffffffffffff01 ffffffffffffffffff01", "a tensor of"),
    "more dimensions than bytes": ("01 41 7f", "announced"),
    "NaN": ("01 04 000000000000f87f", "NaN or infinity in a message"),
    "infinity": ("01 04 000000000000f07f", "NaN or infinity in a message"),
    "minus infinity": ("01 04 000000000000f0ff", "NaN or infinity in a message"),
    "a pickle": (pickle.dumps([1, 2]).hex(), "not a message of format version 1"),
    "a pickle after the version": ("01" + pickle.dumps([1, 2]).hex(), "unknown tag 128"),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_bytes_that_dumps_does_not_make_are_refused(data: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        loads(h(data))


def test_the_dimensions_torch_allows_are_allowed() -> None:
    assert same(loads(dumps(torch.ones([1] * 64))), torch.ones([1] * 64))
    assert loads(dumps(torch.ones(0, 2**40))).shape == (0, 2**40)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_wherever_they_are_unless_allowed(dtype: torch.dtype, value: float) -> None:
    x = torch.ones(100, dtype=dtype)
    x[63] = value
    for packet in (x, [None, {"a": [x]}], {1: value}, [value]):
        data = dumps(packet)
        with pytest.raises(WireError, match="NaN or infinity in a message"):
            loads(data)
        assert dumps(loads(data, finite=False)) == data


def test_the_largest_numbers_are_finite() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)
        assert same(loads(dumps(x)), x)
    assert loads(dumps(1.7976931348623157e308)) == 1.7976931348623157e308


def test_nesting_is_bounded_by_the_receiver() -> None:
    nested: Any = None
    for _ in range(32):
        nested = [nested]
    assert same(loads(dumps(nested)), nested)
    with pytest.raises(WireError, match="nested deeper than 32"):
        loads(dumps([nested]))
    assert same(loads(dumps([nested]), max_depth=33), [nested])
    assert loads(dumps(5), max_depth=0) == 5
    with pytest.raises(WireError, match="nested deeper than 0"):
        loads(dumps([5]), max_depth=0)
    with pytest.raises(WireError, match="nested deeper than 1"):
        loads(dumps({"a": {"b": 1}}), max_depth=1)


def test_a_message_of_a_million_open_brackets_is_refused() -> None:
    for opened in ("0601", "0701050161"):
        with pytest.raises(WireError, match="nested deeper than 32"):
            loads(b"\x01" + h(opened) * 1_000_000)


def test_size_is_bounded_by_the_receiver() -> None:
    data = dumps(torch.ones(10))
    assert len(data) == 44
    assert same(loads(data, max_bytes=44), torch.ones(10))
    with pytest.raises(WireError, match="a message of 44 bytes; at most 43 are accepted"):
        loads(data, max_bytes=43)
    with pytest.raises(WireError, match="at most 0 are accepted"):
        loads(data, max_bytes=0)


def test_nothing_is_ever_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    whole = pickle.dumps(Evil())
    for data in (whole, b"\x01" + whole, b"\x01\x05" + bytes([len(whole)]) + whole):
        with pytest.raises(WireError):
            loads(data)
    assert loads(dumps("cos\nsystem\n(S'echo'\ntR.")) == "cos\nsystem\n(S'echo'\ntR."


# -- hostile bytes ------------------------------------------------------------

CORPUS = [
    dumps(value)
    for value in (
        torch.arange(20.0),
        [torch.tensor(0.5), torch.arange(19) % 3 == 0],
        [[2, torch.tensor([True, False, False]), torch.ones(4, dtype=torch.bool)], torch.ones(2, dtype=torch.float16)],
        {"x": torch.ones(2, 3), "y": [1, -500, 2**40, None, True, False], 7: "text é 文"},
        [torch.ones(3, dtype=dtype) for dtype in DTYPES],
        {"state": {"a": [torch.zeros(0), torch.zeros(2, 0)], "b": 1e300}, -3: [[[[]]]]},
    )
]


def mutated(draw: random.Random) -> bytes:
    data = bytearray(draw.choice(CORPUS))
    kind = draw.randrange(6)
    if kind == 0:  # bits flipped
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 1:  # cut short
        del data[draw.randrange(len(data)) :]
    elif kind == 2:  # bytes put in
        place = draw.randrange(len(data) + 1)
        data[place:place] = draw.randbytes(draw.randint(1, 8))
    elif kind == 3:  # bytes taken out
        place = draw.randrange(len(data))
        del data[place : place + draw.randint(1, 4)]
    elif kind == 4:  # bytes of the structure replaced
        for _ in range(draw.randint(1, 4)):
            tags = [0, 1, 2, 3, 4, 5, 6, 7, 0x40, 0x45, 0x48, 0x49, 0x7F, 0x80, 0xFF]
            data[draw.randrange(1, min(len(data), 16))] = draw.choice(tags)
    else:  # noise behind a version
        data = bytearray(b"\x01" + bytes(draw.choice([6, 7, 0x40, 0x48, 5, 3]) for _ in range(draw.randint(0, 3))))
        data += draw.randbytes(draw.randint(0, 40))
    return bytes(data)


def test_ten_thousand_mutilated_messages_are_refused_or_are_what_dumps_would_write() -> None:
    draw = random.Random(20_240_801)
    refused = accepted = 0
    for _ in range(10_000):
        data = mutated(draw)
        try:
            value = loads(data)
        except WireError:
            refused += 1
        else:
            accepted += 1
            assert dumps(value) == data, data.hex()  # one value, one message
    assert refused > 5_000  # both kinds were really met
    assert accepted > 500


BOMBS = {
    "a list of 2^40": "06 808080808020",
    "a dict of 2^40": "07 808080808020",
    "a text of 2^40": "05 808080808020",
    "2^40 dimensions": "48 808080808020",
    "a tensor of 2^40 floats": "48 01 808080808020",
    "a tensor of 2^40 bits": "40 01 808080808020",
    "a tensor of 2^47 bits": "40 01 808080808080 20",
    "a tensor of 2^30 by 2^18": "49 02 8080808004 808010",
    "lists in lists, each of 90": "06 5a" * 40,
    "dicts of lists": "07 40 03 00" * 20,
}


@pytest.mark.parametrize("claim", BOMBS.values(), ids=BOMBS.keys())
def test_a_hundred_bytes_that_announce_gigabytes_allocate_next_to_nothing(claim: str) -> None:
    start = h("01" + claim)
    data = start + bytes(100 - len(start)) if len(start) < 100 else start[:100]
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            loads(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000
    assert time.process_time() - began < 1


def test_a_tensor_that_is_announced_but_not_there_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # tracemalloc does not see what torch allocates: look at what it is asked for.
    asked: list[Any] = []
    for name in ("zeros", "empty", "frombuffer", "tensor"):
        monkeypatch.setattr(torch, name, lambda *a, name=name, **k: asked.append((name, a)))
    for claim in BOMBS.values():
        with pytest.raises(WireError):
            loads((h("01" + claim) + bytes(100))[:100])
    assert asked == []


# -- restore ------------------------------------------------------------------


class Inner(NamedTuple):
    params: Params
    rest: Any


class Outer(NamedTuple):
    step: int
    inner: Inner


LAYOUT = Layout(("w", "b"), (torch.Size([2, 3]), torch.Size([2])))


def template() -> Outer:
    rest = {"pair": (1.5, "name"), 4: [torch.zeros(2, dtype=torch.int64), None, True]}
    return Outer(3, Inner(Params(LAYOUT, torch.arange(8.0)), rest))


def test_a_state_comes_back_in_the_types_of_its_template() -> None:
    state = template()
    like = Outer(0, Inner(LAYOUT.zeros(), {"pair": (0.0, ""), 4: [torch.zeros(2, dtype=torch.int64), None, False]}))
    back = restore(loads(dumps(state)), like)
    assert type(back) is Outer
    assert type(back.inner) is Inner
    assert type(back.inner.params) is Params
    assert back.inner.params.layout == LAYOUT
    assert back.inner.params["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert back.inner.rest["pair"] == (1.5, "name")
    assert type(back.inner.rest["pair"]) is tuple
    assert back.inner.rest[4][1:] == [None, True]
    assert type(back.inner.rest[4]) is list
    assert dumps(back) == dumps(state)


def test_a_dict_comes_back_in_the_order_of_its_template() -> None:
    assert list(restore(loads(dumps({"b": 1, "a": 2})), {"a": 0, "b": 0})) == ["a", "b"]


def test_restored_tensors_are_fresh_and_can_be_written_to() -> None:
    data = dumps([torch.arange(6.0).view(2, 3), torch.ones(3, dtype=torch.bool)])
    before = bytes(bytearray(data))
    like = [torch.zeros(3, 2).t(), torch.zeros(3, dtype=torch.bool)]
    back = restore(loads(data), like)
    assert back[0].is_contiguous()  # though the template is not
    back[0].fill_(9.0)
    back[1].fill_(False)
    assert data == before
    assert like[0].sum() == 0


def test_a_clone_is_contiguous_and_apart_from_its_original() -> None:
    x = torch.arange(6.0).view(2, 3).t()
    copy = clone({"x": (x, Inner(LAYOUT.zeros(), None))})
    assert copy["x"][0].is_contiguous()
    assert copy["x"][0].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert type(copy["x"][1]) is Inner
    copy["x"][0].zero_()
    assert x[0, 1] == 3.0


MISFITS = {
    "another number of entries": (
        [3, [torch.zeros(7), {"pair": [0.0, ""], 4: [torch.zeros(2, dtype=torch.int64), None, True]}]],
        r"state\.inner\.params: float32\[8\] expected, float32\[7\] found",
    ),
    "another shape": (
        [3, [torch.zeros(2, 4), {"pair": [0.0, ""], 4: [torch.zeros(2, dtype=torch.int64), None, True]}]],
        r"state\.inner\.params: float32\[8\] expected, float32\[2, 4\] found",
    ),
    "another dtype": (
        [3, [torch.zeros(8, dtype=torch.float64), {"pair": [0.0, ""], 4: [torch.zeros(2), None, True]}]],
        r"state\.inner\.params: float32\[8\] expected, float64\[8\] found",
    ),
    "another dtype deep inside": (
        [3, [torch.zeros(8), {"pair": [0.0, ""], 4: [torch.zeros(2), None, True]}]],
        r"state\.inner\.rest\.4\.0: int64\[2\] expected, float32\[2\] found",
    ),
    "an item too many": ([3, [torch.zeros(8), {}], None], r"state: 2 items expected, 3 items found"),
    "an item too few": ([3, [torch.zeros(8)]], r"state\.inner: 2 items expected, 1 items found"),
    "a dict for a tuple": ([3, {"params": None, "rest": None}], r"state\.inner: 2 items expected, 2 items found"),
    "a number for a list": (7, r"state: 2 items expected, int found"),
    "a tensor for a list": (torch.zeros(2), r"state: 2 items expected, float32\[2\] found"),
    "a float for an integer": ([3.0, [torch.zeros(8), {}]], r"state\.step: int expected, float found"),
    "True for an integer": ([True, [torch.zeros(8), {}]], r"state\.step: int expected, bool found"),
    "None for a tensor": ([3, [None, {}]], r"state\.inner\.params: float32\[8\] expected, NoneType found"),
    "a number for a tensor": ([3, [0.0, {}]], r"state\.inner\.params: float32\[8\] expected, float found"),
    "a missing key": (
        [3, [torch.zeros(8), {"pair": [0.0, ""]}]],
        r"state\.inner\.rest: the keys \['pair', 4\] expected, 1 items found",
    ),
    "a key of another type": (
        [3, [torch.zeros(8), {"pair": [0.0, ""], "4": None}]],
        r"state\.inner\.rest: the keys \['pair', 4\] expected",
    ),
    "a list for a dict": ([3, [torch.zeros(8), [1, 2]]], r"state\.inner\.rest: the keys"),
    "text for a float": (
        [3, [torch.zeros(8), {"pair": ["", ""], 4: [torch.zeros(2, dtype=torch.int64), None, True]}]],
        r"state\.inner\.rest\.pair\.0: float expected, str found",
    ),
    "something for None": (
        [3, [torch.zeros(8), {"pair": [0.0, ""], 4: [torch.zeros(2, dtype=torch.int64), 0, True]}]],
        r"state\.inner\.rest\.4\.1: NoneType expected, int found",
    ),
}


@pytest.mark.parametrize(("packet", "place"), MISFITS.values(), ids=MISFITS.keys())
def test_a_packet_of_another_shape_is_refused_with_its_place(packet: Any, place: str) -> None:
    with pytest.raises(WireError, match=f"^{place}"):
        restore(loads(dumps(packet)), template())


def test_conform_names_what_the_caller_calls_it() -> None:
    conform(loads(dumps({"a": 1})), {"a": 5}, "reply")
    with pytest.raises(WireError, match=r"^reply\.a: int expected, str found$"):
        conform(loads(dumps({"a": "1"})), {"a": 5}, "reply")


def test_a_mutilated_state_is_refused_or_restored_and_nothing_else() -> None:
    draw, good = random.Random(7), dumps(template())
    outcomes = {True: 0, False: 0}
    for _ in range(2_000):
        data = bytearray(good)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        try:
            back = restore(loads(bytes(data)), template())
        except WireError:
            outcomes[False] += 1
        else:
            assert dumps(back) == bytes(data)
            outcomes[True] += 1
    assert min(outcomes.values()) > 200


@pytest.mark.slow
def test_a_message_of_very_many_values_is_refused_before_they_are_made() -> None:
    n = 300_000
    head = bytes([1, 6, 0x80 | n & 127, 0x80 | (n >> 7) & 127, n >> 14])
    with pytest.raises(WireError, match="more values than are accepted"):
        loads(head + b"\x48\x01\x00" * n)


def test_a_depth_that_the_caller_allows_never_overflows_the_stack() -> None:
    with pytest.raises(WireError, match="nested deeper than 100"):
        loads(b"\x01" + b"\x06\x01" * 5000 + b"\0", max_depth=10_000)


@pytest.mark.parametrize(
    "value", ["\ud800", torch.ones(2).to_sparse(), [[]] * 2 + [object()]], ids=["text", "sparse", "object"]
)
def test_what_cannot_be_sent_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match=r"ha(s|ve) no place in a message"):
        dumps(value)


def test_what_is_nested_too_deeply_is_a_type_error() -> None:
    value: list = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(TypeError, match="nested deeper than 100"):
        dumps(value)
