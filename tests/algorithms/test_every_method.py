"""What holds of every federated method: columns over the rows of ``tables.METHODS``.

Each expression is trained once, straight through (``Straight``), and what can be is asserted against that run. Another
process makes it (``made``), without checked annotations, which take most of a run's time. Runs that go on, and others
that the tests here train, have them.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import thinwire as tw
from problems import approx, assert_same_run, handwriting, mlp, normed, path, trained
from processes import called
from tables import METHODS, Method
from thinwire import Key, Params, Simulation
from thinwire.federated.stream import Parcel, catch_up
from thinwire.studies.matrix import _example
from tiers import tiers

LEFT_OPEN = {"lr": 0.5, "batch": 16, "epochs": 2}  # where an expression says nothing
NEUTRAL = {"lr": 0.1, "batch": 16}  # the same, of identities
ROUNDS, STOP = 4, 2
ROOMS = (tw.algorithms,)


def rows() -> list[Method]:
    """Those of the table, and one for each method that has none."""
    named = {method.name for method in METHODS}
    public = {name: getattr(room, name) for room in ROOMS for name in room.__all__}
    written = {name: cls for name, cls in tw.expression.vocabulary().items() if issubclass(cls, tw.Algorithm)}
    missing = {name: cls for name, cls in public.items() if name in written and name not in named}
    return [*METHODS, *(Method(name, (repr(_example(cls, tw.Algorithm)),)) for name, cls in missing.items())]


ROWS = rows()
TRAINED = [expression for row in ROWS for expression in row.trained]
FIRST = [row.trained[0] for row in ROWS]
SAME = {title: pair for row in ROWS for title, pair in row.same.items()}
BY_HAND = {expression: points for row in ROWS for expression, points in row.by_hand.items()}
REFUSED = {expression: said for row in ROWS for expression, said in row.refused.items()}
PAYLOAD = {expression: sizes for row in ROWS for expression, sizes in row.payload.items()}

each_expression = pytest.mark.parametrize(
    "expression", [parameter for row in ROWS for parameter in tiers(row.trained, fast=1, slow=2)]
)


# -- one straight run of each -------------------------------------------------------------


def options(method: tw.Algorithm) -> dict[str, Any]:
    own = {"client_tests": handwriting()[0]} if method.personal_models else {}
    return {"sample": 4, "dropout": 0.2, "seed": 7, "test": handwriting()[1], **own}


class Straight(NamedTuple):
    """A run of ``ROUNDS`` rounds, and what was seen on its way."""

    rounds: list[dict[str, Any]]
    model: dict[str, Tensor]
    ledger: list[Any]
    written: list[int]  # rounds in which someone wrote into a state that was there before
    changed: list[str]  # states that are not the same after bytes and back
    astray: list[tuple[int, int]]  # rounds, and versions from which some way to catch up led elsewhere


def trained_straight(expression: str) -> Straight:
    """Train with one worker, client by client; look at all states before and after each round."""
    method, tasks = tw.parse(expression, LEFT_OPEN), handwriting()[0]
    run = Simulation(method, normed, tasks, workers=1, plan="each", **options(method))
    written, changed, astray = list[int](), list[str](), list[tuple[int, int]]()
    views = [run.stream.view]
    with run.pool:
        for _ in range(ROUNDS):
            held = {"server": run.server, "view": run.stream.view, "clients": dict(run.states.ends), "x": run.buffers}
            before = [tw.dumps(state) for state in held.values()]
            run.step()
            written += [run.round] * ([tw.dumps(state) for state in held.values()] != before)
            astray += [(run.round, version) for version, view in enumerate(views) if not caught_up(run, version, view)]
            views.append(run.stream.view)
        clients = {f"client {client}": ends for client, ends in run.states.ends.items()}
        for name, state in {"server": run.server, "view": run.stream.view, **clients}.items():
            data = tw.dumps(state)
            same = tw.dumps(tw.restore(tw.loads(data, finite=False), state)) == data
            changed += [] if same else [name]
    result = run.result()
    return Straight(*about(result), written, changed, astray)


def about(result: tw.Result) -> tuple[list[dict[str, Any]], dict[str, Tensor], list[Any]]:
    """All of a result but the time it took."""
    return [record | {"seconds": 0} for record in result.rounds], result.module.state_dict(), list(result.ledger)


def caught_up(run: Simulation, version: int, view: Any) -> bool:
    """Whether every way from an older view ends, bit for bit, in the newest one."""
    stream, expected = run.stream, tw.dumps(run.stream.view)
    ways = [stream.parcel(version), Parcel(True, [stream.snapshot()])]
    if version >= stream.since:
        ways.append(Parcel(False, [message for message in stream.log if message.version > version]))
    found = (catch_up(run.algorithm, stream.form, view, parcel, Key(run.seed)) for parcel in ways)
    return all(tw.dumps(view) == expected for view in found)


def until(number: int, folder: Path, rounds: int, **more: Any) -> tw.Result:
    """Train the expression of this number in a folder of its own, from where it stopped."""
    method, tasks = tw.parse(TRAINED[number], LEFT_OPEN), handwriting()[0]
    return tw.simulate(method, normed, tasks, rounds, plan="each", out=folder / str(number), **options(method), **more)


def make(folder: Path, numbers: list[int]) -> None:
    """The straight runs of some expressions, and the first rounds of all of them again, by two workers."""
    for number in numbers:
        found: Straight | Exception
        try:
            found = trained_straight(TRAINED[number])
            until(number, folder, STOP, workers=2)
        except Exception as error:  # that of the test that asks for it
            found = error
        (folder / f"{number}.pickle").write_bytes(pickle.dumps(found))


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what another process made, of those expressions that are tested."""
    tested = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = {params["expression"] for params in tested if params.get("expression") in TRAINED}
    folder, numbers = tmp_path_factory.mktemp("made"), [i for i, text in enumerate(TRAINED) if text in asked]
    done = called(make, folder, numbers)
    assert done.returncode == 0, done.stderr
    return folder


@functools.cache
def loaded(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


@pytest.fixture
def straight(expression: str, made: Path) -> Straight:
    """What was seen of an expression's run. Raises what its training raised."""
    found = loaded(made / f"{TRAINED.index(expression)}.pickle")
    if isinstance(found, Exception):
        raise found
    return Straight(*found)


@each_expression
def test_training_lowers_the_loss(straight: Straight) -> None:
    last = straight.rounds[-1]
    assert last.get("client_loss", last["test_loss"]) < 2.1  # ln 10 = 2.303 is knowing nothing


@each_expression
def test_nobody_writes_into_a_state(straight: Straight) -> None:
    assert straight.written == []


@each_expression
def test_states_survive_the_wire(straight: Straight) -> None:
    assert straight.changed == []


@each_expression
def test_a_client_that_was_away_ends_with_the_view_of_those_that_were_not(straight: Straight) -> None:
    assert straight.astray == []


@each_expression
def test_records_are_sums_of_the_ledger(straight: Straight) -> None:
    for record in straight.rounds:
        for direction in ("up", "down"):
            entries = [e for e in straight.ledger if (e.round, e.direction) == (record["round"], direction)]
            assert record[f"{direction}_payload"] == sum(e.payload for e in entries)
            assert record[f"{direction}_framing"] == sum(e.framing for e in entries)
            assert record[f"{direction}_bytes"] == sum(e.payload + e.framing for e in entries)
            assert record[f"{direction}_floats"] == sum(e.floats for e in entries)
        assert [e.round for e in straight.ledger if e.direction == "down"].count(record["round"]) == 4  # the cohort


@each_expression
def test_the_name_of_a_method_can_be_typed_back(expression: str) -> None:
    method = tw.parse(expression, LEFT_OPEN)
    assert tw.parse(repr(method)) == method
    assert tw.parse(tw.complete(method)) == method
    assert repr(tw.parse(tw.complete(method))) == repr(method)


# -- resume -------------------------------------------------------------------------------


@each_expression
def test_a_run_that_goes_on_in_a_new_process_is_the_run_that_never_stopped(
    expression: str, straight: Straight, made: Path
) -> None:
    # Its first rounds were trained a second time, by two workers: training is repeated bit for bit.
    rounds, model, ledger = about(until(TRAINED.index(expression), made, ROUNDS, workers=1, resume=True))
    assert rounds == straight.rounds
    assert ledger == straight.ledger
    assert model.keys() == straight.model.keys()
    assert [name for name, tensor in model.items() if not torch.equal(tensor, straight.model[name])] == []


# -- who writes where ---------------------------------------------------------------------


def tensors(x: Any) -> Iterator[Tensor]:
    """Those in a state, a message, a request for training or an optional other thing."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Params):
        yield x.flat
    elif isinstance(x, tuple | list):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, dict):
        for part in x.values():
            yield from tensors(part)


@each_expression
def test_nobody_writes_into_what_an_algorithm_was_given_or_gave(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a state shares memory with is never written to, by the algorithm, its links or the runner.
    method, held = tw.parse(expression, LEFT_OPEN), list[tuple[str, Tensor, Tensor]]()

    def hold(where: str, *values: Any) -> None:
        held.extend((where, tensor, tensor.clone()) for value in values for tensor in tensors(value))

    def watched(cls: type, name: str) -> Any:
        inner = getattr(cls, name)

        def call(self: Any, *given: Any) -> Any:
            found = inner(self, *given)
            hold(f"{cls.__name__}.{name}", given, found)
            return found

        def client(self: Any, *given: Any) -> Any:
            hold(f"{cls.__name__}.client", given)
            work, trained = inner(self, *given), None
            while True:
                try:
                    request = next(work) if trained is None else work.send(trained)
                except StopIteration as done:
                    hold(f"{cls.__name__}.client", done.value)
                    return done.value
                trained = yield request
                hold(f"{cls.__name__}.client", request, trained)

        return client if name == "client" else call

    algorithm: Any = method
    classes = set[type]()
    while isinstance(algorithm, tw.Algorithm):
        classes.add(type(algorithm))
        algorithm = getattr(algorithm, "inner", None)
    for cls in classes:
        for name in ("init", "broadcast", "see", "client", "sent", "server", "model"):
            monkeypatch.setattr(cls, name, watched(cls, name))
    trained(method, rounds=3, plan="together" if "FLSS" not in expression else "each")
    assert len(held) > 75
    assert [where for where, tensor, before in held if not torch.equal(tensor, before)] == []


# -- a start that is known ------------------------------------------------------------------


@pytest.mark.parametrize("expression", FIRST)
def test_a_start_that_is_known_is_sent_to_nobody_and_moves_no_model(expression: str) -> None:
    method = tw.parse(expression, LEFT_OPEN)
    about = options(method) | {"sample": 2, "dropout": 0.3, "workers": 1, "plan": "each", "evaluate_every": 2}
    runs = [tw.simulate(method, mlp, handwriting()[0], 2, start=start, **about) for start in ("sent", "known")]
    sent, known = runs
    assert known.params.flat.equal(sent.params.flat)
    assert known.rounds[0]["down_payload"] == 0
    assert known.rounds[1]["down_bytes"] <= sent.rounds[1]["down_bytes"]


# -- identities ---------------------------------------------------------------------------


@functools.cache
def run_of(expression: str, model: Any) -> tw.Result:
    return trained(tw.parse(expression, NEUTRAL), model)


@pytest.mark.parametrize("model", tiers([normed, mlp], slow=1, name=lambda model: model.__name__))
@pytest.mark.parametrize("title", SAME)
def test_a_method_at_its_neutral_setting_is_its_parent(title: str, model: Any) -> None:
    special, parent = SAME[title]
    assert_same_run(run_of(special, model), run_of(parent, model))


@pytest.mark.parametrize("expression", BY_HAND)
def test_rounds_on_two_quadratics_are_those_worked_out_by_hand(expression: str) -> None:
    points = BY_HAND[expression]
    assert path(tw.parse(expression), len(points)) == approx(points)


# -- bytes --------------------------------------------------------------------------------


# 910 parameters: 3640 bytes, and 12 of structure and padding; twice as many are 7280 and 20.
@pytest.mark.parametrize("expression", PAYLOAD)
def test_what_every_client_sends_and_is_sent_is_so_many_bytes(expression: str) -> None:
    up, down = PAYLOAD[expression]
    for entry in trained(tw.parse(expression, NEUTRAL), sample=None).ledger:
        assert entry.payload == (up if entry.direction == "up" else down)


# -- what clients may have, what is refused -------------------------------------------------


@pytest.mark.parametrize("expression", FIRST)
def test_a_client_with_one_label_or_a_last_batch_of_one_is_trained(expression: str) -> None:
    data = handwriting()[0][0]
    ones = (data.targets == 1).nonzero().flatten()
    uneven = [replace(data, indices=ones[:20]), replace(data, indices=torch.arange(17))]
    theirs = replace(data, indices=torch.cat([ones[:20], torch.arange(17)]))
    method = tw.parse(expression, {"lr": 0.1, "batch": 16})
    own = {"client_tests": uneven} if method.personal_models else {"test": theirs}
    result = tw.simulate(method, normed, uneven, 4, workers=1, plan="each", **own)
    last = result.rounds[-1]
    assert last.get("client_loss", last.get("test_loss")) < 2.2  # ln 10 = 2.303 is knowing nothing


@pytest.mark.parametrize("expression", FIRST)
def test_a_client_without_examples_is_refused_by_its_number(expression: str) -> None:
    tasks = handwriting()[0]
    with pytest.raises(ValueError, match="client 1 has no examples: choose another split or fewer clients"):
        tw.simulate(tw.parse(expression), mlp, [tasks[0], replace(tasks[0], indices=torch.arange(0))], 1)


@pytest.mark.parametrize("expression", REFUSED)
def test_a_setting_without_meaning_is_refused_in_one_line(expression: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the whole message is compared
        trained(tw.parse(expression), rounds=1)
    parts = map(re.escape, REFUSED[expression].split("..."))
    assert re.fullmatch(".*".join(parts), str(caught.value)), caught.value


def test_every_row_is_of_a_method_that_there_is() -> None:
    assert {row.name for row in ROWS} <= {name for room in ROOMS for name in room.__all__}
    assert all(re.search(rf"\b{row.name}\(", expression) for row in ROWS for expression in row.trained)
    assert len(set(TRAINED)) == len(TRAINED)
    assert len(SAME) == sum(len(row.same) for row in ROWS)  # no title hides another row's identity
