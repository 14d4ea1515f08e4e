"""What the pages say works, works: their code is run."""

import ast
import functools
import importlib.util
import json
import os
import posixpath
import re
import runpy
import shlex
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict

import pytest
import torch

import thinwire as tw
from places import ROOT
from processes import thinwire
from tables import LINKS
from thinwire.cli import app
from thinwire.expression import vocabulary
from thinwire.problem import standard


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def fednova(tmp_path, monkeypatch):
    """The tutorial's method, imported from a file as its reader would write it."""
    code = next(block for block in blocks("docs/tutorials/first-method.md") if "class FedNova" in block)
    (tmp_path / "fednova.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fednova", raising=False)
    import fednova

    assert len(code.splitlines()) <= 40
    return fednova.FedNova


@pytest.mark.slow
def test_the_method_of_the_tutorial_learns_over_any_link(fednova):
    problem = standard("digits", clients=20, seed=0)
    arguments = {"rounds": 20, "sample": 10, "test": problem.test, "evaluate_every": 20}
    method = fednova(tw.LocalSGD(0.3), up=tw.ErrorFeedback(tw.TopK(0.1)))
    result = tw.simulate(method, problem.model, problem.tasks, **arguments)
    assert result.accuracy > 0.7
    assert repr(method) == "FedNova(LocalSGD(0.3), up=ErrorFeedback(TopK(0.1)))"


def test_the_method_of_the_tutorial_is_fedavg_when_all_clients_take_the_same_number_of_steps(fednova):
    problem = standard("digits", clients=20, seed=0)
    local = tw.LocalSGD(0.1, steps=3)
    nova = tw.simulate(fednova(local), problem.model, problem.tasks, rounds=3, sample=5)
    plain = tw.simulate(tw.FedAvg(local), problem.model, problem.tasks, rounds=3, sample=5)
    assert torch.allclose(nova.params.flat, plain.params.flat, atol=1e-6)
    assert not torch.equal(nova.params.flat, problem_start(problem))


def test_the_method_of_the_tutorial_is_not_fedavg_when_they_do_not(fednova):
    problem = standard("digits", clients=10, split=tw_split(), seed=0)
    local = tw.LocalSGD(0.1)
    nova = tw.simulate(fednova(local), problem.model, problem.tasks, rounds=2)
    plain = tw.simulate(tw.FedAvg(local), problem.model, problem.tasks, rounds=2)
    assert (nova.params - plain.params).norm() > 0.01


@pytest.mark.soak
def test_the_method_of_the_tutorial_is_typed_with_use(fednova, tmp_path):
    run = ["run", "FedNova(up=TopK(0.1))", "--use", "fednova", "--clients", "4", "--rounds", "2", "--out", "run"]
    done = thinwire(*run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "FedNova(up=TopK(0.1))" in (tmp_path / "run/table.md").read_text()
    done = thinwire("resume", "run", "--rounds", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = thinwire("predict", "FedAvg()", "--use", "nowhere", cwd=tmp_path)
    said = (
        "error: --use nowhere: there is no module nowhere in this folder or on the Python path; type the command where"
    )
    assert done.stderr == f"{said} nowhere is, or put its folder into PYTHONPATH\n"


@pytest.mark.slow
def test_the_method_of_the_tutorial_becomes_one_of_thinwires_own(fednova, tmp_path):
    package = tmp_path / "src/thinwire"
    shutil.copytree(ROOT / "src/thinwire", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.move(tmp_path / "fednova.py", package / "algorithms/fednova.py")
    path = package / "algorithms/__init__.py"
    listed = "from .fednova import FedNova\n\n__all__ = [\n    'FedNova',"
    path.write_text(path.read_text().replace("__all__ = [", listed, 1))
    code = "import thinwire; print(thinwire.parse('FedNova(up=TopK(0.1))'), thinwire.__file__)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(package.parent)}, capture_output=True, text=True
    )
    assert done.stdout == f"FedNova(up=TopK(0.1)) {package / '__init__.py'}\n", done.stderr


def test_the_link_of_the_tutorial_sends_one_bit_an_entry():
    code = next(block for block in blocks("docs/write-a-link.md") if "class Signs" in block)
    namespace = {"__name__": "signs"}
    exec(compile(code, "signs", "exec", dont_inherit=True), namespace)
    link = namespace["Signs"]()
    x = tw.Params.of([("a", torch.tensor([[0.5, -2.0], [0.0, -0.1]])), ("b", torch.randn(60))])
    packet, seen, _ = link.send(x, None, tw.Key(0))
    assert seen["a"].tolist() == [[1.0, -1.0], [1.0, -1.0]]
    data = tw.dumps(packet)
    assert len(data) == 18  # 9 of structure, 1 + 8 of bits
    assert torch.equal(link.recv(tw.loads(data), x.layout, None, tw.Key(0))[0].flat, seen.flat)


def test_the_link_of_the_tutorial_is_no_contraction_and_error_feedback_refuses_it():
    code = next(block for block in blocks("docs/write-a-link.md") if "class Signs" in block)
    count = next(block for block in blocks("docs/write-a-link.md") if "def count" in block)
    namespace = {"__name__": "signs"}
    exec(compile(code + "\n" + count, "signs", "exec", dont_inherit=True), namespace)
    with pytest.raises(tw.errors.CombinationError, match="contraction"):
        tw.ErrorFeedback(namespace["Signs"]())
    assert tw.ErrorFeedback(tw.ScaledSign())
    x = tw.Params.of([("a", torch.randn(64)), ("b", torch.randn(32))])
    packet, _, _ = namespace["Signs"]().send(x, None, tw.Key(0))
    assert namespace["Signs"]().floats(packet) == 3.0


def test_what_the_tutorial_says_of_params_is_so():
    code = next(block for block in blocks("docs/reference/method.md") if "x.layout.size" in block)
    exec(compile(code, "params", "exec", dont_inherit=True), {"__name__": "params"})


def test_the_median_of_the_tutorial_is_that_of_the_clients_models(tmp_path, monkeypatch):
    code = next(block for block in blocks("docs/write-a-method.md") if "class Median" in block)
    (tmp_path / "median.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "median", raising=False)
    import median

    problem, local = standard("digits", clients=3, seed=0), tw.LocalSGD(0.1, steps=3, batch=None)
    together = tw.simulate(median.Median(local), problem.model, problem.tasks, rounds=1)
    alone = [tw.simulate(tw.FedAvg(local), problem.model, [task], rounds=1) for task in problem.tasks]
    middle = torch.stack([result.params.flat for result in alone]).sort(0).values[1]
    assert torch.allclose(together.params.flat, middle, atol=1e-6)


def tutorial(name, tmp_path, monkeypatch):
    """A class of the tutorial, from a file of its own."""
    code = next(block for block in blocks("docs/write-a-method.md") if f"class {name}" in block)
    (tmp_path / f"{name.lower()}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name.lower(), raising=False)
    return getattr(importlib.import_module(name.lower()), name)


def test_the_personal_model_of_the_tutorial_is_evaluated_where_it_lies(tmp_path, monkeypatch):
    problem = standard("digits", clients=3, seed=0)
    method = tutorial("Aside", tmp_path, monkeypatch)(tw.LocalSGD(0.1))
    result = tw.simulate(method, problem.model, problem.tasks, rounds=2, client_tests=problem.tasks)
    shared, own = (tw.Params.trainable(module) for module in (result.module, result.personal(2)))
    assert (shared - own).norm() > 0.1
    assert result.rounds[-1]["client_loss"] < 2.3  # ln 10: knowing nothing


def test_the_server_of_the_tutorial_that_writes_to_single_clients_is_fedavgs(tmp_path, monkeypatch):
    problem, local = standard("digits", clients=3, seed=0), tw.LocalSGD(0.1, steps=3)
    noted = tutorial("Noted", tmp_path, monkeypatch)(local)
    found = [tw.simulate(m, problem.model, problem.tasks, rounds=2) for m in (noted, tw.FedAvg(local))]
    assert torch.equal(*(result.params.flat for result in found))
    assert found[0].bytes_down > found[1].bytes_down


def test_the_wrapper_of_the_tutorial_is_fedprox_around_fedavg(tmp_path, monkeypatch):
    problem, local = standard("digits", clients=3, seed=0), tw.LocalSGD(0.1)
    pulled = tutorial("Pulled", tmp_path, monkeypatch)(tw.FedAvg(local), mu=0.3)
    found = [tw.simulate(m, problem.model, problem.tasks, rounds=2) for m in (pulled, tw.FedProx(local, mu=0.3))]
    assert torch.equal(*(result.params.flat for result in found))


def test_every_field_of_a_request_and_every_flag_of_a_link_is_in_the_reference():
    page = "".join((ROOT / f"docs/reference/{name}.md").read_text() for name in ("method", "link"))
    said = set(re.findall(r"^\| `(\w+)`", page, re.M))
    assert set(tw.Local._fields) <= said
    flags = {name for cls in (tw.Link, tw.Codec) for name, value in vars(cls).items() if type(value) is bool}
    assert flags == {"linear", "contraction", "memory", "absolute", "sparse", "feedback", "grows", "packed"}
    assert flags <= said
    assert set(re.findall(r"`(\w+)`, ", page)) >= {"x", "steps", "loss", "rates"}
    assert all(f"`{name}`" in page for name in tw.Trained._fields)


def test_the_task_of_the_readme_is_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    (tmp_path / "my_parts.py").write_text(next(block for block in blocks("README.md") if "make_task" in block))
    words = ["run", "FedAvg()", "--task", "my_parts:make_task", "--clients", "4", "--rounds", "1", "--json"]
    assert not app([*words, "--workers", "1"], standalone_mode=False)
    # a reply: 14 floats, and what surrounds them
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert 4 * 14 * 4 < rows[0]["bytes_up"] < 4 * 14 * 4 + 4 * 120


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks("README.md"):
        if named := re.match(r"# (my_\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            monkeypatch.delitem(sys.modules, named[1], raising=False)
    text = (ROOT / "README.md").read_text()
    commands = commands_of(text)
    assert [words[words.index("--out") + 1] for words in commands] == ["runs/first", "runs/mine", "runs/own"]
    for words in commands:
        short = [*words[1:], "--workers", "1"]
        short[short.index("--rounds") + 1] = "2"
        assert not app(short, standalone_mode=False)
    replicated, pipelined = re.findall(r"`thinwire ((?:ddp-sim|pipeline run) [^`]+)`", text)
    for line, out in ((replicated, "runs/ddp"), (pipelined, "runs/parts")):
        assert not app([*shlex.split(line), "--steps", "2", "--out", out], standalone_mode=False)
    table = (tmp_path / "runs/own/table.md").read_text()
    assert all(f"`{name}`" in table for name in ("Clipped(most=0.05)", "FedAvg(up=Steps(0.001))"))
    capsys.readouterr()


def test_the_readme_begins_with_the_picture_and_the_result_and_has_a_hundred_lines_at_most():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert lines[2].startswith("![Accuracy against the bytes")
    assert lines[4].startswith("On Fashion-MNIST `FedAvg()` ends at ")
    assert len(lines) <= 100
    assert max(len(re.sub(r"https://[^)]+", "", line)) for line in lines) <= 120


def test_what_the_page_of_def_says_of_its_rule_for_lambda_is_in_the_results():
    ends = {row[1].strip(): [float(cell.split()[0]) for cell in row[3:8]] for row in lines_of_table("def-ranks")[2:]}
    assert list(ends) == ["2", "4", "8", "16"]
    ahead = [round(rule - max(constants), 1) for rule, *constants in ends.values()]
    assert "within half a point of the best of four constants with 2, 4 and 8 ranks" in said("docs/methods/def.md")
    assert min(ahead[:3]) >= -0.5
    assert "and ahead of all four with 16" in said("docs/methods/def.md")
    assert ahead[3] > 0


def lines_of_table(name: str) -> list[list[str]]:
    """The cells of a table, with an empty one at both ends."""
    return [line.split("|") for line in tables.TABLES[name]()]


def test_the_figures_of_the_readme_and_of_the_page_of_all_that_was_measured_are_those_of_the_results():
    page, overview = said("README.md"), said("docs/measured/index.md")
    measured = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.TABLES["one-percent"]()]
    rows = {row[1]: row for row in measured if row[0] == "Fashion-MNIST"}
    for name, row in (("FedAvg()", rows["FedAvg"]), ("Auto(0.01)", rows["Auto, 0.01"])):
        _, _, rest = page.partition(f"`{name}`" + (" ends" if name == "FedAvg()" else ","))
        figures = re.search(r"at ([\d.]+ ± [\d.]+ %) with ([\d.,]+) MB up and ([\d.,]+) MB down", rest)
        assert (row[2], *figures.groups()) == ("3", row[3], row[7], row[8])
    behind = {row[0]: row[4].split()[0].lstrip("-") for row in measured if row[1] == "Auto, 0.01"}
    share = max(row[9] for row in measured if row[1] == "Auto, 0.01")
    told = "is {CIFAR-10} points behind on CIFAR-10, {EMNIST letters} on EMNIST letters, {Shakespeare} on Shakespeare."
    assert f"At up to {share} of the bytes it {told.format(**behind)}" in overview
    local = {row[1].strip(): [cell.strip() for cell in row[2:]] for row in lines_of_table("local-steps")}
    dense, thin, plain = (local[name] for name in ("dense", "`DetachedLoCo(20)`", "`LocalSGD(20)`"))
    given = f"{thin[0]} bytes a step each way in place of {dense[0]}"
    for text, loss in (
        (page, f"its loss is {thin[3]} over"),
        (overview, f"the loss of a character model is {thin[3]} over"),
    ):
        assert given in text
        assert f"after 600 steps {loss} that of dense training, {dense[3]}" in text.replace("After 600", "after 600")
    assert all(row[0] == row[1] for row in (dense, thin, plain))  # each way
    assert f"With four ranks 600 steps cost {thin[4]}." in overview
    far = [[cell.strip() for cell in row] for row in lines_of_table("local-steps-farther")]
    large, long = (far[0].index(name) for name in ("4 M parameters, 2 ranks, 800 steps", "2 ranks, 3,000 steps"))
    cells = {row[1]: row for row in far}
    thin = cells["`DetachedLoCo(20)`"]
    both = [re.split(r" \(1\), ", row[large].removeprefix("+")) for row in (thin, cells["`LocalSGD(20)`"])]
    assert f"After 3,000 steps that of `DetachedLoCo(20)` is {thin[long].split(',')[0]} over it" in overview
    farther = f"the two are {both[0][0]} and {both[1][0]} over, at {both[0][1]} and {both[1][1]} of the bytes"
    assert f"With 4 M parameters, 800 steps and one seed {farther}" in overview
    assert f"`LocalSGD(20)`, {plain[0]} bytes each way, it is {plain[3]} over" in overview
    found = {row[1]: row for row in lines_of_table("ddp-time")}
    thin, dense = found[" `DEFA(64)` "], found[" `Hook(Dense())` "]
    assert f"need{thin[4]}s to 58 % on CIFAR-10 with{thin[1].rstrip()}" in overview
    assert f"{thin[3].strip()} bytes a step and rank each way" in overview
    assert f"and{dense[4]}s with dense gradients, at{dense[3]}bytes each way" in overview
    assert f"{dense[6].split()[0]} % to {thin[6].split()[0]} %" in overview
    runs = trained("def")
    dense, ours = (
        mean([x["accuracy_mean_of_last_5"] for x in runs["two ranks", row].values()]) for row in ("dense", "DEF")
    )
    assert f"after 12,000 by {dense.split()[0]} % to {ours.split()[0]} %." in overview


def test_what_is_said_of_adapters_is_in_their_table():
    cells = [[cell.strip() for cell in row[1:-1]] for row in lines_of_table("adapters")]
    rows = {tuple(row[:2]): row[3:] for row in cells}
    page = said("docs/measured/index.md")
    for name in ("AG News", "SST-2"):
        dense, thin = rows[name, "FedAvg"], rows[name, "Auto(0.01)"]
        assert dense[0] == thin[0] == "3"  # seeds
        if name == "SST-2":
            assert f"On SST-2 they end at {dense[1]} and {thin[1]} (three seeds each)" in page
            continue
        assert f"on AG News `FedAvg()` ends at {dense[1]} with {dense[2]} MB up and {dense[3]} MB down" in page
        assert f"`Auto(0.01)` at {thin[1]} with {thin[2]} MB up and {thin[3]} MB down" in page
    dense, thin = (rows["PersonaChat", row] for row in ("FedAvg", "Auto(0.01)"))
    assert dense[0] == thin[0] == "1"
    assert f"after 10 rounds is {dense[1].split()[1]} and {thin[1].split()[1]} (one seed)" in page
    longer = [rows["PersonaChat, 30 rounds", row] for row in ("FedAvg", "Auto(0.01)")]
    assert "after 30 rounds {} and {}.".format(*(row[1].split()[1] for row in longer)) in page
    adapters, figures = said("docs/measured/adapters.md"), [[float(row[1].split()[1]) for row in (dense, thin)]]
    figures.append([float(row[1].split()[1]) for row in longer])
    assert {f"{100 * (slim / whole - 1):.1f}" for whole, slim in figures} == {"0.5"}
    assert "perplexity is .5 % higher with `Auto(0.01)` than with `FedAvg()`, and after 30 rounds too" in adapters
    assert longer[0][0] == longer[1][0] == "1"
    whole, slim = (f"{row[1].split()[1]} with {row[2]} MB up and {row[3]} MB down" for row in longer)
    assert f"{slim}, for {whole} (one seed)" in adapters


def test_what_is_said_of_rivals_and_rounds_of_adapters_is_in_their_lines():
    page, lines = said("docs/measured/adapters.md"), of_experiments("hf", "adapters")
    news = [line for line in lines if line["setting"]["name"] == "AG News" and "base" in line["setting"]]
    seed = {
        line["row"]: 100 * line["accuracy_mean_of_last_5"]
        for line in news
        if (line["kind"], line["seed"]) == ("run", 0)
    }
    behind = {row: round(seed["FedAvg"] - reached, 1) for row, reached in seed.items()}
    told = (
        f"`Intrinsic` and LUAR over coded messages end {behind['Intrinsic']} and {behind['LUAR, coded']} points behind"
    )
    assert f"{told} `FedAvg()`'s {seed['FedAvg']:.1f} % with the same seed" in page
    top = [row for row in seed if row.lower().startswith("topk") or row.startswith("top-k")]
    assert (len(top), f"and top-k {min(behind[row] for row in top)} or more" in page) == (4, True)
    assert f"`Auto(0.01)` ends at {seed['Auto(0.01)']:.1f} %" in page
    assert all(seed[row] < seed[f"{row}, no error feedback"] for row in ("TopK both ways", "top-k in 4 bits"))
    thin, whole = (
        next(line for line in lines if line["row"] == row and line["setting"]["clients"] == 680)
        for row in ("Auto(0.01)", "FedAvg")
    )
    more = thin["perplexity_mean_of_last_5"] / whole["perplexity_mean_of_last_5"] - 1
    paid = [f"{line[f'bytes_{way}'] / 1e6:.2f} MB {way}" for line in (thin, whole) for way in ("up", "down")]
    told = "is {:.1f} % higher with `Auto(0.01)` than with `FedAvg()`, for {} and {} in place of {} and {} (one seed)"
    assert told.format(100 * more, *paid) in page
    many, few = (
        next(
            x
            for x in lines
            if (x["row"], x["kind"], x["setting"]["name"]) == ("Intrinsic", "run", f"PersonaChat{name}")
        )
        for name in (", 680 personas", "")
    )
    ends = [f"{line['perplexity_mean_of_last_5']:.2f}" for line in (many, few)]
    assert "`Intrinsic` ends at {} there and at {} with 20 clients".format(*ends) in page
    tried = {
        line["rate"]: line["perplexity_mean_of_last_5"]
        for line in lines
        if (line["row"], line["kind"], line["setting"]["name"]) == ("Intrinsic", "rate", "PersonaChat")
    }
    assert (tried.keys(), min(tried, key=tried.get), few["rate"], many["rate"]) == ({1, 4, 16}, 4, 4, 4)
    rows = {
        (row[1].strip(), int(row[2])): [cell.strip() for cell in row[4:7]]
        for row in lines_of_table("adapters-rounds")[2:]
    }
    gap = lambda name, at, dense: float(rows[name, at][2]) - float(rows[name, dense][0])  # noqa: E731
    early = [
        points(-gap(name, at, at) / 100)
        for name, at in (("AG News", 8), ("AG News", 16), ("AG News", 24), ("SST-2", 12))
    ]
    told = "{} points behind FedAvg after 8 rounds, {} after 16 and {} after 24, and on SST-2 {} after 12 rounds"
    assert told.format(*early) + " (means of three seeds)" in page
    swings = [points(-gap("AG News", 40, 40) / 100), points(-gap("SST-2", 36, 36) / 100)]
    assert "it is {} behind after 40 rounds of AG News and {} after 36 of SST-2".format(*swings) in page
    assert f"its perplexity is {gap('PersonaChat', 8, 8):.1f} above after 8 rounds (one seed)" in page
    last = {tuple(cell.strip() for cell in row[1:3]): row[4:6] for row in lines_of_table("adapters")[2:]}
    late = {}
    for name in ("AG News", "SST-2"):
        (seeds, thin), (others, dense) = last[name, "Auto(0.003), 2 times the rounds"], last[name, "FedAvg"]
        assert int(seeds) == int(others) == 3
        late[name] = (float(thin.split()[0]) - float(dense.split()[0])) / 100
        assert 100 * abs(late[name]) <= max(float(row.split()[2]) for row in (thin, dense))
    told = (
        f"is {points(-late['AG News'])} points below FedAvg's on AG News and {points(late['SST-2'])} above it on SST-2"
    )
    assert f"After twice the rounds the mean of its last five evaluations {told}, neither more than the" in page
    assert f"it is {points(-gap('PersonaChat', 16, 10) / 100)} below FedAvg's 10 rounds after 16" in page


def test_what_the_page_of_intrinsic_compression_says_of_fine_tuning_is_in_its_lines():
    page, dims = said("docs/claims/intrinsic.md"), ("200", "800", "3,200", "12,800", "25,600")
    lines = [line for line in of_experiments("hf", "adapters") if line["setting"]["name"] == "SST-2, IID"]
    rows = {line["row"]: line for line in lines if line["kind"] == "run"}
    assert {line["seed"] for line in rows.values()} == {0}
    reached = {row: 100 * line["accuracy_mean_of_last_5"] for row, line in rows.items()}
    static, varying = ([f"Intrinsic, d = {d}{way}" for d in dims] for way in ("", ", time-varying"))
    whole = rows["FedAvg, all of MiniLM"]
    assert (
        f"ends at {mean([whole['accuracy_mean_of_last_5']])} on SST-2 with FedAvg, for {sent(whole)[0]} MB each" in page
    )
    told = "end at {} % with d = 200, {} % with 800, {} % with 3,200, {} % with 12,800 and {} % with 25,600"
    assert told.format(*(f"{reached[row]:.1f}" for row in static)) in page
    assert ".11 % of all parameters, for {} MB up and {} MB down".format(*sent(rows[static[-1]])) in page
    assert round(25_600 / 22_713_986, 4) == 0.0011
    ahead = [f"{reached[v] - reached[s]:.1f}".replace("0.", ".") for v, s in zip(varying, static, strict=True)]
    told = "ahead by {} points with d = 200, {} with 800, {} with 3,200, {} with 12,800 and {} with 25,600"
    assert told.format(*ahead) in page
    more = [rows[v]["bytes_down"] / rows[s]["bytes_down"] for v, s in zip(varying, static, strict=True)]
    assert f"for {min(more):.1f} to {max(more):.1f} times the bytes down" in page
    eight = [
        reached[f"Intrinsic, K = 8, for the bytes of d = {d}"] - reached[s] for d, s in zip(dims, static, strict=True)
    ]
    behind, best = sorted(-x for x in eight)[1:], max(eight)
    assert f"are {behind[0]:.1f} to {behind[-1]:.1f} points behind it, and {best:.1f} ahead with d = 12,800" in page
    assert eight[3] == best
    trials = {d: {} for d in dims}
    for line in lines:
        if line["kind"] == "rate":
            trials[line["row"].removeprefix("Intrinsic, d = ")][line["rate"]] = line["accuracy_mean_of_last_5"]
    assert all(some.keys() == {4, 16, 64} and max(some, key=some.get) == 16 for some in trials.values())
    assert "16 times as long as FedAvg's, which was the best of 4, 16 and 64 for the static subspace of each d" in page
    gaps = [reached[v] - reached[s] for v, s in zip(varying, static, strict=True)]
    assert gaps[0] > 9 > 1.3 > max(map(abs, gaps[1:]))
    assert max(trials["200"].values()) < 0.505 < min(max(some.values()) for d, some in trials.items() if d != "200")


def test_every_measured_page_is_in_the_list_of_what_was_measured():
    page = (ROOT / "docs/measured/index.md").read_text()
    there = {path.name for path in (ROOT / "docs/measured").glob("*.md")} - {"index.md"}
    assert {name for name in there if f"]({name})" not in page} == set()


def test_what_the_page_of_local_steps_says_in_words_is_in_its_table():
    assert "`LocalSGD(20)`, which sends 230 times as much" in said("docs/methods/local-steps.md")
    rows = {row[1].strip().strip("`"): row[2:] for row in lines_of_table("local-steps")[2:]}
    table = {name: row for name, row in rows.items() if not name.startswith("dense")}
    given = {name: int(row[0].replace(",", "")) for name, row in table.items()}
    assert round(given["LocalSGD(20)"] / given["DetachedLoCo(20)"]) == 230

    def over(name, column):
        return float(table[name][column].split()[0])

    sparse = [name for name in table if name.startswith("SparseLoCo(20)") and "messages" not in name]
    assert len(sparse) == 4
    few, ranks, many = 3, 4, 5
    for column in (few, ranks, many):
        assert over("DetachedLoCo(20)", column) < over("LocalSGD(20)", column)
        assert over("DetachedLoCo(20)", column) < min(over(name, column) for name in sparse)
    assert all(over(name, many) < over(name, few) for name in ("LocalSGD(20)", "DetachedLoCo(20)", *sparse))
    assert over("DetachedLoCo(20)", many) < 0
    assert abs(over("DetachedLoCo(20)", few)) < float(table["DetachedLoCo(20)"][few].split()[2])  # seeds' deviation
    assert "a ten thousandth of dense bytes, with two ranks, it still is ahead of both" in said(
        "docs/methods/local-steps.md"
    )
    assert int(table["DetachedLoCo(20, share=0.0043)"][2].strip().removeprefix("1/").replace(",", "")) > 10_000
    assert over("DetachedLoCo(20, share=0.0043)", few) < over("LocalSGD(20)", few) < min(over(n, few) for n in sparse)
    parts = "(20, lam=0.0): not detached", "(20, decay=0.95)", "(20) with SparseLoCo's messages"
    assert all(over(f"DetachedLoCo{part}", few) > over("DetachedLoCo(20)", few) for part in parts)
    assert over("SparseLoCo(20) with the messages of DetachedLoCo", few) < over("SparseLoCo(20)", few)
    alone = over("DetachedLoCo(20, lam=0.0): not detached", few)  # "most of the lead is theirs"
    assert over("SparseLoCo(20)", few) - alone > 2 * (alone - over("DetachedLoCo(20)", few)) > 0


def test_what_the_page_of_local_steps_says_of_the_first_steps_is_in_the_results():
    lines = [line for line in written("experiments/local_steps/results/shakespeare.jsonl") if line["width"] == 128]
    lines = [line for line in lines if (line["ranks"], line["steps"], line["lr"]) == (2, 600, 0.004)]
    rows = "DetachedLoCo(20)", "DEF(TransformCoding(3340), steps=20)"
    own, other = ({line["seed"]: dict(line["curve"]) for line in lines if line["row"] == row} for row in rows)
    assert own.keys() == other.keys() == {0, 1, 2}
    behind = {step: [own[seed][step] - other[seed][step] for seed in own] for step in range(100, 700, 100)}
    first, second = (f"{min(behind[step]):.2f} to {max(behind[step]):.2f}".replace("0.", ".") for step in (100, 200))
    told = (
        f"`DetachedLoCo(20)` is {first} behind `{rows[1]}` after 100, {second} after 200, and ahead of it from 300 on"
    )
    assert told in said("docs/methods/local-steps.md")
    assert max(max(behind[step]) for step in range(300, 700, 100)) < 0


def test_what_the_page_of_local_steps_says_of_the_time_to_a_loss_is_in_its_table():
    rows = {row[1].strip().strip("`"): [cell.strip() for cell in row[2:]] for row in lines_of_table("local-steps-time")}
    steps = {name: int(row[0]) for name, row in rows.items() if name not in ("method", "---")}
    assert (
        steps["DetachedLoCo(5)"] < steps["DetachedLoCo(10)"] < steps["DetachedLoCo(20)"]
    )  # shorter rounds, fewer steps
    slow, fast, took, alone = (rows["DetachedLoCo(5)"][column] for column in (2, 5, 4, 6))
    page = said("docs/methods/local-steps.md")
    assert (
        f"is there after {slow[1:]} of the time that dense training takes, and at 100 Mbit/s after {fast[1:]}" in page
    )
    assert 0.45 < float(alone.split()[0]) / float(took.split()[0]) < 0.55  # half of its time is computing


def test_what_the_decision_on_auto_says_of_views_is_in_the_results():
    lines = list(map(json.loads, (ROOT / "experiments/onepercent/results/views.jsonl").read_text().splitlines()))
    assert len(lines) == 4
    page = said("docs/decisions/0020-a-method-that-a-run-chooses.md")
    for field, told in (("moved", "it moved {} to {} times as far"), ("mean", "it was off by {} to {} of that")):
        values = sorted(line[field] for line in lines)
        assert told.format(f"{values[0]:.2f}", f"{values[-1]:.2f}") in page


def test_what_the_page_of_auto_says_of_rates_is_in_the_results():
    lines = list(map(json.loads, (ROOT / "experiments/onepercent/results/curve.jsonl").read_text().splitlines()))
    lost = {(x["setting"]["name"], x["row"], x["rate"]) for x in lines if x["kind"] == "run" and "diverged" in x}
    assert {(name, rate) for name, row, rate in lost if row != "DeComFL, 100"} == {("Fashion-MNIST", 0.2)}
    assert "with one of the three seeds was not taken: that was 0.2 on Fashion-MNIST." in said("docs/methods/auto.md")
    assert {rate for _, row, rate in lost if row == "DeComFL, 100"} == {0.003}
    assert "At 0.003, the rate that was chosen for DeComFL, it diverged with seed 0" in said("docs/methods/auto.md")
    tested = {x["setting"]["name"]: x["setting"]["tested"] for x in lines}
    assert tested.pop("Shakespeare") == 1000
    assert set(tested.values()) == {4000}
    runs = of_best_rate(line for line in lines if line["kind"] == "run")
    for (name, row), some in runs.items():
        if row == "DeComFL, 100":
            assert {line["rate"] for line in some} == {0.001}
        if row.startswith("Auto"):
            assert {line["rate"] for line in some} == {line["rate"] for line in runs[name, "FedAvg"]}, (name, row)


def test_what_the_page_of_auto_says_of_budgets_and_rivals_is_in_its_table():
    page, percent = said("docs/methods/auto.md"), {}
    for row in (line.split(" | ") for line in tables.TABLES["one-percent"]()):
        percent.setdefault(row[0].lstrip("| "), {})[row[1]] = row
    fashion = percent["Fashion-MNIST"]
    assert {fashion[f"Auto, {budget}"][2] for budget in ("0.1", "0.05", "0.02", "0.01", "0.004", "0.002", "0.001")} == {
        "3"
    }
    few = "0.004", "0.002", "0.001"
    behind = [fashion["Auto, 0.01"], *(fashion[f"Auto, detached, {budget}"] for budget in few)]
    first, *others = [(row[4].split()[0].lstrip("-"), row[-1].rstrip(" |")) for row in behind]
    middle, last = ", ".join(f"{points} at {share}" for points, share in others[:-1]), " at ".join(others[-1])
    assert f"`Auto` is {first[0]} points behind FedAvg at {first[1]}, {middle} and {last}." in page
    *most, least = [fashion[f"Auto, {budget}"][4].split()[0].lstrip("-") for budget in few]
    assert f"it is {', '.join(most)} and {least} points behind there" in page
    assert f"ends at {float(fashion['DeComFL, 100'][3].split()[0]):.0f} %: a method without gradients" in page
    lbgm, luar = "LBGM, coded, 0.2, even", "LUAR, coded, 0.25, even"
    best = {"CIFAR-10": lbgm, "EMNIST letters": luar, "Fashion-MNIST": "Intrinsic, 0.01", "Shakespeare": lbgm}
    for name, rival in best.items():
        own, other = percent[name]["Auto, 0.01"], percent[name][rival]
        assert own[2] == other[2] == "3"
        ahead = [float(own[at].split()[0]) - float(other[at].split()[0]) for at in (3, 5)]
        told = [0.4, 0.3] if name == "Fashion-MNIST" else [0.0, 0.0]  # of rounded figures
        assert ahead == pytest.approx(told, abs=0.1001), (name, ahead)


def test_what_the_page_of_auto_says_of_what_clients_owe_alike_is_in_the_results():
    lines = list(map(json.loads, (ROOT / "experiments/onepercent/results/ahead.jsonl").read_text().splitlines()))
    common = {}
    for line in lines:
        assert line["ahead"] == (0.0 if line["name"] == "Shakespeare" else 0.5)
        common.setdefault(line["name"], []).append(line["common"])
    assert {name: len(some) for name, some in common.items()} == dict.fromkeys(common, 9)  # three seeds, three budgets
    text = common.pop("Shakespeare")
    assert len(common) == 3
    most = max(map(max, common.values()))
    page, decision = said("docs/methods/auto.md"), said("docs/decisions/0020-a-method-that-a-run-chooses.md")
    assert f"seeds {min(text):.0%} to {max(text):.0%} of".replace("% to", " to").replace("% of", " % of") in page
    assert f"on the other sets {100 * most:.0f} % at most" in page
    assert f"at most {most:.2f} is in common" in decision
    assert f"where {min(text):.2f} to {max(text):.2f} is" in decision


def test_every_method_of_the_table_of_expressions_can_be_typed():
    text = (ROOT / "docs/methods/index.md").read_text().partition("## What can be written")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    found = [word for row in rows for word in re.findall(r"`([^`]+)`", row) if "..." not in word]
    assert len(found) > 30
    for word in found:
        assert tw.parse(word)


@pytest.mark.slow
def test_what_a_prediction_on_the_page_of_methods_says_is_what_the_command_prints(capsys):
    text = (ROOT / "docs/methods/index.md").read_text()
    said = re.findall(r"^thinwire (predict .*?)  +# ([0-9.]+) up, ([0-9.]+) down$", text, re.M)
    assert len(said) == 2
    for command, *figures in said:
        app([*shlex.split(command), "--json"], standalone_mode=False)
        row = json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"][-1]
        assert [f"{row[way][1] / 1e6:.2f}" for way in ("bytes_up", "bytes_down")] == figures


def test_what_is_said_of_a_links_bytes_and_memory_is_of_what_the_benchmark_measures_in_its_order():
    # Every link has a setting to be measured (test_every_link); one that is new is said when the table is printed next.
    said = re.findall(
        r"^\| `(.+?)` \| [0-9,]+ \| [0-9.]+ \| [0-9.]+ \|$", (ROOT / "docs/measured/links.md").read_text(), re.M
    )
    assert len(said) > 30
    assert said == [text for row in LINKS for text in row.measured if text in said]


def test_whatever_names_a_paper_says_how_it_differs_from_it():
    from thinwire.ddp.methods import METHODS
    from thinwire.pipeline import AQSGD
    from thinwire.pipeline.schedule import SCHEDULES

    own = {**{f"ddp.{name}": cls for name, cls in METHODS.items()}, **SCHEDULES, "AQSGD": AQSGD}
    silent, named = [], {**vocabulary(), **own}
    for name, cls in named.items():
        said = [cls.__doc__, sys.modules[cls.__module__].__doc__]
        if cls.paper and not re.search(r"Differences from the\s(paper|thesis)", "".join(filter(None, said))):
            silent.append(name)
    assert silent == []


def test_the_three_kinds_of_training_are_named_where_thinwire_is_described():
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "README.md")]
    for text in [*texts, tw.__doc__]:
        assert [kind for kind in ("federated", "data-parallel", "pipelined") if kind not in text.lower()] == []


sys.path += [str(ROOT / "experiments"), str(ROOT / "docs")]
import code_names  # noqa: E402
import macros  # noqa: E402
import method_pages  # noqa: E402

# Under a name of its own: tests/tables.py is another table.
spec = importlib.util.spec_from_file_location("printed_tables", ROOT / "experiments/tables.py")
tables = sys.modules["printed_tables"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)
from pages import (  # noqa: E402
    mean,
    of_best_rate,
    sent,
)
from pages.claims import CLAIMS  # noqa: E402
from pages.pipelined import over_plan  # noqa: E402
from pages.verdict import verdict  # noqa: E402

METHOD_PAGES = sorted(path for path in (ROOT / "docs/methods").glob("*.md") if path.name != "index.md")
each_page = pytest.mark.parametrize("path", METHOD_PAGES, ids=lambda path: path.stem)
SECTIONS = ["The algorithm", "What crosses the wire", "When to use it", "Differences from the paper", "Try it"]


def commands_of(text):
    """The lines of its bash blocks, as words."""
    found = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    return [shlex.split(line) for block in found for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@each_page
def test_a_page_of_a_method_has_its_sections_and_its_macros_resolve(path):
    text = path.read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == SECTIONS
    assert method_pages.page(path).names
    assert "{{" not in macros.expand(text, path.name)


@each_page
def test_the_command_of_a_page_of_a_method_parses(path):
    from typer.main import get_command

    from thinwire.studies.data_parallel import method

    commands = commands_of(path.read_text().partition("## Try it")[2])
    assert commands
    for program, name, *words in commands:
        assert program == "thinwire"
        command = get_command(app).commands[name]
        context = command.make_context(name, list(words))
        for expression in context.params.get("methods", ()):
            assert method(expression) if name == "ddp-sim" else tw.parse(expression)


def test_every_method_and_link_has_a_page():
    pages = method_pages.pages()
    assert (ROOT / "docs/methods/index.md").exists()
    papers = [code_names.owner(word)[0] for path in METHOD_PAGES for word in papers_of(path)]
    assert [name for name in dict.fromkeys(papers) if papers.count(name) > 1] == []
    named = {name for page in pages for name in page.names}
    wanted = {name for name, kind in code_names.catalogued().items() if kind in code_names.PAGED}
    assert sorted(wanted - named) == []


def papers_of(path):
    return [word for call in method_pages.calls(path.read_text()) if call.name == "paper" for word in call.words]


def test_what_the_pages_say_of_bytes_was_measured():
    lines = {line["expression"]: line for line in written("docs/methods/bytes.jsonl")}
    missing = {name: pages for name, pages in method_pages.expressions().items() if name not in lines}
    assert missing == {}, "python docs/bytes.py"
    for line in lines.values():
        assert line["kind"] == "data-parallel" or all(line[name] > 0 for name in ("up", "down", "first_down"))


def test_a_macro_that_means_nothing_is_an_error_that_names_page_and_macro():
    for macro, words in {
        "paper FedAvgg": "neither a public name",
        "code FedAvg.clientt": "has no member clientt",
        "differences TopK.encode": "is no class",
        'bytes "FedAvg(up=TopK(0.5))"': "python docs/bytes.py",
        "papers FedAvg": "no such macro",
        "methods everything": "one of federated",
        "options look": "of which command",
        "options fly": "thinwire fly is no command",
    }.items():
        with pytest.raises(code_names.Wrong, match=words) as error:
            macros.expand(f"text\n\n{{{{ {macro} }}}}\n", "docs/methods/x.md")
        assert str(error.value).startswith(f"docs/methods/x.md: {{{{ {macro} }}}}: ")


def test_code_of_a_page_has_no_docstrings_and_differences_are_markdown():
    code = macros.code(["thinwire.links.sparse.count_of", "TopK.contraction"])
    assert code.startswith("```python\ndef count_of(")
    assert '"""' not in code
    assert "\n# TopK\n@property\ndef contraction(self)" in code
    assert macros.markdown("a <- b * c, as :class:`~thinwire.Params` and ``x < y`` have") == (
        "a &lt;- b \\* c, as `thinwire.Params` and `x < y` have"
    )
    assert macros.differences(["EF21"]) == "None.\n"
    assert macros.differences(["DEF"]).startswith("by default lam follows what is measured")
    assert macros.paper(["DEF", "DEFA"]).startswith("**Paper** of `DEF` and `DEFA`: Xu, Huang")
    assert code_names.owner("EF21")[0] == "thinwire.EF21"
    assert code_names.owner("ddp.EF21")[0] == "thinwire.ddp.EF21"


def test_whatever_names_a_paper_has_differences_that_a_page_can_show():
    for name in code_names.catalogued():
        if macros.paper([name]).startswith("**Paper**"):
            assert macros.differences([name])


def test_every_public_name_is_on_a_page_of_the_api():
    import thinwire.data
    import thinwire.ddp
    import thinwire.hf
    import thinwire.models
    import thinwire.pipeline

    text = "".join(macros.expand(path.read_text(), path.name) for path in (ROOT / "docs/api").glob("*.md"))
    shown = {line.split()[1].split(".")[-1] for line in text.splitlines() if line.startswith(":::")}
    for module in (tw, thinwire.ddp, thinwire.pipeline, thinwire.data, thinwire.hf, thinwire.models):
        assert sorted(set(module.__all__) - shown) == [], module.__name__


def test_the_page_of_experiments_lists_every_script():
    scripts = [path for path in (ROOT / "experiments").glob("*/*.py") if "__main__" in path.read_text()]
    told = re.findall(r"^python (\S+) --help$", (ROOT / "experiments/README.md").read_text(), re.M)
    assert told == sorted(path.relative_to(ROOT).as_posix() for path in scripts)


def test_links_between_pages_and_to_files_lead_somewhere():
    lost = []
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "experiments/README.md",
        *ROOT.glob("docs/**/*.md"),
    ]:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            target, _, _ = link.partition("#")
            if "://" not in link and target and not (path.parent / posixpath.normpath(target)).exists():
                lost.append(f"{path.relative_to(ROOT)}: {link}")
    assert lost == []


def test_the_pages_that_code_and_errors_name_are_there():
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]
    paths += [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / ".github").rglob("*.*"), ROOT / "SECURITY.md"]
    named = {page for path in paths for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text())}
    named -= {"docs/methods/x.md"}  # of a test of macros
    assert "docs/own-task.md" in named
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []


@pytest.mark.parametrize("name", tables.TABLES)
def test_a_printed_table_says_what_the_committed_results_say(name):
    page, printed = tables.printed()[name]
    assert printed == tables.made(name), f"{page}: python experiments/tables.py --write"


def test_what_the_page_of_pipelines_says_of_their_speed_is_in_the_results():
    path = ROOT / "benchmarks/results/pipeline.jsonl"
    everything = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in everything if line["part"] == "links"]
    page = " ".join((ROOT / "docs/measured/pipeline.md").read_text().split())
    slow = [line for line in everything if line["part"] == "stragglers"]
    barred = [line["arms"]["FR, barrier"]["over_law"] for line in slow]
    assert "it takes {:.2f} and {:.2f} times the law's there".format(*barred) in page
    spare = [(line["model"], name, row["DSP, spare"]) for line in slow for name, row in line["slowed"].items()]
    ((model, name, more),) = [one for one in spare if one[2]["loss"] > one[2]["law"]]
    assert (model, name) == ("resnet20", "any 50")
    assert (
        f"half a batch's time at one batch of three: {100 * more['loss']:.1f} % for {100 * more['law']:.1f} %" in page
    )
    alone = next(line["arms"]["DSP, spare"]["ms"] for line in slow if line["model"] == model)
    assert "under one millisecond" in page
    assert alone * (more["loss"] - more["law"]) < 1
    own, small = (
        max(line["over_law"] for line in lines),
        max(line["arms"]["DSP, Int8"]["over_law"] for line in lines if "DSP, Int8" in line["arms"]),
    )
    assert f"DSP takes at most {own:.3f} times the law's time, and with `Int8` at most {small:.2f}." in page
    *near, a, b = sorted(map(over_plan, lines))
    assert (len(near), len(lines)) == (7, 9)
    assert f"at most {near[-1]:.2f} times as long in seven of nine rows, and {a:.2f} and {b:.2f} times" in page
    thin = [ratio for line in lines if line["mbit"] for ratio in (line["over_torch GPipe"], line["over_torch 1F1B"])]
    assert f"take {min(thin):.1f} to {max(thin):.1f} times as long as DSP over both links" in page
    flat = [ratio for line in lines if not line["mbit"] for ratio in (line["over_1F1B"], line["over_torch 1F1B"])]
    assert f"takes {min(flat):.2f} to {max(flat):.2f} times as long" in page
    less = [ratio for ratio in (line["of_speedup_by_law"] for line in lines) if ratio < 1]
    assert len(less) == 6
    assert f"In six of nine rows it is less, {min(less):.3f} to {max(less):.3f} of it." in page
    for line in lines:
        cuts = line["profile"]["cuts"]
        assert cuts["late"] == cuts["plain"] or line["model"] == "waits" or not line["mbit"]
    assert max(line["load"] for line in lines) < 2


def test_what_the_page_of_pipelines_says_of_optimisers_is_in_the_results():
    path = ROOT / "experiments/dsp/results/shakespeare.jsonl"
    curves = [line for line in map(json.loads, path.read_text().splitlines()) if line["part"] == "curve"]
    ends = defaultdict(list)
    for line in curves:
        ends[line["row"], line["optimizer"]].append(statistics.mean(point[2] for point in line["curve"][-5:]))
    by = {key: 100 * statistics.mean(found) for key, found in ends.items()}
    page, order = said("docs/measured/pipeline.md"), ("SGD", "AdamW", "NAdam", "Muon")
    tried = defaultdict(set)
    for line in map(json.loads, path.read_text().splitlines()):
        if line["part"] == "rate":
            tried[line["row"], line["optimizer"]].add(line["lr"])
    assert all(
        min(rates) < line["lr"] < max(rates) for line in curves for rates in [tried[line["row"], line["optimizer"]]]
    )
    assert max(line["clock"] for line in curves if line["row"] == "BP") < min(
        line["clock"] for line in curves if line["row"] != "BP"
    )

    def behind(row):
        return [by["BP", one] - by[row, one] for one in order]

    told = "ends {:.1f} points behind BP under SGD, {:.1f} under AdamW, {:.1f} under NAdam and {:.1f} under Muon"
    assert told.format(*behind("PipeDream()")) in page
    short = "DSP((1, 1, 0), (4, 2, 0))"
    assert "ends {:.1f}, {:.1f}, {:.1f} and {:.1f} points behind".format(*behind(short)) in page
    assert max(value for (row, one), value in by.items() if one == "SGD" and row != "BP") < 30
    assert f"where BP ends at {by['BP', 'SGD']:.1f} %" in page
    assert f"it reaches {by[short, 'Muon']:.1f} %" in page
    assert all(len(found) == 3 for found in ends.values())


def test_every_table_with_figures_is_printed_from_results():
    by_hand = []
    pages = [page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts]
    for page in [ROOT / "README.md", ROOT / "experiments/README.md", *pages]:
        lines = page.read_text().splitlines()
        for i, line in enumerate(lines):
            announced = re.fullmatch("<!-- table: (.+) -->", lines[i - 2]) if i > 1 else None
            # Columns on the right are numbers.
            if re.fullmatch(r"\|[ :|-]*-:[ :|-]*\|", line) and not (announced and announced[1] in tables.TABLES):
                by_hand.append(f"{page.name}:{i}")
    assert by_hand == []
    assert tables.printed().keys() == tables.TABLES.keys()


RESULTS = [
    path.relative_to(ROOT)
    for folder in ("experiments", "benchmarks", "docs")
    for path in ROOT.glob(f"{folder}/**/*.jsonl")
]


@pytest.mark.parametrize("path", sorted(map(str, RESULTS)))
def test_committed_results_are_by_code_that_is_in_a_commit(path):
    for line in written(path):
        assert re.fullmatch(r"[0-9.]+\+g[0-9a-f]{8,}", line["version"])
        assert not line.get("dirty")
        assert not line.get("tiny")
        assert line["command"].startswith(("python ", "pytest "))


@pytest.mark.parametrize("path", sorted(map(str, RESULTS)))
def test_a_file_of_results_is_below_1_mb(path):
    assert (ROOT / path).stat().st_size < 1_000_000


def written(path):
    return [json.loads(line) for line in (ROOT / path).read_text().splitlines()]


def said(page):
    return " ".join((ROOT / page).read_text().split())


def claims():
    """All pages of claims as one text."""
    return " ".join(said(path.relative_to(ROOT)) for path in sorted((ROOT / "docs/claims").glob("*.md")))


def percent(line):
    return f"{100 * line['accuracy']:.1f} %"


def of_experiments(folder, name):
    return written(f"experiments/{folder}/results/{name}.jsonl")


def points(x):
    """As the pages write them: .6, 12.5."""
    return f"{100 * x:.1f}".removeprefix("0")


def total(line):
    return (line["bytes_up"] + line["bytes_down"]) / 1e6


FIGURE = re.compile(r"(?<![\d.,])([\d,]*\.?\d+(?: ± [\d.]+)?) (%|MB)")


@functools.cache
def figures_of(path):
    """What a page may say of a file of results: accuracies, means with deviations, shares recycled, MB."""
    runs, shown = {}, {("58", "%")}  # the accuracy that times are measured to
    for line in written(path):
        row = ("row", "name", "expression", "inner", "training", "lr", "beta", "workers")
        runs.setdefault(tuple(line.get(name) for name in row), []).append(line)
    for lines in runs.values():
        names = ("accuracy", "best_accuracy", "accuracy_x", "recycled")
        found = {name: [line[name] for line in lines if line.get(name) is not None] for name in names}
        found["of x"] = [x for line in lines if line.get("kind") == "curve" and (x := line["curve"][-1][2]) is not None]
        shown |= {(mean(values).removesuffix(" %"), "%") for values in found.values() if values}
        shown |= {(f"{100 * share:.0f}", "%") for share in found["recycled"]}
        shown |= {(text, "MB") for text in sent(*lines)} if "bytes_up" in lines[0] else set()
    return shown


@each_page
def test_the_figures_of_a_page_of_a_method_are_those_of_the_results_that_it_names(path):
    pages = [page.read_text() for page in (ROOT / "docs/claims").glob("*.md")]
    cells = [line.split("|") for page in pages for line in page.splitlines() if line[:1] == "|"]
    cells = {cell.strip().removesuffix(" %") for row in cells for cell in row}
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    wrong = []
    for paragraph in re.split(r"\n\n|\n- ", text):
        *parts, rest = re.split(r"(experiments/\w+/results/\w+\.jsonl)", " ".join(paragraph.split()))
        for words, results in zip(parts[::2], parts[1::2], strict=True):
            wrong += [figure for figure in FIGURE.findall(words) if figure not in figures_of(results)]
        if "../claims/" in rest and not parts:
            wrong += [figure for figure in FIGURE.findall(rest) if figure[0] not in cells]
    assert wrong == []


MOMENTUM = ("FedAvgM, .6", "FedACG")


def test_what_the_page_of_fedluar_says_in_words_is_in_its_table_and_lines():
    """And what docs/methods/luar.md says of where recycling loses."""
    page, text = said("docs/claims/fedluar.md"), (ROOT / "docs/claims/fedluar.md").read_text()
    rows = [line.split("|") for line in text.splitlines() if line[:1] == "|"]
    claims = {row[1].strip(): (row[4].strip(), row[5].strip()) for row in rows if len(row) == 7}

    def far(claim):
        return float(claims[claim][0].split()[0])

    half, over = (
        "half of the bytes cost up to 1.1 points",
        "over {} " + "half of the bytes cost up to 1.1 points, as over FedAvg",
    )
    cost, spread, up = re.match(r"-([\d.]+) ± ([\d.]+) points; (\d+ %)", claims[half][0]).groups()
    whole, *_ = of_rows(rows, "recycling", "FedAvg")
    assert f"costs {cost} ± {spread} points of FedAvg's {whole.split()[0]} % and sends {up} of its bytes up" in page
    for names, cost in (
        (("FedProx", "FedOpt, .9", "MOON"), "as much"),
        (("FedMut", "FedPAQ, 16 levels", "PruneFL"), "1.9"),
    ):
        some = {name.split(",")[0]: claims[over.format(name)] for name in names}
        alike = {verdict for _, verdict in some.values()}
        assert alike == ({"appears"} if cost == "as much" else {"in kind"})
        assert cost == "as much" or {float(number.split()[0]) for number, _ in some.values()} == {-1.9}
        assert all(name in page for name in some)
    for many in (1, 2):
        assert claims[f"recycling {many} of 4 is better than dropping"][1] != "does not appear"
    against = {name for name in claims if name.startswith("over ") and claims[name][1] == "does not appear"}
    assert against == set()
    judged = sys.modules[f"{tables.TABLES['claims'].__module__.rpartition('.')[0]}.verdict"]
    turns = next(c for c in sys.modules[tables.TABLES["claims"].__module__].CLAIMS if "better than in turn" in c.text)
    behind = judged.points(turns)
    assert (len(behind), max(behind.values()) < 0) == (3, True)
    judge = {one.text: one for one in sys.modules[tables.TABLES["claims"].__module__].CLAIMS if one.group == "luar"}
    ahead = lambda text: [round(x, 1) for _, x in sorted(judged.points(judge[text]).items())]  # noqa: E731
    alike = "clients alike: "
    level, up = re.match(r"(-[\d.]+ ± [\d.]+) points; (\d+ %)", claims[alike + half][0]).groups()
    whole, *_ = of_rows(rows, "alike", "FedAvg")
    assert f"{level} points of FedAvg's {whole.split()[0]} %, for {up} of its bytes up" in page
    gain = claims[alike + "recycling 2 of 4 is better than dropping"][0].split(" points")[0]
    assert f"{gain.removeprefix('+')} points better than leaving them out" in page
    assert sorted(ahead(alike + "recycling 3 of 4 is better than dropping")) == [-11.8, 1.3, 3.0]
    momentum = [
        claims[f"{alike}over {row} half of the bytes cost up to 1.1 points, as over FedAvg"][0] for row in MOMENTUM
    ]
    assert [re.match(r"-0(.\d) ± .*points; (5[01]) %", text).group(1) for text in momentum] == [".3", ".6"]
    parts = [of_rows(rows, "recycling", f"3 of 4, metric, {how}")[0].split()[0] for how in ("recycled", "dropped")]
    assert float(parts[1]) - float(parts[0]) == pytest.approx(14.1, abs=0.11)
    looked = [claims[f"{alike}LBGM, δ = .{d}: 1.18 points behind FedAvg, 29 % saved"][0] for d in (8, 9)]
    assert [re.match(r"-0(.\d).*points; (\d+) %", text).groups() for text in looked] == [(".1", "79"), (".2", "51")]
    news = "AG News, Dirichlet(1): "
    assert sorted(ahead(news + "as FedAvg for 17 % of the floats")) == [-4.7, -0.5, -0.2]
    level = [of_rows(rows, "AG News, alike", row)[0] for row in ("FedAvg", "1 of 2, metric, dropped")]
    assert level[0] == level[1]
    drawn = alike + "2 of 4 by the metric is better than at random by 6.2 points, at equal bytes both ways"
    assert ahead(drawn) == [0.1, 0.1, 0.1]
    whole, *_ = of_rows(rows, "recycling", "FedAvg")
    packed, dropout = (of_rows(rows, "compared", row) for row in ("FedPAQ, 16 levels", "FedDropoutAvg, half"))
    assert (packed[0].split()[0], dropout[0].split()[0]) == (whole.split()[0],) * 2
    assert f"accuracy for {packed[1]} MB up in place of 2,833, and FedDropoutAvg for {dropout[1]}." in page
    tuned, whole = (
        of_rows(rows, "AG News, MiniLM", row) for row in ("LUAR, 30 of 40 kernels", "FedAvg, all of MiniLM")
    )
    assert f"ends at {tuned[0]} with 30 of 41 kernels recycled, for {tuned[1]} MB up, and at {whole[0]} with" in page
    assert f"FedAvg, for {whole[1]} MB up (one seed, both {whole[2]} MB down)" in page
    assert tuned[2] == whole[2]


def of_rows(rows, setting, row):
    """Of the table of rows of a page of claims: accuracy, MB up, MB down."""
    found = next(cells for cells in rows if [cell.strip() for cell in cells[1:3]] == [setting, row])
    return found[3].strip(), found[6].strip(), found[7].strip()


def test_what_the_page_of_experiments_says_of_all_methods_is_in_the_results():
    lines = sorted(of_experiments("everything", "digits"), key=lambda line: line["accuracy"])
    worst, best = (f"{100 * lines[i]['accuracy']:.1f}" for i in (0, -1))
    assert f"The worst row ends at {worst} % and the best at {best} %" in claims()
    assert f"{len(lines)} rows; one seed" in claims()


def test_what_the_page_of_experiments_says_of_intrinsic_compression_is_in_the_results():
    page = claims()

    def best(name, pattern):
        lines = [x for x in of_experiments("intrinsic", f"equal_bytes_{name}") if re.match(pattern, x["expression"])]
        return max(lines, key=lambda line: line["best_accuracy"])

    small, one, five = (
        best("fashion_mnist", pattern)
        for pattern in (r"Intrinsic\(dim=1024,", r"FedAvg.*epochs=1\.0.*up=Dense", r"FedAvg.*epochs=5\.0")
    )
    assert f"d = 1,024 reached {percent(small)} for {total(small):.2f} MB, both directions together" in page
    assert f"FedAvg with one local epoch ended at {percent(one)} for {total(one):.0f} MB" in page
    middle, four = (best("fashion_mnist", rf"Intrinsic\(dim=4096, subspaces={k}, varying=False") for k in (1, 4))
    gain = points(five["accuracy"] - middle["accuracy"])
    assert f"ended at {percent(five)}, {gain} points above the best subspace" in page
    assert f"K = 4 ({100 * four['accuracy']:.1f} against {percent(middle)})" in page
    middle, four = (best("shakespeare", rf"Intrinsic\(dim=4096, subspaces={k}, varying=False") for k in (1, 4))
    one = best("shakespeare", r"FedAvg.*epochs=1\.0.*up=Dense")
    behind = points(one["accuracy"] - middle["accuracy"])
    assert f"d = 4,096 ends {behind} points below FedAvg with one epoch" in page
    assert f"for {total(middle):.2f} MB in place of {total(one):.0f}, both directions together" in page
    assert f"K = 4 subspaces reach FedAvg's {percent(one)} for {total(four):.1f} MB" in page
    assert percent(four) == percent(one)


def test_what_the_page_of_experiments_says_of_table_2_is_in_the_results():
    page = claims()
    rows = {line["row"]: line for line in of_experiments("fetchsgd", "table2_fashion_mnist")}
    first = max(rows.values(), key=lambda line: line["best_accuracy"])
    others = [line for name, line in rows.items() if not name.startswith(("Intrinsic", "uncompressed"))]
    second = max(others, key=lambda line: line["best_accuracy"])
    assert (first["row"], second["row"]) == ("Intrinsic (static, D / 475)", "FedAvg (2 local steps)")
    assert f"{100 * first['best_accuracy']:.1f} %, for {total(first):.1f} MB in both directions together" in page
    assert f"2 local steps: {100 * second['best_accuracy']:.1f} % for {total(second):,.0f} MB" in page
    assert all(x["accuracy"] == x["best_accuracy"] for name, x in rows.items() if name.startswith("FetchSGD"))
    eight = 100 * rows["Intrinsic (8 subspaces, D / 475)"]["best_accuracy"]
    assert f"({eight:.1f} against {100 * first['best_accuracy']:.1f} % for D / 475)" in page
    rows = {line["row"]: 100 * line["best_accuracy"] for line in of_experiments("fetchsgd", "table2_shakespeare")}
    eight, one = rows["Intrinsic (8 subspaces, D / 475)"], rows["Intrinsic (static, D / 475)"]
    assert f"({eight:.1f} against {one:.1f} % at best)" in page
    longer = max(rows["uncompressed"] - rows[f"FedAvg ({steps} local steps)"] for steps in (2, 5))
    assert f"lose {points(longer / 100)} points at most at this size" in page
    assert f"D / 30 is {points((rows['uncompressed'] - rows['Intrinsic (static, D / 30)']) / 100)} points" in page


def trained(group):
    """The runs of a group's claims at the best rate of each row, by setting and row, then by seed."""
    best = of_best_rate(line for line in of_experiments(group, "claims") if line["kind"] == "run")
    return {row: {line["seed"]: line for line in lines} for row, lines in best.items()}


def test_what_the_page_of_intrinsic_compression_says_in_words_is_in_its_lines():
    page, found = said("docs/claims/intrinsic.md"), trained("intrinsic")
    whole = {row: lines for row, lines in found.items() if sorted(lines) == [0, 1, 2]}
    reached = {row: [100 * lines[k]["accuracy_mean_of_last_5"] for k in (0, 1, 2)] for row, lines in whole.items()}

    def ahead(ours, other):  # with each seed, in points, from the least to the most
        far = sorted(x - y for x, y in zip(reached[ours], reached[other], strict=True))
        return " to ".join(f"{x:.1f}".removeprefix("0") for x in (far[0], far[-1]))

    def down(ours, other):  # bytes, of the other's
        return statistics.mean(found[ours][k]["bytes_down"] / found[other][k]["bytes_down"] for k in (0, 1, 2))

    many, words = ({row: (name, row) for name, row in whole if name == at} for at in ("10,000 clients", "SST-2"))
    thirtieth, one, eight = (many[row] for row in ("static, D / 30", "static, D / 475", "K = 8, D / 475"))
    moving, fedavg, top = (many[row] for row in ("time-varying, D / 475", "FedAvg", "top-k, D / 475"))
    far = [x - y for x, y in zip(reached[thirtieth], reached[fedavg], strict=True)]
    assert f"within {max(map(abs, far)):.1f} points of FedAvg with each seed".replace(" 0.", " .") in page
    for row in (thirtieth, one, top):
        assert "{} MB up and {} MB down".format(*sent(*found[row].values())) in page
    assert sent(*found[fedavg].values()) == ["39,426", "39,426"]
    assert f"One of a 475th is {ahead(fedavg, one)} points behind FedAvg" in page
    assert f"and {ahead(one, top)} ahead of top-k" in page
    fetch = many["FetchSGD, D / 475"]
    told = f"ends {ahead(eight, fetch)} points behind eight subspaces, for {{}} MB up and {{}} MB down"
    assert told.format(*sent(*found[fetch].values())) in page
    fetched = [line for line in of_experiments("intrinsic", "claims") if line["row"] == "FetchSGD, D / 475"]
    assert {(line["rate"], ", k=1380," in line["expression"]) for line in found[fetch].values()} == {(0.2, True)}
    few = [line for line in fetched if (line["kind"], line["rate"], line["rounds"]) == ("rate", 0.2, 60)]
    assert (len(few), max(line["accuracy_mean_of_last_5"] for line in few) < 0.12) == (3, True)  # numbers of entries
    lost = {line["rate"] for line in fetched if line["kind"] == "run" and "diverged" in line}
    assert (lost, "With 300 rounds it diverges at .4." in page) == ({0.4}, True)
    static, varying = (
        [words[f"{way}, d = {d}"] for d in ("6,400", "25,600", "102,400")] for way in ("static", "time-varying")
    )
    told = (
        "time-varying subspaces are {} points ahead of static ones with d = 6,400, {} with 25,600 and {} with 102,400."
    )
    assert told.format(*map(ahead, varying, static)) in page
    far = [x - y for x, y in zip(reached[varying[1]], reached[words["FedAvg"]], strict=True)]
    assert f"they end within {max(map(abs, far)):.1f} points of FedAvg".replace(" 0.", " .") in page
    read = {row: (name, row) for name, row in whole if name == "SST-2, transformer"}
    small, wide, own, dense = (
        read[row] for row in ("static, d = 25,600", "static, d = 102,400", "time-varying, d = 25,600", "FedAvg")
    )
    shown = {row: mean([x / 100 for x in reached[row]]) for row in read.values()}
    told = "ends at {} with d = 25,600, for {} MB each way, where FedAvg ends at {} for {}."
    assert (
        told.format(shown[small], sent(*found[small].values())[0], shown[dense], sent(*found[dense].values())[0])
        in page
    )
    for row, words_of in ((wide, "are {} points better there"), (own, "time-varying subspaces {}, which is")):
        far = [x - y for x, y in zip(reached[row], reached[small], strict=True)]
        assert words_of.format(f"{statistics.mean(far):.1f}".removeprefix("0")) in page
        assert statistics.mean(far) < statistics.stdev(far)
    once = {row: lines[0] for (name, row), lines in found.items() if name == "SST-2, transformer" and 0 in lines}
    few = [once[f"{row}, d = {d}"] for row, d in (("static", "400"), ("static", "1,600"), ("static", "6,400"))]
    told = "end at {} with d = 400, for {} MB each way, at {} with 1,600, for {} MB, and at {} with 6,400, for {} MB."
    assert told.format(*(x for one in few for x in (mean([one["accuracy_mean_of_last_5"]]), sent(one)[0]))) in page
    changing = once["time-varying, d = 400"]
    (up, down_), ended = sent(changing), mean([changing["accuracy_mean_of_last_5"]])
    assert f"Time-varying ones end at {ended} with d = 400, for {up} MB up and {down_} down." in page
    gains = ahead(words["K = 8, d = 6,400"], static[0]), ahead(eight, one)
    assert "{} points ahead of one for the same upload there, and {} with 10,000 clients".format(*gains) in page
    times = sorted(map(down, varying, static))
    assert f"are sent {times[0]:.1f} to {times[-1]:.1f} times what static ones are" in page
    (_, ours), (_, theirs) = (sent(*found[row].values()) for row in (varying[2], words["FedAvg"]))
    assert f"more than FedAvg, {ours} MB for {theirs}" in page
    assert f"they are sent {down(moving, one):.0f} times as much" in page
    for row, other in ((words["K = 8, d = 6,400"], static[0]), (eight, one)):
        assert round(down(row, other)) == 8
    assert f"ahead of eight subspaces too, by {ahead(moving, eight)} points for twice as much" in page
    assert down(moving, eight) == pytest.approx(2, abs=0.15)
    both = many["K = 8, time-varying, D / 475"]
    assert statistics.mean(reached[both]) < statistics.mean(reached[moving])


def test_a_row_that_was_trained_at_several_rates_is_shown_at_the_best():
    def line(rate, seed, reached):
        about = {"setting": {"name": "a"}, "row": "b", "rate": rate, "seed": seed}
        return about | ({"diverged": 3} if reached is None else {"accuracy_mean_of_last_5": reached})

    tried = [line(0.1, 0, 0.5), line(0.2, 0, None), line(0.1, 1, 0.7), line(0.1, 2, 0.6)]
    assert of_best_rate(tried) == {("a", "b"): [tried[0], *tried[2:]]}
    lost = [line(0.4, 0, 0.9), line(0.4, 1, None), line(0.4, 2, 0.9)]  # better where it trains, which is not always
    missing = [line(0.3, 0, 0.9), line(0.3, 1, 0.9)]
    better = [line(0.05, seed, reached) for seed, reached in enumerate((0.9, 0.4, 0.6))]
    assert of_best_rate([*tried, *lost, *missing]) == {("a", "b"): [tried[0], *tried[2:]]}
    assert of_best_rate([*better, *tried, *lost, *missing]) == {("a", "b"): better}
    mended = [one | {"expression": "mended", "accuracy_mean_of_last_5": 0.2} for one in better]
    assert of_best_rate([*better, *mended]) == {("a", "b"): mended}  # what a method did before it was changed is past


def test_what_the_page_of_flss_says_of_news_in_words_is_in_its_lines():
    page, found = said("docs/claims/flss.md"), trained("flss")
    news = {row: lines for (name, row), lines in found.items() if name == "AG News"}
    changed = {row: lines for (name, row), lines in found.items() if name == "ablations"}
    dense, streaming = news["FedAvg"], news["FedAvg+FLSS"]

    def ahead(lines, other):  # in points, by the seeds that both have
        both = sorted(lines.keys() & other.keys())
        return [100 * (lines[k]["accuracy_mean_of_last_5"] - other[k]["accuracy_mean_of_last_5"]) for k in both]

    def share(lines, other, way):
        return [lines[k][f"bytes_{way}"] / other[k][f"bytes_{way}"] for k in lines.keys() & other.keys()]

    for name in ("AG News", "N = 20, M = 10", "N = 50, M = 50", "E = 1", "E = 5", "rate .01"):
        pair = found[name, "FedAvg+FLSS"], found[name, "FedAvg"]
        assert max(map(abs, ahead(*pair))) < 0.2, name
        ways = ("up",) if name == "N = 20, M = 10" else ("up", "down")
        assert all(x == pytest.approx(0.6, abs=0.005) for way in ways for x in share(*pair, way)), name
    away = found["N = 20, M = 10", "FedAvg+FLSS"], found["N = 20, M = 10", "FedAvg"]
    assert all(x == pytest.approx(1.2, abs=0.02) for x in share(*away, "down"))
    fixed = changed.pop("fixed subspace")
    behind = ahead(streaming, fixed)
    assert f"{min(behind):.1f} to {max(behind):.1f}".replace("0.", ".") == ".3 to .7"
    assert all(x == pytest.approx(1.2, abs=0.01) for way in ("up", "down") for x in share(streaming, fixed, way))
    slow = [found["rate .01", row] for row in ("FedAvg", "FedAvg+FLSS", "FedDC, alpha .5")]
    for lines in slow[:2]:
        ended = 100 * statistics.mean(line["accuracy_mean_of_last_5"] for line in lines.values())
        assert f"both end at {ended:.1f} %" in page
    drifting = ahead(slow[2], slow[1])
    told = f"FedDC is {min(drifting):.1f} to {max(drifting):.1f} points ahead, for twice as many bytes as FedAvg"
    assert told.replace(" 0.", " .") in page
    assert all(x == pytest.approx(2, abs=1e-3) for way in ("up", "down") for x in share(slow[2], slow[0], way))
    assert all(
        max(map(abs, ahead(news[row], streaming))) < 0.2 for row in news if row.startswith(("FedP", "MO", "FedN"))
    )
    generated = ahead(news["FedGen"], streaming)
    assert f"FedGen {min(generated):.1f} to {max(generated):.1f} points".replace("0.", ".") in page
    assert len(changed) == 5
    assert all(max(map(abs, ahead(lines, streaming))) < 0.2 for lines in changed.values())
    assert share(changed["L = R = 50"], streaming, "up") == pytest.approx([0.5] * 3, abs=0.005)
    over, signs = ahead(news["Sign+EF+FLSS"], news["Sign+EF"]), [news[f"Sign+EF{over}"] for over in ("+FLSS", "")]
    told = f"Over signs it ends {-max(over):.1f} to {-min(over):.1f} points behind them, for ".replace(" 0.", " .")
    told += "{} MB up and {} MB down where they send {} and {}."
    assert told.format(*sent(*signs[0].values()), *sent(*signs[1].values())) in page
    lbgm, fetch, stc = (news[row] for row in news if row.startswith(("LBGM", "FetchSGD", "STC")))
    assert all(min(ahead(lines, dense)) > -1.35 for lines in (lbgm, fetch, stc))
    shares = share(lbgm, dense, "up")
    assert f"LBGM sends {100 * min(shares):.0f} to {100 * max(shares):.0f} % up and all down" in page
    assert share(lbgm, dense, "down") == pytest.approx([1.0] * 3, abs=1e-3)
    assert "FetchSGD {} MB up and {} MB down".format(*sent(*fetch.values())) in page
    assert "STC {} MB up and {} MB down".format(*sent(*stc.values())) in page


def test_what_the_page_of_flss_says_of_pictures_in_words_is_in_its_lines():
    page, found = said("docs/claims/flss.md"), {}
    for line in of_experiments("flss", "claims"):
        if line["kind"] == "run" and line["setting"]["data"] == "fashion_mnist":
            found.setdefault((line["setting"]["name"], line["row"], line["rate"]), {})[line["seed"]] = line

    def behind(name, streaming, other):  # in points, by the seeds that both ended with
        rows = found[name, *streaming], found[name, *other]
        ended = [
            {k: line["accuracy_mean_of_last_5"] for k, line in row.items() if "diverged" not in line} for row in rows
        ]
        return [
            f"{100 * (ended[1][k] - ended[0][k]):.1f}".removeprefix("0") for k in sorted(ended[0].keys() & ended[1])
        ]

    texts = {
        "Dirichlet(.1)": (0.05, "{} to {} points behind it with Dirichlet(.1)"),
        "pathological": (0.1, "and {} to {} with two classes"),
    }
    for name, (rate, text) in texts.items():
        far = behind(name, ("FedAvg+FLSS", rate), ("FedAvg", 0.1))
        assert len(far) == 3
        assert text.format(min(far, key=float), max(far, key=float)) in page
        pair = found[name, "FedAvg+FLSS", rate], found[name, "FedAvg", 0.1]
        for way in ("up", "down"):
            assert pair[0][0][f"bytes_{way}"] / pair[1][0][f"bytes_{way}"] == pytest.approx(0.6, abs=0.005)
    far = sorted(map(float, behind("Dirichlet(.1)", ("Sign+EF+FLSS", 0.1), ("Sign+EF", 0.05))))
    assert len(far) == 3
    assert f"it ends from {far[-1]:.1f} points behind them to {-far[0]:.1f} ahead".replace(" 0.", " .") in page
    scaled = ("FedAvg+FLSS", "FedAvg+FLSS, scale 3", "FedAvg+FLSS, scale 10", "FedAvg, 3 times", "FedAvg, 10 times")
    ends = [mean([found["scale, rate .01", row, 0.01][0]["accuracy_mean_of_last_5"]]) for row in scaled]
    told = (
        "FLSS ends at {} with a scale of 1, at {} with 3 and at {} with 10, and FedAvg at {} with three times its rate "
    )
    assert (told + "from L on and at {} with ten times (one seed).").format(*ends) in page
    signs = [found["Dirichlet(.1)", *row].values() for row in (("Sign+EF+FLSS", 0.1), ("Sign+EF", 0.05))]
    for row in (("pathological", "FedAvg+FLSS"), ("Dirichlet(.1)", "Sign+EF+FLSS")):
        assert len([line for line in found[*row, 0.1].values() if "diverged" not in line]) == 3
    told = "for {} MB up and {} MB down where they send {} MB up and {} MB down"
    assert told.format(*sent(*signs[0]), *sent(*signs[1])) in page
    for row in ("FedAvg+FLSS", "Sign+EF"):
        lost = ["diverged" in line for line in found["Dirichlet(.1)", row, 0.1].values()]
        assert (len(lost), sum(lost)) == (3, 1)
    assert not any("diverged" in line for (*_, rate), lines in found.items() if rate == 0.05 for line in lines.values())
    assert "At .1 FLSS ends {} and {}".format(*behind("Dirichlet(.1)", ("FedAvg+FLSS", 0.1), ("FedAvg", 0.1))) in page
    far = behind("Dirichlet(.1)", ("Sign+EF+FLSS", 0.1), ("Sign+EF", 0.1))
    assert "and over signs {} and {} behind signs".format(*far) in page


def test_what_the_page_of_the_thesis_says_of_domo_in_words_is_in_its_lines():
    page, found = said("docs/claims/thesis.md"), trained("optimisers")
    reached = {row: [100 * lines[k]["accuracy_mean_of_last_5"] for k in (0, 1, 2)] for row, lines in found.items()}

    def ahead(ours, *others):  # of the best of others with each seed, in points, from the least to the most
        best = [max(reached[other][k] for other in others) for k in range(3)]
        far = sorted(x - y for x, y in zip(reached[ours], best, strict=True))
        return " to ".join(f"{x:.1f}".removeprefix("0") for x in (far[0], far[-1]))

    ten, twenty = ({row: (name, row) for at, row in reached if at == name} for name in ("s = 10 %", "s = 20 %"))
    domo, intra = ten.pop("DOMO"), ten.pop("DOMO-S")
    assert f"the best of the six others by {ahead(domo, *ten.values())} points at s = 10 %" in page
    more, more_intra = twenty.pop("DOMO"), twenty.pop("DOMO-S")
    assert f"and by {ahead(more, *twenty.values())} at s = 20 %" in page
    assert set(ten) == set(twenty) == {"FedAvg", "FedAvgSM", "FedAvgSLM-Z", "FedAvgSLM", "FedAvgLM", "FedAvgLM-Z"}
    assert "{} MB up and {} MB down, as FedAvg does".format(*sent(*found[domo].values())) in page
    assert sent(*found[domo].values()) == sent(*found[ten["FedAvg"]].values())
    for row in ("FedAvgSLM", "FedAvgLM"):
        for way in ("bytes_up", "bytes_down"):
            assert found[ten[row]][0][way] / found[ten["FedAvg"]][0][way] == pytest.approx(2, rel=1e-3)
    half, two = (ahead((name, "DOMO"), (name, "FedAvgSLM-Z")) for name in ("E = .5", "E = 2"))
    assert f"With half an epoch a round DOMO is {half} points ahead of FedAvgSLM-Z, and with two epochs {two}." in page
    server, *alone = (ahead(ten[row], ten["FedAvg"]) for row in ("FedAvgSM", "FedAvgLM-Z", "FedAvgLM"))
    told = "at the clients alone {} (FedAvgLM-Z) and {} (FedAvgLM).".format(*alone)
    assert f"at the server alone is worth {server} points over FedAvg, {told}" in page
    told = f"DOMO-S ends {ahead(domo, intra)} points behind DOMO, and {ahead(more, more_intra)} at s = 20 %"
    assert told in page
    none, much, less = (ahead(domo, ("mu", row)) for row in ("mu_l 0", "mu_l .9", "mu_s .6"))
    told = f"cost {none} points (none at the clients), {much} (.9 there) and {less} (.6 at the server)"
    assert told in page
    low, high = sorted(map(float, ahead(domo, ("alpha and beta", "beta 1")).split(" to ")))
    assert -0.3 <= low < high <= 0.3
    fifth, little, less = (ahead(domo, ("alpha and beta", row)) for row in ("beta .2", "alpha .8", "alpha .4"))
    assert f"A fifth of it costs {fifth} points" in page
    assert f" of .8 costs {little} points and one of .4 {less}." in page


def test_what_the_page_of_the_thesis_says_of_def_in_words_is_in_its_lines():
    page, found = said("docs/claims/thesis.md"), trained("def")
    ended = {row: lines for row, lines in found.items() if not any("diverged" in line for line in lines.values())}
    whole = {row: lines for row, lines in ended.items() if sorted(lines) == [0, 1, 2]}
    reached = {row: [100 * lines[k]["accuracy_mean_of_last_5"] for k in (0, 1, 2)] for row, lines in whole.items()}

    def ahead(ours, other):  # with each seed, in points, from the least to the most
        far = sorted(x - y for x, y in zip(reached[ours], reached[other], strict=True))
        return " to ".join(f"{x:.1f}".removeprefix("0") for x in (far[0], far[-1]))

    def mb(row):
        up, down = sent(*found[row].values())
        assert up == down
        return up

    two, four, deep = (
        {row: (name, row) for name, row in found if name == at} for at in ("two ranks", "four ranks", "ResNet-20")
    )
    before = four["DEF, lambda as measured"]
    saef, ef = "SAEF, averaged every 100 steps", "EF, dense's rate"
    assert f"With two ranks DEF ends {ahead(two['dense'], two['DEF'])} points behind dense training" in page
    assert f"for {mb(two['DEF'])} MB each way where dense sends {mb(two['dense'])}" in page
    far = [ahead(two["DEF"], two[row]) for row in (saef, "PSync", "EF")]
    assert "it is ahead of SAEF by {} points, of PSync by {} and of EF by {}".format(*far) in page
    tried = {}
    for line in of_experiments("def", "claims"):
        if line["kind"] == "rate":
            row = tried.setdefault((line["setting"]["name"], line["row"]), {})
            row[line["rate"]] = 0.0 if "diverged" in line else 100 * line["accuracy_mean_of_last_5"]
            assert line["steps"] == (900 if line["setting"]["name"] == "ResNet-20" else 1800)
    assert (len(tried[two["EF"]]), "EF was tried at seven rates" in page) == (7, True)
    assert f"On ResNet-20 it ends {ahead(deep['dense'], deep['DEF'])} points behind dense" in page
    assert f"for {mb(deep['DEF'])} MB each way in place of {mb(deep['dense'])}" in page
    far = [ahead(deep["DEF"], deep[row]) for row in (saef, "PSync")]
    assert "ahead of SAEF by {} points and of PSync by {}".format(*far) in page
    low, *_, high = sorted(reached[deep[ef]])
    assert f"EF at dense's rate ends there at {low:.1f} to {high:.1f} %, which is chance" in page
    rates, quarter = tried["ResNet-20", "EF"], {row: ("ResNet-20, 3,000 steps", row) for row in ("EF", "DEF")}
    assert len(rates) == 6
    assert max(rates, key=lambda rate: rates[rate]) == 0.001
    assert "At .001, the best of six smaller rates, it does not diverge" in page
    (least, _, most), (low, _, high) = (sorted(reached[quarter[row]]) for row in ("EF", "DEF"))
    told = f"ends at {least:.1f} to {most:.1f} % and DEF at {low:.1f} to {high:.1f} %, for {mb(quarter['EF'])} MB"
    assert told in page
    assert mb(quarter["DEF"]) == mb(quarter["EF"])
    for row in ("over blocks", "over blocks, dense's rate"):
        assert all("diverged" in found["EF21", row][seed] for seed in (0, 1, 2))
    top = ("EF21", "over top-k 1 %")
    assert f"it trains, for {mb(top)} MB each way, and ends {ahead(two['DEF'], top)} points behind DEF" in page
    swept = {
        (of, lam): (f"lambda, {of} ranks", f"lambda {lam}") for of in ("two", "four") for lam in (0.3, 0.5, 0.7, 1.0)
    }
    costs = [ahead(swept[of, 0.5], swept[of, 0.3]) for of in ("two", "four")]
    assert "of .3 costs two ranks {} points beside .5, and four {}.".format(*costs) in page
    looks = lambda row: [[x[2] for x in found[row][seed]["curve"]] for seed in (0, 1, 2)]  # noqa: E731
    assert looks(swept["two", 1.0]) == looks(two["PSync"])
    assert f"With four ranks DEF with λ as measured ends {ahead(four['dense'], before)} points behind dense." in page
    measured = {
        row: [x[1] for lines in found[row].values() for x in lines["lam"] if x[0] >= 2000]
        for row in (two["DEF"], before)
    }
    assert min(measured[before]) == pytest.approx(0.25, abs=0.005)
    assert 0.5 <= min(measured[two["DEF"]]) < max(measured[two["DEF"]]) < 0.6
    gain, left = ahead(swept["four", 0.5], before), ahead(four["dense"], swept["four", 0.5])
    assert f"{gain} points ahead of the measured one, and {left} behind dense" in page
    rule, half, old = (
        100 * found[row][0]["accuracy_mean_of_last_5"]
        for row in (("lambda, four ranks", "lambda by rule"), swept["four", 0.5], before)
    )
    told = f"it ends {half - rule:.1f} points behind a constant of .5 and {rule - old:.1f} ahead of the measured λ."
    assert told.replace(" 0.", " .") in page
    best = max(float(ahead(swept["two", lam], two["DEF"]).split(" to ")[1]) for lam in (0.3, 0.5, 0.7, 1.0))
    assert f"no constant is better than it by more than {f'{best:.1f}'.removeprefix('0')} points with any seed" in page


@pytest.mark.slow
def test_what_the_page_of_lbgm_says_of_two_counts_is_in_its_line():
    lines = list(map(json.loads, (ROOT / "experiments/analysis/results/look_digits.jsonl").read_text().splitlines()))
    (line,) = (line for line in lines if line["job"] == "by_layer")
    text, squares, centred, momentum, figures, orthogonal = line["counts"]
    n99 = [count["counts"][1] for count in (text, squares, centred, momentum, orthogonal)]
    gradients = line["progression"][-1][0]
    page = said("docs/claims/lbgm.md")
    for words in (
        f"By the text {n99[0]} of {gradients} components hold 99 %",
        f"By the published count a layer has {figures['counts'][1]:.1f} ± {figures['deviations'][1]:.1f}.",
        f"Squares bring {n99[0]} down to {n99[1]}, and momentum brings {n99[2]} down to {n99[3]}",
        f"would leave {n99[4]} of {gradients} for gradients",
        f"in the mean, which is a squared sine of {1 - text['earlier'] ** 2:.2f}".replace("0.", "."),
        f"nearest before it is {text['earlier']:.2f}".replace("0.", "."),
        f"With momentum it is {figures['earlier']:.2f}".replace("0.", "."),
        f"get {orthogonal['earlier']:.2f} by the momentum alone".replace("0.", "."),
    ):
        assert words in page


def test_what_the_page_of_lbgm_says_in_words_is_in_its_lines():
    """On docs/claims/lbgm.md, docs/methods/lbgm.md, low-rank.md and sign.md; over the seeds that both rows have."""
    page, found = said("docs/claims/lbgm.md"), trained("lbgm")

    def mean(row, other, what):
        both = found[row].keys() & found[other].keys()
        return statistics.mean(found[row][seed][what] for seed in both)

    def saved(row, other, what="bytes_up"):
        return 1 - mean(row, other, what) / mean(other, row, what)

    def ahead(row, other):  # in points
        return 100 * (mean(row, other, "accuracy_mean_of_last_5") - mean(other, row, "accuracy_mean_of_last_5"))

    def beneath(row):
        return "beneath", row

    low = [f"rank {k}" for k in (1, 2, 3)]
    without = [*(f"top-k {k} %" for k in ("10", "1", "0.1")), *low]
    pairs = {row: (beneath(f"LBGM over {row}"), beneath(row)) for row in [*without, "signs"]}
    assert all(0.35 <= saved(*pairs[row]) <= 0.65 for row in without)
    assert sum(ahead(*pair) < 0 for pair in pairs.values()) < len(pairs) / 2  # most are no lower with it
    for name, row in (("CIFAR-10", "delta 0.2"), ("half sampled", "delta .2"), ("half sampled, iid", "delta .2")):
        assert 0.3 <= saved((name, row), (name, "dense")) <= 0.5
        assert -1 < ahead((name, row), (name, "dense")) <= 0
    assert saved(("CIFAR-10", "delta 0.05"), ("CIFAR-10", "dense")) < 0.55 / 2
    assert saved(("CIFAR-10", "delta 0.01"), ("CIFAR-10", "dense")) < 0.22 / 2
    for share, least, most in (("10", 0.25, 0.35), ("1", -0.02, 0.02), ("0.1", -0.02, 0.02)):
        row = f"top-k {share} %, error feedback"
        assert least < saved(beneath(f"LBGM over {row}"), beneath(row)) < most
    assert 0.25 < saved(*pairs["signs"]) < 0.35
    signs, alone = (
        [("ranks", f"LBGM over signs, delta {delta}") for delta in (".2", ".4", ".6", ".8")],
        ("ranks", "signs"),
    )
    shares = [round(100 * saved(row, alone)) for row in signs]
    assert shares[:3] == [0, 0, 1]
    assert 40 < shares[3] < 60
    assert mean(signs[3], alone, "accuracy_mean_of_last_5") < 0.2
    dense = beneath("dense")
    for (name, _), lines in found.items():
        both = [line for line in lines.values() if name == "beneath"]
        assert all(line["bytes_down"] > 0.99 * 17244e6 for line in both)  # so no more than half of both directions
    ways = {
        row: [mean(each, each, "bytes_up") + mean(each, each, "bytes_down") for each in pair]
        for row, pair in pairs.items()
    }
    assert round(100 * max(1 - ours / theirs for ours, theirs in ways.values())) == 5
    # What the authors count.
    theirs, collapsed = (beneath(f"their accounting, top-k 10 %, {whose}'s residual") for whose in ("LBGM", "top-k"))
    top = beneath("top-k 10 %")
    assert abs(ahead(theirs, dense)) < 2
    assert 0.3 < saved(theirs, top, "floats_up") < 0.7
    assert 0.4 < saved(theirs, dense) < 0.5
    assert 0.88 < saved(top, dense) < 0.92
    ended = [round(100 * found[collapsed][seed]["accuracy_mean_of_last_5"]) for seed in (0, 1, 2)]
    assert ended[0] == 11
    assert "collapses, to 11 %. The other two end at {} and {} %".format(*ended[1:]) in page
    # What trials of one seed chose.
    rates, tried = {}, {}
    for line in of_experiments("lbgm", "claims"):
        reached, at = 100 * line.get("accuracy_mean_of_last_5", 0.0), rates if line["kind"] == "run" else tried
        at.setdefault((line["setting"]["name"], line["row"]), {}).setdefault(line["rate"], {})[line["seed"]] = reached
    two = {row: each for row, each in rates.items() if len(each) == 2}
    assert all(sorted(seeds) == [0, 1, 2] for each in two.values() for seeds in each.values())
    shown = {row: found[row][0]["rate"] for row in two}
    alone = [row for row in two if row in tried]
    worse = [row for row in alone if max(tried[row], key=lambda rate: tried[row][rate][100]) != shown[row]]
    assert (len(alone), len(worse)) == (6, 4)
    assert "Of the six rows without LBGM four do worse at it" in page
    for name, row in two:
        assert shown[name, row] == shown[name, row.removeprefix("LBGM over ").replace("delta .2", "dense")]
    changed = {}
    for claim in (c for c in CLAIMS if c.group == "lbgm" and c.row in two):
        (other,) = two[claim.row].keys() - {shown[claim.row]}
        runs = [x for x in of_experiments("lbgm", "claims") if (x["kind"], x["rate"]) == ("run", other)]
        ours, theirs = (
            [x for x in runs if (x["setting"]["name"], x["row"]) == row] for row in (claim.row, claim.other)
        )
        far = [two[claim.row][other][k] - two[claim.other][other][k] for k in (0, 1, 2)]
        there = verdict(claim, far, sum(x["bytes_up"] for x in ours) / sum(x["bytes_up"] for x in theirs))
        if there != verdict(claim):
            changed[claim.row] = there
    iid, rank = ("half sampled, iid", "delta .2"), beneath("LBGM over rank 3")
    assert changed == {iid: "in kind", rank: "does not appear"}
    assert '"half sampled, iid" would be "in kind", and rank 3 would not appear' in page
    fallen, *rest = sorted(two[beneath("LBGM over rank 3")][0.08].values())
    assert (round(fallen), min(rest) > 90) == (10, True)
    for row in ("top-k 0.1 %, error feedback", "LBGM over top-k 0.1 %, error feedback"):
        least, _, most = sorted(two[beneath(row)][0.08].values())
        assert f"error feedback ends at {least:.0f} to {most:.0f} % there, with LBGM and without" in page
    # What the pages of methods say.
    steps = [saved((name, "delta .2"), (name, "dense")) for name in ("half sampled", "mini-batches")]
    assert steps[1] < steps[0]
    assert -6 < ahead(beneath("rank 2"), dense) < -5
    third, full = (found[row] for row in (beneath("rank 3"), dense))
    assert sum(third[k]["accuracy_mean_of_last_5"] < full[k]["accuracy_mean_of_last_5"] for k in full) == 2
    assert ahead(beneath("rank 1"), beneath("rank 2")) < -10
    assert all(saved(beneath(row), dense) > 0.98 for row in low)
    assert saved(beneath("signs"), dense) == pytest.approx(31 / 32, abs=0.001)
    assert -5 < ahead(beneath("signs"), dense) < 0


def test_what_the_pages_say_of_data_parallel_training_is_in_the_results():
    page, guide = claims(), said("docs/measured/ddp.md")
    lines = of_experiments("def", "time_to_accuracy_cifar10")
    default = "DEFA(ratio=64.0, scope='vector', lam=None)"
    *_, real = (line for line in lines if (line["kind"], line["expression"]) == ("real", default))
    *_, step = (x["step_seconds"] for x in lines if (x["kind"], x["expression"]) == ("times", default))
    took, product = f"{real['seconds_training']:.0f} s", f"{real['steps'] * step:.0f} s"
    assert f"3,000 steps of DEF-A took {took}, the product is {product}" in page
    assert f"took {took} for the 3,000 steps of `DEFA(64)`, where the product is {product}" in guide
    accuracy = f"{100 * real['accuracy']:.2f} %"
    assert f"the accuracy was {accuracy}" in page
    assert f"ended at {accuracy}, as the logical workers of that seed did" in guide
    curves = {}
    for line in lines:
        if (line["kind"], line.get("lr")) == ("curve", 0.02):
            curves.setdefault(line["expression"].replace("DEF(", "DEFA("), {})[line["seed"]] = line["curve"]
    (ours, dense), seeds = (curves[name] for name in (default, "Hook(link=Dense())")), {0, 1, 2}
    assert (ours.keys(), dense.keys()) == (seeds, seeds)
    assert ours[real["seed"]][-1][2] == real["accuracy"]
    behind = points(
        statistics.mean(c[-1][1] for c in dense.values()) - statistics.mean(c[-1][2] for c in ours.values())
    )
    assert f"DEF-A ends {behind} points below dense" in page
    assert f"ends {behind} points below it" in guide
    y, x = (
        100 * statistics.mean(point[i] for c in ours.values() for point in c if 600 <= point[0] <= 1500) for i in (1, 2)
    )
    assert f"x {x:.1f} % and y {y:.1f} % (three seeds, the default λ)" in page
    shares = [[cell.strip() for cell in line.split("|")] for line in tables.made("time-to-accuracy").splitlines()]
    (half, more) = next((row[5], row[7]) for row in shares if row[1] == "DEF-A / 64, .02")
    times = {5: "five", 6: "six", 7: "seven", 8: "eight"}
    assert f"is {times[round(1 / float(half))]} times sooner at 50 % than dense training" in page
    assert f"and {times[round(1 / float(more))]} times sooner at 58 %" in page
    assert f"is {times[round(1 / float(more))]} times sooner at 58 % than dense" in guide
    found = {line["part"]: line for line in written("benchmarks/results/ddp.jsonl")}
    loop, wire = found["loopback"], found["wire"]
    example, this = loop["def64_over_dense_example"], loop["def64_over_dense"]
    assert f"took {example:.2f} times that of plain DDP with the network of the example, and {this:.2f} times" in guide
    assert f"sent {wire['bytes_a_step']:,.0f} bytes a step under `DEF(64)`, {wire['over_theory']:.3f} times" in guide


def test_every_page_stands_on_a_shelf_of_the_site_and_a_folder_is_a_shelf():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nexclude_docs")[0]
    shelves = dict(re.findall(r"^  - ([\w-]+):\n((?:      .*\n)+)", nav + "\n", re.M))
    assert list(shelves) == ["Tutorials", "How-to", "Explanation", "Reference", "Measured", "About"]
    on = {name: set(re.findall(r"[\w/-]+\.md", text)) for name, text in shelves.items()}
    for name in ("tutorials", "explanation", "reference", "measured"):
        there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / name).glob("*.md")}
        assert there
        assert there <= on[name.capitalize()], name
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == on["How-to"] | {"maintain.md"}


def test_figures_are_measured_on_the_shelf_of_what_was_measured_and_not_in_guides():
    guides = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md")]
    assert len(guides) > 15
    assert [path.name for path in guides if "<!-- table:" in path.read_text()] == []


def test_the_glossary_has_each_word_once():
    words = re.findall(r"^\| ([a-z][\w, -]*) \|", (ROOT / "docs/reference/glossary.md").read_text(), re.M)
    words = [word for row in words if row != "word" for word in row.split(", ")]
    assert sorted(set(words)) == sorted(words)
    asked = "client server rank part round step link codec update view state statistics ledger"
    asked += " study run setting kind look room"
    assert set(asked.split()) <= set(words)


def test_every_command_has_its_options_on_the_page_of_options():
    from typer.main import get_command

    page = macros.expand((ROOT / "docs/reference/options.md").read_text(), "options.md")
    tree = get_command(app).commands
    names = {name for name, each in tree.items() if not hasattr(each, "commands")}
    names |= {f"{family} {name}" for family in set(tree) - names - {"look"} for name in tree[family].commands}
    assert {"run", "resume", "ddp-sim", "pipeline run", "pipeline plan"} <= names
    assert set(re.findall(r"^## `thinwire (.+)`$", page, re.M)) == names
    assert "| `--rounds` | `50` | Rounds to train. |" in macros.options(["run"])


def test_contributing_says_its_part_in_600_words_and_the_changelog_of_the_first_version_in_25_lines():
    assert len((ROOT / "CONTRIBUTING.md").read_text().split()) <= 600
    first = (ROOT / "CHANGELOG.md").read_text().partition("\n## 0.1.0 ")[2].partition("\n## ")[0]
    assert 10 < len(re.findall(r"^- ", first, re.M)) <= 25


def test_the_look_of_the_guide_reads_says_draws_and_refuses(tmp_path):
    from thinwire.studies.read import RecordedRun

    (code,) = blocks("docs/add-a-look.md")
    exec(compile(code, "pace", "exec", dont_inherit=True), namespace := {"__name__": "pace"})
    run = RecordedRun(tmp_path / "run", {"kind": "federated"}, [{"seconds": x} for x in (9.0, 3.0, 1.0, 2.0)], None)
    look = namespace["Pace"](skip=1)
    reading = look.read(run)
    assert look.values(reading) == {"unit": "round", "seconds": [3.0, 1.0, 2.0]}
    assert [list(table.cells) for table in look.rows(reading)] == [[["1", "2", "3"]]]
    assert [path.name for path in look.draw(reading, tmp_path / "look")] == ["pace.png"]
    with pytest.raises(ValueError, match="--skip -1: it must not be negative"):
        namespace["Pace"](skip=-1)
    with pytest.raises(tw.errors.RunError, match="has no round after the first 4: --skip fewer"):
        namespace["Pace"](skip=4).read(run)


@pytest.mark.parametrize("page", ["first-comparison", "cut-a-gpt", "ddp-script", "first-adapter"])
def test_the_commands_of_a_tutorial_parse(page):
    from typer.main import get_command

    commands = commands_of((ROOT / f"docs/tutorials/{page}.md").read_text())
    assert commands
    for program, *words in commands:
        assert program == "thinwire"
        command = get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(words[0], list(words))


@pytest.mark.slow
def test_the_program_of_the_first_tutorial_says_that_the_thin_method_sends_less(capsys):
    (code,) = blocks("docs/tutorials/first-comparison.md")
    exec(compile(code.replace('"rounds": 30', '"rounds": 6'), "first-comparison", "exec", dont_inherit=True), {})
    plain, thin = ([float(x) for x in line.split()] for line in capsys.readouterr().out.splitlines())
    assert thin[1] < plain[1]
    assert thin[2] == plain[2]


def test_the_methods_of_the_page_of_results_are_those_that_its_script_trains():
    listed = ast.literal_eval(
        (ROOT / "experiments/fashion/table.py").read_text().split("\nMETHODS = ")[1].split("SCALAR")[0]
    )
    methods = [line.strip() for line in listed.strip().splitlines()]
    command = next(
        x for x in re.findall(r"```\n(.*?)```", (ROOT / "docs/measured/results.md").read_text(), re.S) if " run " in x
    )
    words = shlex.split(command.replace("\\\n", " "))
    assert words[2 : words.index("--data")] == methods
    assert len(methods) == 6


@pytest.mark.slow
def test_the_example_of_the_readme_runs(tmp_path, capsys):
    example = next(block for block in blocks("README.md") if "simulate" in block)
    path = tmp_path / "example.py"
    path.write_text(example)
    runpy.run_path(str(path), run_name="__main__")
    assert re.search(r"0\.\d+ \d+ \d+", capsys.readouterr().out)


def problem_start(problem) -> torch.Tensor:
    simulation = tw.Simulation(tw.FedAvg(), problem.model, problem.tasks)
    simulation.pool.close()
    return simulation.server.x.flat


def tw_split():
    from thinwire.data import Dirichlet

    return Dirichlet(0.3)


def test_what_the_page_of_rounds_that_do_not_wait_says_in_words_is_in_its_lines():
    page = said("docs/measured/buffered.md")
    lines = {
        (line["split"], line["method"], line["buffer"], line["seed"]): line
        for line in written("experiments/buffered/results/time_to_target.jsonl")
    }
    assert len(lines) == 2 * 3 * 4 * 3

    def times(split, field):
        """The run that waits over each of those that do not, in the means of three seeds."""
        own = {
            (method, buffer): sum(lines[split, method, buffer, seed][field] for seed in range(3))
            for (each, method, buffer, _) in lines
            if each == split
        }
        return sorted(own[method, None] / value for (method, buffer), value in own.items() if buffer)

    alike, skewed = times("iid", "seconds_to_target"), times("Dirichlet(0.3)", "seconds_to_target")
    assert f"a factor of {alike[0]:.1f} to {alike[-1]:.1f} on parts that are alike" in page
    assert f"on parts that are not, {skewed[0]:.1f} to {skewed[-1]:.1f}:" in page
    whole = sorted(times("iid", "clock") + times("Dirichlet(0.3)", "clock"))
    assert len(whole) == 18
    assert f"600 replies take {whole[0]:.1f} to {whole[-1]:.1f} times as long as without waiting" in page
    bytes_up = times("Dirichlet(0.3)", "bytes_up")
    assert f"up to {1 / bytes_up[0]:.1f} times the bytes on `Dirichlet(0.3)`" in page
    dense = [line["bytes_up"] for (_, method, *_), line in lines.items() if method == "dense"]
    assert max(dense) < 1.001 * min(dense)  # of the same replies, with other headers
    assert {round(line["mean_staleness"]) for (*_, buffer, _), line in lines.items() if buffer == "Buffered(1)"} == {9}


def test_what_the_page_of_hostile_clients_says_in_words_is_in_its_lines():
    page, methods = said("docs/measured/robust.md"), ("dense", "top-k", "LBGM")
    lines = [line for method in methods for line in written(f"experiments/robust/results/{method}.jsonl")]
    seeds = defaultdict(list)
    for line in lines:
        seeds[tuple(line[name] for name in ("split", "method", "rule", "attack"))].append(line.get("accuracy", 0.1))
    assert len(seeds) == 10 * 2 * (6 + 7 + 7)
    assert {len(each) for each in seeds.values()} == {3}
    own = {key: statistics.fmean(each) for key, each in seeds.items()}

    def at(method, rule, attack="none", split="iid"):
        return f"{own[split, method, rule, attack]:.3f}"

    def lowest(rule, split="iid"):
        return f"{min(x for (s, _, r, a), x in own.items() if (s, r) == (split, rule) and a != 'none'):.3f}"

    skewed, clip, small = "Dirichlet(0.3)", 'clip="auto"', ("ALIE", "IPM", "LabelFlip")
    centred, middle, chosen = "CenteredClip(steps=3)", "GeometricMedian()", "MultiKrum(2)"
    flipped = [{at(method, "Mean()", "SignFlip", split) for method in methods} for split in ("iid", skewed)]
    assert flipped == [{"0.099"}, {"0.101"}]
    assert "`SignFlip` leaves the mean at 0.099 on parts that are alike and at 0.101 on" in page
    assert f"multiplier takes it to {at('LBGM', 'Mean()', 'own')} in the bytes" in page
    assert f"takes top-k to {at('top-k', 'Mean()', 'own')}" in page
    assert all(own[s, m, clip, "none"] >= own[s, m, "Mean()", "none"] for s, m, *_ in own)
    assert f"lowest accuracy is {lowest(clip)} on parts that are alike, and {lowest(clip, skewed)} on" in page
    assert f"of `MultiKrum(2)` is {lowest(chosen)}. `GeometricMedian()` has {lowest(middle)}, `Centered" in page
    assert f"`CenteredClip()` {lowest(centred)}, `NormClip()` {lowest('NormClip()')}. They cost at most 0.6" in page
    assert lowest(chosen) == max(lowest(rule) for _, _, rule, _ in own)
    good = (chosen, centred, middle, "NormClip()")
    costs = [own["iid", m, "Mean()", "none"] - own["iid", m, r, "none"] for m in methods for r in good]
    assert f"{100 * max(costs):.1f}" == "0.6"
    assert f"`Krum(2)` has {at('dense', 'Krum(2)', split=skewed)} with dense updates" in page
    median, mean, geometric = (at("dense", rule, split=skewed) for rule in ("Median()", "Mean()", middle))
    assert f"`Median()` {median} for the mean's {mean}. `GeometricMedian()` has {geometric} there" in page
    assert f"its lowest accuracy, {lowest(middle, skewed)}, is the highest; `CenteredClip()` has" in page
    assert f"`CenteredClip()` has {lowest(centred, skewed)} and `NormClip()` {lowest('NormClip()', skewed)}" in page
    assert lowest(middle, skewed) == max(lowest(rule, skewed) for _, _, rule, _ in own)
    medians = at("top-k", "Median()"), at("top-k", "Median()", split=skewed)
    assert "`Median()` has {} without an attack on parts that are alike, and {} on".format(*medians) in page

    def lied(rule, split):
        return min(x for (s, _, r, a), x in own.items() if (s, r) == (split, rule) and a in small)

    worst = [f"{lied('Mean()', split):.3f}" for split in ("iid", skewed)]
    assert "take the mean to {} at worst where clients are alike, and to {} where".format(*worst) in page
    best = [max((lied(rule, split), rule) for _, _, rule, _ in own) for split in ("iid", skewed)]
    assert "have {:.3f} (`{}`) and {:.3f} (`{}`): it".format(*best[0], *best[1]) in page
    ruled = [line for line in lines if line["rule"] not in ("Mean()", clip) and "diverged" not in line]
    large = [line for line in ruled if line["attack"] in ("SignFlip", "GaussianNoise")]
    assert {line["far_hostile"] for line in large} == {1.0}
    assert max(line["far_honest"] for line in ruled) == pytest.approx(0.02)
    assert {line["named_honest"] for line in ruled} == {0}
    spreads = [[statistics.stdev(x) for (s, *_), x in seeds.items() if s == split] for split in ("iid", skewed)]
    middles = [f"{statistics.median(some):.3f}" for some in spreads]
    assert "accuracy is {} in the median where clients are alike, and {} where they differ".format(*middles) in page


def test_what_the_page_of_who_takes_part_says_in_words_is_in_its_lines():
    page, ends, bytes_down, rounds = said("docs/measured/sampling.md"), defaultdict(list), {}, defaultdict(list)
    for line in written("experiments/sampling/results/power_of_choice.jsonl"):
        row = line["split"], line["candidates"]
        ends[row].append(line["accuracy_mean_of_last_5"])
        rounds[row].append(line["rounds_to_70"])
        bytes_down[row] = line["bytes_down"]
    assert {len(each) for each in ends.values()} == {3}
    for split in ("Dirichlet(0.3)", "Dirichlet(2.0)"):
        by_size = statistics.fmean(ends[split, 3])
        assert max(statistics.fmean(ends[split, d]) for d in (6, 9, 15)) - by_size < 0.006
        assert 0 < statistics.fmean(rounds[split, 3]) - statistics.fmean(rounds[split, 15]) < 6
        assert round(bytes_down[split, 15] / bytes_down[split, 3]) == 5
    assert "no row is more than 0.6 points ahead" in page
    assert "for five times the bytes down" in page


def test_what_the_page_of_everyday_tasks_says_in_words_is_in_its_lines():
    page = said("docs/measured/everyday.md")
    of = {(line["task"], line["framework"]): line for line in written("benchmarks/results/everyday.jsonl")}
    assert len(of) == 5 * 4
    others = [of["compare", name]["lines"] for name in ("flower", "nvflare", "pfl")]
    assert (of["compare", "thinwire"]["lines"], min(others), max(others)) == (5, 38, 45)
    assert "Five lines in place of 38 to 45" in page
    assert {key for key, line in of.items() if line["lines"] is None} == {
        ("bytes", "nvflare"),
        ("bytes", "pfl"),
        ("deploy", "pfl"),
    }
    kept = {name: (of["resume", name]["resumed"], of["resume", name]["exact"]) for _, name in of}
    expected = {"flower": (True, False), "nvflare": (False, False), "pfl": (True, True), "thinwire": (True, True)}
    assert kept == expected
    seconds = {name: of["deploy", name]["seconds"] for name in ("thinwire", "flower", "nvflare")}
    assert 3 * seconds["thinwire"] < seconds["flower"]
    assert "less than a third of the time of Flower's own strategy" in page
    assert seconds["nvflare"] < seconds["thinwire"]
    assert "its twenty rounds end first" in page


def test_what_the_page_of_a_real_federation_says_of_cuts_is_in_its_line():
    page = said("docs/measured/federation.md")
    lines = {(line["run"], line.get("model_bytes")): line for line in written("benchmarks/results/soak.jsonl")}
    cut = lines["cut", 7_584_000]
    assert (cut["rounds"], cut["mbit"], cut["cut"], cut["cuts"]) == (2, 40, 10.0, 2 * 3)
    assert f"a model of {cut['model_bytes'] / 1e6:.1f} MB" in page
    width = cut["model_bytes"] // 48  # of the hidden layer: twelve parameters a unit, and two running statistics
    payload = 2 * 3 * (4 * (14 * width + 3) + 20)  # three biases, and what a packet takes beside its numbers
    assert f"{cut['up_bytes']:,} bytes up, {cut['up_bytes'] - payload:,} of them" in page
    assert f"{cut['resent_bytes']} were sent again" in page
    assert "took " + " and ".join(f"{seconds:.0f}" for seconds in cut["seconds"]) + " seconds" in page
    whole = lines["cut", 75_840_000]
    assert (whole["rounds"], whole["mbit"], whole["cut"], whole["cuts"]) == (3, 4, 360.0, 3 * 3)
    both_ways = 3 * 3 * 2 * whole["model_bytes"]
    assert f"Of the {both_ways:,} bytes" in page
    assert f"{whole['resent_bytes']:,} again, {100 * whole['resent_bytes'] / both_ways:.1f} %" in page
    first, *others = (f"{seconds:,.0f}" for seconds in whole["seconds"])
    assert f"The rounds took {first}, {' and '.join(others)} seconds" in page
    for size in (7_600_000, 76_000_000):
        auto = lines["auto", size]
        assert (auto["rounds"], auto["mbit"], auto["cut"], auto["cuts"]) == (3, 4, 20.0, 9)
        assert f"most {auto['most_both_ways']:,} bytes, both ways" in page
        assert auto["most_both_ways"] <= 0.01 * size
        first, *others = (f"{seconds:.0f}" for seconds in auto["seconds"])
        assert f"the rounds {first}, {' and '.join(others)} seconds" in page
    killed = lines["killed", None]
    counts = f"{killed['kills']} kills and {killed['cuts']} cuts, in {killed['seconds'] / 60:.0f} minutes"
    assert f"{killed['rounds']} rounds, with {counts}, in which {killed['answers_lost']} of" in page
    assert f"{3 * killed['rounds']} answers were lost" in page


def test_what_the_page_of_speed_says_in_words_is_in_its_lines():
    page = said("docs/measured/speed.md")
    lines = [line for line in written("benchmarks/results/simulate.jsonl") if "outside_us" in line]
    for name in ("outside_us", "passes_us"):
        amd, intel = (
            {line["job"]: line[name] for line in lines if line["processor"].startswith(maker)}
            for maker in ("AMD", "Intel")
        )
        told = f"{amd['J2']:,} in J2 and {amd['J4']:,} in J4, on an Intel Xeon {intel['J2']:,} and {intel['J4']:,}"
        assert told in page
    (line,) = (line for line in written("benchmarks/results/memory.jsonl") if line["method"].startswith("FedSM"))
    peak, kept = line["peak_mb"], line["kept_mb"]
    unet, selector = (next(name for name in kept if f"batch {batch}" in name) for batch in (4, 32))
    assert f"took {peak['set-up']:,} MB at the end of set-up, {peak[unet]:,} MB in the training of its U-Net" in page
    assert f"{peak[selector]:,} MB in that of its selector, whose batch of 32 alone keeps {kept[selector]:,} MB" in page
    assert f"and {peak['tests']:,} MB in its tests" in page
