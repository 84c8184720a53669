"""Turns options of commands that read a dataset (its log or its current rows, at some time) into SQL."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chain.errors import Fault
from odfd.cli.command import argument

TIMES: Final = (
    argument("--current", action="store_true", help="read what holds now, instead of the log"),
    argument(
        "--as-of", metavar="TIME", help="read what was known at this system time: 2024-05-01, or 2024-05-01T12:00:00Z"
    ),
    argument("--at-block", metavar="N|HASH", help="read the blocks up to and including this one"),
    argument("--as-at", metavar="TIME", help="read rows whose event time is not later than this"),
)
"""The options that ``source`` reads."""


@contextmanager
def without_places() -> Iterator[None]:
    """Removes positions in the query from faults: the text of the query is ours, and the user has not seen it.

    A block of a dataset is no such position.
    """
    try:
        yield
    except Fault as fault:
        if fault.place.startswith("line "):
            fault.place = ""
        raise


def is_cut(args: argparse.Namespace) -> bool:
    """Whether any of the options was given."""
    return bool(args.current or args.as_of or args.at_block or args.as_at)


def source(ref: str, args: argparse.Namespace) -> str:
    """Builds the reference to the dataset in a query."""
    return ref_text(ref, current=args.current, as_of=args.as_of, at_block=args.at_block, as_at=args.as_at)


def ref_text(
    ref: str,
    *,
    current: bool = False,
    as_of: str | None = None,
    at_block: str | None = None,
    as_at: str | None = None,
) -> str:
    """Builds the reference to a dataset with its clauses of time."""
    clauses = (("FOR SYSTEM_TIME AS OF", as_of), ("AT BLOCK", at_block), ("AS AT", as_at))
    text = "".join(f" {words} {_text(value)}" for words, value in clauses if value)
    return ("current." if current else "") + '"' + ref.replace('"', '""') + '"' + text


def all_rows(text: str) -> str:
    """Builds a query for all rows of a source."""
    return f"SELECT * FROM {text}"


def last_rows(text: str, count: int) -> str:
    """Builds a query for the last rows of a source, in its order."""
    numbered = f'SELECT *, row_number() OVER () AS "odfd n" FROM {text}'
    last = f'SELECT * FROM ({numbered}) ORDER BY "odfd n" DESC LIMIT {max(0, count)}'
    return f'SELECT * EXCLUDE ("odfd n") FROM ({last}) ORDER BY "odfd n"'


def difference(one: str, other: str, *, apart: str = "") -> str:
    """Builds a query for rows that one of two sources has more often, as many times. ``apart``: ignored columns.

    Equal rows are counted, which the engine can do on disk if memory does not suffice; for EXCEPT ALL it cannot.
    """
    minus = f'SELECT *{apart}, -1 AS "odfd w" FROM {other}'
    both = f'SELECT *{apart}, 1 AS "odfd w" FROM {one} UNION ALL BY NAME {minus}'
    sums = (
        f'SELECT * EXCLUDE ("odfd w"), sum("odfd w") AS "odfd s" FROM ({both}) GROUP BY ALL HAVING sum("odfd w") <> 0'
    )
    each = f'SELECT *, unnest(range(abs("odfd s")::BIGINT)) AS "odfd r" FROM ({sums})'
    return f"""SELECT if("odfd s" > 0, '-', '+') AS diff, * EXCLUDE ("odfd s", "odfd r") FROM ({each}) ORDER BY ALL"""


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
