"""The table of docs/measured/leakage.md."""

from __future__ import annotations

from . import markdown, read, table

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
