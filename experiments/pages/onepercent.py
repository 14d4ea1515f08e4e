"""The table of docs/methods/auto.md: accuracy at shares of FedAvg's bytes."""

from __future__ import annotations

from . import Line, markdown, mean, read, table


@table
def one_percent() -> list[str]:
    results = read("experiments/onepercent/results/curve.jsonl", "python experiments/onepercent/curve.py")
    runs: dict[tuple[str, str], list[Line]] = {}
    for line in results.all(kind="run"):
        same = runs.setdefault((line["setting"]["name"], line["row"]), [])
        same[:] = [*(old for old in same if old["rate"] == line["rate"]), line]  # those of the last rate count
    rows = []
    for (name, row), lines in runs.items():
        up, down = (sum(line[f"bytes_{way}"] for line in lines) / len(lines) for way in ("up", "down"))
        whole = [line["bytes_up"] + line["bytes_down"] for line in runs.get((name, "FedAvg"), [])]
        share = f"{100 * (up + down) * len(whole) / sum(whole):.2f} %" if whole else ""
        figures = [
            mean(line["accuracy_mean_of_last_5"] for line in lines),
            mean(line["served"][-1][1] for line in lines),
        ]
        rows.append([name, row, str(len(lines)), *figures, f"{up / 1e6:,.2f}", f"{down / 1e6:,.2f}", share])
    head = ["set", "row", "seeds", "mean of the last 5", "served average", "MB up", "MB down", "both / FedAvg"]
    return markdown(head, sorted(rows, key=lambda row: (row[0], -float(row[5].replace(",", "")))), (0, 1))
