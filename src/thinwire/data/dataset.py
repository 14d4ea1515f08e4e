"""What every loader returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import require

VOID = 255  # in a mask: a pixel that nobody labelled


@dataclass(frozen=True)
class DataSet:
    """A data set in memory, training part and test part.

        Pictures are ``inputs`` uint8 [n, channels, height, width] with int64 ``targets`` [n];
        a training task makes floats of a batch by ``(x.float() / 255 - mean) / std``. Inputs
        that are float32 already have ``mean`` and ``std`` None.

    Pictures to segment have masks as targets, uint8 [n, height, width], or [n, masks, height, width]: 0 is background,
    1 the object, and 255 (``VOID``) a pixel that nobody labelled, which no loss and no measure counts.

        Texts to continue are int64 characters or words [n, context], with those that follow them,
        int64 [n, context], as targets. Texts to classify are int64 words [n, length], filled up
        with 0, with int64 targets [n]. ``vocabulary`` is the number of ids that inputs of texts
        may hold, None for pictures.

        ``groups`` is the natural owner of each training example (int64 [n], counted from 0),
        None where the set has none. ``test_groups`` is that of each test example, where owners have
        tests of their own: such owners are called sites. ``mean`` and ``std`` are per channel, for
        values 0 to 1. Raises ``ValueError`` where there are not as many owners as examples.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int
    groups: Tensor | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    vocabulary: int | None = None
    test_groups: Tensor | None = None

    def __post_init__(self) -> None:
        for name, owners, examples in (
            ("groups", self.groups, self.targets),
            ("test_groups", self.test_groups, self.test_targets),
        ):
            number = len(examples) if owners is None else len(owners)
            require(number == len(examples), f"{name}: {number} owners for {len(examples)} examples: give one for each")

    @property
    def sites(self) -> int | None:
        """The number of owners that have tests of their own; None for a set without such."""
        return None if self.groups is None or self.test_groups is None else int(self.groups.max()) + 1
