"""A blob as a message of Flower's, and the messages that are waited for."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ...errors import check

RECORD = "thinwire"
# Bytes. An object whose upload takes longer than 180 s is lost with its message, a request that is not answered within
# 30 s is sent again, and a heartbeat may take 5 s, as long as two of these: at 0.1 Mbit/s all three still pass.
PIECE = 1 << 15
LARGEST = 1 << 20
SECONDS = 2.5  # that a larger piece may take on its link, as the small one does at 0.1 Mbit/s
NAME = 200  # bytes of a client's name, at most


def pack(data: bytes, mbit: float = 0.0) -> RecordDict:
    """A blob as the content of a message, cut into pieces that a link of so many Mbit/s delivers (0: not known).

    Each piece is a ConfigRecord, which Flower sends, or asks for, in one request; an array takes
    two. A request has a signature and a key of 1.2 kB: fewer are less to send.
    """
    size = min(max(PIECE, int(mbit * 1e6 / 8 * SECONDS)), LARGEST)
    pieces = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
    return RecordDict({str(i): ConfigRecord({RECORD: piece}) for i, piece in enumerate(pieces)})


def unpack(content: RecordDict, most: int | None = None) -> bytes:
    """The blob that :func:`pack` cut, of at most so many bytes. Raises ``WireError``."""
    check(list(content) == [str(i) for i in range(len(content))], "pieces in their order")
    records = [r for r in content.values() if isinstance(r, ConfigRecord) and list(r) == [RECORD]]
    parts = [piece for piece in (record[RECORD] for record in records) if isinstance(piece, bytes)]
    check(parts and len(parts) == len(content), "records of ours")
    check(most is None or sum(map(len, parts)) <= most, f"a blob of at most {most} bytes")
    return b"".join(parts)


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
