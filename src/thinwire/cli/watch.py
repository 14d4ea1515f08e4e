"""``thinwire watch``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from .app import app
from .options import Json, print_json


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a real federation's run: its `out`.")],
    once: Annotated[bool, typer.Option("--once", help="Say how it stands, and end.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /metrics for Prometheus on this port instead; 0 is any free one."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address of --metrics; by default this machine alone.")] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Who is here, late or refused in a real federation, the bytes so far, and the time left."""
    from ..deploy.watch import read_status, server

    if metrics is not None:
        if once or as_json:
            raise ValueError("--metrics ends with Ctrl-C: leave --once and --json out")
        with server(folder, metrics, host) as made:
            typer.echo(f"http://{host}:{made.server_port}/metrics (Ctrl-C ends it)")
            made.serve_forever()
    status = read_status(folder)
    while not (once or as_json or status["complete"]):
        typer.clear()
        typer.echo(_table(status))
        time.sleep(1)
        status = read_status(folder)
    typer.echo(_table(status))
    print_json(as_json, status)


def _table(status: dict[str, Any]) -> str:
    """A status as text."""
    from ..deploy.watch import MEASURES, SILENT

    now, record = time.time(), status["record"] or {}
    head = f"round {min(status['made'] + 1, status['rounds'])} of {status['rounds']}"
    head = f"complete: {status['made']} of {status['rounds']} rounds" if status["complete"] else head
    head += "".join(f", {name} {record[name]:.4g}" for name in MEASURES if record.get(name) is not None)
    if not status["complete"] and status["left"] is not None:
        head += f", {status['seconds']:.1f} s a round, {_time(status['left'])} left"
    lines = [head]
    if not status["complete"] and status["silent"] > SILENT:
        lines.append(f"the server has said nothing for {_time(status['silent'])}: is it there?")
    lines.append(f"{'client':<24} {'state':<9} {'for':>7} {'chunks':>14} {'bytes up':>14} {'bytes down':>14}")
    for client in status["clients"]:
        since = "" if client["since"] is None else _time(now - client["since"])
        chunks = "" if client["chunks"] is None else "{} {}/{}".format(*client["chunks"])
        lines.append(
            f"{client['name'][:24]:<24} {client['state']:<9} {since:>7} {chunks:>14} "
            f"{client['up']:>14,} {client['down']:>14,}"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {seconds:02} s" if minutes else f"{seconds} s"
