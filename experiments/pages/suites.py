"""The tables of users and sites in docs/reference/suites.md, from what the splits know."""

from __future__ import annotations

from thinwire.data import suites

from . import markdown, table


@table
def suites_users() -> list[str]:
    rows = [
        [f'`"{name}"`', f"{about.users:,}", f"{about.examples:,}"]
        + [f"{number:,.2f}" for number in (about.mean, about.deviation, about.spread)]
        for name, about in sorted(suites.USERS.items(), key=lambda entry: entry[1].spread)
    ]
    heads = ["users", "examples", "mean", "standard deviation", "deviation over mean"]
    return markdown(["`Users(...)`", *heads], rows)


@table
def suites_sites() -> list[str]:
    rows = [
        [f'`"{name}"`', str(len(sizes)), ", ".join(f"{size:,}" for size in sizes)]
        for name, sizes in suites.SITES.items()
    ]
    return markdown(["`Sites(...)`", "clients", "examples of each"], rows)
