"""The command line: ``thinwire run``, ``resume``, ``report``, ``methods``, ``look``, ``pipeline run`` and others."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from .analysis.commands import look
from .errors import ThinwireError
from .report.blame import expected, theirs

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(look, name="look")
pipeline = typer.Typer(no_args_is_help=True)
app.add_typer(pipeline, name="pipeline", help="Pipelined training: compare schedules, and plan one.")
INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells have it

Methods = Annotated[list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "FedAvg(up=TopK(0.01))".')]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on a line of its own.")]
Use = Annotated[list[str] | None, typer.Option("--use", help="A module with methods or links of your own. Repeatable.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Local learning rate, where an expression leaves it open.")]
Epochs = Annotated[float | None, typer.Option(help="Local epochs, where an expression leaves them open.")]
Batch = Annotated[int | None, typer.Option(help="Local batch size, where an expression leaves it open.")]
Seeds = Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: the table has deviations.")]
Out = Annotated[Path, typer.Option(help="A new folder for everything.")]
LogTo = Annotated[
    list[str] | None,
    typer.Option("--log", help="Show rounds in tensorboard, wandb (offline) or mlflow while they train. Repeatable."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the study that is in --out.")]


def _version(wanted: bool) -> bool:
    if wanted:
        from .version import code_version

        typer.echo(f"thinwire {code_version()}")
        raise typer.Exit
    return wanted


@app.callback()
def thinwire(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Compare federated, data-parallel and pipelined training on real data, counting every byte."""


def _command(
    name: str, options: Callable[[], list[Any]], within: typer.Typer = app
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that has ``options`` besides the parameters of its function, which takes their values as ``**given``.

    They are made when the command is called: until then nobody waits for torch. ``given["typed"]`` has the names of
    all that were typed, and not left at their defaults.
    """

    class WithOptions(TyperCommand):
        whole = False

        def get_params(self, ctx: Any) -> Any:
            if not self.whole:
                self.params, self.whole = [*self.params, *options()], True
            return super().get_params(ctx)

        def invoke(self, ctx: Any) -> Any:
            ctx.params["typed"] = {name for name in ctx.params if ctx.get_parameter_source(name).name == "COMMANDLINE"}
            return super().invoke(ctx)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return within.command(name, cls=WithOptions)(function)

    return register


def _options(cls: type, *names: str) -> list[Any]:
    """The options that some fields of a configuration are: these, or all that have a help text.

    Name, type, default and help text are the field's own. Typer makes them of a function that has them as parameters.
    """

    def function() -> None: ...

    hints, made = get_type_hints(cls), []
    for field in fields(cls):
        if "help" not in field.metadata or (names and field.name not in names):
            continue
        several = get_origin(hints[field.name]) is tuple
        kinds = (hints[field.name], *get_args(hints[field.name]))
        kind: Any = list[str] if several else next((kind for kind in (bool, int, float) if kind in kinds), str)
        default = None if several else field.default
        words = [f"--{field.name.replace('_', '-')}"] if kind is bool else []  # and no --no-...
        hinted: Any = Annotated[
            kind | None if default is None else kind, typer.Option(*words, help=field.metadata["help"])
        ]
        made.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hinted))
    function.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    holder = typer.Typer(add_completion=False)
    holder.command()(function)
    return list(typer.main.get_command(holder).params)


def _of_run() -> list[Any]:
    from .compare import Federated
    from .run.setting import Setting

    return [*_options(Federated), *_options(Setting)]


def _of_predict() -> list[Any]:
    from .compare import Federated
    from .run.setting import Setting

    known = _options(Federated, "use", "data", "model", "task", "clients", "split", "rounds", "data_dir")
    return [*known, *_options(Setting, "sample", "seed", "start")]


def _of_alternatives() -> list[Any]:
    from .compare import Federated
    from .run.setting import Setting

    of = ("use", "data", "model", "augment", "task", "clients", "split", "rounds", "unseen", "data_dir")
    return [*_options(Federated, *of), *_options(Setting, "sample", "seed", "workers", "device")]


def _of_resume() -> list[Any]:
    from .run.setting import Setting

    return _options(Setting, "workers")


def _of_ddp_sim() -> list[Any]:
    from .compare import DataParallel

    return _options(DataParallel)


def _of_pipeline() -> list[Any]:
    from .compare import Pipelined

    return _options(Pipelined)


def _of_plan() -> list[Any]:
    from .compare import Pipelined

    return _options(Pipelined, "use", "data", "model", "data_dir", "batch", "parts", "device", "mbit", "latency")


def _study(cls: type, methods: list[str], given: dict[str, Any], local: dict[str, Any] | None = None) -> Any:
    """The study of one kind that was typed; ``local`` is what expressions leave open."""
    held = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    held = {field.name: held[field.name] for field in fields(cls) if held.get(field.name) is not None}
    return cls(cls.resolved(methods, held.get("use", ()), local), **held)  # type: ignore[attr-defined]


def _as_option(said: str) -> str:
    """What is said of a setting's field, said of its option: `dropout=1.5` becomes `--dropout 1.5`."""
    from .run.setting import Setting

    found = re.match(r"(?:Setting\()?(\w+)=('[^']*'|\S+?)\)?: (.*)", said)
    if found is None or found[1] not in {field.name for field in fields(Setting)}:
        return said
    name, value, why = found.groups()
    return f"--{name.replace('_', '-')} {value.strip(chr(39))}: {why.replace(' or None is expected', ' is expected')}"


@_command("run", _of_run)
def run(
    methods: Methods,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    seeds: Seeds = None,
    out: Out = Path("runs/latest"),
    overwrite: Overwrite = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Train one model with several federated methods on the same split; table, logs and plots in --out."""
    from .run.ranks import barrier, rank

    study = _federated(methods, given, {"lr": lr, "epochs": epochs, "batch": batch}, seeds)
    problem = study.check()
    _refuse_other_clients(study, given["typed"], len(problem.tasks))
    told = _told(log, out)
    if rank() == 0:
        for method in study.parsed():
            if study.rounds <= method.warm_up:
                start = f"saves nothing in its first {method.warm_up} rounds, and --rounds is {study.rounds}"
                typer.echo(f"note: {method!r} {start}", err=True)
        study.claim(out, overwrite)
    barrier()
    _finish(study, out, as_json, told, {study.seeds[0]: problem})


def _federated(methods: list[str], given: dict[str, Any], local: dict[str, Any], seeds: str | None = None) -> Any:
    """The federated study that was typed."""
    from .compare.federated import Federated, settled
    from .run.setting import Setting

    if given["task"] is not None:
        for name in ("data", "model", "split", "holdout", "unseen", "augment", "data_dir"):
            if name in given["typed"]:
                option, why = f"--{name.replace('_', '-')}", "which makes model, data and clients' shares itself"
                raise ValueError(f"{option} is not used with --task {given['task']}, {why}: leave {option} out")
    setting = settled({field.name: given[field.name] for field in fields(Setting) if field.name in given})
    run_seeds = (setting.seed,) if seeds is None else _seeds(seeds)
    return _study(Federated, methods, {**given, "setting": setting, "seeds": run_seeds}, local)


@_command("resume", _of_resume)
def resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a study that was stopped.")],
    rounds: Annotated[int | None, typer.Option(help="Train to this many rounds in all.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data sets lie now.")] = None,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Continue a study of any kind from its checkpoints, bit for bit."""
    from .compare import load

    study = load(out).but(rounds=rounds, data_dir=data_dir, workers=given["workers"])
    _finish(study, out, as_json, _told(log, out))


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Studies, or single runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for all plots (default: the first DIR), or one file for the overview: plots.svg."),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="png, svg, pdf...: of every file in a folder.", show_default="png")
    ] = None,
    title: Annotated[str | None, typer.Option(help="A line above the curves.")] = None,
    size: Annotated[str | None, typer.Option(help="Width and height in inches, e.g. 8x5.")] = None,
    as_json: Json = False,
) -> None:
    """Curves of accuracy and loss against rounds or steps, bytes up, all bytes and simulated seconds."""
    from .report.plots import plot as draw
    from .report.read import arms

    files = draw(arms(folders), out or folders[0], form, title, _inches(size))
    for file in files:
        typer.echo(str(file))
    _print_json(as_json, {"files": [str(file) for file in files]})


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Studies, or single runs.")],
    out: Annotated[Path | None, typer.Option(help="The file (default: report.html in the first DIR).")] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Instead of a file: a page for this machine that follows a run.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0 is any free one.")] = 8642,
    as_json: Json = False,
) -> None:
    """One page of HTML that needs no network: the table, curves, bytes, clients and complete expressions."""
    if not serve:
        from .report import html

        file = html.write(folders, out or folders[0] / "report.html")
        typer.echo(str(file))
        _print_json(as_json, {"file": str(file)})
        return
    if out is not None:
        raise ValueError(f"--out {out} is not used with --serve, which writes no file: leave one of the two out")
    from .report.serve import HERE, server

    with server(folders, port) as made:
        typer.echo(f"http://{HERE}:{made.server_port} (Ctrl-C ends it)")
        made.serve_forever()


@app.command("table")
def tabulate(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Studies, or single runs.")],
    latex: Annotated[bool, typer.Option("--latex", help="A tabular of LaTeX, with booktabs' rules.")] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Comma-separated values, not rounded: bytes, shares, seconds.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table of Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """The table of studies that are there, on the terminal or as text for a paper, a spreadsheet, a page."""
    from .report import table
    from .report.html import title
    from .report.read import arms

    forms = {"--latex": (latex, table.latex), "--csv": (csv, table.csv), "--markdown": (markdown, table.markdown)}
    wanted = {name: form for name, (asked, form) in forms.items() if asked}
    if len(wanted) > 1:
        raise ValueError(f"{' and '.join(wanted)} are two formats: leave one out")
    found = arms(folders)
    rows = table.rows(found)
    for form in wanted.values():
        typer.echo(form(rows), nl=False)
    if not wanted:
        table.show(rows, title(found, folders))
    _print_json(as_json, {"rows": rows})


@app.command()
def methods(
    what_with_what: Annotated[
        bool, typer.Option("--matrix", help="Instead: which go together, and why others do not.")
    ] = False,
    use: Use = None,
    as_json: Json = False,
) -> None:
    """Every public name: what it is, how it is called, where it comes from."""
    if what_with_what:
        if use:
            raise ValueError("--matrix tries thinwire's own methods and links alone: leave out --matrix or --use")
        from .analysis import matrix

        pairs = matrix.matrix()
        if not as_json:
            matrix.show(pairs)
        _print_json(as_json, {"pairs": [pair._asdict() for pair in pairs]})
        return
    from .analysis.catalogue import catalogue, show

    found = catalogue(use or ())
    if not as_json:
        show(found)
    _print_json(as_json, {"methods": [entry._asdict() for entry in found]})


@_command("predict", _of_predict)
def predict(
    methods: Methods,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, both ways.")] = 10.0,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Bytes and seconds of a federated run before it is trained, from messages that are really encoded."""
    from .analysis.predict import predict as foresee
    from .analysis.predict import show

    study = _federated(methods, given, {"lr": lr, "epochs": epochs, "batch": batch})
    rounds, sample, seed, start = study.rounds, study.setting.sample, study.setting.seed, study.setting.start
    problem = study.problem(seed)
    _refuse_other_clients(study, given["typed"], len(problem.tasks))
    found = [foresee(method, problem, rounds, sample, mbit, seed, start) for method in study.parsed()]
    show(found, rounds, sample or len(problem.tasks), mbit)
    _print_json(as_json, {"predictions": [vars(p) for p in found]})


@_command("plan", _of_alternatives)
def plan(
    methods: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Methods to show besides those that always are.")
    ] = None,
    budget: Annotated[float, typer.Option(help="The share of FedAvg's bytes that Auto may take.")] = 0.01,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, from the server.")] = 1.0,
    mbit_up: Annotated[float | None, typer.Option(help="Its rate to the server (default: the same).")] = None,
    target: Annotated[float | None, typer.Option(help="An accuracy to reach, e.g. 0.77.")] = None,
    rehearse: Annotated[int, typer.Option(help="Rounds that each alternative really trains.")] = 3,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """What methods would cost on slow links: bytes, seconds, accuracy after some rounds, and what to type."""
    from .analysis import alternatives

    auto = f"Auto({budget})"
    study = _federated([auto, *(methods or ())], given, {"lr": lr, "epochs": epochs, "batch": batch})
    problem = study.problem(study.setting.seed)
    _refuse_other_clients(study, given["typed"], len(problem.tasks))
    names = [p.name for p in _of_alternatives() if p.name in given["typed"] and p.name not in ("workers", "device")]
    words = [word for name in names for word in _typed(name, given[name])]
    found = alternatives.plan(
        study,
        problem,
        auto=study.parsed()[0],
        mbit=mbit,
        mbit_up=mbit_up,
        target=target,
        rehearse=rehearse,
        typed=words,
    )
    if not as_json:
        alternatives.show(found)
    _print_json(as_json, found.values())


def _typed(name: str, value: Any) -> list[str]:
    """An option as it was typed: several times, where it has several values."""
    several = value if isinstance(value, list | tuple) else [value]
    return [word for one in several for word in (f"--{name.replace('_', '-')}", str(one))]


@_command("ddp-sim", _of_ddp_sim)
def ddp_sim(
    methods: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "DEF(ratio=64)" "Hook(Dense())".')
    ],
    decay: Annotated[str | None, typer.Option(help="A tenth of the rate after these shares, e.g. 0.5,0.75.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model and of batches.")] = 0,
    seeds: Seeds = None,
    out: Out = Path("runs/ddp"),
    overwrite: Overwrite = False,
    resume: Annotated[bool, typer.Option("--resume", help="Train what --out does not have yet.")] = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Data-parallel methods by logical workers of one process, exactly; table, logs and plots in --out."""
    from .compare import DataParallel

    run_seeds = (seed,) if seeds is None else _seeds(seeds)
    study = _study(DataParallel, methods, {**given, "decay": _decay(decay), "seeds": run_seeds})
    problems = None if resume else {study.seeds[0]: study.check()}
    told = _told(log, out)
    study.claim(out, overwrite, resume)
    _finish(study, out, as_json, told, problems)


Cut = Annotated[
    str | None,
    typer.Option(help="The places in the chain of modules where parts begin, e.g. 4,9 (default: by measured seconds)."),
]


@_command("run", _of_pipeline, pipeline)
def pipeline_run(
    schedules: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Schedules, e.g. "BPK()" "DSP((1,1,0),(4,2,0))" "1F1B(4)".')
    ],
    cut: Cut = None,
    rates: Annotated[str | None, typer.Option(help="A factor of the rate for each part, e.g. 0.5,0.7,1.")] = None,
    forward: Annotated[
        str | None, typer.Option(help="Seconds of a batch at each part, forward, e.g. 0.02,0.03,0.02 (else measured).")
    ] = None,
    backward: Annotated[str | None, typer.Option(help="Seconds of a batch at each part, back (else measured).")] = None,
    decay: Annotated[str | None, typer.Option(help="A tenth of the rate after these shares, e.g. 0.5,0.75.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model and of batches.")] = 0,
    seeds: Seeds = None,
    out: Out = Path("runs/pipeline"),
    overwrite: Overwrite = False,
    log: LogTo = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Train one model under several schedules; table, logs and plots in --out. Under torchrun each rank has a part."""
    from .compare import Pipelined
    from .run.ranks import barrier, rank

    listed = {
        "cut": tuple(int(place) for place in _numbers("cut", cut, "places in the chain", "4,9", int)),
        "rates": _numbers("rates", rates, "a factor for each part", "0.5,0.7,1"),
        "forward": _numbers("forward", forward, "seconds for each part", "0.02,0.03,0.02"),
        "backward": _numbers("backward", backward, "seconds for each part", "0.02,0.03,0.02"),
        "decay": _decay(decay),
        "seeds": (seed,) if seeds is None else _seeds(seeds),
    }
    study = _study(Pipelined, schedules, {**given, **listed})
    problem = study.problem(study.seeds[0])
    study = study.settled(problem)
    for method in study.parsed():
        study.rehearse(method, problem)
    told = _told(log, out)
    if rank() == 0:
        study.claim(out, overwrite)
    barrier()
    _finish(study, out, as_json, told, {study.seeds[0]: problem})


@_command("plan", _of_plan, pipeline)
def pipeline_plan(
    schedules: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPR]", help="Schedules to show besides those that always are.")
    ] = None,
    cut: Cut = None,
    micro: Annotated[int, typer.Option(help="Micro-batches of GPipe, 1F1B and PipeDream-2BW.")] = 4,
    shape: Annotated[
        str | None, typer.Option(help="In place of --data: an example's shape, 3,32,32 or, of texts, 80.")
    ] = None,
    classes: Annotated[int, typer.Option(help="With --shape: classes, or different ids of texts.")] = 10,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Measure a model's parts, and say how long a batch takes under each schedule, and which delays hide the links."""
    from .analysis import planner

    if shape is not None and "data" in given["typed"]:
        raise ValueError(f"--shape {shape} is not used with --data: leave one of the two out")
    sizes = tuple(int(size) for size in _numbers("shape", shape, "numbers of an example", "3,32,32", int))
    places = tuple(int(place) for place in _numbers("cut", cut, "places in the chain", "4,9", int))
    names = ("data", "model", "data_dir", "batch", "parts", "device", "mbit", "latency")
    asked = {name: given[name] for name in names}
    found = planner.plan(
        schedules or (), given["use"] or (), micro=micro, shape=sizes, classes=classes, cut=places, **asked
    )
    if not as_json:
        planner.show(found)
    _print_json(as_json, found.values())


def _decay(text: str | None) -> tuple[float, ...]:
    return _numbers("decay", text, "shares of the steps", "0.5,0.75")


def _numbers(
    option: str, text: str | None, what: str, example: str, kind: Callable[[str], float] = float
) -> tuple[float, ...]:
    """Numbers that were typed with commas between them."""
    try:
        return tuple(kind(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--{option} {text}: {what} separated by commas, such as {example}") from None


def _refuse_other_clients(study: Any, typed: set[str], made: int) -> None:
    """Of a user's own task."""
    if study.task is not None and "clients" in typed and study.clients != made:
        how = "leave --clients out, or let its function take `clients` and make so many"
        raise ValueError(f"--clients {study.clients}: --task {study.task} made {made} of them; {how}")


def _inches(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        width, height = (float(word) for word in text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (0 < width <= 100 and 0 < height <= 100):
        raise ValueError(f"--size {text}: width x height in inches, such as 8x5")
    return width, height


def _told(tools: list[str] | None, out: Path) -> Any:
    """The listener that hands rounds on to other tools. What is wrong with it is said before a folder is taken."""
    from .report.loggers import Log
    from .run.ranks import rank

    return Log((tools or ()) if rank() == 0 else (), out)


def _finish(study: Any, out: Path, as_json: bool, told: Any, problems: dict[int, Any] | None = None) -> None:
    """Run what is left; then table and plots from what is on disk. A method that diverged is an error at the end."""
    from .report import table
    from .report.plots import plot as draw
    from .report.read import arms
    from .run.folder import roomy
    from .run.ranks import rank

    speaks = rank() == 0
    watched = sys.stderr.isatty() and speaks
    try:
        with roomy(out, f"`thinwire resume {out}`"), told:
            heard: list[Callable[[str, dict[str, Any]], None]] = [_choice] if speaks else []
            heard += [_log] if speaks and not watched else []
            heard += [told] if told.tools else []
            failures = study.run(out, _each(heard), watched, problems)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; `thinwire resume {out}` continues from the last checkpoint", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not speaks:
        return
    if failures and not any(out.rglob("rounds.jsonl")):
        raise ThinwireError("; ".join(failures))
    found = arms([out])
    rows = table.rows(found)
    table.show(rows, study.title(found[0].runs[0].about))
    table.write(rows, out, shlex.join(["thinwire", *sys.argv[1:]]))
    files = draw(found, out)
    typer.echo(f"table and plots: {out}/table.md, {', '.join(file.name for file in files)}")
    _print_json(as_json, {"out": str(out), "rows": rows, "failures": failures})
    if failures:
        raise ThinwireError("; ".join(failures))


def _each(heard: list[Callable[[str, dict[str, Any]], None]]) -> Callable[[str, dict[str, Any]], None] | None:
    """One listener that tells several."""

    def tell(name: str, record: dict[str, Any]) -> None:
        for one in heard:
            one(name, record)

    return tell if heard else None


def _choice(name: str, record: dict[str, Any]) -> None:
    """What a run chose, as it is typed, and why."""
    if (made := record.get("chosen")) is not None:
        how, why = f'"{made["expression"]}" --start {made["start"]}', "".join(f"\n  {one}" for one in made["why"])
        typer.echo(f"{name} from round {made['round']}: {how}{why}", err=True)


def _log(name: str, record: dict[str, Any]) -> None:
    """A line now and then, where nobody watches: of every tenth round, and of all evaluations of steps."""
    unit = "step" if "step" in record else "round"
    if unit == "step" or record["round"] % 10 == 0 or record["round"] == 1:
        measures = [name for name in ("accuracy", "dice") if record.get(name) is not None]
        shown = "".join(f" {name} {record[name]:.3f}" for name in measures)
        typer.echo(f"{name} {unit} {record[unit]}{shown} up {record['up_bytes']} B", err=True)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"--seeds {text}: numbers separated by commas, such as 0,1,2") from None


def _print_json(wanted: bool, value: Any) -> None:
    if wanted:
        sys.stdout.write(json.dumps(value) + "\n")


def main() -> None:
    """The entry point: every expected failure is one line on standard error, and the exit code 2.

    An exception in a module of the user's is shown as Python would, without our part of it; any other is a bug of
    ours and shown as it is: both have the exit code 1. A command line that cannot be read is answered with how it is
    written, by typer.
    """
    try:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            from .run.ranks import join

            join()
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        code = _failed(error)
    sys.exit(code or 0)


def _failed(error: Exception) -> int:
    """Say what went wrong; returns the exit code. Raises what is a bug."""
    # Of which class typer's own are has changed with its versions; that they show themselves has not.
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        return int(error.exit_code)
    own = theirs(error)
    if own is not None:
        print(own, end="", file=sys.stderr)
        return 1
    if not expected(error):
        raise error
    said = error.strerror if isinstance(error, OSError) and error.filename is None and error.strerror else error
    print(f"error: {_as_option(str(said))}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
