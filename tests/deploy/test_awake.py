"""Which clients are kept awake, and with how many messages, by a clock that the tests turn."""

import time
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from test_serve import _task  # noqa: F401  a fixture of every test
from thinwire.deploy import flower
from thinwire.deploy.flower import app, awake
from thinwire.deploy.flower.awake import Awake


class Clock:
    """A clock in the place of ``time``, and what is sent by it: a message takes ``sending`` seconds."""

    def __init__(self) -> None:
        self.now, self.sending = 100.0, 0.0
        self.sent = list[tuple[float, int]]()

    def monotonic(self) -> float:
        return self.now

    def send(self, client: int) -> None:
        self.sent.append((self.now, client))
        self.turn(self.sending)

    def turn(self, seconds: float) -> None:
        self.now = round(self.now + seconds, 6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    turned = Clock()
    monkeypatch.setattr(awake, "time", turned)
    return turned


def run(clock: Clock, answers: dict[int, float], seconds: float, rounds: int = 2, pause: float = 0.1) -> Awake:
    """Rounds of so many seconds, after whose calls clients answer so much later; the messages of the last are left."""
    kept = Awake(clock.send)
    for _ in range(rounds):
        clock.sent.clear()
        began, due = clock.now, dict(answers)
        kept.call(answers, began)
        while clock.now < began + seconds:
            for client, after in list(due.items()):
                if clock.now >= began + after:
                    kept.answer(client, clock.now)
                    del due[client]
            kept.go_on()
            clock.turn(0.1)
        kept.end()
        clock.turn(pause)
    return kept


def test_a_client_that_was_never_called_is_sent_nothing_and_one_that_has_answered_a_message_behind_its_call(
    clock: Clock,
) -> None:
    run(clock, {0: 1.0, 1: 1.1}, 1.2, rounds=1)
    assert clock.sent == []
    run(clock, {0: 1.0, 1: 1.1}, 1.2)
    assert [(round(clock.now - at, 3), client) for at, client in clock.sent] == [(1.3, 0), (1.3, 1)]


def test_who_waits_longer_is_sent_one_message_after_the_other_and_never_has_nothing_to_do(clock: Clock) -> None:
    run(clock, {0: 1.0, 1: 5.0}, 5.0)
    sent = [at for at, client in clock.sent if client == 0]
    began, free = sent[0], sent[0] + 1.0 + awake.FREE  # when it has done the message behind its call
    for at in sent[1:]:
        assert free - awake.EARLY - 0.11 <= at < free  # before it is done, and not two at a time
        free += awake.BUSY
    assert free > began + 5.0
    assert len(sent) == 1 + 4


@pytest.mark.parametrize(
    ("answers", "seconds", "sending", "why"),
    [
        ({0: 1.0}, 8.0, 0.0, "it waited for longer than anybody is kept awake"),
        ({0: 0.5}, 1.0, 0.5, "the SuperLink takes half a second for a message"),
    ],
)
def test_a_client_is_left_to_sleep_where_awake_it_would_cost_more(
    clock: Clock, answers: dict[int, float], seconds: float, sending: float, why: str
) -> None:
    clock.sending = sending
    run(clock, answers, seconds, rounds=3)
    assert len(clock.sent) <= (0 if sending == 0.0 else 1), why


def test_a_busy_superlink_is_tried_again(clock: Clock) -> None:
    clock.sending = 0.5
    kept = run(clock, {0: 0.5}, 1.0, rounds=3)
    assert kept.sending >= awake.SLOW
    clock.sending = 0.0
    for _ in range(10):
        kept.call([0], clock.now)
        clock.turn(1.0)
        kept.answer(0, clock.now)
    assert kept.sending < awake.SLOW
    assert clock.sent


def test_a_server_that_takes_seconds_to_call_again_sends_what_lasts_as_long(clock: Clock) -> None:
    run(clock, {0: 0.9}, 1.0, rounds=3, pause=2.5)
    behind, *after = (at for at, _ in clock.sent)
    assert [round(at - behind, 3) for at in after] == [1.0, 1.0]  # at the end of the round
    assert awake.FREE + 2 * awake.BUSY > 2.5


def test_a_client_takes_its_time_over_a_message_that_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "IDLE", 0.05)
    context = Context(1, 7, {"name": "a"}, RecordDict(), {}, 0)
    message = Message(RecordDict(), 7, "train")
    message.metadata.__dict__["_message_id"] = "message-1"
    began = time.monotonic()

    def make(context: Context) -> Any:
        raise AssertionError("no client is needed")

    reply = flower.client_app(make)(message, context)
    assert time.monotonic() >= began + 0.05
    assert reply.content == RecordDict()
