"""The command line: ``thinwire run``, ``resume``, ``plot``, ``methods``, ``predict``, ``ddp-sim``."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from .blame import expected, theirs
from .errors import ThinwireError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
INTERRUPTED = 130  # the exit code of what Ctrl-C ended, as shells have it

Methods = Annotated[list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "FedAvg(up=TopK(0.01))".')]
Json = Annotated[bool, typer.Option("--json", help="End with one JSON object on a line of its own.")]
DATA = (
    "digits, mnist, fashion_mnist, emnist_letters, cifar10, shakespeare, ag_news, sst2, personachat, personachat_words"
)
Data = Annotated[str, typer.Option(help=f"{DATA}.")]
MaybeData = Annotated[str | None, typer.Option("--data", help=f"{DATA}.", show_default="digits")]
Model = Annotated[str | None, typer.Option(help="A name from thinwire.models; by default one that suits the data.")]
TaskOption = Annotated[str | None, typer.Option("--task", help="my_module:make_task instead of --data and --model.")]
Use = Annotated[list[str] | None, typer.Option("--use", help="A module with methods or links of your own. Repeatable.")]
MaybeClients = Annotated[int | None, typer.Option("--clients", help="How many clients there are.", show_default="20")]
SplitOption = Annotated[str | None, typer.Option("--split", help="IID(), Dirichlet(0.1), Shards(2), Natural()...")]
AugmentOption = Annotated[
    list[str] | None, typer.Option("--augment", help="Crop(4), Flip(): pictures changed batch by batch. Repeatable.")
]
Rounds = Annotated[int, typer.Option(help="Rounds to train.")]
Seed = Annotated[int, typer.Option(help="Seed of split, model, sampling and batches.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Local learning rate, where an expression leaves it open.")]
Epochs = Annotated[float | None, typer.Option(help="Local epochs, where an expression leaves them open.")]
Batch = Annotated[int | None, typer.Option(help="Local batch size, where an expression leaves it open.")]
DataDir = Annotated[Path | None, typer.Option(help="Where data sets lie (else THINWIRE_DATA, a cache, or a download).")]


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
    """Compare federated training methods on real data, counting every byte."""


def _settled(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command of which some fields of :class:`thinwire.Setting` are options too: these, or all.

    Name, type, default and help text are the field's own. They are read when the command is called: until then nobody
    waits for torch. The function takes their values as ``**setting``.
    """

    class Settled(TyperCommand):
        settled = False

        def get_params(self, ctx: Any) -> Any:
            if not self.settled:
                self.params, self.settled = [*self.params, *_options(names)], True
            return super().get_params(ctx)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return app.command(cls=Settled)(function)

    return register


def _fields(names: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a setting that have these names, or all."""
    from dataclasses import fields

    from .run.setting import Setting

    return {field.name: field for field in fields(Setting) if not names or field.name in names}


def _options(names: Sequence[str]) -> list[Any]:
    """The options of these fields, made by typer of a function that has them as parameters."""
    from .run.setting import Setting

    def function() -> None: ...

    hints, made = get_type_hints(Setting), []
    for name, field in _fields(names).items():
        number = next((kind for kind in (int, float) if kind in (hints[name], *get_args(hints[name]))), str)
        kind: Any = number | None if field.default is None else number
        hinted: Any = Annotated[kind, typer.Option(help=field.metadata["help"])]
        made.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hinted))
    function.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in made}
    holder = typer.Typer(add_completion=False)
    holder.command()(function)
    return list(typer.main.get_command(holder).params)


def _as_option(said: str) -> str:
    """What is said of a setting's field, said of its option: `dropout=1.5` becomes `--dropout 1.5`."""
    found = re.match(r"(?:Setting\()?(\w+)=('[^']*'|\S+?)\)?: (.*)", said)
    if found is None or found[1] not in _fields():
        return said
    name, value, why = found.groups()
    return f"--{name.replace('_', '-')} {value.strip(chr(39))}: {why.replace(' or None is expected', ' is expected')}"


@_settled()
def run(
    methods: Methods,
    data: MaybeData = None,
    model: Model = None,
    task: TaskOption = None,
    use: Use = None,
    clients: MaybeClients = None,
    split: SplitOption = None,
    augment: AugmentOption = None,
    rounds: Rounds = 50,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: the table has deviations.")] = None,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    out: Annotated[Path, typer.Option(help="A new folder for everything.")] = Path("runs/latest"),
    overwrite: Annotated[bool, typer.Option(help="Replace the comparison that is in --out.")] = False,
    holdout: Annotated[float, typer.Option(help="Share of each client's examples kept for its own test.")] = 0.0,
    data_dir: DataDir = None,
    as_json: Json = False,
    **setting: Any,
) -> None:
    """Train one model with several methods on the same split; table, logs and plots in --out."""
    from .compare.federated import Comparison, resolved, settled
    from .run.ranks import barrier, rank

    unused = {"--split": split, "--holdout": holdout, "--augment": augment}
    _refuse_unused(task, {"--data": data, "--model": model, **unused, "--data-dir": data_dir})
    comparison = Comparison(
        resolved(methods, {"lr": lr, "epochs": epochs, "batch": batch}, use or ()),
        use=tuple(use or ()),
        data=data or "digits",
        model=model,
        task=task,
        clients=CLIENTS if clients is None else clients,
        split=split,
        augment=tuple(augment or ()),
        rounds=rounds,
        seeds=_seeds(seeds) if seeds is not None else (setting["seed"],),
        holdout=holdout,
        setting=settled(setting),
        data_dir=None if data_dir is None else str(data_dir),
    )
    problem = comparison.check()
    _refuse_other_clients(task, clients, len(problem.tasks))
    if rank() == 0:
        for algorithm in comparison.algorithms():
            if rounds <= algorithm.warm_up:
                start = f"saves nothing in its first {algorithm.warm_up} rounds, and --rounds is {rounds}"
                typer.echo(f"note: {algorithm!r} {start}", err=True)
        comparison.start(out, overwrite)
    barrier()
    _finish(comparison, out, as_json, {comparison.seeds[0]: problem})


@_settled("workers")
def resume(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The --out of a comparison that was stopped.")],
    rounds: Annotated[int | None, typer.Option(help="Train to this many rounds in all.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    **setting: Any,
) -> None:
    """Continue a comparison from its checkpoints, bit for bit."""
    from dataclasses import replace

    from .compare.federated import Comparison

    comparison = Comparison.load(out)
    if rounds is not None:
        if rounds < comparison.rounds:
            raise ValueError(f"--rounds {rounds}: this comparison has {comparison.rounds} already; it can only grow")
        comparison = replace(comparison, rounds=rounds)
    if setting["workers"] is not None:
        comparison = replace(comparison, setting=comparison.setting.but(setting))
    if data_dir is not None:
        comparison = replace(comparison, data_dir=str(data_dir))
    _finish(comparison, out, as_json)


@app.command()
def plot(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Comparisons, or single runs.")],
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
    """Curves of accuracy and loss against rounds, bytes up, all bytes and simulated seconds."""
    from .report.plots import plot as draw
    from .report.read import arms

    files = draw(arms(folders), out or folders[0], form, title, _inches(size))
    for file in files:
        typer.echo(str(file))
    _print_json(as_json, {"files": [str(file) for file in files]})


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


@_settled("sample", "seed")
def predict(
    methods: Methods,
    data: MaybeData = None,
    model: Model = None,
    task: TaskOption = None,
    use: Use = None,
    clients: MaybeClients = None,
    split: SplitOption = None,
    rounds: Rounds = 50,
    lr: Rate = None,
    epochs: Epochs = None,
    batch: Batch = None,
    mbit: Annotated[float, typer.Option(help="Rate of every client's link, Mbit/s, both ways.")] = 10.0,
    data_dir: DataDir = None,
    as_json: Json = False,
    **setting: Any,
) -> None:
    """Bytes and seconds of a run before it is trained, from messages that are really encoded."""
    from .analysis.predict import predict as foresee
    from .analysis.predict import show
    from .compare.federated import Comparison, resolved, settled

    _refuse_unused(task, {"--data": data, "--model": model, "--split": split, "--data-dir": data_dir})
    where = None if data_dir is None else str(data_dir)
    comparison = Comparison(
        resolved(methods, {"lr": lr, "epochs": epochs, "batch": batch}, use or ()),
        use=tuple(use or ()),
        data=data or "digits",
        model=model,
        task=task,
        clients=CLIENTS if clients is None else clients,
        split=split,
        rounds=rounds,
        seeds=(setting["seed"],),
        setting=settled(setting),
        data_dir=where,
    )
    sample, seed = setting["sample"], setting["seed"]
    problem = comparison.problem(seed)
    _refuse_other_clients(task, clients, len(problem.tasks))
    found = [foresee(a, problem, rounds, sample, mbit, seed) for a in comparison.algorithms()]
    show(found, rounds, sample or len(problem.tasks), mbit)
    _print_json(as_json, {"predictions": [vars(p) for p in found]})


@app.command("ddp-sim")
def ddp_sim(
    methods: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Methods, e.g. "DEF(ratio=64)" "Hook(Dense())".')
    ],
    use: Use = None,
    data: Data = "digits",
    model: Model = None,
    workers: Annotated[int, typer.Option(help="Logical workers.")] = 16,
    batch: Annotated[int, typer.Option(help="Examples a worker takes in a step.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps to train.")] = 1000,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Of each worker's SGD.")] = 0.9,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False,
    adamw: Annotated[bool, typer.Option("--adamw", help="AdamW in place of SGD.")] = False,
    weight_decay: Annotated[float, typer.Option(help="Weight decay.")] = 0.0,
    decay: Annotated[str | None, typer.Option(help="A tenth of the rate after these shares, e.g. 0.5,0.75.")] = None,
    augment: AugmentOption = None,
    seed: Seed = 0,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: the table has deviations.")] = None,
    evaluate_every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 100,
    device: Annotated[str, typer.Option(help="Where models train: cpu, cuda, cuda:1.")] = "cpu",
    out: Annotated[Path, typer.Option(help="A new folder for everything.")] = Path("runs/ddp"),
    resume: Annotated[bool, typer.Option("--resume", help="Train what --out does not have yet.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Data-parallel methods by logical workers of one process, exactly; table and records in --out."""
    from .compare import data_parallel as compare
    from .config import complete

    study = compare.Study(
        tuple(complete(compare.method(text, use or ())) for text in methods),
        use=tuple(use or ()),
        data=data,
        model=model,
        workers=workers,
        steps=steps,
        batch=batch,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        adamw=adamw,
        decay=_shares(decay),
        augment=tuple(augment or ()),
        seeds=_seeds(seeds) if seeds is not None else (seed,),
        evaluate_every=evaluate_every,
        device=device,
        data_dir=None if data_dir is None else str(data_dir),
    )
    study.claim(out, resume)
    try:
        failures = study.run(out, _log_step)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; the same with --resume --out {out} trains what is left", err=True)
        raise typer.Exit(INTERRUPTED) from None
    rows = study.rows(out)
    if rows:
        compare.show(rows, f"{data}, {workers} workers of {batch} examples, {steps} steps")
        command = shlex.join(["thinwire", *sys.argv[1:]])
        (out / "table.md").write_text(f"{compare.markdown(rows)}\n```\n{command}\n```\n")
    _print_json(as_json, {"out": str(out), "rows": rows, "failures": failures})
    if failures:
        raise ThinwireError("; ".join(failures))


def _log_step(name: str, record: dict[str, Any]) -> None:
    shown = "" if record.get("accuracy") is None else f" accuracy {record['accuracy']:.3f}"
    typer.echo(f"{name} step {record['step']} loss {record['loss']:.3f}{shown} {record['bytes']} B", err=True)


def _shares(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise ValueError(f"--decay {text}: shares of the steps separated by commas, such as 0.5,0.75") from None


CLIENTS = 20  # where --clients is not given


def _refuse_unused(task: str | None, given: dict[str, Any]) -> None:
    """Of a user's own task thinwire chooses nothing that these options say."""
    for option, value in given.items():
        if task is not None and value:
            said = "which makes model, data and clients' shares itself"
            raise ValueError(f"{option} is not used with --task {task}, {said}: leave {option} out")


def _refuse_other_clients(task: str | None, asked: int | None, made: int) -> None:
    if task is not None and asked is not None and asked != made:
        how = "leave --clients out, or let its function take `clients` and make so many"
        raise ValueError(f"--clients {asked}: --task {task} made {made} of them; {how}")


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


def _finish(comparison: Any, out: Path, as_json: bool, problems: dict[int, Any] | None = None) -> None:
    """Run what is left; then table and plots from what is on disk. A method that diverged is an error at the end."""
    from .report import table
    from .report.plots import plot as draw
    from .report.read import arms
    from .run.folder import roomy
    from .run.ranks import rank

    speaks = rank() == 0
    watched = sys.stderr.isatty() and speaks
    try:
        with roomy(out, f"`thinwire resume {out}`"):
            _, failures = comparison.run(out, watched, _log if speaks and not watched else None, problems)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; `thinwire resume {out}` continues from the last checkpoint", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if not speaks:
        return
    if failures and not any(out.rglob("rounds.jsonl")):
        raise ThinwireError("; ".join(failures))
    found = arms([out])
    rows = table.rows(found)
    clients = found[0].runs[0].clients  # of a user's task there may be more or fewer than --clients
    table.show(rows, f"{comparison.task or comparison.data}, {clients} clients, {comparison.rounds} rounds")
    table.write(rows, out, shlex.join(["thinwire", *sys.argv[1:]]))
    files = draw(found, out)
    typer.echo(f"table and plots: {out}/table.md, {', '.join(file.name for file in files)}")
    _print_json(as_json, {"out": str(out), "rows": rows, "failures": failures})
    if failures:
        raise ThinwireError("; ".join(failures))


def _log(name: str, record: dict[str, Any]) -> None:
    """A line now and then, where nobody watches."""
    if record["round"] % 10 == 0 or record["round"] == 1:
        accuracy = record.get("accuracy")
        shown = "" if accuracy is None else f" accuracy {accuracy:.3f}"
        typer.echo(f"{name} round {record['round']}{shown} up {record['up_bytes']} B", err=True)


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
