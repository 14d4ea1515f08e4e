"""What a report reads from folders of runs."""

from __future__ import annotations

import pytest

from thinwire.report.read import labels


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (
            ["FedAvg(LocalSGD(0.1), up=MySign())", "Halved(LocalSGD(0.1), most=2.0)", "Mine(0.9, local=LocalSGD(0.1))"],
            ["FedAvg(up=MySign())", "Halved(most=2.0)", "Mine(0.9)"],
        ),
        (["Halved(LocalSGD(0.1))", "Halved(LocalSGD(0.2))"], ["Halved(LocalSGD(0.1))", "Halved(LocalSGD(0.2))"]),
        (["Mine(LocalSGD(0.1))", "Mine()"], ["Mine(LocalSGD(0.1))", "Mine()"]),  # short, both would be Mine()
        (["Mine(LocalSGD(0.1))", "two words"], ["Mine(LocalSGD(0.1))", "two words"]),
    ],
)
def test_training_that_all_share_is_left_out_beside_a_method_of_the_users_own(
    names: list[str], short: list[str]
) -> None:
    assert list(labels({f"Unknown({n})": name for n, name in enumerate(names)}).values()) == short
