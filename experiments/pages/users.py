"""Tables of docs/measured/results, speed, everyday, links, federation, and of a step's time in ddp.md."""

from __future__ import annotations

import statistics

from . import Line, Missing, markdown, percent, read, sent, table


@table
def fashion() -> list[str]:
    results = read(
        "experiments/fashion/results/table_fashion_mnist.jsonl",
        "python experiments/fashion/table.py --out runs/fashion",
    )
    dense = results.of(row="FedAvg()")
    rows = []
    for line in results.lines:
        total, whole = (each["bytes_up"] + each["bytes_down"] for each in (line, dense))
        accuracies = [percent(line[name]) for name in ("accuracy", "accuracy_mean_of_last_5", "best_accuracy")]
        shares = [percent(line["bytes_up"] / dense["bytes_up"]), percent(total / whole)]
        again = percent(line["recycled"]) if "LBGM" in line["row"] else ""
        seconds = f"{line['network_seconds']['1']:,.0f}"
        rows.append([f"`{line['row']}`", *accuracies, *sent(line), *shares, seconds, again])
    head = ["method", "at the end", "mean of the last 5", "best", "MB up", "MB down", "up / FedAvg", "both / FedAvg"]
    return markdown([*head, "s at 1 Mbit/s", "recycled"], rows)


@table
def simulate() -> list[str]:
    results = read(
        "benchmarks/results/simulate.jsonl",
        "python benchmarks/simulate.py --rounds 5 --into benchmarks/results/simulate.jsonl",
    )
    rows = []
    for line in sorted(results.lines, key=lambda line: (where(line), line["job"])):
        times = [f"{line[name]:.3f} s" for name in ("bare_seconds", "seconds")]
        torch = "" if "torch_seconds" not in line else f"{line['torch_seconds']:.1f} s"
        first, memory = f"{line['first_round_seconds']:.1f} s", f"{line['peak_mb']:,} MB"
        rows.append([where(line), line["job"], *times, f"{line['ratio']:.2f}", first, torch, memory])
    times = ["bare loop", "thinwire", "ratio", "first round", "torch's import"]
    head = ["processor", "`benchmarks/simulate.py`", *times, "memory"]
    return markdown(head, rows, (0, 1))


@table
def steps() -> list[str]:
    results = read(
        "benchmarks/results/steps.jsonl",
        "python benchmarks/steps.py --into benchmarks/results/steps.jsonl",
    )
    rows = []
    for line in results.lines:
        share = f"{line['step'] / line['bare_step']:.2f}"
        rows.append([where(line), line["job"], *(f"{n:,}" for n in line["found"].values())])
        rows[-1] += [f"{line['step']:,}", f"{line['bare_step']:,}", share]
    parts = list(results.lines[0]["found"])
    return markdown(["processor", "`benchmarks/steps.py`", *parts, "a step", "bare step", "ratio"], rows, (0, 1))


@table
def allocator() -> list[str]:
    results = read(
        "benchmarks/results/allocator.jsonl",
        "python benchmarks/allocator.py --into benchmarks/results/allocator.jsonl",
    )
    rows = []
    for line in results.lines:
        times = [f"{line[name]:.3f} s" for name in ("seconds", "kept_seconds")]
        peaks = [f"{line[name]:,} MB" for name in ("peak_mb", "kept_peak_mb")]
        rows.append([where(line), line["job"], *times, f"{line['ratio']:.2f}", *peaks])
    head = ["processor", "`benchmarks/allocator.py`", "given back", "kept", "ratio", "memory", "memory, kept"]
    return markdown(head, rows, (0, 1))


@table
def peers() -> list[str]:
    results = read(
        "benchmarks/results/peers.jsonl",
        "python benchmarks/peers.py --passes 3 --into benchmarks/results/peers.jsonl",
    )
    names = {"thinwire": "thinwire", "pfl": "pfl-research", "flower": "Flower on Ray"}
    rows = []
    for line in results.lines:
        for peer, found in line["found"].items():
            figures = [f"{found['seconds']:.3f} s", f"{found['ratio']:.2f}", f"{found['first_round_seconds']:.1f} s"]
            named = f"{names[peer]} {found['version']}"
            rows.append([where(line), line["job"], named, *figures, f"{found['peak_mb']:,} MB"])
    head = ["processor", "`benchmarks/peers.py`", "simulator", "a round", "to thinwire's", "first round", "memory"]
    return markdown(head, rows, (0, 1, 2))


@table
def methods() -> list[str]:
    results = read(
        "benchmarks/results/methods.jsonl",
        "python benchmarks/methods.py --rounds 15 --into benchmarks/results/methods.jsonl",
    )
    rows = [
        [where(line), name, f"{row['ratio']:.2f}", f"{1 + row['adds']:.2f}"]
        for line in results.all(rounds=15)
        for name, row in line["found"].items()
    ]
    return markdown(["processor", "`benchmarks/methods.py`", "measured", "by definition"], rows, (0, 1))


def where(line: Line) -> str:
    """On what a line was measured: the GPU, where the benchmark used one."""
    gpu = f", {line['gpu']}" if line.get("device", "cpu") != "cpu" else ""
    return f"{line['processor']}, {line['cores']} cores{gpu}"


@table
def links() -> list[str]:
    results = read(
        "benchmarks/results/kernels.jsonl",
        "python benchmarks/kernels.py --links --into benchmarks/results/kernels.jsonl",
    )
    lines = results.all(part="links")
    latest = {name: row for line in lines for name, row in line["found"].items()}  # later lines may have some alone
    found = {name: latest[name] for name in lines[-1].get("order", latest) if name in latest}
    if not all("send_vectors" in row for row in found.values()):
        raise Missing(f"{results.command} # on Linux")
    rows = [
        [f"`{name}`", f"{row['bytes']:,}", f"{row['send_vectors']:.1f}", f"{row['recv_vectors']:.1f}"]
        for name, row in found.items()
    ]
    head, align, *lines = markdown(["link", "bytes", "`send`, vectors", "`recv`, vectors"], rows)
    return [head, align.replace("| --- ", "| :--- ", 1), *lines]


@table
def coding() -> list[str]:
    results = read(
        "benchmarks/results/coding.jsonl", "python benchmarks/coding.py --into benchmarks/results/coding.jsonl"
    )
    rows = [
        [
            f"`{name}`",
            *(f"{row[field]:,}" for field in ("before", "after", "mean_before", "mean_after")),
            *(f"{sum(row[field]):.1f}" for field in ("ms_before", "ms_after")),
        ]
        for name, row in results.of(data="fashion_mnist")["found"].items()
    ]
    head = ["link", "client, before", "client, after", "mean, before", "mean, after", "ms before", "ms after"]
    return markdown(head, rows)


@table
def transform() -> list[str]:
    command = "python benchmarks/transform.py --large --into benchmarks/results/transform.jsonl"
    found: dict[tuple[str, str], Line] = {}
    for line in read("benchmarks/results/transform.jsonl", command).all():
        found |= {(row["update"], row["link"]): row for row in line["found"]}  # a later line is another measurement
    rows = [
        [update, f"{row['bytes']:,}", *(f"{row[way]:,.1f}" for way in ("send", "recv"))]
        for (update, _), row in sorted(found.items(), key=lambda item: (item[1]["entries"], item[1]["bytes"]))
    ]
    return markdown(["entries", "bytes", "`send`, ms", "`recv`, ms"], rows)


@table
def idle() -> list[str]:
    results = read(
        "benchmarks/results/federation.jsonl",
        "python benchmarks/federation.py --rounds 10 --into benchmarks/results/federation.jsonl",
    )
    rows = []
    for line in results.lines:
        seconds = [f"{line[f'{name}_median']:.2f} s" for name in ("flower", "thinwire")]
        about = [where(line), line["versions"]["flwr"], str(line["rounds"]), f"{line['load']:.1f}"]
        rows.append([*about, *seconds, f"{line['ratio']:.2f}"])
    head = ["processor", "flwr", "rounds", "load before", "Flower's own FedAvg", "LBGM's scalars", "ratio"]
    return markdown(head, rows, (0,))


@table
def large() -> list[str]:
    results = read(
        "benchmarks/results/large.jsonl",
        "python benchmarks/large.py --into benchmarks/results/large.jsonl",
    )
    rows = []
    for line in results.lines:
        peaks = [line["peaks"][name] for name in ("server", "worker", "superlink", "supernode")]
        sizes = [f"{size / 1e9:.1f} GB" for size in peaks]
        both = [f"{line[name]:,}" for name in ("up_bytes", "down_bytes")]
        rows.append([where(line), f"{line['model_bytes']:,}", *both, f"{line['round_seconds']:.0f} s", *sizes])
    head = ["processor", "bytes of the model", "ledger, up", "ledger, down", "round", "server", "worker"]
    return markdown([*head, "SuperLink", "SuperNode"], rows, (0,))


@table
def wire() -> list[str]:
    results = read(
        "experiments/wire/results/slow_link.jsonl",
        "pytest -m soak tests/deploy/test_flower_links.py -k spared # with THINWIRE_RESULTS=experiments/wire/results",
    )
    names = {"fedavg": "`FedAvg`", "lbgm": "`LBGM`", "luar": "`LUAR`", "dense": "`FedAvg` with `mbit=0.3`"}
    rows = []
    for line in results.all(floats=582_026):  # the model of the table
        counts = [f"{line[name]:,}" for name in ("up", "wire_up", "down", "wire_down")]
        rows.append([f"{line['round']} of {names[line['run']]}", *counts, f"{line['seconds']:.1f}"])
    return markdown(["round", "ledger, up", "IP bytes, up", "ledger, down", "IP bytes, down", "seconds"], rows)


@table
def ddp() -> list[str]:
    results = read(
        "benchmarks/results/ddp.jsonl",
        "python benchmarks/ddp.py --quick --slowlink PROGRAM --into benchmarks/results/ddp.jsonl",
    )
    line = results.of(part="slow")
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


@table
def ddp_behind() -> list[str]:
    results = read(
        "benchmarks/results/ddp.jsonl",
        "python benchmarks/ddp.py --only behind --slowlink PROGRAM --into benchmarks/results/ddp.jsonl",
    )
    line = results.of(part="behind")
    names = {"alone": "nothing is sent", "def64": "`DEF(64)`", "def64_delay1": "`DEF(64, delay=1)`"}
    rows = []
    for arm, name in names.items():
        cells = [[line[f"ms{of}"][arm], line[f"over_alone{of}"][arm]] for of in ("", "_example")]
        rows.append([name, *(figure for ms, ratio in cells for figure in (f"{ms:.1f}", f"{ratio:.2f}"))])
    networks = ("little to compute", "examples/ddp")
    return markdown(["", *(f"{of}: {what}" for of in networks for what in ("ms a step", "of that alone"))], rows)


@table
def clip() -> list[str]:
    results = read("experiments/clip/results/attack.jsonl", "python experiments/clip/attack.py")
    rows = []
    for row in ("none", "auto", "1", "2", "3", "10"):
        cells = []
        for split in ("iid", "Dirichlet(0.3)"):
            for attacked in (False, True):
                lines = results.all(row=row, split=split, attacked=attacked)
                cells.append(f"{statistics.fmean(line['accuracy'] for line in lines):.3f}")
        rows.append([f"`{row}`" if row == "auto" else row, *cells])
    return markdown(["bound", "iid", "iid, attacked", "Dirichlet(0.3)", "Dirichlet(0.3), attacked"], rows)


@table
def everyday() -> list[str]:
    results = read(
        "benchmarks/results/everyday.jsonl", "python benchmarks/everyday.py --into benchmarks/results/everyday.jsonl"
    )
    names = {"thinwire": "thinwire", "flower": "Flower", "nvflare": "NVFlare", "pfl": "pfl"}
    tasks = {
        "compare": "compare FedAvg and FedProx",
        "bytes": "count bytes, up and down",
        "resume": "go on after a kill in mid-run",
        "deploy": "train on three nodes",
        "method": "add a method of one's own",
    }
    rows = []
    for task, words in tasks.items():
        cells = []
        for name in names:
            line = results.of(task=task, framework=name)
            if line["lines"] is None:
                cells.append("—")
                continue
            cell = f"{line['lines']} lines, {line['seconds']:.0f} s"
            if "bytes" in line:
                cell += ": {:,} up, {:,} down".format(*line["bytes"])
            if "resumed" in line:
                exact = "exactly" if line["exact"] else "to another model"
                cell += f": goes on, {exact}" if line["resumed"] else ": starts over"
            cells.append(cell)
        rows.append([words, *cells])
    return markdown(["task", *names.values()], rows, tuple(range(5)))
