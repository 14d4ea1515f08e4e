"""Which entries a rank sends: all, or a random block that every rank draws alike."""

from __future__ import annotations

from collections.abc import Iterator

from ..key import Key
from ..params import Layout
from .feedback import Feedback


def runs_of(method: Feedback, layout: Layout, key: Key) -> list[tuple[int, int]]:
    """The runs of entries that are sent: those of blocks, or all."""
    return [(0, layout.size)] if method.link is not None else list(blocks(method, layout, key))


def blocks(method: Feedback, layout: Layout, key: Key) -> Iterator[tuple[int, int]]:
    """The runs of entries that are sent at a step: one, or two where a block goes on at the beginning."""
    spans = [("", 0, layout.size)]
    if method.by_tensor:
        spans = [(name, first, size) for name, (first, size, _) in layout.spans.items() if size]
    for name, first, size in spans:
        begin, length = method.block.block(size, key.at(name) if name else key)
        yield first + begin, first + min(begin + length, size)
        if begin + length > size:
            yield first, first + begin + length - size
