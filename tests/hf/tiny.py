"""Tiny random transformers and PEFT models, a tokenizer of letters, and small sets and packages in their places."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire import hf
from thinwire.data.texts import Texts
from thinwire.hf.named import TEXTS
from thinwire.hf.pretrained import PRETRAINED, Pretrained

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
    about = {"max_position_embeddings": 32, "num_labels": 3, "pad_token_id": PAD}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **(sizes | about | more)))


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


def save(model: torch.nn.Module, words: str, folder: Path) -> None:
    """A model and a tokenizer of words, as ``from_pretrained`` loads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[END]", *words.split()])}
    core = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)
    model.save_pretrained(folder)


def pack(model: torch.nn.Module, words: str, folder: Path) -> Pretrained:
    """A package ``tiny_model`` in a folder, with a model that is pinned."""
    package = folder / "tiny_model"
    save(model, words, package / "model")
    (package / "__init__.py").write_text("raise AssertionError('a package is found, and not run')")
    digest = hashlib.sha256((package / "model/model.safetensors").read_bytes()).hexdigest()
    return Pretrained("tiny-model", "tiny_model", "model/model.safetensors", digest, ("query", "value"))


@contextmanager
def small_news(folder: Path) -> Iterator[None]:
    """``minilm`` is a tiny model, and ``ag_news`` has four words of one subject each."""
    subjects = ["peace", "goal", "oil", "chip"]
    texts = [f"the {subject} {word}" for subject in subjects for word in ("is", "was", "has", "of")] * 10
    labels = [i // 4 % 4 for i in range(len(texts))]
    news = Texts("ag_news", texts, texts[:16], labels, labels[:16], 4)
    known = pack(
        bert(hidden_size=64, num_labels=4, initializer_range=0.3), "the is was has of peace goal oil chip", folder
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRETRAINED, "minilm", known)
        patch.setitem(TEXTS, "ag_news", lambda *_: news)
        patch.setenv("THINWIRE_MODELS", str(folder))
        hf.model_folder.cache_clear()
        yield
        hf.model_folder.cache_clear()
