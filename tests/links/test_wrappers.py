"""Links for parts of a model: by layer, by name, by size."""

from __future__ import annotations

import re

import pytest
import torch

import thinwire as tw
from problems import LAYOUT, key, rounds, vector
from thinwire.errors import CombinationError
from thinwire.key import Key
from thinwire.links import LBGM, Dense, ErrorFeedback, Flat, Layerwise, Partition, RandK, ScaledSign, Switch, TopK
from thinwire.params import Params
from thinwire.problem import standard

KEY = Key(0)


def test_layerwise_looks_back_layer_by_layer() -> None:
    first = Params.of([("a", torch.tensor([3.0, 4.0])), ("b", torch.tensor([1.0, 0.0]))])
    second = Params.of([("a", torch.tensor([6.0, 8.0])), ("b", torch.tensor([0.0, 2.0]))])
    results = list(rounds(Layerwise(LBGM(threshold=0.1)), first, second))
    assert results[1][0][0].item() == 2.0
    assert results[1][0][1][0].tolist() == [0.0, 2.0]
    # The whole vector: <g, l> = 50, |g|^2 = 104, |l|^2 = 26: sin^2 = 1 - 2500/2704 = 0.0754
    packet = list(rounds(LBGM(threshold=0.1), first, second))[1][0]
    assert packet.item() == pytest.approx(50 / 26, rel=1e-7)


def test_a_partition_takes_the_first_pattern_that_fits() -> None:
    x = Params.of([(name, torch.tensor([2.0, 1.0])) for name in ("a.bias", "a.weight", "b.bias", "b.weight")])
    link = Partition({"a.*": TopK(0.5), "*.bias": Dense(), "*": ScaledSign()})
    _, seen, _ = link.send(x, link.open(x)[0], key(0))
    assert seen.flat.tolist() == [2, 0, 2, 0, 2, 1, 1.5, 1.5]
    assert link.names(x.layout) == {"a.*": ["a.bias", "a.weight"], "*.bias": ["b.bias"], "*": ["b.weight"]}
    # Letters matter, and a pattern has to fit the whole name.
    assert Partition({"A.*": Dense(), "bias": Dense(), "*": Dense()}).names(x.layout)["*"] == list(x.names)


def test_a_partition_takes_layers_by_their_size() -> None:
    x = Params.of(
        [("w", torch.ones(2, 50)), ("b", torch.ones(9)), ("one", torch.ones(())), ("w.bias", torch.ones(100))]
    )
    link = Partition({"<9": Dense(), "*.bias": Dense(), ">=100": TopK(0.1), "<= 9": ScaledSign()})
    assert link.names(x.layout) == {"<9": ["one"], "*.bias": ["w.bias"], ">=100": ["w"], "<= 9": ["b"]}
    assert Partition({">9": Dense(), "*": Dense()}).names(x.layout) == {">9": ["w", "w.bias"], "*": ["b", "one"]}
    with pytest.raises(ValueError, match="no rule for layer 'b'"):
        Partition({"<9": Dense(), ">9": Dense()}).names(x.layout)
    text = "Partition({'<9': Dense(), '>=9': TopK(0.1)})"
    assert repr(tw.parse(text)) == text


@pytest.mark.parametrize("rule", [">", "<=", "<x", ">=1e3", ">-1", "=>5", "<1.5", "<<1", "> =1"])
def test_a_size_that_cannot_be_read_is_named(rule: str) -> None:
    if rule == "=>5":  # begins like no size: a pattern that fits no layer
        assert Partition({rule: Dense(), "*": Dense()}).names(vector(1.0).layout)["*"] == ["a"]
        return
    with pytest.raises(ValueError, match="a size is written such as"):
        Partition({rule: Dense(), "*": Dense()})


def test_two_links_of_a_partition_do_not_share_a_mask() -> None:
    x = tw.Params.of([("a", torch.arange(1.0, 101)), ("b", torch.arange(1.0, 101))])
    link = Partition({"a": Flat(RandK(0.1)), "b": Flat(RandK(0.1))})
    _, seen, _ = link.send(x, link.open(x)[0], KEY)
    assert not torch.equal(seen["a"] != 0, seen["b"] != 0)


def test_the_order_of_a_partitions_rules_matters() -> None:
    one, other = {"*.bias": Dense(), "*": TopK(0.1)}, {"*": TopK(0.1), "*.bias": Dense()}
    assert Partition(one) != Partition(other)
    assert Partition(one) == Partition(dict(one))


def test_a_layer_that_no_rule_fits_is_named() -> None:
    message = "Partition has no rule for layer 'conv.weight': add \"*\": Dense() as the last one"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Partition({"*.bias": Dense()}).open(LAYOUT.zeros())


def test_a_switch_is_the_one_link_in_rounds_up_to_its_number_and_the_other_in_all_that_follow() -> None:
    x = Params.of([("w", torch.arange(1.0, 11.0))])
    link = Switch(TopK(0.1), then=TopK(0.3), rounds=2)
    sent = {t: link.send(x, None, Key(0, t)) for t in (1, 2, 3, 4)}
    assert [int((seen.flat != 0).sum()) for _, seen, _ in sent.values()] == [1, 1, 3, 3]
    # A reply of round 2 that comes when others are in round 3 is read as one of round 2.
    late, _ = link.recv(sent[2][0], x.layout, None, Key(0, 2))
    assert late.flat.tolist() == [0.0] * 9 + [10.0]


def test_a_switch_of_links_with_a_state_at_the_sender_is_not_opened() -> None:
    link = Switch(ErrorFeedback(TopK(0.1)), then=ErrorFeedback(TopK(0.3)), rounds=2)
    with pytest.raises(CombinationError, match=r"ErrorFeedback keeps a state between messages, .* put it around"):
        link.open(LAYOUT.zeros())


def test_clients_and_server_switch_in_the_same_round() -> None:
    problem = standard("digits", "linear", 4, seed=0)  # layers of 640 and 10 entries
    link = Switch(RandK(0.1), then=RandK(0.5), rounds=2)
    result = tw.simulate(tw.FedAvg(up=link), problem.model, problem.tasks, 4, sample=2, workers=1)
    # 65 entries of 4 bytes and 325, and 16 bytes of structure
    assert [e.payload for e in result.ledger.of("up")] == [276] * 4 + [1316] * 4
