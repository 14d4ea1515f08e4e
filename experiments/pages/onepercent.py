"""The tables of docs/methods/auto.md: accuracy at shares of FedAvg's bytes, what else was tried, and slow links."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from . import Line, Results, markdown, mean, number, of_best_rate, read, table

CURVE = "experiments/onepercent/results/curve.jsonl", "python experiments/onepercent/curve.py"
SEARCH = "experiments/onepercent/results/search.jsonl", "python experiments/onepercent/search.py"
AHEAD = "0.004", "0.002", "0.001"
SLOW = "experiments/onepercent/results/slow_link.jsonl", "python experiments/onepercent/slow_link.py --slowlink PROGRAM"
Runs = dict[tuple[str, str], list[Line]]


def l5(line: Line) -> float:
    return float(line["accuracy_mean_of_last_5"])


def ema(line: Line) -> float:
    return float(line["served"][-1][1])


def grouped(results: Results) -> Runs:
    """Lines by setting and row, those of its best rate alone."""
    return of_best_rate(results.all(kind="run"))


def ahead(lines: Sequence[Line], others: Sequence[Line], of: Callable[[Line], float]) -> str:
    """How many points ahead of others of the same seeds, with the deviation over these; nothing where none ended."""
    dense = {line["seed"]: line for line in others}
    each = [100 * (of(line) - of(dense[line["seed"]])) for line in lines if line["seed"] in dense]
    spread = f" ± {statistics.stdev(each):.1f}" if len(each) > 1 else ""
    return f"{statistics.mean(each):+.1f}{spread}" if each else ""


def rows(runs: Runs, dense: Callable[[str], tuple[str, str]]) -> list[list[str]]:
    """A row of cells for each, beside that which ``dense`` says of its setting; most bytes first within a setting."""
    found: list[tuple[str, float, list[str]]] = []
    for (name, row), lines in runs.items():
        ended = [line for line in lines if "diverged" not in line]
        lost = ", ".join(str(line["seed"]) for line in lines if "diverged" in line)
        told = f"{row} (diverged with seed {lost})" if lost else row
        if not ended:
            found.append((name, 0.0, [name, told, "0", *[""] * 7]))
            continue
        up, down = (statistics.mean(line[f"bytes_{way}"] for line in ended) for way in ("up", "down"))
        others = [line for line in runs.get(dense(name), []) if "diverged" not in line]
        whole = [line["bytes_up"] + line["bytes_down"] for line in others]
        same = dense(name) == (name, row)
        figures = [
            cell for of in (l5, ema) for cell in (mean(map(of, ended)), "" if same else ahead(ended, others, of))
        ]
        share = f"{100 * (up + down) / statistics.mean(whole):.2f} %" if whole else ""
        sent = [f"{each / 1e6:,.2f}" for each in (up, down)]
        found.append((name, -(up + down), [name, told, str(len(ended)), *figures, *sent, share]))
    return [cells for *_, cells in sorted(found, key=lambda each: each[:2])]


HEAD = ["row", "seeds", "mean of the last 5", "points ahead", "served average", "points ahead", "MB up", "MB down"]


@table
def one_percent() -> list[str]:
    cells = rows(grouped(read(*CURVE)), lambda name: (name, "FedAvg"))
    return markdown(["set", *HEAD, "both / FedAvg"], cells, (0, 1))


@table
def one_percent_ahead() -> list[str]:
    """Points that a start ahead gains, by set and share."""
    runs, cells = grouped(read(*CURVE)), []
    for name in dict.fromkeys(name for name, _ in runs):
        rows = [[runs.get((name, f"Auto{start}, {share}"), []) for start in (", detached", "")] for share in AHEAD]
        cells.append([name, *(cell for pair in rows for cell in (ahead(*pair, l5), ahead(*pair, ema)))])
    heads = [f"{float(share):.1%}, {what}" for share in AHEAD for what in ("last 5", "served")]
    return markdown(["set", *heads], sorted(cells), (0,))


@table
def one_percent_search() -> list[str]:
    dense = lambda name: ("everyone" if name == "everyone" else "both ways", "FedAvg")  # noqa: E731
    cells = rows(grouped(read(*SEARCH)), dense)
    return markdown(["group", *HEAD, "both / FedAvg"], cells, (0, 1))


@table
def one_percent_slow_link() -> list[str]:
    lines = read(*SLOW).all(goal=0.7)
    dense = [line["time"] for line in lines if line["run"] == "fedavg" and line["time"] is not None]
    cells = []
    for line in lines:
        counts = [sum(host[way] for host in line["hosts"][1:]) for way in ("sent", "received")]
        ratio = f"{line['time'] / dense[0]:.3f}" if dense and line["time"] is not None else ""
        time = "not reached" if line["time"] is None else f"{line['time']:,.0f} s"
        billed = [number(line[f"bytes_{way}"] / 1e6) for way in ("up", "down")]
        cells.append(
            [f"`{line['method']}`", str(line["seed"]), str(line["rounds"] or ""), time, ratio, *billed]
            + [number(each / 1e6) for each in counts]
        )
    head = [
        "method",
        "seed",
        "rounds",
        "to 70 %",
        "of FedAvg's",
        "MB up",
        "MB down",
        "MB hosts sent",
        "MB hosts received",
    ]
    return markdown(head, cells)
