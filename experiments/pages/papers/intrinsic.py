"""Intrinsic gradient compression: more dimensions, subspaces that vary, and several of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from ..verdict import OURS, Claim, compare

SST2 = "BERT, 50 clients", "fastText, 50 clients, 10 a round, 300 rounds"
EIGHT = "PersonaChat, GPT-2"
MANY = "ResNet-9, 10,000 clients, 2,400 rounds", "LBGM's CNN, 10,000 clients, 300 rounds"
claim = partial(compare, "intrinsic")


def claims() -> Iterator[Claim]:
    for d, part in (("6,400", 3), ("25,600", 11)):
        text = f"SST-2: time-varying is ahead of static at d = {d}, {part} % of all"
        few = "BERT, 50 clients, d below 6,400, .006 % of all: 0.7 to 3.1 points", SST2[1]
        yield claim(few, text, ("SST-2", f"time-varying, d = {d}"), ("SST-2", f"static, d = {d}"), None)
    attended = SST2[0], "a transformer from random weights, 50 clients, 10 a round, 60 rounds"
    for name, settings, least in (("SST-2", SST2, "6,400"), ("SST-2, transformer", attended, "25,600")):
        rows = [(name, f"static, d = {d}") for d in ("102,400", least)]
        text = f"{name}: more dimensions are better, 102,400 than {least}"
        yield claim(settings, text, rows[0], rows[1], None)
    small = "SST-2, transformer"
    for more, less in (("1,600", "400"), ("6,400", "1,600"), ("25,600", "6,400")):
        text = f"{small}: more dimensions are better, {more} than {less}"
        yield claim(attended, text, *((small, f"static, d = {d}") for d in (more, less)), None)
    for d in ("400", "1,600", "6,400", "25,600"):
        rows = [(small, f"{name}, d = {d}") for name in ("time-varying", "static")]
        yield claim(attended, f"{small}: time-varying is ahead of static at d = {d}", *rows, None)
    for dim, of in (("356", "1,600"), ("1,422", "6,400")):
        text = f"{small}: K = 8 is ahead of one subspace of {of} for the same bytes{OURS}"
        eight = small, f"K = 8, d = {dim}, the bytes of {of}"
        yield claim(attended, text, eight, (small, f"static, d = {of}"), None)
    yield from fine_tuning()
    for name, settings, eight, one in (
        ("10,000 clients", (EIGHT, MANY[1]), "K = 8, D / 475", "static, D / 475"),
        ("SST-2", (EIGHT, SST2[1]), "K = 8, d = 6,400", "static, d = 6,400"),
    ):
        yield claim(
            settings,
            f"{name}: K = 8 is ahead of one subspace for the same upload",
            (name, eight),
            (name, one),
            None,
        )
    for row, other, text in (
        ("time-varying, D / 475", "static, D / 475", "time-varying is ahead of static"),
        ("static, D / 30", "static, D / 475", "more dimensions are better"),
    ):
        yield claim(MANY, f"10,000 clients: {text}", ("10,000 clients", row), ("10,000 clients", other), None)
    text = "10,000 clients: a subspace is ahead of top-k for the same floats up"
    yield claim(MANY, text, ("10,000 clients", "static, D / 475"), ("10,000 clients", "top-k, D / 475"), None)
    text = "10,000 clients: eight subspaces are ahead of FetchSGD for the same floats up"
    yield claim(MANY, text, ("10,000 clients", "K = 8, D / 475"), ("10,000 clients", "FetchSGD, D / 475"), None)
    text = f"10,000 clients: K = 8, time-varying is ahead of K = 8{OURS}"
    eight = "K = 8, time-varying, D / 475", "K = 8, D / 475"
    yield claim(MANY, text, *(("10,000 clients", row) for row in eight), None)


def fine_tuning() -> Iterator[Claim]:
    """All of MiniLM, which was trained before, as BERT was."""
    settings = SST2[0], "all of MiniLM, 20 clients that are alike, 2 a round, 40 rounds"
    name, dims = "SST-2, IID, MiniLM", ("200", "800", "3,200", "12,800", "25,600")
    row = lambda of: (name, f"Intrinsic, {of}")  # noqa: E731
    for less, more in pairwise(dims):
        text = f"{name}: more dimensions are better, {more} than {less}"
        yield claim(settings, text, row(f"d = {more}"), row(f"d = {less}"), None)
    for d in dims:
        text = f"{name}: time-varying is ahead of static at d = {d}"
        yield claim(settings, text, row(f"d = {d}, time-varying"), row(f"d = {d}"), None)
    for d in dims:
        text = f"{name}: K = 8 is ahead of one subspace of {d} for the same bytes{OURS}"
        yield claim(settings, text, row(f"K = 8, for the bytes of d = {d}"), row(f"d = {d}"), None)
