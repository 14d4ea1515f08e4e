"""The part of a method whose clients have models of their own: where these lie, and what they answer.

Each name has a default here, which says that there is one model for all. A method writes those that it needs.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

from torch import Tensor, nn

from ..key import Key
from ..links import Dense, Link
from ..local import Local, Trained
from ..params import Params
from ..task import Task
from ..wire import State

Adapting = Generator[Local, Trained, Params]


@runtime_checkable
class Models(Protocol):
    """What a run comes to, as a prediction needs it: modules on the CPU, in evaluation mode."""

    module: nn.Module  # that all share
    clients: int  # how many there are
    beside: Mapping[str, nn.Module]

    def personal(self, client: int) -> nn.Module:
        """The module with a client's own model."""


class Own:
    """Models of clients' own: a half of every :class:`~thinwire.algorithms.base.Algorithm`."""

    personal_models: ClassVar[bool] = False
    """Whether :meth:`model` gives clients models of their own."""
    at_server: ClassVar[bool] = False
    """Whether these models lie in the server's state, and none of them with its client."""

    on_fedavg: ClassVar[bool] = False
    """Whether the model that all share is FedAvg's, trained by a round's first request and stepped by ``opt``."""

    @property
    def adapting(self) -> bool:
        """Whether a client's own model is made by :meth:`adapt` of its examples when it is asked for, and lies nowhere.

        What a method around another one writes itself, :func:`~thinwire.algorithms.around.adapts` sees.
        """
        return type(self).adapt is not Own.adapt

    personal = cast("Link | dict[str, Link]", Dense())  # a field of those methods whose server writes to one client

    def alone(self, server: State, client: int) -> Any:
        """What this client alone is sent in the round, beside the broadcast; its fields are absolute values.

        ``Start.alone`` is a blank of it, and ``personal`` the link of its Params fields. It is made for sampled clients
        only, from the newest state.
        """
        raise NotImplementedError(f"{type(self).__name__} says in Start.alone that it writes to single clients")

    def take(self, view: State, msg: Any) -> State:
        """What :meth:`client` is given as its view: made of the one that all share, and of what it alone was sent.

        It is kept for this round only. By default the message is the view.
        """
        return msg

    def model(self, server: State, client: int | None = None, own: State = None) -> Params:
        """What is evaluated and saved: by default ``server.x``.

        A method with ``personal_models`` returns the own model of ``client`` where one is named. It may lie with the
        server, in ``server``, or with the client: ``own`` is what that client keeps, the state that ``sent`` returned,
        or before its first reply the one of ``init``.
        """
        x: Params = server.x
        return x

    def statistics(self, server: State, client: int | None = None) -> Params | None:
        """The norm statistics that belong to :meth:`model`, where the method's server keeps them; None where not."""
        return None

    def at_client(self, view: State, client: int | None, own: State) -> Params | None:
        """:meth:`model` as a client knows it, which has a ``view`` in place of the server's state.

        ``own`` is what the client keeps, or for the shared model (``client`` None) the client's state of ``init``. By
        default it is what ``model`` makes of the view, which has to have what that reads: ``x``, unless it is written
        otherwise. None for a shared model that clients do not know.
        """
        return self.model(view, client, own)

    def statistics_at_client(self, view: State, client: int) -> Params | None:
        """:meth:`statistics` of a client's own model as the client knows them; None where the server keeps none."""
        return None

    def own_statistics(self, own: State) -> bool:
        """Whether a client's own model has norm statistics of its own: those of its training as ``Local(own=True)``.

        ``own`` is what the client keeps. By default they are those of the shared model.
        """
        return False

    def beside(self, module: nn.Module) -> Mapping[str, nn.Module]:
        """What is trained beside the user's module in the one that :meth:`assemble` made, by name: FedSM's selector."""
        return {}

    def predict(self, models: Models, inputs: Any) -> Any:
        """What the trained models make of a batch of inputs. By default the one that all share is asked."""
        return models.module(inputs)

    def selected(self, models: Models, inputs: Any) -> Tensor:
        """The client whose model :meth:`predict` takes for each example, -1 for the shared one; [examples], int64."""
        raise ValueError(f"{self!r} selects no client's model: it has one answer for all examples")

    def served(self, server: State) -> Params | None:
        """A model that is evaluated and saved beside :meth:`model`, such as an average. None, the default: no other."""
        return None

    def adapt(self, x: Params, task: Task, key: Key) -> Adapting:
        """A client's own model as it is evaluated, made of its :meth:`model` and its examples. By default ``x`` itself.

        ``trained = yield Local(...)`` trains as in :meth:`client`; what is returned is kept by nobody.
        """
        yield from ()
        return x
