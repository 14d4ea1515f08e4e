"""The tables of docs/measured/adapters.md: accuracy and perplexity of adapters by bytes, and what they cost."""

from __future__ import annotations

import statistics

from . import Line, markdown, mean, processor, read, table

RUNS = "experiments/hf/results/adapters.jsonl", "python experiments/hf/adapters.py"
COST = "benchmarks/results/adapters.jsonl", "python benchmarks/adapters.py --into benchmarks/results/adapters.jsonl"


RATIOS = {
    "peak one": "peak of memory over the bare loop's, `one`",
    "peak two": "the same, `two`",
    "peak out": "the same, `out`",
    "round": "seconds of the processor for a round over the bare loop's, `one`",
    "folder": "bytes of the run's folder over its adapter's, `out`",
}


def quality(lines: list[Line]) -> str:
    """The mean of the last five evaluations: accuracy, or of texts to continue the perplexity."""
    if "perplexity_mean_of_last_5" not in lines[0]:
        return mean(line["accuracy_mean_of_last_5"] for line in lines)
    each = [line["perplexity_mean_of_last_5"] for line in lines]
    spread = f" ± {statistics.stdev(each):.2f}" if len(each) > 1 else ""
    return f"perplexity {statistics.mean(each):.2f}{spread}"


@table
def adapters() -> list[str]:
    grouped: dict[tuple[str, str], list[Line]] = {}
    for line in read(*RUNS).all(kind="run"):
        if "diverged" not in line and "trained" not in line["setting"]:  # all of MiniLM: docs/claims
            name = line["setting"]["name"] + ("" if "base" in line["setting"] else ", 32-bit floats")
            grouped.setdefault((name, line["row"]), []).append(line)
    cells = []
    for (name, row), lines in grouped.items():
        sent = [statistics.mean(line[f"bytes_{way}"] for line in lines) / 1e6 for way in ("up", "down")]
        dense = grouped.get((name, "FedAvg"), [])
        rounds = lines[0]["rounds"]
        whole = [(line["bytes_up"] + line["bytes_down"]) / 1e6 * rounds / line["rounds"] for line in dense]
        share = f"{100 * sum(sent) / statistics.mean(whole):.2f} %" if whole and row != "FedAvg" else ""
        cells.append([name, row, str(rounds), str(len(lines)), quality(lines), *(f"{x:.2f}" for x in sent), share])
    sets = list(dict.fromkeys(name for name, _ in grouped))
    cells.sort(key=lambda row: (sets.index(row[0]), not row[1].startswith("FedAvg")))
    head = ["set", "row", "rounds", "seeds", "mean of the last 5", "MB up", "MB down", "both / FedAvg, equal rounds"]
    return markdown(head, cells, (0, 1))


CURVES = ("FedAvg", "Auto(0.01)", "Auto(0.003), 2 times the rounds")


@table
def adapters_rounds() -> list[str]:
    """Evaluations of the seeds that all rows of a set have, when the row of most rounds looks, and at FedAvg's end."""
    found: dict[tuple[str, str, int], dict[int, float]] = {}
    for line in read(*RUNS).all(kind="run"):
        name, row = line["setting"]["name"], line["row"]
        if row in CURVES and "base" in line["setting"]:
            texts = {at: perplexity for at, perplexity, _ in line.get("perplexities", [])}
            found[name, row, line["seed"]] = texts or {at: 100 * accuracy for at, accuracy, *_ in line["curve"]}
    cells = []
    for name in dict.fromkeys(name for name, row, _ in found if row == CURVES[-1]):
        seeds = sorted(set.intersection(*({s for n, r, s in found if (n, r) == (name, row)} for row in CURVES)))
        for at in sorted({*found[name, CURVES[-1], seeds[0]], max(found[name, CURVES[0], seeds[0]])}):
            each = [[found[name, row, seed].get(at) for seed in seeds] for row in CURVES]
            shown = ["" if None in some else f"{statistics.mean(some):.1f}" for some in each]  # type: ignore[type-var]
            cells.append([name, str(at), str(len(seeds)), *shown])
    return markdown(["set", "round", "seeds", "FedAvg", "Auto(0.01)", "Auto(0.003)"], cells)


@table
def adapters_cost() -> list[str]:
    """A column a processor, of the last line each; the first lines did not say what imports take."""
    every = [
        line for line in read(*COST).all(benchmark="adapters", model="smollm2") if "imports" in line["found"]["one"]
    ]
    last = list({line["processor"]: line for line in every}.values())
    rows = {title: [f"{line['ratios'][name]:.2f}" for line in last] for name, title in RATIOS.items()}
    seconds = "seconds until transformers and peft have made a tiny model"
    rows[seconds] = [f"{line['found']['one']['imports']:.1f}" for line in last]
    for way in ("bare", "one"):
        rows[f"seconds of set-up, {way}"] = [f"{line['found'][way]['setup']:.1f}" for line in last]
    coding = [line["found"]["coding"] for line in last]
    (entries,) = {each["entries"] for each in coding}
    rows[f"seconds of `TransformCoding.send`, {entries:,} entries"] = [f"{each['send']:.2f}" for each in coding]
    return markdown(
        ["SmolLM2-135M, rank 32", *map(processor, last)], [[title, *cells] for title, cells in rows.items()]
    )
