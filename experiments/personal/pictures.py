"""Pictures of what experiments/personal/retina.py trained: segmentations, and whom the selector tells apart.

    python experiments/personal/retina.py --only FedAvg --only FedSM --out runs/retina
    python experiments/personal/pictures.py --out runs/retina [--only FedSM] [--seed 0]

``segmentations.png`` has a row a site: the first test picture, its mask, and what each method's model of that site
makes of it, with its Dice coefficient. Vessels that were found are white, missed ones red, and what is none blue; what
nobody labelled is grey. ``selector.png`` has the training pictures as FedSM's selector sees them: the mean of each
channel of its last layer, by t-SNE, coloured by site (the thesis' figure 11). A method whose row is not in the results,
or whose run is not in ``--out``, is left out with a word.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import record
import retina as table
from pages.personal import LABELS

import thinwire as tw
from thinwire.errors import ExpressionError
from thinwire.look.pictures import compare
from thinwire.losses import dice
from thinwire.problem import Problem

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def trained(name: str, o: argparse.Namespace, problem: Problem) -> tw.Result | None:
    """The complete run of a row in ``--out``, at the rate of its line in the results; None, with a word, without."""
    row = {**table.ROWS, **table.SWEEP}.get(name)
    key = {"experiment": "table", "data": "retina", "row": name, "seed": o.seed}
    key |= {"rounds": o.rounds, "size": o.size, "width": o.width}
    lines = [line for line in record.read(o.into) if all(line.get(part) == value for part, value in key.items())]
    line = next((line for line in reversed(lines) if "unseen" not in line), None)
    if row is None or line is None or "own" not in line:
        print(f"left out: {name} has no line of {o.rounds} rounds at {o.size} pixels in {o.into}")
        return None
    try:
        method = tw.parse(line["expression"])
    except ExpressionError as error:
        print(f"left out: {name} is not in this version ({str(error).partition(chr(10))[0]})")
        return None
    own = problem if row.sites else table.problem_of(o, o.seed, sites=False)
    return next(table.simulated(method, own, name, o.rounds, line["lr"], o.seed, o, last=1))


def segmentations(results: dict[str, tw.Result], problem: Problem, path: Path) -> None:
    """A row a site: picture, mask, and every method's."""
    tests: Sequence[Any] = problem.client_tests or ()
    figure, grid = plt.subplots(len(tests), 2 + len(results), figsize=(1.6 * (2 + len(results)), 1.62 * len(tests)))
    for site, task in enumerate(tests):
        inputs, targets = task.batch(torch.tensor([0]))
        picture = task.inputs[task.indices[0]].permute(1, 2, 0).numpy()
        truth = compare(targets == 1, targets).numpy()  # of one picture, with one mask
        cells: list[tuple[np.ndarray, str]] = [(picture, LABELS[site]), (truth, "by hand")]
        for name, result in results.items():
            with torch.no_grad():
                outputs = table.module_of(result, site)(inputs)
            found = compare(outputs[0] > 0, targets).numpy()
            cells.append((found, f"{name} {float(dice(outputs, targets)):.3f}"))
        for place, (image, said) in zip(grid[site], cells, strict=True):
            place.imshow(image)
            place.set_title(said, fontsize=7, pad=2)
            place.axis("off")
    figure.tight_layout(pad=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
    print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


def features(selector: nn.Module, inputs: Tensor) -> Tensor:
    """What the selector's dense layer is given, [n, channels]."""
    held: list[Tensor] = []
    last = [module for module in selector.modules() if isinstance(module, nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda _, given: held.append(given[0].detach()))
    try:
        with torch.no_grad():
            selector.eval()(inputs)
    finally:
        hook.remove()
    return held[0]


def told_apart(selector: nn.Module, problem: Problem, path: Path) -> None:
    """The training pictures by t-SNE of the selector's features."""
    from sklearn.manifold import TSNE

    seen, sites = [], []
    for site, task in enumerate(problem.tasks):
        for part in torch.arange(len(task)).split(16):
            seen.append(features(selector, task.batch(part)[0]))
            sites += [site] * len(part)
    x = torch.cat(seen).numpy()
    places = TSNE(perplexity=min(20, (len(x) - 1) // 3), random_state=0, init="pca").fit_transform(x)
    figure, axes = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
    for site, label in enumerate(LABELS[: len(problem.tasks)]):
        own = np.array(sites) == site
        axes.scatter(*places[own].T, s=10, label=label)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
    print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")


def main(words: Sequence[str] | None = None) -> None:
    parser = table.options()
    parser.description = __doc__
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=Path, default=Path("runs/pictures"), help="folder of the pictures")
    o = table.read(parser, words)
    if o.out is None:
        parser.error("--out: the folder of the runs, as experiments/personal/retina.py was given it")
    names = o.only or ["FedAvg", "FedSM"]
    problem = table.problem_of(o, o.seed)
    results = {name: result for name in dict.fromkeys(names) if (result := trained(name, o, problem)) is not None}
    if results:
        segmentations(results, problem, o.to / "segmentations.png")
    for result in results.values():
        selector = table.selector_of(result)
        if selector is not None:
            told_apart(selector, problem, o.to / "selector.png")
            break
    else:
        print(f"left out: the selector's features, for none of {', '.join(names)} has a selector here")


if __name__ == "__main__":
    main()
