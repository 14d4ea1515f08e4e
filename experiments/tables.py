"""Every table of figures in the pages is printed from the committed results.

Before such a table stands a comment, ``<!-- table: NAME -->``, and NAME is a function here that makes its lines from
the JSON lines of experiments/*/results and benchmarks/results. ``--write`` writes them, ``--check`` compares. Where
results are missing, the command that makes them is said, and the table is left as it is.

    python experiments/tables.py --check
    python experiments/tables.py --write
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "experiments/README.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/ddp.md",
    "docs/federation.md",
    "docs/links.md",
]
MARK = re.compile(r"<!-- table: (\S+) -->\n((?:\|.*\n)*)")
Line = dict[str, Any]
TABLES: dict[str, Callable[[], list[str]]] = {}


class Missing(Exception):
    """There are no results for a table; the message is the command that makes them."""


def table(made: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """A function is the table of its name, with - for _."""
    TABLES[made.__name__.replace("_", "-")] = made
    return made


def read(path: str, command: str) -> list[Line]:
    """The lines of a file of results, without those of the smallest size."""
    file = ROOT / path
    if not file.exists():
        raise Missing(command)
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in found if not line.get("tiny")]


def of(lines: list[Line], command: str, **fields: Any) -> Line:
    """The last line with these fields."""
    found = [line for line in lines if all(line.get(name) == value for name, value in fields.items())]
    if not found:
        raise Missing(command)
    return found[-1]


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], left: Iterable[int] = (0,)) -> list[str]:
    """Lines of a table whose columns are on the right but for those of ``left``."""
    names = list(head)
    align = [" --- " if i in left else " ---: " for i in range(len(names))]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(align)}|"]
    return [re.sub(r" {2,}", " ", line) for line in [*lines, *(f"| {' | '.join(row)} |" for row in rows)]]


def percent(x: float | None) -> str:
    """``77.2 %``; nothing for None."""
    return "" if x is None else f"{100 * x:.1f} %"


def mean(values: list[float]) -> str:
    """Percent, with the standard deviation of several."""
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread} %"


def number(x: float, digits: int = 3) -> str:
    """To three digits, all before the point, none before it that is 0."""
    decimals = 0 if x >= 100 else 1 if x >= 10 else 2
    text = f"{x:,.{min(decimals, digits - 1)}f}"
    return text[1:] if text.startswith("0.") else text


def mb(size: float) -> str:
    return number(size / 1e6)


def sent(line: Line) -> list[str]:
    return [mb(line["bytes_up"]), mb(line["bytes_down"])]


# -- the pages of users ---------------------------------------------------------------------------------------------


@table
def fashion() -> list[str]:
    command = "python experiments/fashion/table.py --out runs/fashion"
    lines = read("experiments/fashion/results/table_fashion_mnist.jsonl", command)
    dense = of(lines, command, row="FedAvg()")
    whole = dense["bytes_up"] + dense["bytes_down"]
    rows = []
    for line in lines:
        up, both = line["bytes_up"] / dense["bytes_up"], (line["bytes_up"] + line["bytes_down"]) / whole
        accuracies = [percent(line["accuracy"]), percent(line["best_accuracy"])]
        shares = [percent(up), percent(both), f"{line['network_seconds']['1']:,.0f}"]
        again = f"{100 * line['recycled']:.1f} %" if "LBGM" in line["row"] else ""
        rows.append([f"`{line['row']}`", *accuracies, *sent(line), *shares, again])
    head = [
        "method",
        "accuracy",
        "best",
        "MB up",
        "MB down",
        "up / FedAvg",
        "total / FedAvg",
        "s at 1 Mbit/s",
        "recycled",
    ]
    return markdown(head, rows)


@table
def simulate() -> list[str]:
    command = "python benchmarks/simulate.py --rounds 5 --into benchmarks/results/simulate.jsonl"
    rows = []
    for line in read("benchmarks/results/simulate.jsonl", command):
        times = [f"{line[name]:.3f} s" for name in ("bare_seconds", "seconds")]
        first = f"{line['first_round_seconds']:.1f} s"
        rows.append([where(line), line["job"], *times, f"{line['ratio']:.2f}", first, f"{line['peak_mb']:,} MB"])
    head = ["processor", "`benchmarks/simulate.py`", "bare loop", "thinwire", "ratio", "first round", "memory"]
    return markdown(head, rows, (0, 1))


@table
def peers() -> list[str]:
    command = "python benchmarks/peers.py --passes 3 --into benchmarks/results/peers.jsonl"
    rows = []
    for line in read("benchmarks/results/peers.jsonl", command):
        for peer, found in line["found"].items():
            name = {"thinwire": "thinwire", "pfl": "pfl-research", "flower": "Flower on Ray"}[peer]
            figures = [f"{found['seconds']:.3f} s", f"{found['ratio']:.2f}", f"{found['first_round_seconds']:.1f} s"]
            rows.append([where(line), line["job"], f"{name} {found['version']}", *figures, f"{found['peak_mb']:,} MB"])
    head = ["processor", "`benchmarks/peers.py`", "simulator", "a round", "to thinwire's", "first round", "memory"]
    return markdown(head, rows, (0, 1, 2))


def where(line: Line) -> str:
    return f"{line['processor']}, {line['cores']} cores"


@table
def links() -> list[str]:
    command = "python benchmarks/kernels.py --links --into benchmarks/results/kernels.jsonl"
    found = of(read("benchmarks/results/kernels.jsonl", command), command, part="links")["found"]
    if not all("send_vectors" in row for row in found.values()):
        raise Missing(f"{command} # on Linux")
    rows = [
        [f"`{name}`", f"{row['bytes']:,}", f"{row['send_vectors']:.1f}", f"{row['recv_vectors']:.1f}"]
        for name, row in found.items()
    ]
    head, align, *lines = markdown(["link", "bytes", "`send`, vectors", "`recv`, vectors"], rows)
    return [head, align.replace("| --- ", "| :--- ", 1), *lines]


@table
def wire() -> list[str]:
    command = "pytest -m soak tests/test_flower_links.py -k spared # with THINWIRE_RESULTS=experiments/wire/results"
    rows, names = [], {"fedavg": "`FedAvg`", "lbgm": "`LBGM`", "luar": "`LUAR`", "dense": "`FedAvg` with `mbit=0.3`"}
    for line in read("experiments/wire/results/slow_link.jsonl", command):
        if line["floats"] != 582_026:  # the model of the table
            continue
        counts = [f"{line[name]:,}" for name in ("up", "wire_up", "down", "wire_down")]
        rows.append([f"{line['round']} of {names[line['run']]}", *counts, f"{line['seconds']:.1f}"])
    return markdown(["round", "ledger, up", "IP bytes, up", "ledger, down", "IP bytes, down", "seconds"], rows)


@table
def ddp() -> list[str]:
    command = "python benchmarks/ddp.py --quick --slowlink PROGRAM --into benchmarks/results/ddp.jsonl"
    line = of(read("benchmarks/results/ddp.jsonl", command), command, part="slow")
    names = {"dense": "plain DDP", "fp16": "torch's fp16 hook", "def64": "`DEF(64)`", "def256": "`DEF(256)`"}
    rows = [
        [
            names.get(name, f"`{name}`"),
            f"{ms:.1f}",
            "1" if name == "dense" else f"{ms / line['ms']['dense']:.3f}"[1:],
            f"{line['given'][name]:,.0f}" if name in line["given"] else "",
        ]
        for name, ms in line["ms"].items()
    ]
    return markdown(["", "ms a step", "of dense", "bytes"], rows)


# -- experiments ----------------------------------------------------------------------------------------------------


def flss(data: str, title: str, command: str) -> list[str]:
    lines = read("experiments/flss/results/table1.jsonl", command)
    rows = []
    for name in ("FedAvg", "FedAvg+FLSS", "Sign+EF", "Sign+EF+FLSS"):
        found = [of(lines, command, data=data, row=name, beta=beta) for beta in (0.1, 0.5, 1.0)]
        paper = ", ".join(f"{line['paper_accuracy']:.2f}" for line in found)
        rows.append([name, *(percent(line["accuracy"]) for line in found), *sent(found[0]), paper])
    return markdown([title, "beta .1", ".5", "1", "MB up", "MB down", "paper: .1, .5, 1"], rows, (0, 6))


@table
def flss_fashion_mnist() -> list[str]:
    command = "python experiments/flss/table1.py --rounds 40 --start 15 --rank 8"
    return flss("fashion_mnist", "Fashion-MNIST", command)


@table
def flss_cifar10() -> list[str]:
    command = "python experiments/flss/table1.py --data cifar10 --examples 3000 --rounds 25 --start 10 --rank 5"
    return flss("cifar10", "CIFAR-10", command)


@table
def flss_ablations() -> list[str]:
    command = "python experiments/flss/table1.py --ablations --rounds 25 --start 10 --rank 5"
    lines = read("experiments/flss/results/ablations.jsonl", command)
    names = {
        "streaming": "streaming: R = 5, lambda = 1, s = 5",
        "fixed": "fixed subspace",
        "lambda = 0.7": "lambda = .7",
        "lambda = 0.5": "lambda = .5",
        "gradients": "gradients projected in place of updates",
    }
    rows = []
    for name in dict.fromkeys(line["row"] for line in lines):
        line = of(lines, command, row=name)
        tail = percent(line["accuracy_mean_of_last_5"])
        rows.append([names.get(name, name), percent(line["accuracy"]), tail, *sent(line)])
    return markdown(["row", "at the end", "mean of the last 5", "MB up", "MB down"], rows)


@table
def flss_baselines() -> list[str]:
    command = "python experiments/flss/table1.py --baselines --rounds 25 --start 15 --rank 8 --examples 4000 --beta 0.1"
    lines = read("experiments/flss/results/baselines.jsonl", command)
    names = {
        "FedAvg": "FedAvg",
        "FedProx": "FedProx, mu .01",
        "SCAFFOLD": "SCAFFOLD",
        "LBGM": "LBGM, delta .05",
        "FedPAQ": "FedPAQ, 16 levels",
        "Sign+EF": "Sign+EF",
        "STC": "STC, 1/32, both ways",
        "FetchSGD": "FetchSGD, a quarter of the floats up",
    }
    rows = []
    for name, shown in names.items():
        line = of(lines, command, row=name)
        paper = "" if line["paper_accuracy"] is None else f"{line['paper_accuracy']:.2f} %"
        rows.append([shown, percent(line["accuracy"]), percent(line["best_accuracy"]), *sent(line), paper])
    return markdown(["row", "at the end", "best", "MB up", "MB down", "paper"], rows)


@table
def luar_baselines() -> list[str]:
    command = "python experiments/luar/baselines.py --rounds 25 --clients 32 --sample 8 --steps 10"
    lines = read("experiments/luar/results/baselines_emnist_letters.jsonl", command)
    names = {
        "FedAvg": "FedAvg",
        "FedLUAR": "FedLUAR, 2 of 4 kernels",
        "LBGM": "LBGM layer by layer, delta .2",
        "FedPAQ": "FedPAQ, 16 levels",
        "FedDropoutAvg": "FedDropoutAvg, half",
        "Sign+EF": "Sign+EF",
        "STC": "STC, 1/32, both ways",
        "FetchSGD": "FetchSGD, a quarter of the floats up",
    }
    rows = []
    for name, shown in names.items():
        line = of(lines, command, row=name)
        paper = "" if line["paper_accuracy"] is None else f"{line['paper_accuracy']:.2f} %, {share(line['paper_comm'])}"
        rows.append([shown, percent(line["accuracy"]), share(line["comm"]), *sent(line), paper])
    return markdown(["row", "accuracy", "floats up", "MB up", "MB down", "paper: accuracy, floats up"], rows, (0, 5))


def share(x: float) -> str:
    return "1" if x == 1 else (f"{x:.2f}" if x >= 0.01 else f"{x:.3f}")[1:]


BUDGETS = (1, 3, 10, 30, 100, 300)


def spent(line: Line) -> list[tuple[float, float]]:
    """Accuracy and bytes both ways until then, of every evaluated round."""
    if all(len(point) == 6 for point in line["curve"]):
        return [(accuracy, up + down) for _, accuracy, _, _, up, down in line["curve"]]
    raise Missing(line["command"])


def within(line: Line) -> list[str]:
    """The best accuracy within each budget: - where no evaluated round fits, nothing where all fitted before."""
    cells, whole = [], line["bytes_up"] + line["bytes_down"]
    for before, budget in zip((0, *BUDGETS), BUDGETS, strict=False):
        best = max((accuracy for accuracy, used in spent(line) if used <= budget * 1e6), default=None)
        cells.append("" if before and whole <= before * 1e6 else percent(best) or "-")
    return cells


def equal_bytes(data: str, command: str, rows: dict[str, str]) -> list[str]:
    lines = read(f"experiments/intrinsic/results/equal_bytes_{data}.jsonl", command)
    made = []
    for title, pattern in rows.items():
        tried = [line for line in lines if re.fullmatch(pattern, line["expression"]) and "diverged" not in line]
        if not tried:
            raise Missing(command)
        line = max(tried, key=lambda line: line["best_accuracy"])
        made.append([title, *within(line), percent(line["accuracy"]), *sent(line)])
    return markdown(["method", *(f"{budget} MB" for budget in BUDGETS), "at the end", "MB up", "MB down"], made)


def intrinsic(dim: int, subspaces: int = 1, varying: bool = False) -> str:
    return rf"Intrinsic\(dim={dim}, subspaces={subspaces}, varying={varying}, .*"


EQUAL_BYTES = {
    "d = 4,096, K = 4": intrinsic(4096, 4),
    "d = 4,096, varying, epochs of 10": intrinsic(4096, 1, True),
    "d = 4,096, K = 4, varying": intrinsic(4096, 4, True),
    "ErrorFeedback(TopK(0.01))": r"FedAvg\(.*up=ErrorFeedback\(.*down=Dense\(\).*",
    "the same, `down=EF21(TopK(0.05))`": r"FedAvg\(.*down=EF21.*",
    "FedAvg, 1 local epoch": r"FedAvg\(.*epochs=1\.0.*up=Dense.*",
    "2 local epochs": r"FedAvg\(.*epochs=2\.0.*",
    "5 local epochs": r"FedAvg\(.*epochs=5\.0.*",
}


@table
def intrinsic_fashion_mnist() -> list[str]:
    command = (
        "python experiments/intrinsic/equal_bytes.py --data fashion_mnist --clients 300 --rounds 20 --every 4 "
        "--rate 1.0 --rate 0.3"
    )
    dims = {f"d = {d:,}": intrinsic(d) for d in (1024, 4096, 16384, 65536)}
    first = {"Intrinsic, d = 256": intrinsic(256)}
    return equal_bytes("fashion_mnist", command, first | dims | EQUAL_BYTES)


@table
def intrinsic_shakespeare() -> list[str]:
    command = (
        "python experiments/intrinsic/equal_bytes.py --data shakespeare --rounds 40 --clients 64 --sample 4 --lr 0.1 "
        "--dim 256 --dim 4096 --dim 65536 --rate 1 --rate 0.1 --every 5"
    )
    dims = {f"d = {d:,}": intrinsic(d) for d in (4096, 65536)}
    first = {"Intrinsic, d = 256": intrinsic(256)}
    return equal_bytes("shakespeare", command, first | dims | EQUAL_BYTES)


LOOK_BACK = {
    "dense, alone": "dense",
    "dense, LBGM": "LBGM over it",
    "top-k, alone": "top-k 10 %, error feedback",
    "top-k, LBGM": "LBGM on what top-k with feedback delivers",
    "top-k, LBGM, residual outside, dense update tested": "feedback around LBGM, dense update tested",
    "top-k, LBGM, no residual": "LBGM over top-k without feedback",
    "top-k, LBGM, their accounting": "their accounting: dense update with top-k's residual, floats of top-k counted",
    "top-k, LBGM, their accounting, residual of LBGM": "their accounting, with what LBGM left out as the residual",
    "rank 2, alone": "rank 2",
    "rank 2, LBGM": "LBGM over rank 2",
    "signs, alone": "signs",
    "signs, LBGM": "LBGM over signs",
}


def look_back(data: str) -> tuple[str, list[Line], dict[str, str]]:
    command = f"python experiments/lbgm/plug_and_play.py --data {data}"
    lines = read(f"experiments/lbgm/results/plug_and_play_{data}.jsonl", command)
    there = {line["row"]: line["row"] for line in lines}
    ordered = {row: shown for row, shown in LOOK_BACK.items() if row in there}
    return command, lines, ordered | {row: row for row in there if row not in LOOK_BACK}


def again(line: Line) -> str:
    return "" if line["threshold"] is None else f"{100 * line['recycled']:.0f} %"


@table
def look_back_mnist() -> list[str]:
    command, lines, names = look_back("mnist")
    rows = []
    for row, shown in names.items():
        line = of(lines, command, row=row)
        paper = (line.get("paper_saved") or "").replace("-", " to ")
        paper += " fewer bits" if "signs" in row and paper else ""
        if line.get("paper_accuracy"):
            paper = f"{percent(line['paper_accuracy'])} after 100 rounds of all the data"
        saved = f"{round(100 * line['saved_up'])} %" if line["threshold"] is not None else ""
        if "accounting" in line:  # no number of bytes
            saved = f"{round(100 * line['saved_floats_up'])} % of the floats"
        ends = [percent(line["accuracy"]), percent(line["best_accuracy"])]
        rows.append([shown, *ends, again(line), *sent(line), saved, paper])
    return markdown(["row", "at the end", "best", "recycled", "MB up", "MB down", "saved up", "paper"], rows, (0, 7))


@table
def look_back_fashion_mnist() -> list[str]:
    command, lines, names = look_back("fashion_mnist")
    rows = []
    for row, shown in names.items():
        cells = [shown]
        for training in ("full gradient, server momentum", "mini-batches"):
            try:
                line = of(lines, command, row=row, training=training)
                cells += [percent(line["accuracy"]), again(line), *sent(line)]
            except Missing:
                cells += [""] * 4
        rows.append(cells)
    twice = ["recycled", "MB up", "MB down"]
    return markdown(["row", "full gradients", *twice, "mini-batches", *twice], rows)


@table
def look_back_cifar10() -> list[str]:
    command, lines, names = look_back("cifar10")
    rows = []
    for row, shown in names.items():
        line = of(lines, command, row=row)
        saved = f"{round(100 * line['saved_up'])} %" if line["threshold"] is not None else ""
        if "accounting" in line:  # no number of bytes
            saved = f"{round(100 * line['saved_floats_up'])} % of the floats"
        rows.append([shown, percent(line["accuracy"]), again(line), *sent(line), saved])
    return markdown(["row", "accuracy", "recycled", "MB up", "MB down", "saved up"], rows)


def table_2(data: str, command: str, budgets: tuple[int, ...], paper: bool) -> list[str]:
    lines = read(f"experiments/fetchsgd/results/table2_{data}.jsonl", command)
    summary = of(lines, command, experiment="fetchsgd, table 2, summary")
    whole = of(lines, command, row="uncompressed")
    rows = []
    for line in lines:
        if line is summary:
            continue
        cells = [re.sub(r" \((.*?)\)", r", \1", line["row"]).replace("8 subspaces", "K = 8")]
        listed = ", ".join(f"{x:g}" for x in line["paper"] or ())
        listed = listed.replace(", ", "; ", 1)
        if "diverged" in line:
            rows.append([*cells, "diverged", *[""] * 6, listed] if paper else [*cells, "diverged"])
            continue
        up, down = (line[f"bytes_{way}"] / whole[f"bytes_{way}"] for way in ("up", "down"))
        both = sum(line[f"bytes_{way}"] for way in ("up", "down")) / sum(whole[f"bytes_{w}"] for w in ("up", "down"))
        less = ["1" if line is whole else number(1 / x, 2) for x in (up, down, both)]
        cells += [percent(line["best_accuracy"]), percent(line["accuracy"]), *less, *sent(line)]
        told = of(summary["table"], command, row=line["row"])["within"]
        at = [told[summary["budgets"].index(budget * 1e6)] for budget in budgets]
        rows.append([*cells, *([listed] if paper else [percent(x) or "-" for x in at])])
    head = ["row", "best", "end", "up", "down", "total", "MB up", "MB down"]
    if paper:
        return markdown([*head, "paper: perplexity; up, down, total"], rows, (0, 8))
    return markdown([*head, *(f"{budget:,} MB" for budget in budgets)], rows)


@table
def table_2_fashion_mnist() -> list[str]:
    command = "python experiments/fetchsgd/table2.py --data fashion_mnist --rounds 150 --lr 0.05"
    return table_2("fashion_mnist", command, (), True)


@table
def table_2_shakespeare() -> list[str]:
    command = "python experiments/fetchsgd/table2.py --data shakespeare --rounds 120 --clients 64 --sample 5 --lr 0.1"
    return table_2("shakespeare", command, (10, 30, 100, 300, 1000), False)


@table
def similarity() -> list[str]:
    command = "python experiments/optimisers/similarity.py --examples 4000 --seed 0 --seed 1 --seed 2"
    lines = read("experiments/optimisers/results/similarity.jsonl", command)
    names = {
        "DOMO": ("DOMO", ""),
        "DOMO-S": ("DOMO-S", "-0.1 to 1.5 (other models)"),
        "FedAvgSLMZ": ("FedAvgSLM-Z", None),
        "FedAvgSM": ("FedAvgSM", None),
        "FedAvg": ("FedAvg", None),
        "SCAFFOLD": ("SCAFFOLD, lr .02", ""),
    }
    rows, best = [], None
    for name, (shown, thesis) in names.items():
        runs = [line for line in lines if line["row"] == name and "diverged" not in line]
        if not runs:
            raise Missing(command)
        ends = [line["accuracy"] for line in runs]
        best = best or statistics.mean(ends)
        behind = "" if name == "DOMO" else f"{100 * (best - statistics.mean(ends)):.1f}"
        thesis = f"{runs[0]['paper_points_behind_domo_cifar10_vgg16_s5']:.1f}" if thesis is None else thesis
        rows.append([shown, mean(ends), behind, thesis, *sent(runs[0])])
    return markdown(["row", "accuracy", "behind DOMO", "thesis", "MB up", "MB down"], rows)


@table
def luar() -> list[str]:
    command = (
        'python experiments/optimisers/luar.py --inner "FedAvg()" --inner "FedAvg(opt=Adam(0.01))" --inner "MOON()" '
        "--rounds 30 --steps 10 --batch 16 --examples 4000 --every 3 --seed 0 --seed 1 --seed 2"
    )
    lines = read("experiments/optimisers/results/luar.jsonl", command)
    lines = [line for line in lines if all(len(point) == 6 for point in line.get("curve", ()))]
    inners = {"FedAvg()": "FedAvg", "FedAvg(opt=Adam(0.01))": "FedAdam", "MOON()": "MOON"}
    shown = {
        "whole": "whole",
        "metric": "metric, recycled",
        "metric, dropped": "metric, dropped",
        "uniform": "uniform, recycled",
        "round-robin": "round-robin, recycled",
        "gradient-norm": "gradient norm, recycled",
    }
    head, columns = ["arm"], []
    for inner, name in inners.items():
        own = {arm: [x for x in lines if (x["inner"], x["row"]) == (inner, arm)] for arm in shown}
        if not all(own.values()):
            raise Missing(command)
        budget = min(line["bytes_up"] for runs in own.values() for line in runs)
        head += [f"{name}, {budget / 1e6:.0f} MB up", "MB down", "at the end"]
        cells = []
        for runs in own.values():
            fits = [[point for point in line["curve"] if point[4] <= budget] for line in runs]
            at = [fit[-1] for fit in fits if fit]
            down = statistics.mean(point[5] for point in at) if at else 0
            end = percent(statistics.mean(line["accuracy"] for line in runs))
            cells.append([mean([point[1] for point in at]) if at else "-", mb(down), end])
        columns.append(cells)
    rows = [[title, *(cell for cells in columns for cell in cells[i])] for i, title in enumerate(shown.values())]
    return markdown(head, rows)


# -- data-parallel training -----------------------------------------------------------------------------------------


def timed(target: float) -> dict[tuple[str, float], Line]:
    """Of every method and rate that was trained and timed: the end, seconds to ``target`` (None: not by all seeds)."""
    command = "python experiments/def/time_to_accuracy.py curves --seeds 0 1 2 # and times, with --slowlink"
    lines = read("experiments/def/results/time_to_accuracy_cifar10.jsonl", command)
    times = {line["expression"]: line for line in lines if line["kind"] == "times"}
    runs: dict[tuple[str, float], dict[int, list[tuple[int, float]]]] = {}
    for line in lines:
        if line["kind"] == "curve" and not line["diverged"]:
            method, lr, seed = line["expression"], line["lr"], line["seed"]
            runs.setdefault((method, lr), {})[seed] = [(t, y) for t, y, _ in line["curve"]]
            if method.startswith("DEF("):  # DEF-A is that training, judged by x
                curve = [(t, x) for t, _, x in line["curve"]]
                runs.setdefault((method.replace("DEF(", "DEFA("), lr), {})[seed] = curve
    found = {}
    for (method, lr), seeds in runs.items():
        if method in times:
            step = times[method]["step_seconds"]
            first = [next((t for t, accuracy in curve if accuracy >= target), None) for curve in seeds.values()]
            found[method, lr] = {
                "ends": [curve[-1][1] for curve in seeds.values()],
                "seconds": None if None in first else statistics.mean(first) * step,
                "ms": f"{1000 * step:.1f}",
                # Without y, which is evaluated, and paid, once in these steps.
                "bytes": f"{times.get(method.replace('DEF(', 'DEFA('), times[method])['bytes_a_step']:,.0f}",
            }
    return found


def of_dense(seconds: float | None, dense: float) -> str:
    return "" if seconds is None else "1" if seconds == dense else f"{seconds / dense:.3f}".removeprefix("0")


NAMES = {  # of expressions: in the table of experiments, and as it is written
    "Hook(link=Dense())": ("dense", "Hook(Dense())"),
    "Hook(link=Half())": ("16 bits", "Hook(Half())"),
    "Hook(link=PowerSGD(": ("PowerSGD, rank 2", "Hook(PowerSGD(2))"),
    "Hook(link=ErrorFeedback(": ("top-k, 1 %, error feedback", "Hook(ErrorFeedback(TopK(0.01)))"),
    "DEFA(": ("DEF-A / 64", "DEFA(64, lam=0.5)"),
    "DEF(": ("DEF / 64", "DEF(64)"),
}


def kind(method: str) -> int:
    """The place among NAMES."""
    return next(i for i, start in enumerate(NAMES) if method.startswith(start))


@table
def time_to_accuracy() -> list[str]:
    half, more = timed(0.5), timed(0.58)
    denses = [min(f["seconds"] or 9e9 for (name, _), f in each.items() if kind(name) == 0) for each in (half, more)]
    rows = []
    for (method, lr), found in sorted(half.items(), key=lambda item: (kind(item[0][0]), item[0])):
        shown = list(NAMES.values())[kind(method)][0]
        if said := re.search(r"lam=([0-9.]+)", method):
            shown += f", λ = {float(said[1]):g}".replace("0.", ".")
        cells = [f"{shown}, {lr:g}".replace(" 0.", " ."), found["ms"], found["bytes"]]
        for each, dense in zip((found, more[method, lr]), denses, strict=True):
            cells += ["-" if each["seconds"] is None else f"{each['seconds']:,.0f}", of_dense(each["seconds"], dense)]
        two = " (two seeds)" if len(found["ends"]) == 2 else ""
        rows.append([*cells, mean(found["ends"]) + two])
    head = ["method, rate", "ms a step", "bytes a step", "seconds to 50 %", "of dense", "to 58 %", "of dense"]
    return markdown([*head, "at the end"], rows)


def table_6() -> list[Line]:
    command = (
        "python experiments/def/table6.py --batch 4 --steps 1200 --augment --tested 5000 --evaluate-every 200 --lr 0.02"
    )
    return [
        line for line in read("experiments/def/results/table6_cifar10_vgg_small.jsonl", command) if line["lr"] == 0.02
    ]


@table
def def_ratios() -> list[str]:
    lines, rows = table_6(), []
    dense = of(lines, "table6.py", name="Hook(Dense())")
    a_step = dense["bytes"] / dense["steps"]
    rows.append(["1 (dense)", f"{a_step:,.0f}", percent(dense["accuracy"]), *[""] * 4, f"{dense['paper']} %"])
    for ratio in (16, 64, 256, 1024):
        found = {line["name"].partition("(")[0]: line for line in lines if f"({ratio}.0" in line["name"]}
        cells = [percent(found[name]["accuracy"]) for name in ("EF", "SAEF", "PSync", "DEF")]
        thesis = [found[name]["paper"] for name in ("EF", "SAEF", "PSync")] + found["DEF"]["paper"]
        papers = ", ".join(x if isinstance(x, str) else f"{x:.2f}" for x in thesis)
        sizes = f"{found['DEF']['bytes'] / found['DEF']['steps']:,.0f}"
        rows.append([f"{ratio:,}", sizes, *cells, percent(found["DEF"]["accuracy_x"]), papers])
    head = [
        "ratio",
        "bytes",
        "EF",
        "SAEF, never averaged",
        "PSync",
        "DEF, λ = .3",
        "DEF-A, λ = .3",
        "thesis: EF, SAEF, PSync, DEF, DEF-A",
    ]
    return markdown(head, rows, (7,))


@table
def def_ranks() -> list[str]:
    command = "python experiments/def/ranks.py --workers 2 4 16"
    lines, rows = read("experiments/def/results/ranks_fashion_mnist.jsonl", command), []
    names = ["Hook(Dense())", "DEF(64.0)", *(f"DEF(64.0, lam={lam})" for lam in (0.3, 0.5, 0.7, 1.0))]
    for workers in (2, 4, 16):
        found = [of(lines, command, workers=workers, name=name) for name in names]
        star = f"{found[1]['lam'][-1][2]:.2f}".removeprefix("0")
        rows.append([str(workers), *(percent(line["accuracy"]) for line in found), star])
    return markdown(
        ["ranks", "dense", "λ measured", "λ = .3", "λ = .5", "λ = .7", "λ = 1", "λ\\* at the end"], rows, ()
    )


@table
def def_lambdas() -> list[str]:
    command = "python experiments/def/table6.py --batch 4 --steps 1200 --lambdas 0.1 0.2 0.4 0.6 0.8"
    lines = read("experiments/def/results/table5_cifar10_vgg_small.jsonl", command) + table_6()
    by = {
        0.0: of(lines, command, name="EF(64.0, scope='tensor')"),
        0.3: of(lines, command, name="DEF(64.0, scope='tensor')"),
    }
    for line in lines:
        if said := re.search(r"DEF\(64\.0, scope='tensor', lam=([0-9.]+)\)", line["name"]):
            by[float(said[1])] = line
    found = dict(sorted(by.items()))
    head = ["λ at ratio 64", *("0 (EF)" if lam == 0 else f"{lam:g}"[1:] for lam in found)]
    thesis = [line["paper"] if lam == 0 else line["paper"][0] for lam, line in found.items()]
    rows = [["DEF", *(percent(line["accuracy"]) for line in found.values())], ["thesis", *(f"{x:.2f}" for x in thesis)]]
    return markdown(head, rows)


@table
def ddp_time() -> list[str]:
    found = {method: row for (method, lr), row in timed(0.58).items() if lr == 0.02}
    rows = []
    for start in (0, 1, 2, 4, 3):
        own = {method: row for method, row in found.items() if kind(method) == start}
        # Of several lambdas that which got furthest.
        row = max(own.values(), key=lambda row: (row["seconds"] is not None, statistics.mean(row["ends"])))
        (method,) = (method for method, each in own.items() if each is row)
        written = list(NAMES.values())[start][1]
        if said := re.search(r"lam=(None|[0-9.]+)", method):
            written = "DEFA(64)" if said[1] == "None" else f"DEFA(64, lam={said[1]})"
        seconds = "not reached" if row["seconds"] is None else f"{row['seconds']:,.0f}"
        dense = next(row["seconds"] for method, row in found.items() if kind(method) == 0)
        share = of_dense(row["seconds"], dense)
        rows.append([f"`{written}`", row["ms"], row["bytes"], seconds, share, mean(row["ends"])])
    return markdown(["", "ms a step", "bytes a step", "seconds to 58 %", "of dense", "at the end"], rows)


# -- pages ----------------------------------------------------------------------------------------------------------


def printed() -> dict[str, tuple[str, str]]:
    """Every table that a page announces: name -> its page and its lines."""
    return {name: (page, lines) for page in PAGES for name, lines in MARK.findall((ROOT / page).read_text())}


def write() -> None:
    for page in PAGES:
        path = ROOT / page

        def made(found: re.Match[str]) -> str:
            try:
                return f"<!-- table: {found[1]} -->\n" + "".join(line + "\n" for line in TABLES[found[1]]())
            except Missing as command:
                print(f"{found[1]}: no results; {command}", file=sys.stderr)
                return found[0]

        path.write_text(MARK.sub(made, path.read_text()))


def check() -> list[str]:
    """The tables that are not what the results say."""
    wrong = []
    for name, (page, lines) in printed().items():
        try:
            if lines.splitlines() != TABLES[name]():
                wrong.append(f"{page}: {name}")
        except Missing as command:
            print(f"{name}: no results; {command}", file=sys.stderr)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    o = parser.parse_args()
    if o.write:
        write()
    if wrong := check():
        sys.exit("not what the results say: " + ", ".join(wrong) + "; python experiments/tables.py --write")


if __name__ == "__main__":
    main()
