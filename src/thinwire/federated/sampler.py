"""Who takes part in a round: uniformly drawn, or by a sampler such as power-of-choice.

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning", AISTATS 2022, arXiv:2010.01243
("Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies"), section 4.1.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from ..algorithms.base import Algorithm, Start
from ..config import Config
from ..errors import CombinationError, require
from ..key import Key
from ..ranges import Count
from .letters import private

if TYPE_CHECKING:
    from .secure.run import Secured
    from .setting import Setting


class Draw(NamedTuple):
    """What a sampler goes by."""

    round: int  # from 1
    clients: Sequence[int]  # those that are there, in their order
    most: int  # how many take part, at most: never more than are there
    sizes: Sequence[int]  # the examples of every client, as far as the server knows
    generator: torch.Generator  # of this round: the same draws in a run that is resumed


class Sampler(Config, ABC):
    """Who takes part in a round: ``sampler=`` of a run. One of one's own is a frozen dataclass with a ``draw``.

    What it returns must depend on what it is given alone: it is called again when a run is resumed. So it keeps nothing
    between rounds, and draws from the generator it is given.
    """

    example = "PowerOfChoice(20)"

    asks: ClassVar[bool] = False
    """Whether those that are drawn are asked for their loss, and ``choose`` says which of them take part."""

    @abstractmethod
    def draw(self, about: Draw) -> Sequence[int]:
        """One to ``about.most`` of ``about.clients``, each once; of a sampler that asks, whoever is to be asked."""

    def choose(self, losses: Mapping[int, float], count: int) -> Sequence[int]:
        """At most ``count`` of the clients that have answered, given the mean loss of each on its own examples."""
        return list(losses)[:count]

    def fewest(self, count: int) -> int:
        """How many clients a run has at least, of which ``count`` take part in a round."""
        return count


@dataclass(frozen=True)
class PowerOfChoice(Sampler):
    """Of ``candidates``, drawn by how many examples they have, those with the largest local loss take part.

    As many take part as ``sample`` says. Each candidate is sent the call, evaluates the model that all share on all of
    its examples, and answers with its mean loss. Those that are chosen then train, at a word of 14 bytes. With as many
    candidates as ``sample`` it is sampling by size alone.

    Differences from the paper: candidates are drawn without replacement, client k first with the probability of its
    share of the examples, as the paper has it. In a deployment a client's size is what its newest answer said; the mean
    of the others' stands for that of a client that has not answered. Equal losses go by the client's number. The
    variants with a part of the examples, or with losses of earlier rounds, are not here.
    """

    paper = "Cho et al., AISTATS 2022, arXiv:2010.01243"
    example = "PowerOfChoice(20)"
    asks = True

    candidates: Count

    def draw(self, about: Draw) -> Sequence[int]:
        """Keys u^(1 / size) of uniform u, the largest first (Efraimidis, Spirakis, 2006): here by their logarithms."""
        sizes = torch.tensor([about.sizes[i] for i in about.clients], dtype=torch.float64, device="cpu")
        keys = torch.rand(len(sizes), generator=about.generator, dtype=torch.float64, device="cpu").log() / sizes
        return [about.clients[i] for i in keys.argsort(descending=True, stable=True)[: self.candidates].tolist()]

    def choose(self, losses: Mapping[int, float], count: int) -> Sequence[int]:
        return sorted(losses, key=lambda client: (-losses[client], client))[:count]

    def fewest(self, count: int) -> int:
        return self.candidates


def draw_clients(
    sampler: Sampler | None, order: Sequence[int], count: int, sizes: Sequence[int], key: Key
) -> list[int]:
    """Who takes part in a round, or is asked; ``order`` are the clients that are there, shuffled."""
    count = min(count, len(order))
    if sampler is None or not count:
        return sorted(order[:count])
    about = Draw(key.round, sorted(order), count, sizes, key.generator("sampler"))
    return check_drawn(sampler, sampler.draw(about), about.clients, len(order) if sampler.asks else count)


def choose_clients(sampler: Sampler, losses: Mapping[int, float], count: int) -> list[int]:
    """Which of the clients that were asked take part; nobody where nobody has answered."""
    if not losses:
        return []
    losses = dict(sorted(losses.items()))
    return check_drawn(sampler, sampler.choose(losses, count), list(losses), count)


def check_cohorts(cohort: Any, clients: int) -> list[list[int]]:
    """The clients of each round that a caller gives. Raises ``ValueError`` as :func:`check_cohort`."""
    require(isinstance(cohort, Iterable), f"cohort={cohort}: it is a list of the clients of each round")
    return [check_cohort(one, clients) for one in cohort]


def check_cohort(cohort: Any, clients: int, name: str = "cohort") -> list[int]:
    """Clients that a caller gives, in order. Raises ``ValueError``, by the argument's name, for what are none."""
    ordered = sorted(numbers(cohort))
    fits = 0 < len(ordered) == len(set(ordered)) and ordered[0] >= 0 and ordered[-1] < clients
    require(fits, f"{name}={_as_list(cohort)}: it must name one or more of the {clients} clients, each once")
    return ordered


def check_given(cohort: Sequence[int] | None, setting: Setting, secured: Secured | None) -> None:
    """Raise ``ValueError`` where a round of clients that a caller gives has no meaning, or can make no step."""
    if cohort is None:
        return
    buffer, network, rule = setting.buffer, setting.network, setting.aggregate
    require(buffer is None, f"cohort={cohort}: {buffer!r} calls those who do not train; leave cohort out")
    require(network is None or network.sessions is None, f"cohort={cohort}: {network!r} says who is there")
    least = 1 if rule is None else rule.least
    require(len(cohort) >= least, f"cohort={cohort}: aggregate={rule!r} needs {least} replies a round")
    if secured is not None:
        secured.circle(cohort, Key(0))


def numbers(clients: Any) -> list[int]:
    """Clients' numbers; none where one of them is no whole number."""
    try:
        return [] if any(isinstance(client, bool) for client in clients) else [operator.index(c) for c in clients]
    except TypeError:
        return []


def _as_list(clients: Any) -> Any:
    """Clients as an error shows them: a list, or what is given in place of one."""
    return list(clients) if isinstance(clients, Iterable) else clients


def check_drawn(sampler: Sampler, clients: Any, of: Sequence[int], most: int) -> list[int]:
    """The clients that a sampler gave, in their order. Raises ``ValueError`` for others than it may give."""
    cohort = sorted(numbers(clients))
    fits = 0 < len(cohort) == len(set(cohort)) <= most and set(cohort) <= set(of)
    require(fits, f"{sampler!r} gave {_as_list(clients)}: 1 to {most} clients of those it was given, each once")
    return cohort


def check_sampler(
    sampler: Sampler | None, algorithm: Algorithm, start: Start, setting: Any, clients: int, secret: bool
) -> None:
    """Raise ``ValueError`` for a sampler that does not fit a run. ``secret``: whether replies are added in secret."""
    if sampler is None:
        return
    count = setting.cohort(clients)
    needs = max(count, sampler.fewest(count))
    require(count <= sampler.fewest(count), f"sampler={sampler!r}: fewer than the sample={count} that take part")
    require(needs <= clients, f"sampler={sampler!r}: there are {clients} clients")
    if setting.privacy is not None:
        raise CombinationError(
            f"sampler={sampler!r}: {setting.privacy!r} counts on a cohort that is drawn uniformly; leave one of "
            f"them out"
        )
    if not sampler.asks:
        return
    if secret:
        raise CombinationError(f"sampler={sampler!r}: clients that add replies in secret would tell their losses")
    if getattr(setting, "buffer", None) is not None:
        raise CombinationError(
            f"sampler={sampler!r}: with buffer={setting.buffer!r} clients begin at any time, and are not asked first"
        )
    network = getattr(setting, "network", None)
    if network is not None and network.deadline is not None:
        raise CombinationError(f"sampler={sampler!r}: {network!r} has a deadline, and questions have none")
    if private(algorithm, start) is not None:
        raise CombinationError(
            f"sampler={sampler!r}: {algorithm!r} writes to single clients, and of such methods some have no model "
            f"that all clients know"
        )
