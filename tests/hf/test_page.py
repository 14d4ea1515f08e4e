"""The page on Hugging Face models: its code runs, on tiny models in the places of those that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from places import ROOT
from tiny import bert, llama

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")


def save(model: torch.nn.Module, words: str, folder: Path) -> None:
    """A model and a tokenizer of words, as ``from_pretrained`` loads them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[END]", *words.split()])}
    core = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, **special).save_pretrained(folder)
    model.save_pretrained(folder)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(bert(), "the wire is thin thick cut", tmp_path / "minilm")
    save(llama(), "a b c", tmp_path / "smollm")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/huggingface.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "docs/huggingface.md", "exec", dont_inherit=True), names)
    result = names["result"]
    assert result.accuracy is not None
    with torch.no_grad():
        batch = {"input_ids": torch.tensor([[3, 4, 5, 6]])}
        assert names["trained"].eval()(**batch).logits.equal(result.module(**batch).logits)
    assert 1 < names["run"].rounds[-1]["perplexity"] < 40
