"""Tiny random transformers and PEFT models, and a tokenizer of letters."""

from __future__ import annotations

import warnings
from typing import Any

import torch

LETTERS = "abcdefghijklmnopqrstuvwxyz "
PAD, END, FIRST = 0, 1, 2
VOCABULARY = FIRST + len(LETTERS)


class Letters:
    """A tokenizer with the attributes and the call of one of transformers': a token a letter, nothing added."""

    def __init__(self, pad: int | None = PAD, eos: int | None = END) -> None:
        self.pad_token_id, self.eos_token_id = pad, eos

    def __call__(
        self, texts: list[str], truncation: bool = False, max_length: int | None = None, verbose: bool = True
    ) -> dict[str, list[list[int]]]:
        ids = [[FIRST + LETTERS.index(letter) for letter in text] for text in texts]
        return {"input_ids": [row[:max_length] if truncation else row for row in ids]}


def bert(seed: int = 0, **more: Any) -> torch.nn.Module:
    """A classifier of three classes, 1 layer, 16 wide."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    about = {"max_position_embeddings": 32, "num_labels": 3, "pad_token_id": PAD} | more
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **sizes, **about))


def llama(seed: int = 0, **more: Any) -> torch.nn.Module:
    """A causal language model, 1 layer, 16 wide, without dropout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **sizes, **more))


def lora(base: torch.nn.Module, seed: int = 0, **more: Any) -> torch.nn.Module:
    """Adapters of rank 2 on queries and values; those of B are not zero, so that every one has a gradient."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    targets = ["query", "value"] if hasattr(base, "bert") else ["q_proj", "v_proj"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = {"task_type": "SEQ_CLS"} if hasattr(base, "bert") else {"task_type": "CAUSAL_LM"}
        return get_peft_model(base, LoraConfig(r=2, lora_alpha=4, target_modules=targets, **kind, **more))
