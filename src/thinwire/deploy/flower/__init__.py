"""A run on a Flower deployment: SuperLink, SuperNodes, and between them one opaque blob each way.

The server's side is :func:`serve`, a loop of our own over a Grid for a ServerApp's ``main``;
the clients' side a ClientApp made by :func:`client_app`, or :func:`mod` around a ClientApp
that is there already. Flower carries the bytes, says which node they are from, encrypts and
authenticates. What a client keeps between rounds lies on its own disk, for a SuperNode
keeps its contexts in memory alone, and keeps them even when the client raised.

Names are imported at their first use: a ClientApp that names its client by ``"module:function"`` never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import_module("flwr.clientapp")
except ImportError as error:
    raise ImportError(f'a Flower deployment needs flwr ({error}): pip install "thinwire[flower]"') from error

if TYPE_CHECKING:
    from ..client import Node
    from .app import client_app, folder_of, name_of
    from .around import mod
    from .loop import serve
    from .strategy import Strategy

__all__ = ["Node", "Strategy", "client_app", "folder_of", "mod", "name_of", "serve"]
MODULES = {"Node": "..client", "Strategy": ".strategy", "mod": ".around", "serve": ".loop"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(MODULES.get(name, ".app"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
