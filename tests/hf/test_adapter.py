"""What a run leaves of an adapter is what PEFT loads, to the same logits, without the base."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import thinwire as tw
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
