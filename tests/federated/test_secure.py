"""The secure sum: what comes out is the sum of whole numbers, and nothing else is to be had from what was said."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thinwire as tw
from blobs import Chosen, blobs, mlp
from thinwire.errors import CombinationError, WireError
from thinwire.federated.secure import shamir
from thinwire.federated.secure.exchange import Broker, Circle, Member, Secrets, TooFew
from thinwire.federated.secure.masks import Pair, agree, draw, seal, unseal
from thinwire.federated.secure.trips import MAGIC
from thinwire.key import Key
from thinwire.problem import standard
from thinwire.wire import dumps

WIDTH, COUNT = 26, 64


class Said:
    """A round, and every message of it: those who stop after their keys, after their shares, after their reply."""

    def __init__(
        self,
        clients: Iterable[int],
        after_keys: Collection[int] = (),
        after_shares: Collection[int] = (),
        after_reply: Collection[int] = (),
        degree: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self.circle = Circle.of(clients, Key(3, 1), b"run|1", degree, threshold)
        self.members = {i: Member(i, self.circle) for i in self.circle.neighbours}
        self.broker, self.messages = Broker(self.circle), list[bytes]()
        keys = self.broker.keys(self.tell({i: member.keys() for i, member in self.members.items()}))
        staying = [i for i in self.members if i not in after_keys]
        shares = self.broker.shares(self.tell({i: self.members[i].shares(keys[i]) for i in staying}))
        for i, data in shares.items():
            self.members[i].take(data)
        generator = torch.Generator().manual_seed(1)
        self.numbers = {i: torch.randint(0, 1 << 16, (COUNT,), generator=generator) for i in self.members}
        self.replied = [i for i in shares if i not in after_shares]
        self.hidden = {i: self.members[i].hide("u", self.numbers[i], WIDTH) for i in self.replied}
        self.asked = self.broker.ask(self.replied)
        self.answers = {i: self.members[i].reveal(x) for i, x in self.asked.items() if i not in after_reply}
        self.tell(self.answers)

    def tell(self, messages: dict[int, bytes]) -> dict[int, bytes]:
        self.messages += messages.values()
        return messages

    def sum(self, secrets: Secrets | None = None) -> Tensor:
        masks = (secrets or self.broker.secrets(self.answers)).masks("u", COUNT, WIDTH)
        return (torch.stack(list(self.hidden.values())).sum(0) - masks) & ((1 << WIDTH) - 1)


THIRDS = [
    ((), range(11), ()),
    (range(11), (), ()),
    (range(4), range(4, 8), range(8, 11)),
    ((), (), range(11)),
]


@pytest.mark.parametrize("lost", [THIRDS[0], *(pytest.param(x, marks=pytest.mark.slow) for x in THIRDS[1:])], ids=str)
def test_a_third_of_32_clients_drop_out_and_the_sum_is_that_of_the_others_numbers(lost: Any) -> None:
    said = Said(range(32), *lost)
    assert len(said.replied) == 32 - len(lost[0]) - len(lost[1])
    assert torch.equal(said.sum(), torch.stack([said.numbers[i] for i in said.replied]).sum(0))


@pytest.mark.parametrize("lost", [((), (5, 20), ()), ((7,), (8,), (9,))], ids=str)
def test_among_a_few_neighbours_each_the_sum_is_the_same(lost: Any) -> None:
    said = Said(range(3, 27), *lost, degree=8)
    assert {len(near) for near in said.circle.neighbours.values()} == {8}
    assert all(i in said.circle.neighbours[j] for i, near in said.circle.neighbours.items() for j in near)
    assert torch.equal(said.sum(), torch.stack([said.numbers[i] for i in said.replied]).sum(0))


def test_the_server_can_make_nothing_of_what_was_said_but_the_sum() -> None:
    said = Said(range(12), after_shares=(2, 9))
    secrets, members = said.broker.secrets(said.answers), said.members
    # All that it was told in the clear: seeds of those who replied, keys of those who did not, and never the other.
    assert secrets.seeds.keys() == set(said.replied)
    assert secrets.keys.keys() == {2, 9}
    told = b"".join(said.messages)
    for i, member in members.items():
        assert member.channel.private not in told
        assert member.mask.private not in told
        assert member.seed not in told
        shares = [said.members[j].held[i][i in said.replied] for j in said.replied if j != i]
        others = [said.members[j].held[i][i not in said.replied] for j in said.replied if j != i]
        assert all(share in told for share in shares)
        assert not any(share in told for share in others)
    # Of one reply it can take off the client's own mask, and those shared with the two that are lost.
    rests = []
    for client in said.replied:
        rest = said.hidden[client] - draw(secrets.seeds[client], "u", COUNT, WIDTH)
        for lost in (2, 9):
            common = draw(agree(secrets.keys[lost], members[client].mask.public, b"mask|run|1"), "u", COUNT, WIDTH)
            rest = rest - common if client < lost else rest + common
        left = (rest - said.numbers[client]) & ((1 << WIDTH) - 1)  # what still hides it: numbers of all sizes
        assert left.unique().numel() >= COUNT - 2  # keys are new each time: of 64 draws two may be alike by chance
        assert 0.1 < float((left >> (WIDTH - 1)).double().mean()) < 0.9  # 0.5 on average, 0.06 its deviation
        rests.append(left)
    # Nor of the sum of some of them: what is left over of any is zero nowhere but by chance, and of all everywhere.
    for some in itertools.product((False, True), repeat=len(rests)):
        over = sum((rest for rest, there in zip(rests, some, strict=True) if there), torch.zeros(COUNT).long())
        zeros = int(((over & ((1 << WIDTH) - 1)) == 0).sum())
        assert zeros == COUNT if all(some) or not any(some) else zeros <= 2, some
    assert torch.equal(said.sum(secrets), torch.stack([said.numbers[i] for i in said.replied]).sum(0))


def test_where_those_who_replied_fall_into_parts_nobody_is_asked_for_the_sum_of_each() -> None:
    neighbours = Circle.of(range(8), Key(3, 1), b"run|1", 2, None).neighbours
    order = [1, neighbours[1][0]]  # the ring, as it lies
    while len(order) < 8:
        order.append(next(client for client in neighbours[order[-1]] if client != order[-2]))
    said, parts = Said(range(8), after_shares=(order[0], order[4]), degree=2), (order[1:4], order[5:])
    secrets = said.broker.secrets(said.answers)
    for part in parts:  # what the server would learn if it asked
        own = {client: secrets.seeds[client] for client in part}
        masks = Secrets(said.broker, own, secrets.keys).masks("u", COUNT, WIDTH)
        total = torch.stack([said.hidden[client] for client in part]).sum(0) - masks
        assert torch.equal(total & ((1 << WIDTH) - 1), torch.stack([said.numbers[client] for client in part]).sum(0))
    assert not said.broker.is_connected(said.replied)
    assert all(said.broker.is_connected(part) for part in parts)
    link = tw.SecureSum(clip=0.5, neighbours=2)
    method = tw.FedAvg(tw.LocalSGD(0.1, batch=8), up=link, weights="uniform")
    tasks = blobs((8,) * 8)
    server, client = tw.start(method, mlp, tasks, seed=3)
    server = tw.exchange_keys(method, server, range(8))
    replies = [tw.client_round(method, server.view, client, tasks[i], i)[0] for i in range(8)]
    for lost, learned in (((), True), (order[:1], True), (order[:5:4], False)):
        after = tw.server_round(method, server, [reply for reply in replies if reply.client not in lost])
        assert (after.mean is not None) == learned


def test_what_hides_a_reply_is_as_likely_as_anything_else() -> None:
    numbers = torch.zeros(1 << 15, dtype=torch.int64)
    said = Said(range(4))
    hidden = said.members[1].hide("other", numbers, 8)
    counts = torch.bincount(hidden, minlength=256).double()
    assert float(((counts - 128) ** 2 / 128).sum()) < 380  # chi squared of 255: 255 on average, 23 its deviation
    again = Said(range(4)).members[1].hide("other", numbers, 8)
    assert not torch.equal(hidden, again)  # keys are new in every round
    assert not torch.equal(hidden, said.members[1].hide("another", numbers, 8))


def test_with_fewer_shares_than_the_threshold_nobody_learns_anything() -> None:
    with pytest.raises(TooFew):  # 5 of 11 neighbours are left, and 6 have to answer beside each
        Said(range(12), after_shares=range(6))
    said = Said(range(12), after_reply=range(6))
    with pytest.raises(TooFew, match="of 7 shares"):
        said.broker.secrets(said.answers)
    assert Said(range(12), after_keys=range(7)).replied == []  # nobody is called
    assert len(Said(range(12), after_keys=range(5)).replied) == 7


def test_a_client_answers_one_question_about_its_neighbours() -> None:
    said = Said(range(5))
    with pytest.raises(WireError, match="one question"):
        said.members[0].reveal(said.asked[0])
    with pytest.raises(WireError):
        said.broker.secrets({0: said.members[1].keys()})


def test_messages_that_were_changed_are_refused_or_too_few() -> None:
    chance = random.Random(0)
    said = Said(range(6))
    member = Member(0, said.circle)
    keys = said.broker.keys({i: m.keys() for i, m in said.members.items()})[0]
    halves: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (keys, lambda data: Member(0, said.circle).shares(data)),
        (said.asked[1], lambda data: _anew(said).reveal(data)),
        (said.answers[1], lambda data: said.broker.secrets({**said.answers, 1: data})),
    ]
    assert member.keys() != keys
    for data, half in halves:
        for _ in range(60):
            bad = bytearray(data)
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            try:
                half(bytes(bad))
            except (WireError, TooFew):
                continue
        for cut in range(0, len(data), 7):
            with pytest.raises((WireError, TooFew)):
                half(data[:cut])


def _anew(said: Said) -> Member:
    member = said.members[1]
    member.given = False
    return member


def test_a_share_that_another_client_sealed_is_no_share() -> None:
    key = agree(Pair.new().private, Pair.new().public, b"share")
    sealed = seal(key, b"text", b"about")
    assert unseal(key, sealed, b"about") == b"text"
    for other in ((key, sealed, b"another"), (key, sealed[:-1] + b"0", b"about"), (bytes(32), sealed, b"about")):
        with pytest.raises(WireError, match="sealed with another key"):
            unseal(*other)


# -- shares ----------------------------------------------------------------------


def product(a: int, b: int) -> int:
    """Of two polynomials over {0, 1}, modulo x^8 + x^4 + x^3 + x + 1."""
    whole = 0
    for bit in range(8):
        whole ^= (a << bit) * (b >> bit & 1)
    for bit in range(15, 7, -1):
        whole ^= (0x11B << (bit - 8)) * (whole >> bit & 1)
    return whole


def test_the_field_is_that_of_polynomials_modulo_x8_x4_x3_x_1() -> None:
    pairs = list(itertools.product(range(0, 256, 5), range(256)))
    a, b = (np.array(side, np.uint8) for side in zip(*pairs, strict=True))
    assert shamir.multiply(a, b).tolist() == [product(x, y) for x, y in pairs]


@pytest.mark.parametrize(("shares", "threshold"), [(1, 1), (5, 3), (31, 16), (255, 200)])
def test_any_threshold_of_the_shares_are_the_secret(shares: int, threshold: int) -> None:
    secret, chance = bytes(range(100, 132)), random.Random(1)
    made = dict(enumerate(shamir.split(secret, shares, threshold), 1))
    for _ in range(5):
        some = chance.sample(list(made), threshold)
        assert shamir.combine({n: made[n] for n in some}) == secret


def test_one_share_less_says_nothing_of_the_secret() -> None:
    first = shamir.split(b"x", 3, 2)[0]
    # With every value of the other share another secret: all are possible, and none more than another.
    assert len({shamir.combine({1: first, 2: bytes([value])}) for value in range(256)}) == 256
    seen = Counter(shamir.split(b"x", 3, 2)[1][0] for _ in range(4096))
    assert len(seen) > 250
    assert max(seen.values()) < 50  # 16 on average


def test_shares_that_cannot_be_are_refused() -> None:
    for shares, threshold in ((3, 4), (256, 2), (3, 0)):
        with pytest.raises(ValueError, match=f"{threshold} of {shares} shares"):
            shamir.split(b"x", shares, threshold)


# -- a run -----------------------------------------------------------------------

FEDAVG = "FedAvg(LocalSGD(0.1, batch=8), up={}, weights='uniform')"


def run(text: str, rounds: int = 3, secret: bool = True, **more: Any) -> tw.Result:
    problem = standard("digits", "mlp", 10)
    simulation = tw.Simulation(tw.parse(text), problem.model, problem.tasks, test=problem.test, sample=6, **more)
    if not secret:
        simulation.secured = None  # the server then sees what each client would have hidden
    with simulation:
        for _ in range(rounds):
            simulation.step()
        return simulation.result()


LINKS = ["SecureSum(clip=0.5)", "SecureSum(RandK(0.2), bits=12, clip=0.5)", "SecureSum(CountSketch(3, cols=400))"]


INNER = FEDAVG.format("SecureSum(clip=0.5)")
METHODS = [
    *map(FEDAVG.format, LINKS),
    FEDAVG.format("SecureSum(RandomBlock(8), clip=0.5)"),
    "Intrinsic(64, local=LocalSGD(0.1, batch=8), up=SecureSum(clip=8.0), weights='uniform')",
    f"FLSS({INNER}, rank=1, start=1, every=2, coefficients=SecureSum(clip=8.0))",
]


@pytest.mark.parametrize("text", METHODS)
def test_a_run_is_that_of_the_plain_sum_of_whole_numbers_to_the_bit(text: str) -> None:
    plain, first, again = (run(text, secret=secret, dropout=0.2) for secret in (False, True, True))
    for result in (first, again):
        assert dumps(tw.Params.of(result.module.named_parameters())) == dumps(
            tw.Params.of(plain.module.named_parameters())
        )
    assert [r["lost_replies"] for r in first.rounds] == [r["lost_replies"] for r in plain.rounds]
    assert first.accuracy > 0.5 or text not in (INNER, METHODS[-1])


def test_every_byte_of_keys_and_shares_is_in_the_ledger() -> None:
    plain, secret = (run(FEDAVG.format(LINKS[0]), 1, secret=secret) for secret in (False, True))
    # Up: two keys, a message of a row for each of 5 neighbours with two shares, sealed, and one with a share of each,
    # and of its own.
    head = len(dumps([torch.zeros(5, dtype=torch.int32), bytes(300)])) - 5 * 4 - 300
    rows = 64 + (head + 5 * (4 + 80)) + (head + 6 * (4 + 32))
    assert secret.bytes_up - plain.bytes_up == pytest.approx(6 * rows, abs=6 * 2 * 8)  # but for padding
    # Down: three questions, each behind a header, with 6 clients, 5 keys and 5 numbers; and shares beside the call.
    down = (head + 6 * 4) + (head + 5 * (4 + 64)) + (head + 5 * (4 + 80)) + (head + 5 * 4)
    header = len(MAGIC + dumps(["0" * 16, 1 << 61, 0, 10, 5, 1, "shares", bytes(0)]))
    assert secret.bytes_down - plain.bytes_down == pytest.approx(6 * (down + 3 * header), abs=6 * 4 * 12)


def test_every_trip_of_a_round_takes_its_time_on_the_simulated_clock() -> None:
    link, network = LINKS[0], tw.Network(mbit=(1.0,) * 9 + (0.5,), latency=0.25)
    plain, secret = (run(FEDAVG.format(link), 1, secret=keys, network=network) for keys in (False, True))
    more = secret.rounds[0]["clock"] - plain.rounds[0]["clock"]
    # Three trips more, each there and back, and a client's bytes of keys and shares at 1 or at .5 Mbit/s.
    paid = {c: sum(e.framing for e in secret.ledger if e.client == c) for c in range(10)}
    free = {c: sum(e.framing for e in plain.ledger if e.client == c) for c in range(10)}
    slowest = max((paid[c] - free[c]) * 8 / (0.5e6 if c == 9 else 1e6) for c in range(10))
    assert more == pytest.approx(3 * 2 * 0.25 + slowest, abs=1e-3)


def test_in_a_run_too_a_third_of_32_clients_drop_out_of_the_sum() -> None:
    def model(masked: bool) -> tuple[Tensor, int]:
        lost = [(list(range(32)), set(range(0, 32, 3)))]
        simulation = Chosen(tw.parse(FEDAVG.format("SecureSum(clip=0.5)")), mlp, blobs((6,) * 32), cohorts=lost, seed=5)
        if not masked:
            simulation.secured = None
        with simulation.pool:
            simulation.step()
        return simulation.result().params.flat, simulation.records[0]["lost_replies"]

    (secret, lost), (plain, _) = model(masked=True), model(masked=False)
    assert lost == 11
    assert torch.equal(secret, plain)


def test_a_round_of_which_too_few_are_left_changes_nothing() -> None:
    start, lost = run(FEDAVG.format(LINKS[0]), 0), run(FEDAVG.format(LINKS[0]), 2, dropout=0.9, record="layers")
    assert [r["lost_replies"] for r in lost.rounds] == [6, 6]
    assert any(r["clients"] for r in lost.rounds)
    assert not any("change" in r for r in lost.rounds)  # of replies that nobody learns
    assert dumps(tw.Params.of(lost.module.named_parameters())) == dumps(tw.Params.of(start.module.named_parameters()))


def test_a_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    problem, method = standard("digits", "mlp", 6), tw.parse(FEDAVG.format(LINKS[0]))
    whole = tw.simulate(method, problem.model, problem.tasks, rounds=4, test=problem.test)
    for rounds in (2, 4):
        parts = tw.simulate(
            method, problem.model, problem.tasks, rounds=rounds, test=problem.test, out=tmp_path, resume=rounds == 4
        )
    assert dumps(tw.Params.of(parts.module.named_parameters())) == dumps(tw.Params.of(whole.module.named_parameters()))
    assert parts.bytes_up == whole.bytes_up


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("FedAvg(up=SecureSum())", {}, "give weights='uniform'"),
        (FEDAVG.format("SecureSum()"), {"clip": 1.0}, "clip=1.0 looks at each reply"),
        (FEDAVG.format("SecureSum()"), {"clip": "auto"}, "clip='auto' looks at each reply"),
        (
            FEDAVG.format("SecureSum(most=6)"),
            {"privacy": tw.Privacy(1, 9)},
            "a larger clip or a larger most",
        ),
        (FEDAVG.format("SecureSum()"), {"aggregate": tw.Median()}, "looks at each reply"),
        (FEDAVG.format("SecureSum(most=4)"), {}, "6 clients take part in a round: give most=6"),
        (FEDAVG.format("Layerwise(SecureSum())"), {}, "the server would see update"),
        ("SCAFFOLD(up={'update': SecureSum()})", {}, "the server would see"),
        (f"FLSS({INNER}, rank=1, start=1)", {}, "the server would see coefficients of each client: give it"),
        ("FedAvg(down=SecureSum(), weights='uniform')", {}, "cannot carry a broadcast"),
    ],
)
def test_where_the_server_would_learn_more_it_is_refused(text: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises((CombinationError, ValueError), match=said):
        run(text, 1, **more)


def test_the_mean_as_a_rule_looks_at_no_reply() -> None:
    text = FEDAVG.format("SecureSum()")
    plain, ruled = run(text, 1), run(text, 1, aggregate=tw.Mean())
    assert torch.equal(ruled.params.flat, plain.params.flat)


def test_a_single_client_has_nobody_to_hide_among() -> None:
    problem = standard("digits", "mlp", 4)
    with pytest.raises(ValueError, match="two clients at least"):
        tw.simulate(tw.parse(FEDAVG.format("SecureSum()")), problem.model, problem.tasks, rounds=1, sample=1)
    with pytest.raises(CombinationError, match="ranks exchange no keys"):
        tw.ddp.Hook(tw.SecureSum())


@pytest.mark.slow
def test_a_secret_subspace_costs_half_as_much_again_as_a_plain_one_and_a_fiftieth_of_dense_secure_sums() -> None:
    """32 clients a round, every byte of keys and shares billed."""
    problem = standard("digits", "mlp", 32)

    def wide() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 4000), torch.nn.ReLU(), torch.nn.Linear(4000, 10)
        )

    def up(text: str) -> int:
        return tw.simulate(tw.parse(text), wide, problem.tasks, rounds=1, start="known").bytes_up

    local = "LocalSGD(0.1, batch=8, steps=1)"
    plain = up(f"Intrinsic(4096, local={local}, weights='uniform')")
    secret = up(f"Intrinsic(4096, local={local}, up=SecureSum(clip=8.0), weights='uniform')")
    dense = up(f"FedAvg({local}, up=SecureSum(), weights='uniform')")
    assert plain < secret <= 1.5 * plain
    assert secret <= dense / 50
