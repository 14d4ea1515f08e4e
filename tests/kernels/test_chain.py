"""Small models trained in C: what torch makes of the same client, at every level of the instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from clients import KEY, TRAINERS, made, some
from thinwire import LocalSGD, Supervised
from thinwire.kernels import native
from thinwire.local import Local, Memory
from thinwire.params import Params
from thinwire.train.compiled import chain, train_chains
from thinwire.train.many import train_many
from thinwire.train.one import train
from thinwire.train.slot import Slot


def deep() -> nn.Module:  # widths on either side of a vector of 16, and of four rows
    hidden = nn.Sequential(nn.Linear(17, 33), nn.Tanh(), nn.Linear(33, 6, bias=False), nn.Sigmoid())
    return nn.Sequential(nn.Linear(7, 17), nn.ReLU(), hidden, nn.Linear(6, 5))


def logistic() -> nn.Module:
    return nn.Linear(7, 3)


def of_pictures() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 20), nn.ReLU(), nn.Linear(20, 4), nn.ReLU())


def products() -> nn.Module:  # of factors, a layer that stays as it is because it would not get smaller, no bias
    dense = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33, bias=False), nn.ReLU(), nn.Linear(33, 5))
    return tw.FedPara(tw.FedAvg(), ratio=0.9).prepare(dense)


def of_texts() -> nn.Module:
    return tw.models.fasttext(vocabulary=30, classes=3, width=19)


def in_a_row() -> nn.Module:  # fastText, and what may follow it
    return nn.Sequential(tw.models.fasttext(30, 6, width=4), nn.Tanh(), nn.Linear(6, 3))


def rows(n: int = 23, classes: int = 3) -> Supervised:
    g = torch.Generator().manual_seed(1)
    return Supervised(torch.randn(40, 7, generator=g), torch.randint(classes, (40,), generator=g), torch.arange(n) + 5)


def pictures(n: int = 23) -> Supervised:
    g = torch.Generator().manual_seed(2)
    inputs = torch.randint(256, (40, 3, 4, 4), generator=g, dtype=torch.uint8)
    return Supervised(
        inputs, torch.randint(4, (40,), generator=g), torch.arange(n), mean=(0.1, 0.2, 0.3), std=(1, 2, 3)
    )


def texts(n: int = 23) -> Supervised:  # of 0 to 9 words, some of them twice
    g = torch.Generator().manual_seed(4)
    words, length = torch.randint(1, 30, (40, 9), generator=g), torch.randint(10, (40, 1), generator=g)
    words = torch.where(torch.arange(9) < length, words, 0)
    assert (length == 0).any()
    return Supervised(words, torch.randint(3, (40,), generator=g), torch.arange(n) + 5)


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize(
    ("module", "task"),
    [(deep, rows), (logistic, rows), (of_pictures, pictures), (products, rows), (of_texts, texts), (in_a_row, texts)],
)
def test_a_client_trained_in_c_is_the_client_trained_in_torch(name: str, module: Any, task: Any, levels: Any) -> None:
    (slot, known, x), own = made(module(), 0.3 if module is products else 0.5), task()
    assert known.takes(own)
    expected, found = train(slot, own, Local(x, TRAINERS[name]), KEY), []
    for level in levels:
        native.use(level)
        found.append(next(train_chains(known, [own], [Local(x, TRAINERS[name])], [KEY])))
    assert found[0].steps == expected.steps
    assert found[0].loss == pytest.approx(expected.loss, rel=1e-5)
    torch.testing.assert_close(found[0].x.flat, expected.x.flat, atol=2e-6, rtol=2e-5)
    assert not torch.equal(found[0].x.flat, x.flat)
    if expected.momentum is not None:
        torch.testing.assert_close(found[0].momentum.flat, expected.momentum.flat, atol=2e-6, rtol=2e-5)
    for other in found[1:]:
        assert torch.equal(other.x.flat, found[0].x.flat)
        assert other.loss == found[0].loss


def test_layers_of_products_are_trained_in_c_unless_more_is_done_to_their_weights() -> None:
    def known(change: Any) -> bool:
        module = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 4))
        module = tw.FedPara(tw.FedAvg()).prepare(change(module))
        return chain(module, Slot(module).layout) is not None

    class Loud(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    def loud(module: nn.Sequential) -> nn.Module:
        module[0] = Loud(40, 30)
        return module

    def normed(module: nn.Sequential) -> nn.Module:
        nn.utils.parametrizations.weight_norm(module[2])
        return module

    def bent_bias(module: nn.Sequential) -> nn.Module:
        nn.utils.parametrize.register_parametrization(module[2], "bias", nn.Tanh())
        return module

    if native.library() is None:
        pytest.skip("the kernels are not compiled here")
    assert [known(change) for change in (lambda m: m, loud, normed, bent_bias)] == [True, False, False, False]


@pytest.mark.parametrize("what", ["offset", "anchor", "mask", "shift", "memory"])
@pytest.mark.parametrize(("module", "task"), [(deep, rows), (of_texts, texts)])
def test_what_a_request_asks_for_besides_is_done_in_c_too(what: str, module: Any, task: Any, levels: Any) -> None:
    (slot, known, x), own = made(module()), task()
    asked = (some(x, 4).flat > 0).float() if what == "mask" else some(x, 4).flat
    if what == "mask":  # and a layer is held whole
        asked[: x.layout.sizes[0]] = 0.0
    given = Memory((Params(x.layout, asked),), 0) if what == "memory" else Params(x.layout, asked)
    request = Local(x, TRAINERS["bent"])._replace(**{what: given})
    expected, found = train(slot, own, request, KEY), next(train_chains(known, [own], [request], [KEY]))
    torch.testing.assert_close(found.x.flat, expected.x.flat, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(found.memory.vectors[0].flat, expected.memory.vectors[0].flat, atol=2e-6, rtol=2e-5)
    plain = next(train_chains(known, [own], [Local(x, TRAINERS["bent"])], [KEY]))
    assert (plain.x.flat - found.x.flat).abs().max() > 1e-4
    if what == "memory":
        assert torch.equal(request.memory.vectors[0].flat, asked), "what the request holds is not written to"


def test_many_clients_are_the_clients_one_by_one(levels: Any) -> None:
    slot, _, x = made(deep())
    tasks = [replace(rows(n), indices=torch.arange(n)) for n in (3, 8, 20)]
    tasks = [replace(tasks[0], indices=task.indices) for task in tasks]
    keys = [KEY._replace(client=i) for i in range(3)]
    trainer = LocalSGD(0.2, batch=6, momentum=0.5)
    found = list(train_many(slot, tasks, [Local(x, trainer)] * 3, keys))
    native.use("reference")  # then torch.func takes them
    together = list(train_many(slot, tasks, [Local(x, trainer)] * 3, keys))
    for task, key, one, other in zip(tasks, keys, found, together, strict=True):
        expected = train(slot, task, Local(x, trainer), key)
        assert one.steps == other.steps == expected.steps
        torch.testing.assert_close(one.x.flat, expected.x.flat, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(other.x.flat, expected.x.flat, atol=2e-6, rtol=2e-5)


def test_indices_are_read_as_torch_reads_them(levels: Any) -> None:
    _, known, x = made(logistic())
    own, trainer = replace(rows(), indices=torch.tensor([39, 3, 38])), LocalSGD(0.2, batch=2)
    there, behind = (
        next(train_chains(known, [task], [Local(x, trainer)], [KEY]))
        for task in (own, replace(own, indices=torch.tensor([-1, 3, -2], dtype=torch.int32)))
    )
    assert torch.equal(there.x.flat, behind.x.flat)
    beyond, own.indices[1] = own, 40  # written to after it was looked at
    with pytest.raises(IndexError, match="an index of a client is not one of the 40 examples"):
        next(train_chains(known, [beyond], [Local(x, trainer)], [KEY]))
    with pytest.raises(ValueError, match="indices of 2 go from 0 to 40: there are 40 examples"):
        replace(own, indices=torch.tensor([0, 40]))


@pytest.mark.parametrize("word", [-1, 30])
def test_a_word_that_the_model_does_not_have_is_refused(word: int, levels: Any) -> None:
    _, known, x = made(of_texts())
    own = texts()
    own.inputs[7, 8] = word
    with pytest.raises(IndexError, match="a word that is not one of the model's 30, 0 and up"):
        next(train_chains(known, [own], [Local(x, LocalSGD(0.2, batch=4))], [KEY]))


def test_a_step_moves_the_words_of_its_texts_alone(levels: Any) -> None:
    _, known, x = made(of_texts())
    own = replace(texts(), indices=torch.tensor([10, 11]))
    found = next(train_chains(known, [own], [Local(x, LocalSGD(0.2, batch=1))], [KEY])).x
    moved = (found["words.weight"] != x["words.weight"]).any(1).nonzero().view(-1).tolist()
    assert moved == sorted(set(own.inputs[own.indices].view(-1).tolist()) - {0}) != []


def test_a_client_whose_training_diverges_is_named(levels: Any) -> None:
    slot, _, x = made(logistic())
    own = replace(rows(), inputs=rows().inputs * 1e30)
    with pytest.raises(tw.errors.NonFinite, match=r"round 2, client 1: .* lower lr=1e\+30"):
        next(train_many(slot, [own], [Local(x, LocalSGD(1e30, batch=5))], [KEY]))


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


def hooked_behind() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda module, before, after: None)
    return layer


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    return module


def unbiased() -> nn.Module:
    module = nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    return module


def with_words(change: Callable[[nn.Module], None]) -> nn.Module:
    module = tw.models.fasttext(vocabulary=9, classes=4)
    change(module)
    return module


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Beside(nn.Sequential):
    """Has more than its children."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x) * self.scale
        return found


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        nn.Sequential(nn.Flatten(0), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)),
        nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.Sequential(nn.ReLU(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh()),
        nn.Conv2d(3, 3, 3),
        Doubled(4, 4),
        Beside(),
        shared(),
        hooked(),
        hooked_behind(),
        frozen(),
        unbiased(),
        with_words(lambda m: setattr(m.words, "max_norm", 1.0)),
        with_words(lambda m: setattr(m.words, "padding_idx", None)),
        with_words(lambda m: setattr(m.words, "scale_grad_by_freq", True)),
        with_words(lambda m: m.words.requires_grad_(False)),
        with_words(lambda m: setattr(m, "dense", nn.Sequential(nn.Linear(16, 4), nn.ReLU()))),
        nn.Sequential(nn.Flatten(), tw.models.fasttext(9, 4)),
        nn.Sequential(tw.models.fasttext(9, 4), tw.models.fasttext(9, 4)),
        nn.Embedding(9, 4),
    ],
    ids=lambda module: type(module).__name__,
)
def test_no_other_module_is_taken_for_a_chain(module: nn.Module, levels: Any) -> None:
    slot = Slot(nn.Linear(4, 4))  # a hook is lost where a module is copied
    assert chain(slot.module, slot.layout) is not None
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    assert chain(module, tw.Layout.of(trained)) is None


def test_no_other_task_is_taken(levels: Any) -> None:
    _, known, _ = made(logistic())
    own = rows()
    assert known.takes(own)
    assert not known.takes(replace(own, targets=own.targets.where(own.targets != 2, -100)))  # what torch leaves out
    assert not known.takes(replace(own, targets=own.targets + 1))  # a class that is not there
    assert not known.takes(replace(own, targets=own.targets.int()))
    assert not known.takes(replace(own, targets=torch.zeros(40, 3)))  # probabilities
    assert not known.takes(replace(own, inputs=own.inputs.double()))
    assert not known.takes(replace(own, inputs=own.inputs[:, :6]))
    assert not known.takes(replace(own, inputs=own.inputs[:, None]))  # a sequence, and nothing that flattens it
    assert not known.takes(replace(own, loss_of=lambda outputs, targets: outputs.sum(1)))
    assert not known.takes(texts())
    _, reads, _ = made(of_texts())
    own = texts()
    assert reads.takes(own)
    assert not reads.takes(rows())
    assert not reads.takes(replace(own, inputs=own.inputs.int()))
    assert not reads.takes(replace(own, inputs=own.inputs[:, None]))
    assert not reads.takes(replace(own, inputs=own.inputs[:, :6]))  # with gaps between texts


def test_without_the_compiled_loops_there_is_no_chain(levels: Any) -> None:
    native.use("reference")
    slot = Slot(nn.Linear(4, 4))
    assert chain(slot.module, slot.layout) is None
