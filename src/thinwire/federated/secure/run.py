"""Where a run adds replies in secret: which fields, what is refused, and the exchange in a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...algorithms.base import Algorithm
from ...errors import CombinationError
from ...key import Key
from ...links import SecureSum
from ...links.secure import holds_secret
from ...wire import Packet, dumps
from ..ledger import Ledger
from ..mean import Mean
from ..messages import Form, Leaf
from ..setting import ClientsSetting
from .exchange import Broker, Circle, Member, Secrets, TooFew
from .masks import check_installed


@dataclass(frozen=True)
class Secured:
    """The replies of a run whose every field is added in secret."""

    form: Form
    link: SecureSum  # of the first field: the neighbours of all are its
    about: str  # names the run

    @staticmethod
    def of(algorithm: Algorithm, form: Form, setting: ClientsSetting, clients: int, here: bool) -> Secured | None:
        """None where no field is. Raises :class:`CombinationError` where the server would learn more than a sum.

        ``here``: whether clients are in this process, as in a simulation.
        """
        links = [leaf.link for leaf in form.leaves if isinstance(leaf.link, SecureSum)]
        if not any(leaf.link is not None and holds_secret(leaf.link) for leaf in form.leaves):
            return None
        check_installed()
        name = repr(algorithm)
        for leaf in form.leaves:
            if not isinstance(leaf.link, SecureSum):
                raise CombinationError(f"{name}: the server would see {leaf.name} of each client: {_mend(leaf)}")
            if leaf.kind != "mean":
                raise CombinationError(f"{name}: {leaf.name} is not averaged, and a sum is all that the server learns")
        if algorithm.weights != "uniform":
            raise CombinationError(
                f"{name}: with weights={algorithm.weights!r} a reply counts as often as its client has examples, and a "
                f"secure sum adds each once: give weights='uniform'"
            )
        for asked in ("clip", "privacy", "aggregate", "buffer"):
            value = getattr(setting, asked, None)
            if value is not None:
                raise CombinationError(
                    f"{name}: {asked}={value!r} looks at each reply, and the server sees none of them: leave it out"
                )
        sample = setting.cohort(clients)
        for link in links:
            if sample > link.most:
                raise CombinationError(f"{link!r}: {sample} clients take part in a round: give most={sample}")
        if not here:
            raise CombinationError(
                f"{name}: clients of a deployment do not exchange the keys of a SecureSum, and the server would see "
                f"their replies: take it out, or simulate"
            )
        return Secured(form, links[0], str(setting.seed))

    def circle(self, cohort: Sequence[int], key: Key) -> Circle:
        """The clients of a round, and who is whose neighbour. Raises ``ValueError`` for a single client."""
        about = f"{self.about}|{key.round}".encode()
        return Circle.of(cohort, key, about, self.link.neighbours, self.link.threshold)

    def hide(self, member: Member, blob: bytes) -> bytes:
        """A reply with all masks of its client."""
        pairs = zip(self.form.leaves, self.form.read(blob), strict=True)
        return dumps([self._hide(member, leaf, *part) for leaf, part in pairs])

    def _hide(self, member: Member, leaf: Leaf, which: Packet, packet: Packet) -> Packet:
        link = leaf.link
        assert isinstance(link, SecureSum)
        if packet is None:  # a field without layers
            return [which, None]
        return [which, link.pack(member.hide(leaf.name, link.unpack(packet, None), link.width))]

    def uncover(self, mean: Mean, secrets: Secrets) -> None:
        """Take the masks off the sums of a round's replies."""
        for leaf, groups in zip(self.form.leaves, mean.totals, strict=True):
            link = leaf.link
            assert isinstance(link, SecureSum)
            if groups is not None and len(groups) > 1:
                raise CombinationError(
                    f"{leaf.name}: clients have sent different layers, which cannot be added in secret: let all send "
                    f"the same"
                )
            for group, total in (groups or {}).items():
                masks = secrets.masks(leaf.name, len(total), link.width)
                groups[group] = (total - masks) & ((1 << link.width) - 1)


def _mend(leaf: Leaf) -> str:
    """What to do with a field that is not added in secret."""
    if leaf.statistics:
        return "keep norm statistics with the clients, buffers='local'"
    if leaf.link is None:
        return "take a method whose replies have no numbers beside their layers"
    return "put SecureSum around other links" if holds_secret(leaf.link) else "give it a SecureSum too"


class Gathering:
    """A round's exchange, of which all clients are here: every message is made and counted, and none is late."""

    def __init__(self, secured: Secured, cohort: Sequence[int], key: Key) -> None:
        circle = secured.circle(cohort, key)
        self.secured, self.broker = secured, Broker(circle)
        self.members = {client: Member(client, circle) for client in cohort}
        self.up, self.down = dict.fromkeys(cohort, 0), dict.fromkeys(cohort, 0)
        keys = self._count_down(
            self.broker.keys(self._count_up({i: member.keys() for i, member in self.members.items()}))
        )
        made = self._count_up({i: member.shares(keys[i]) for i, member in self.members.items()})
        for client, data in self._count_down(self.broker.shares(made)).items():
            self.members[client].take(data)

    def _count_up(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Count what clients send."""
        for client, data in messages.items():
            self.up[client] += len(data)
        return messages

    def _count_down(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        """Count what they are sent."""
        for client, data in messages.items():
            self.down[client] += len(data)
        return messages

    def hide(self, client: int, blob: bytes) -> bytes:
        """A client's reply as it is sent."""
        return self.secured.hide(self.members[client], blob)

    def enter(self, ledger: Ledger, round: int) -> None:
        """Enter the bytes of keys and shares: they are framing."""
        for client in self.up:
            ledger.enter_framing(round, client, "up", self.up[client])
            ledger.enter_framing(round, client, "down", self.down[client])

    def end(self, replied: Iterable[int]) -> Secrets | None:
        """What takes the masks off the sum of those who replied; None: too few are left, and nobody learns anything."""
        asked = self._count_down(self.broker.ask(replied))
        try:
            shares: Mapping[int, bytes] = {i: self.members[i].reveal(data) for i, data in asked.items()}
            return self.broker.secrets(self._count_up(dict(shares)))
        except TooFew:
            return None
