"""What a run recorded: gradients, layers, subspaces, residuals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import Json
from .command import Dir, Out, Squares, each, look, short, table


@look.command("gradients")
def of_gradients(folder: Dir, out: Out = None, squares: Squares = False, as_json: Json = False) -> None:
    """Principal components of a run's gradients, their overlap and cosines by layer; LBGM's tests; Equation 45's bound.

    Needs a run with --record gradients (components), looks (LBGM's tests), or all.
    """
    from ...look import drawing as figures
    from ...look import gradients
    from ...report.curves import count, curve, judged
    from ...studies.read import Arm, lacks

    of: gradients.Kind = "variance" if squares else "values"

    def read(run: Any) -> tuple[Any, Any]:
        tested = gradients.recycling(run.rounds)
        kept = any("change" in line for line in run.rounds) and (run.path / "gradients.f32").exists()
        if not tested and not kept:
            how = "train it with --record gradients (LBGM's looks: looks) or all"
            raise lacks(run, "recorded gradients", "federated", how)
        return tested, gradients.recorded(run) if kept else None

    def show(run: Any, recorded: tuple[Any, Any], into: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        tested, space = recorded
        if space is not None:
            _by_the_server(run)
            seen = gradients.looked_at(space, of)
            lines = [each.line for each in seen.layers.values()]
            table(
                f"{len(space.rounds)} gradients",
                ("layer", "entries", "N95", "N99", "cosine to the next", "to the nearest direction"),
                [[e.layer, f"{e.entries:,}", e.n95, e.n99, f"{e.consecutive:.3f}", f"{e.nearest:.3f}"] for e in lines],
            )
            alone = Arm(run.expression, run.expression, [run])
            value, _ = judged([alone])
            reached = curve(alone, count, value)
            allowed = gradients.steps(space.rounds, seen.whole, run.rounds)
            found |= {
                "layers": [e._asdict() for e in lines],
                "progression": seen.layers[gradients.WHOLE].progression,
                "progressions": {name: each.progression for name, each in seen.layers.items()},
                "reached": None if reached is None else _reached(value, reached),
                "heat_maps": _maps(space, seen) if as_json else None,
                "steps": [e._asdict() for e in allowed],
                "figures": [
                    figures.components(space, seen, into / "components.png", reached, value),
                    figures.overlap(space, seen, into / "overlap.png"),
                    figures.cosines(space, seen, into / "cosines.png"),
                    *([figures.bounds(allowed, into / "bounds.png")] if allowed else []),
                ],
            }
            if allowed:
                last = allowed[-1]
                typer.echo(
                    f"Equation 45, with a smoothness of {last.beta:.3g} and a dissimilarity of {last.upsilon2:.3g} as "
                    f"seen between rounds: a learning rate of at most {last.bound:.3g}; it is {last.rate:.3g}. Noise "
                    "of batches and of sampled clients counts as curvature there: trust it of full batches alone"
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
            for by in ("client", "layer"):
                rows, *values = gradients.look_backs(run.rounds, by)
                found[f"by_{by}"] = {f"{by}s": rows, **dict(zip(("rounds", "sin2", "rho"), values, strict=True))}
            found["looks"] = [{"round": line["round"], **look} for line in run.rounds for look in line.get("looks", ())]
            found["figures"] = [*found.get("figures", []), drawn]
        return found

    each(folder, out, as_json, read, show)


def _by_the_server(run: Any) -> None:
    """Says of a run whose recorded changes are not its clients' that they are the server's."""
    if any(line.get("change", {}).get("of") == "server" for line in run.rounds):
        typer.echo(
            "note: clients of this method move the model otherwise than by one training. The changes that are shown "
            "are those of the server's model",
            err=True,
        )


def _reached(value: str, found: Any) -> dict[str, Any]:
    """What the model was judged by, as the figure has it."""
    return {"value": value, "rounds": found.x.tolist(), "values": found.middle.tolist()}


def _maps(space: Any, seen: Any) -> dict[str, Any]:
    """The heat maps of overlaps and cosines, by layer, with four digits; the rounds of their columns."""
    drawn: dict[str, dict[str, list[list[float]]]] = {"overlap": {}, "cosines": {}}
    for kind, by_layer in drawn.items():
        for name, layer in seen.layers.items():
            if (values := getattr(layer, kind)) is not None:
                by_layer[name] = [[round(x, 4) for x in row] for row in values.tolist()]
    return {"rounds": [space.rounds[i] for i in space.shown()], **drawn}


@look.command("layers")
def of_layers(folder: Dir, out: Out = None, as_json: Json = False) -> None:
    """How far each layer moved beside how large it is, which were recycled, and their share of the gradient (kappa).

    Needs a run with --record layers, gradients or all.
    """
    from ...look import drawing as figures
    from ...look import layers

    def show(run: Any, recorded: Any, into: Path) -> dict[str, Any]:
        found, kappas = recorded
        _by_the_server(run)
        table(
            f"{len(kappas)} rounds, means",
            ("layer", "||change||", "||weights||", "s", "share of ||g||^2", "recycled"),
            [
                [e.layer, f"{e.change:.4g}", f"{e.weights:.4g}", f"{e.score:.3g}", f"{e.share:.3f}", e.recycled]
                for e in found
            ],
        )
        recycling = [e.kappa for e in kappas if e.unsent and e.kappa is not None]
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

    each(folder, out, as_json, layers.recorded, show)


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
    from ...look import drawing as figures
    from ...look import subspace as spectra

    spectra.basis(rank, start, decay)

    def show(run: Any, found: Any, into: Path) -> dict[str, Any]:
        _by_the_server(run)
        marks = [r for r in (1, 2, 5, 10, 20, 50, 100, 200) if r <= len(found.rho)]
        table(
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

    each(folder, out, as_json, lambda run: spectra.recorded(run, rank, start, decay), show)


@look.command("feedback")
def of_feedback(folder: Dir, out: Out = None, as_json: Json = False) -> None:
    """How long residuals are, how far x is from y, and the best lambda, by step.

    Needs a study of `thinwire ddp-sim` with a method that keeps residuals, such as DEF(64).
    """
    from ...look import drawing as figures
    from ...look import feedback as residuals

    def show(run: Any, found: Any, into: Path) -> dict[str, Any]:
        table(
            run.about.get("name", run.expression),
            ("step", "residual", "||x - y||", "lambda*", "lambda"),
            [
                [e.step, f"{e.residual:.4g}", f"{e.distance:.4g}", short(e.best), short(e.lam)]
                for e in found[:: max(1, len(found) // 20)]
            ],
        )
        return {"steps": [e._asdict() for e in found], "figures": [figures.owed(found, into / "feedback.png")]}

    each(folder, out, as_json, residuals.recorded, show)


@look.command("staleness")
def of_staleness(folder: Dir, out: Out = None, as_json: Json = False) -> None:
    """How far each part of a pipeline moves while a batch is on its way, and its gradient from backpropagation's.

    Needs a study of `thinwire pipeline run` with --record staleness.
    """
    from ...look import drawing as figures
    from ...look import staleness

    def show(run: Any, found: Any, into: Path) -> dict[str, Any]:
        last = [e for e in found if e.step == found[-1].step]
        table(
            f"{run.about.get('name', run.expression)}, step {last[0].step}",
            ("part", "||x - x'||", "of ||x||", "||g - g'||", "of ||g'||"),
            [
                [e.part, short(e.moved), _of(e.moved, e.weights), short(e.difference), _of(e.difference, e.gradient)]
                for e in last
            ],
        )
        return {"parts": [e._asdict() for e in found], "figures": [figures.stale(found, into / "staleness.png")]}

    each(folder, out, as_json, staleness.recorded, show)


def _of(x: float | None, whole: float | None) -> str:
    """A share of a whole, in percent: two digits, and from 100 % on a whole number."""
    if x is None or not whole:
        return "-"
    percent = 100 * x / whole
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:,.0f} %"
