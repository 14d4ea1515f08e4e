"""Whose model a federated run is evaluated with, what its records have of that, and its result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from ..algorithms.around import adapts, predicts
from ..algorithms.base import Algorithm
from ..errors import require
from ..params import Params
from ..run.loop import Run, finite
from ..task import Task
from ..train.evaluation import mean_metrics, sums
from ..train.given import copy_module
from ..train.slot import Slot
from ..wire import State
from .client import ClientState, statistics_of
from .ledger import Ledger
from .own_tests import Metrics, Model, evaluate_models, over_clients
from .pool import Plan, Pool
from .result import Predicting, Record, Result
from .storage import ClientStates


class Evaluation(Run[Result]):
    """The models of a run between two rounds: that which all share, and those of clients."""

    pool: Pool  # evaluates, and trains where clients are here
    clients_here: ClassVar[bool] = False  # and what they keep
    algorithm: Algorithm
    slot: Slot
    server: State
    states: ClientStates
    buffers: Params | None  # norm statistics that are averaged
    initial_buffers: Params | None
    round: int
    num_clients: int
    plan: Plan | None
    ledger: Ledger
    test: Task | None
    client_tests: Sequence[Task] = ()
    by_client: Record | None = None  # the last evaluation of clients' tests: a list by metric
    adapted: Mapping[tuple[int, int], nn.Module] = {}  # never written to; by round and client

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What, besides the algorithm, makes this run what it is."""

    @property
    @abstractmethod
    def data(self) -> dict[str, str | None]:
        """Digests of the data that are here."""

    @abstractmethod
    def sizes(self) -> Sequence[int]:
        """The examples of every client, as far as they are known."""

    def evaluate(self) -> Record:
        """What tests say, for the record of a round."""
        values: Record = {}
        if self.test is not None:
            metrics = self.pool.evaluate(*self.whose(None), self.test)
            values |= {"test_loss" if name == "loss" else name: value for name, value in metrics.items()}
            served = self.algorithm.served(self.server)
            if served is not None:
                metrics = self.pool.evaluate(served, self.whose(None).statistics, self.test)
                values |= {f"served_{name}": value for name, value in metrics.items()}
            if self.models_here and predicts(self.algorithm) and not adapts(self.algorithm):
                values |= {f"predicted_{name}": value for name, value in self.evaluate_predictions(self.test).items()}
        values |= self.over_clients({client: self.test_client(client) for client in range(len(self.client_tests))})
        return {name: finite(value) for name, value in values.items()}

    def evaluate_predictions(self, test: Task) -> Metrics:
        """Every metric of what the method predicts for examples of no named client: of FedSM by its selector."""
        return mean_metrics([sums(Predicting(self.result()), test, partial(self.slot.batch, test), 0, len(test))])

    def test_client(self, client: int) -> Metrics:
        """What a client's test says."""
        shared = self.kept_model(None) if self.algorithm.personal_models else None
        before, task = self.kept_model(client), self.client_tests[client]
        own = self.adapt(client, before)
        return evaluate_models(
            lambda x, statistics: self.pool.evaluate(x, statistics, task), own, before, shared or before
        )

    def over_clients(self, metrics_of: Mapping[int, Metrics]) -> Record:
        """A record's fields of clients' tests. Each client's own values are the next line of ``clients.jsonl``."""
        values, by_client = over_clients(metrics_of, self.num_clients)
        self.by_client = {"round": self.round, **by_client} if metrics_of else None
        return values

    def owners_here(self) -> dict[str, int]:
        """The clients whose own models can be written down here, by the names of their files.

        Those that never took part have one model, of the name ``others``. A model that is made of its client's examples
        (``Algorithm.adapt``) has to be trained: it is written for clients with tests of their own, for which it is
        trained anyway.
        """
        if adapts(self.algorithm):
            return {str(client): client for client in range(len(self.client_tests) if self.clients_here else 0)}
        if not (self.personal and self.models_here):
            return {}
        known = dict.fromkeys(self.states.clients())
        away = next((client for client in range(self.num_clients) if client not in known), None)
        return {str(client): client for client in known} | ({} if away is None else {"others": away})

    @property
    def personal(self) -> bool:
        """Whether clients have models, or norm statistics, of their own."""
        return self.algorithm.personal_models or self.algorithm.buffers == "local"

    @property
    def models_here(self) -> bool:
        """Whether all that clients' own models are made of is here.

        Elsewhere are the examples that a model is adapted to, and with ``buffers="local"`` norm statistics.
        """
        apart = self.algorithm.buffers == "local" and self.initial_buffers is not None
        away = adapts(self.algorithm) or (apart and self.algorithm.statistics(self.server, 0) is None)
        return self.clients_here or (self.algorithm.at_server and not away)

    def kept_model(self, client: int | None) -> Model:
        """The model of a client, or for None the shared one, before it is adapted."""
        statistics = self.buffers if self.algorithm.buffers == "mean" else self.initial_buffers
        if client is None or not self.personal:
            kept = self.algorithm.statistics(self.server)
            return Model(self.algorithm.model(self.server), statistics if kept is None else kept)
        own, kept = self.own(client), self.algorithm.statistics(self.server, client)
        x = self.algorithm.model(self.server, client, own.state)
        return Model(x, statistics_of(self.algorithm, own, statistics) if kept is None else kept)

    def own(self, client: int) -> ClientState:
        """What a client keeps, as far as it is here."""
        return self.states.get(client).own

    def whose(self, client: int | None) -> Model:
        """The model of a client, or for None the shared one, and the norm statistics that it is evaluated with."""
        kept = self.kept_model(client)
        return kept if client is None else self.adapt(client, kept)

    def adapt(self, client: int, kept: Model) -> Model:
        """A client's own model as the method makes it of what is held. Here it is that: examples are elsewhere."""
        return kept

    def module(self, client: int | None = None) -> nn.Module:
        """A copy of the module as its user wrote it, with the model of :meth:`whose`, on the CPU."""
        with torch.inference_mode(False), torch.enable_grad():  # it may have to be trained
            return self.algorithm.finish(self.trained_module(self.whose(client)))

    def trained_module(self, model: Model) -> nn.Module:
        """A copy of the module as it is trained, with this model, on the CPU; what is frozen is the run's own."""
        self.slot.load(model.x)
        self.slot.load_buffers(model.statistics)
        return copy_module(self.slot.module, beside=True).to("cpu").eval()

    def result(self) -> Result:
        """The run so far."""
        shared, served = self.whose(None), self.algorithm.served(self.server)
        params, whole = shared.x.clone(), self.trained_module(shared)  # the caller's own
        beside, module = self.algorithm.beside(whole), self.algorithm.finish(whole)
        facts, path = {**self.facts(), "plan": self.plan}, None if self.folder is None else self.folder.path
        result = Result(self.algorithm, facts, list(self.records), self.ledger, params, module, path, beside=beside)
        if served is not None:
            result.served = self.algorithm.finish(self.trained_module(shared._replace(x=served)))
        if self.personal and self.models_here:
            result.clients, result.own_module = self.num_clients, partial(self.module_at, self.round)
        return result

    def module_at(self, round: int, client: int) -> nn.Module:
        """:meth:`module` of a client, as long as the run stands where it stood after that round."""
        require(
            self.round == round,
            f"this result is of round {round}, and the run has made {self.round}: ask for clients' own models before "
            f"it goes on, or take its newest result",
        )
        if not adapts(self.algorithm):
            return self.module(client)
        if (round, client) not in self.adapted:  # trained once, not once a prediction
            known = {at: module for at, module in self.adapted.items() if at[0] == round}
            self.adapted = {**known, (round, client): self.module(client)}
        return copy_module(self.adapted[round, client], beside=True)
