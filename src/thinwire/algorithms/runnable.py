"""What is given for a method, looked at before anything begins."""

from __future__ import annotations

from typing import Any

from ..errors import require
from ..links import PerClient
from ..links.base import Link
from .auto import Auto
from .base import Algorithm


def check_runnable(algorithm: Any) -> None:
    """Raise ``ValueError`` for what is no method, with what to give instead: a class, a text, a link, :class:`Auto`.

    ``Auto`` is none: it chooses one, by the clients' examples.
    """
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        raise ValueError(f"{algorithm.__name__} is a class: make a method of it, such as {algorithm.__name__}()")
    require(not isinstance(algorithm, str), f"{algorithm!r} is text: give the method itself, without quotation marks")
    require(
        not isinstance(algorithm, Link),
        f"{algorithm!r} is a link: give a method that holds it, such as "
        f"FedAvg({'down' if isinstance(algorithm, PerClient) else 'up'}={algorithm!r})",
    )
    require(
        not isinstance(algorithm, Auto),
        f"{algorithm!r} is chosen with the clients' examples, by simulate() and `thinwire run`; here give the method "
        f"written out: `thinwire plan` prints it, and the summary of a simulation has it as `chosen`",
    )
    require(isinstance(algorithm, Algorithm), f"{algorithm!r} is not an algorithm such as FedAvg()")
