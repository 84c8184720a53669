"""Declares the request to a querying process, its answer, and the encoding of a position in a result. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from chain.errors import Invalid, Refused
from chain.libraries import pa
from odfd.ingest.source_process import SourceJob, SourceResult

RULE: Final = "source-sql"
CURSOR_RULE: Final = "source-cursor"
_MAX_TEXT: Final = 4 << 10
"""Characters of one cursor value, which is written to each block."""

Position = dict[str, tuple[str, str]]
"""By cursor column, in the cursor's order: the type and the value as texts."""


class QueryJob(SourceJob, frozen=True, kw_only=True):
    """The request to run a query. ``url`` has its secrets filled in."""

    url: str
    query: str
    cursor: tuple[str, ...]
    after: Position | None
    """The position of the last row that was taken; ``None``: from the start."""
    batch_rows: int
    columns: Annotated[bytes, "an Arrow schema, as IPC"] = b""
    """Declared columns: their types are given to values for which a database has no type."""


class QueryResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the querying process. ``digest`` is that of the rows' file."""

    rows: int = 0
    more: bool = False
    """Whether there are more rows after these."""
    last: Position | None = None
    rule: str = RULE


def encode_position(position: Position) -> str:
    return msgspec.json.encode(position).decode()


def decode_position(text: str, cursor: Sequence[str]) -> Position:
    """Decodes the position in a source state. Raises Refused if it is of other cursor columns, Invalid."""
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
    """Returns the position of one row. Raises Invalid for a value that cannot be ordered exactly."""
    return {name: _encode_value(name, table.column(name)[row]) for name in cursor}


def _encode_value(name: str, value: pa.Scalar) -> tuple[str, str]:
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
    """Returns a value of a position as a Python object, for a database. Raises Invalid."""
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
