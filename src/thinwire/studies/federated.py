"""Federated methods on one problem: ``thinwire run``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from ..algorithms import FedAvg
from ..algorithms.auto import Auto
from ..algorithms.base import Algorithm
from ..data import Split
from ..errors import ExpressionError, require
from ..expression import parse, settings
from ..federated.auto_run import without_noise
from ..federated.network import transfer
from ..federated.setting import Setting
from ..federated.simulate import simulate
from ..federated.simulation import Simulation
from ..hf.named import LENGTH, from_typed
from ..links import Dense
from ..optimizers import SGD
from ..problem import CLIENTS, Problem, custom, standard
from ..ranges import Count, Range
from .axes import BOTH, UP, Axis, clock, running
from .cells import (
    Column,
    Row,
    average,
    last_value,
    loss_text,
    mean,
    measure_of,
    megabytes_text,
    percent_text,
    seconds_text,
    share_text,
    short_expression,
)
from .client_columns import (
    FEW,
    OF_CLIENTS,
    OTHERS,
    client_cell,
    client_columns,
    client_value,
    each_client,
    has_client_tests,
    own_tests,
)
from .expressions import of_another_kind, option, parse_typed, setting_of, vocabulary_with
from .read import Arm, Record, RecordedRun, choices
from .study import Study, StudyRun, option_field

Below1 = Annotated[float, Range(lambda x: 0 <= x < 1, "is a share below 1")]
BESIDE = ("served", "predicted")  # what is tested beside the model that all share


def _seconds(run: RecordedRun) -> list[float]:
    """The seconds of the simulated network; without one those that the slowest client's bytes take at 10 Mbit/s."""
    simulated = clock(run)
    if simulated and simulated[-1] > 0:
        return simulated
    return list(np.cumsum([transfer(line["slowest_bytes"], 10) for line in run.rounds]))


@dataclass(frozen=True)
class Federated(Study):
    """A study of federated methods.

    - ``task``: ``my_module:make_task`` in place of data and model.
    - ``hf``: a model and its tokenizer, for the texts that ``data`` names; ``text_length``: tokens of each.
    - ``clients``, ``split``, ``holdout``, ``unseen``: who has what of the data.
    - ``rounds``: of each run. They may become more when the study goes on.
    - ``setting``: how a run goes. ``seeds`` take the place of its seed, which is that of the first run.
    """

    kind: ClassVar[str] = "federated"
    example: ClassVar[str] = "FedAvg()"
    noun: ClassVar[str] = "a federated method"
    asks: ClassVar[tuple[str, str]] = "methods", 'Methods, an argument each, e.g. "FedAvg()" "FedAvg(up=TopK(0.01))".'
    open: ClassVar[Mapping[str, tuple[type, str]]] = {
        "lr": (float, "Local learning rate, where an expression leaves it open."),
        "epochs": (float, "Local epochs, where an expression leaves them open."),
        "batch": (int, "Local batch size, where an expression leaves it open."),
    }
    settings: ClassVar[tuple[type, ...]] = (Setting,)
    may_change: ClassVar[tuple[str, ...]] = (*Study.may_change, "rounds")

    task: str | None = option_field(None, "my_module:make_task instead of --data and --model.")
    clients: Count | None = option_field(None, f"How many clients there are (default: {CLIENTS}, or one a site).")
    split: str | None = option_field(None, "IID(), Dirichlet(0.1), Shards(2), Natural()...")
    rounds: Count = option_field(50, "Rounds to train.")
    holdout: Below1 = option_field(0.0, "Share of each client's examples kept for its own test.")
    unseen: int | None = option_field(
        None, "A site that does not train: the test is then its own (retina, fashion_sites)."
    )
    setting: Setting = Setting()
    hf: str | None = option_field(
        None, "minilm, smollm2 or my_module:make_model: a Hugging Face model for a --data of texts."
    )
    text_length: Count | None = option_field(
        None, f"Tokens of a text, or of a packed row, with --hf (default: {LENGTH})."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for seed in self.seeds:
            replace(self.setting, seed=seed)  # which checks it
        object.__setattr__(self, "setting", replace(self.setting, seed=self.seeds[0]))
        require(self.unseen is None or self.unseen >= 0, f"--unseen {self.unseen}: sites are counted from 0")
        if self.task is None and self.clients is not None:
            self.setting.cohort(self.clients)
        self._split()
        beside = {"task": self.task, "model": self.model, "augment": self.augment, "unseen": self.unseen}
        other = next((name for name, value in beside.items() if value not in (None, ())), None)
        require(self.hf is None or other is None, f"--hf {self.hf} is a model and its texts: leave out --{other}")
        require(
            self.text_length is None or self.hf is not None,
            f"--text-length {self.text_length}: it is of texts, with --hf",
        )

    @staticmethod
    def method(text: str, use: Sequence[str] = (), defaults: Mapping[str, Any] | None = None) -> Algorithm | Auto:
        """A method of :mod:`thinwire.algorithms`, or one of the user's own; ``defaults`` are those of its training."""
        names = vocabulary_with(use)
        if other := of_another_kind(Federated.kind, text.partition("(")[0].strip(), names):
            raise ExpressionError(other)
        made = parse_typed(text, names, defaults)
        if isinstance(made, tuple):
            raise ExpressionError(f"{text} is several methods: put each into quotes of its own")
        if not isinstance(made, Algorithm | Auto):
            raise ExpressionError(f"{text} is not a method; try FedAvg(up={text})")
        return made

    def problem(self, seed: int) -> Problem:
        if self.task is not None:
            problem, count = custom(self.task, self.clients or CLIENTS, seed), self.clients
            made, how = len(problem.tasks), "leave --clients out, or let its function take `clients` and make so many"
            require(count in (None, made), f"--clients {count}: --task {self.task} made {made} of them; {how}")
            return problem
        held, augments = self.holdout, self.augments()
        if self.hf is not None:
            about = {"clients": self.clients, "split": self._split(), "seed": seed, "holdout": held}
            about["length"] = self.text_length or LENGTH
            return from_typed(self.hf, self.data, data_dir=self.data_dir, **about)
        return standard(
            self.data, self.model, self.clients, self._split(), seed, held, self.data_dir, augments, self.unseen
        )

    @classmethod
    def from_options(cls, methods: Sequence[str], options: Mapping[str, Any]) -> Study:
        """As :meth:`Study.from_options`; the fields of a setting are options too."""
        names = {field.name for field in fields(Setting)}
        setting = setting_of({name: value for name, value in options.items() if name in names})
        return super().from_options(methods, {**options, "setting": setting, "seed": setting.seed})

    def hints(self) -> Iterator[str]:
        for method in self.parse_methods():
            if self.rounds <= method.warm_up:
                start = f"{method.warms} in its first {method.warm_up} rounds, and --rounds is {self.rounds}"
                yield f"{method!r} {start}"

    def rehearse(self, method: Algorithm | Auto, problem: Problem) -> None:
        if isinstance(method, Auto):  # it is chosen when the run begins
            fits = method.seconds is None or self.setting.network is not None
            require(fits, f'{method!r}: seconds need the rates of links; give --network "Network(mbit=1)"')
            without_noise(method, self.setting)
            method = method.plain()
        setting, tests = replace(self.setting, workers=1, plan=None, states="memory", record=None), problem.client_tests
        run = Simulation(method, problem.model, problem.tasks, setting, test=problem.test, client_tests=tests)
        run.pool.close()

    def train(self, job: StudyRun, folder: Path) -> None:
        problem = job.problem
        simulate(
            job.method,
            problem.model,
            problem.tasks,
            self.rounds,
            replace(self.setting, seed=job.seed),
            test=problem.test,
            client_tests=problem.client_tests,
            out=folder,
            resume=True,
            on_round=job.on_record,
            progress=job.progress,
        )

    def title(self, about: Record) -> str:
        # A user's task may have made more clients, or fewer.
        return f"{self.task or self.data}, {about.get('clients', self.clients)} clients, {self.rounds} rounds"

    # -- what table, curves and report show ------------------------------------

    axes: ClassVar[Mapping[str, Axis]] = {
        "bytes_up": Axis(UP, "MB sent by clients"),
        "bytes_total": Axis(BOTH, "MB sent, both directions"),
        "floats_up": Axis(running("up_floats"), "millions of floats sent by clients"),
        "seconds": Axis(
            _seconds, "seconds on the simulated network", "seconds of the slowest client's bytes at 10 Mbit/s"
        ),
    }
    ways: ClassVar[Mapping[str, str]] = {
        "up_payload": "up, payload",
        "up_framing": "up, headers",
        "down_payload": "down, payload",
        "down_framing": "down, headers",
    }
    ways_said: ClassVar[str] = (
        "All bytes of a run, in the mean over seeds. Headers are what a message has around its payload."
    )
    absent: ClassVar[Mapping[str, tuple[str, str]]] = {
        "layers": ("", "Bytes by layer: `--record bytes` records them."),
        "clients": (
            "",
            "Accuracy by client: `--holdout 0.2` keeps a fifth of each client's examples for a test of its own.",
        ),
        "taking_part": ("", "Who took part: these runs have no ledger.jsonl."),
        "unsent": (
            "LUAR(",
            "Layers that LUAR did not send: `--record layers` or `--record bytes` records them.",
        ),
        "recycled": ("LBGM(", "Clients whose updates LBGM recycled: `--record looks` records them."),
    }
    least: ClassVar[tuple[str, ...]] = (
        *("M floats up", "own MB down", "own MB up", "s here", "s at 10", "s at 100", "best", "s at 1 Mbit/s"),
        *("up / FedAvg", "total / FedAvg", "lowest tenth"),
        *(f"client {client}" for client in reversed(range(FEW))),
    )
    notes: ClassVar[Mapping[str, str]] = {
        "own tests": "Own tests: the mean over clients of what each one's own model reaches on its own test, ± the "
        "standard deviation over clients.",
        "lowest tenth": "Lowest tenth and worst client: over the clients of a seed the 10th percentile and the lowest, "
        "in the mean over seeds.",
        OTHERS["shared"]: "Shared model: the mean over clients' own tests of the model that all share.",
        OTHERS["before"]: "Before adapting: that of what a client's own model is made of, before it is fine-tuned.",
        "own MB up": "Own MB: of MB up and down those of clients' own models, which the server mixes; the rest is "
        "shared.",
        "served": "Served: the model that the server keeps beside the trained one, such as an average.",
        "predicted": "Predicted: what the method makes of an example of no named client, such as by its selector.",
        "MB up": "MB are 10^6 bytes of what was really serialised, headers included, each broadcast once for every "
        "recipient.",
        "s at 1 Mbit/s": "Seconds at a rate are those that the slowest client's bytes take, both ways, with equal "
        "links and no computing.",
        "M floats up": "M floats up is the papers' own count (millions of 32-bit floats' worth of values; positions, "
        "masks and headers count nothing): not bytes.",
    }

    @classmethod
    def knows(cls, name: str, names: Mapping[str, type]) -> bool:
        return issubclass(names.get(name, object), Algorithm)

    @staticmethod
    def plain(expression: str) -> bool:
        """FedAvg with nothing compressed."""
        try:
            method = parse(expression)
        except ValueError:
            return False
        return isinstance(method, FedAvg) and (method.opt, method.up, method.down) == (SGD(1.0), Dense(), Dense())

    @staticmethod
    def row(arm: Arm) -> Row:
        slowest, measure = mean(arm, "slowest_bytes"), measure_of(arm)
        own = (name.replace("client", f"client_{measure}") for name in OF_CLIENTS)
        made = [{"seed": run.seed, **each} for run in arm.runs for each in choices(run)]
        perplexity = average(last_value(run, "perplexity") for run in arm.runs)
        return {
            **{name: average(last_value(run, name) for run in arm.runs) for name in own},
            **({"chosen": made} if made else {}),
            **({"perplexity": perplexity} if perplexity is not None else {}),
            **{kind: average(last_value(run, f"{kind}_{measure}") for run in arm.runs) for kind in BESIDE},
            "test_loss": average(last_value(run, "test_loss") for run in arm.runs),
            "by_client": each_client(arm, measure),
            "personal_up": _personal(arm, "up"),
            "personal_down": _personal(arm, "down"),
            "floats_up": mean(arm, "up_floats"),
            "network_seconds": {str(rate): slowest * 8 / (rate * 1e6) for rate in (1, 10, 100)},
            "clock": statistics.fmean(run.rounds[-1]["clock"] if run.rounds else 0.0 for run in arm.runs),
        }

    @staticmethod
    def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
        own: tuple[Column, ...] = (
            ("own tests", own_tests),
            ("lowest tenth", partial(client_cell, "client_p10")),
            ("worst client", partial(client_cell, "client_worst")),
            *(
                (title, partial(client_cell, f"client_{part}"))
                for part, title in OTHERS.items()
                if any(client_value(row, f"client_{part}") is not None for row in rows)
            ),
        )
        apart: tuple[Column, ...] = (
            ("own MB up", lambda row: megabytes_text(row["personal_up"])),
            ("own MB down", lambda row: megabytes_text(row["personal_down"])),
        )
        beside = [kind for kind in BESIDE if any(row[kind] is not None for row in rows)]
        loss: tuple[Column, ...] = (("test loss", lambda row: loss_text(row["test_loss"])),)
        only = all(row[row["measure"]] is None for row in rows) and any(row["test_loss"] is not None for row in rows)
        texts: tuple[Column, ...] = (("perplexity", lambda row: loss_text(row.get("perplexity"))),)
        return (
            *(loss if only else ()),
            *(texts if any("perplexity" in row for row in rows) else ()),
            *((kind, lambda row, kind=kind: share_text(row, row[kind])) for kind in beside),
            *((*own, *client_columns(rows)) if has_client_tests(rows) else ()),
            ("MB up", lambda row: megabytes_text(row["bytes_up"])),
            ("MB down", lambda row: megabytes_text(row["bytes_down"])),
            *(apart if any(row["personal_up"] or row["personal_down"] for row in rows) else ()),
            ("up / FedAvg", lambda row: percent_text(row["share_up"])),
            ("total / FedAvg", lambda row: percent_text(row["share_total"])),
            ("s at 1 Mbit/s", lambda row: seconds_text(row["network_seconds"]["1"])),
            ("s at 10", lambda row: seconds_text(row["network_seconds"]["10"])),
            ("s at 100", lambda row: seconds_text(row["network_seconds"]["100"])),
            ("s here", lambda row: seconds_text(row["seconds"])),
            ("M floats up", lambda row: f"{row['floats_up'] / 1e6:.3g}"),
        )

    @staticmethod
    def words(about: Record, study: Record) -> list[tuple[str, str | None]]:
        clients, sample = about.get("clients"), about.get("sample")
        some = "all of them take part in each round" if sample == clients else f"{sample} of them take part in a round"
        split = f", with shares of the data by {study['split']}" if study.get("split") else ""
        dropout, holdout = about.get("dropout") or 0, study.get("holdout") or 0
        return [
            ("Clients", f"{clients}{split}; {some}" if clients else None),
            ("Rounds", str(study["rounds"]) if study.get("rounds") else None),
            (
                "Lost replies",
                f"a client that takes part does not answer with probability {dropout:g}" if dropout else None,
            ),
            ("Network", short_expression(about.get("network")) or "none simulated"),
            ("Privacy", short_expression(about.get("privacy"))),
            ("Clipping", _clip(about.get("clip"))),
            ("Aggregation", short_expression(about.get("aggregate"))),
            ("Left out", None if about.get("expel") is None else f"clients far off in {about['expel']} rounds on end"),
            ("Buffer", short_expression(about.get("buffer"))),
            ("Sampling", short_expression(about.get("sampler"))),
            ("Attack", short_expression(about.get("attack"))),
            (
                "Own tests",
                f"{100 * holdout:g} % of each client's examples, which it does not train on" if holdout else None,
            ),
        ]

    @staticmethod
    def scale(runs: Sequence[RecordedRun], study: Record) -> list[str]:
        about, rounds = runs[0].about, study.get("rounds") or max(run.length for run in runs)
        return [*([f"{about['clients']} clients"] if "clients" in about else []), f"{rounds} rounds"]

    # -- going on -------------------------------------------------------------

    def but(self, **changed: Any) -> Study:
        """As :meth:`Study.but`; ``rounds`` can only grow, and ``workers`` are the setting's."""
        rounds, workers = changed.get("rounds"), changed.pop("workers", None)
        require(
            rounds is None or rounds >= self.rounds,
            f"--rounds {rounds}: this study has {self.rounds} already; it can only grow",
        )
        study = self if workers is None else replace(self, setting=self.setting.but({"workers": workers}))
        return Study.but(study, **changed)

    def _split(self) -> Split | None:
        return None if self.split is None else option("--split", self.split, Split, settings(Split), "Dirichlet(0.1)")


def _personal(arm: Arm, way: str) -> float:
    """The bytes up or down of clients' own models, the mean over seeds: 0 of most methods."""
    return statistics.fmean(sum(r.get(f"{way}_personal", 0) for r in run.rounds) for run in arm.runs)


def _clip(clip: Any) -> str | None:
    """The bound of replies of a federated run."""
    if clip is None:
        return None
    return "replies to twice their median norm of five rounds" if clip == "auto" else f"replies to a norm of {clip:g}"
