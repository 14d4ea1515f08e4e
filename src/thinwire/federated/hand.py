"""A round by hand: the client's half and the server's half of a method, as functions of states that the caller holds.

::

    server, client = tw.start(method, model, tasks)
    states = [client] * len(tasks)
    for _ in range(rounds):
        replies = []
        for number, task in enumerate(tasks):
            reply, states[number] = tw.client_round(method, server.view, states[number], task, number)
            replies.append(reply)
        server = tw.server_round(method, server, replies)
    x = method.model(server.state)

This is ``simulate(method, model, tasks, rounds)`` bit for bit. Whoever is left out of a round does not take part. A
reply that is not given to the server is lost: then its client goes on from the state before it.

Where replies are added in secret (``FedAvg(up=SecureSum(...), weights="uniform")``), a round begins with
``server = tw.exchange_keys(method, server, clients)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn

from ..algorithms.base import Algorithm, Message, Start
from ..errors import CombinationError, NonFinite, WireError, require
from ..key import Key
from ..params import Params
from ..robust import Aggregator
from ..task import as_task
from ..train.slot import Slot
from ..train.threads import one_thread
from ..wire import MOST, State, modest
from .answers import Training
from .client import ClientState, Job, Manner, Turn, client_inputs, play
from .envelope import NUMBER
from .letters import Letter, private, write_letter
from .mean import Mean
from .messages import Form, forms
from .ruled import Centres, check_rule, rule_of
from .secure.run import Secured
from .secure.trips import Gathering, Here, Question
from .simulation import Simulation
from .stream import Parcel, Stream, View, catch_up
from .views import Views

Letters = dict[int, State]
"""The sending ends of `personal`, of each client that has replied."""


class Setup(NamedTuple):
    """What all rounds share, and no function here changes."""

    slot: Slot  # where models train
    begun: Start
    buffers: Params | None  # norm statistics that are averaged, as they were before round 1
    apart: bool  # whether each client is sent broadcasts of its own
    digest: str  # of the run
    clients: int

    def check_client(self, client: int) -> None:
        """Raise ``ValueError`` for a number that is none of the run's clients."""
        fits = hasattr(client, "__index__") and client in range(self.clients)  # 1.0 is in a range too
        require(fits, f"client={client}: the clients are 0 to {self.clients - 1}")

    def stream(self, algorithm: Algorithm, key: Key) -> Stream:
        """The downlink before any broadcast."""
        _, down = self.forms(algorithm)
        if self.apart:
            return Views(algorithm, down, self.begun, self.buffers, key)
        return Stream(algorithm, down, self.begun.view, self.buffers)

    def forms(self, algorithm: Algorithm) -> tuple[Form, Form]:
        """The forms of replies and of broadcasts."""
        return forms(algorithm, self.begun, self.buffers)

    def letter(self, algorithm: Algorithm, alone: Alone, key: Key) -> Letter | None:
        """What the key's client alone is sent, if the method sends anything."""
        form = private(algorithm, self.begun)
        if form is None:
            return None
        assert key.client is not None
        anew = key.client not in alone.kept
        tx = form.open()[0] if anew else alone.kept[key.client]
        return write_letter(form, algorithm.alone(alone.server, key.client), tx, key, anew)


class Alone(NamedTuple):
    """What a round's messages to single clients are made of: each is made when its client takes part."""

    server: State  # the method's
    kept: Letters  # of what was sent in rounds before
    downs: Letters  # the same of broadcasts, where each client is sent its own


class ClientView(NamedTuple):
    """What every client holds once it has a round's broadcast."""

    seed: int
    round: int  # from 1
    message: Message  # the broadcast as clients see it (as it is, with PerClient), a NamedTuple of the method's
    blob: bytes  # the broadcast as it is sent, without a header; none with PerClient
    state: State  # the method's: what it makes of all broadcasts so far
    rx: State  # the receiving ends of `down`
    buffers: Params | None  # the mean norm statistics, where they are averaged
    setup: Setup
    alone: Alone  # of methods that write to single clients too
    secret: Here | None = None  # the keys of this round's clients, where their replies are added in secret


class ClientReply(NamedTuple):
    """A client's reply, as it is sent and as the server will see it."""

    client: int
    message: Message  # what the server will see (with SecureSum: in the sum alone), a NamedTuple of the method's
    buffers: Params | None  # the client's norm statistics, where they are averaged
    blob: bytes  # the reply as it is sent, without a header
    examples: int
    loss: float  # the mean training loss before each step
    steps: int
    floats: float  # the papers' count: 32-bit floats' worth of values in the blob
    looks: list[dict[str, Any]]  # how LBGM tested the update: field, layer, sin2, rho, recycled, norm
    mbit: float | None = None  # the client's uplink, as given
    alone: bytes = b""  # what this client alone was sent, beside the broadcast or in its place, without a header
    keys: bytes = b""  # the public keys of its client in this round, where replies are added in secret
    round: int = 0  # from 1: whose broadcast it was made from


class ServerState(NamedTuple):
    """The server with a round's broadcast made and no reply taken."""

    round: int  # from 1
    state: State  # the method's
    view: ClientView  # for the clients of this round
    mean: Message  # the mean reply of the round before; None before round 2
    buffers: Params | None  # the mean norm statistics, where they are averaged
    tx: State  # the sending ends of `down`
    rx: dict[int, State]  # the receiving ends of `up`, of each client that has replied
    centres: Centres | None = None  # what a rule that remembers made of the round before, by field
    far: tuple[int, ...] = ()  # the clients whose replies were far off in the round before, under a rule


@one_thread()
def start(
    algorithm: Algorithm,
    model: nn.Module | Callable[[], nn.Module],
    tasks: Sequence[Any],
    seed: int = 0,
    device: str = "cpu",
) -> tuple[ServerState, ClientState]:
    """The server in round 1, and the state of any client before its first round.

    ``model``, ``tasks`` (one a client), ``seed`` and ``device`` are those of :func:`simulate`. Raises ``ValueError``
    for an argument that does not fit, as :func:`simulate` does.
    """
    run = Simulation(algorithm, model, tasks, seed=seed, device=device, workers=1)
    setup = Setup(run.slot, run.start, run.buffers, run.apart, run.digest, run.num_clients)
    stream = setup.stream(algorithm, Key(seed))
    server = _publish(algorithm, setup, stream, run.server, run.buffers, Key(seed, 1), {}, {})
    return server, run.ends().own


@one_thread()
def exchange_keys(algorithm: Algorithm, server: ServerState, clients: Iterable[int]) -> ServerState:
    """The server once the ``clients`` of its round have exchanged keys, for a method whose replies are added in secret.

    Rounds of these clients with its view hide what they send. :func:`server_round` with it learns the sum of the
    replies alone, and of too few nothing. Questions and answers are those of a simulation
    (:mod:`thinwire.federated.secure`), and keys are new each time. Raises ``ValueError`` for clients that are not of
    the run, or are too few to hide among, and :class:`~thinwire.errors.CombinationError` for a method without a
    :class:`~thinwire.SecureSum`.
    """
    view, cohort = server.view, sorted(clients)
    secured = Secured.on(view.setup.forms(algorithm)[0])
    if secured is None:
        raise CombinationError(f"{algorithm!r} adds no replies in secret: leave exchange_keys out")
    fits = len(set(cohort)) == len(cohort) and all(0 <= client < view.setup.clients for client in cohort)
    require(fits, f"clients={cohort}: name clients of the {view.setup.clients} of this run, each once")
    about = Question(view.setup.digest, NUMBER, view.seed, view.setup.clients, 0, server.round, "", b"")
    return server._replace(view=view._replace(secret=Here(Gathering(secured, about, cohort))))


@one_thread()
def client_round(
    algorithm: Algorithm,
    view: ClientView,
    state: ClientState,
    task: Any,
    client: int,
    *,
    train: Training | None = None,
    mbit: float | None = None,
) -> tuple[ClientReply, ClientState]:
    """A client's round: its reply, and its next state. Nothing that is given is changed.

    ``view`` is the server's, ``task`` the client's (a :class:`Task`, a Dataset, or a pair of tensors), and ``client``
    its number, which seeds its draws. Batches are drawn as :func:`simulate` draws them, or those of the task's
    ``order``. ``train`` answers the method's requests in place of training, as in :func:`simulate`. ``mbit`` is the
    client's uplink in Mbit/s, for links that go by it. Raises ``ValueError`` for a number that is none of the run's
    clients, :class:`NonFinite` where training diverges, and :class:`~thinwire.errors.CombinationError` where replies
    are added in secret and no keys were exchanged.
    """
    view.setup.check_client(client)
    slot, secret = view.setup.slot, _secret(algorithm, view, [client])
    task = as_task(task, f"client {client}", slot.layout.dtype)
    require(len(task) > 0, f"client {client} has no examples")
    up, _ = view.setup.forms(algorithm)
    key = Key(view.seed, view.round, client, mbit=mbit)
    held = View(view.state, view.rx, view.buffers)
    own = _own(algorithm, view, client)
    if own is not None:
        parcel, before = own
        held = catch_up(algorithm, view.setup.forms(algorithm)[1], before, parcel, Key(view.seed))
    letter = view.setup.letter(algorithm, view.alone, key)
    if letter is not None:
        job = Job(key, state, letter.blob, client not in view.alone.kept)
        held, state = client_inputs(algorithm, private(algorithm, view.setup.begun), held, job)
    round = play(algorithm, up, slot, Turn(task, held, state, key), train)
    reply = round.reply(slot.buffers(), 0.0, Manner(looks=True))
    message, buffers = round.seen
    about = reply.examples, reply.loss, reply.steps, reply.floats, reply.looks
    sent = b"" if own is None else b"".join(message.blob for message in own[0].messages)
    sent += b"" if letter is None else letter.blob
    blob, keys = (reply.blob, b"") if secret is None else (secret.hide(client, reply.blob), secret.keys(client))
    return ClientReply(client, message, buffers, blob, *about, mbit, sent, keys, view.round), reply.next


@one_thread()
def server_round(
    algorithm: Algorithm,
    server: ServerState,
    replies: Iterable[ClientReply],
    *,
    aggregate: Aggregator | None = None,
) -> ServerState:
    """The server's round, and the next one's broadcast. Replies are added in the order of their clients.

    ``aggregate`` is the rule by which replies become one, as in :func:`simulate`; None: the weighted mean. What it has
    to remember, and whose replies were ``far`` off, is in the state that is returned. Without replies, or with fewer
    than a rule or a secure sum needs, the server's state stays as it is, ``mean`` is None, and a round goes by. Raises
    ``ValueError`` for two replies of one client, and for one of another round, of nobody in the run or of no examples,
    :class:`~thinwire.errors.CombinationError` for a rule that means nothing for the method, or without the keys of a
    secure sum, ``WireError`` for a reply that is none of this round's form, and :class:`NonFinite`.
    """
    setup, key = server.view.setup, Key(server.view.seed, server.round)
    up, _ = setup.forms(algorithm)
    replied = list(replies)
    for reply in replied:
        setup.check_client(reply.client)
        of = f"client {reply.client}: its reply is of"
        require(reply.round == server.round, f"{of} round {reply.round}, and this is round {server.round}")
        require(0 < reply.examples < math.inf, f"{of} {reply.examples} examples, and there are one or more")
    replied.sort(key=lambda reply: reply.client)
    require(
        len({reply.client for reply in replied}) == len(replied), "a client has two replies: give each client's once"
    )
    secret = _secret(algorithm, server.view, [reply.client for reply in replied])
    rule = rule_of(aggregate)
    if secret is not None:
        secret.gathering.secured.check_asked(algorithm, aggregate=rule)
        for reply in replied:
            same = reply.keys == secret.keys(reply.client)
            require(same, f"client {reply.client}: its reply is hidden with other keys: exchange keys once a round")
            secret.take(reply.client)  # as it did in its round
        secrets = secret.end(reply.client for reply in replied)
        replied = [] if secrets is None else replied  # too few are left, and nobody learns the sum
    if rule is not None:
        check_rule(rule, algorithm, up, max(len(replied), rule.least))
    state, buffers, message, rx = server.state, server.buffers, None, dict(server.rx)
    mean = Mean(up, rule=rule, centres=server.centres)
    alone = server.view.alone
    letters, downs = dict(alone.kept), dict(alone.downs)
    for reply in replied:
        weight = algorithm.weigh(reply.examples)
        end = rx[reply.client] if reply.client in rx else up.open()[1]
        own = key._replace(client=reply.client, mbit=reply.mbit)
        try:
            body = up.read(reply.blob)
            up.compare(body, algorithm.outlines(server.view.state, up.blank, own))
        except WireError as error:
            raise WireError(f"round {own.round}, client {own.client}: {error}") from error
        rx[reply.client] = mean.add(reply.client, weight, body, end, own)
        letter = setup.letter(algorithm, alone, own)
        letters |= {} if letter is None else {reply.client: letter.tx}
        parcel = _own(algorithm, server.view, reply.client)
        downs |= {} if parcel is None else {reply.client: parcel[0].end}
    if secret is not None and secrets is not None:
        secret.gathering.secured.uncover(mean, secrets)
    if mean.enough:
        message, statistics = mean.result(key)
        state = algorithm.server(state, server.view.state, message, key)
        buffers = None if buffers is None else statistics
        if not modest(state):
            raise NonFinite(
                f"round {server.round}: the server's state became NaN, infinite or larger than {MOST:.0e}; lower the "
                f"server's lr, or clip"
            )
    stream = setup.stream(algorithm, key)
    stream.version, stream.tx = server.round, server.tx
    stream.view = View(server.view.state, server.view.rx, server.view.buffers)
    after = _publish(algorithm, setup, stream, state, buffers, key._replace(round=server.round + 1), letters, downs)
    if mean.ruled is None:
        return after._replace(mean=message, rx=rx)
    centres = mean.ruled.centres if mean.enough else server.centres
    return after._replace(mean=message, rx=rx, centres=centres, far=tuple(sorted(mean.ruled.far)))


def _secret(algorithm: Algorithm, view: ClientView, clients: Iterable[int]) -> Here | None:
    """What these clients have said to one another in a round, to go on with; None where nothing is added in secret."""
    if Secured.on(view.setup.forms(algorithm)[0]) is None:
        return None
    if view.secret is None:
        raise CombinationError(
            f"{algorithm!r}: replies are added in secret, for which the clients of a round exchange keys first: "
            f"server = tw.exchange_keys(method, server, clients)"
        )
    lacking = sorted(set(clients) - view.secret.shares.keys())
    require(not lacking, f"clients {lacking} have no keys in round {view.round}: name them in exchange_keys")
    return view.secret.copy()


def _publish(
    algorithm: Algorithm,
    setup: Setup,
    stream: Stream,
    state: State,
    buffers: Params | None,
    key: Key,
    letters: Letters,
    downs: Letters,
) -> ServerState:
    """A round's broadcast in the stream, and the server then."""
    stream.publish(algorithm.broadcast(state, stream.view.state), buffers, key)
    blob = stream.log[-1].blob if stream.log else b""
    view = ClientView(key.seed, key.round, stream.last, blob, *stream.view, setup, Alone(state, letters, downs))
    return ServerState(key.round, state, view, None, buffers, stream.tx, {})


def _own(algorithm: Algorithm, view: ClientView, client: int) -> tuple[Parcel, View] | None:
    """What a client is sent of a broadcast of its own, and what it held before; None where the broadcast is everyone's.

    It is made when the client takes part, and once more when its reply is taken: nothing is kept in between.
    """
    key = Key(view.seed, view.round)
    stream = view.setup.stream(algorithm, key)
    if not isinstance(stream, Views):
        return None
    stream.publish(view.message, view.buffers, key)
    end, version = view.alone.downs.get(client), int(client in view.alone.downs)
    return stream.parcel(version, end), stream.view_of(version, end)
