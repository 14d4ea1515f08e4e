"""What clients have: targets of every kind, arrays, and one clear error for what does not go with the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from blobs import assert_same_run, blobs, mlp, simulate
from thinwire import Supervised
from thinwire.deploy.client import Node
from thinwire.losses import absolute_error, cross_entropy, squared_error
from thinwire.task import as_task, as_tasks
from thinwire.train import evaluation

# -- regression --------------------------------------------------------------------------


def lines(clients: int = 4, each: int = 20) -> list[Any]:
    """y = x . (1, -2, 3) with little noise, as pairs of tensors."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(clients, each, 3, generator=g)
    y = x @ torch.tensor([1.0, -2.0, 3.0]) + 0.01 * torch.randn(clients, each, generator=g)
    return list(zip(x, y, strict=True))


@pytest.mark.parametrize("shape", [(20,), (20, 1)])
@pytest.mark.parametrize("plan", ["each", "together"])
def test_float_targets_are_a_regression(shape: tuple[int, ...], plan: Any) -> None:
    tasks = [(x, y.view(shape)) for x, y in lines()]
    found = simulate("FedAvg()", lambda: nn.Linear(3, 1), 8, tasks=tasks, test=tasks[0], plan=plan)
    assert found.rounds[0]["train_loss"] > 1
    assert found.rounds[-1]["test_loss"] == pytest.approx(1e-4, abs=1e-3)  # the variance of the noise
    assert 0 < found.rounds[-1]["mae"] < 0.03
    assert found.accuracy is None
    torch.testing.assert_close(found.params["weight"], torch.tensor([[1.0, -2.0, 3.0]]), atol=0.02, rtol=0)


def test_errors_of_a_regression_are_means_over_an_examples_values() -> None:
    outputs, targets = torch.tensor([[1.0, 2.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    assert squared_error(outputs, targets).tolist() == [0.5, 12.5]
    assert absolute_error(outputs, targets).tolist() == [0.5, 3.5]
    column = torch.tensor([[1.0], [2.0]])
    assert squared_error(column, torch.tensor([0.0, 5.0])).tolist() == [1.0, 9.0]  # not [2, 2] by broadcasting
    with pytest.raises(
        ValueError,
        match=r"the model gives \[2, 3\] for targets of \[2\]: a regression needs .*; labels of classes are whole",
    ):
        squared_error(torch.zeros(2, 3), torch.zeros(2))


def test_the_targets_say_which_loss_unless_one_is_given() -> None:
    x = torch.zeros(2, 3)
    classes, values = Supervised(x, torch.tensor([0, 1])), Supervised(x, torch.zeros(2))
    assert (classes.loss_of, list(classes.metrics_of)) == (cross_entropy, ["accuracy"])
    assert (values.loss_of, list(values.metrics_of)) == (squared_error, ["mae"])
    soft = Supervised(x, torch.tensor([[0.5, 0.5], [1.0, 0.0]]), loss_of=cross_entropy)
    assert soft.loss_of is cross_entropy
    assert soft.loss(nn.Linear(3, 2), soft.batch(torch.arange(2))).shape == (2,)
    assert values.whole().loss_of is squared_error


# -- arrays --------------------------------------------------------------------------------


@pytest.mark.parametrize("floats", [np.float16, np.float32, np.float64, ">f8"])
@pytest.mark.parametrize("wholes", [np.uint8, np.int16, np.int32, np.int64, np.uint32])
def test_arrays_become_what_models_take(floats: Any, wholes: Any) -> None:
    x, y = np.array([[0.5, 1.0], [2.0, -4.0]]).astype(floats), np.array([0, 2]).astype(wholes)
    x.flags.writeable = False
    task = as_task((x, y))
    assert isinstance(task, Supervised)
    assert (task.inputs.dtype, task.targets.dtype) == (torch.float32, torch.int64)
    assert (task.inputs.tolist(), task.targets.tolist()) == ([[0.5, 1.0], [2.0, -4.0]], [0, 2])


def test_tensors_and_data_sets_of_other_types_become_what_models_take() -> None:
    plain = simulate("FedAvg()")
    pairs: list[Any] = [(t.inputs[t.indices].double(), t.targets[t.indices].int()) for t in blobs()]
    assert_same_run(simulate("FedAvg()", tasks=pairs), plain)
    sets: list[Any] = [[(x.numpy(), int(y)) for x, y in zip(*pair, strict=True)] for pair in pairs]
    assert_same_run(simulate("FedAvg()", tasks=sets), plain)
    arrays: list[Any] = [(x.numpy()[::-1][::-1], y.numpy()) for x, y in pairs]
    assert_same_run(simulate("FedAvg()", tasks=arrays), plain)


def test_pictures_of_bytes_stay_bytes_and_truth_values_are_two_classes() -> None:
    task = as_task((np.zeros((2, 1, 3, 3), np.uint8), np.array([True, False])))
    assert isinstance(task, Supervised)
    assert (task.inputs.dtype, task.targets.tolist()) == (torch.uint8, [1, 0])
    assert as_task((torch.zeros(2, 5, dtype=torch.uint8), torch.zeros(2))).inputs.dtype == torch.int64  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ((np.array(["a", "b"]), np.array([0, 1])), "the inputs are an array of <U1: numbers are expected"),
        ((np.zeros(2, object), np.array([0, 1])), "the inputs are an array of object: numbers are expected"),
        ((torch.zeros(2), torch.zeros(2, dtype=torch.cfloat)), "the targets are complex: real numbers are expected"),
        ([("a", 0), ("b", 1)], "the inputs are of type str: tensors, arrays or numbers are expected"),
        (
            [(torch.zeros(5), 0), (torch.zeros(7), 1)],
            "the inputs have different shapes: [5] in example 0, [7] in example 1; pad them to one shape, or write a "
            "Task of your own",
        ),
        (Supervised, "Supervised is a class: give one of its objects, Supervised(...)"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_no_number_is_refused_in_one_line(x: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        as_task(x, "client 3")
    assert str(caught.value) == f"client 3: {message}"


# -- a list of them ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({0: blobs()[0]}, "tasks is a dict: give a list with one task a client, list(tasks.values())"),
        (
            (torch.zeros(4, 2), torch.zeros(4)),
            "tasks is one pair of inputs and targets: give a list with one task a client, [(inputs, targets), ...]",
        ),
        (blobs()[0], "tasks is one Supervised: give a list with one task a client; "),
        (
            torch.utils.data.TensorDataset(torch.zeros(4, 2)),
            "tasks is one TensorDataset: give a list with one task a client; Supervised(inputs, targets, part) for "
            "each part of a split, or torch.utils.data.Subset(dataset, part), deals one data set to many",
        ),
        (iter([]), "tasks is one list_iterator: give a list with one task a client; "),
    ],
)
def test_what_is_no_list_of_tasks_says_what_to_write(tasks: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        as_tasks(tasks)
    assert str(caught.value).startswith(message)


# -- the model they are trained on --------------------------------------------------------------------


def renamed(**changes: int) -> list[Any]:
    """The clients' pairs, with the label of one example of one client changed."""
    tasks: list[Any] = [(t.inputs[t.indices], t.targets[t.indices].clone()) for t in blobs()]
    for client, label in changes.items():
        tasks[int(client[-1])][1][4] = label
    return tasks


@pytest.mark.parametrize("label", [3, 7, -1])
def test_a_label_out_of_range_names_its_client(label: int) -> None:
    said = (
        f"client 2: the label of example 4 is {label}, and the model has 3 outputs, for labels 0 to 2: change the "
        f"labels, or give the model more outputs"
    )
    shared = blobs()
    targets = shared[0].targets.clone()
    targets[shared[2].indices[4]] = label  # type: ignore[index]
    for tasks in (renamed(client2=label), [Supervised(t.inputs, targets, t.indices) for t in shared]):
        with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
            simulate("FedAvg()", tasks=tasks)
        assert str(caught.value) == said
    with pytest.raises(ValueError, match=r"^test: the label of example 4 is"):
        simulate("FedAvg()", test=renamed(client2=label)[2])
    with pytest.raises(ValueError, match=r"^client_tests\[2\]: the label of example 4 is"):
        simulate("FedAvg()", client_tests=renamed(client2=label))


def test_a_target_that_the_loss_leaves_out_is_a_label() -> None:
    assert simulate("FedAvg()", tasks=renamed(client2=-100), rounds=1).accuracy is not None


def test_a_label_that_belongs_to_no_client_is_not_looked_at() -> None:
    shared = blobs()
    targets = shared[0].targets.clone()
    targets[shared[5].indices] = 99
    tasks: list[Any] = [Supervised(t.inputs, targets, t.indices) for t in shared[:5]]
    assert simulate("FedAvg()", tasks=tasks, rounds=1).accuracy is not None


def test_a_model_of_another_width_names_the_client_and_the_inputs() -> None:
    tasks: list[Any] = renamed()
    tasks[3] = (torch.zeros(5, 4), torch.zeros(5, dtype=torch.long))
    with pytest.raises(
        ValueError, match=r"^client 3: the model does not take inputs of \[2, 4\] \(float32\): mat1 and"
    ):
        simulate("FedAvg()", tasks=tasks)


def test_a_model_without_a_score_for_each_class_says_so() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        simulate("FedAvg()", nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
    assert str(caught.value) == (
        "client 0: for targets of [120] the model should give a score for every class of each, [examples, classes]; it "
        "gives [2] for 2 examples"
    )


class Mine(RuntimeError):
    pass


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise Mine("mine")


def test_an_exception_of_the_users_own_comes_through_as_it_is() -> None:
    with pytest.raises(Mine, match=r"^mine$"):
        simulate("FedAvg()", Broken)

    class Own(Supervised):
        def batch(self, indices: Tensor, generator: torch.Generator | None = None) -> Any:
            raise Mine("mine")

    with pytest.raises(Mine, match=r"^mine$"):
        simulate("FedAvg()", tasks=[Own(t.inputs, t.targets, t.indices) for t in blobs()])


def test_a_look_at_the_examples_moves_nothing() -> None:
    # The statistics of norm layers, dropout's dice: the run is that of tasks which are not looked at.
    class Own(Supervised):
        pass

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))

    unseen: list[Any] = [Own(t.inputs, t.targets, t.indices, loss_of=own) for t in blobs()]
    assert_same_run(simulate("FedAvg()", model), simulate("FedAvg()", model, tasks=unseen))


def test_a_deployed_client_says_what_is_wrong_with_its_own_examples(tmp_path: Any) -> None:
    node = Node(tw.FedAvg(), mlp, renamed(client2=5)[2], tmp_path)
    from thinwire.train.slot import Slot

    with pytest.raises(ValueError, match=r"^this client: the label of example 4 is 5, and the model has 3 outputs"):
        node.probe(Slot(mlp()))


class Needy(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            Needy,
            "model=Needy: it cannot be called without arguments (missing a required argument: 'in_features'); give a "
            "module, Needy(...), or a function that makes one, lambda: Needy(...)",
        ),
        (lambda: 3, "model=<lambda>: it made 3, which is no module"),
    ],
)
def test_what_makes_no_model_says_so(model: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        tw.simulate(tw.FedAvg(), model, blobs(), 1)
    assert str(caught.value) == message


# 2 MiB are 524,288 floats of 4 bytes: 170 pictures of 3 x 32 x 32, 10 of 3 x 128 x 128, two of 3 x 256 x 256.
@pytest.mark.parametrize(
    ("shape", "at_once"),
    [((7,), 100), ((3, 32, 32), 100), ((3, 128, 128), 10), ((3, 256, 256), 2), ((3, 1024, 1024), 1), ((0,), 100)],
    ids=str,
)
def test_of_large_examples_few_are_evaluated_at_once(shape: tuple[int, ...], at_once: int) -> None:
    task = Supervised(torch.zeros((1, *shape), dtype=torch.uint8).expand(3, *shape), torch.zeros(3).long())
    assert task.at_once(nn.Identity()) == at_once


def test_a_test_in_small_parts_has_the_means_of_all_its_examples() -> None:
    x, y = torch.randn(5, 3, 128, 128, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0, 1])
    x, y = x.repeat(5, 1, 1, 1), y.repeat(5)  # 25 examples: 10, 10 and 5 at once
    model = nn.Sequential(nn.AvgPool2d(128), nn.Flatten(), nn.Linear(3, 2))
    seen = list[int]()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    means = evaluation.means(model, Supervised(x, y), "cpu")
    assert seen == [10, 10, 5]
    with torch.no_grad():
        assert means["test_loss"] == pytest.approx(float(nn.functional.cross_entropy(model(x), y)), rel=1e-6)
        assert means["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
