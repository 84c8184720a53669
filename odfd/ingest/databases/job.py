"""Declares the request to a querying process and its answer, and how a position in a result is written down. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from chain.errors import Invalid, Refused
from chain.libraries import pa
from odfd.ingest.apart import SourceJob, SourceResult

RULE: Final = "source-sql"
CURSOR_RULE: Final = "source-cursor"
_MAX_TEXT: Final = 4 << 10
"""Characters of one cursor value, which stands in each block."""

Position = dict[str, tuple[str, str]]
"""Of each cursor column, in their order: the type as Arrow writes it, and the value as text."""


class QueryJob(SourceJob, frozen=True, kw_only=True):
    """``url`` has its secrets filled in."""

    url: str
    query: str
    cursor: tuple[str, ...]
    after: Position | None
    """The position of the last row that was taken; ``None``: from the start."""
    batch_rows: int
    columns: Annotated[bytes, "an Arrow schema, as IPC"] = b""
    """Declared columns, whose types values get that a database has no type for."""


class QueryResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """``digest`` is that of the rows, not of the bytes of the file."""

    rows: int = 0
    more: bool = False
    """Whether there are rows beyond."""
    last: Position | None = None
    rule: str = RULE


def encode_position(position: Position) -> str:
    return msgspec.json.encode(position).decode()


def decode_position(text: str, cursor: Sequence[str]) -> Position:
    """Reads the position of a source state. Raises Refused for one of other columns, Invalid."""
    try:
        found = msgspec.json.decode(text, type=Position)
    except msgspec.DecodeError as error:
        raise Invalid(f"the chain's position in the source cannot be read: {error}", rule=CURSOR_RULE) from error
    if list(found) != list(cursor):
        raise Refused(
            f"the chain is at a position by {', '.join(found)}, and the source now goes by {', '.join(cursor)}",
            rule=CURSOR_RULE,
            hint="write the cursor as before, or begin again: `odfctl reset` takes back what was ingested",
        )
    return found


def position_of(table: pa.Table, cursor: Sequence[str], row: int) -> Position:
    """The position of one row. Raises Invalid for a value that nothing can be compared with."""
    return {name: _written(name, table.column(name)[row]) for name in cursor}


def _written(name: str, value: pa.Scalar) -> tuple[str, str]:
    kind = value.type
    found = value.as_py() if not pa.types.is_timestamp(kind) else value.cast(pa.timestamp("us", kind.tz)).as_py()
    if found is None:
        raise Invalid(
            f"cursor column {name!r} has no value in some rows, which no pull would find again",
            rule=CURSOR_RULE,
            hint=f"leave such rows out in the query (where {name} is not null), or name another column",
        )
    if pa.types.is_integer(kind):
        return "int64", str(found)
    if pa.types.is_date32(kind):
        return "date32", found.isoformat()
    if pa.types.is_timestamp(kind):
        return ("timestamp" if kind.tz is None else "timestamptz"), found.replace(tzinfo=None).isoformat()
    if pa.types.is_string(kind) and len(found) <= _MAX_TEXT:
        return "string", found
    raise Invalid(
        f"cursor column {name!r} is {kind}, by which nothing is ordered to the last digit",
        rule=CURSOR_RULE,
        hint="whole numbers, texts up to 4,096 characters, dates and timestamps can be a cursor",
    )


def value_at(kind: str, text: str) -> Any:
    """The value of a position for a database, as Python has it. Raises Invalid."""
    try:
        match kind:
            case "int64":
                return int(text)
            case "string":
                return text
            case "date32":
                return dt.date.fromisoformat(text)
            case "timestamp":
                return dt.datetime.fromisoformat(text)
            case "timestamptz":
                return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
    except ValueError as error:
        raise Invalid(f"the chain's position in the source cannot be read: {error}", rule=CURSOR_RULE) from error
    raise Invalid(f"the chain's position in the source is of an unknown type {kind!r}", rule=CURSOR_RULE)
