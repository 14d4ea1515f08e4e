"""The live line of a run: round, accuracy, bytes, time left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..data.optional import optional


@contextlib.contextmanager
def live(rounds: int) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Yields a function to call with a method's name and the record of each round, on standard error."""
    optional("rich", "progress=True", "cli")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeRemainingColumn(),
    )
    up = down = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rounds, found="")

        def line(name: str, record: dict[str, Any]) -> None:
            nonlocal up, down
            up, down = up + record["up_bytes"], down + record["down_bytes"]
            found = f"{up / 1e6:.1f} MB up, {down / 1e6:.1f} MB down"
            for name in ("accuracy", "dice"):
                if record.get(name) is not None:
                    found = f"{name} {record[name]:.3f}, {found}"
            if record.get("clipped"):
                found = f"{found}, {record['clipped']} clipped"
            progress.update(task, description=name, completed=record["round"], found=found)

        yield line
