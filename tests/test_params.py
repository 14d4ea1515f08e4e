"""Params, layouts, the one formula of every mean, and keys."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Size, nn

from thinwire.key import Key
from thinwire.params import Layout, Params, call_with, fold, is_finite, mean


def model() -> Params:
    return Params.of(
        [("w", torch.tensor([[1.0, 2.0], [3.0, 4.0]])), ("s", torch.tensor(5.0)), ("b", torch.tensor([6.0, 7.0]))]
    )


def test_layers_lie_one_after_the_other() -> None:
    x = model()
    assert x.flat.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert x.names == ("w", "s", "b")
    assert x.layout == Layout(("w", "s", "b"), (Size([2, 2]), Size([]), Size([2])))
    assert x.layout.sizes == (4, 1, 2)
    assert x.layout.size == 7
    assert x.layout.spans == {"w": (0, 4, Size([2, 2])), "s": (4, 1, Size([])), "b": (5, 2, Size([2]))}
    assert repr(x) == "Params(3 layers, 7 entries)"
    assert repr(x.layout) == "Layout(3 layers, 7 entries)"


def test_a_layer_is_a_view_in_its_own_shape() -> None:
    x = model()
    assert x["w"].tolist() == [[1, 2], [3, 4]]
    assert x["s"].shape == ()
    assert x["b"].data_ptr() == x.flat.data_ptr() + 5 * 4
    assert [(name, layer.tolist()) for name, layer in x.items()] == [("w", [[1, 2], [3, 4]]), ("s", 5), ("b", [6, 7])]


def test_params_are_a_copy_of_what_they_were_made_of() -> None:
    source = torch.ones(2)
    x = Params.of([("a", source)])
    source.fill_(9.0)
    assert x.flat.tolist() == [1, 1]


def test_params_are_32_bits_unless_told_otherwise() -> None:
    named = [("a", torch.tensor([1, 2])), ("b", torch.tensor([0.5], dtype=torch.float16))]
    assert Params.of(named).flat.dtype == torch.float32
    assert Params.of(named, dtype=torch.float64).flat.dtype == torch.float64
    assert Params.of([]).flat.dtype == torch.float32
    assert Params.of([]).layout == Layout((), ())


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^6 entries do not fill a layout of 7$"):
        Params(model().layout, torch.zeros(6))


def test_only_and_drop_keep_the_order_of_the_layout() -> None:
    x = model()
    assert x.only(["b", "w"]).flat.tolist() == [1, 2, 3, 4, 6, 7]
    assert x.only(["b", "w"]).names == ("w", "b")
    assert x.drop(["w"]).flat.tolist() == [5, 6, 7]
    assert x.drop(iter(["s", "b"])).flat.tolist() == [1, 2, 3, 4]
    assert x.drop(["w", "s", "b"]).layout == Layout((), ())
    assert x.only([]).flat.shape == (0,)
    assert x.only(("b", "s", "w")).flat.tolist() == x.drop([]).flat.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert x.layout.only(["s"]) == Layout(("s",), (Size([]),))


def test_a_part_does_not_share_memory_with_the_whole() -> None:
    x = model()
    part = x.only(["b"])
    part.flat.fill_(0.0)
    assert x["b"].tolist() == [6, 7]


def test_replace_takes_the_layers_the_other_has() -> None:
    x = model()
    y = x.replace(Params.of([("b", torch.tensor([-6.0, -7.0])), ("s", torch.tensor(-5.0))]))
    assert y.flat.tolist() == [1, 2, 3, 4, -5, -6, -7]
    assert x.flat.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert x.replace(Params.of([])).flat.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert x.replace(x * 2).flat.tolist() == [2, 4, 6, 8, 10, 12, 14]


def test_what_replaced_every_layer_may_be_overwritten_after() -> None:
    x, other = model(), model()
    y, taken = x.replace(other), x.replace(other, copy=False)
    other.flat.fill_(0.0)
    assert y.flat.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert taken is other


def test_unknown_layers_are_refused_by_name() -> None:
    x = model()
    with pytest.raises(ValueError, match=r"^no layer named 'c'; the layers are w, s, b$"):
        x.only(["w", "c"])
    with pytest.raises(KeyError, match=r"no layer named 'c'; the layers are w, s, b"):
        x["c"]
    with pytest.raises(ValueError, match=r"^cannot replace 'c': there is no such layer here$"):
        x.replace(Params.of([("c", torch.zeros(2))]))
    with pytest.raises(ValueError, match=r"^cannot replace 'b': \(3,\) is not \(2,\)$"):
        x.replace(Params.of([("b", torch.zeros(3))]))


def test_different_layers_do_not_add() -> None:
    x, part = model(), model().only(["w"])
    operations: list[Any] = [
        lambda: x + part,
        lambda: x - part,
        lambda: x * part,
        lambda: x / part,
        lambda: x @ part,
        lambda: x.map(torch.add, part),
    ]
    for operation in operations:
        with pytest.raises(ValueError, match=r"^different layers: use \.only\(\), \.drop\(\) or \.replace\(\)$"):
            operation()
    renamed = Params(Layout(("v", "s", "b"), x.layout.shapes), x.flat)
    with pytest.raises(ValueError, match="different layers"):
        x + renamed


def test_masks_name_layers_by_bits() -> None:
    layout = model().layout
    assert layout.mask(["b", "w"]).tolist() == [True, False, True]
    assert layout.mask([]).dtype == torch.bool
    assert layout.named(torch.tensor([True, False, True])) == ("w", "b")
    assert layout.named(layout.mask(["s"])) == ("s",)


def test_arithmetic_by_hand() -> None:
    x = Params.of([("a", torch.tensor([3.0])), ("b", torch.tensor([-4.0]))])
    y = Params.of([("a", torch.tensor([0.5])), ("b", torch.tensor([2.0]))])
    assert (x + y).flat.tolist() == [3.5, -2.0]
    assert (x - y).flat.tolist() == [2.5, -6.0]
    assert (x * y).flat.tolist() == [1.5, -8.0]
    assert (x / y).flat.tolist() == [6.0, -2.0]
    assert (x * 2).flat.tolist() == (2 * x).flat.tolist() == [6.0, -8.0]
    assert (x * torch.tensor(0.5)).flat.tolist() == [1.5, -2.0]
    assert (x / 2).flat.tolist() == [1.5, -2.0]
    assert (-x).flat.tolist() == [-3.0, 4.0]
    assert x @ y == -6.5
    assert x.norm() == 5.0
    assert x.zeros().flat.tolist() == [0.0, 0.0]
    assert x.map(torch.maximum, y).flat.tolist() == [3.0, 2.0]
    assert x.flat.tolist() == [3.0, -4.0]  # nothing wrote into it


def test_a_clone_is_apart() -> None:
    x = model()
    x.clone().flat.zero_()
    assert x.flat.sum() == 28


def test_inner_products_and_norms_are_accumulated_in_double_precision() -> None:
    # In 32 bits 1e8 + 1 is 1e8, and 1e30 squared is infinite.
    x = Params.of([("a", torch.tensor([1e4, 1.0, 1e4]))])
    y = Params.of([("a", torch.tensor([1e4, 1.0, -1e4]))])
    assert x @ y == 1.0
    assert Params.of([("a", torch.tensor([3e30, 4e30]))]).norm() == pytest.approx(5e30, rel=1e-6)
    tiny = Params.of([("a", torch.tensor([1e-30]))])
    assert tiny @ tiny == pytest.approx(1e-60, rel=1e-6)


def test_norms_of_nothing_are_zero() -> None:
    nothing = Params.of([])
    assert nothing.norm() == 0.0
    assert nothing @ nothing == 0.0
    assert nothing.finite()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_finite_finds_every_kind_of_number_that_is_not(bad: float) -> None:
    for place in (0, 17, 99):
        x = torch.ones(100)
        x[place] = bad
        assert not is_finite(x)
        assert not is_finite(x.to(torch.float16))
        assert not is_finite(x.to(torch.bfloat16))
        assert not Params.of([("a", x)]).finite()
    assert is_finite(torch.tensor([3.4e38, -3.4e38]))
    assert is_finite(torch.tensor([True]))
    assert is_finite(torch.zeros(0))
    assert model().finite()


def test_only_trained_parameters_are_taken_and_each_once() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    module[2].weight = module[0].weight  # tied
    module[0].bias.requires_grad_(False)
    assert Params.trainable(module).names == ("0.weight", "1.weight", "1.bias", "2.bias")
    assert not Params.trainable(module).flat.requires_grad
    assert Params.statistics(module).names == ("1.running_mean", "1.running_var")  # not the integer counter


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6), st.data())
def test_what_is_kept_and_what_is_dropped_make_the_whole(shapes: list[tuple[int, int]], data: st.DataObject) -> None:
    count = sum(a * b for a, b in shapes)
    layout = Layout(tuple(f"l{i}" for i in range(len(shapes))), tuple(map(Size, shapes)))
    x = Params(layout, torch.arange(float(count)))
    names = data.draw(st.sets(st.sampled_from(layout.names)))
    kept, rest = x.only(names), x.drop(names)
    assert kept.layout.size + rest.layout.size == count
    assert x.zeros().replace(rest).replace(kept).flat.tolist() == x.flat.tolist()
    assert layout.only(layout.named(layout.mask(names))) == kept.layout


# -- the mean -----------------------------------------------------------------


def test_a_mean_by_hand() -> None:
    a, b = torch.tensor([1.0, 10.0]), torch.tensor([5.0, -2.0])
    assert mean([a, b], [1.0, 3.0]).tolist() == [4.0, 1.0]
    assert mean(iter([a, b]), iter([2, 2])).tolist() == [3.0, 4.0]
    assert a.tolist() == [1.0, 10.0]  # not written into


def test_the_sum_is_divided_once_at_its_end() -> None:
    # numpy: f = np.float32; float(f(0.1) * f(0.1) / f(0.1)) = 0.10000000894069672, though f(0.1) is 0.10000000149011612
    assert mean([torch.tensor([0.1])], [0.1]).item() == 0.10000000894069672


def test_a_mean_is_summed_in_the_order_given() -> None:
    big, one = torch.tensor([1e8]), torch.tensor([1.0])
    assert mean([big, one, -big], [1.0, 1.0, 1.0]).item() == 0.0  # 1e8 + 1 is 1e8 in 32 bits
    assert mean([big, -big, one], [1.0, 1.0, 1.0]).item() == 0.3333333432674408


def test_halves_are_averaged_in_32_bits() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        total = mean([torch.tensor([49152.0], dtype=dtype)] * 4, [1.0] * 4)  # their sum is beyond float16
        assert total.dtype == torch.float32
        assert total.item() == 49152.0


def test_doubles_are_averaged_as_doubles() -> None:
    x = torch.tensor([0.1], dtype=torch.float64)
    assert mean([x, x], [1.0, 1.0]).dtype == torch.float64
    assert mean([x, x], [1.0, 1.0]).item() == 0.1


def test_fold_starts_anew_and_then_adds_in_place() -> None:
    x = torch.tensor([4.0, 8.0])
    total = fold(None, x, 0.5)
    assert total.tolist() == [2.0, 4.0]
    again = fold(total, torch.tensor([1.0, -1.0]), 0.25)
    assert again is total
    assert total.tolist() == [2.25, 3.75]
    assert x.tolist() == [4.0, 8.0]


def test_the_bits_of_a_mean_do_not_depend_on_how_the_vector_is_cut() -> None:
    # A layer alone, a part of a vector, every third entry: one formula, the same bits.
    generator = torch.Generator().manual_seed(3)
    rows, weights = torch.randn(5, 1_000, generator=generator), [0.3, 1.7, 2.0, 0.1, 5.5]
    whole = mean(rows, weights)
    for start, length in itertools.product(range(0, 900, 37), (1, 3, 7, 8, 9, 31, 64, 100)):
        part = mean([row[start : start + length] for row in rows], weights)
        assert part.equal(whole[start : start + length])
    assert mean([row[::3] for row in rows], weights).equal(whole[::3])


def test_there_is_no_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match=r"^the mean of nothing: "):
        mean([], [])
    with pytest.raises(ValueError, match=r"longer|shorter"):
        mean([torch.ones(1)], [])


# -- keys ---------------------------------------------------------------------

KEY = Key(7, 3, 12, "up/update/conv1.weight")


def test_both_ends_of_any_version_draw_these_numbers() -> None:
    # Pinned: an old client and a new server must agree.
    assert KEY.number("positions") == 4_775_699_788_448_533_704
    assert torch.rand(3, generator=KEY.generator("positions")).tolist() == [
        0.9976067543029785,
        0.14372575283050537,
        0.21862059831619263,
    ]
    assert torch.randperm(8, generator=KEY.generator("positions")).tolist() == [0, 5, 1, 6, 4, 7, 2, 3]


def test_every_part_of_a_key_and_the_purpose_matter() -> None:
    keys = [
        KEY,
        KEY._replace(seed=8),
        KEY._replace(round=4),
        KEY._replace(client=13),
        KEY._replace(where="up/update/conv2.weight"),
        KEY._replace(where="down/update/conv1.weight"),
        KEY._replace(where=""),
        KEY.everyone(),
        KEY.always(),
        KEY.at("0"),
        Key(7, 31, 2),
        Key(73, 1, 2),
        Key(0),
    ]
    numbers = [key.number(purpose) for key in keys for purpose in ("positions", "dither", "")]
    assert len(set(numbers)) == len(keys) * 3
    assert all(0 <= number < 2**63 for number in numbers)
    draws = {tuple(torch.rand(2, generator=key.generator(p)).tolist()) for key in keys for p in ("positions", "dither")}
    assert len(draws) == len(keys) * 2


def test_draws_of_neighbouring_keys_are_not_alike() -> None:
    draws = np.array([torch.randn(200, generator=Key(0, r).generator("x")).tolist() for r in range(40)])
    correlations = np.corrcoef(draws) - np.eye(40)
    assert np.abs(correlations).max() < 0.35  # five standard deviations of 1 / sqrt(200)


def test_what_everyone_draws_does_not_depend_on_the_client_nor_what_is_always_drawn_on_the_round() -> None:
    other = KEY._replace(client=99)
    assert KEY.everyone().number("a") == other.everyone().number("a")
    assert KEY.number("a") != other.number("a")
    later = KEY._replace(round=4)
    assert KEY.always().number("a") == later.always().number("a")
    assert KEY.always().number("a") != other.always().number("a")
    assert KEY.always().everyone() == Key(7, -1, None, KEY.where) == other.everyone().always()


def test_a_key_goes_down_by_steps() -> None:
    assert Key(1).at("up").at("update").at("w") == Key(1, 0, None, "up/update/w")
    assert Key(1).at("up") != Key(1)


def test_a_generator_starts_afresh_each_time() -> None:
    first, second = KEY.generator("a"), KEY.generator("a")
    assert torch.rand(5, generator=first).equal(torch.rand(5, generator=second))
    assert not torch.rand(5, generator=first).equal(torch.rand(5, generator=KEY.generator("a")))


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    torch.rand(10, generator=KEY.generator("a"))
    torch.randperm(10, generator=KEY.generator("b"))
    assert torch.get_rng_state().equal(before)
    drawn = torch.rand(3, generator=KEY.generator("a"))
    torch.manual_seed(6)
    assert torch.rand(3, generator=KEY.generator("a")).equal(drawn)


@given(st.integers(0, 2**64), st.integers(-1, 10**9), st.none() | st.integers(0, 10**9), st.text(max_size=20))
def test_any_key_makes_a_generator(seed: int, round: int, client: int | None, where: str) -> None:
    drawn = torch.rand(1, generator=Key(seed, round, client, where).generator("x")).item()
    assert math.isfinite(drawn)
    assert torch.rand(1, generator=Key(seed, round, client, where).generator("x")).item() == drawn


def test_layers_that_are_not_there_cannot_be_dropped() -> None:
    x = Params.of([("a", torch.ones(2))])
    with pytest.raises(ValueError, match="no layer named 'typo'"):
        x.drop(["typo"])
    with pytest.raises(ValueError, match="two layers have the same name"):
        Params.of([("a", torch.ones(2)), ("a", torch.ones(3))])


def test_a_module_is_called_with_other_tensors_and_has_its_own_afterwards() -> None:
    # 2 at both places of one layer, and in the layer whose weight is tied to it: 2 * 2 * 2 + 3
    one, tied, still = nn.Linear(1, 1, bias=False), nn.Linear(1, 1), nn.Linear(1, 1, bias=False)
    tied.weight = one.weight
    nn.init.ones_(still.weight)
    module = nn.Sequential(one, nn.Sequential(one), still, tied)
    own = dict(module.named_parameters(remove_duplicate=False))
    weights = {"0.weight": torch.full((1, 1), 2.0), "3.bias": torch.tensor([3.0])}
    assert call_with(module, weights, [torch.ones(1, 1)]).item() == 11.0
    now = dict(module.named_parameters(remove_duplicate=False))
    assert all(now[name] is tensor for name, tensor in own.items())
    with pytest.raises(RuntimeError):
        call_with(module, weights, [torch.ones(1, 2)])
    assert all(p is own[name] for name, p in module.named_parameters(remove_duplicate=False))
