"""The messages that a server waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

AT_ONCE = 32  # requests

log = logging.getLogger("thinwire")


class Arrival(NamedTuple):
    """A reply: None where Flower cannot put it together, and when the look began that found it."""

    message: Message | None
    seen: float


class Mail:
    """The messages that are not answered yet, each of which is looked for every ``pause`` seconds.

    Flower hands out a reply when it has been announced, waits for the rest of it as long as its
    sender takes, and of several loses those before a broken one. So each is fetched by itself,
    in a thread of its own, a few at once: whoever is slow, or sends nonsense, is in nobody's way.
    """

    def __init__(self, grid: Grid, pause: float = 0.0) -> None:
        self.grid, self.pause, self.away = grid, pause, 0
        self.due = deque[tuple[float, str]]()  # when which message is looked for, the earliest first
        self.pulled: queue.SimpleQueue[tuple[str, float, list[Message | None] | Exception]] = queue.SimpleQueue()

    def expect(self, sent: str) -> None:
        """Look for the reply to this message from now on: the first time after a pause, for no reply is sooner."""
        self.due.append((time.monotonic() + self.pause, sent))

    def wait(self, seconds: float) -> dict[str, Arrival]:
        """The replies that have come, by what they reply to: as soon as there is one, and in so many seconds."""
        now, replies = time.monotonic(), dict[str, Arrival]()
        end = now + seconds
        while True:
            while self.due and self.due[0][0] <= now <= end and self.away < AT_ONCE:
                threading.Thread(target=self._fetch, args=(self.due.popleft()[1], now), daemon=True).start()
                self.away += 1
            until = now if replies else end
            if self.due and self.away < AT_ONCE:
                until = min(until, self.due[0][0])
            try:
                sent, seen, pulled = self.pulled.get(timeout=max(until - now, 0.0))
            except queue.Empty:
                now = time.monotonic()
                if replies or now >= end:
                    return replies
                continue
            now, self.away = time.monotonic(), self.away - 1
            if isinstance(pulled, Exception):
                raise pulled
            if pulled:
                replies[sent] = Arrival(pulled[0], seen)
            else:
                self.expect(sent)

    def _fetch(self, sent: str, seen: float) -> None:
        try:
            self.pulled.put((sent, seen, list(self.grid.pull_messages([sent]))))
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a reply that is no message: %s", error)
            self.pulled.put((sent, seen, [None]))
        except Exception as error:  # of the connection: it is the loop's to raise
            self.pulled.put((sent, seen, error))
