"""A plugin of pytest: nothing that a test has started outlives the session.

What is left when the session is over makes it fail, and is named with the test that started it. Where the session is
killed, a guard beside it kills what it has started.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "examples" / "flower"))

from guard import Guard

GUARD, LEFT = pytest.StashKey[Guard](), pytest.StashKey[list[str]]()
GRACE = float(os.environ.get("THINWIRE_TEST_GRACE", "60"))  # seconds in which what is just ending may end


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist are started by a session that has a guard
        config.stash[GUARD] = Guard(os.environ)


@pytest.hookimpl(trylast=True)  # after fixtures of the session, and after the workers
def pytest_sessionfinish(session: pytest.Session) -> None:
    if GUARD not in session.config.stash:
        return
    guard, end = session.config.stash[GUARD], time.monotonic() + GRACE
    while guard.left() and time.monotonic() < end:
        time.sleep(0.1)
    session.config.stash[LEFT] = [
        f"{one.environment.get('PYTEST_CURRENT_TEST', 'no test')} left process {one.pid}: {one.command[:120]}"
        for one in guard.left()
    ]
    if session.config.stash[LEFT]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left = terminalreporter.config.stash.get(LEFT, [])
    if left:
        terminalreporter.section(f"{len(left)} processes were left, and are killed", red=True)
        for line in left:
            terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    if GUARD in config.stash:
        config.stash[GUARD].close()
