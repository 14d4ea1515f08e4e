"""What was once wrong: a test for every mistake that was found by trying to break things."""

import pytest
import torch
from torch import Size, nn

import thinwire as tw
from thinwire.errors import WireError
from thinwire.links import LBGM, Dense, Flat, Partition, RandK, ScaledSign, Sparse, TopK
from thinwire.links.sparse import pack_positions, unpack_positions
from thinwire.task import Supervised

KEY = tw.Key(0)


def tasks(sizes: tuple[int, ...] = (8, 12, 16, 20), seed: int = 0) -> list[Supervised]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 6, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    return [Supervised(x, y, part) for part in torch.arange(sum(sizes)).split(list(sizes))]


def linear() -> nn.Module:
    return nn.Linear(6, 3)


# -- bytes ------------------------------------------------------------------------


def test_a_rice_parameter_that_would_wrap_round_is_refused() -> None:
    k = 65_537
    ones = torch.full((k // 8 + 1,), 255, dtype=torch.uint8)
    ones[-1] = 1  # 65,537 quotients of zero
    rests = torch.full((-(-k * 47 // 8),), 255, dtype=torch.uint8)
    rests[-1] = 127
    packet = [47, ones, rests]
    with pytest.raises(WireError, match="a Rice parameter for gaps below 65537"):
        unpack_positions(tw.loads(tw.dumps(packet)), k)


def test_clustered_positions_take_a_bit_each() -> None:
    packet = pack_positions(torch.arange(10_000), 1_000_000)
    assert len(tw.dumps(packet)) == 1_262  # 10,000 bits and what surrounds them
    assert unpack_positions(tw.loads(tw.dumps(packet)), 1_000_000).tolist() == list(range(10_000))


# -- links ------------------------------------------------------------------------


def test_two_links_of_a_partition_do_not_share_a_mask() -> None:
    x = tw.Params.of([("a", torch.arange(1.0, 101)), ("b", torch.arange(1.0, 101))])
    link = Partition({"a": Flat(RandK(0.1)), "b": Flat(RandK(0.1))})
    _, seen, _ = link.send(x, link.open(x)[0], KEY)
    assert not torch.equal(seen["a"] != 0, seen["b"] != 0)


def test_the_order_of_a_partitions_rules_matters() -> None:
    one, other = {"*.bias": Dense(), "*": TopK(0.1)}, {"*": TopK(0.1), "*.bias": Dense()}
    assert Partition(one) != Partition(other)
    assert Partition(one) == Partition(dict(one))


def test_looking_back_is_a_contraction_only_over_what_loses_nothing() -> None:
    assert LBGM().contraction
    assert LBGM(Sparse()).contraction
    assert not LBGM(ScaledSign(), 0.2).contraction
    with pytest.raises(tw.errors.CombinationError, match="needs a link that always keeps a part"):
        tw.ErrorFeedback(LBGM(ScaledSign()))


def test_a_sign_of_huge_numbers_stays_finite() -> None:
    link = ScaledSign()
    packet = link.encode(torch.full((10,), 3e38), KEY)
    assert torch.isfinite(link.decode(packet, Size([10]), KEY)).all()


def test_looking_back_sends_whole_what_no_finite_multiple_reaches() -> None:
    link, layout = LBGM(threshold=1.0), tw.Layout(("a",), (Size([2]),))
    _, _, tx = link.send(tw.Params(layout, torch.tensor([1e-30, 0.0])), link.open(layout.zeros())[0], KEY)
    packet, seen, _ = link.send(tw.Params(layout, torch.tensor([1e15, 0.0])), tx, KEY)
    assert isinstance(packet, list)
    assert seen.flat.tolist() == pytest.approx([1e15, 0.0])


# -- subspaces, and states on disk ---------------------------------------------------


def test_what_a_dense_projection_sends_is_what_is_seen() -> None:
    layout = tw.Layout(("w", "scale", "b"), (Size([20, 40]), Size([]), Size([30])))
    x = tw.Params(layout, torch.randn(831, generator=torch.Generator().manual_seed(0)))
    for dim in (7, 10, 29):
        link = tw.Projection(dim, tw.Gaussian())
        for round in range(20):
            key = tw.Key(round, 0, 2, "up/update")
            packet, seen, _ = link.send(x, None, key)
            got, _ = link.recv(tw.loads(tw.dumps(packet)), layout, None, key)
            assert torch.equal(got.flat, seen.flat)


def test_coefficients_of_a_moving_subspace_need_a_broadcast_that_loses_nothing() -> None:
    with pytest.raises(tw.errors.CombinationError, match="nothing would bring it back; use down=Dense"):
        tw.Intrinsic(4, varying=True, down=tw.Half())


def test_layers_of_a_subspace_are_not_layers_to_recycle() -> None:
    with pytest.raises(tw.errors.CombinationError, match="LUAR needs a reply with an update of the model"):
        tw.simulate(tw.LUAR(tw.Intrinsic(4), recycle=1), linear, tasks(), 1)
