"""The table of rounds that do not wait in docs/measured/buffered.md."""

from __future__ import annotations

import statistics

from . import markdown, read, table

COMMAND = "python experiments/buffered/time_to_target.py"


@table
def buffered() -> list[str]:
    results = read("experiments/buffered/results/time_to_target.jsonl", COMMAND)
    rows = []
    for method in ("dense", "top-k", "LBGM"):
        for buffer in (None, "Buffered(5)", "Buffered(2)", "Buffered(1)"):
            cells = []
            for split in ("iid", "Dirichlet(0.3)"):
                lines = results.all(method=method, buffer=buffer, split=split)
                times = [line["seconds_to_target"] for line in lines]
                there = all(time is not None for time in times)
                cells += [f"{statistics.fmean(times):.1f}" if there else "not in all seeds"]
                cells += [f"{statistics.fmean(line['accuracy'] for line in lines):.3f}"]
                cells += [f"{statistics.fmean(line['clock'] for line in lines):.0f}"]
            stale = statistics.fmean(line["mean_staleness"] for line in results.all(method=method, buffer=buffer))
            rows.append([method, "waits" if buffer is None else f"`{buffer}`", *cells, f"{stale:.1f}"])
    each = ("s to 90 %", "end", "s in all")
    heads = [f"{split}, {what}" for split in ("iid", "Dirichlet") for what in each]
    return markdown(["method", "round", *heads, "mean staleness"], rows, (0, 1))
