"""What is found by trying, not read from a run: the smallest dimension, a picture rebuilt from what a client sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import require
from ..options import Json, Rate, Use, folder
from .command import Data, DataDir, Task, look, number, said, short, table

FITS = 0.9  # cosine, below which what is sent is hardly a gradient


@look.command("dimension")
def of_dimension(
    method: Annotated[
        str, typer.Argument(metavar="EXPR", help='A method with a field `dim`, e.g. "Intrinsic(100)".')
    ] = "Intrinsic(100)",
    data: Data = "digits",
    model: Annotated[str | None, typer.Option(help="A model of `thinwire run`.")] = None,
    clients: Annotated[int, typer.Option(help="How many clients there are.")] = 20,
    sample: Annotated[int | None, typer.Option(help="How many take part in a round (default: all).")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each training.")] = 50,
    lr: Annotated[float | None, typer.Option(help="Local learning rate, where the expression leaves it open.")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="An accuracy or a Dice coefficient, 0 to 1 (default: the best of FedAvg trained the same way)."
        ),
    ] = None,
    share: Annotated[float, typer.Option(help="The share of the target that has to be reached.")] = 0.9,
    low: Annotated[int, typer.Option(help="The smallest dimension to try.")] = 10,
    high: Annotated[int | None, typer.Option(help="The largest (default: all of the model's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of split, model, sampling and batches.")] = 0,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the figure (default: none is drawn).", callback=folder)
    ] = None,
    as_json: Json = False,
) -> None:
    """The measured intrinsic dimension: the smallest whose training reaches a share of what the whole model reaches."""
    from dataclasses import replace

    from ...algorithms import FedAvg
    from ...federated.setting import Setting
    from ...federated.simulate import simulate
    from ...look import drawing as figures
    from ...look import subspace as spectra
    from ...look.final import built
    from ...report.curves import SHARES
    from ...studies.federated import Federated

    require(0 < share <= 1, f"--share {share}: it must be above 0, and 1 at most")
    require(target is None or 0 < target <= 1, f"--target {target}: it must be above 0, and 1 at most")
    require(low >= 1, f"--low {low}: it must be at least 1")
    require(high is None or high >= low, f"--high {high}: it must be at least --low {low}")
    setting = Setting(sample=sample, seed=seed)
    texts = Federated.resolved([method], (), {"lr": lr})
    study = Federated(texts, data=data, model=model, clients=clients, rounds=rounds, data_dir=data_dir, setting=setting)
    (made,) = study.parsed()
    require(
        hasattr(made, "dim"), f"{made!r} has no dimension: name a method with a field `dim`, such as Intrinsic(100)"
    )
    problem = study.problem(seed)

    def best(algorithm: Any) -> float:
        result = simulate(algorithm, problem.model, problem.tasks, rounds, setting, test=problem.test)
        found = [line[name] for name in SHARES for line in result.rounds if line.get(name) is not None]
        require(bool(found), "this task is judged by neither accuracy nor Dice: there is no share of it to reach")
        typer.echo(f"{algorithm!r}: at best {100 * max(found):.1f} %", err=True)
        return float(max(found))

    whole = best(FedAvg(made.local)) if target is None else target
    goal = share * whole
    most = high or sum(p.numel() for p in built(problem.model, seed).parameters() if p.requires_grad)
    found, tried = spectra.smallest(lambda dim: best(replace(made, dim=dim)), goal, min(low, most), most)
    rows = [[e.dim, f"{100 * e.reached:.1f} %", "yes" if e.enough else "no"] for e in sorted(tried)]
    table(f"at least {100 * goal:.1f} %", ("dimension", "at best", "enough"), rows)
    typer.echo(f"no dimension up to {most} is enough" if found is None else f"measured intrinsic dimension: {found}")
    drawn = [] if out is None else [figures.dimension(tried, goal, out / "dimension.png")]
    said(as_json, {"dimension": found, "goal": goal, "whole": whole, "tried": spectra.shown(tried)}, drawn)


@look.command("leakage")
def of_leakage(
    methods: Annotated[list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "FedAvg(up=TopK(0.01))".')],
    data: Data = "digits",
    model: Annotated[str, typer.Option(help="A model of `thinwire run`; dlg_lenet is the attack's own.")] = "dlg_lenet",
    task: Task = None,
    picture: Annotated[int, typer.Option(help="The position of the client's picture in the training data.")] = 0,
    round: Annotated[int, typer.Option(help="The round in which it is sent; in those before, the next pictures.")] = 1,
    privacy: Annotated[
        str | None,
        typer.Option(help="Noise on the mean, which others than the server see: Privacy(clip=1, noise=0.01)."),
    ] = None,
    attack: Annotated[
        str, typer.Option(help="idlg (label from the last layer), dlg (label sought too) or label (known).")
    ] = "idlg",
    distance: Annotated[str, typer.Option(help="squares or cosine: how gradients are compared.")] = "squares",
    iterations: Annotated[int, typer.Option(help="Steps of L-BFGS.")] = 300,
    tries: Annotated[int, typer.Option(help="Beginnings, of which the best match is taken.")] = 3,
    lr: Rate = None,
    seed: Annotated[int, typer.Option(help="Seed of the model and of the beginnings.")] = 0,
    use: Use = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="A folder for the pictures.", callback=folder)] = Path("runs/leakage"),
    as_json: Json = False,
) -> None:
    """Rebuild a client's picture from what it sends under each method: PSNR, SSIM, pictures side by side."""
    from ...algorithms import Auto
    from ...look import drawing as figures
    from ...look import leakage
    from ...look.final import built
    from ...problem import custom, standard
    from ...studies.federated import Federated, settled
    from ...task import as_tasks

    require(attack in ("idlg", "dlg", "label"), f"--attack {attack}: idlg, dlg or label is expected")
    require(distance in ("squares", "cosine"), f"--distance {distance}: squares or cosine is expected")
    for name, value in (("iterations", iterations), ("tries", tries), ("round", round)):
        require(value >= 1, f"--{name} {value}: it must be at least 1")
    hidden = settled({"privacy": privacy}).privacy if privacy else None
    typed = [Federated.method(text, use or (), {"lr": lr}) for text in methods]
    methods_made = [method for method in typed if not isinstance(method, Auto)]
    require(len(methods_made) == len(typed), "Auto is chosen by a run: give the expression that `thinwire plan` says")
    problem = custom(task, 1, seed) if task else standard(data, model, 1, seed=seed, data_dir=data_dir)
    examples = as_tasks(problem.tasks)[0]
    if found := leakage.rough(built(problem.model, seed)):
        typer.echo(
            f"note: this model has {', '.join(found)}, whose second derivatives are zero nearly everywhere: L-BFGS "
            f"cannot invert its gradients, so a poor picture says nothing of other attacks; dlg_lenet is smooth",
            err=True,
        )
    how: dict[str, Any] = {"attack": attack, "distance": distance, "iterations": iterations, "tries": tries}
    leaks = [
        leakage.leak(method, problem.model, examples, picture, round=round, privacy=hidden, seed=seed, **how)
        for method in methods_made
    ]
    table(
        f"picture {picture} of {task or data}, round {round}" + (f", {hidden!r}" if hidden else ""),
        ("method", "bytes", "PSNR", "SSIM", "match", "label", "guess"),
        [[e.method, f"{e.bytes:,}", f"{e.psnr:.1f}", short(e.ssim), f"{e.match:.1e}", e.label, e.guess] for e in leaks],
    )
    for e in (e for e in leaks if e.fits < FITS):
        typer.echo(
            f"note: what {e.method} sends has a cosine of {e.fits:.2f} to the gradient of the picture, and this attack "
            "takes it for that: a poor picture says nothing of other attacks",
            err=True,
        )
    drawn = [figures.leaked(leaks, out / "leakage.png")]
    rows = [{k: number(v) for k, v in e._asdict().items() if k not in ("original", "rebuilt")} for e in leaks]
    said(as_json, {"privacy": None if hidden is None else repr(hidden), "leaks": rows}, drawn)
