"""What the pages say works, works: their code is run."""

import ast
import json
import os
import posixpath
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import thinwire as tw
from thinwire.cli import app
from thinwire.expression import vocabulary
from thinwire.problem import standard

ROOT = Path(__file__).parents[1]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.fixture
def fednova(tmp_path, monkeypatch):
    """The tutorial's method, imported from a file as its reader would write it."""
    code = next(block for block in blocks("docs/write-a-method.md") if "class FedNova" in block)
    (tmp_path / "fednova.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fednova", raising=False)
    import fednova

    assert len(code.splitlines()) <= 60
    return fednova.FedNova


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


def test_the_method_of_the_tutorial_is_typed_with_use(fednova, tmp_path):
    words = [sys.executable, "-m", "thinwire.cli"]
    run = ["run", "FedNova(up=TopK(0.1))", "--use", "fednova", "--clients", "4", "--rounds", "2", "--out", "run"]
    done = subprocess.run([*words, *run], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "FedNova(up=TopK(0.1))" in (tmp_path / "run/table.md").read_text()
    done = subprocess.run([*words, "resume", "run", "--rounds", "3"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*words, "predict", "FedAvg()", "--use", "nowhere"], cwd=tmp_path, capture_output=True)
    assert done.stderr == b"error: --use nowhere: there is no module nowhere here or on the Python path\n"


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
    code = next(block for block in blocks("docs/write-a-method.md") if "class Signs" in block)
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
    code = next(block for block in blocks("docs/write-a-method.md") if "class Signs" in block)
    count = next(block for block in blocks("docs/write-a-method.md") if "def count" in block)
    namespace = {"__name__": "signs"}
    exec(compile(code + "\n" + count, "signs", "exec", dont_inherit=True), namespace)
    with pytest.raises(tw.errors.CombinationError, match="contraction"):
        tw.ErrorFeedback(namespace["Signs"]())
    assert tw.ErrorFeedback(tw.ScaledSign())
    x = tw.Params.of([("a", torch.randn(64)), ("b", torch.randn(32))])
    packet, _, _ = namespace["Signs"]().send(x, None, tw.Key(0))
    assert namespace["Signs"]().floats(packet) == 3.0


def test_what_the_tutorial_says_of_params_is_so():
    code = next(block for block in blocks("docs/write-a-method.md") if "x.layout.size" in block)
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


def test_every_field_of_a_request_and_every_flag_of_a_link_is_in_the_tutorial():
    page = (ROOT / "docs/write-a-method.md").read_text()
    said = set(re.findall(r"^\| `(\w+)`", page, re.M))
    assert set(tw.Local._fields) <= said
    flags = {name for cls in (tw.Link, tw.Codec) for name, value in vars(cls).items() if type(value) is bool}
    assert flags == {"linear", "contraction", "memory", "absolute", "grows"}
    assert flags <= said
    assert set(re.findall(r"`(\w+)`, ", page)) >= {"x", "steps", "loss", "rates"}
    assert all(f"`{name}`" in page for name in tw.Trained._fields)


def test_the_task_of_the_readme_is_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    (tmp_path / "my_module.py").write_text(next(block for block in blocks("README.md") if "make_task" in block))
    words = ["run", "FedAvg()", "--task", "my_module:make_task", "--clients", "4", "--rounds", "1", "--json"]
    assert not app([*words, "--workers", "1"], standalone_mode=False)
    # a reply: 14 floats, and what surrounds them
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert 4 * 14 * 4 < rows[0]["bytes_up"] < 4 * 14 * 4 + 4 * 120


def test_the_commands_of_the_readme_run_as_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks("README.md"):
        if named := re.match(r"# (my_\w+)\.py\n", block):
            (tmp_path / f"{named[1]}.py").write_text(block)
            monkeypatch.delitem(sys.modules, named[1], raising=False)
    commands = commands_of((ROOT / "README.md").read_text())
    assert [words[words.index("--out") + 1] for words in commands] == ["runs/first", "runs/mine", "runs/own"]
    for words in commands:
        short = [*words[1:], "--workers", "1"]
        short[short.index("--rounds") + 1] = "2"
        assert not app(short, standalone_mode=False)
    table = (tmp_path / "runs/own/table.md").read_text()
    assert all(f"`{name}`" in table for name in ("FedAvg()", "Clipped(most=0.1)", "FedAvg(up=Steps(0.001))"))
    capsys.readouterr()


def test_the_readme_fits_its_lines_and_its_figures_are_those_of_the_results():
    page, lines = said("README.md"), (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120
    rows = {line["row"]: line for line in written("experiments/everything/results/digits.jsonl")}
    for name in ("FedAvg()", "Intrinsic(500)"):
        line, (_, _, rest) = rows[name], page.partition(f"`{name}`")
        figures = re.search(r"([\d.]+) % with ([\d.]+) MB up and ([\d.]+) MB down", rest)
        assert figures.groups() == tuple(
            f"{value:.{digits}f}"
            for value, digits in (
                (100 * line["accuracy"], 1),
                (line["bytes_up"] / 1e6, 2),
                (line["bytes_down"] / 1e6, 2),
            )
        )
    found = {row[1]: row for row in (line.split("|") for line in tables.TABLES["ddp-time"]())}
    thin, dense = found[" `DEFA(64, lam=0.5)` "], found[" `Hook(Dense())` "]
    assert f"need{thin[4]}s to 58 %" in page
    assert f"{thin[3].strip()} bytes a step" in page
    assert f"and{dense[4]}s with dense gradients, at{dense[3]}bytes each way" in page
    assert f"{dense[6].split()[0]} % to {thin[6].split()[0]} %" in page


def test_every_method_of_the_table_of_expressions_can_be_typed():
    text = (ROOT / "docs/methods/index.md").read_text().partition("## What can be written")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    found = [word for row in rows for word in re.findall(r"`([^`]+)`", row) if "..." not in word]
    assert len(found) > 30
    for word in found:
        assert tw.parse(word)


def test_what_every_link_takes_is_measured_and_said():
    code = (ROOT / "benchmarks" / "kernels.py").read_text()
    measured = ast.literal_eval(code[code.index("\nLINKS = ") :].partition("= ")[2].partition("\n]")[0] + "]")
    said = re.findall(r"^\| `(.+?)` \| [0-9,]+ \| [0-9.]+ \| [0-9.]+ \|$", (ROOT / "docs/links.md").read_text(), re.M)
    assert said == measured
    links = {name for name, cls in vocabulary().items() if issubclass(cls, tw.Link)}
    assert links - set(re.findall(r"\w+(?=\()", " ".join(measured))) == set()


def test_whatever_names_a_paper_says_how_it_differs_from_it():
    from thinwire.compare.data_parallel import METHODS

    silent, named = [], {**vocabulary(), **{f"ddp.{name}": cls for name, cls in METHODS.items()}}
    for name, cls in named.items():
        said = [cls.__doc__, sys.modules[cls.__module__].__doc__]
        if cls.paper and not re.search(r"Differences from the\s(paper|thesis)", "".join(filter(None, said))):
            silent.append(name)
    assert silent == []


def test_nothing_claims_what_is_not_there_yet():
    """Of pipelined training there is no module."""
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "README.md")]
    assert not any("pipelin" in text.lower() for text in [*texts, tw.__doc__])


sys.path += [str(ROOT / "experiments"), str(ROOT / "docs")]
import macros  # noqa: E402
import tables  # noqa: E402

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
    assert macros.page(path).names
    assert "{{" not in macros.expand(text, path.name)


@each_page
def test_the_command_of_a_page_of_a_method_parses(path):
    from typer.main import get_command

    from thinwire.compare.data_parallel import method

    commands = commands_of(path.read_text().partition("## Try it")[2])
    assert commands
    for program, name, *words in commands:
        assert program == "thinwire"
        command = get_command(app).commands[name]
        context = command.make_context(name, list(words))
        for expression in context.params.get("methods", ()):
            assert method(expression) if name == "ddp-sim" else tw.parse(expression)


def test_every_method_and_link_has_a_page():
    pages = macros.pages()
    assert (ROOT / "docs/methods/index.md").exists()
    papers = [macros.owner(word)[0] for path in METHOD_PAGES for word in papers_of(path)]
    assert [name for name in dict.fromkeys(papers) if papers.count(name) > 1] == []
    named = {name for page in pages for name in page.names}
    wanted = {name for name, kind in macros.catalogued().items() if kind in macros.PAGED}
    assert sorted(wanted - named) == []


def papers_of(path):
    return [word for call in macros.calls(path.read_text()) if call.name == "paper" for word in call.words]


def test_what_the_pages_say_of_bytes_was_measured():
    lines = {line["expression"]: line for line in written("docs/methods/bytes.jsonl")}
    missing = {name: pages for name, pages in macros.expressions().items() if name not in lines}
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
    }.items():
        with pytest.raises(macros.Wrong, match=words) as error:
            macros.expand(f"text\n\n{{{{ {macro} }}}}\n", "docs/methods/x.md")
        assert str(error.value).startswith(f"docs/methods/x.md: {{{{ {macro} }}}}: ")


def test_code_of_a_page_has_no_docstrings_and_differences_are_markdown():
    code = macros.code(["thinwire.links.sparse.kept", "TopK.contraction"])
    assert code.startswith("```python\ndef kept(")
    assert '"""' not in code
    assert "\n# TopK\n@property\ndef contraction(self)" in code
    assert macros.markdown("a <- b * c, as :class:`~thinwire.Params` and ``x < y`` have") == (
        "a &lt;- b \\* c, as `thinwire.Params` and `x < y` have"
    )
    assert macros.differences(["EF21"]) == "None.\n"
    assert macros.differences(["DEF"]).startswith("by default lam is measured")
    assert macros.paper(["DEF", "DEFA"]).startswith("**Paper** of `DEF` and `DEFA`: Xu, Huang")
    assert macros.owner("EF21")[0] == "thinwire.EF21"
    assert macros.owner("ddp.EF21")[0] == "thinwire.ddp.EF21"


def test_whatever_names_a_paper_has_differences_that_a_page_can_show():
    for name in macros.catalogued():
        if macros.paper([name]).startswith("**Paper**"):
            assert macros.differences([name])


def test_every_public_name_is_on_a_page_of_the_api():
    import thinwire.data
    import thinwire.ddp
    import thinwire.models

    text = "".join(macros.expand(path.read_text(), path.name) for path in (ROOT / "docs/api").glob("*.md"))
    shown = {line.split()[1].split(".")[-1] for line in text.splitlines() if line.startswith(":::")}
    for module in (tw, thinwire.ddp, thinwire.data, thinwire.models):
        assert sorted(set(module.__all__) - shown) == [], module.__name__


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


@pytest.mark.parametrize("name", tables.TABLES)
def test_a_printed_table_says_what_the_committed_results_say(name):
    page, printed = tables.printed()[name]
    try:
        made = tables.TABLES[name]()
    except tables.Missing as command:
        pytest.skip(f"there are no results for it yet: {command}")
    assert printed.splitlines() == made, f"{page}: python experiments/tables.py --write"


def test_every_table_with_figures_is_printed_from_results():
    by_hand = []
    for page in [ROOT / "README.md", ROOT / "experiments/README.md", *(ROOT / "docs").glob("*.md"), *METHOD_PAGES]:
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
CHANGED = {  # by code that is in no commit, and to be made again
    "experiments/flss/results/ablations.jsonl",
    "experiments/flss/results/table1.jsonl",
}


@pytest.mark.parametrize("path", sorted(map(str, RESULTS)))
def test_committed_results_are_by_code_that_is_in_a_commit(path):
    lines = [json.loads(line) for line in (ROOT / path).read_text().splitlines()]
    dirty = [line for line in lines if line.get("dirty") or "-dirty" in line.get("version", "")]
    assert bool(dirty) == (path in CHANGED)
    assert not any(line.get("tiny") for line in lines)
    assert all(line["command"].startswith(("python ", "pytest ")) for line in lines)


def written(path):
    return [json.loads(line) for line in (ROOT / path).read_text().splitlines()]


def said(page):
    return " ".join((ROOT / page).read_text().split())


def test_what_the_page_of_experiments_says_of_the_order_is_the_order_of_the_results():
    lines = [json.loads(line) for line in (ROOT / "experiments/optimisers/results/luar.jsonl").read_text().splitlines()]
    places = {}
    for inner in ("FedAvg()", "FedAvg(opt=Adam(0.01))", "MOON()"):
        ends = {}
        for line in lines:
            if line["inner"] == inner and line["row"] in ("metric", "uniform", "round-robin", "gradient-norm"):
                ends.setdefault(line["row"], {})[line["seed"], line["expression"]] = line["accuracy"]
        mean = {row: sum(of.values()) / len(of) for row, of in ends.items()}
        places[inner] = sorted(mean, key=mean.get, reverse=True).index("metric")
    words = [("first", "second", "third", "last")[place] for place in places.values()]
    page = said("experiments/README.md")
    assert "it is {} over FedAvg, {} over FedAdam, {} over MOON".format(*words) in page
    path = ROOT / "experiments/intrinsic/results/equal_bytes_shakespeare.jsonl"
    five = [json.loads(line) for line in path.read_text().splitlines() if "epochs=5.0" in line][-1]
    assert re.search(rf"5 local epochs [^\n]*\| {100 * five['accuracy']:.1f} % \| 271 \| 271", page)


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
