"""Problems that thinwire makes: a data set, dealt to clients, with a model that suits it."""

from __future__ import annotations

import pytest
import torch

from thinwire.data import DataSet
from thinwire.models import build
from thinwire.problem import standard


def loaded(shape: tuple[int, ...], targets: tuple[int, ...] = (), vocabulary: int | None = None) -> DataSet:
    """Four examples of zeros, under a name that no table has."""
    kind = torch.float32 if vocabulary is None else torch.int64
    inputs, answers = torch.zeros(4, *shape, dtype=kind), torch.zeros(4, *targets, dtype=torch.int64)
    return DataSet("mine", inputs, answers, inputs, answers, 2 if vocabulary is None else 5, vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (loaded((1, 28, 28)), "fedavg_cnn"),
        (loaded((3, 16, 16)), "fedavg_cnn"),
        (loaded((1, 8, 8)), "mlp"),
        (loaded((3, 32, 15)), "mlp"),
        (loaded((7,)), "mlp"),
        (loaded((6,), vocabulary=5), "fasttext"),
        (loaded((6,), (6,), vocabulary=5), "char_transformer"),
    ],
    ids=["pictures", "smallest", "small", "narrow", "numbers", "texts to classify", "texts to continue"],
)
def test_the_model_follows_from_the_examples(data: DataSet, model: str) -> None:
    made = standard(data, clients=2).model()
    same = build(model, tuple(data.inputs.shape[1:]), data.num_classes, data.vocabulary)
    assert type(made) is type(same)
    assert [p.shape for p in made.parameters()] == [p.shape for p in same.parameters()]
    made(data.inputs)
