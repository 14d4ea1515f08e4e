"""The live line of a run: round or step, accuracy, bytes, time left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..data.optional import optional


@contextlib.contextmanager
def live(name: str, goal: int, unit: str = "round") -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yields a function to call with each record of a run of a method, for a line on standard error."""
    optional("rich", "progress=True", "cli")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    up = down = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=goal, text="")

        def line(record: dict[str, Any]) -> None:
            nonlocal up, down
            up, down = up + record["up_bytes"], down + record["down_bytes"]
            text = f"{up / 1e6:.1f} MB up, {down / 1e6:.1f} MB down"
            for measure in ("accuracy", "dice"):
                if record.get(measure) is not None:
                    text = f"{measure} {record[measure]:.3f}, {text}"
            if record.get("clipped"):
                text = f"{text}, {record['clipped']} clipped"
            progress.update(task, completed=record[unit], text=text)

        yield line
