"""A federated run from beginning to end, in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..errors import require, require_whole
from ..run.folder import open_folder
from ..run.progress import live
from ..run.ranks import barrier, rank
from ..train.threads import one_thread
from .answers import Training
from .auto_run import Chosen, choices_in
from .result import Record, Result
from .setting import Setting
from .simulation import Simulation


def simulate(
    algorithm: Algorithm | Auto,
    model: nn.Module | Callable[[], nn.Module],
    tasks: Sequence[Any],
    rounds: int,
    setting: Setting = Setting(),
    *,
    test: Any = None,
    client_tests: Sequence[Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = False,
    cohort: Sequence[Sequence[int]] | None = None,
    train: Training | None = None,
    **fields: Any,
) -> Result:
    """Train ``model`` with a federated method and count every byte.

    ``algorithm`` is the method, or :class:`Auto`, which chooses one when the run begins.
    ``model`` is a module (copied, not changed) or a function that makes one under the seed. Frozen parameters are in
    memory once, beside those of a module that is given: what the function makes, all workers, the result and clients'
    own models share them, so copy a model before writing to its base (``merge_and_unload``).
    ``tasks`` are one task a client (a :class:`Task`, a Dataset, or a pair of tensors).
    ``setting`` is a :class:`Setting`: who takes part, the seed, the network and so on. Other keywords
    (``sample=10``, ``seed=1``) replace its fields.

    ``test`` and ``client_tests`` are evaluated every ``evaluate_every`` rounds and after the last. ``client_tests``
    are one a client, each evaluated with the client's own model where the method has some. Their mean, spread (standard
    deviation over clients), lowest tenth and worst are in the records as ``client_accuracy``,
    ``client_accuracy_spread``, ``_p10`` and ``_worst``, and each client's own in the folder's ``clients.jsonl``. Of a
    method with models of clients' own, ``client_accuracy_shared`` is the mean for the model that all share, and
    ``client_accuracy_before`` that for what the models of FT and Per-FedAvg are made of.

    ``cohort`` names the clients of each round, round 1 first, in place of those that are drawn: ``[[3, 7], [0, 3]]``
    is two rounds of two clients. With ``dropout`` some of them do not reply. The order of a client's examples is the
    field ``order`` of its task (:class:`Supervised`).

    ``train`` answers the method's requests in place of training: a function of a :class:`Local`, the client's task and
    a :class:`Key`, whose ``round`` and ``client`` say whose it is, that returns a :class:`Trained`. It is called for
    one client at a time, in the order of clients. ``Trained(request.x + update, steps, loss)`` gives an update.

    With ``states="disk"`` a client that is not sampled takes at most 2,000 bytes, its task included where that holds
    positions in examples all share, and a round as long as its cohort needs, however many clients there are
    (``benchmarks/scale.py`` measures both). Under ``torchrun`` (and an initialised process group) each rank trains
    its share of the cohort, with the same results.

    With ``out``, a folder, the run is recorded there and ``resume`` continues it, bit for
    bit, from its last checkpoint (every ``checkpoint_every`` rounds). A run with a ``cohort`` is resumed with one that
    agrees on the rounds that are made; of ``train`` only its name is recorded.

    Raises ``TypeError`` for a keyword that is no field, ``ValueError`` for a bad argument, :class:`NonFinite` when
    training diverges, and :class:`RunError` for a folder of another run.
    """
    setting = Setting.of(setting, fields)
    require_whole(rounds=rounds)
    require(rounds > 0, f"rounds={rounds}: it must be at least 1")
    require(out is not None or not resume, "resume=True needs the folder of the run: out=...")
    again = "the same call with resume=True"
    with one_thread(), open_folder(out, again, writes=rank() == 0) as folder, contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"test": test, "client_tests": client_tests, "out": out}
        options |= {"cohort": cohort, "train": train}
        if isinstance(algorithm, Auto):
            made = choices_in(folder) if resume else []
            run: Simulation = Chosen(algorithm, model, tasks, setting, made=made, **options)
        else:
            run = Simulation(algorithm, model, tasks, setting, **options)
        stack.enter_context(run)
        require(cohort is None or len(cohort) >= rounds, f"cohort names the clients of fewer than rounds={rounds}")
        if folder is not None:
            run.open(folder, resume)
        report = stack.enter_context(live(repr(algorithm), rounds)) if progress else None
        result = run.until(
            rounds,
            run.step,
            evaluate_every=setting.evaluate_every,
            checkpoint_every=setting.checkpoint_every,
            listeners=(on_round, report),
        )
        barrier()  # what rank 0 wrote is there for everyone
        return result
