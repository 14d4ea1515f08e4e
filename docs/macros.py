"""The macros of the pages: what a page says of code, papers and bytes is taken from where it is true.

Each stands alone on a line:

``{{ paper FedAvg }}``            the paper of a class
``{{ code FedAvg.client }}``      the source of a class, of its members or of a function, without docstrings
``{{ differences FedAvg }}``      its "Differences from the paper", from the docstring of the class or of its module
``{{ bytes "FedAvg()" }}``        a table of what these methods send, from docs/methods/bytes.jsonl
``{{ methods links }}``           a table of the pages of methods of one kind
``{{ api links }}``               the API of the names of one kind in the catalogue; `api model` that of all networks
``{{ sets }}``                    a table of the data sets
``{{ options run }}``             a table of the options of a command, as its ``--help`` has them
``{{ commands }}``                the same of every command but those of ``look``, each below a heading

Names are those of :mod:`code_names`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from code_names import KINDS, Wrong, find, paper_of, resolve, short
from method_pages import MACRO, call_of, pages

BYTES = Path(__file__).resolve().parent / "methods" / "bytes.jsonl"


def expand(text: str, page: str) -> str:
    """A page with its macros expanded. Raises :class:`Wrong`."""

    def made(found: re.Match[str]) -> str:
        try:
            call = call_of(found[1])
            if call.name not in MACROS:
                raise Wrong(f"there is no such macro; there are {', '.join(MACROS)}")
            return MACROS[call.name](call.words)
        except Wrong as error:
            raise Wrong(f"{page}: {found[0].strip()}: {error}") from None

    return MACRO.sub(made, text)


def paper(names: list[str]) -> str:
    """The lines of papers, each once."""
    if not names:
        raise Wrong("of which class?")
    papers: dict[str, list[str]] = {}
    for name in names:
        find(name)
        papers.setdefault(paper_of(name), []).append(f"`{short(name)}`")
    lines = []
    for said, whose in papers.items():
        linked = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", said)
        lines.append(f"**Paper** of {_listed(whose)}: {linked}." if said else f"No paper: {_listed(whose)}.")
    return "\n\n".join(lines) + "\n"


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def code(names: list[str]) -> str:
    """Source, without docstrings, as one block."""
    if not names:
        raise Wrong("of what?")
    values = [_plain(find(name)) for name in names]
    owners = [_class(name) for name in names]
    several, last, parts = len(set(owners)) > 1, "", []
    for name, value, whose in zip(names, values, owners, strict=True):
        if several and whose and whose != last:
            parts.append(f"# {whose}")
        last = whose
        parts.append(_source(name, value))
    text = re.sub(r"(?m)^(# .*)\n\n", r"\1\n", "\n\n".join(parts))
    return f"```python\n{text}\n```\n"


def _class(name: str) -> str:
    """The class whose member a name is; of a function or a class itself nothing."""
    _, first, value = resolve(name)
    return first.__name__ if isinstance(first, type) and value is not first else ""


def _plain(value: Any) -> Any:
    """The function of a property, of a static or a class method."""
    value = value.fget if isinstance(value, property) else value
    return inspect.unwrap(getattr(value, "__func__", value))


def _source(name: str, value: Any) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(value))
    except (TypeError, OSError):
        raise Wrong(f"{name} has no source: it is {value!r}") from None
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or len(node.body) < 2:
            continue
        said = node.body[0]
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant) and isinstance(said.value.value, str):
            assert said.end_lineno is not None
            end = said.end_lineno
            while end < len(lines) and not lines[end].strip():  # nor the blank lines after it
                end += 1
            for line in range(said.lineno - 1, end):
                lines[line] = "\0"
    return "\n".join(line for line in lines if line != "\0").rstrip()


PARAGRAPH = re.compile(r"Differences\s+from\s+the\s+(?:papers?|thesis)[^:.]{0,40}:\s+(.*?)(?=\n[ \t]*\n|\Z)", re.S)


def differences(names: list[str]) -> str:
    """What is not as in the paper, of each class, from its docstring or its module's; each paragraph once."""
    if not names:
        raise Wrong("of which class?")
    said: dict[str, list[str]] = {}
    for name in names:
        cls = find(name)
        if not isinstance(cls, type):
            raise Wrong(f"{name} is no class")
        own = PARAGRAPH.search(inspect.cleandoc(cls.__doc__ or ""))
        shared = PARAGRAPH.search(inspect.cleandoc(sys.modules[cls.__module__].__doc__ or ""))
        texts = [_capital(own[1])] if own else []
        if shared and (not own or re.search(r"of\s+this\s+module", own[1])):
            if own:  # what it says beside "those of this module"
                texts = [re.sub(r"[^.;:]*of\s+this\s+module[.;]?\s*", "", own[1]).strip()]
            texts.append(_capital(shared[1]))
        texts = [text for text in texts if text]
        if not texts:
            raise Wrong(f'neither {name} nor its module says "Differences from the paper: ..."')
        said.setdefault("\n\n".join(markdown(" ".join(text.split())) for text in texts), []).append(short(name))
    if len(said) == 1:
        return f"{next(iter(said))}\n"
    return "".join(f"**{', '.join(f'`{name}`' for name in whose)}.** {text}\n\n" for text, whose in said.items())


def _capital(text: str) -> str:
    """What follows a colon, as a sentence. A symbol keeps its case."""
    return text if re.match(r"\w\b", text) else text[0].upper() + text[1:]


def markdown(text: str) -> str:
    """A sentence of a docstring, which is reStructuredText, for a page."""
    text = re.sub(r":[a-z]+(?::[a-z]+)?:`~?\.*([^`]+)`", r"`\1`", text)
    parts = re.split(r"(``?[^`]+``?)", text)
    for i, part in enumerate(parts):
        escaped = part.replace("&", "&amp;").replace("<", "&lt;").replace("*", "\\*")
        parts[i] = re.sub(r"^``(.*)``$", r"`\1`", part) if i % 2 else escaped
    return "".join(parts)


def read_bytes() -> dict[str, dict[str, Any]]:
    """The committed lines, by expression."""
    lines = map(json.loads, BYTES.read_text().splitlines()) if BYTES.exists() else ()
    return {line["expression"]: line for line in lines}


def sizes(words: list[str]) -> str:
    """A table of what some methods send."""
    lines = read_bytes()
    missing = [word for word in words if word not in lines]
    if missing or not words:
        raise Wrong(f"there is no line of {' and '.join(missing) or 'nothing'} in {BYTES.name}: python docs/bytes.py")
    found = [lines[word] for word in words]
    if len({line["kind"] for line in found}) > 1:
        raise Wrong("federated and data-parallel methods have tables of their own: two macros")
    return _ranks(found) if found[0]["kind"] == "data-parallel" else _clients(found)


def _clients(lines: list[dict[str, Any]]) -> str:
    ways = [(line[f"first_{way}"], line[way]) for line in lines for way in ("up", "down")]
    first = any(abs(one - then) > 0.01 * max(one, then) for one, then in ways)
    head = ["method", "up", "down", *(["first contact, up", "down"] if first else [])]
    rows = []
    for line in lines:
        counts = [line["up"], line["down"], *([line["first_up"], line["first_down"]] if first else [])]
        rows.append([f"`{line['expression']}`", *(f"{round(count):,}" for count in counts)])
    one, contact = lines[0], "with the first contact beside it"
    said = (
        "Bytes of a client and round, headers included: the mean after a client's first contact, "
        f"{contact if first else 'which differs from the first contact by less than 1 %'}. Digits, an MLP "
        f"of {one['parameters']:,} parameters, {one['sample']} of {one['clients']} clients a round, {one['rounds']} "
        "rounds (`python docs/bytes.py`)."
    )
    return f"{_table(head, rows)}\n\n{said}\n"


def _ranks(lines: list[dict[str, Any]]) -> str:
    rows = [
        [f"`{line['expression']}`", *(f"{round(line[name]):,}" for name in ("reduced", "gathered", "received"))]
        for line in lines
    ]
    one = lines[0]
    said = (
        "Bytes of a rank and step: what it gives to all-reduce, what it gives to all-gather, and what it gets back. "
        "Of an all-reduce it gets as many bytes as it gave, of an all-gather those of all other ranks. "
        f"Digits, an MLP of {one['parameters']:,} parameters, {one['workers']} ranks, {one['steps']} steps "
        "(`python docs/bytes.py`)."
    )
    return f"{_table(['method', 'to all-reduce', 'to all-gather', 'back'], rows)}\n\n{said}\n"


def _table(head: list[str], rows: Iterable[list[str]], right: int = 1) -> str:
    """Columns from ``right`` on are numbers."""
    align = ["---" if i < right else "---:" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, align, *rows])


def methods(words: list[str]) -> str:
    """The pages of a kind, each with what it is and what is written."""
    if len(words) != 1 or words[0] not in KINDS:
        raise Wrong(f"one of {', '.join(KINDS)}")
    rows = []
    for each in pages():
        if each.kind == words[0]:
            names = ", ".join(f"`{name.rpartition('.')[2]}`" for name in each.names)
            rows.append([f"[{each.name}]({each.link})", each.about, names])
    return _table(["page", "what it is", "write"], rows, right=3) + "\n"


def api(words: list[str]) -> str:
    """What mkdocstrings is to show."""
    from thinwire.studies.catalogue import KINDS as ALL
    from thinwire.studies.catalogue import catalogue

    if words == ["model"]:
        from thinwire import models

        networks = [name for name in models.__all__ if name not in ("build", "names")]
        return "".join(f"::: thinwire.models.{name}\n\n" for name in networks)
    kinds = set(ALL.values())
    if len(words) != 1 or (kind := words[0].replace("-", " ").replace("data parallel", "data-parallel")) not in kinds:
        raise Wrong(f"one of {', '.join(sorted(kinds)).replace(' ', '-')}")
    return "".join(f"::: {_path(entry.name, kind)}\n\n" for entry in catalogue() if entry.kind == kind)


def _path(name: str, kind: str) -> str:
    where = {"data-parallel": "thinwire.ddp", "split": "thinwire.data", "augmentation": "thinwire.data"}
    return f"{where.get(kind, 'thinwire')}.{name}"


def sets(words: list[str]) -> str:
    """The data sets by their names, with the first line of each loader's module."""
    from thinwire.data.sets import LOADERS

    if words:
        raise Wrong("it takes no words")
    rows = []
    for name, loader in sorted(LOADERS.items()):
        said, _, _ = (sys.modules[loader.__module__].__doc__ or "").partition("\n")
        rows.append([f"`{name}`", markdown(said)])
    return _table(["name", "what it is"], rows, right=2) + "\n"


def options(words: list[str]) -> str:
    """What a command takes: its arguments and options, their defaults and what they mean."""
    from typer.main import get_command

    from thinwire.cli import app

    command: Any = get_command(app)
    for word in words:
        if word not in getattr(command, "commands", {}):
            raise Wrong(f"thinwire {' '.join(words)} is no command")
        command = command.commands[word]
    if not words or hasattr(command, "commands"):
        raise Wrong("of which command?")
    rows = []
    context = command.make_context(words[-1], [], resilient_parsing=True)
    for each in command.get_params(context):
        if each.name == "help" or getattr(each, "hidden", False):
            continue
        written = (
            " ".join(f"`{name}`" for name in each.opts)
            if each.param_type_name == "option"
            else each.human_readable_name
        )
        default = each.default if each.show_default and not callable(each.default) else None
        shown = "" if default in (None, False, (), []) or not isinstance(default, str | int | float) else f"`{default}`"
        rows.append([written, shown, markdown(" ".join((each.help or "").split())).replace("|", "\\|")])
    return _table(["write", "default", "what it is"], rows, right=3) + "\n"


def commands(words: list[str]) -> str:
    """Every command in the order of ``thinwire --help``, families last, with what it takes; none of ``look``."""
    from typer.main import get_command

    from thinwire.cli import app

    tree: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    names = [name for name, each in tree.items() if not hasattr(each, "commands")]
    for family, each in tree.items():
        if hasattr(each, "commands") and family != "look":
            names += [f"{family} {name}" for name in each.commands]
    return "\n".join(f"## `thinwire {name}`\n\n{options(name.split())}" for name in names)


MACROS = {
    "options": options,
    "commands": commands,
    "paper": paper,
    "code": code,
    "differences": differences,
    "bytes": sizes,
    "methods": methods,
    "api": api,
    "sets": sets,
}
