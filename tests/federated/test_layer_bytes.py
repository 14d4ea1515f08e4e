"""What crossed by layer: bytes of each, and the layers that no reply carried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from problems import LAYOUT
from tables import LINKS
from thinwire.federated.layer_bytes import carries
from thinwire.key import Key
from thinwire.params import Params

EXPRESSIONS = sorted({expression for link in LINKS for expression in link.laws})


def tasks() -> list[tw.Supervised]:
    made = torch.Generator().manual_seed(0)
    return [tw.Supervised(torch.randn(8, 6, generator=made), torch.arange(8) % 3, torch.arange(8)) for _ in range(3)]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))  # 24 + 4 + 12 + 3 numbers


def run(method: str, **fields: Any) -> Any:
    return tw.simulate(tw.parse(method), model, tasks(), 3, record="bytes", workers=1, plan="each", **fields)


def test_dense_layers_take_four_bytes_a_number_in_both_directions() -> None:
    found = run("FedAvg()").rounds[1]["layer_bytes"]
    sizes = {"0.weight": 24, "0.bias": 4, "2.weight": 12, "2.bias": 3}
    assert {name: size for name, size in found["up"].items() if name != "*"} == {
        f"update/{name}": 3 * 4 * size for name, size in sizes.items()
    }
    assert {name: size for name, size in found["down"].items() if name != "*"} == {
        f"x/{name}": 3 * 4 * size for name, size in sizes.items()
    }
    assert found["unsent"] == []


@pytest.mark.parametrize(
    "method",
    [
        "FedAvg()",
        "FedAvg(up=ErrorFeedback(TopK(0.3)), down=EF21(TopK(0.5)))",
        "LUAR(SCAFFOLD(), recycle=1)",
        "FedAvg(up=Entropy(Int8()))",
    ],
)
def test_the_layers_of_a_direction_add_up_to_its_payload(method: str) -> None:
    for record in run(method).rounds:
        for way in ("up", "down"):
            assert sum(record["layer_bytes"][way].values()) == record[f"{way}_payload"]
            assert min(record["layer_bytes"][way].values()) >= 0


def test_what_luar_recycles_is_unsent_and_nothing_in_its_first_round() -> None:
    first, *later = run("LUAR(FedAvg(), recycle=1)").rounds
    assert first["layer_bytes"]["unsent"] == []
    for record in later:
        (name,) = record["layer_bytes"]["unsent"]
        assert name in ("update/0.weight", "update/2.weight")
        assert name not in record["layer_bytes"]["up"]


def test_of_a_round_in_which_nobody_replied_nothing_is_unsent() -> None:
    for record in run("FedAvg()", dropout=0.9, seed=1).rounds:
        found = record["layer_bytes"]
        assert (found["unsent"], bool(found["up"])) == ([], record["clients"] > record["lost_replies"])


def test_a_run_that_is_not_asked_to_records_no_layers() -> None:
    assert "layer_bytes" not in tw.simulate(tw.FedAvg(), model, tasks(), 1, workers=1).rounds[0]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_parts_of_a_packet_by_layer_are_parts_of_it(expression: str) -> None:
    link, x = tw.parse(expression), Params(LAYOUT, torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(1)))
    packet, _, _ = link.send(x, link.open(x.zeros())[0], Key(0, 1, 0, mbit=1.0).at("up/update"))
    parts = link.by_layer(packet, LAYOUT)
    assert parts
    assert 0 <= sum(map(carries, parts.values())) <= carries(packet)
    if "Partition" not in expression:  # of which a rule may stand for its layers
        assert parts.keys() <= {*LAYOUT.names, "*"}
