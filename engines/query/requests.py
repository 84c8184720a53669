"""Declares the requests to the process of a query, its responses, and the layouts of rows as JSON.

The process is not trusted: what it says has limits. Layouts are those that kamu's nodes know: objects, arrays, or a
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
"""Of one query."""
MAX_PARAMETERS: Final = 1024
MAX_TEXT: Final = 4000
"""Characters of a reported fault."""
_Said = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
_FAMILIES: Final[dict[str, type[Fault]]] = {each.__name__: each for each in (Invalid, Refused, Environment)}
Layout = Literal["JsonAoS", "JsonSoA", "JsonAoA"]
"""An array of structures, a structure of arrays, an array of arrays."""
MAX_COLUMNS_BYTES: Final = 64 << 20
"""Of a structure of arrays, which is whole in memory before its first byte leaves."""
_ROWS: Final = 4096
"""Made into Python's values at once."""
_encode: Final = msgspec.json.Encoder().encode


class Prepare(msgspec.Struct, frozen=True, kw_only=True):
    sql: str


class TableNamed(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[tuple[_Said, ...], msgspec.Meta(min_length=1, max_length=64)]
    place: _Said
    """For a person."""
    clauses: Annotated[tuple[tuple[_Said, _Said], ...], msgspec.Meta(max_length=3)] = ()
    """Kinds (``temporal``) and what they say."""

    @classmethod
    def of(cls, table: TableRef, statement: bytes) -> TableNamed:
        clauses: tuple[Clause, ...] = table.clauses
        return cls(
            path=table.path,
            place=place_of(statement, table.start),
            clauses=tuple((clause.kind, clause.value) for clause in clauses),
        )


class TablesNamed(msgspec.Struct, frozen=True, kw_only=True):
    tables: Annotated[tuple[TableNamed, ...], msgspec.Meta(max_length=MAX_TABLES)]
    parameters: Annotated[tuple[_Said, ...], msgspec.Meta(max_length=MAX_PARAMETERS)] = ()
    """Names, or numbers from 1, in their order."""


class RowSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the rows of an answer that are sent, and their layout."""

    layout: Layout | None = None
    """``None``: as Arrow."""
    plain: bool = False
    """As lists of rows to be shown, a frame for some of them."""
    prove: bool = False
    """Only those that come whenever the query runs over the same rows, in the order of their columns."""
    skip: int = 0
    limit: int | None = None
    unbound: bool = False
    """Only what columns there are: parameters have no values yet."""


ALL_ROWS: Final = RowSelection()


class Execute(msgspec.Struct, frozen=True, kw_only=True):
    views: tuple[SliceView, ...]
    places: tuple[int, ...]
    """The view of each table."""
    parameters: dict[str, Any] | list[Any] | None = None
    explain: bool = False
    rows: RowSelection = ALL_ROWS
    pipe: str = ""
    """A named pipe for the Arrow stream of rows; ``SCHEMA`` says when it begins. Empty: rows come in frames."""
    saves: tuple[str, ...] = ()
    """Write the views to these files, instead of answering; the end says the statement as another engine reads it."""
    answer: str = ""
    """With ``save_bytes``: write the rows of the statement to this file instead."""
    folds: tuple[str, ...] = ()
    """With ``save_bytes``: write the views to these database files instead, as earlier rows of later views."""
    save_bytes: int = 0
    """That a file may have."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    rows: int
    statement: str = ""


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
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
    """Yields one JSON value in pieces. Raises LimitExceeded."""
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
                rule="query-layout", hint="ask for fewer rows, or for JsonAoA, which is sent as it is computed",
            )  # fmt: skip
    members = (_encode(name) + b":[" + column + b"]" for name, column in zip(names, columns, strict=True))
    yield b"{" + b",".join(members) + b"}"


def _values(values: pa.Array) -> list[Any]:
    return list(values.to_pylist()) if pa.types.is_integer(values.type) else plain_values(values)
