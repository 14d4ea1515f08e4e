"""What a run leaves of an adapter is what PEFT loads, to the same logits, without the base."""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import thinwire as tw
from thinwire.errors import RunError
from thinwire.losses import mean_loss
from tiny import Letters, bert, llama, lora

pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # of peft's own use

TEXTS = ["abc", "de", "fghi", "no", "thin wires", "bytes", "a b", "it"]
IDS = torch.tensor([[2, 3, 9, 4], [7, 8, 2, 2]])


def tied() -> nn.Module:
    return llama(tie_word_embeddings=True)


def train(make: Callable[[], nn.Module], method: Any, **about: Any) -> tw.Result:
    data: Any = (TEXTS, [0, 1, 2, 0, 1, 2, 0, 1])
    kind = "classification" if make is bert else "causal-lm"
    data = data if make is bert else TEXTS
    problem = tw.hf.problem(lora(make()), data, clients=2, task=kind, tokenizer=Letters())
    return tw.simulate(method, problem.model, problem.tasks, **{"rounds": 2} | about)


def logits(module: nn.Module) -> Tensor:
    with torch.no_grad():
        return module.eval()(input_ids=IDS).logits


LOCAL = tw.LocalAdamW(0.05, batch=2)


@pytest.mark.parametrize("make", [bert, llama, tied])
def test_peft_and_thinwire_load_the_same_logits_from_the_folder_of_a_run(make: Any, tmp_path: Path) -> None:
    result = train(make, tw.FedAvg(LOCAL), out=tmp_path)
    trained = logits(result.module)
    assert not trained.equal(logits(lora(make())))
    assert logits(peft.PeftModel.from_pretrained(make(), tmp_path / "adapter")).equal(trained)
    assert logits(tw.load(tmp_path, lora(make())).model).equal(trained)
    assert {file.name for file in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    sizes = {p.name: p.stat().st_size for p in tmp_path.rglob("*.safetensors")}
    sent = 4 * sum(p.numel() for p in result.module.parameters() if p.requires_grad)
    assert sent < sizes["adapter_model.safetensors"] < sent + 2_000  # the header; a base has 10,000 and more
    assert sizes["model.safetensors"] < 500  # neither the base nor the adapter
    tw.hf.save_adapter(result, tmp_path / "mine")
    assert logits(peft.PeftModel.from_pretrained(make(), tmp_path / "mine")).equal(trained)


ON = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj", "v_proj"]}


def second() -> Any:
    """A model of which the second adapter is trained."""
    model = peft.get_peft_model(llama(), peft.LoraConfig(**ON))
    model.add_adapter("other", peft.LoraConfig(**ON))
    model.set_adapter("other")
    return model


def together() -> Any:
    """A model whose two adapters are trained at once."""
    model = second()
    model.base_model.set_adapter(["default", "other"])
    return model


def checkpointed() -> Any:
    model: Any = lora(llama())
    model.gradient_checkpointing_enable()
    return model


def unfrozen() -> Any:
    """A model that trains its words beside the adapter."""
    model: Any = lora(llama())
    model.get_input_embeddings().requires_grad_()
    return model


def virtual(kind: str, **more: Any) -> Callable[[], Any]:
    """A model with three tokens of its own before each row."""
    config = getattr(peft, f"{kind}Config")
    return lambda: peft.get_peft_model(llama(), config(task_type="CAUSAL_LM", num_virtual_tokens=3, **more))


ADAPTED: dict[str, Callable[[], Any]] = {
    "a name": lambda: peft.get_peft_model(llama(), peft.LoraConfig(**ON), adapter_name="king"),
    "the second of two": second,
    "checkpoints of activations": checkpointed,
    "compiled": lambda: torch.compile(lora(llama()), backend="eager"),
    "DoRA, scaled by rank": lambda: peft.get_peft_model(llama(), peft.LoraConfig(**ON, use_dora=True, use_rslora=True)),
    "words and norm saved": lambda: peft.get_peft_model(
        tied(), peft.LoraConfig(**ON, modules_to_save=["embed_tokens", "norm"])
    ),
    "some words": lambda: peft.get_peft_model(tied(), peft.LoraConfig(**ON, trainable_token_indices=[2, 3])),
    "IA3": lambda: peft.get_peft_model(
        llama(), peft.IA3Config(task_type="CAUSAL_LM", target_modules=["v_proj"], feedforward_modules=[])
    ),
    "prompt tuning": virtual("PromptTuning"),
    "prefix tuning": virtual("PrefixTuning"),
    "a prompt's encoder": virtual("PromptEncoder", encoder_hidden_size=8),
}
WHOLE: dict[str, tuple[Callable[[], Any], str]] = {
    "two at once": (together, "is a PeftModelForCausalLM and no PEFT model with one active adapter"),
    "injected": (
        lambda: peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["q_proj"]), llama()),
        "is a LlamaForCausalLM and no PEFT model with one active adapter",
    ),
    "mixed": (lambda: peft.get_peft_model(llama(), peft.LoraConfig(**ON), mixed=True), "is a PeftMixedModel and no"),
    "more than the adapter": (unfrozen, "embed_tokens.weight' is trained beside the adapter, which PEFT would not"),
}


def adapt(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        return make()


def train_adapted(make: Callable[[], Any], folder: Path) -> tw.Result:
    problem = tw.hf.problem(adapt(make), TEXTS, clients=2, task="causal-lm", tokenizer=Letters())
    result = tw.simulate(tw.FedAvg(LOCAL), problem.model, problem.tasks, rounds=1, out=folder)
    assert not logits(result.module).equal(logits(adapt(make)))
    assert logits(tw.load(folder, adapt(make)).model).equal(logits(result.module))
    return result


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings", "ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("name", ADAPTED)
def test_an_adapter_of_any_kind_and_name_is_what_peft_loads(name: str, tmp_path: Path) -> None:
    result = train_adapted(ADAPTED[name], tmp_path)
    base = tied() if name in ("words and norm saved", "some words") else llama()
    tw.hf.save_adapter(result, tmp_path / "mine")
    for folder in ("adapter", "mine"):
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / folder)
        assert logits(loaded).equal(logits(result.module))


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_not_one_adapter_leaves_all_that_was_trained_and_none(name: str, tmp_path: Path) -> None:
    make, said = WHOLE[name]
    result = train_adapted(make, tmp_path)
    assert not (tmp_path / "adapter").exists()
    with pytest.raises(ValueError, match=said):
        tw.hf.save_adapter(result, tmp_path / "mine")


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
@pytest.mark.parametrize("kind", ["PromptTuning", "PrefixTuning", "PromptEncoder"])
def test_the_loss_with_a_tuned_prompt_is_that_of_peft(kind: str) -> None:
    module = adapt(virtual(kind, **({"encoder_hidden_size": 8} if kind == "PromptEncoder" else {}))).eval()
    task = tw.hf.problem(module, TEXTS, clients=1, task="causal-lm", tokenizer=Letters()).tasks[0]
    batch = task.batch(torch.arange(len(task)))
    torch.testing.assert_close(mean_loss(task.loss(module, batch)), module(**batch).loss)


def test_clients_own_adapters_are_there_too(tmp_path: Path) -> None:
    result = train(llama, tw.Ditto(LOCAL), out=tmp_path)
    loaded = tw.load(tmp_path, lora(llama()))
    for client in range(2):
        own = logits(result.personal(client))
        assert not own.equal(logits(result.module))
        assert logits(peft.PeftModel.from_pretrained(llama(), tmp_path / f"adapter/personal/{client}")).equal(own)
        assert logits(loaded.personal(client)).equal(own)
    tw.hf.save_adapter(loaded, tmp_path / "first", client=0)
    assert logits(peft.PeftModel.from_pretrained(llama(), tmp_path / "first")).equal(logits(result.personal(0)))


def test_another_base_is_refused_and_so_is_a_model_without_an_adapter(tmp_path: Path) -> None:
    train(llama, tw.FedAvg(LOCAL), rounds=1, out=tmp_path)
    with pytest.raises(ValueError, match="was trained on another base: give its model with that base"):
        tw.load(tmp_path, lora(llama(seed=1)))
    whole = tw.hf.problem(llama(), TEXTS, clients=2, task="causal-lm", tokenizer=Letters())
    result = tw.simulate(tw.FedAvg(LOCAL), whole.model, whole.tasks, rounds=1)
    with pytest.raises(ValueError, match="the model is a LlamaForCausalLM and no PEFT model"):
        tw.hf.save_adapter(result, tmp_path / "none")


def scaled(**more: Any) -> Any:
    return peft.get_peft_model(llama(), peft.LoraConfig(**ON, lora_alpha=4, **more))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: peft.get_peft_model(llama(), peft.LoraConfig(**ON, lora_alpha=16)), "lora_alpha=4, and that of the"),
        (lambda: scaled(use_rslora=True), "use_rslora=False, and that of the model use_rslora=True"),
        (lambda: scaled(alpha_pattern={"q_proj": 8}), "alpha_pattern={}, and that of the model alpha_pattern="),
        (lambda: scaled(lora_dropout=0.5), None),  # which a model that predicts does not have
    ],
)
def test_an_adapter_that_is_scaled_otherwise_is_another_model(other: Any, said: str | None, tmp_path: Path) -> None:
    result = train_adapted(scaled, tmp_path)
    if said is None:
        assert logits(tw.load(tmp_path, adapt(other)).model).equal(logits(result.module))
    else:
        with pytest.raises(ValueError, match=re.escape(said)):
            tw.load(tmp_path, adapt(other))
    problem = tw.hf.problem(adapt(other), TEXTS, clients=2, task="causal-lm", tokenizer=Letters())
    with pytest.raises(RunError, match="is another run: its model is"):
        tw.simulate(tw.FedAvg(LOCAL), problem.model, problem.tasks, rounds=2, out=tmp_path, resume=True)


def test_texts_that_are_cut_otherwise_are_another_run(tmp_path: Path) -> None:
    def begin(rounds: int, length: int | None, resume: bool = False) -> None:
        about: dict[str, Any] = {"clients": 2, "task": "causal-lm", "tokenizer": Letters(), "length": length}
        problem = tw.hf.problem(lora(llama()), ["ab", "cd", "efgh", "ijkl"], seed=2, **about)
        assert {task.batch(torch.tensor([0]))["input_ids"].shape[1] for task in problem.tasks} == {2}
        tw.simulate(tw.FedAvg(LOCAL), problem.model, problem.tasks, rounds, out=tmp_path, resume=resume)

    begin(1, None)
    with pytest.raises(RunError, match="is another run: its data is"):
        begin(2, 3, resume=True)
    begin(2, None, resume=True)


def test_an_adapter_of_another_shape_and_one_that_is_missing_are_refused(tmp_path: Path) -> None:
    train(llama, tw.FedAvg(LOCAL), rounds=1, out=tmp_path)
    for about, said in (({"r": 2, "use_dora": True}, ".* is in one of the two alone"), ({"r": 4}, "")):
        other = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], **about)
        with pytest.raises(ValueError, match=f"was trained with another model: {said}"):
            tw.load(tmp_path, peft.get_peft_model(llama(), other))
    (tmp_path / "adapter/adapter_model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is missing"):
        tw.load(tmp_path, lora(llama()))


def test_a_folder_whose_model_has_the_adapter_itself_is_read_too(tmp_path: Path) -> None:
    result = train(bert, tw.FedAvg(LOCAL), out=tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        base = file.metadata()["base"]
    frozen = {name for name, p in result.module.named_parameters() if not p.requires_grad}
    weights = {name: x.clone() for name, x in result.module.state_dict().items() if name not in frozen}
    save_file(weights, tmp_path / "model.safetensors", {"base": base})  # as folders were before adapters went apart
    shutil.rmtree(tmp_path / "adapter")
    assert logits(tw.load(tmp_path, lora(bert())).model).equal(logits(result.module))


def test_a_run_on_adapters_that_was_stopped_goes_on_to_the_same_files(tmp_path: Path) -> None:
    method = tw.FedAvg(LOCAL, up=tw.ErrorFeedback(tw.TopK(0.1)))
    train(bert, method, rounds=3, out=tmp_path / "straight")
    train(bert, method, rounds=1, out=tmp_path / "stopped")
    train(bert, method, rounds=3, out=tmp_path / "stopped", resume=True)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()
