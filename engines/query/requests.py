"""Declares the requests to the process of a query, its responses, and the layouts of rows as JSON.

The process is not trusted: its responses have limits. Layouts are those that kamu's nodes know: objects, arrays, or a
list for each column. Integers are numbers whatever their size; decimals, times and bytes are text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final, Literal

import msgspec

from chain.data.json_values import plain_values
from chain.errors import Environment, Fault, Invalid, Refused
from chain.libraries import pa
from engines.errors import LimitExceeded
from engines.query.statement_check import TableRef, place_of
from engines.query.temporal import Clause
from engines.query.views import SliceView

MAX_TABLES: Final = 256
"""Most tables of one query."""
MAX_PARAMETERS: Final = 1024
MAX_TEXT: Final = 4000
"""Most characters of a reported fault."""
_Said = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_FAMILIES: Final[dict[str, type[Fault]]] = {each.__name__: each for each in (Invalid, Refused, Environment)}
UNREADABLE: Final = "query-slice"
"""The rule of the fault of a slice that cannot be read, though it had its hash before."""
Lines = Literal["", "csv", "ndjson"]
Layout = Literal["JsonAoS", "JsonSoA", "JsonAoA"]
"""Array of structures, structure of arrays, array of arrays."""
MAX_COLUMNS_BYTES: Final = 64 << 20
"""Most bytes of a structure of arrays, which is complete in memory before its first byte is sent."""
_ROWS: Final = 4096
"""Rows that are converted to Python values at a time."""
_encode: Final = msgspec.json.Encoder().encode


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    """The first request: parse and check a statement."""

    sql: str


class TableNamed(msgspec.Struct, frozen=True, kw_only=True):
    """A table that the statement reads."""

    path: Annotated[tuple[_Said, ...], msgspec.Meta(min_length=1, max_length=64)]
    place: _Said
    """Place in the statement, for people."""
    clauses: Annotated[tuple[tuple[_Said, _Said], ...], msgspec.Meta(max_length=3)] = ()
    """Time clauses: kind (``temporal``) and value."""

    @classmethod
    def of(cls, table: TableRef, statement: bytes) -> TableNamed:
        clauses: tuple[Clause, ...] = table.clauses
        return cls(
            path=table.path,
            place=place_of(statement, table.start),
            clauses=tuple((clause.kind, clause.value) for clause in clauses),
        )


class TablesNamed(msgspec.Struct, frozen=True, kw_only=True):
    """The response to ``Prepare``: the tables and parameters of the statement."""

    tables: Annotated[tuple[TableNamed, ...], msgspec.Meta(max_length=MAX_TABLES)]
    parameters: Annotated[tuple[_Said, ...], msgspec.Meta(max_length=MAX_PARAMETERS)] = ()
    """Names of the parameters, or their numbers from 1, in order."""


class RowSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the rows of an answer that are sent, and their layout."""

    layout: Layout | None = None
    """Layout as JSON; ``None``: rows are sent as Arrow."""
    plain: bool = False
    """Send lists of rows for display, several per frame."""
    lines: Lines = ""
    """Send rows as lines of text in this format."""
    prove: bool = False
    """Only accept a query that gives the same rows in every run over the same data; sort them by all columns."""
    skip: int = 0
    limit: int | None = None
    unbound: bool = False
    """Only return the columns: parameters have no values yet."""


ALL_ROWS: Final = RowSelection()


class Execute(msgspec.Struct, frozen=True, kw_only=True):
    """The second request: run the statement over views."""

    views: tuple[SliceView, ...]
    places: tuple[int, ...]
    """Number of the view of each table."""
    parameters: dict[str, Any] | list[Any] | None = None
    explain: bool = False
    rows: RowSelection = ALL_ROWS
    pipe: str = ""
    """Path of a named pipe for the Arrow stream of rows; ``SCHEMA`` says when it begins. Empty: rows come in frames."""
    saves: tuple[str, ...] = ()
    """Write the views to these files instead of answering; the end has the statement in another engine's spelling."""
    answer: str = ""
    """With ``save_bytes``: write the rows of the statement to this file instead."""
    folds: tuple[str, ...] = ()
    """With ``save_bytes``: write the views to these database files instead, to be earlier rows of later views."""
    save_bytes: int = 0
    """Most bytes of a file to be written; 0: none is written."""


class SavedRows(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer that was written to files."""

    rows: int
    statement: str = ""


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in transfer from the process to the node."""

    family: str
    message: _Said
    rule: _Said = ""
    hint: _Said = ""
    place: _Said = ""

    @classmethod
    def of(cls, fault: Fault) -> FaultReport:
        family = next((name for name, kind in _FAMILIES.items() if isinstance(fault, kind)), "Environment")
        texts = (fault.message, fault.rule, fault.hint, fault.place)
        message, rule, hint, place = (text[:MAX_TEXT] for text in texts)
        return cls(family=family, message=message, rule=rule, hint=hint, place=place)

    def fault(self) -> Fault:
        kind = _FAMILIES.get(self.family, Environment)
        return kind(self.message, rule=self.rule, hint=self.hint, place=self.place)


def json_pieces(batches: Iterable[pa.RecordBatch], names: list[str], layout: Layout) -> Iterator[bytes]:
    """Yields one JSON value in pieces. Raises LimitExceeded if it is too large."""
    if layout == "JsonSoA":
        yield from _columns(batches, names)
        return
    before = b"["
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            rows = list(zip(*map(_values, batch.slice(start, _ROWS).columns), strict=True))
            if layout == "JsonAoA":
                yield before + _encode(rows)[1:-1]
            else:
                yield before + _encode([dict(zip(names, row, strict=True)) for row in rows])[1:-1]
            before = b","
    yield b"[]" if before == b"[" else b"]"


def _columns(batches: Iterable[pa.RecordBatch], names: list[str]) -> Iterator[bytes]:
    columns = [bytearray() for _ in names]
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            for column, values in zip(columns, batch.slice(start, _ROWS).columns, strict=True):
                column += (b"," if column else b"") + _encode(_values(values))[1:-1]
        if sum(map(len, columns)) > MAX_COLUMNS_BYTES:
            raise LimitExceeded(
                "the answer is too large for the layout JsonSoA",
                rule="query-layout",
                hint="ask for fewer rows, or for JsonAoA, which is sent as it is computed",
            )
    members = (_encode(name) + b":[" + column + b"]" for name, column in zip(names, columns, strict=True))
    yield b"{" + b",".join(members) + b"}"


def _values(values: pa.Array) -> list[Any]:
    return list(values.to_pylist()) if pa.types.is_integer(values.type) else plain_values(values)
