"""A budget of bytes, beside every choice that there is."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import Size

from problems import forty, key
from thinwire.links import Budget, Dense, Half, ScaledSign, TopK
from thinwire.params import Layout, Params
from thinwire.wire import dumps


@pytest.mark.parametrize(
    ("budget", "choices", "bytes"),
    [(56, [0, 0], 56), (195, [0, 0], 56), (196, [0, 1], 196), (335, [0, 1], 196), (336, [1, 1], 336)],
)
def test_a_budget_goes_first_to_the_layer_where_it_takes_off_most(budget: int, choices: list[int], bytes: int) -> None:
    # The largest of 40 entries, or all of them: of sizes 1 and 3 that leaves out 39 and 351, for 140 bytes more each.
    link = Budget(budget, ladder=(TopK(0.01), Dense()))
    for x, expected in ((forty(1.0, 3.0), choices), (forty(3.0, 1.0), choices[::-1])):
        packet, seen, _ = link.send(x, None, key(0))
        assert packet[0].tolist() == expected
        assert len(dumps(packet)) == bytes
        left = {56: 390, 196: 39, 336: 0}[bytes]
        assert (x - seen).norm() ** 2 == pytest.approx(left)


def test_a_budget_that_holds_nothing_says_what_it_would_take() -> None:
    message = (
        "Budget(55, ladder=(TopK(0.01), Dense())): the 2 layers take 56 bytes at their cheapest; raise bytes to that, "
        "or put a cheaper codec into the ladder"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Budget(55, ladder=(TopK(0.01), Dense())).send(forty(1.0, 3.0), None, key(0))


def test_one_large_layer_may_be_worth_more_than_all_that_was_bought_before_it() -> None:
    # By error a byte the small layers come first, and then the large one finds no room: of 1,000 entries of size 1 it
    # would take off 999 for 3,900 bytes or so, they 975 together for 304.
    x = Params.of([("large", torch.ones(1_000)), *forty(3.5, 3.5).items()])
    link = Budget(4_200, ladder=(TopK(0.0001), Dense()))
    packet, _, _ = link.send(x, None, key(0))
    assert len(dumps(packet)) <= 4_200
    assert packet[0].tolist() == [1, 0, 0]


def every_way(link: Budget, x: Params) -> list[tuple[int, float]]:
    """Bytes and squared error of every choice of codecs, each packet made from nothing."""
    found = []
    for choice in itertools.product(range(len(link.ladder)), repeat=len(x.names)):
        codecs = [link.ladder[c] for c in choice]
        packets = [codec.encode(layer, key(0).at(name)) for codec, (name, layer) in zip(codecs, x.items(), strict=True)]
        packet = [torch.tensor(choice, dtype=torch.uint8), packets]
        found.append((len(dumps(packet)), (x - link.recv(packet, x.layout, None, key(0))[0]).norm() ** 2))
    return found


def test_no_choice_within_a_budget_is_much_better_and_most_often_none_is() -> None:
    layout = Layout(("a", "b", "c", "d"), (Size([400]), Size([40]), Size([100]), Size([12])))
    generator, best = torch.Generator().manual_seed(3), 0
    scale = torch.cat([torch.full((n,), s) for n, s in ((400, 0.3), (40, 2.0), (100, 0.7), (12, 1.0))])
    x = Params(layout, torch.randn(552, generator=generator) ** 3 * scale)
    ladder = (TopK(0.01), TopK(0.1), ScaledSign(), Dense())
    ways, budgets = every_way(Budget(1, ladder), x), range(150, 2_400, 50)
    for budget in budgets:
        packet, seen, _ = Budget(budget, ladder).send(x, None, key(0))
        assert len(dumps(packet)) <= budget
        error, least = (x - seen).norm() ** 2, min(error for size, error in ways if size <= budget)
        assert error - least < 0.05 * x.norm() ** 2
        best += error <= least * (1 + 1e-9)
    assert best > 0.8 * len(budgets)


def test_a_ladder_has_at_most_256_steps() -> None:
    with pytest.raises(ValueError, match=r"^Budget\(ladder=\.\.\.\): 257 codecs; it takes 1 to 256$"):
        Budget(9, ladder=(Half(),) * 257)
