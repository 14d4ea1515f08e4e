"""Texts as a problem: what is trained and measured is what transformers computes, however rows are filled up."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import thinwire as tw
import thinwire.train.evaluation
from thinwire import hf
from thinwire.hf.build import _check_given
from thinwire.losses import mean_loss
from tiny import END, FIRST, LETTERS, PAD, VOCABULARY, Letters, bert, llama

TEXTS = ["the wire is thin", "a", "bytes", "counted both ways", "no", "headers too", "abc", "it is so"]
LABELS = [0, 2, 1, 0, 2, 1, 1, 0]
CLASSES: dict[str, Any] = {"task": "classification", "tokenizer": Letters(), "clients": 2}
CAUSAL: dict[str, Any] = {"task": "causal-lm", "tokenizer": Letters(), "clients": 2}


class Score(torch.nn.Module):
    """A model of transformers' form that is known by hand: the logit of word v after word u is table[u, v]."""

    def __init__(self, words: int = VOCABULARY) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(words, words))
        self.seen: list[int] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool) -> Any:
        return type("Output", (), {"logits": self.table[input_ids]})


def spell(row: Tensor) -> str:
    return "".join(LETTERS[i - FIRST] if i >= FIRST else "_|"[int(i)] for i in row.tolist())


# -- data as people have it ------------------------------------------------------


class Table:
    """What ``datasets.Dataset`` is to whoever reads its columns."""

    column_names = ("text", "label", "id")

    def __getitem__(self, name: str) -> list[Any]:
        return {"text": TEXTS, "label": LABELS, "id": list(range(8))}[name]


IDS = [[FIRST + LETTERS.index(letter) for letter in text] for text in TEXTS]
PADDED = torch.tensor([row + [PAD] * (17 - len(row)) for row in IDS])
FORMS: dict[str, Any] = {
    "columns": Table(),
    "dicts": [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
    "dict of columns": {"text": TEXTS, "label": torch.tensor(LABELS)},
    "pair of texts": (TEXTS, LABELS),
    "pair of ids": (IDS, LABELS),
    "pair of tensors": (PADDED, torch.tensor(LABELS)),
    "ids and masks": {"input_ids": PADDED + 0, "attention_mask": (PADDED != PAD).long(), "labels": LABELS},
    "padded on the left": ([[PAD] * (17 - len(row)) + row for row in IDS], LABELS),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_texts_in_any_form_are_the_same_batches(form: str) -> None:
    problem = hf.problem(Score(), FORMS[form], test=FORMS[form], seed=3, **CLASSES)
    batch = problem.test.batch(torch.tensor([1, 2]))
    assert batch["input_ids"].tolist() == [[2, 0, 0, 0, 0], [3, 26, 21, 6, 20]]  # a; bytes
    assert batch["attention_mask"].tolist() == [[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [2, 1]
    dealt = [spell(row) for task in problem.tasks for row in task.batch(torch.arange(len(task)))["input_ids"]]
    assert sorted(text.rstrip("_") for text in dealt) == sorted(TEXTS)


def test_a_data_set_of_the_package_datasets_is_read_by_its_columns() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"sentence": TEXTS, "label": LABELS})
    problem = hf.problem(Score(), data, text="sentence", holdout=0.25, **CLASSES)
    assert [len(task) for task in problem.tasks] == [3, 3]
    assert [len(task) for task in problem.client_tests] == [1, 1]
    with pytest.raises(ValueError, match="data is several data sets"):
        hf.problem(Score(), datasets.DatasetDict({"train": data}), **CLASSES)


def test_a_text_is_cut_at_its_length_and_padding_that_ends_a_text_is_kept_once() -> None:
    batch = hf.problem(Score(), TEXTS, length=4, test=TEXTS, **CAUSAL).test.batch(torch.arange(3))
    assert [spell(row) for row in batch["input_ids"]] == ["the ", "a___", "byte"]
    assert batch["labels"].tolist() == [[21, 9, 6, 28], [2, -100, -100, -100], [3, 26, 21, 6]]
    ended = [[5, END, END], [6, 7, END]]
    padded = {"task": "causal-lm", "tokenizer": Letters(pad=END), "clients": 1}
    batch = hf.problem(Score(), ended, **padded).tasks[0].batch(torch.arange(2))
    assert sorted(batch["attention_mask"].sum(1).tolist()) == [2, 3]


def test_packed_rows_are_full_and_of_one_client_alone() -> None:
    owners = ["x", "y", "x", "y", "y", "x", "x", "y"]
    problem = hf.problem(Score(), TEXTS, groups=owners, packed=True, length=7, task="causal-lm", tokenizer=Letters())
    rows = [task.batch(torch.arange(len(task)))["input_ids"] for task in problem.tasks]
    assert ["".join(map(spell, of)) for of in rows] == [
        "the wire is thin|bytes|headers too|abc|___",
        "a|counted both ways|no|it is so|___",
    ]
    sizes = [task.batch(torch.arange(len(task)))["attention_mask"].sum(1).tolist() for task in problem.tasks]
    assert sizes == [[7, 7, 7, 7, 7, 4], [7, 7, 7, 7, 4]]


def test_groups_are_clients_and_a_split_by_label_deals_by_label() -> None:
    data = {"text": TEXTS, "who": ["b", "a", "b", "c", "c", "b", "a", "b"]}
    problem = hf.problem(Score(), data, groups="who", task="causal-lm", tokenizer=Letters())
    assert [len(task) for task in problem.tasks] == [4, 2, 2]
    sorted_out = hf.problem(Score(), (TEXTS, LABELS), split=tw.data.Pathological(1), **CLASSES | {"clients": 3})
    assert [set(task.batch(torch.arange(len(task)))["labels"].tolist()) for task in sorted_out.tasks] == [{0}, {1}, {2}]
    with pytest.raises(ValueError, match=re.escape("take IID() or Natural()")):
        hf.problem(Score(), TEXTS, split=tw.data.Dirichlet(1.0), **CAUSAL)


# -- losses and metrics ------------------------------------------------------------


def test_perplexity_is_over_all_tokens_of_the_test_however_they_are_batched() -> None:
    """Every word after a is a with probability 1/2; nothing is said of others: 1/29 each."""
    module = Score()
    a = FIRST
    with torch.no_grad():
        module.table[a, a] = math.log(VOCABULARY - 1)
    test = hf.problem(module, ["aaaaa", "ab", "ba"], test=["aaaaa", "ab", "ba"], **CAUSAL | {"clients": 1}).test
    run = tw.simulate(tw.FedAvg(tw.LocalSGD(0.0001)), module, [test], rounds=1, test=test)
    nats = 4 * math.log(2) + math.log(2 * (VOCABULARY - 1)) + math.log(VOCABULARY)
    assert run.rounds[-1]["test_loss"] == pytest.approx(nats / 6, rel=1e-3)
    assert run.rounds[-1]["perplexity"] == pytest.approx(math.exp(nats / 6), rel=1e-3)
    assert run.accuracy == pytest.approx(5 / 6)  # a after a, and after b, which one step has made the likeliest


@pytest.mark.parametrize("make", [llama, bert])
def test_the_loss_of_a_batch_is_that_of_transformers(make: Any) -> None:
    pytest.importorskip("transformers")
    about = CAUSAL if make is llama else CLASSES
    data = TEXTS if make is llama else (TEXTS, LABELS)
    task = hf.problem(make(), data, test=data, **about).test
    module, batch = make().eval(), task.batch(torch.arange(8))
    torch.testing.assert_close(mean_loss(task.loss(module, batch)), module(**batch).loss)
    assert task.metrics(module, batch).keys() == {"loss", "accuracy"} | ({"perplexity"} if make is llama else set())


@pytest.mark.parametrize("make", [llama, bert])
def test_what_is_filled_up_changes_nothing(make: Any) -> None:
    pytest.importorskip("transformers")
    about = CAUSAL if make is llama else CLASSES
    data = TEXTS if make is llama else (TEXTS, LABELS)
    task, module = hf.problem(make(), data, test=data, **about).test, make().eval()

    def values(rows: Tensor) -> Tensor:
        loss = task.loss(module, task.batch(rows))
        return loss.totals if isinstance(loss, tw.Ratio) else loss

    alone = torch.cat([values(torch.tensor([i])) for i in range(8)])
    torch.testing.assert_close(values(torch.arange(8)), alone, rtol=1e-5, atol=1e-5)


def test_labels_of_minus_100_do_not_count() -> None:
    data = {"input_ids": [[2, 3, 4], [3, 4]], "labels": [[-100, -100, 4], [-100, -100]]}
    task = hf.problem(Score(), data, test=data, **CAUSAL | {"clients": 1}).test
    loss = task.loss(Score(), task.batch(torch.arange(2)))
    assert loss.counts.tolist() == [1, 0]
    assert loss.totals.tolist() == pytest.approx([math.log(VOCABULARY), 0])

    class Classes(Score):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
            return type("Output", (), {"logits": self.table[input_ids[:, 0], :3]})

    task = hf.problem(Classes(), (["a", "b"], [1, -100]), test=(["a", "b"], [1, -100]), **CLASSES).test
    assert mean_loss(task.loss(Classes(), task.batch(torch.arange(2)))).item() == pytest.approx(math.log(3))


def test_evaluation_takes_as_many_examples_at_once_as_fit() -> None:
    config = type("Config", (), {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536})

    class Counted(Score):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool) -> Any:
            self.seen.append(len(input_ids))
            return super().forward(input_ids, attention_mask, use_cache)

    module = Counted()
    module.config = config
    task = hf.problem(Score(), ["a" * 64] * 12, test=["a" * 64] * 12, **CAUSAL).test
    whole = tw.train.evaluation.means(Score(), task, "cpu")
    assert tw.train.evaluation.means(module, task, "cpu") == pytest.approx(whole)
    assert module.seen == [5, 5, 2]  # 2^24 / (64 * 49,152) is 5.3
    module.seen.clear()
    config.vocab_size = VOCABULARY
    tw.train.evaluation.means(module, task, "cpu")
    assert module.seen == [12]


# -- refusals -----------------------------------------------------------------------


def still() -> Score:
    return Score().requires_grad_(False)


CONFIG = type("Config", (), {"max_position_embeddings": 8, "num_labels": 2, "pad_token_id": None})
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a frozen model": ({"model": still()}, "the model has no trainable parameters: get_peft_model("),
    "half floats": ({"model": Score().half()}, "the model is in float16: load it with dtype=torch.float32"),
    "an unknown task": ({"task": "causal_lm"}, "'causal-lm' and 'classification' are known"),
    "no padding": ({"tokenizer": Letters(pad=None)}, "no padding token: set one, tokenizer.pad_token ="),
    "no tokenizer": ({"tokenizer": None}, "data has texts: give the model's tokenizer"),
    "ragged ids": ({"tokenizer": None, "data": [[2, 3], [2]]}, "rows of different lengths have to be filled up"),
    "labels longer than inputs": (
        {"data": {"input_ids": [[2, 3]], "labels": [[2, 3, 4]]}},
        "data: example 0 has 3 labels for 2 tokens: give one for each, -100 where",
    ),
    "a missing column": (
        {"data": {"sentence": TEXTS, "id": LABELS}},
        "data has no column 'text': it has 'sentence', 'id'; text= names the one that is meant",
    ),
    "a missing label": (
        {"task": "classification", "data": {"text": TEXTS, "kind": LABELS}},
        "data has no column 'label': it has 'text', 'kind'; label= names",
    ),
    "a row without its label": (
        {"task": "classification", "data": [{"text": "a", "label": 0}, {"text": "b"}]},
        "data: example 1 has no ['label'], which example 0 has",
    ),
    "unlike columns": ({"data": (TEXTS, [1])}, "data has columns of different lengths: {'text': 8, 'labels': 1}"),
    "nothing": ({"data": []}, "data has no examples"),
    "a name of data": ({"data": "ag_news"}, "data is the text 'ag_news', and nothing is looked up"),
    "a number": ({"data": 3}, "data is of type int: give a datasets.Dataset"),
    "an empty text": ({"data": ["a", ""]}, "data: example 1 has no tokens: leave it out"),
    "no text": ({"data": {"text": ["a", None]}}, "data: 'text' of example 1 is no text"),
    "texts as labels": ({"task": "classification", "data": (["a"], ["good"])}, "data: labels are of type str"),
    "a negative class": ({"task": "classification", "data": (["a"], [-1])}, "have the class -1: classes count from 0"),
    "packed classes": ({"task": "classification", "packed": True}, "packed=True joins texts, and a class belongs to"),
    "packed without a length": ({"packed": True}, "packed=True cuts rows of `length` tokens: give length="),
    "packed without an end": (
        {"packed": True, "length": 4, "tokenizer": Letters(eos=None)},
        "packed=True ends each text by the tokenizer's eos_token",
    ),
    "owners": ({"groups": [1, 2]}, "groups has 2 owners for 8 texts: give one for each"),
    "a length": ({"length": 1}, "length=1: a row has at least 2 tokens"),
    "a share": ({"holdout": 1.0}, "holdout=1.0: it is a share below 1"),
    "too many clients": ({"clients": 9}, "8 examples cannot give each of 9 clients one"),
    "long rows": ({"model": CONFIG}, "a row has 17 tokens, and the model takes 8: length=8 cuts them"),
    "too many classes": (
        {"model": CONFIG, "task": "classification", "data": (["a"] * 3, [0, 1, 2])},
        "labels go to 2, and the model has 2 outputs: make it with num_labels=3",
    ),
    "a classifier without padding": (
        {"model": CONFIG, "task": "classification", "data": (["a"] * 3, [0, 1, 1])},
        "the model's padding token is None, and the tokenizer's 0: set model.config.pad_token_id =",
    ),
}

BOTH = {"text": TEXTS, "input_ids": [[2, 3]] * 8, "label": LABELS}
REFUSED |= {
    "texts and tokens": ({"data": BOTH}, "data has texts ('text') and token ids ('input_ids'), which may differ"),
    "pairs of texts": (
        {"task": "classification", "data": {"input_ids": [[2, 3]], "token_type_ids": [[0, 1]], "label": [0]}},
        "data: example 0 has token_type_ids, of a pair of texts, and a model is given input_ids alone",
    ),
    "a text as a column": ({"data": {"text": "abc"}}, "data: column 'text' has no list of values"),
    "a negative token": ({"data": [[2, -1]]}, "data: 'input_ids' of example 0 has -1: tokens count from 0"),
    "a negative label": (
        {"data": {"input_ids": [[2, 3]], "labels": [[-1, 3]]}},
        "data: 'labels' of example 0 has -1: tokens count from 0, and -100 is for one that does not count",
    ),
    "truth values": ({"data": {"input_ids": [[True, False]]}}, "'input_ids' of example 0 is no row of whole numbers"),
    "digits": ({"data": {"input_ids": [["2", "3"]]}}, "'input_ids' of example 0 is no row of whole numbers"),
    "pairs in a list": ({"data": [("a", 0), ("b", 1)]}, "'input_ids' of example 0 is no row of whole numbers"),
    "a square mask": (
        {"data": {"input_ids": [[2, 3]], "attention_mask": [[[1, 0], [1, 1]]]}},
        "data: 'attention_mask' of example 0 is no row of 0 and 1",
    ),
    "a mask of documents": (
        {"data": {"input_ids": [[2, 3]], "attention_mask": [[1, 2]]}},
        "data: 'attention_mask' of example 0 is no row of 0 and 1",
    ),
    "no mask": (
        {"data": {"input_ids": [[2, 3]], "attention_mask": [None]}},
        "data: 'attention_mask' of example 0 is no row of 0 and 1",
    ),
    "answers cut away": (
        {"data": {"input_ids": [[2, 3, 4]] * 2, "labels": [[-100, -100, 4]] * 2}, "length": 2},
        "data: nothing counts: every label is -100, a row's first token is no target, and length= may",
    ),
    "a test of nothing": ({"test": ["a", "b"]}, "test: nothing counts"),
    "no class": ({"task": "classification", "data": (["a"] * 2, [-100] * 2)}, "data: nothing counts"),
    "nobody's text": ({"groups": [None, *range(7)]}, "the owner of example 0 is None: groups are names or numbers"),
    "an owner that is none": ({"groups": [1.0] * 7 + [math.nan]}, "the owner of example 7 is nan: groups are names"),
    "a list as owner": (
        {"data": {"text": TEXTS, "who": [[1]] * 8}, "groups": "who"},
        "the owner of example 0 is [1]: groups are names or numbers",
    ),
}


def given(why: str) -> tuple[dict[str, Any], str]:
    changed, said = REFUSED[why]
    about: dict[str, Any] = {"model": Score(), "data": TEXTS, **CAUSAL, **changed}
    if about["model"] is CONFIG:
        about["model"] = Score()
        about["model"].config = CONFIG
    return about, said


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "bert-base",
            "model='bert-base' is a name, and nothing is fetched here: give the model, AutoModelFor",
        ),
        (3, "model is of type int: give a model, or a function that makes one"),
    ],
)
def test_what_is_no_model_is_refused(model: Any, said: str) -> None:  # annotations would refuse it before
    with pytest.raises(ValueError, match=re.escape(said)):
        _check_given(model)


@pytest.mark.parametrize("why", REFUSED)
def test_what_does_not_fit_is_said_in_one_line(why: str) -> None:
    about, said = given(why)
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        hf.problem(about.pop("model"), about.pop("data"), **about)
    assert "\n" not in str(refusal.value)


def test_what_a_function_makes_is_looked_at_when_it_is_made() -> None:
    problem = hf.problem(still, TEXTS, **CAUSAL)
    with pytest.raises(ValueError, match="the model has no trainable parameters"):
        tw.simulate(tw.FedAvg(), problem.model, problem.tasks, rounds=1)
    assert problem.model.__name__ == "still"


def test_neither_package_is_imported_until_a_model_is_made() -> None:
    code = "import sys, thinwire.hf; print(*{'transformers', 'peft', 'datasets'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
