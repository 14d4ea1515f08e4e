"""SoftPull: models that are pulled to each other at the server, and what reaches one client alone."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

import thinwire as tw
from problems import PAIR, TWICE, Point, approx, handwriting, mlp, normed
from thinwire import EF21, FedAvg, FedBN, Half, Key, LocalSGD, Params, Simulation, SoftPull, TopK
from thinwire.algorithms.softpull import SiteModel, middle, pull
from thinwire.errors import CombinationError, WireError
from thinwire.federated.ledger import Ledger
from thinwire.federated.letters import read_letter, write_letter
from thinwire.federated.messages import Form

LOCAL = LocalSGD(0.1, batch=16)


def vectors(*rows: list[float]) -> list[Params]:
    return [Params.of([("w", torch.tensor(row, dtype=torch.float64))]) for row in rows]


def made(method: tw.Algorithm, cohorts: list[list[int]], model=normed) -> Simulation:  # type: ignore[no-untyped-def]
    run = Simulation(method, model, handwriting()[0][:3], workers=1, plan="each", test=handwriting()[1])
    with run.pool:
        for cohort in cohorts:
            run.step(cohort=cohort, evaluate=False)
    return run


# -- equation (3-11) ----------------------------------------------------------------------


def test_models_are_pulled_as_numpy_pulls_them() -> None:
    draws = np.random.default_rng(0).standard_normal((6, 500))
    found = torch.stack([w.flat for w in pull(vectors(*draws.tolist()), 0.7)]).numpy()
    replay = np.stack([0.7 * w + 0.3 * np.delete(draws, k, 0).sum(0) / 5 for k, w in enumerate(draws)])
    assert np.abs(found - replay).max() < 1e-14


def test_all_models_are_pulled_at_once_from_what_they_were() -> None:
    # 0.5 * 1 + 0.25 * (2 + 6), 0.5 * 2 + 0.25 * (1 + 6), 0.5 * 6 + 0.25 * (1 + 2)
    assert [w.flat.item() for w in pull(vectors([1.0], [2.0], [6.0]), 0.5)] == [2.5, 2.75, 3.75]


def test_pulling_to_one_share_each_is_the_plain_mean() -> None:
    models = vectors([1.0, -3.0], [2.0, 5.0], [6.0, 4.0], [3.0, 2.0])
    assert [w.flat.tolist() for w in pull(models, 0.25)] == [[3.0, 2.0]] * 4
    assert middle(models).flat.tolist() == [3.0, 2.0]


def test_copies_of_one_model_stay_that_model_to_the_bit() -> None:
    w = Params.of([("w", torch.randn(1000, generator=torch.Generator().manual_seed(1)))])
    assert all(torch.equal(found.flat, w.flat) for found in pull([w] * 7, 0.3))


def test_a_model_without_others_stays_as_it_is() -> None:
    (w,) = vectors([1.0, 2.0])
    assert pull([w], 0.2) == [w]


# V = [sgd(k, W[k]) for k in (0, 1)]; W = [0.7 * V[k] + 0.3 * V[1 - k] for k in (0, 1)]
# where sgd(k, w) twice does w -= 0.1 * [1, 2] * (w - t[k]), t = [[1, 0], [1, 1]]
def test_two_rounds_are_those_worked_out_by_hand() -> None:
    run = Simulation(SoftPull(FedAvg(TWICE), lam=0.7), Point(0.5, -1.0), PAIR, workers=1, plan="each")
    with run.pool:
        for models in HAND:
            run.step()
            assert [run.whose(client)[0].flat.tolist() for client in (0, 1)] == approx(models)
            assert run.whose(None)[0].flat.tolist() == approx(np.mean(models, 0).tolist())


HAND = [[[0.595, -0.532], [0.595, -0.388]], [[0.67195, -0.204832], [0.67195, -0.023968]]]


def test_lam_of_one_is_each_clients_own_training_bit_for_bit() -> None:
    cohorts = [[0, 1, 2]] * 3
    together = made(SoftPull(FedAvg(LOCAL), lam=1.0), cohorts)
    for client in range(3):
        alone = made(FedAvg(LOCAL, weights="uniform"), [[client]] * 3)  # other weights round in their mean of one
        for one, other in zip(together.whose(client), alone.whose(None), strict=True):  # the model, the norm statistics
            assert one is not None
            assert other is not None
            assert torch.equal(one.flat, other.flat)


def test_lam_of_one_share_each_is_fedavg_with_uniform_weights() -> None:
    soft = made(SoftPull(FedAvg(LOCAL), lam=1 / 3), [[0, 1, 2]] * 2)
    mean = made(FedAvg(LOCAL, weights="uniform"), [[0, 1, 2]] * 2)
    for client in range(3):
        for one, other in zip(soft.whose(client), mean.whose(None), strict=True):
            assert one is not None
            assert other is not None
            assert torch.allclose(one.flat, other.flat, atol=1e-6)


def test_a_client_that_is_away_is_pulled_too_and_gets_the_newest() -> None:
    run = made(SoftPull(FedAvg(LOCAL), lam=0.6), [[0, 1], [0]])
    assert [one.client for one in run.server.held] == [0, 1]
    before = made(SoftPull(FedAvg(LOCAL), lam=0.6), [[0, 1]])
    assert not torch.equal(run.whose(1)[0].flat, before.whose(1)[0].flat)
    run.publish()
    assert run.private is not None
    blob = run.call_to(1)[0].pieces[-1].blob
    message, _ = read_letter(run.private, blob, run.states.get(1).own.rx, Key(0, 3, 1), anew=False)
    assert torch.equal(message.inner.x.flat, run.whose(1)[0].flat)


# -- what a client alone is sent ----------------------------------------------------------


def test_only_those_who_are_sampled_are_sent_a_model_and_it_is_billed() -> None:
    run = made(SoftPull(FedAvg(LOCAL)), [[0, 2], [1]], mlp)
    down = [(entry.round, entry.client, entry.payload) for entry in run.ledger.of("down")]
    # 910 parameters: 3640 bytes, and 12 of structure, 1 of no statistics; an empty broadcast is 3
    assert down == [(1, 0, SENT), (1, 2, SENT), (2, 1, SENT)]


SENT = 3655


def test_the_bytes_of_clients_own_models_are_told_apart_from_shared_ones() -> None:
    run = made(SoftPull(FedAvg(LOCAL)), [[0, 2], [1]], mlp)
    down = [(entry.payload, entry.personal) for entry in run.ledger.of("down")]
    assert down == [(SENT, SENT - 3)] * 3  # 3: the broadcast, which is empty
    for entry in run.ledger.of("up"):
        assert 3640 <= entry.personal < entry.payload < 3700
    assert [record["down_personal"] for record in run.records] == [2 * (SENT - 3), SENT - 3]
    assert sum(record["up_personal"] for record in run.records) == sum(entry.personal for entry in run.ledger.of("up"))
    assert list(run.ledger) == list(Ledger.parse(run.ledger.lines(1) + run.ledger.lines(2)))
    shared = made(FedAvg(LOCAL), [[0]], mlp)
    assert not any("personal" in text for text in (shared.ledger.lines(1), str(shared.records)))


def test_a_link_with_a_memory_sends_all_once_and_then_differences() -> None:
    run = made(SoftPull(FedAvg(LOCAL), personal=EF21(TopK(0.1))), [[0, 1]] * 3, mlp)
    payload = [entry.payload for entry in run.ledger.of("down") if entry.client == 0]
    assert payload[0] >= 3640
    assert max(payload[1:]) < 600
    ends = run.states.get(0)
    server, client = (end[0].seen if hasattr(end[0], "seen") else end[0] for end in (ends.tx, ends.own.rx))
    assert tw.dumps(server) == tw.dumps(client if not hasattr(client, "seen") else client.seen)


def test_what_is_lost_moves_neither_end() -> None:
    method = SoftPull(FedAvg(LOCAL), personal=EF21(TopK(0.1)))
    run = made(method, [[0, 1]])
    before = tw.dumps(run.states.get(0))
    run.publish()
    run.call_to(0)  # and nobody answers
    assert tw.dumps(run.states.get(0)) == before


@pytest.mark.parametrize("link", [tw.Dense(), Half(), EF21(TopK(0.3))], ids=repr)
def test_hostile_bytes_for_one_client_are_refused(link: tw.links.Link) -> None:
    blank = SiteModel(Params.of([("a", torch.randn(8)), ("b", torch.randn(3))]), Params.of([("v", torch.ones(2))]))
    form, draw = Form.of(blank, link, "personal"), torch.Generator().manual_seed(3)
    for anew in (False, True):
        tx, rx = form.open()
        blob = write_letter(form, blank, tx, Key(1, 1, 0), anew).blob
        seen, _ = read_letter(form, blob, rx, Key(1, 1, 0), anew)
        assert torch.equal(seen.buffers.flat, blank.buffers.flat)
        for _ in range(60):
            bad = bytearray(blob)
            place = int(torch.randint(len(bad), (), generator=draw))
            bad[place] ^= 1 << int(torch.randint(8, (), generator=draw))
            for data in (bytes(bad), blob[:place]):
                with contextlib.suppress(WireError):  # nothing else is raised
                    read_letter(form, data, rx, Key(1, 1, 0), anew)


def test_a_message_without_some_layers_opens_both_ends_alike() -> None:
    whole = SiteModel(Params.of([("a", torch.randn(8)), ("b", torch.randn(3))]), None)
    form = Form.of(whole, EF21(TopK(0.5)), "personal")
    partly = SiteModel(whole.x.only(["b"]) * 2, None)
    letter = write_letter(form, partly, form.open()[0], Key(1, 1, 0), anew=True)
    seen, rx = read_letter(form, letter.blob, form.open()[1], Key(1, 1, 0), anew=True)
    assert torch.equal(seen.x.flat, partly.x.flat)
    for number in (2, 3):
        letter = write_letter(form, whole, letter.tx, Key(1, number, 0), anew=False)
        seen, rx = read_letter(form, letter.blob, rx, Key(1, number, 0), anew=False)
    assert torch.equal(seen.x.flat, whole.x.flat)  # half and half of the difference


# -- what does not go together ------------------------------------------------------------


def test_a_single_client_is_refused() -> None:
    with pytest.raises(ValueError, match="towards the mean of the others', and there is one client"):
        Simulation(SoftPull(), mlp, handwriting()[0][:1])


def test_a_mask_cannot_carry_a_model() -> None:
    with pytest.raises(CombinationError, match=r"personal=TopK\(0.1\) cannot carry a message to one client"):
        Simulation(SoftPull(personal=TopK(0.1)), mlp, handwriting()[0][:2])


def test_statistics_that_stay_at_home_are_not_sent() -> None:
    run = made(SoftPull(FedAvg(LOCAL, buffers="local")), [[0, 1]])
    assert run.server.held[0].buffers is None
    assert run.whose(0)[1] is not None  # the client's own
    with pytest.raises(CombinationError, match="clients have models of their own already"):
        SoftPull(FedBN())
