"""Nodes that have answered, and are not to sleep before their next call.

A SuperNode that finds no message sleeps for three seconds, and no setting of Flower's changes that. While there is a
message it does not sleep. One that asks nothing keeps it busy for ``BUSY`` seconds, of which its ClientApp waits
``IDLE``, and then it looks for the next. So a client is sent such a message after its call, and others after its
answer, as long as the round goes on. Nobody looks for the replies.

Each is some ten requests to the SuperLink, which on a machine that is busy or has many nodes would delay more than
sleep does. How busy it is, the time shows that it takes to send one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

IDLE = 0.65  # a SuperNode looks for a reply every half second, and finds this one after a second
BUSY = 1.1  # until that look, and some requests
REQUESTS = 6  # of a node's, in the time of each of which a message can be sent: they make it busy for longer
FREE = 0.7  # seconds after an answer was seen in which its node is busy at least: it was sent a while before
EARLY = 0.2  # seconds that a message is sent before a node has done the one before it
LONGEST = 6.0  # seconds that a client is kept awake: others may sleep before they answer
SLOW = 0.12  # seconds to send a message, from which on a client is left to sleep


class Awake:
    """The clients that wait for their next call. ``send`` sends a client a message that asks nothing."""

    def __init__(self, send: Callable[[int], object]) -> None:
        self.send = send
        self.answered = dict[int, float]()  # client -> when its answer was seen
        self.kept = set[int]()  # clients that have such a message behind their call
        self.free = dict[int, float]()  # client of these that has answered -> when it has done what it was sent
        self.over, self.pause = 0.0, LONGEST  # when the last round was over, and the seconds to the calls of the next
        self.sending = 0.0  # seconds to send a message, smoothed

    def call(self, clients: Iterable[int], began: float) -> None:
        """Note that clients are called since ``began``, all of them."""
        self.pause = began - self.over
        if self.sending >= SLOW:
            self.sending *= 0.8  # until it is tried again
        for client in clients:
            self.free.pop(client, None)
            self.kept.discard(client)
            if began - self.answered.pop(client, -LONGEST) < LONGEST and self.sending < SLOW:
                self.kept.add(client)
                self.wake(client)

    def wake(self, client: int) -> None:
        """Send a client a message that asks nothing."""
        began = time.monotonic()
        self.send(client)
        self.sending += 0.3 * (time.monotonic() - began - self.sending)

    def answer(self, client: int, seen: float) -> None:
        """Note when a client's answer was seen."""
        self.answered[client] = seen
        if client in self.kept:
            self.free[client] = seen + FREE

    def go_on(self, seconds: float = EARLY) -> None:
        """Send all who wait what keeps them awake for so many seconds from now."""
        now = time.monotonic()
        for client in self.free:
            while self.free[client] < now + seconds and now < self.answered[client] + LONGEST and self.sending < SLOW:
                self.wake(client)
                self.free[client] += BUSY + REQUESTS * self.sending

    def end(self) -> None:
        """Note that a round is over. The server may need as long as the last time before it calls again."""
        if self.pause < LONGEST:
            self.go_on(self.pause)
        self.over = time.monotonic()
