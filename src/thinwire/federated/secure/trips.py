"""The questions of a round beside its calls, which a simulation and a deployment ask and answer alike.

A round has four trips. ``keys``, ``shares`` and ``reveal`` are questions of the server's. Between the second and the
third it calls the clients, and the shares that are for a client go with its call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from typing import NamedTuple, Protocol, runtime_checkable

from ...config import complete
from ...errors import WireError, check
from ...key import Key
from ...wire import dumps, loads, restore
from ..ledger import Direction, Ledger
from ..network import Network
from .exchange import Broker, Circle, Kept, Member, Secrets, TooFew, list_clients, write_clients
from .run import Secured

MAGIC = b"\0secure\0"  # no call begins so


class Question(NamedTuple):
    """Server to client. Its answer is bytes without a header."""

    run: str  # a digest of method, model, seed and number of clients
    incarnation: int
    seed: int
    clients: int
    client: int
    round: int
    trip: str  # "keys", "shares" or "reveal"
    body: bytes  # the round's clients; the keys of neighbours; who has replied
    privacy: str = ""  # which clients see to; a question without has one field less

    def write(self) -> bytes:
        """The bytes of it."""
        return MAGIC + dumps(self if self.privacy else self[:-1])

    @property
    def about(self) -> bytes:
        """What names the run and the round in keys."""
        return about_round(self.run, self.incarnation, self.round)

    def circle(self, secured: Secured) -> Circle:
        """Who is whose neighbour in the round whose clients are named. Raises ``WireError``."""
        cohort = list_clients(self.body)
        check(self.client in cohort and all(0 <= i < self.clients for i in cohort), "clients of a round")
        try:
            return secured.circle(cohort, Key(self.seed, self.round), self.about)
        except ValueError as error:
            raise WireError(str(error)) from error


def about_round(run: str, incarnation: int, round: int) -> bytes:
    """What names a run and a round of it in keys."""
    return b"%s|%016x|%d" % (run.encode(), incarnation, round)


def read_question(data: bytes) -> Question | None:
    """A question from its bytes; None where they are none, but a call. Raises ``WireError``."""
    if not data.startswith(MAGIC):
        return None
    like, fields = Question("", 0, 0, 0, 0, 0, "", b""), loads(data[len(MAGIC) :], max_depth=1)
    if isinstance(fields, list) and len(fields) == len(like) - 1:
        fields.append(like.privacy)
    question: Question = restore(fields, like)
    check(question.trip in ("keys", "shares", "reveal"), "keys, shares or reveal")
    check(0 <= question.client < question.clients and question.round > 0 and question.seed >= 0, "a client of the run")
    return question


def reply(question: Question, kept: Kept | None, circle: Circle | None = None) -> tuple[bytes, Kept]:
    """A client's answer, and what it keeps from then on. ``circle`` is of the question for keys.

    Raises ``WireError``, and :class:`~.exchange.TooFew` where there is nobody to hide among.
    """
    if circle is not None:
        member = Member(question.client, circle, kept)
        return member.keys(), member.keep()
    member = member_of(kept, question.about)
    data = member.shares(question.body) if question.trip == "shares" else member.reveal(question.body)
    return data, member.keep()


def member_of(kept: Kept | None, about: bytes) -> Member:
    """A client in the round that is named. Raises ``WireError`` where it has no keys of that round."""
    check(kept is not None and kept.about == about, "a round whose keys are here")
    assert kept is not None
    return Member.of(kept)


@runtime_checkable
class Runner(Protocol):
    """What names a run and its next round."""

    digest: str
    incarnation: int
    seed: int
    num_clients: int
    round: int


class Gathering:
    """A round's exchange as its server has it: what is asked, what has been answered, and how many bytes that was."""

    def __init__(self, secured: Secured, about: Question, cohort: Collection[int]) -> None:
        self.secured, self.cohort = secured, cohort
        self.about = about._replace(body=write_clients(cohort))
        self.broker = Broker(secured.circle(cohort, Key(about.seed, about.round), about.about))
        self.up, self.down = dict.fromkeys(cohort, 0), dict.fromkeys(cohort, 0)
        self.trip = ""
        self.asked: set[int] = set()
        self.heard: dict[int, bytes] = {}

    @staticmethod
    def of(run: Runner, secured: Secured, cohort: Collection[int]) -> Gathering:
        """That of a run's next round. Raises ``ValueError`` for a cohort in which nobody could hide."""
        about = run.digest, run.incarnation, run.seed, run.num_clients, 0, run.round + 1
        privacy = "" if secured.privacy is None else complete(secured.privacy)
        return Gathering(secured, Question(*about, "", b"", privacy), cohort)

    @property
    def complete(self) -> bool:
        """Whether all that were asked have answered."""
        return self.asked == self.heard.keys()

    def ask_keys(self) -> dict[int, bytes]:
        """The first questions."""
        return self._ask("keys", dict.fromkeys(self.cohort, self.about.body))

    def ask_shares(self) -> dict[int, bytes]:
        """The second ones, on the keys that have come."""
        return self._ask("shares", self.broker.keys(self.heard))

    def close(self) -> dict[int, bytes]:
        """The shares that go with the calls: whoever has none is not called."""
        self.trip = "call"
        return self.broker.shares(self.heard)

    def ask_secrets(self, replied: Iterable[int]) -> dict[int, bytes]:
        """The last questions, once it is known who has replied; none where these are too few, or apart."""
        replied = list(replied)
        if len(replied) < self.secured.fewest(len(self.cohort)) or not self.broker.is_connected(replied):
            self.trip = "void"
            return {}
        return self._ask("reveal", self.broker.ask(replied))

    def _ask(self, trip: str, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        questions = {i: self.about._replace(client=i, trip=trip, body=body).write() for i, body in bodies.items()}
        self.trip, self.asked, self.heard = trip, set(questions), {}
        for client, data in questions.items():
            self.down[client] += len(data)
        return questions

    def hear(self, client: int, data: bytes) -> None:
        """Take an answer to the newest questions. Raises ``WireError`` where it is none; its bytes are counted."""
        self.up[client] += len(data)
        check(client in self.asked and client not in self.heard, "one answer of a client that was asked")
        self.broker.check(self.trip, client, data)
        self.heard[client] = data

    def secrets(self) -> Secrets | None:
        """What takes the masks off the sum of those who replied; None: too few are left, and nobody learns anything."""
        if self.trip != "reveal":
            return None
        try:
            return self.broker.secrets(self.heard)
        except (TooFew, WireError):  # shares that fit, and are of another key
            return None

    def enter(self, ledger: Ledger) -> None:
        """Enter the bytes of questions and answers: they are framing."""
        ways: tuple[tuple[Direction, dict[int, int]], ...] = (("up", self.up), ("down", self.down))
        for way, sizes in ways:
            for client, size in sizes.items():
                if size:
                    ledger.enter_framing(self.about.round, client, way, size)


class Here:
    """The clients of a round in this process: none is late.

    With a ``network`` a trip lasts as long as its slowest client.
    """

    def __init__(self, gathering: Gathering, network: Network | None = None) -> None:
        self.gathering, self.kept = gathering, dict[int, Kept]()
        self.network, self.seconds = network, 0.0  # of all trips but the call
        self._answer(gathering.ask_keys())
        self._answer(gathering.ask_shares())
        self.shares = gathering.close()

    def _answer(self, questions: Mapping[int, bytes]) -> None:
        slowest = 0.0
        for client, data in questions.items():
            question = read_question(data)
            assert question is not None
            circle = question.circle(self.gathering.secured) if question.trip == "keys" else None
            try:
                answer, self.kept[client] = reply(question, self.kept.get(client), circle)
            except TooFew:
                continue
            self.gathering.hear(client, answer)
            if self.network is not None:
                seconds = self.network.seconds(client, len(answer), len(data), 0, question.seed)
                slowest = max(slowest, seconds)
        self.seconds += slowest

    def copy(self) -> Here:
        """The same at the same point: what is said to one the other has not heard."""
        secured = self.gathering.secured
        return deepcopy(self, {id(secured): secured})

    def keys(self, client: int) -> bytes:
        """The public keys of a client."""
        return b"".join(self.gathering.broker.public[client])

    def take(self, client: int) -> None:
        """A client is given the shares that are for it, as with its call."""
        member = member_of(self.kept[client], self.gathering.about.about)
        member.take(self.shares[client])
        self.kept[client] = member.keep()

    def hide(self, client: int, blob: bytes) -> bytes:
        """A client's reply as it is sent."""
        about, kept, shares = self.gathering.about, self.kept[client], self.shares[client]
        secret = hashlib.sha256(b"%d|%d" % (about.seed, client)).digest()
        hidden, self.kept[client] = hide(self.gathering.secured, kept, about.about, shares, blob, secret)
        return hidden

    def end(self, replied: Iterable[int]) -> Secrets | None:
        """What takes the masks off the sum of those who replied."""
        self._answer(self.gathering.ask_secrets(replied))
        return self.gathering.secrets()


def hide(
    secured: Secured, kept: Kept | None, about: bytes, shares: bytes, blob: bytes, secret: bytes
) -> tuple[bytes, Kept]:
    """A reply with all masks of its client, given the shares that came with its call; and what it keeps.

    ``secret``, of 32 bytes, is what its noise is drawn from.
    """
    member = member_of(kept, about)
    member.take(shares)
    member.commit(blob)
    return secured.hide(member, blob, secret), member.keep()
