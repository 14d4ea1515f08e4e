"""Federated, data-parallel and pipelined training over thin networks.

What crosses the network is small, known to the byte, and safe to lose::

    import thinwire as tw

    result = tw.simulate(tw.FedAvg(up=tw.LBGM(threshold=0.4)), model, tasks, rounds=50, sample=10, test=test)
    print(result.accuracy, result.bytes_up, result.bytes_down)
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from .importing import without_collections

if TYPE_CHECKING:
    from .public import *  # noqa: F403
    from .public import __all__ as __all__

    __version__: str


def __getattr__(name: str) -> Any:
    """Public names and modules at their first use: `thinwire --help` need not wait for torch."""
    if name == "__version__":
        from .version import code_version

        value: Any = code_version().partition("+")[0]
    elif name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    elif importlib.util.find_spec(f"{__name__}.{name}") is not None:
        with without_collections():
            return importlib.import_module(f"{__name__}.{name}")  # which makes it an attribute
    else:
        with without_collections():
            public = importlib.import_module(f"{__name__}.public")
        if not hasattr(public, name):
            from .errors import nearest

            near = "" if name.startswith("_") else nearest(name, public.__all__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")
        value = getattr(public, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
