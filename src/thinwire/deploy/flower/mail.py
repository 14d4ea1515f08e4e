"""The messages that a server waits for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

from flwr.app import Message
from flwr.serverapp import Grid

AT_ONCE = 32  # requests

log = logging.getLogger("thinwire")


class Mail:
    """The messages that are not answered yet.

    Flower hands out a reply when it has been announced, waits for the rest of it as long as its
    sender takes, and of several loses those before a broken one. So each is fetched by itself,
    in a thread of its own, a few at once: whoever is slow, or sends nonsense, is in nobody's way.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid, self.due, self.away = grid, deque[str](), 0
        self.pulled: queue.SimpleQueue[tuple[str, list[Message | None] | Exception]] = queue.SimpleQueue()

    def expect(self, sent: str) -> None:
        """Look for the reply to this message from now on."""
        self.due.append(sent)

    def wait(self, seconds: float) -> dict[str, Message | None]:
        """The replies that have come, by what they reply to, at the latest after so many seconds.

        None is one that Flower cannot put together.
        """
        end, replies_by_id = time.monotonic() + seconds, dict[str, Message | None]()
        for _ in range(min(len(self.due), AT_ONCE - self.away)):
            threading.Thread(target=self._fetch, args=(self.due.popleft(),), daemon=True).start()
            self.away += 1
        while self.away:
            try:
                sent, replies = self.pulled.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                break
            self.away -= 1
            if isinstance(replies, Exception):
                raise replies
            if replies:
                replies_by_id[sent] = replies[0]
            else:
                self.due.append(sent)
        if not replies_by_id:
            time.sleep(max(end - time.monotonic(), 0.0))
        return replies_by_id

    def _fetch(self, sent: str) -> None:
        try:
            self.pulled.put((sent, list(self.grid.pull_messages([sent]))))
        except (ValueError, TypeError, KeyError) as error:
            log.warning("a reply that is no message: %s", error)
            self.pulled.put((sent, [None]))
        except Exception as error:  # of the connection: it is the loop's to raise
            self.pulled.put((sent, error))
