"""The folder of a run: what is in it is what the run wrote, or the run does not go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import thinwire as tw
from test_train import linear, tasks
from thinwire.errors import RunError
from thinwire.links import LBGM
from thinwire.run.folder import Folder
from thinwire.version import code_version


def test_a_checkpoint_with_any_bit_changed_is_refused(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    path = tmp_path / "checkpoint" / "state.thinwire"
    good = path.read_bytes()
    for place in range(0, len(good), len(good) // 40):
        bad = bytearray(good)
        bad[place] ^= 4
        path.write_bytes(bad)
        with pytest.raises(RunError, match="is damaged"):
            tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, resume=True)
    path.write_bytes(good)
    assert len(tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 3, out=tmp_path, resume=True).rounds) == 3


def test_a_line_that_is_no_round_is_an_error_that_names_it(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(), linear, tasks(), 2, out=tmp_path)
    with open(tmp_path / "rounds.jsonl", "a") as file:
        file.write("[]\n")
    with pytest.raises(RunError, match=r"rounds.jsonl has a line that is no round: \[\]"):
        tw.simulate(tw.FedAvg(), linear, tasks(), 3, out=tmp_path, resume=True)


def test_a_model_whose_memory_is_in_another_order_is_written_too(tmp_path: Path) -> None:
    def filters() -> nn.Module:
        body = [nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(32, 2)]
        return nn.Sequential(*body).to(memory_format=torch.channels_last)

    g = torch.Generator().manual_seed(0)
    data = [(torch.randn(6, 64, generator=g), torch.randint(0, 2, (6,), generator=g))] * 2
    for method in ("FedAvg()", "FedPara(FedAvg(), rank=2)"):
        result = tw.simulate(tw.parse(method), filters, data, 1, out=tmp_path / method[:6], workers=1)
        found = load_file(tmp_path / method[:6] / "model.safetensors")
        assert found["1.weight"].equal(result.module.state_dict()["1.weight"])


def frozen(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    module[0].requires_grad_(False)
    nn.init.constant_(module[0].weight, value)
    return module


def test_a_run_of_other_data_or_other_frozen_weights_is_another_run(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(), 2, out=tmp_path)
    with pytest.raises(RunError, match="is another run: its data is"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(seed=9), 3, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="is another run: its model is"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.2), tasks(), 3, out=tmp_path, resume=True)
    with pytest.raises(RunError, match="has 2 rounds already: rounds=1 would be fewer"):
        tw.simulate(tw.FedAvg(), lambda: frozen(0.1), tasks(), 1, out=tmp_path, resume=True)


def resumed(folder: Path, rounds: int = 3, **options) -> tw.Result:
    return tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), rounds, out=folder, resume=True, **options)


CHANGED = {  # of the second line of a file
    "a number": ("ledger.jsonl", lambda line: line.replace('"payload": ', '"payload": 1')),
    "a name": ("ledger.jsonl", lambda line: line.replace('"payload"', '"bytes"')),
    "its damage": ("ledger.jsonl", lambda line: line[:-9]),
    "no line": ("ledger.jsonl", lambda line: ""),
    "a loss": ("rounds.jsonl", lambda line: line.replace('"train_loss": ', '"train_loss": 1')),
    "a field": ("rounds.jsonl", lambda line: line.replace("up_bytes", "up_byte")),
}


@pytest.mark.parametrize("change", CHANGED)
def test_lines_that_are_not_those_that_were_written_are_refused(change: str, tmp_path: Path) -> None:
    name, changed = CHANGED[change]
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    path = tmp_path / name
    good = path.read_text()
    lines = good.splitlines()
    assert changed(lines[1]) != lines[1]
    text = "\n".join([lines[0], changed(lines[1]), *lines[2:]]) + "\n"
    path.write_text(text)
    where = r" \(line 2 is damaged\)" if change in ("its damage", "no line") else ""
    with pytest.raises(
        RunError, match=rf"{name} is not what this run wrote up to round 2{where}: put it back as it was"
    ):
        resumed(tmp_path)
    assert path.read_text() == text  # nothing was lost by looking
    path.write_text(good + '{"round": 3, "cli')  # a kill cut it short
    assert len(resumed(tmp_path).rounds) == 3


def test_a_ledger_of_an_older_version_is_read_and_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 2, out=tmp_path)
    folder = Folder(tmp_path)
    packet = folder.load()
    del packet["lines"]  # as it was before there were digests
    folder.save(packet)
    path = tmp_path / "ledger.jsonl"
    good = path.read_text()
    path.write_text(good.replace('"framing"', '"header"', 1))
    with pytest.raises(RunError, match=r"ledger.jsonl: line 1 is no entry of a ledger .*'header'"):
        resumed(tmp_path)
    path.write_text(good)
    assert len(resumed(tmp_path).rounds) == 3


def test_a_run_that_goes_on_with_other_versions_says_so(tmp_path: Path, caplog) -> None:
    tw.simulate(tw.FedAvg(up=LBGM()), linear, tasks(), 1, out=tmp_path)
    path = tmp_path / "run.json"
    about = json.loads(path.read_text())
    (now,) = about["versions"]
    assert now == f"thinwire {code_version()}, torch {torch.__version__}"
    resumed(tmp_path, 2)
    assert json.loads(path.read_text())["versions"] == [now]
    assert not caplog.records
    path.write_text(json.dumps({**about, "versions": ["thinwire 0.0.9, torch 1.0"]}))
    resumed(tmp_path, 3)
    assert f"{tmp_path} was made with thinwire 0.0.9, torch 1.0 and goes on with {now}" in caplog.text
    assert json.loads(path.read_text())["versions"] == ["thinwire 0.0.9, torch 1.0", now]
    caplog.clear()
    del about["versions"]  # as it was before they were recorded
    path.write_text(json.dumps(about))
    resumed(tmp_path, 4)
    assert not caplog.records
