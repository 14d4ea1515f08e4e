"""Tables of detached error feedback, in docs/claims and docs/measured/ddp.md."""

from __future__ import annotations

import re
import statistics

from . import Line, Results, markdown, mean, percent, read, table


def timed(target: float) -> dict[tuple[str, float], Line]:
    """Of every method and rate that was trained and timed: the end, seconds to ``target`` (None: not by all seeds)."""
    command = "python experiments/def/time_to_accuracy.py curves --seeds 0 1 2 # and times, with --slowlink"
    lines = read("experiments/def/results/time_to_accuracy_cifar10.jsonl", command).lines
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


def table_6() -> Results:
    results = read(
        "experiments/def/results/table6_cifar10_vgg_small.jsonl",
        "python experiments/def/table6.py --batch 4 --steps 1200 --augment --tested 5000 --evaluate-every 200",
    )
    return Results(results.all(lr=0.02), results.command)


@table
def def_ratios() -> list[str]:
    results, rows = table_6(), []
    dense = results.of(name="Hook(Dense())")
    a_step = dense["bytes"] / dense["steps"]
    rows.append(["1 (dense)", f"{a_step:,.0f}", percent(dense["accuracy"]), *[""] * 4, f"{dense['paper']} %"])
    for ratio in (16, 64, 256, 1024):
        found = {line["name"].partition("(")[0]: line for line in results.lines if f"({ratio}.0" in line["name"]}
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


def _reached(lines: list[Line]) -> str:
    """The mean accuracy of those trainings that did not diverge, and how many did."""
    ended = [line["accuracy"] for line in lines if line["accuracy"] is not None]
    return mean(ended) + ("" if len(ended) == len(lines) else f", {len(lines) - len(ended)} diverged")


@table
def def_ranks() -> list[str]:
    results = read(
        "experiments/def/results/ranks_fashion_mnist.jsonl",
        "python experiments/def/ranks.py --workers 2 4 8 16 --seeds 0 1 2",
    )
    names = ["Hook(Dense())", "DEF(64.0)", *(f"DEF(64.0, lam={lam})" for lam in (0.3, 0.5, 0.7, 1.0))]
    rows = []
    for workers in (2, 4, 8, 16):
        lines = [results.all(workers=workers, name=name) for name in names]
        before = [line for line in results.lines if line["workers"] == workers and "as measured" in line["name"]]
        star = statistics.mean(line["lam"][-1][2] for line in lines[1])
        cells = [_reached(some) for some in lines]
        was = mean(line["accuracy"] for line in before) if before else ""
        rows.append([str(workers), *cells, was, f"{star:.2f}".removeprefix("0")])
    head = ["ranks", "dense", "λ by rule", "λ = .3", "λ = .5", "λ = .7", "λ = 1", "λ\\* itself, seed 0"]
    return markdown([*head, "λ\\* at the end"], rows, ())


@table
def def_lambdas() -> list[str]:
    results = read(
        "experiments/def/results/table5_cifar10_vgg_small.jsonl",
        "python experiments/def/table6.py --batch 4 --steps 1200 --lambdas 0.1 0.2 0.4 0.6 0.8",
    )
    at_02 = table_6()
    by = {0.0: at_02.of(name="EF(64.0, scope='tensor')"), 0.3: at_02.of(name="DEF(64.0, scope='tensor')")}
    for line in [*results.lines, *at_02.lines]:
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
