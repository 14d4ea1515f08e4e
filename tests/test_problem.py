"""Problems that thinwire makes: a data set, dealt to clients, with a model that suits it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from thinwire.data import IID, DataSet, Natural, Split, load, names
from thinwire.errors import DataError
from thinwire.losses import dice_loss
from thinwire.models import build
from thinwire.problem import SUITED, _model_for, custom, standard
from thinwire.task import Supervised
from tiers import tiers


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


@pytest.mark.slow
@pytest.mark.parametrize("name", tiers(sorted(names(), key=lambda name: name not in ("digits", "sst2")), slow=3))
def test_the_model_that_suits_a_set_is_known_without_its_data(name: str) -> None:
    known = SUITED[name]
    try:
        data = load(name, download=False)
    except (DataError, ImportError) as why:
        pytest.skip(str(why))
    assert _model_for(data) == known


def sites() -> DataSet:
    """Three sites of 4, 2 and 3 training pictures with masks, and 1, 2 and 1 test pictures."""
    groups, test_groups = torch.tensor([0, 1, 2, 0, 0, 1, 2, 2, 0]), torch.tensor([2, 1, 0, 1])
    x, y = torch.zeros(9, 1, 16, 16, dtype=torch.uint8), torch.zeros(9, 16, 16, dtype=torch.uint8)
    return DataSet("mine", x, y, x[:4], y[:4], 2, groups, (0.5,), (0.5,), None, test_groups)


def indices(tasks: Sequence[Supervised] | None) -> list[list[int]]:
    assert tasks is not None
    return [task.indices.tolist() for task in tasks if task.indices is not None]


def test_a_client_is_a_site_with_its_own_test_and_the_model_segments() -> None:
    problem = standard(sites())
    assert indices(problem.tasks) == [[0, 3, 4, 8], [1, 5], [2, 6, 7]]
    assert indices(problem.client_tests) == [[2], [1, 3], [0]]
    assert (problem.test.indices, len(problem.test)) == (None, 4)
    assert problem.tasks[0].loss_of is dice_loss
    assert type(problem.model()).__name__ == "UNet"


def test_fewer_clients_are_the_largest_sites_each_with_its_own_test() -> None:
    problem = standard(sites(), clients=2)
    assert (indices(problem.tasks), indices(problem.client_tests)) == ([[0, 3, 4, 8], [2, 6, 7]], [[2], [0]])


def test_an_unseen_site_does_not_train_and_is_the_shared_test() -> None:
    problem = standard(sites(), unseen=1)
    assert indices(problem.tasks) == [[0, 3, 4, 8], [2, 6, 7]]
    assert indices(problem.client_tests) == [[2], [0]]
    assert problem.test.indices.tolist() == [1, 3]
    mixed = standard(sites(), clients=3, split=IID(), unseen=0)
    assert sorted(i for part in indices(mixed.tasks) for i in part) == [1, 2, 5, 6, 7]
    assert mixed.client_tests is None
    assert mixed.test.indices.tolist() == [2]


def test_a_held_out_share_takes_the_place_of_the_sites_tests() -> None:
    problem = standard(sites(), holdout=0.5, split=Natural())
    trained, kept = indices(problem.tasks), indices(problem.client_tests)
    assert [sorted(a + b) for a, b in zip(trained, kept, strict=True)] == [[0, 3, 4, 8], [1, 5], [2, 6, 7]]


def test_an_unseen_site_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="unseen=3: mine has the sites 0 to 2"):
        standard(sites(), unseen=3)
    with pytest.raises(ValueError, match="unseen=0: digits has no sites with tests of their own, as retina has"):
        standard("digits", unseen=0)


@pytest.mark.parametrize("name", ["clients", "seed", "unseen"])
@pytest.mark.parametrize("number", [2.0, "2", True])
def test_a_count_that_is_no_whole_number_is_refused_by_its_name(name: str, number: object) -> None:
    with pytest.raises(ValueError, match=f"{name}={number!r}: a whole number is expected"):
        inspect.unwrap(standard)(sites(), **{name: number})  # without the check of annotations that tests run under


def test_a_set_without_sites_has_twenty_clients_where_no_number_is_given() -> None:
    assert len(standard("digits").tasks) == 20


def make_drawn() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A model and examples that are drawn from the generators that a process shares."""
    noise = torch.tensor(np.random.rand(8, 3) + random.random())  # noqa: NPY002  what users draw from
    return nn.Linear(3, 2), [(noise + torch.randn(8, 3), torch.arange(8) % 2)]


def test_what_a_users_function_draws_is_a_function_of_the_seed() -> None:
    def numbers(seed: int, ambient: int) -> list[float]:
        torch.manual_seed(ambient)
        problem: Any = custom(f"{__name__}:make_drawn", 1, seed)
        values: list[float] = [*problem.model.weight.flatten().tolist(), *problem.tasks[0][0].flatten().tolist()]
        return values

    assert numbers(1, 5) == numbers(1, 6)
    assert numbers(1, 5) != numbers(2, 5)


class Own(Split):
    """A split of the user's own, which makes what it is given."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def __call__(self, *_: Any) -> Any:
        return self.made

    def __repr__(self) -> str:
        return "Own()"

    def deal(self, *_: Any) -> Any:
        return self.made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([range(5)], r"split=Own\(\) makes 1 lists of positions for 3 clients: return one for each client"),
        ([range(5)] * 4, r"makes 4 lists of positions for 3 clients"),
        (None, r"makes NoneType: return a list of positions for each client"),
        ({0: range(5)}, r"makes dict: return a list of positions"),
        ([range(5), range(5), [10**6]], r"there are 1438 examples, at 0 to 1437"),
        ([range(5), range(5), [0.5]], r"positions are whole numbers, or a mask"),
    ],
)
def test_a_split_of_the_users_own_has_to_make_positions_for_each_client(made: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        standard("digits", clients=3, split=Own(made))


@pytest.mark.parametrize("holdout", [0.0, 0.4])
def test_a_split_of_the_users_own_may_make_lists_arrays_and_masks(holdout: float) -> None:
    mask = np.zeros(1438, dtype=bool)
    mask[10:15] = True
    made = [list(range(5)), np.arange(5, 10), mask]
    problem = standard("digits", clients=3, split=Own(made), holdout=holdout)
    tests = problem.client_tests or [[], [], []]
    assert [len(task) + len(test) for task, test in zip(problem.tasks, tests, strict=True)] == [5, 5, 5]
    assert [len(test) for test in tests] == [round(5 * holdout)] * 3


@pytest.mark.parametrize("name", ["groups", "test_groups"])
def test_a_set_has_an_owner_for_each_example(name: str) -> None:
    there = sites()
    short = {**vars(there), name: vars(there)[name][:-1]}
    with pytest.raises(ValueError, match=rf"^{name}: \d+ owners for \d+ examples: give one for each$"):
        DataSet(**short)
