"""The loss without all logits is that of all logits, and what is not known of a model is left to its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire import hf
from thinwire.hf import head
from thinwire.hf.head import Deferred, frozen_head, logits_of, nats, score
from thinwire.losses import mean_loss
from tiny import VOCABULARY, Letters, llama, lora


def gemma(**more: Any) -> nn.Module:
    """A model that bends its logits: 5 tanh(logits / 5)."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    about = {"head_dim": 8, "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0}
    config = Gemma2Config(vocab_size=VOCABULARY, final_logit_softcapping=5.0, **sizes, **about, **more)
    return Gemma2ForCausalLM(config)


def biased() -> nn.Module:
    """A model whose last layer has a bias."""
    made: Any = llama()
    made.lm_head = nn.Linear(16, VOCABULARY)
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "adapters": lambda: lora(llama()),
    "adapters, tied words": lambda: lora(llama(tie_word_embeddings=True)),
    "adapters, a bias": lambda: lora(biased()),
    "adapters, 64 bits": lambda: lora(llama()).double(),
    "adapters, bfloat16": lambda: lora(llama().bfloat16()).float().bfloat16(),
    "bent logits": lambda: lora(gemma()),
    "all trained": llama,
    "a layer trained": lambda: freeze(llama(), "layers.0.mlp"),
    "the head trained": lambda: lora(llama(), modules_to_save=["lm_head"]),
}
UNREAD = {name for name in MODELS if name.startswith("adapters")} | {"a layer trained"}


def freeze(module: nn.Module, but: str) -> nn.Module:
    for name, p in module.named_parameters():
        p.requires_grad_(but in name)
    return module


def texts(seed: int = 0) -> dict[str, Tensor]:
    """Rows of 5, 9 and 12 tokens, of which some do not count; the last row has none that does."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (4, 12), generator=g)
    inside = torch.arange(12) < torch.tensor([5, 9, 12, 7])[:, None]
    counts = inside & (torch.rand(4, 12, generator=g) < 0.7)
    counts[3] = False
    return {"input_ids": ids * inside, "attention_mask": inside.long(), "labels": ids.where(counts, -100)}


def by_hand(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Nats and hits of each row, and its targets that count, in 64 bits from all logits."""
    logits = module(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].double()
    targets = batch["labels"][:, 1:]
    counts = targets != -100
    each = -logits.log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    return (each * counts).sum(1), ((logits.argmax(-1) == targets) & counts).sum(1), counts.sum(1)


def gradients(module: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: p.grad.double() for name, p in module.named_parameters() if p.grad is not None}


def task() -> hf.CausalLM:
    rows = hf.tasks.Rows.of([[2, 3]])
    return hf.CausalLM(rows, rows, torch.arange(1))


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_loss_gradients_and_metrics_are_those_of_all_logits(
    name: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "MOST_LOGITS", head.MOST_LOGITS if parts == 1 else 5 * VOCABULARY)
    module, batch = MODELS[name](), texts()
    loss, right, counts = by_hand(module, batch)
    mean = loss.sum() / counts.sum()
    expected = gradients(module, mean)
    close = {"rtol": 0.02, "atol": 0.02} if "bfloat16" in name else {"rtol": 2e-5, "atol": 1e-6}

    ratio = task().loss(module, batch)
    assert isinstance(ratio, tw.Ratio)
    assert ratio.counts.tolist() == counts.tolist()
    torch.testing.assert_close(ratio.totals.double(), loss, **close)
    own = gradients(module, mean_loss(ratio))
    assert own.keys() == expected.keys()
    for layer, gradient in own.items():
        torch.testing.assert_close(gradient, expected[layer], **close, msg=lambda said, of=layer: f"{of}: {said}")

    metrics = task().metrics(module, batch)
    assert metrics["accuracy"][0].tolist() == right.tolist()
    torch.testing.assert_close(metrics["loss"][0].double(), loss, **close)


@pytest.mark.parametrize("name", MODELS)
def test_logits_that_a_model_trains_or_bends_are_computed_whole(name: str) -> None:
    module, batch = MODELS[name](), texts()
    inputs = {part: batch[part] for part in ("input_ids", "attention_mask")}
    logits = logits_of(module, **inputs)
    assert (isinstance(logits, Deferred) and logits.whole is None) == (name in UNREAD)
    nats(logits, batch["labels"])
    assert not (isinstance(logits, Deferred) and logits.whole is not None)
    torch.testing.assert_close(logits + 0, module(**inputs).logits)  # whoever looks sees the model's own


class Tempered(nn.Module):
    """A model of the user's own around one of transformers'."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base

    def get_output_embeddings(self) -> nn.Module:
        return self.base.lm_head

    def forward(self, **inputs: Any) -> Any:
        return self.base(**inputs)


def patched(where: Callable[[Any], Any]) -> nn.Module:
    """A model with a ``forward`` that its user put on one of its parts."""
    module = freeze(llama(), "mlp")
    part = where(module)
    part.forward = type(part).forward.__get__(part)
    return module


def watched() -> nn.Module:
    module: Any = freeze(llama(), "mlp")
    module.lm_head.register_full_backward_hook(lambda *_: None)
    return module


def derived() -> nn.Module:
    module = freeze(llama(), "mlp")
    module.__class__ = type("Own", (type(module),), {"__module__": "users_own"})
    return module


UNKNOWN: dict[str, Callable[[], nn.Module]] = {
    "a module around it": lambda: Tempered(freeze(llama(), "mlp")),
    "a class of the user's": derived,
    "another forward": lambda: patched(lambda module: module),
    "another forward of the head": lambda: patched(lambda module: module.lm_head),
    "a hook on gradients": watched,
    "no transformers at all": lambda: nn.Linear(2, 2),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_keeps_its_own_logits(name: str) -> None:
    assert frozen_head(freeze(llama(), "mlp")) is not None
    assert frozen_head(UNKNOWN[name]()) is None


def test_under_autocast_logits_are_the_models_own() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert frozen_head(freeze(llama(), "mlp")) is None


def test_a_hook_that_looks_at_logits_or_changes_them_is_obeyed() -> None:
    module, batch = lora(llama()), texts()
    expected, _, _ = by_hand(module, batch)
    seen: list[Tensor] = []

    def look(_: Any, __: Any, logits: Tensor) -> None:
        with torch.no_grad():
            seen.append(logits.sum())

    handle = module.get_output_embeddings().register_forward_hook(look)
    totals = task().loss(module, batch).totals
    assert seen
    assert totals.requires_grad  # though the hook looked without a graph
    torch.testing.assert_close(totals.double(), expected, rtol=2e-5, atol=1e-6)
    handle.remove()
    module.get_output_embeddings().register_forward_hook(lambda _, __, logits: logits.mul_(0))
    totals = task().loss(module, batch).totals
    zero = torch.tensor(float(VOCABULARY)).log() * (batch["labels"][:, 1:] != -100).sum(1)
    torch.testing.assert_close(totals, zero)


def test_the_head_is_as_it_was_after_a_loss_and_after_an_error() -> None:
    module, batch = lora(llama()), texts()
    layer = module.get_output_embeddings()
    task().loss(module, batch)
    assert "forward" not in vars(layer)
    with pytest.raises(IndexError):
        logits_of(module, input_ids=batch["input_ids"] + 1000)
    assert "forward" not in vars(layer)


def test_the_gradient_of_a_gradient_is_that_of_all_logits() -> None:
    inputs = torch.randn(1, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = nn.Linear(4, 9, dtype=torch.float64).requires_grad_(False)
    targets = torch.tensor([[3, 8, -100, 0, 1, 1]])
    x = inputs.clone().requires_grad_()
    torch.autograd.gradgradcheck(lambda x: nats(Deferred.of(layer, x), targets), x)
    torch.autograd.gradcheck(lambda x: nats(Deferred.of(layer, x), targets), x)
    with torch.no_grad():
        assert score(Deferred.of(layer, inputs), targets).nats[0, 2] == 0


def test_a_loss_holds_fewer_logits_than_there_are() -> None:
    layer = nn.Linear(4, 1 << 12).requires_grad_(False)
    inputs, targets = torch.randn(1, 1 << 13, 4, requires_grad=True), torch.zeros(1, 1 << 13, dtype=torch.int64)
    held: list[int] = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            held.extend(x.numel() for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor))
            return made

    with Sizes():
        nats(Deferred.of(layer, inputs), targets).sum().backward()
    assert max(held) == head.MOST_LOGITS == (1 << 25) // 4


def test_a_training_is_that_of_the_plain_loss() -> None:
    trained = []
    for known in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not known:
                patch.setattr(head, "frozen_head", lambda _: None)
            data = ["the wire is thin", "a wire", "bytes", "counted both ways"] * 4
            problem = hf.problem(lora(llama()), data, clients=2, task="causal-lm", tokenizer=Letters())
            run = tw.simulate(tw.FedAvg(tw.LocalSGD(0.5, batch=4, steps=3)), problem.model, problem.tasks, 2)
            trained.append(run.params.flat)
    torch.testing.assert_close(*trained, rtol=0, atol=1e-6)
