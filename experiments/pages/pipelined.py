"""Tables of docs/measured/pipeline.md: times over slow links, stragglers, and what staleness costs."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

from thinwire.expression import parse, vocabulary
from thinwire.pipeline.plan import seconds
from thinwire.pipeline.schedule import SCHEDULES

from . import ROOT, Line, Results, markdown, mean, number, processor, read, table

BENCHMARK = "python benchmarks/pipeline.py --slowlink PROGRAM --into benchmarks/results/pipeline.jsonl"
THESIS = {  # Table 2: percent slower where each GPU is slowed with a chance of a third
    "any 50": (28.52, 18.15),
    "any 100": (97.06, 32.10),
    "any 150": (359.2, 53.42),
}
SPEEDS = {(4, "FR(barrier=True)"): "1.7", (4, "GPipe(4)"): "2.2 (ResNet-101)", (4, "DSP"): "2.7"}  # Table 3


@table
def pipeline_links() -> list[str]:
    results = read("benchmarks/results/pipeline.jsonl", BENCHMARK)
    lines = results.all(part="links")
    others = list(dict.fromkeys(name for line in lines for name in line["arms"] if name != "DSP"))
    rows = []
    for line in lines:
        arms = line["arms"]
        link = f"{line['mbit']:g} Mbit/s, {line['latency_ms']:g} ms" if line["mbit"] else "loopback"
        laws = [f"{line['over_law']:.3f}", f"{over_plan(line):.3f}"]
        own = [f"{line['load']:g}", f"{arms['DSP']['ms']:.1f}", *laws, f"{line['of_speedup_by_law']:.2f}"]
        ratios = [f"{line[f'over_{name}']:.2f}" if name in arms else "" for name in others]
        rows.append([f"`{line['model']}`", link, processor(line), *own, *ratios])
    head = ["parts of", "link", "two cores of", "load before", "DSP, ms", "to the law of its own seconds"]
    head += ["to the law of the plan's seconds", "speed-up over BPK, to the law's"]
    return markdown([*head, *(f"`{name}`, to DSP" for name in others)], rows, (0, 1, 2))


def over_plan(line: Line) -> float:
    """How many times as long DSP takes as by the law with the seconds that were measured before any training."""
    profile, arm = line["profile"], line["arms"]["DSP"]
    schedule = parse(arm["schedule"], names={**vocabulary(), **SCHEDULES})
    sizes, mbit = ([arm["bytes"][0]], [arm["bytes"][1]]), line["mbit"] or math.inf
    by_law = seconds(schedule, profile["forward"], profile["backward"], sizes, mbit, line["latency_ms"] / 1e3)
    return float(arm["ms"] / (1e3 * by_law))


@table
def pipeline_stragglers() -> list[str]:
    arms = ("DSP", "DSP, spare", "FR, barrier")
    rows = []
    for line in read("benchmarks/results/pipeline.jsonl", BENCHMARK).all(part="stragglers"):
        model = [f"`{line['model']}`"]
        rows.append([*model, "none", *(cell for arm in arms for cell in (f"{line['arms'][arm]['ms']:.1f} ms", "")), ""])
        for name, found in line["slowed"].items():
            which, percent = name.split()
            slowed = f"{'the first' if which == 'one' else 'each, at one batch of three'}, {percent} %"
            cells = [f"{100 * found[arm][kind]:.0f} %" for arm in arms for kind in ("loss", "law")]
            rows.append([*model, slowed, *cells, "{} %, {} %".format(*THESIS[name]) if name in THESIS else ""])
    head = ["parts of", "slowed"]
    for arm in ("DSP", "DSP, 4 batches to spare", "FR with its barrier"):
        head += [arm, "by the law"]
    return markdown([*head, "thesis, 3 parts: FR, DSP(3,3,0;10,5,0)"], rows, (0, 1))


def thesis(parts: int) -> dict[str, float]:
    """Best accuracies of ResNet-164 on CIFAR-10 in percent, Table 1, by row."""
    of = {
        1: {"BP": 94.41},
        3: {
            "FR()": 94.55,
            "DSP((1, 1, 0), (4, 2, 0))": 94.68,
            "DSP((2, 2, 0), (6, 3, 0))": 93.98,
            "DSP((3, 3, 0), (10, 5, 0))": 93.37,
        },
        4: {
            "FR()": 94.44,
            "DSP((1, 1, 1, 0), (6, 4, 2, 0))": 94.32,
            "DSP((2, 2, 2, 0), (9, 6, 3, 0))": 94.87,
            "DSP((3, 3, 3, 0), (15, 10, 5, 0))": 93.34,
        },
    }
    return of.get(parts, {})


ONE_RATE = "one rate, "  # before the number of parts, in the setting of a line whose rate is that of all rows


def trained() -> list[Line]:
    """The lines of CIFAR-10 as those of claims: a setting is a number of parts, and whether all rows have one rate."""
    return [*_trained("cifar10", ""), *_trained("cifar10_one_rate", ONE_RATE)]


def _trained(name: str, before: str) -> list[Line]:
    path = ROOT / f"experiments/dsp/results/{name}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    lines = [line for line in found if line["part"] == "curve" and "diverged" not in line and not line.get("tiny")]
    settings = [{"name": f"{before}{line['parts']} part{'s' if line['parts'] > 1 else ''}"} for line in lines]
    return [
        {"setting": setting, "accuracy_mean_of_last_5": line["accuracy"], **{n: line[n] for n in ("row", "seed")}}
        for setting, line in zip(settings, lines, strict=True)
    ]


@table
def dsp_one_rate() -> list[str]:
    """Backpropagation beside DSP and FR at one rate for all, and the difference by seeds that both have."""
    results = read(
        "experiments/dsp/results/cifar10_one_rate.jsonl",
        "python experiments/dsp/train.py --lr 0.01 --plain --examples 4000 --epochs 40 --model resnet8_half "
        "--autocast none --seeds 0 1 2 3 4 5 6 7 --parts 3 4",
    )
    groups: dict[tuple[int, str], dict[int, float]] = {}
    for line in results.all(part="curve", optimizer="SGD"):
        if "diverged" not in line and (line["parts"] == 1 or line["row"] in thesis(line["parts"])):
            groups.setdefault((line["parts"], line["row"]), {})[line["seed"]] = line["accuracy"]
    plain = groups.get((1, "BP"), {})
    rows = []
    for (parts, row), found in sorted(groups.items(), key=lambda group: (group[0][0], list(group[1]), group[0][1])):
        both = sorted(plain.keys() & found.keys()) if parts > 1 else []
        each = [100 * (found[seed] - plain[seed]) for seed in both]
        spread = f" ± {statistics.stdev(each):.1f}" if len(each) > 1 else ""
        ahead = f"{statistics.mean(each):+.1f}{spread}" if each else ""
        papers = f"{thesis(parts)[row] - thesis(1)['BP']:+.2f}" if parts > 1 else ""
        rows.append([f"`{row}`", str(parts), str(len(found)), mean(found.values()), ahead, papers])
    head = ["schedule", "parts", "seeds", "mean of the last 5", "points to BP, by seed", "thesis: to BP"]
    return markdown(head, rows, (0,))


@table
def dsp_speeds() -> list[str]:
    results = read("experiments/dsp/results/speeds.jsonl", "python experiments/dsp/speeds.py")
    by_row: dict[tuple[int, str], list[Line]] = {}
    for line in results.all(part="speed"):
        by_row.setdefault((line["parts"], line["row"]), []).append(line)
    links = [(line["mbit"], line["latency"]) for line in next(iter(by_row.values()))]
    rows = []
    for (parts, row), lines in by_row.items():
        chosen = row.startswith("DSP") and "(" not in row
        cells = [
            f"{line['faster']:.2f}" + (f" {line['schedule'].partition('m=')[2].split(')')[0]})" if chosen else "")
            for line in lines
        ]
        rows.append([f"`{row}`", str(parts), *cells, f"{lines[0]['bytes'] / 1e6:.2f}", SPEEDS.get((parts, row), "")])
    head = [f"{mbit:,.0f} Mbit/s, {1000 * latency:g} ms" for mbit, latency in links]
    return markdown(["schedule", "parts", *head, "MB a batch", "thesis"], rows, (0,))


@table
def dsp_cifar10() -> list[str]:
    return _learned(read("experiments/dsp/results/cifar10.jsonl", "python experiments/dsp/train.py"))


@table
def dsp_shakespeare() -> list[str]:
    path = "experiments/dsp/results/shakespeare.jsonl"
    return _learned(read(path, "python experiments/dsp/train.py --data shakespeare --epochs 3"))


def place(line: Line) -> tuple[int, int, int, str]:
    """Where a line stands: by its optimiser, the number of parts, and what the thesis compares with what."""
    optimisers = ("SGD", "AdamW", "NAdam", "Muon")
    kinds = ("BP", "FR", "DDG", "PipeDream", "DSP", "DNI")
    row = line["row"]
    return optimisers.index(line["optimizer"]), line["parts"], kinds.index(row.partition("(")[0]), row


def _learned(results: Results) -> list[str]:
    """A row a schedule, number of parts and optimiser: means over seeds."""
    groups: dict[Any, list[Line]] = {}
    for line in sorted(results.all(part="curve"), key=place):
        groups.setdefault((line["optimizer"], line["parts"], line["row"]), []).append(line)
    alone = {key[0]: statistics.mean(one["clock"] for one in lines) for key, lines in groups.items() if key[1] == 1}
    rows = []
    for (optimizer, parts, row), lines in groups.items():
        done = [line for line in lines if "diverged" not in line]
        if done:
            clock = statistics.mean(line["clock"] for line in done)
            faster = f"{alone[optimizer] / clock:.2f}" if optimizer in alone else ""
            sent = number(statistics.mean(line["bytes_up"] + line["bytes_down"] for line in done) / 1e6)
            accuracies = [mean(line[name] for line in done) for name in ("best_accuracy", "accuracy")]
            cells = [*accuracies, f"{clock:,.0f}", faster, sent]
        else:
            cells = ["diverged", *[""] * 4]
        thesis = lines[0].get("thesis")
        rates = ", ".join(f"{rate:g}" for rate in sorted({line["lr"] for line in lines}))
        said = [f"`{row}`", str(parts), optimizer, rates, str(len(done))]
        rows.append([*said, *cells, f"{thesis:.2f} %" if thesis else ""])
    head = ["schedule", "parts", "optimiser", "learning rate", "seeds", "best", "mean of the last 5"]
    return markdown([*head, "simulated s", "speed-up", "MB", "thesis"], rows, (0, 2))
