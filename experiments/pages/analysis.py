"""The table of docs/measured/leakage.md, both counts of LBGM's components, and the theorems of methods in numbers."""

from __future__ import annotations

from functools import partial

from . import TABLES, markdown, read, table

COMMAND = "python experiments/analysis/look.py --figures docs/analysis"


@table
def leakage() -> list[str]:
    results = read("experiments/analysis/results/look_digits.jsonl", COMMAND)
    rows = []
    for job, seen in (
        ("leakage", "the server"),
        ("leakage_privacy", "others, with noise"),
        ("leakage_recycled", "the server, round 2"),
        ("leakage_recycled_privacy", "others, with noise, round 2"),
        ("leakage_cifar10", "the server, CIFAR-10"),
    ):
        line = results.of(job=job)
        for leak in line["leaks"]:
            figures = [f"{leak['psnr']:.1f}", f"{leak['ssim']:.2f}", "yes" if leak["guess"] == leak["label"] else "no"]
            rows.append([f"`{leak['method']}`", seen, f"{leak['bytes']:,}", *figures])
    return markdown(["method", "who sees it", "bytes", "PSNR, dB", "SSIM", "label right"], rows, (0, 1))


@table
def components() -> list[str]:
    line = read("experiments/analysis/results/look_digits.jsonl", COMMAND).of(job="by_layer")
    rows = []
    for count in line["counts"]:
        bands = count["deviations"]
        cells = [f"{n:.0f}" for n in count["counts"]]
        if bands is not None:
            cells = [f"{n:.1f} ± {band:.1f}" for n, band in zip(count["counts"], bands, strict=True)]
        rows.append([count["of"], *cells, f"{count['earlier']:.2f}"])
    return markdown(["count", "N95", "N99", "cosine to the nearest gradient before"], rows, (0,))


def theory(method: str) -> list[str]:
    """The theorems of a method, as a small run has them."""
    line = read("experiments/analysis/results/look_digits.jsonl", COMMAND).of(job=f"theory_{method}")
    rows = []
    for one in line["quantities"]:
        value, beside = ("-" if x is None else f"{x:.3g}" for x in (one["value"], one["beside"]))
        where = one["theorem"].partition(", ")[2]
        cells = [
            where,
            one["name"],
            one["meaning"],
            value,
            f"{one['how']} {beside}" if one["beside"] is not None else "",
        ]
        rows.append([cell.replace("||", "‖") for cell in cells])
    return markdown(["of", "what", "meaning", "value", "beside"], rows, (0, 1, 2, 4))


for name in ("lbgm", "luar", "flss", "domo", "intrinsic", "def"):
    TABLES[f"theory-{name}"] = partial(theory, name)
