"""Where a run adds replies in secret: which fields, what is refused, what is hidden and what is taken off."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ...algorithms.base import Algorithm
from ...errors import CombinationError, require
from ...key import Key
from ...links import SecureSum
from ...links.secure import holds_secret
from ...wire import Packet, dumps
from ..mean import Mean
from ..messages import Form, Leaf
from ..privacy import Privacy
from ..ruled import rule_of
from ..setting import ClientsSetting
from .exchange import Circle, Member, Secrets
from .masks import check_installed
from .noise import ClientNoise, fewest


@dataclass(frozen=True)
class Secured:
    """The replies of a run whose every field is added in secret."""

    form: Form
    link: SecureSum  # of the first field: the neighbours of all are its
    privacy: Privacy | None = None  # whose noise is the clients'

    @staticmethod
    def of(algorithm: Algorithm, form: Form, setting: ClientsSetting, clients: int) -> Secured | None:
        """None where no field is. Raises :class:`CombinationError` where the server would learn more than a sum."""
        secured = Secured.on(form, setting.privacy)
        if secured is not None:
            secured.check(algorithm, setting, clients)
        return secured

    @staticmethod
    def on(form: Form, privacy: Privacy | None = None) -> Secured | None:
        """None where no field is."""
        links = [leaf.link for leaf in form.leaves if leaf.link is not None and holds_secret(leaf.link)]
        if not links:
            return None
        check_installed()
        return Secured(form, next((link for link in links if isinstance(link, SecureSum)), SecureSum()), privacy)

    @property
    def links(self) -> set[SecureSum]:
        """Those of all fields."""
        return {leaf.link for leaf in self.form.leaves if isinstance(leaf.link, SecureSum)}

    def check(self, algorithm: Algorithm, setting: ClientsSetting, clients: int) -> None:
        """Raise :class:`CombinationError` where the server would learn more than a sum, or clients are too many.

        Raises ``ValueError`` where they are too few.
        """
        name, form = repr(algorithm), self.form
        for leaf in form.leaves:
            if not isinstance(leaf.link, SecureSum):
                raise CombinationError(f"{name}: the server would see {leaf.name} of each client: {_mend(leaf)}")
            if leaf.kind != "mean":
                raise CombinationError(f"{name}: {leaf.name} is not averaged, and a sum is all that the server learns")
        if algorithm.weights != "uniform":
            often = "takes steps" if algorithm.weights == "steps" else "has examples"
            raise CombinationError(
                f"{name}: with weights={algorithm.weights!r} a reply counts as often as its client {often}, and a "
                f"secure sum adds each once: give weights='uniform'"
            )
        self.check_asked(algorithm, clip=setting.clip, aggregate=rule_of(setting.aggregate), buffer=setting.buffer)
        sample = setting.cohort(clients)
        for link in self.links:
            if self.privacy is not None:
                ClientNoise(self.privacy, link, 0, sample).check()
        needed = max(self.fewest(sample), self.circle(range(sample), Key(0)).threshold + 1)
        require(
            setting.replies(clients) >= needed,
            f"{name}: of {sample} clients {needed} have to answer before anything is uncovered, and "
            f"{setting.replies(clients)} answers count: let more count",
        )

    def check_asked(self, algorithm: Algorithm, **asked: Any) -> None:
        """Raise :class:`CombinationError` where something that is asked for looks at replies."""
        for name, value in asked.items():
            if value is not None:
                raise CombinationError(
                    f"{algorithm!r}: {name}={value!r} looks at each reply, and the server sees none of them: leave it "
                    f"out"
                )

    def circle(self, cohort: Collection[int], key: Key, about: bytes = b"") -> Circle:
        """The clients of a round, and who is whose neighbour. Raises ``ValueError`` for too few or many."""
        for link in self.links:
            if len(cohort) > link.most:
                raise CombinationError(f"{link!r}: {len(cohort)} clients take part in a round: give most={len(cohort)}")
        return Circle.of(cohort, key, about, self.link.neighbours, self.link.threshold)

    def fewest(self, clients: int) -> int:
        """How many of a round's clients have to answer at least."""
        return 1 if self.privacy is None else fewest(clients)

    def hide(self, member: Member, blob: bytes, secret: bytes) -> bytes:
        """A reply with all masks of its client; with privacy its noise, drawn from its ``secret``, is below them."""
        pairs = zip(self.form.leaves, self.form.read(blob), strict=True)
        return dumps([self._hide(member, secret, leaf, *part) for leaf, part in pairs])

    def _hide(self, member: Member, secret: bytes, leaf: Leaf, which: Packet, packet: Packet) -> Packet:
        link = leaf.link
        assert isinstance(link, SecureSum)
        if packet is None:  # a field without layers
            return [which, None]
        numbers = link.unpack(packet, None)
        if self.privacy is not None:
            noise = ClientNoise(self.privacy, link, len(numbers), member.circle.size)
            numbers = noise.add(link.signed(numbers).long(), secret, member.circle.about)
        return [which, link.pack(member.hide(leaf.name, numbers, link.width))]

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
