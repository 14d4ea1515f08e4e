"""What a run is asked for beside its method and its problem, checked and recorded in one place."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

from ..config import Config, complete
from ..errors import CombinationError, require
from ..ranges import Count, Range
from ..robust import Aggregator, Attack
from ..run.setting import BaseSetting
from ..train.device import unusable, usable
from .buffered import Buffered
from .clip import Clip
from .network import Network
from .privacy import Privacy
from .ruled import rule_of
from .sampler import Sampler
from .sessions import Availability

Chance = Annotated[float, Range(lambda x: 0 <= x < 1, "is a probability below 1")]
Seed = Annotated[int, Range(lambda x: 0 <= x < 1 << 63, "must not be negative, and fit 63 bits")]


def _field(default: Any, help: str) -> Any:
    """A field with its default and the help text of its option on the command line."""
    return field(default=default, metadata={"help": help})


class ClientsSetting(BaseSetting):
    """What the settings of a simulation and of a deployment share."""

    sample: int | None
    seed: int
    clip: Clip
    privacy: Privacy | None
    device: str
    start: Literal["sent", "known"]
    aggregate: Aggregator | None
    expel: int | None
    buffer: Buffered | None
    sampler: Sampler | None

    def __post_init__(self) -> None:
        clip = self.clip
        require(clip is None or clip == "auto" or clip > 0, f"clip={clip}: a norm is positive, or 'auto'")
        require(self.clip is None or self.privacy is None, f"clip={self.clip}: {self.privacy!r} has a clip of its own")
        if rule_of(self.aggregate) is not None and self.privacy is not None:
            raise CombinationError(
                f"aggregate={self.aggregate!r}: the noise of {self.privacy!r} is that of a mean; leave one of them out"
            )
        require(usable(self.device), f"device={self.device!r}: {unusable(self.device)}")

    def cohort(self, clients: int) -> int:
        """How many of so many clients take part in a round. Raises ``ValueError`` where there are fewer than asked."""
        fits = self.sample is None or self.sample <= clients
        require(fits, f"sample={self.sample}: it must be between 1 and the {clients} clients")
        return clients if self.sample is None else self.sample

    def replies(self, clients: int) -> int:
        """How many replies of so many clients a round has if none is lost; with a buffer as many as it holds."""
        return self.cohort(clients) if self.buffer is None else self.buffer.replies

    def discount(self, steps: int) -> float:
        """What a reply to a broadcast of so many steps ago counts beside its weight."""
        return 1.0 if self.buffer is None else self.buffer.discount(steps)


@dataclass(frozen=True)
class Setting(ClientsSetting):
    """How a run goes: who takes part, over what network, evaluated how often, on what machine.

    These fields change results:

    - ``sample``: how many clients take part in a round. None: all.
    - ``seed``: of everything that is drawn: the model, who is sampled, batches, what links draw.
    - ``dropout``: the probability, below 1, that a sampled client does not reply.
    - ``network``: a simulated clock in seconds, which may drop late replies and say who is there. None: no clock.
    - ``privacy``: replies are clipped and their mean gets noise, here drawn from ``seed``. None: neither.
    - ``clip``: the Euclidean norm that a field of a client's reply has at most; a longer one counts as if it were that
      long. "auto" is twice the median norm of the newest rounds' replies, which fewer than half of the clients
      cannot move beyond the others' norms (:mod:`thinwire.federated.clip`). A round's replies are then held until all
      are there. None: no bound. Beside ``privacy``, which has a clip of its own, there is none.
    - ``aggregate``: the rule by which replies become one (:mod:`thinwire.robust`), such as ``Median()``. It comes after
      ``clip``. Every reply is then decoded by itself and held until the round ends. A round's record has ``far``, the
      clients whose replies were more than three times the median distance from the result, and ``again``, those that
      were so in three or more rounds one after another, with how many. None: the weighted mean.
    - ``expel``: a client whose replies were far off in so many of its rounds one after another is not drawn any more;
      never as many as half of the clients, nor so many that the rule has too few. The record has them as
      ``expelled``. None: nobody is left out.
    - ``attack``: some of the clients are hostile (:mod:`thinwire.robust.attack`), such as ``SignFlip(0.2, scale=10)``.
    - ``buffer``: clients train at their own pace, ``sample`` of them at any time, and a round is a step that the server
      makes when so many replies are there (:class:`~thinwire.Buffered`). Replies on their way are held, and are in the
      checkpoint. A round's record has ``staleness``, for how many steps each of its replies was on its way, and
      ``in_flight``, how many still are. None: a round waits for its whole cohort.
    - ``sampler``: who takes part (:class:`~thinwire.Sampler`), such as ``PowerOfChoice(20)``. Of one that asks
      clients for their losses a round's record has ``asked``, how many. None: ``sample`` clients, drawn uniformly.
    - ``device``: where models train, as torch names it. Another type of device moves the last bits.
    - ``plan``: how clients are trained: one by one in torch ("each"), small ones as one ("together"), or one by one in
      C ("compiled"; in torch what the loops there do not know). They differ in the last bits. None chooses by a rule
      from model and sizes, the same every time. Compiled are networks of convolutions that the loops know
      (:mod:`thinwire.train.convnet`) with at most two million parameters, trained by SGD without clipping, warm-up or a
      loss of the method's own. Together are clients of one data set and a model of linear layers with at most 500,000
      parameters (on a GPU: a million, any layers) without buffers or random layers. "measured" chooses compiled by that
      rule too, and else times a few steps of the others in the first round, so that the same run may give other bits.

    - ``start``: "sent" sends every client the starting model with its first call. "known" sends it to nobody: clients
      draw it from ``seed`` as the server does (or hold the same module), and check a digest of it. A client that is
      called first in a later round is sent what changed since. It changes bytes, and no model.

    These fields change no result:

    - ``evaluate_every``: rounds between evaluations. The last round is always evaluated.
    - ``checkpoint_every``: rounds between checkpoints. The last round always has one.
    - ``workers``: how many clients are trained at once. None: one a core.
    - ``states``: where what is kept of every client lies between its rounds. "disk" is for more clients than fit in
      memory.
    - ``record``: what else a round's record has, for ``thinwire look`` and the report. "looks" is how LBGM tested each
      client's update, by layer: its ``looks`` are a list with ``client``, ``field``, ``layer`` (``*``: all as one
      vector), ``sin2``, ``rho``, ``recycled`` and ``norm`` (of the update) each, and the client's ``steps`` and
      ``rates`` (its learning rates added up), of replies that were taken. Links then encode what they test twice.
      "bytes" is what crossed by layer: its ``layer_bytes`` are those of
      :class:`~thinwire.federated.layer_bytes.LayerBytes`. Each reply is then measured twice. "layers" is what local
      training did to each layer, in norms (:mod:`thinwire.federated.changes`). "gradients" is the same and, in the
      run's folder, the mean change of every round whole: 4 bytes times the model a round. "models" is, in the folder,
      the server's model after each evaluated round: as many bytes each. "all" is everything.

    A run that is resumed must agree on every field that is not in ``may_change``. It keeps the type of its device, and
    the plan and the place of states that it began with.
    """

    may_change: ClassVar[tuple[str, ...]] = (
        "device",
        "plan",
        "evaluate_every",
        "checkpoint_every",
        "workers",
        "states",
        "record",
    )
    """The fields that a run's fingerprint leaves out."""
    example: ClassVar[str] = "Setting(sample=10)"

    sample: Count | None = _field(None, "How many clients take part in a round (default: all).")
    seed: Seed = _field(0, "Seed of split, model, sampling and batches.")
    dropout: Chance = _field(0.0, "Probability that a sampled client does not reply.")
    network: Network | None = _field(None, "A simulated network, e.g. Network(mbit=10, spread=0.5).")
    privacy: Privacy | None = _field(None, "Replies are clipped, their mean gets noise: Privacy(clip=1, noise=1).")
    clip: Clip = _field(None, "The norm that a reply has at most, or auto: twice their median.")
    evaluate_every: Count = _field(1, "Rounds between evaluations.")
    checkpoint_every: Count = _field(10, "Rounds between checkpoints.")
    workers: Count | None = _field(None, "Clients trained at once (default: one a core).")
    device: str = _field("cpu", "Where models train: cpu, cuda, cuda:1.")
    plan: Literal["each", "together", "compiled", "measured"] | None = _field(
        None,
        "How clients are trained: each (one by one), together (small ones as one), compiled (one by one in C) or "
        "measured (what is faster here); by default a rule chooses from the model and its size.",
    )
    states: Literal["memory", "disk"] = _field("memory", "Where clients' states lie between rounds: memory or disk.")
    record: Literal["looks", "bytes", "layers", "gradients", "models", "all"] | None = _field(
        None,
        "What rounds record besides: looks (LBGM's test, layer by layer), bytes (of each layer), layers (norms of the "
        "mean change, layer by layer), gradients (layers, and the mean change itself, on disk), models (the model of "
        "each evaluated round, on disk) or all.",
    )
    start: Literal["sent", "known"] = _field("sent", "The starting model: sent to clients, or known from the seed.")
    aggregate: Aggregator | None = _field(None, "How replies become one, e.g. Median() (default: the weighted mean).")
    expel: Count | None = _field(None, "Leave out clients whose replies were far off in so many rounds on end.")
    attack: Attack | None = _field(None, "What hostile clients do, e.g. SignFlip(0.2, scale=10) (default: none are).")
    buffer: Buffered | None = _field(None, "Asynchronous: step when so many replies are there, e.g. Buffered(5).")
    sampler: Sampler | None = _field(None, "Who takes part, e.g. PowerOfChoice(20) (default: drawn uniformly).")

    def __post_init__(self) -> None:
        super().__post_init__()
        late = self.network is not None and self.network.deadline is not None
        require(
            self.buffer is None or not late,
            f"buffer={self.buffer!r}: its server waits for nobody, so leave out the deadline of {self.network!r}",
        )
        if self.sessions is not None and self.buffer is not None:
            raise CombinationError(
                f"buffer={self.buffer!r}: clients train on when others step, and {self.sessions!r} would have them "
                f"leave in between; leave one of them out"
            )
        if self.sessions is not None and self.privacy is not None:
            raise CombinationError(
                f"network={self.network!r}: {self.privacy!r} counts on a cohort that is drawn uniformly of all "
                f"clients; leave one of them out"
            )
        require(
            self.expel is None or rule_of(self.aggregate) is not None,
            f"expel={self.expel}: it goes by how far replies are from what aggregate= makes of them; give that too",
        )

    @property
    def sessions(self) -> Availability | None:
        """When clients are there; None: always."""
        return None if self.network is None else self.network.sessions

    def records(self, what: str) -> bool:
        """Whether ``record`` asks for "looks", "bytes", "layers", "gradients" or "models"."""
        return self.record in (what, "all") or (what == "layers" and self.record == "gradients")

    def fixed_fields(self) -> dict[str, Any]:
        """The fields that a resumed run must agree on, as they are recorded: configurations as expressions."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.may_change}
        for name in (
            "clip",
            "aggregate",
            "expel",
            "buffer",
            "attack",
            "sampler",
        ):  # as runs of before these options have it
            if values[name] is None:
                del values[name]
        return {name: complete(value) if isinstance(value, Config) else value for name, value in values.items()}
