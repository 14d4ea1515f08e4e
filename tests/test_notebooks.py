"""The notebooks of examples/notebooks: their cells run one after another, and their badges open them."""

from __future__ import annotations

import json
import re
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from places import ROOT

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_four_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first-adapter", "first-comparison", "first-method", "look-at-a-run"]


@pytest.mark.slow
@each
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_the_cells_of_a_notebook_run_as_they_are(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "notebook", notebook := types.ModuleType("notebook"))
    adapters = path.stem == "first-adapter"
    if adapters:
        pytest.importorskip("peft")
        from tiny import small_news
    with mpl.rc_context({"backend": "agg"}), small_news(tmp_path) if adapters else nullcontext():
        for number, code in enumerate(cells(path, "code")):
            exec(compile(code, f"{path.name}, cell {number}", "exec", dont_inherit=True), vars(notebook))
        plt.close("all")
    told = capsys.readouterr().out
    if adapters:
        assert "the same logits: True" in told
        assert float(re.search(r"bytes of [\d,]+: ([\d.]+)%", told)[1]) <= 1
    elif path.stem == "first-comparison":
        rows = {row[0]: row for row in map(str.split, told.splitlines()[1:])}
        assert int(rows["TopK"][2]) < int(rows["LBGM"][2]) < int(rows["FedAvg"][2])
        assert rows["TopK"][3] == rows["LBGM"][3] == rows["FedAvg"][3]
        assert float(rows["FedAvg"][1]) > 0.5  # ten digits
    elif path.stem == "first-method":
        dense, sparse = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) bytes up", told))
        assert sparse < dense / 4
    else:
        assert re.search(r"^240 tests, \d+ % of them sent one number$", told, re.M)  # 5 clients, 4 layers, 12 rounds
        assert {"components.png", "look_back.png"} <= {figure.name for figure in tmp_path.rglob("*.png")}


@each
def test_a_notebook_holds_no_output_and_begins_with_its_badge(path: Path) -> None:
    whole = json.loads(path.read_text())
    assert whole["nbformat"] == 4
    assert [cell for cell in whole["cells"] if cell.get("outputs") or cell.get("execution_count")] == []
    assert cells(path, "markdown")[0].splitlines()[2].startswith("[![Open in Colab](")
    assert f"/examples/notebooks/{path.name})" in cells(path, "markdown")[0]


def test_every_badge_opens_a_notebook_of_the_one_repository_that_the_site_names() -> None:
    named = re.search(r"^  repository: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.M)
    assert named
    pages = [ROOT / "README.md", *(ROOT / "docs/tutorials").glob("*.md"), *NOTEBOOKS]
    opened = []
    for page in pages:
        for there in re.findall(r"colab\.research\.google\.com/github/([^)\s\"]+)", page.read_text()):
            prefix = f"{named[1]}/blob/main/"
            assert there.startswith(prefix), page.name
            assert (ROOT / there.removeprefix(prefix)).is_file(), page.name
            opened.append(page.name)
        assert "thinwire[data]" not in page.read_text()  # the command line and curves are extras of their own
        for there in re.findall(r"git\+https://github\.com/([\w/-]+)", page.read_text()):
            assert there == named[1], page.name
    assert {"README.md", "first-method.md", *(path.name for path in NOTEBOOKS)} <= set(opened)


def test_the_method_of_the_notebook_is_that_of_the_tutorial() -> None:
    (code,) = (
        code for code in cells(ROOT / "examples/notebooks/first-method.ipynb", "code") if "class FedNova" in code
    )
    assert f"```python\n{code}\n```" in (ROOT / "docs/tutorials/first-method.md").read_text()
