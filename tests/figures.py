"""A plugin of pytest: the figures of a study are made in every test, and become pictures in those marked ``drawn``.

Most commands end with nine pictures. They take matplotlib two seconds, and few tests are about them: in the
others a picture is an empty file of its name. Processes that tests start draw theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

drawn = False  # whether the test that runs is about pictures


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "drawn: figures of studies become pictures, which this test looks at")


def pytest_runtest_setup(item: pytest.Item) -> None:
    global drawn
    drawn = item.get_closest_marker("drawn") is not None


def pytest_collection_finish() -> None:  # not in the process that only deals tests to others
    from thinwire.report import plots

    draw: Callable[..., Path] = plots.Figures.save

    def save(self: plots.Figures, figure: Any, place: Any, path: Path, columns: int = 1) -> Path:
        if drawn:
            return draw(self, figure, place, path, columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        plots.plt.close(figure)
        return path

    plots.Figures.save = save
