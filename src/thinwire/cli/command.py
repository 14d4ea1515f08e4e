"""Commands whose options are the fields of configurations: names, types, defaults and help texts are said there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from ..importing import without_collections
from .app import app


def command(
    name: str, options: Callable[[], list[Any]], within: typer.Typer = app, more: Callable[[], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that has ``options`` besides the parameters of its function, which takes their values as ``**given``.

    They are made when the command is called: until then nobody waits for torch. So is ``more``, which its help text
    ends with. ``given["typed"]`` has the names of all that were typed, and not left at their defaults.
    """

    class WithOptions(TyperCommand):
        whole = False

        def get_params(self, ctx: Any) -> Any:
            if not self.whole:
                with without_collections():  # options import what they are options of
                    self.params, self.whole = [*self.params, *options()], True
                self.help = f"{self.help}\n\n{more()}".strip()
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


def options_of(cls: type, *names: str) -> list[Any]:
    """The options that some fields of a configuration are: these, or all that have a help text."""
    return options_with(parameters(cls, *names))


def parameter(name: str, kind: Any, default: Any = MISSING) -> inspect.Parameter:
    """A parameter of a command, which has to be typed where no default is given."""
    value = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)


def parameters(cls: type, *names: str) -> list[inspect.Parameter]:
    """Some fields of a configuration: name, type, default and help text are the field's own.

    A field with a ``metavar`` is an argument, all others are options.
    """
    hints, made = get_type_hints(cls), []
    for field in fields(cls):
        if "help" not in field.metadata or (names and field.name not in names):
            continue
        several = get_origin(hints[field.name]) is tuple
        kinds = (hints[field.name], *get_args(hints[field.name]))
        plain = () if several or any(get_origin(kind) is Literal for kind in kinds) else (bool, int, float)
        kind: Any = list[str] if several else next((kind for kind in plain if kind in kinds), str)
        default = None if several and field.default is not MISSING else field.default
        words = [f"--{field.name.replace('_', '-')}"] if kind is bool else []  # and no --no-...
        how, metavar = {"help": field.metadata["help"]}, field.metadata.get("metavar")
        about: Any = typer.Argument(metavar=metavar, **how) if metavar else typer.Option(*words, **how)
        made.append(parameter(field.name, Annotated[kind | None if default is None else kind, about], default))
    return made


def open_parameters(cls: Any) -> list[inspect.Parameter]:
    """The parameters that stand for what expressions of a kind of study may leave open."""
    return [
        parameter(name, Annotated[one | None, typer.Option(help=help)], None) for name, (one, help) in cls.open.items()
    ]


def options_with(parameters: list[inspect.Parameter]) -> list[Any]:
    """The options of parameters, as typer makes them of a function that has these."""

    def function() -> None: ...

    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    holder = typer.Typer(add_completion=False)
    holder.command()(function)
    return list(typer.main.get_command(holder).params)
