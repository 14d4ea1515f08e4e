"""Models that would give wrong numbers for texts are refused before anything is trained, and looked at as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from thinwire import hf
from tiny import PAD, VOCABULARY, Letters, bert, llama

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # of peft's own use

TEXTS = ["the wire is thin", "a", "bytes", "counted both ways", "no", "headers too", "abc", "it is so"]
LABELS = [0, 2, 1, 0, 2, 1, 1, 0]
CLASSES: dict[str, Any] = {"task": "classification", "tokenizer": Letters(), "clients": 2}
CAUSAL: dict[str, Any] = {"task": "causal-lm", "tokenizer": Letters(), "clients": 2}

BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 1, "eos_token_id": 1}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
XLNET = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}


def make(name: str, **sizes: Any) -> Any:
    """A tiny model by the name of its class."""
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(vocab_size=VOCABULARY, pad_token_id=PAD, **sizes))


def adalora() -> Any:
    import peft

    about = peft.AdaLoraConfig(init_r=3, target_r=2, total_step=9, target_modules=["q_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(llama(), about)


def prompted() -> Any:
    import peft

    return peft.get_peft_model(llama(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=50))


AHEAD = "the model looks ahead: its logits at a token depend on the tokens after it"
UNFIT: dict[str, tuple[Any, dict[str, Any], str]] = {
    "an encoder": (lambda: make("BertForMaskedLM", **SMALL), CAUSAL, AHEAD),
    "an encoder as a language model": (lambda: make("BertLMHeadModel", **SMALL), CAUSAL, AHEAD),
    "permutations": (lambda: make("XLNetLMHeadModel", **XLNET), CAUSAL, AHEAD),
    "an encoder and a decoder": (
        lambda: make("BartForConditionalGeneration", **BART),
        CAUSAL,
        "the model is an encoder and a decoder, which is shown the text that it is to continue",
    ),
    "no head": (lambda: make("LlamaModel", **SMALL), CAUSAL, "the model gives a BaseModelOutputWithPast without"),
    "a classifier for texts to continue": (bert, CAUSAL, "the model gives logits [1, 3] for one text of 2 tokens, and"),
    "labels of words": (
        lambda: make("BertForTokenClassification", num_labels=3, **SMALL),
        CLASSES,
        "the model gives logits [1, 2, 3] for one text: a classifier has one for each class",
    ),
    "one output": (
        lambda: bert(num_labels=1),
        CLASSES | {"data": (TEXTS, [0] * 8)},
        "the model has 1 output, by which classes cannot be told apart",
    ),
    "an unknown token": (
        llama,
        CAUSAL | {"data": [[2, 3, 99]] * 2},
        "token ids go to 99, and those of the model to 28",
    ),
    "an unknown padding token": (
        llama,
        CAUSAL | {"tokenizer": Letters(pad=VOCABULARY)},
        "token ids go to 29, and those of the model to 28: give its own tokenizer, or model.resize_token_embeddings(",
    ),
    "an unknown target": (
        llama,
        CAUSAL | {"data": {"input_ids": [[2, 3]] * 2, "labels": [[2, 99]] * 2}},
        "the model gives logits [1, 2, 29] for one text of 2 tokens, and targets go to 99",
    ),
    "positions after the padding's": (
        lambda: make("RobertaForSequenceClassification", num_labels=3, max_position_embeddings=17, **SMALL),
        CLASSES,
        "a row has 17 tokens, and the model takes 16: length=16 cuts them",
    ),
    "a long prompt": (prompted, CAUSAL, "a row has 17 tokens, and the model takes 14"),
    "ranks that nobody takes away": (adalora, CAUSAL, "so that target_r would not count: take LoraConfig"),
}


@pytest.mark.parametrize("why", UNFIT)
def test_a_model_that_would_give_wrong_numbers_is_refused(why: str) -> None:
    model, about, said = UNFIT[why]
    data, options = about.get("data", (TEXTS, LABELS) if about is CLASSES else TEXTS), dict(about)
    options.pop("data", None)
    with pytest.raises(ValueError, match=re.escape(said)) as refusal:
        hf.problem(model(), data, **options)
    assert "\n" not in str(refusal.value)


FIT: dict[str, tuple[Any, dict[str, Any]]] = {
    "a decoder of BERT's": (lambda: make("BertLMHeadModel", is_decoder=True, **SMALL), CAUSAL),
    "BART's decoder": (lambda: make("BartForCausalLM", **BART), CAUSAL),
    "a recurrent model": (
        lambda: make("MambaForCausalLM", hidden_size=16, num_hidden_layers=1, state_size=4),
        CAUSAL,
    ),
    "experts": (
        lambda: make("MixtralForCausalLM", num_local_experts=2, num_key_value_heads=1, **SMALL),
        CAUSAL,
    ),
    "bfloat16": (lambda: llama().bfloat16(), CAUSAL),
    "no limit of positions": (lambda: make("XLNetForSequenceClassification", num_labels=3, **XLNET), CLASSES),
}


@pytest.mark.parametrize("what", FIT)
def test_a_look_at_a_model_leaves_it_and_dice_as_they_are(what: str) -> None:
    model, about = FIT[what]
    module = model().train()
    module.base_model.eval()  # a part that its user froze
    modes, dice = [part.training for part in module.modules()], torch.get_rng_state()
    hf.problem(module, (TEXTS, LABELS) if about is CLASSES else TEXTS, **about)
    assert [part.training for part in module.modules()] == modes
    assert torch.get_rng_state().equal(dice)
