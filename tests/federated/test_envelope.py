"""What the headers of calls and answers take, measured without writing them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import example, given

from blobs import blobs, mlp
from thinwire import FedAvg, Key, Network, Simulation
from thinwire.deploy.server import Deployment
from thinwire.federated.client import ClientState, Reply
from thinwire.federated.envelope import NUMBER, Answer, Call, Piece, Scales, key_of, read_call
from thinwire.wire import Several

numbers = st.integers(0, 1 << 40) | st.sampled_from([0, 1, 63, 64, 127, 128, 8191, 8192, 1 << 32])
blob = st.sampled_from([0, 1, 127, 128, 16_383, 16_384]).map(bytes)
scales = Scales()


def call(client: int = 3, base: int = 0, pieces: list[Piece] | None = None, state: int = 0) -> Call:
    every = Several([Piece(7, bytes(344))] if pieces is None else pieces, Piece(0, b""))
    return Call("0123456789abcdef", NUMBER, 5, 6, client, 7, base, 0.0, False, every, state)


@given(numbers, numbers, st.lists(st.builds(Piece, numbers, blob), max_size=3), st.sampled_from([0, NUMBER]))
@example(0, 0, [], 0)
def test_a_call_is_billed_as_many_bytes_as_it_has(client: int, base: int, pieces: list[Piece], state: int) -> None:
    message = call(client, base, pieces, state)
    assert scales.size(message) == len(message.write())


@given(numbers, numbers, numbers, blob, st.booleans())
def test_an_answer_is_billed_as_many_bytes_as_it_has(
    client: int, examples: int, steps: int, data: bytes, held: bool
) -> None:
    reply = Reply(data, examples, 1.5, steps, 0.0, 0.0, [], None, ClientState(None, None, None)) if held else None
    message = Answer.to(call(client), NUMBER, reply, NUMBER)
    assert scales.size(message) == len(message.write())


def test_messages_that_are_equally_long_are_measured_once() -> None:
    known = Scales()
    # 63 bytes: 344 + version 1, list 2, run 18, incarnation 10, six numbers of 2, mbit 9, snapshot 1, the pieces' list
    # 2, a piece's 2, its round 2, its tensor 4. Of client 64 the number takes a byte more.
    assert [known.size(call(client)) for client in (32, 40, 63, 64)] == [407, 407, 407, 408]
    assert len(known.known) == 2


def test_the_loss_of_a_client_that_has_not_trained_is_none() -> None:
    reply = Reply(b"", 10, 2.5, 0, 0.0, 0.0, [], None, ClientState(None, None, None))
    assert Answer.to(call(), NUMBER, reply).loss == 0.0
    assert Answer.to(call(), NUMBER, reply._replace(steps=3)).loss == 2.5
    assert (Answer.to(call(), NUMBER).held, Answer.to(call(), NUMBER).blob) == (False, b"")


def test_both_ends_draw_by_one_key() -> None:
    assert key_of(5, 3, 7, 0.0) == Key(5, 7, 3, mbit=None)
    assert key_of(5, 3, 7, 2.5) == Key(5, 7, 3, mbit=2.5)
    run = Simulation(FedAvg(), mlp, blobs(), network=Network(2.5), workers=1)
    with run.pool:
        run.publish()
        sent, _ = run.call_to(3)
        assert run.at(3, sent) == Key(0, 1, 3, mbit=2.5)


def test_a_rate_that_is_a_whole_number_is_one_that_clients_read() -> None:
    server = Deployment(FedAvg(), mlp, 2, mbit=10)
    assert read_call(server.begin()[0]).mbit == 10.0
