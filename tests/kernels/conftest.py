"""What tests of the kernels share: the levels of the instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thinwire.kernels import native


@pytest.fixture
def levels() -> Iterator[list[str]]:
    """Every level that this machine has."""
    chosen = list(native._chosen)
    if native._load() is None:
        pytest.skip("the kernels are not compiled here")
    yield [level for level in native.LEVELS if native.use(level) == level]
    native._chosen[:] = chosen
    native._level()
