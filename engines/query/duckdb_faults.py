"""Rewrites a statement to read views, and rewords DuckDB's errors in terms of the statement before that. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from chain.errors import Environment, Fault, Invalid, Refused
from engines.query.requests import UNREADABLE
from engines.query.statement_check import TableRef, place_of
from engines.query.temporal import first_of
from engines.query.views import SliceView, quote_name

_MAX_MESSAGE: Final = 600
_NAME: Final = re.compile(r"""(?:[Cc]olumn|[Tt]able|named|function) (?:named |name )?["']([^"'(]+)""")
_UNQUOTED: Final = re.compile(r"with name (\S+) does not exist")
_MOST_NEAR: Final = 3
_MOST_LISTED: Final = 12

_OF_VALUES: Final = ("Conversion", "Out of Range", "Mismatch Type", "Divide by Zero")
"""DuckDB's kinds of errors that mean a value does not fit the query."""
_OF_FILES: Final = re.compile(
    r"Failed to read file|Parquet file|Out of buffer|No magic bytes|^TProtocolException|/f16[0-9a-f]{66}"
)
_NO_FUNCTION: Final = re.compile(r"No function matches the given name and argument types '(.+?)\((.*?)\)'")
"""Matches the start of this message; the rest lists all functions of the name, in dozens of lines."""
_OF_PARAMETERS: Final = re.compile(r"Values were not provided|Parameter.argument")
_CAST: Final = "cast to a type that it takes, as try_cast(… AS DOUBLE) does"
_HINTS: Final[Mapping[str, str]] = {
    "Conversion": "try_cast(… AS …) gives null where a value is none of that type",
    "Out of Range": "cast to a wider type first, as HUGEINT, DECIMAL or DOUBLE",
}


MAIN: Final = "memory.main."
"""Prefix of names of views: with catalog and schema, no table of a WITH can be meant."""


def replace_tables(statement: bytes, edits: Sequence[tuple[TableRef, str]], within: str = MAIN) -> bytes:
    """Returns the statement reading views in place of tables, each with the user's alias or the last
    part of the table's name. ``within``: prefix of the names of views."""
    parts: list[bytes] = []
    at = 0
    for table, view in edits:
        parts += (statement[at : table.start], instead(table, view, within))
        at = table.end
    return b"".join((*parts, statement[at:]))


def instead(table: TableRef, view: str, within: str = MAIN) -> bytes:
    alias = (
        " " if table.alias else f" AS {quote_name(table.path[-1])}"
    )  # before an alias in quotes there may be no blank
    return f" {within}{quote_name(view)}{alias}".encode()


class Most(NamedTuple):
    """The limits of a query in bytes; 0 if they are not known."""

    memory: int = 0
    temporary: int = 0


UNKNOWN: Final = Most()


class translated_faults:  # noqa: N801  # it is used as a function is
    """Turns DuckDB's errors into faults, with the place in the statement before ``edits``."""

    def __init__(
        self,
        statement: bytes,
        edits: Sequence[tuple[TableRef, str]],
        most: Most = UNKNOWN,
        ahead: str = "",
        *,
        reads: bool = True,
        views: Sequence[SliceView] = (),
    ) -> None:
        """``ahead``: what was put before the statement that runs; ``reads``: whether slices are read, and may be at
        fault; ``views``: whose columns are listed where no name is near."""
        self._statement, self._edits, self._most, self._ahead, self._reads = statement, edits, most, len(ahead), reads
        self._views = views

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, MemoryError | duckdb.Error | pa.ArrowException | OSError):
            raise self._fault_of(error) from error

    def _fault_of(self, error: BaseException) -> Fault:
        said = _details(error)
        kind, message = str(said.get("exception_type", "")), _plain(str(said.get("exception_message", "")), self._edits)
        at = said.get("position")
        place = (
            place_of(self._statement, _before(int(at) - self._ahead, self._edits))
            if isinstance(at, str) and at.isdecimal()
            else ""
        )
        if isinstance(error, MemoryError) or kind == "Out of Memory":
            if "temp" in message and "directory" in message:
                return Refused(
                    f"the query needs more temporary disk than {_mib(self._most.temporary)}",
                    rule="query-temporary",
                    hint="query.temporary-mib sets the limit; ask for less, or sort less",
                )
            return Refused(
                f"the query needs more memory than {_mib(self._most.memory)}",
                rule="query-memory",
                hint="query.memory-mib sets the limit; ask for less, or group by less",
            )
        if self._reads and _is_of_a_file(error, kind, message):
            return Environment(f"a slice cannot be read: {message}", rule=UNREADABLE, hint="odfctl verify shows which")
        if (unfit := _NO_FUNCTION.search(message)) is not None:
            name, types = unfit[1], unfit[2].replace("_LITERAL", "")
            return Invalid(
                f"{name} takes no ({types})",
                rule="query-types",
                hint=_CAST,
                place=place or _place_of_function(name, self._statement),
            )
        message, proposed = _split_proposals(message)
        near = _near(message, proposed)
        hint = f"did you mean {near}?" if near else _HINTS.get(kind, "odfctl docs sql shows what a query may say")
        if proposed and not near and "olumn" in message:
            hint = _list_columns(self._views) or hint
        if kind == "Invalid Input" and "format specifier" in message:
            hint = "try_strptime gives null where a text has another form"
        if _OF_PARAMETERS.match(message):
            hint = "each ? or $NAME takes one value; in odfctl sql: -p VALUE, or -p NAME=VALUE"
        return Invalid(
            message or "the query failed",
            rule=_rule(kind),
            hint=hint,
            place=place or _place_of_name(message, self._statement),
        )


def _mib(size: int) -> str:
    return f"the {size >> 20:,} MiB that it may take" if size else "it may take"


def _is_of_a_file(error: BaseException, kind: str, message: str) -> bool:
    """Whether a slice is at fault. Arrow raises an OSError for all errors while rows are read, also for
    those of values."""
    if kind in _OF_VALUES:
        return False
    if kind in ("IO", "Invalid") or _OF_FILES.search(message):
        return True  # "Invalid" is what DuckDB calls errors of its Parquet decoder
    if type(error) is duckdb.Error:  # of the decoder of footers, without a kind
        return True
    return isinstance(error, OSError) and kind != "Invalid Input"


def _split_proposals(message: str) -> tuple[str, list[str]]:
    """Returns a message without the names that DuckDB proposes, and these, however far they are from what was meant."""
    for words in ("Candidate bindings:", "Candidate tables:", "Did you mean"):
        first, found, rest = message.partition(words)
        if found:
            return first.strip(" !"), rest.strip(" ?:").replace('"', "").split(", ")
    return message, []


def _near(message: str, proposed: Sequence[str]) -> str:
    """Returns the proposed names that differ by a slip from the one that is not known."""
    found = _NAME.search(message) or _UNQUOTED.search(message)
    if found is None:
        return " or ".join(proposed)
    wrong = _last(found[1])
    near = difflib.get_close_matches(wrong, {_last(name) for name in proposed}, _MOST_NEAR)
    return " or ".join(name for last in near for name in proposed if _last(name) == last)


def _list_columns(views: Sequence[SliceView]) -> str:
    names = list(dict.fromkeys(name for view in views for name in pa.ipc.read_schema(pa.py_buffer(view.schema)).names))
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"the columns are {', '.join(names[:_MOST_LISTED])}{more}" if names else ""


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _place_of_name(message: str, statement: bytes) -> str:
    """Returns the place of the first occurrence of the name in a message; empty if that is not known."""
    found = _NAME.search(message)
    at = None if found is None else first_of(statement, found[1])
    return "" if at is None else place_of(statement, at)


def _place_of_function(name: str, statement: bytes) -> str:
    """Returns the place of the first occurrence of a function or operator; empty if there is none."""
    at = first_of(statement, name)
    return "" if at is None else place_of(statement, at)


def _rule(kind: str) -> str:
    return (
        "query-syntax" if kind in ("Parser", "Syntax") else "query-names" if kind in ("Binder", "Catalog") else "query"
    )


def _details(error: BaseException) -> Mapping[str, Any]:
    words = str(error)
    start = words.find("{")
    if start >= 0:
        try:
            found = json.loads(words[start:])
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
    kind, _, message = words.partition(" Error: ")
    return {"exception_type": kind, "exception_message": message} if message else {"exception_message": words}


def _plain(message: str, edits: Sequence[tuple[TableRef, str]]) -> str:
    """Replaces names of views in a message by the tables as the user wrote them."""
    first = message.split("\n\nLINE ")[0]
    for table, view in edits:
        first = first.replace(view, ".".join(table.path))
    return re.sub(r"\s*\n\s*", "  ", first).strip()[:_MAX_MESSAGE]


def _before(at: int, edits: Sequence[tuple[TableRef, str]]) -> int:
    """Converts a position in the edited statement to one in the statement before."""
    moved = 0
    for table, view in edits:
        longer = len(instead(table, view)) - (table.end - table.start)
        if at < table.start + moved:
            break
        if at < table.end + moved + longer:
            return table.start
        moved += longer
    return at - moved
