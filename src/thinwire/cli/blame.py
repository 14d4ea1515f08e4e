"""The end of a command by an exception: what is shown of it, and the exit code, depend on whose it is."""

from __future__ import annotations

import re
import sys
import sysconfig
import traceback
from dataclasses import fields
from pathlib import Path

from ..errors import ThinwireError

OURS = str(Path(__file__).parents[1])
LIBRARIES = tuple({path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))})


def answer(error: Exception) -> int:
    """Say what went wrong; returns the exit code. Raises what is a bug."""
    # Of which class typer's own are has changed with its versions; that they show themselves has not.
    if hasattr(error, "show") and hasattr(error, "exit_code"):
        error.show()
        return int(error.exit_code)
    own = theirs(error)
    if own is not None:
        print(own, end="", file=sys.stderr)
        return 1
    if not is_expected(error):
        raise error
    said = error.strerror if isinstance(error, OSError) and error.filename is None and error.strerror else error
    print(f"error: {_as_option(str(said))}", file=sys.stderr)
    return 2


def is_expected(error: BaseException) -> bool:
    """True where thinwire, or the machine, says with the error what to change: then its text is enough.

    A ``ValueError`` is ours where we raise it. One out of the depths of a library is a bug like any other exception.
    """
    if isinstance(error, ThinwireError | ImportError | OSError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, ValueError) and bool(frames) and frames[-1].filename.startswith(OURS)


def theirs(error: BaseException) -> str | None:
    """The traceback through the user's own code, without thinwire's frames; None where the user's code has no part."""
    if isinstance(error, SyntaxError) and error.filename is not None and _users(error.filename):
        return "".join(traceback.format_exception_only(error))
    shown = traceback.TracebackException.from_exception(error)
    if not any(_users(frame.filename) for frame in shown.stack):
        return None
    _cut(shown)
    return "".join(shown.format())


def _cut(shown: traceback.TracebackException) -> None:
    """Leave what comes from the first of the user's frames on, without ours; in what it was raised from too."""
    for frame in list(shown.stack):
        if not _users(frame.filename):
            shown.stack.remove(frame)
        else:
            break
    shown.stack[:] = [frame for frame in shown.stack if not frame.filename.startswith(OURS)]
    for before in (shown.__cause__, shown.__context__):
        if before is not None:
            _cut(before)


def _users(filename: str) -> bool:
    installed = any(part in ("site-packages", "dist-packages") for part in Path(filename).parts)
    return not installed and not filename.startswith(("<", OURS, *LIBRARIES))


def _as_option(said: str) -> str:
    """The sentence about a setting's field, said of its option: `dropout=1.5` becomes `--dropout 1.5`."""
    from ..federated.setting import Setting

    value = r"(\w+)=('[^']*'|\S+?)"
    match = re.match(rf"Setting\({value}\): (.*)", said) or re.match(rf"{value}: (.*)", said)
    if match is None or match[1] not in {field.name for field in fields(Setting)}:
        return said
    name, value, why = match.groups()
    return f"--{name.replace('_', '-')} {value.strip(chr(39))}: {why.replace(' or None is expected', ' is expected')}"
