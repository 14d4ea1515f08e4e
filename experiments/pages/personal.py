"""Tables of docs/measured/personal.md: models of clients' own on the retina's sites and on shifted Fashion-MNIST."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from itertools import product

from . import ROOT, Line, Missing, markdown, read, table

LABELS = ("DRIVE", "CHASE", "STARE", "HRF", "LES-AV", "HAGIS", "ORVS")  # of the retina's sites
THESIS = {  # mean over clients, and over all test pictures: tables 11, 14 (FT to pFedMe, within FedSM) and 15
    "centralised": (0.8898, 0.9014),
    "FedAvg": (0.8710, 0.8923),
    "FedProx": (0.8434, 0.8749),
    "SCAFFOLD": (0.8141, 0.8625),
    "FedSM": (0.8914, 0.9028),
    "FedSM-extra": (0.8905, 0.9007),
    "FT": (0.8875, 0.8984),
    "APFL": (0.8842, 0.8966),
    "Per-FedAvg": (0.8737, 0.8900),
    "pFedMe": (0.8818, 0.8957),
    "FedSM, lam 0.1": (0.8808, 0.8964),
    "FedSM, lam 0.3": (0.8859, 0.8896),
    "FedSM, lam 0.5": (0.8895, 0.9019),
    "FedSM, lam 0.9": (0.8882, 0.9001),
}
ORDER = (
    *("centralised", "FedAvg", "FedProx", "SCAFFOLD", "FedSM", "FedSM-extra", "Ensemble", "SoftPull", "FT", "APFL"),
    *("Per-FedAvg", "pFedMe", "Ditto", "FedBN"),
)
IN_PLACE = tuple(f"FedSM with {method}" for method in ("FT", "APFL", "Per-FedAvg", "pFedMe", "Ditto"))  # of SoftPull
THESIS |= {name: THESIS[method] for name in IN_PLACE if (method := name.rpartition(" ")[2]) in THESIS}
LAMBDAS = ("FedSM, lam 0.1", "FedSM, lam 0.3", "FedSM, lam 0.5", "FedSM", "FedSM, lam 0.9")
GAMMAS = (0.0, 0.5, 0.7, 0.9, 0.95, 0.99)  # confidences above which FedSM takes the model that its selector names
RESULTS, QUEUE = "experiments/personal/results", "python experiments/personal/everything.py --out runs/personal"


def compared(lines: Iterable[Line], names: Iterable[str] = ORDER) -> list[str]:
    """A row a method: what clients' own models reach, and what they cost; means over seeds."""
    groups = grouped(lines, names)
    pictures = next(iter(groups.values()))[0]["data"] == "retina"
    head = ["row", "lr", "seeds", "evaluations", "mean", "worst", "lowest tenth", "any", "all tests"]
    head += ["MB up", "own", "MB down", "own"] + (["thesis"] if pictures else [])
    rows = []
    for name, group in groups.items():
        cells = [name, f"{group[0]['lr']:g}", str(len(group))]
        cells += [" or ".join(map(str, sorted({line.get("last", 1) for line in group})))]
        cells += [four(group, lambda x: statistics.fmean(x["own"]), spread=True), four(group, lambda x: min(x["own"]))]
        cells += [four(group, lambda x: tenth(x["own"])), four(group, lambda x: statistics.fmean(x["any"]))]
        cells += [four(group, lambda x: x["test"])]
        for way in ("up", "down"):
            cells += [megabytes(group, f"bytes_{way}"), megabytes(group, f"personal_{way}")]
        cells += [", ".join(f"{value:.4f}" for value in THESIS.get(name, ()))] if pictures else []
        rows.append(cells)
    return markdown(head, rows)


def by_client(lines: Iterable[Line], names: Iterable[str] = ORDER) -> list[str]:
    """A row a method, a column a client: what each one's own model reaches; means over seeds."""
    groups = grouped(lines, names)
    first = next(iter(groups.values()))[0]
    clients = range(len(first["own"]))
    labels = [LABELS[k] if first["data"] == "retina" else f"site {k}" for k in clients]
    cells = ([four(group, lambda x, k=k: x["own"][k]) for k in clients] for group in groups.values())  # type: ignore[misc]
    return markdown(["row", *labels], [[name, *each] for name, each in zip(groups, cells, strict=True)])


def grouped(lines: Iterable[Line], names: Iterable[str]) -> dict[str, list[Line]]:
    """The lines of each row that has some, a line a seed."""
    there = counted(lines)
    groups = {name: [x for x in there if x["row"] == name] for name in names}
    groups = {name: group for name, group in groups.items() if group}
    if not groups:
        raise Missing(QUEUE)
    return groups


def counted(lines: Iterable[Line]) -> list[Line]:
    """Those of the tables of rows, at rates at which no seed diverged."""
    table = [x for x in lines if x["experiment"] == "table" and "unseen" not in x]
    diverged = {(x["row"], x["lr"]) for x in table if "diverged" in x}
    return [x for x in table if (x["row"], x["lr"]) not in diverged]


BY_SELECTOR = ("FedSM", "FedSM-extra", "Ensemble")


def reached() -> Iterator[Line]:
    """What claims are about: the mean over clients, by the selector where there is one, else by their own models.

    Centralised training has no bytes: the pictures would be sent.
    """
    for path in sorted((ROOT / RESULTS).glob("*.jsonl")):
        for line in counted(read(f"{RESULTS}/{path.name}", QUEUE).lines):
            by = "any" if line["row"].partition(",")[0] in BY_SELECTOR else "own"
            kept = ("row", "seed") if line["row"] == "centralised" else ("row", "seed", "bytes_up", "bytes_down")
            same = {name: line[name] for name in kept}
            means = {"reached": statistics.fmean(line[by]), "own": statistics.fmean(line["own"])}
            yield {"setting": {"name": path.stem}, **same, **means}


def four(lines: list[Line], of: Callable[[Line], float], spread: bool = False) -> str:
    """To four digits, with the standard deviation over seeds where there are several."""
    each = [of(line) for line in lines]
    deviation = f" ± {statistics.stdev(each):.4f}" if spread and len(each) > 1 else ""
    return f"{statistics.fmean(each):.4f}{deviation}"


def tenth(values: list[float]) -> float:
    """The 10th percentile over clients, between two of them in proportion."""
    ordered, place = sorted(values), 0.1 * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def megabytes(lines: list[Line], name: str) -> str:
    """In 10^6 bytes; nothing where lines do not say it."""
    found = [line[name] for line in lines if name in line]
    return f"{statistics.fmean(found) / 1e6:,.1f}" if found else ""


def lines_of(file: str, command: str = QUEUE) -> list[Line]:
    """What is in a file of results."""
    return read(f"{RESULTS}/{file}.jsonl", command).lines


@table
def personal_retina() -> list[str]:
    return compared(lines_of("retina_128", f"{QUEUE} --queue middle"))


@table
def personal_retina_sites() -> list[str]:
    return by_client(lines_of("retina_128", f"{QUEUE} --queue middle"))


@table
def personal_lambdas() -> list[str]:
    return swept("retina_128", f"{QUEUE} --queue middle")


@table
def personal_small() -> list[str]:
    return compared(lines_of("retina_64"))


@table
def personal_small_sites() -> list[str]:
    return by_client(lines_of("retina_64"))


@table
def personal_in_place() -> list[str]:
    return compared(lines_of("retina_64"), ("FedSM", *IN_PLACE))


@table
def personal_long() -> list[str]:
    return compared(lines_of("retina_64_long", f"{QUEUE} --queue long"), [*ORDER, "FedSM-extra, on top"])


@table
def personal_small_lambdas() -> list[str]:
    return swept("retina_64")


def swept(file: str, command: str = QUEUE) -> list[str]:
    """FedSM by ``lam``."""
    lines = lines_of(file, command)
    if not any(line["row"] == LAMBDAS[0] for line in lines):
        raise Missing(command)
    return compared(lines, LAMBDAS)


@table
def personal_large() -> list[str]:
    return compared(lines_of("retina_256", f"{QUEUE} --queue large"))


@table
def personal_large_sites() -> list[str]:
    return by_client(lines_of("retina_256", f"{QUEUE} --queue large"))


@table
def personal_sites() -> list[str]:
    return compared(lines_of("fashion_sites"))


@table
def personal_cameras() -> list[str]:
    return by_client(lines_of("fashion_sites"))


@table
def personal_labels() -> list[str]:
    return compared(lines_of("fashion_mnist"))


@table
def personal_gammas() -> list[str]:
    """FedSM at the sites that took no part, by gamma: means over seeds and the last evaluations."""
    lines = [x for x in lines_of("retina_64") if "by_gamma" in x]
    sites = sorted({x["unseen"] for x in lines})
    if not sites:
        raise Missing(QUEUE)
    columns = [[x["by_gamma"] for x in lines if x["unseen"] == site] for site in sites]
    means = [[statistics.fmean(values) for values in zip(*each, strict=True)] for each in columns]  # [sites, gammas]
    rows = [
        [f"{gamma:g}", *(f"{site[i]:.4f}" for site in means), f"{statistics.fmean(site[i] for site in means):.4f}"]
        for i, gamma in enumerate(GAMMAS)
    ]
    return markdown(["gamma", *(LABELS[site] for site in sites), "mean"], rows)


@table
def personal_unseen() -> list[str]:
    """Means over the seeds that have every site; what is said of the selector and of the weights too."""
    lines = [x for x in lines_of("retina_64") if "unseen" in x and "own" in x]
    methods = [name for name in ORDER if any(x["row"] == name for x in lines)]
    sites = sorted({x["unseen"] for x in lines})
    there = {(x["row"], x["unseen"], x["seed"]): x for x in lines}
    every = list(product(methods, sites))
    seeds = [seed for seed in sorted({x["seed"] for x in lines}) if all((*each, seed) in there for each in every)]
    if not seeds:
        raise Missing(QUEUE)

    def cell(values: list[float]) -> str:
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.4f}{spread}"

    head = ["site left out", *(part for name in methods for part in (name, "after a tenth"))]
    head += ["chosen by FedSM's selector", "Ensemble's weights"]
    columns = [(name, of) for name in methods for of in ("test", "tuned")]
    rows = []
    for site in sites:
        others = ["global", *(label for k, label in enumerate(LABELS) if k != site)]
        cells = [LABELS[site], *(cell([there[name, site, seed][of] for seed in seeds]) for name, of in columns)]
        cells += [chosen([there["FedSM", site, seed]["chosen"] for seed in seeds], others[1:])]
        cells += [weights([there["Ensemble", site, seed]["weights"] for seed in seeds], others)]
        rows.append(cells)
    means = [[statistics.fmean(there[name, k, seed][of] for k in sites) for seed in seeds] for name, of in columns]
    return markdown(head, [*rows, ["mean", *map(cell, means), "", ""]], (0, len(head) - 2, len(head) - 1))


def ordered(each: list[list[float]], labels: list[str]) -> list[tuple[float, str]]:
    """The means over seeds and whose they are, the largest first."""
    return sorted(zip(map(statistics.fmean, zip(*each, strict=True)), labels, strict=True), reverse=True)


def chosen(each: list[list[float]], labels: list[str]) -> str:
    """For how many pictures the selector takes whose model, most often first."""
    return ", ".join(f"{label} {count:.0f}" for count, label in ordered(each, labels) if round(count))


def weights(each: list[list[float]], labels: list[str]) -> str:
    """The mean weights of the global model and of the others', the three largest."""
    return ", ".join(f"{label} {weight:.2f}" for weight, label in ordered(each, labels)[:3])
