"""``thinwire look ...``: what happened in a run, and what a server sees of a client.

Each command prints a table, writes its figures into ``--out`` (the run's own folder ``look``), and with ``--json`` ends
with one object that has all that the figures show.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import RunError, require

look = typer.Typer(no_args_is_help=True, help="Look at what a run recorded, and at what a server sees of a client.")

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="A study, or a single run.")]
Out = Annotated[Path | None, typer.Option(help="A folder for the figures (default: `look` in each run's folder).")]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on a line of its own.")]
Use = Annotated[list[str] | None, typer.Option("--use", help="A module with methods or links of your own. Repeatable.")]
Data = Annotated[str, typer.Option(help="A data set of `thinwire run`.")]
DataDir = Annotated[str | None, typer.Option(help="Where data sets lie (else THINWIRE_DATA, a cache, or a download).")]
Task = Annotated[str | None, typer.Option(help="my_module:make_task instead of --data and --model.")]
Squares = Annotated[
    bool, typer.Option("--squares", help="Shares of the squared singular values, in place of the paper's values.")
]


@look.command("gradients")
def of_gradients(folder: Dir, out: Out = None, squares: Squares = False, as_json: Json = False) -> None:
    """Principal components of a run's gradients, their overlap and cosines by layer; LBGM's tests; Equation 45's bound.

    Needs a run with --record gradients (components), looks (LBGM's tests), or all.
    """
    from . import figures, gradients

    of: gradients.Kind = "variance" if squares else "values"

    def one(run: Any, into: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        tested = gradients.recycling(run.rounds)
        if any("change" in line for line in run.rounds) and (run.path / "gradients.f32").exists():
            space = gradients.recorded(run)
            lines = gradients.table(space, of)
            _table(
                f"{len(space.rounds)} gradients",
                ("layer", "entries", "N95", "N99", "cosine to the next", "to the nearest direction"),
                [[e.layer, f"{e.entries:,}", e.n95, e.n99, f"{e.consecutive:.3f}", f"{e.nearest:.3f}"] for e in lines],
            )
            accuracy = [(r["round"], r["accuracy"]) for r in run.rounds if r.get("accuracy") is not None]
            allowed = gradients.steps(space, run.rounds)
            found |= {
                "layers": [e._asdict() for e in lines],
                "progression": gradients.progression(space.products[gradients.WHOLE], of=of),
                "steps": [e._asdict() for e in allowed],
                "figures": [
                    figures.components(space, into / "components.png", of, accuracy),
                    figures.overlap(space, into / "overlap.png", of),
                    figures.cosines(space, into / "cosines.png"),
                    *([figures.bounds(allowed, into / "bounds.png")] if allowed else []),
                ],
            }
            if allowed:
                last = allowed[-1]
                typer.echo(
                    f"Equation 45: smoothness of at least {last.beta:.3g} and dissimilarity of at least "
                    f"{last.upsilon2:.3g} allow a learning rate of at most {last.bound:.3g}; it is {last.rate:.3g}"
                )
        if tested:
            held = [(e.error, e.allowed) for e in tested if e.error is not None]
            kept = sum(error <= allowed for error, allowed in held)
            typer.echo(
                f"look-back tests: {100 * sum(e.recycled for e in tested) / len(tested):.1f} % recycled; ||d||^2 sin^2 "
                f"was within 1/sqrt(tau T) for every client in {kept} of {len(held)} rounds"
            )
            drawn = figures.recycling(tested, run.rounds, into / "look_back.png")
            found["recycling"] = [e._asdict() for e in tested]
            found["figures"] = [*found.get("figures", []), drawn]
        if not found:
            raise RunError(
                f"{run.path} has neither gradients nor looks: train it with --record gradients, looks or all"
            )
        return found

    _each(folder, out, as_json, one)


@look.command("layers")
def of_layers(folder: Dir, out: Out = None, as_json: Json = False) -> None:
    """How far each layer moved beside how large it is, which were recycled, and their share of the gradient (kappa).

    Needs a run with --record layers, gradients or all.
    """
    from . import figures, layers

    def one(run: Any, into: Path) -> dict[str, Any]:
        found, kappas = layers.recorded(run)
        _table(
            f"{len(kappas)} rounds, means",
            ("layer", "||change||", "||weights||", "s", "share of ||g||^2", "recycled"),
            [
                [e.layer, f"{e.change:.4g}", f"{e.weights:.4g}", f"{e.score:.3g}", f"{e.share:.3f}", e.recycled]
                for e in found
            ],
        )
        recycling = [e.kappa for e in kappas if e.unsent]
        if recycling:
            typer.echo(
                f"kappa: mean {sum(recycling) / len(recycling):.3f}, largest {max(recycling):.3f}; below 1/16 in "
                f"{sum(k < layers.KAPPA for k in recycling)} of {len(recycling)} rounds that recycled"
            )
        return {
            "layers": [e._asdict() for e in found],
            "kappa": [e._asdict() for e in kappas],
            "figures": [figures.scores(found, kappas, into / "layers.png")],
        }

    _each(folder, out, as_json, one)


@look.command("subspace")
def of_subspace(
    folder: Dir,
    rank: Annotated[int | None, typer.Option(help="Directions of the basis (FLSS's R).")] = None,
    start: Annotated[int | None, typer.Option(help="Rounds that it is first made of (FLSS's L).")] = None,
    decay: Annotated[float | None, typer.Option(help="What its singular values are multiplied by (lambda).")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The spectrum of a run's updates, what R directions leave out, and the cosine of each update to FLSS's basis.

    Needs a run with --record gradients or all, of any method.
    """
    from . import figures, spectra

    def one(run: Any, into: Path) -> dict[str, Any]:
        found = spectra.recorded(run, rank, start, decay)
        marks = [r for r in (1, 2, 5, 10, 20, 50, 100, 200) if r <= len(found.rho)]
        _table(
            f"{len(found.sigma)} updates",
            ("R", "sigma_R / sigma_1", "rho_R"),
            [[r, f"{found.sigma[r - 1] / found.sigma[0]:.2e}", f"{found.rho[r - 1]:.2e}"] for r in marks],
        )
        there = [e.cosine for e in found.followed if e.cosine > 0]
        if there:
            typer.echo(f"cosine to {found.rank} directions: mean {sum(there) / len(there):.3f}, last {there[-1]:.3f}")
        return {
            "sigma": found.sigma.tolist(),
            "rho": found.rho.tolist(),
            "followed": [e._asdict() for e in found.followed],
            "server_sigma": None if found.kept is None else found.kept.tolist(),
            "figures": [figures.spectrum(found, into / "subspace.png")],
        }

    _each(folder, out, as_json, one)


@look.command("feedback")
def of_feedback(folder: Dir, out: Out = None, as_json: Json = False) -> None:
    """How long residuals are, how far x is from y, and the best lambda, by step.

    Needs a study of `thinwire ddp-sim` with a method that keeps residuals, such as DEF(64).
    """
    from . import figures, residuals

    def one(run: Any, into: Path) -> dict[str, Any]:
        found = residuals.recorded(run)
        _table(
            run.about.get("name", run.expression),
            ("step", "residual", "||x - y||", "lambda*", "lambda"),
            [
                [e.step, f"{e.residual:.4g}", f"{e.distance:.4g}", _short(e.best), _short(e.lam)]
                for e in found[:: max(1, len(found) // 20)]
            ],
        )
        return {"steps": [e._asdict() for e in found], "figures": [figures.owed(found, into / "feedback.png")]}

    _each(folder, out, as_json, one)


@look.command("surface")
def of_surface(
    folder: Dir,
    points: Annotated[int, typer.Option(help="Points along each direction, odd: the middle one is the model.")] = 15,
    reach: Annotated[float, typer.Option(help="How far to go along each direction, in lengths of its filters.")] = 1.0,
    examples: Annotated[int, typer.Option(help="Test examples, the first ones, at each point.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the two directions.")] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The test loss around a run's final model, along two random directions with filters as long as the model's.

    Needs a complete run of a study, of any federated method.
    """
    from . import figures, surfaces

    require(points >= 3 and points % 2 == 1, f"--points {points}: an odd number of at least 3 is expected")
    require(reach > 0, f"--reach {reach}: it must be positive")
    require(examples >= 1, f"--examples {examples}: it must be at least 1")

    def one(run: Any, into: Path) -> dict[str, Any]:
        final, loss, _ = _final(run, examples)
        a, b = (surfaces.random_direction(final, seed, number) for number in range(2))
        steps = [reach * (2 * i / (points - 1) - 1) for i in range(points)]
        found = surfaces.surface(final, a, b, steps, steps, loss)
        at, most = float(found[points // 2, points // 2]), float(found.max())
        typer.echo(f"loss {at:.4g} at the model, {most:.4g} at most within {reach:g}")
        drawn = figures.surface(found, steps, steps, into / "surface.png", "first direction", "second direction")
        return {"across": steps, "up": steps, "loss": found.tolist(), "figures": [drawn]}

    _each(folder, out, as_json, one)


@look.command("path")
def of_path(
    folder: Dir,
    points: Annotated[int, typer.Option(help="Points along each direction.")] = 15,
    examples: Annotated[int, typer.Option(help="Test examples, the first ones, at each point.")] = 1000,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The way of a run's models on the plane of their two principal directions, and the test loss around it.

    Needs a complete run of a study with --record models or all, evaluated three times or more.
    """
    from ..params import Params
    from . import figures, surfaces

    require(points >= 3, f"--points {points}: it must be at least 3")
    require(examples >= 1, f"--examples {examples}: it must be at least 1")

    def one(run: Any, into: Path) -> dict[str, Any]:
        layout, rows, rounds = surfaces.recorded(run)
        found = surfaces.way(rows, layout, rounds)
        _, loss, _ = _final(run, examples)
        end = Params(layout, rows[-1].clone())
        across, up = (surfaces.span(found.places[:, j], points) for j in range(2))
        values = surfaces.surface(end, *found.directions, across, up, loss)
        first, second = (100 * share for share in found.shares)
        typer.echo(f"{len(rounds)} models; two directions have {first:.1f} % and {second:.1f} % of their variance")
        names = f"first principal direction, {first:.0f} % of the variance", f"second, {second:.0f} %"
        drawn = figures.surface(values, across, up, into / "path.png", *names, found)
        places = {"rounds": rounds, "places": found.places.tolist(), "shares": found.shares}
        return {**places, "across": across, "up": up, "loss": values.tolist(), "figures": [drawn]}

    _each(folder, out, as_json, one)


@look.command("embedding")
def of_embedding(
    folder: Dir,
    each: Annotated[int, typer.Option(help="Examples of each client, its first ones.")] = 50,
    clients: Annotated[int, typer.Option(help="Clients, the first ones.")] = 10,
    layer: Annotated[str | None, typer.Option(help="Whose input is embedded (default: the last linear layer).")] = None,
    perplexity: Annotated[float, typer.Option(help="Of t-SNE: about how many neighbours count.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of t-SNE.")] = 0,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Where a run's final model puts the examples of each client: t-SNE of what goes into its last layer.

    Needs a complete run of a study, of any federated method, and scikit-learn.
    """
    import torch

    from . import figures, surfaces

    for name, value in (("each", each), ("clients", clients)):
        require(value >= 1, f"--{name} {value}: it must be at least 1")
    require(perplexity > 0, f"--perplexity {perplexity}: it must be positive")

    def one(run: Any, into: Path) -> dict[str, Any]:
        _, _, (module, tasks) = _final(run, 1)
        rows, owners = [], list[int]()
        for client, task in enumerate(tasks[:clients]):
            indices = torch.arange(min(each, len(task)))
            rows.append(surfaces.features(module, task, indices, layer))
            owners += [client] * len(indices)
        places = surfaces.embedding(torch.cat(rows), perplexity, seed)
        typer.echo(f"{len(owners)} examples of {len(rows)} clients, {rows[0].shape[1]} features each")
        drawn = figures.embedding(places, owners, into / "embedding.png")
        return {"clients": owners, "places": places.tolist(), "figures": [drawn]}

    _each(folder, out, as_json, one)


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
        float | None, typer.Option(help="An accuracy, 0 to 1 (default: the best of FedAvg trained the same way).")
    ] = None,
    share: Annotated[float, typer.Option(help="The share of the target that has to be reached.")] = 0.9,
    low: Annotated[int, typer.Option(help="The smallest dimension to try.")] = 10,
    high: Annotated[int | None, typer.Option(help="The largest (default: all of the model's).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of split, model, sampling and batches.")] = 0,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the figure (default: none is drawn).")] = None,
    as_json: Json = False,
) -> None:
    """The measured intrinsic dimension: the smallest whose training reaches a share of what the whole model reaches."""
    from dataclasses import replace

    from ..algorithms import FedAvg
    from ..compare.federated import Federated
    from ..run.setting import Setting
    from ..run.simulate import simulate
    from . import figures, spectra

    require(0 < share <= 1, f"--share {share}: it must be above 0, and 1 at most")
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
        typer.echo(f"{algorithm!r}: best accuracy {100 * (result.best_accuracy or 0):.1f} %", err=True)
        return result.best_accuracy or 0.0

    whole = best(FedAvg(made.local)) if target is None else target
    goal = share * whole
    most = high or sum(p.numel() for p in _module(problem.model, seed).parameters() if p.requires_grad)
    found, tried = spectra.smallest(lambda dim: best(replace(made, dim=dim)), goal, min(low, most), most)
    rows = [[e.dim, f"{100 * e.reached:.1f} %", "yes" if e.enough else "no"] for e in sorted(tried)]
    _table(f"at least {100 * goal:.1f} %", ("dimension", "best accuracy", "enough"), rows)
    typer.echo(f"no dimension up to {most} is enough" if found is None else f"measured intrinsic dimension: {found}")
    drawn = [] if out is None else [figures.dimension(tried, goal, out / "dimension.png")]
    _said(as_json, {"dimension": found, "goal": goal, "whole": whole, "tried": spectra.shown(tried)}, drawn)


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
    lr: Annotated[float | None, typer.Option(help="Local learning rate, where an expression leaves it open.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model and of the beginnings.")] = 0,
    use: Use = None,
    data_dir: DataDir = None,
    out: Annotated[Path, typer.Option(help="A folder for the pictures.")] = Path("runs/leakage"),
    as_json: Json = False,
) -> None:
    """Rebuild a client's picture from what it sends under each method: PSNR, SSIM, pictures side by side."""
    from ..algorithms import Auto
    from ..compare.federated import Federated, settled
    from ..problem import custom, standard
    from ..task import as_tasks
    from . import figures, leakage

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
    if found := leakage.rough(_module(problem.model, seed)):
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
    _table(
        f"picture {picture} of {task or data}, round {round}" + (f", {hidden!r}" if hidden else ""),
        ("method", "bytes", "PSNR", "SSIM", "match", "label", "guess"),
        [
            [e.method, f"{e.bytes:,}", f"{e.psnr:.1f}", _short(e.ssim), f"{e.match:.1e}", e.label, e.guess]
            for e in leaks
        ],
    )
    drawn = [figures.pictures(leaks, out / "leakage.png")]
    rows = [{k: _number(v) for k, v in e._asdict().items() if k not in ("original", "rebuilt")} for e in leaks]
    _said(as_json, {"privacy": None if hidden is None else repr(hidden), "leaks": rows}, drawn)


# -----------------------------------------------------------------------------


def _module(model: Any, seed: int) -> Any:
    """A module, or the one that a function makes."""
    from torch import nn

    from ..train.one import made

    return model if isinstance(model, nn.Module) else made(model, seed)


def _final(run: Any, examples: int) -> tuple[Any, Callable[[Any], float], tuple[Any, Any]]:
    """A run's final model, its loss on the first test examples by parameters, and the module with clients' tasks."""
    from safetensors.torch import load_file

    from ..compare.loaded import load, study_of
    from ..params import Params
    from ..task import as_task, as_tasks
    from ..train.one import Slot, evaluate, floats

    loaded, study = load(run.path), study_of(run.path)
    assert study is not None  # without one, load asks for a model
    problem = study.problem(run.seed)
    module = loaded.algorithm.assemble(_module(problem.model, run.seed), len(problem.tasks))
    module.load_state_dict(load_file(run.path / "model.safetensors"), strict=False)
    slot = Slot(module)
    final = Params(slot.layout, slot.flat.clone())
    if problem.test is None:
        raise RunError(f"{run.path}: its problem has no test set, so there is no loss to look at")
    test = as_task(problem.test, "test", floats(module))
    count = min(examples, len(test))

    def loss(x: Any) -> float:
        slot.load(x)
        return evaluate(slot, test, 0, count)["loss"] / count

    return final, loss, (loaded.module, as_tasks(problem.tasks, floats(module)))


def _each(folder: Path, out: Path | None, as_json: bool, one: Callable[[Any, Path], dict[str, Any]]) -> None:
    """Every run below a folder. Of a study a run that has nothing to look at is passed over, unless none has."""
    from ..report.read import arms

    runs = [run for arm in arms([folder]) for run in arm.runs]
    results, refused, drawn = {}, list[RunError](), list[Path]()
    for run in runs:
        name = str(run.path.relative_to(folder)) if run.path != folder else "."
        try:
            typer.echo(f"{name}: {run.about.get('name', run.expression)}" if len(runs) > 1 else "", nl=len(runs) > 1)
            found = one(run, run.path / "look" if out is None else out / name if len(runs) > 1 else out)
        except RunError as error:
            refused.append(error)
            continue
        drawn += found.pop("figures")
        results[name] = found
    if not results:
        raise refused[0]
    _said(as_json, {"runs": results}, drawn)


def _said(as_json: bool, found: dict[str, Any], drawn: Sequence[Path]) -> None:
    for path in drawn:
        typer.echo(str(path))
    if as_json:
        sys.stdout.write(json.dumps({**found, "files": [str(path) for path in drawn]}) + "\n")


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from ..report.table import draw

    draw(title, head, [[str(cell) for cell in row] for row in rows], ())


def _short(x: float | None) -> str:
    return "-" if x is None else f"{x:.3g}"


def _number(x: Any) -> Any:
    """As JSON has it: null for a PSNR without an error."""
    return None if isinstance(x, float) and not math.isfinite(x) else x
