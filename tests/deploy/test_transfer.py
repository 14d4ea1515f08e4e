"""Large calls and answers in chunks: what is lost is sent again, and nothing that has come."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from thinwire.errors import WireError

pytest.importorskip("flwr")

from flwr.app import Error, Message

from test_serve import Post, _task, blob_of, post, serve, simulated  # noqa: F401  _task: a fixture of every test
from thinwire.deploy.flower import chunks, nodes, transfer
from thinwire.deploy.flower.chunks import Chunks, Frame, cut, digest_of, read_frame
from thinwire.deploy.flower.post import unpack
from thinwire.deploy.flower.transfer import Transfer, reply

SMALL = 100  # bytes of a chunk, in place of 2 MiB: the model has some hundreds
MOST = 3  # chunks of a message, in place of 16
LOST, RAISED = 4, 2  # Flower's codes: a reply that does not come, and a client that raised
EXPRESSION = "FedAvg(up=EF21(TopK(0.5)))"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transfer, nodes, chunks):
        monkeypatch.setattr(module, "CHUNK", SMALL)
    for module in (transfer, chunks):
        monkeypatch.setattr(module, "MOST", MOST)
    monkeypatch.setattr(transfer, "PAUSE", 0.0)


class Counted(Post):
    """A post that notes the messages of transfers, and loses some: before they come, or their replies."""

    def __init__(self, other: Post, lost: float = 0.0, until: int = 1 << 30) -> None:
        self.__dict__ |= other.__dict__
        self.kinds: list[tuple[int, str, list[str], int]] = []  # node, kind, chunks, bytes of their bodies
        self.draw, self.lost, self.until = random.Random(3), lost, until
        self.crossed: dict[tuple[int, str], int] = {}  # bytes of blobs by round and direction, names left out

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            data = blob_of(message)
            frame = read_frame(data)
            self.count(message, "down", data)
            if frame is not None and len(self.kinds) >= self.until:
                raise RuntimeError("the server is killed")
            fate = self.draw.random() if frame is not None else 1.0
            if fate < self.lost / 2:  # the message does not come
                self.sent += 1
                message.metadata.__dict__["_message_id"] = number = f"message-{self.sent}"
                self.replies[number] = Message(Error(LOST, "cut"), reply_to=message)
                ids.append(number)
            else:
                ids += super().push_messages([message])
                if data and ids[-1] in self.replies and self.replies[ids[-1]].has_content():
                    self.count(message, "up", unpack(self.replies[ids[-1]].content))
                if fate < self.lost:  # its reply does not
                    self.replies[ids[-1]] = Message(Error(LOST, "cut"), reply_to=message)
            if frame is not None:
                self.kinds.append((message.metadata.dst_node_id, frame.kind, frame.chunks, len(frame.body)))
        return ids

    def count(self, message: Message, way: str, data: bytes) -> None:
        key = int(message.metadata.group_id), way
        self.crossed[key] = self.crossed.get(key, 0) + len(data)


def chunks_sent(grid: Counted) -> dict[str, int]:
    """How often each chunk of a call was sent, and each of an answer asked for."""
    found: dict[str, int] = {}
    for node, kind, names, _ in grid.kinds:
        for chunk in names if kind in ("chunk", "want") else ():
            found[f"{node} {kind} {chunk}"] = found.get(f"{node} {kind} {chunk}", 0) + 1
    return found


def test_in_parts_the_model_and_the_ledger_are_those_of_a_simulation(tmp_path: Path) -> None:
    grid, expected = Counted(post(EXPRESSION, tmp_path)), simulated(EXPRESSION)
    result = serve(grid, EXPRESSION, out=tmp_path / "run")
    assert torch.equal(result.params.flat, expected.params.flat)
    assert [e.payload for e in sorted(result.ledger)] == [e.payload for e in sorted(expected.ledger)]
    assert {kind for _, kind, _, _ in grid.kinds} == {"offer", "chunk", "want"}
    assert set(chunks_sent(grid).values()) == {1}
    sizes = [size for *_, size in grid.kinds]
    assert SMALL < max(sizes) <= MOST * SMALL  # the messages are quick, so they grow
    assert [record["resent_bytes"] for record in result.rounds] == [0, 0, 0]


def test_what_is_lost_is_sent_again_and_nothing_else(tmp_path: Path) -> None:
    grid = Counted(post(EXPRESSION, tmp_path), lost=0.3)
    result = serve(grid, EXPRESSION)
    assert torch.equal(result.params.flat, simulated(EXPRESSION).params.flat)
    assert [record["lost_replies"] for record in result.rounds] == [0, 0, 0]
    again = sum(times - 1 for times in chunks_sent(grid).values())
    resent = sum(record["resent_bytes"] for record in result.rounds)
    assert resent == sum(e.retries for e in result.ledger)
    assert 0 < resent <= again * SMALL  # a last chunk is shorter
    assert 0 < again < len(chunks_sent(grid))


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_the_ledger_has_every_byte_that_is_serialised(lost: float, tmp_path: Path) -> None:
    grid = Counted(post(EXPRESSION, tmp_path), lost=lost)
    ledger = serve(grid, EXPRESSION).ledger
    for round in (1, 2, 3):
        assert ledger.bytes("down", round) == grid.crossed[round, "down"]
        again = sum(e.retries for e in ledger.of("up", round))
        # What is asked for again crossed twice, or its first question did not come. Of a reply that is lost only
        # the body is known, and that when it is asked for again.
        assert ledger.bytes("up", round) - again <= grid.crossed[round, "up"]
        assert lost or ledger.bytes("up", round) == grid.crossed[round, "up"]
    assert (sum(e.retries for e in ledger.of("up")) == 0) == (lost == 0.0)


def test_what_has_come_of_an_answer_that_is_not_waited_for_is_in_the_ledger(tmp_path: Path) -> None:
    grid = Counted(post(EXPRESSION, tmp_path))

    come: list[int] = []  # bytes

    def silent(node: int, message: Message, reply: Message) -> Message | None:
        """Of node 12's answer to round 2 only two chunks come."""
        frame, said = read_frame(unpack(message.content)), read_frame(unpack(reply.content))
        if (node, message.metadata.group_id) != (12, "2") or frame is None or frame.kind != "want":
            return reply
        assert said is not None
        come.append(len(said.body))
        return reply if len(come) <= 2 else None

    grid.spoil = silent
    result = serve(grid, EXPRESSION, deadline=1.0, poll=0.05)
    assert [record["lost_replies"] for record in result.rounds] == [0, 1, 0]
    framing = {e.client: e.framing for e in result.ledger.of("up", 3)}  # it is called again, and that is abandoned
    assert framing[1] - framing[0] == sum(come[:2]) == 2 * SMALL


@pytest.mark.parametrize("until", [7, 19, 33, 48])
def test_a_server_that_is_killed_in_a_transfer_goes_on_with_what_has_come(tmp_path: Path, until: int) -> None:
    first = Counted(post(EXPRESSION, tmp_path), until=until)
    with pytest.raises(RuntimeError, match="the server is killed"):
        serve(first, EXPRESSION, 2, out=tmp_path / "run")
    second = Counted(post(EXPRESSION, tmp_path))
    result = serve(second, EXPRESSION, 2, out=tmp_path / "run")
    assert torch.equal(result.params.flat, simulated(EXPRESSION, 2).params.flat)
    both = chunks_sent(first)
    for name, times in chunks_sent(second).items():
        both[name] = both.get(name, 0) + times
    twice = [name for name, times in both.items() if times > 1]
    assert len(twice) <= transfer.WINDOW * MOST * 3  # what was on its way to, or from, each of the three clients
    assert len(first.kinds) == until


def test_a_client_answers_an_offer_that_comes_again_without_training(tmp_path: Path) -> None:
    calls: list[bytes] = []

    def answer(call: bytes) -> tuple[bytes, float]:
        calls.append(call)
        return bytes(range(250)) * 5, 1.5

    call = b"c" * 1200
    offer = Frame("offer", list(cut(call)), b"", len(call)).write()
    asked = read_frame(reply(offer, tmp_path, answer)[0])
    assert asked is not None
    assert (asked.kind, asked.chunks) == ("missing", list(cut(call)))
    for index, (name, piece) in enumerate(cut(call).items()):
        got = read_frame(reply(Frame("chunk", [name], piece, index).write(), tmp_path, answer)[0])
        assert got == Frame("have", [name])
    said = [read_frame(reply(offer, tmp_path, answer)[0]) for _ in range(3)]
    assert said[0] is not None
    assert said[0].kind == "whole"
    assert said[0] == said[1] == said[2]
    assert calls == [call]
    pieces = [
        reply(Frame("want", [name], b"", i, 2.0).write(), tmp_path, answer) for i, name in enumerate(said[0].chunks)
    ]
    frames = [read_frame(data) for data, _ in pieces]
    assert b"".join(frame.body for frame in frames if frame) == bytes(range(250)) * 5
    assert [rate for _, rate in pieces] == [2.0] * len(pieces)
    assert set(Chunks(tmp_path).names()) == {transfer.ANSWER, *said[0].chunks}  # the call is not kept beside it


def test_a_part_that_a_disk_has_damaged_is_sent_again(tmp_path: Path) -> None:
    call = b"c" * 1200
    offer = Frame("offer", list(cut(call)), b"", len(call)).write()
    for index, (name, piece) in enumerate(cut(call).items()):
        reply(Frame("chunk", [name], piece, index).write(), tmp_path, lambda call: (b"never", 0.0))
    (tmp_path / next(iter(cut(call)))).write_bytes(b"c" * 99 + b"d")
    asked = read_frame(reply(offer, tmp_path, lambda call: (b"never", 0.0))[0])
    assert asked is not None
    assert asked.kind == "missing"


def places_of_messages(
    call: bytes, seconds: Iterable[float | None], monkeypatch: pytest.MonkeyPatch
) -> list[list[int]]:
    """The places of the chunks of each message of a call, whose replies take so many seconds; None: it is lost."""
    now, messages = 0.0, list[list[int]]()
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(transfer, "WINDOW", 1)
    found = Transfer(call, 3000, Chunks(None))
    names = list(found.call)
    ((about, _),) = found.due(0.0)
    found.note_sent("offer", about, 0)
    assert found.take("offer", Frame("missing", names[:4] + names[5:]).write()) is None  # one of them is there
    for number, took in enumerate(seconds):
        ((about, data),) = found.due(0.0)
        found.note_sent(str(number), about, len(data))
        messages.append([names.index(name) for name in about[1]])
        now += took or 0.0
        if took is None:
            found.lose(str(number))
        else:
            assert found.take(str(number), Frame("have", [*about[1]]).write()) is None
    return messages


def test_messages_grow_while_they_are_quick_and_are_short_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MOST", 4)
    messages = places_of_messages(b"c" * 3000, [1.0, 1.0, 1.0, None, 1.0, 1.0, 11.0, 11.0, 11.0, 3.0], monkeypatch)
    assert messages == [[0], [1, 2], [3], [5, 6, 7, 8], [5], [6, 7], [8, 9, 10, 11], [12, 13], [14], [15]]


def test_more_chunks_than_a_message_has_are_refused(tmp_path: Path) -> None:
    names = list(cut(b"c" * 400))
    for frame in (Frame("want", names), Frame("chunk", names, b"c" * 400), Frame("want", []), Frame("chunk", [], b"")):
        with pytest.raises(WireError, match="at most 3 chunks"):
            reply(frame.write(), tmp_path, lambda call: (b"never", 0.0))
    with pytest.raises(WireError, match="the chunks that their digests name"):
        reply(Frame("chunk", names[:2], b"c" * 200, 1).write(), tmp_path, lambda call: (b"never", 0.0))
    for place in (1 << 32, (1 << 32) - 1, 1 << 70):  # two chunks, of which the second has no place
        with pytest.raises(WireError, match="at most 3 chunks"):
            reply(Frame("chunk", names[:2], b"c" * 200, place).write(), tmp_path, lambda call: (b"never", 0.0))
    assert Chunks(tmp_path).names() == set()


def held(most: int = 3000) -> tuple[Transfer, str]:
    """A transfer whose offer is on its way."""
    found = Transfer(b"call", most, Chunks(None))
    ((about, _),) = found.due(0.0)
    found.note_sent("m", about, 0)
    return found, "m"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Frame("whole", ["0" * 32], b"", 3001), "an answer of at most 3000 bytes in chunks"),
        (Frame("whole", ["0" * 32], b"", 120), "an answer of at most 3000 bytes in chunks"),
        (Frame("whole", ["0" * 32] * 2, b"", 120), "an answer of at most 3000 bytes in chunks"),
        (Frame("whole", ["../../etc/passwd"], b"", 100), "the header of a transfer"),
        (Frame("missing", ["0" * 32]), "chunks of the call"),
        (Frame("missing", []), "chunks of the call"),
        (Frame("chunk", ["0" * 32], b"x"), "a 'chunk' in reply to a 'offer'"),
    ],
)
def test_a_client_that_sends_nonsense_in_a_transfer_is_refused(answer: Frame, says: str) -> None:
    found, message = held()
    with pytest.raises(WireError, match=says):
        found.take(message, answer.write())


def test_a_part_that_is_not_what_it_is_called_is_refused() -> None:
    found, message = held()
    names = [digest_of(i, b"x" * 100) for i in range(2)]
    assert found.take(message, Frame("whole", names, b"", 200).write()) is None
    (about, _), _ = found.due(0.0)
    found.note_sent("n", about, 0)
    with pytest.raises(WireError, match="the chunks that their digests name"):
        found.take("n", Frame("chunk", [names[0]], b"y" * 100).write())


@pytest.mark.parametrize("data", [b"\0thinwire\0", b"\0thinwire\0\0\0\0\x02{}", b"\0thinwire\0\xff\xff\xff\xff[]"])
def test_bytes_that_begin_as_a_transfer_and_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="the header of a transfer"):
        read_frame(data)


def test_what_was_sent_before_a_node_was_away_is_lost_when_it_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = held()
    monkeypatch.setattr(transfer, "GRACE", 0.0)
    found.note_presence(True)
    assert found.due(0.0) == []
    found.note_presence(False)
    found.note_presence(True)
    found.note_presence(True)
    ((about, _),) = found.due(0.0)
    assert about == ("offer", ())
    assert found.take("m", b"an answer that comes all the same") == b"an answer that comes all the same"


def test_to_a_node_that_is_away_nothing_is_sent() -> None:
    found = Transfer(b"c" * 300, 3000, Chunks(None))
    found.note_presence(False)
    assert found.due(0.0) == []
    found.note_presence(True)
    assert [about for about, _ in found.due(0.0)] == [("offer", ())]


def test_a_client_that_raises_is_not_asked_again(tmp_path: Path, caplog: Any) -> None:
    grid = Counted(post(EXPRESSION, tmp_path))
    grid.spoil = lambda node, message, reply: (
        Message(Error(RAISED, "no memory left"), reply_to=message)
        if node == 12 and message.metadata.group_id == "2" and unpack(message.content)
        else reply
    )
    result = serve(grid, EXPRESSION)
    assert [record["lost_replies"] for record in result.rounds] == [0, 1, 0]
    assert "client 1 failed: no memory left" in caplog.text
