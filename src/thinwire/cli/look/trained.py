"""What final models do: the loss around them, the way to them, where they put examples, what they find in pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import RunError, require
from ..options import Json
from .command import Dir, Out, Own, each, look, said, table

Client = Annotated[
    int | None, typer.Option(help="On this client's own test, or what it trains on (default: the shared test).")
]
Examples = Annotated[int, typer.Option(help="Examples, the first ones, at each point.")]


@look.command("surface")
def of_surface(
    folder: Dir,
    points: Annotated[int, typer.Option(help="Points along each direction, odd: the middle one is the model.")] = 15,
    reach: Annotated[float, typer.Option(help="How far to go along each direction, in lengths of its filters.")] = 1.0,
    examples: Examples = 1000,
    client: Client = None,
    seed: Annotated[int, typer.Option(help="Of the two directions.")] = 0,
    task: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The test loss around a run's final model, along two random directions with filters as long as the model's.

    Needs a complete run of any federated method, of a study or with --task.
    """
    from ...look import drawing as figures
    from ...look import surface as surfaces
    from ...look.final import final, losses

    _grid(points, reach, examples)

    def read(run: Any) -> tuple[Any, Any]:
        found = final(run, task)
        return losses(found.module(), found.test(client), examples)

    def show(run: Any, found: tuple[Any, Any], into: Path) -> dict[str, Any]:
        x, loss = found
        a, b = (surfaces.random_direction(x, seed, number) for number in range(2))
        steps = [reach * (2 * i / (points - 1) - 1) for i in range(points)]
        values = surfaces.surface(x, a, b, steps, steps, loss)
        at, most = float(values[points // 2, points // 2]), float(values.max())
        typer.echo(f"loss {at:.4g} at the model, {most:.4g} at most within {reach:g}")
        drawn = figures.surface(values, steps, steps, into / "surface.png", "first direction", "second direction")
        return {"across": steps, "up": steps, "loss": values.tolist(), "figures": [drawn]}

    each(folder, out, as_json, read, show)


@look.command("line")
def of_line(
    folder: Dir,
    points: Annotated[int, typer.Option(help="Points of each curve, odd: the middle one is the model.")] = 31,
    reach: Annotated[
        float, typer.Option(help="How far to go to either side, in lengths of the direction's filters.")
    ] = 1.0,
    examples: Examples = 1000,
    client: Client = None,
    own: Annotated[
        bool,
        typer.Option("--own", help="Of --client's own model, of methods that have some; of others the shared one."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the direction.")] = 0,
    task: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The test loss along one random direction from the final model of each method, all in one figure.

    Needs complete runs of federated methods, of a study or with --task; of several seeds the first finished is drawn.
    """
    from ...look import drawing as figures
    from ...look import surface as surfaces
    from ...look.final import final, losses
    from ...studies.read import arms, counted

    _grid(points, reach, examples)
    require(not own or client is not None, "--own is the model of a client: name it with --client")
    steps = [reach * (2 * i / (points - 1) - 1) for i in range(points)]
    curves: list[tuple[str, list[float]]] = []
    named = [(arm.label, final(counted(arm).runs[0], task)) for arm in arms([folder])]
    having = [own and found.loaded.own_module is not None for _, found in named]
    if own and not any(having):
        named[0][1].module(client)  # says that clients have none
    for (label, found), mine in zip(named, having, strict=True):
        x, loss = losses(found.module(client if mine else None), found.test(client), examples)
        along = surfaces.random_direction(x, seed)
        name = f"{label}, client {client}'s own" if mine else label
        curves.append((name, surfaces.surface(x, along, along, steps, [0.0], loss)[0].tolist()))
    rows = [[name, f"{values[points // 2]:.4g}", f"{max(values):.4g}"] for name, values in curves]
    table(f"within {reach:g} of each model", ("method", "loss", "largest"), rows)
    whose = "the test" if client is None else f"client {client}"
    drawn = [figures.lines(curves, steps, (out or folder / "look") / "line.png", f"loss on {whose}")]
    said(as_json, {"along": steps, "curves": [{"method": n, "loss": v} for n, v in curves]}, drawn)


@look.command("path")
def of_path(
    folder: Dir,
    points: Annotated[int, typer.Option(help="Points along each direction.")] = 15,
    examples: Examples = 1000,
    client: Client = None,
    task: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """The way of a run's models on the plane of their two principal directions, and the test loss around it.

    A second figure has the share of the models' variance in each of their first 50 principal directions.

    Needs a complete run, of a study or with --task, with --record models or all, evaluated three times or more.
    """
    from ...look import drawing as figures
    from ...look import surface as surfaces
    from ...look.final import final, losses
    from ...params import Params

    require(points >= 3, f"--points {points}: it must be at least 3")
    require(examples >= 1, f"--examples {examples}: it must be at least 1")

    def read(run: Any) -> tuple[Any, ...]:
        layout, rows, rounds = surfaces.recorded(run)
        found, whole = surfaces.way(rows, layout, rounds), final(run, task)
        _, loss = losses(whole.assembled(), whole.test(client), examples)
        return found, Params(layout, rows[-1].clone()), loss

    def show(run: Any, seen: tuple[Any, ...], into: Path) -> dict[str, Any]:
        found, end, loss = seen
        across, up = (surfaces.span(found.places[:, j], points) for j in range(2))
        a, b = found.directions
        values = surfaces.surface(end, a, b, across, up, loss)
        first, second = (100 * share for share in found.shares[:2])
        typer.echo(
            f"{len(found.rounds)} models; two directions have {first:.1f} % and {second:.1f} % of their variance"
        )
        if len(found.shares) > 2:
            some = min(len(found.shares), figures.FIRST)
            typer.echo(f"the first {some} have {100 * sum(found.shares[:some]):.2f} %")
        names = f"first principal direction, {first:.0f} % of the variance", f"second, {second:.0f} %"
        drawn = [figures.surface(values, across, up, into / "path.png", *names, found)]
        drawn.append(figures.shares(found.shares, into / "shares.png"))
        places = {"rounds": found.rounds, "places": found.places.tolist(), "shares": found.shares}
        return {**places, "across": across, "up": up, "loss": values.tolist(), "figures": drawn}

    each(folder, out, as_json, read, show)


@look.command("embedding")
def of_embedding(
    folder: Dir,
    by: Annotated[str, typer.Option(help="client or label: what a colour is.")] = "client",
    rounds: Annotated[
        str | None, typer.Option(help="Models of these rounds, e.g. 10,50,200, in place of the final one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="One that was trained beside the shared model: FedSM's selector.")
    ] = None,
    examples: Annotated[int, typer.Option("--each", help="Examples of each client, its first ones.")] = 50,
    clients: Annotated[int, typer.Option(help="Clients, the first ones.")] = 10,
    layer: Annotated[str | None, typer.Option(help="Whose input is embedded (default: the last linear layer).")] = None,
    perplexity: Annotated[float, typer.Option(help="Of t-SNE: about how many neighbours count.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Of t-SNE.")] = 0,
    task: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Where a run's models put the examples of each client: t-SNE of what goes into the last layer.

    Needs a complete run of any federated method, of a study or with --task, and scikit-learn; --rounds needs --record
    models or all.
    """
    import torch

    from ...look import drawing as figures
    from ...look import surface as surfaces
    from ...look.final import final, labels
    from ...params import Params

    require(by in ("client", "label"), f"--by {by}: client or label is expected")
    for name, value in (("each", examples), ("clients", clients)):
        require(value >= 1, f"--{name} {value}: it must be at least 1")
    require(perplexity > 0, f"--perplexity {perplexity}: it must be positive")
    require(rounds is None or model is None, "--rounds are of the shared model: leave --model out")
    try:
        wanted = [int(word) for word in rounds.split(",")] if rounds else []
    except ValueError:
        raise ValueError(f"--rounds {rounds}: rounds separated by commas, such as 10,50,200") from None

    def read(run: Any) -> tuple[Any, ...]:
        found = final(run, task)
        modules = [("", found.named(model))]
        if wanted:
            layout, recorded, there = surfaces.recorded(run)
            if missing := [number for number in wanted if number not in there]:
                raise RunError(f"{run.path} has no model of round {missing[0]}; it has {', '.join(map(str, there))}")
            at = [(number, Params(layout, recorded[there.index(number)].clone())) for number in wanted]
            modules = [(f"round {number}", found.assembled(x)) for number, x in at]
        groups, sets = list[int](), []
        for client, own in enumerate(found.tasks[:clients]):
            sets.append((own, torch.arange(min(examples, len(own)))))
            groups += labels(*sets[-1]) if by == "label" else [client] * len(sets[-1][1])
        panels, features = [], 0
        for title, module in modules:
            rows = torch.cat([surfaces.features(module, own, indices, layer) for own, indices in sets])
            features = rows.shape[1]
            panels.append((title, surfaces.embedding(rows, perplexity, seed)))
        return panels, groups, f"{len(groups)} examples of {len(sets)} clients, {features} features each"

    def show(run: Any, seen: tuple[Any, ...], into: Path) -> dict[str, Any]:
        panels, groups, text = seen
        typer.echo(text)
        drawn = figures.embedding(panels, groups, by, into / "embedding.png")
        places = [places.tolist() for _, places in panels]
        named: dict[str, Any] = {"places": places[0]} if not wanted else {"rounds": wanted, "places": places}
        return {f"{by}s": groups, **named, "figures": [drawn]}

    each(folder, out, as_json, read, show)


@look.command("pictures")
def of_pictures(
    folder: Dir,
    example: Annotated[int, typer.Option(help="The position of the picture in each client's test.")] = 0,
    clients: Annotated[int, typer.Option(help="Clients, the first ones: a row each.")] = 6,
    task: Own = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """A test picture of each client, its mask, and what each method's model finds in it, with the Dice coefficient.

    Needs complete runs, of a study or with --task, that segment pictures, such as --data retina. Where clients have
    models of their own, it is the client's. Of several seeds the first finished one is drawn.
    """
    from ...look import drawing as figures
    from ...look import pictures
    from ...look.final import final
    from ...studies.read import arms, counted

    require(example >= 0, f"--example {example}: it must not be negative")
    require(clients >= 1, f"--clients {clients}: it must be at least 1")
    named = [(arm.label, final(counted(arm).runs[0], task)) for arm in arms([folder])]
    first = named[0][1]
    found = []
    for client in range(min(clients, len(first.problem.tasks))):
        modules = [one.module(None if one.loaded.own_module is None else client) for _, one in named]
        found.append(pictures.segmented(client, first.test(client), example, modules))
    names = [label for label, _ in named]
    table("Dice", ("client", *names), [[one.client, *(f"{value:.3f}" for value in one.dice)] for one in found])
    drawn = [figures.segmented(found, names, (out or folder / "look") / "pictures.png")]
    said(
        as_json,
        {"methods": names, "clients": [one.client for one in found], "dice": [one.dice for one in found]},
        drawn,
    )


def _grid(points: int, reach: float, examples: int) -> None:
    require(points >= 3 and points % 2 == 1, f"--points {points}: an odd number of at least 3 is expected")
    require(reach > 0, f"--reach {reach}: it must be positive")
    require(examples >= 1, f"--examples {examples}: it must be at least 1")
