"""The columns of what clients reach on tests of their own."""

from __future__ import annotations

from collections.abc import Sequence

from .cells import Column, Row, average, deviation_text, share_text
from .read import Arm, read_lines

OF_CLIENTS = tuple(f"client{part}" for part in ("", "_spread", "_p10", "_worst", "_before", "_shared"))
FEW = 10  # clients, each of which has a column
OTHERS = {"before": "before adapting", "shared": "shared model"}
"""Models besides the clients' own ones that their tests are of, and the titles of the columns."""


def each_client(arm: Arm, measure: str) -> list[float | None] | None:
    """Each client's value at the last evaluation, the mean over seeds, of few clients with tests of their own."""
    paths = [run.path / "clients.jsonl" for run in arm.runs]
    lasts = [
        [line for line in read_lines(path) if line.get("round", 0) <= run.length][-1:]
        for path, run in zip(paths, arm.runs, strict=True)
        if path.exists()
    ]
    each = [line[measure] for lines in lasts for line in lines if measure in line]
    if not each or len(each) < len(paths) or len(each[0]) > FEW or len(set(map(len, each))) > 1:
        return None
    return [average(values) for values in zip(*each, strict=True)]


def has_client_tests(rows: Sequence[Row]) -> bool:
    """True where clients have tests of their own."""
    return any(client_value(row, "client") is not None for row in rows)


def client_value(row: Row, name: str) -> float | None:
    """A value by what the row is judged by: of "client_worst" that of "client_accuracy_worst"."""
    value: float | None = row[name.replace("client", f"client_{row['measure']}")]
    return value


def own_tests(row: Row) -> str:
    """The mean over clients, and its spread, as text."""
    mean, spread = (client_value(row, name) for name in OF_CLIENTS[:2])
    return share_text(row, mean) + ("" if spread is None else f" ± {deviation_text(row, spread)}")


def client_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """A column a client, where there are few in all rows."""
    each = [row["by_client"] for row in rows]
    if not all(each) or len({len(values) for values in each}) > 1:
        return ()

    def column(client: int) -> Column:
        return f"client {client}", lambda row: share_text(row, row["by_client"][client])

    return tuple(column(client) for client in range(len(each[0])))


def client_cell(name: str, row: Row) -> str:
    """One of the values that :func:`client_value` gives, as text."""
    return share_text(row, client_value(row, name))
