"""The table of power-of-choice in docs/measured/sampling.md."""

from __future__ import annotations

import statistics

from . import markdown, mean, read, sent, table

COMMAND = "python experiments/sampling/power_of_choice.py --seeds 3"


@table
def power_of_choice() -> list[str]:
    results = read("experiments/sampling/results/power_of_choice.jsonl", COMMAND)
    rows = []
    for split in ("Dirichlet(0.3)", "Dirichlet(2.0)"):
        for candidates in (3, 6, 9, 15):
            lines = results.all(split=split, candidates=candidates)
            first = [line["rounds_to_70"] for line in lines]
            rounds = f"{statistics.fmean(first):.0f}" if None not in first else "not in all seeds"
            end = mean(line["accuracy_mean_of_last_5"] for line in lines)
            rows.append([split, f"`PowerOfChoice({candidates})`", end, rounds, *sent(*lines)])
    return markdown(["parts", "sampler", "mean of the last 5", "rounds to 70 %", "MB up", "MB down"], rows, (0, 1))
