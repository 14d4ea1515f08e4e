"""Tables of federated methods in docs/claims."""

from __future__ import annotations

import re
import statistics

from . import Line, Missing, ends, markdown, mean, number, percent, read, sent, table
from .verdict import runs


@table
def personal_digits() -> list[str]:
    results = read(
        "experiments/everything/results/personal.jsonl", "python experiments/everything/digits.py --personal"
    )
    rows = []
    for line in results.all():
        figures = [line.get(f"client_accuracy{part}") for part in ("", "_p10", "_worst", "_before", "_shared")]
        rows.append([f"`{line['row']}`", *map(percent, figures), *sent(line)])
    head = [
        "method",
        "own tests",
        "lowest tenth",
        "worst client",
        "before adapting",
        "shared model",
        "MB up",
        "MB down",
    ]
    return markdown(head, rows)


# -- intrinsic compression ------------------------------------------------------------------------------------------


def intrinsic(dim: int, subspaces: int = 1, varying: bool = False) -> str:
    return rf"Intrinsic\(dim={dim}, subspaces={subspaces}, varying={varying}, .*"


BESIDE_INTRINSIC = {
    "d = 4,096, K = 4": intrinsic(4096, 4),
    "d = 4,096, varying, epochs of 10": intrinsic(4096, 1, True),
    "d = 4,096, K = 4, varying": intrinsic(4096, 4, True),
    "ErrorFeedback(TopK(0.01))": r"FedAvg\(.*up=ErrorFeedback\(.*down=Dense\(\).*",
    "the same, `down=EF21(TopK(0.05))`": r"FedAvg\(.*down=EF21.*",
    "FedAvg, 1 local epoch": r"FedAvg\(.*epochs=1\.0.*up=Dense.*",
    "2 local epochs": r"FedAvg\(.*epochs=2\.0.*",
    "5 local epochs": r"FedAvg\(.*epochs=5\.0.*",
}


def intrinsic_beside(data: str, command: str, dims: tuple[int, ...]) -> list[str]:
    """Of the rates that a row was tried with, the one of the best accuracy."""
    results = read(f"experiments/intrinsic/results/equal_bytes_{data}.jsonl", command)
    patterns = {f"{'' if i else 'Intrinsic, '}d = {d:,}": intrinsic(d) for i, d in enumerate(dims)}
    rows = []
    for title, pattern in (patterns | BESIDE_INTRINSIC).items():
        tried = [line for line in results.lines if re.fullmatch(pattern, line["expression"]) and "diverged" not in line]
        if not tried:
            raise Missing(command)
        line = max(tried, key=lambda line: line["best_accuracy"])
        rate = re.search(r"Intrinsic.*opt=SGD\(lr=(.*?)\)", line["expression"])
        cells = "" if rate is None else f"{float(rate[1]):g}".removeprefix("0")
        rows.append([title, cells, *ends(line), *sent(line)])
    return markdown(["method", "rate", "best", "end", "MB up", "MB down"], rows)


@table
def intrinsic_fashion_mnist() -> list[str]:
    command = (
        "python experiments/intrinsic/equal_bytes.py --data fashion_mnist --clients 300 --rounds 20 --every 4 "
        "--rate 1.0 --rate 0.3"
    )
    return intrinsic_beside("fashion_mnist", command, (256, 1024, 4096, 16384, 65536))


@table
def intrinsic_shakespeare() -> list[str]:
    command = (
        "python experiments/intrinsic/equal_bytes.py --data shakespeare --rounds 40 --clients 64 --sample 4 --lr 0.1 "
        "--dim 256 --dim 4096 --dim 65536 --rate 1 --rate 0.1 --every 5"
    )
    return intrinsic_beside("shakespeare", command, (256, 4096, 65536))


def table_2(data: str, command: str) -> tuple[list[str], list[list[str]], list[Line]]:
    """The columns of both data sets, their rows, and the lines that the rows are of."""
    results = read(f"experiments/fetchsgd/results/table2_{data}.jsonl", command)
    lines = [line for line in results.lines if "row" in line]
    whole = results.of(row="uncompressed")
    rows = []
    for line in lines:
        cells = [re.sub(r" \((.*?)\)", r", \1", line["row"]).replace("8 subspaces", "K = 8")]
        if "diverged" in line:
            rows.append([*cells, "diverged", *[""] * 6])
            continue
        ways = (("up",), ("down",), ("up", "down"))
        shares = (sum(line[f"bytes_{way}"] for way in each) / sum(whole[f"bytes_{w}"] for w in each) for each in ways)
        less = ["1" if line is whole else number(1 / x, 2) for x in shares]
        rows.append([*cells, *ends(line), *less, *sent(line)])
    return ["row", "best", "end", "up", "down", "total", "MB up", "MB down"], rows, lines


@table
def table_2_fashion_mnist() -> list[str]:
    command = "python experiments/fetchsgd/table2.py --data fashion_mnist --rounds 150 --lr 0.05"
    head, rows, lines = table_2("fashion_mnist", command)
    for row, line in zip(rows, lines, strict=True):
        row.append(", ".join(f"{x:g}" for x in line["paper"] or ()).replace(", ", "; ", 1))
    return markdown([*head, "paper: perplexity; up, down, total"], rows, (0, 8))


@table
def table_2_shakespeare() -> list[str]:
    command = "python experiments/fetchsgd/table2.py --data shakespeare --rounds 120 --clients 64 --sample 5 --lr 0.1"
    head, rows, _ = table_2("shakespeare", command)
    return markdown(head, rows)


LOOKING_BACK = (  # what the authors' code counts, beside what crosses
    "dense",
    "top-k 10 %",
    "top-k 10 %, error feedback",
    "LBGM over top-k 10 %",
    "LBGM over top-k 10 %, error feedback",
    "LBGM over top-k 10 %, feedback around it, dense update tested",
    "their accounting, top-k 10 %, top-k's residual",
    "their accounting, top-k 10 %, LBGM's residual",
)


@table
def lbgm_accounting() -> list[str]:
    rows = []
    for row in LOOKING_BACK:
        lines = list(runs("lbgm", ("beneath", row)).values())
        if not lines:
            raise Missing("python experiments/lbgm/claims.py --only beneath")
        accuracy = mean(line["accuracy_mean_of_last_5"] for line in lines)
        count = number(statistics.mean(line["floats_up"] for line in lines) / 1e6)
        rows.append([row, accuracy, count, *sent(*lines)])
    return markdown(["row", "accuracy", "million floats up", "MB up", "MB down"], rows)


@table
def luar_momentum() -> list[str]:
    """LUAR over servers with momentum: what recycled layers cost that go past it, and through it."""
    results = read("experiments/luar/results/momentum.jsonl", "python experiments/luar/momentum.py")
    rows = []
    for server in ("FedACG", "FedAvgM"):
        for way, name in {"alone": "alone", "past": "LUAR, past=True", "through": "LUAR, past=False"}.items():
            (line,) = results.all(server=server, way=way)
            cells = [
                f"{100 * line['accuracy_mean_of_last_5']:.1f} %",
                *(f"{line[f'bytes_{w}'] / 1e6:,.0f}" for w in ("up", "down")),
            ]
            rows.append([server, name, *cells])
    return markdown(["server", "method", "accuracy", "MB up", "MB down"], rows)
