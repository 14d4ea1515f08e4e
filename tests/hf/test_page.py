"""The page on Hugging Face models: its code runs, on tiny models in the places of those that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from places import ROOT
from tiny import bert, llama, save, small_news

pytest.importorskip("transformers")
pytest.importorskip("peft")


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_the_tutorial_goes_from_pip_to_a_loaded_adapter_in_fifteen_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/tutorials/first-adapter.md").read_text()
    installs, code = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("", "python"))
    assert [line.split()[:2] for line in installs.splitlines()] == [["pip", "install"]] * 2
    assert len([line for line in (installs + code).splitlines() if line]) <= 15
    names: dict[str, Any] = {"__name__": "tutorial"}
    monkeypatch.chdir(tmp_path)
    with small_news(tmp_path):
        exec(compile(code, "docs/tutorials/first-adapter.md", "exec", dont_inherit=True), names)
    accuracy, up, down = map(float, capsys.readouterr().out.splitlines()[0].split())
    assert accuracy > 0.9  # chance is a quarter
    dense = sum(p.numel() for p in names["result"].module.parameters() if p.requires_grad) * 4
    assert up + down <= 0.01 * (20 * 2 * 2 * dense)  # rounds, clients, directions
    with torch.no_grad():
        logits = [each.eval()(**names["words"]).logits for each in (names["trained"], names["result"].module)]
    assert logits[0].equal(logits[1])
