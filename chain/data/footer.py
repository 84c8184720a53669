"""Reads the footer of a Parquet file under Thrift's strictest rules: its columns and their chunks.

pyarrow offers the same facts, but its C++ library ends the process instead of raising an error for a footer whose chunk
has no metadata, an unknown codec, or a bound of the wrong width. So chunks are read here, and pyarrow is asked for rows
and schema alone, where its errors are caught. Spec: Apache Parquet, ``parquet.thrift`` (FileMetaData, SchemaElement,
RowGroup, ColumnChunk, ColumnMetaData, Statistics).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from chain.data.thrift import BINARY, I32, I64, LIST, STRUCT, Compact, ThriftError
from chain.errors import Invalid

UNREADABLE: Final = "slice-parquet"
"""The rule of a file that is no Parquet."""
CODECS: Final = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
"""Names of codecs in pyarrow's spelling, by their number in the format."""
BYTE_ARRAY, FIXED = 6, 7
WIDTHS: Final = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""Bytes of a value of each fixed-size physical type: boolean, int32, int64, int96, float, double."""
_REPEATED: Final = 2


class Leaf(NamedTuple):
    path: str
    """Names of the column and its ancestors from the root on, joined by dots."""
    kind: int
    """Number of the physical type."""
    width: int
    """Bytes of a value in memory; zero where values differ in size."""
    repeated: bool
    """Whether a row may hold several values."""


class ColumnChunk(NamedTuple):
    """One leaf column of one row group. Sizes are bytes of the file; numbers are unchecked, as the file states them."""

    leaf: Leaf
    codec: str
    values: int
    opened_size: int
    stored_size: int
    data_page: int
    """Position in the file at which the first page of values begins."""
    dictionary_page: int | None
    nulls: int | None
    bounds: tuple[bytes, bytes] | None
    """Least and greatest value as PLAIN encodes them, texts perhaps cut short; ``None`` unless both are stated."""


class RowGroup(NamedTuple):
    """One row group of a file."""

    rows: int
    chunks: tuple[ColumnChunk, ...]
    """One chunk for each leaf, in the order of the leaves."""


class ParquetFooter(NamedTuple):
    """The fields of FileMetaData that are read. Row counts are unchecked, as the file states them."""

    rows: int
    leaves: tuple[Leaf, ...]
    groups: tuple[RowGroup, ...]


def parse_footer(raw: bytes) -> ParquetFooter:
    """Reads FileMetaData in Thrift's compact protocol. Raises Invalid, without a place."""
    reader = Compact(raw)
    rows: int | None = None
    leaves: tuple[Leaf, ...] | None = None
    groups: tuple[RowGroup, ...] = ()
    try:
        for number, kind in reader.fields():
            if number == 2:
                leaves = tuple(_leaves(reader, kind))
            elif number == 3:
                rows = _number(reader, kind, I64)
            elif number == 4 and leaves is not None:
                groups = tuple(_group(reader, leaves) for _ in range(_structs(reader, kind)))
            elif number == 4:
                raise _refusal("has row groups before a schema")
            else:
                reader.skip(kind)
    except (ThriftError, UnicodeDecodeError):
        raise _refusal("ends too early, or is none that all readers read alike") from None
    if leaves is None or rows is None:
        raise _refusal("has no schema, or no number of rows")
    return ParquetFooter(rows, leaves, groups)


@dataclass(slots=True)
class _Element:
    """A SchemaElement: a column, or a group of the elements that follow it."""

    kind: int | None = None
    length: int = 0
    repetition: int = 0
    name: str = ""
    children: int = 0


def _leaves(reader: Compact, kind: int) -> list[Leaf]:
    """Returns the columns of the schema, whose elements are stored in the order of a walk from the root."""
    found: list[Leaf] = []
    above: list[tuple[str, bool]] = []
    left: list[int] = []
    for place in range(_structs(reader, kind)):
        element = _element(reader)
        while left and not left[-1]:
            left.pop()
            above.pop()
        if place and not left:
            raise _refusal("has elements beside the root of its schema")
        if left:
            left[-1] -= 1
        path, repeated = above[-1] if above else ("", False)
        path = f"{path}.{element.name}" if path else element.name
        repeated |= element.repetition == _REPEATED
        if element.kind is None:
            left.append(element.children)
            above.append((path if place else "", repeated and place > 0))
        elif element.children or not place:
            raise _refusal("has an element of the schema that is a column and a group")
        else:
            found.append(Leaf(path, element.kind, _width(element), repeated))
    if any(left):
        raise _refusal("has a group of the schema without all of its elements")
    return found


def _element(reader: Compact) -> _Element:
    found = _Element()
    for number, kind in reader.fields():
        if number == 1:
            found.kind = _number(reader, kind, I32)
        elif number == 2:
            found.length = _number(reader, kind, I32)
        elif number == 3:
            found.repetition = _number(reader, kind, I32)
        elif number == 4:
            found.name = _binary(reader, kind).decode()
        elif number == 5:
            found.children = _number(reader, kind, I32)
        else:
            reader.skip(kind)
    if found.children < 0:
        raise _refusal("has a group of fewer than no elements")
    return found


def _width(element: _Element) -> int:
    if element.kind == FIXED:
        return max(element.length, 0)
    if element.kind != BYTE_ARRAY and element.kind not in WIDTHS:
        raise _refusal(f"has a column of physical type {element.kind}, which is none")
    return WIDTHS.get(element.kind, 0)


def _group(reader: Compact, leaves: tuple[Leaf, ...]) -> RowGroup:
    rows: int | None = None
    chunks: tuple[ColumnChunk, ...] | None = None
    for number, kind in reader.fields():
        if number == 3:
            rows = _number(reader, kind, I64)
        elif number != 1:
            reader.skip(kind)
        elif (count := _structs(reader, kind)) != len(leaves):
            raise _refusal(f"has a row group of {count} columns under a schema of {len(leaves)}")
        else:
            chunks = tuple(_chunk(reader, leaf) for leaf in leaves)
    if rows is None or chunks is None:
        raise _refusal("has a row group without columns, or without a number of rows")
    return RowGroup(rows, chunks)


def _chunk(reader: Compact, leaf: Leaf) -> ColumnChunk:
    found: ColumnChunk | None = None
    for number, kind in reader.fields():
        if number == 3:
            _expect(kind, STRUCT)
            found = _metadata(reader, leaf)
        elif number in (8, 9):
            raise _refusal(f"says that column {leaf.path!r} is encrypted")
        else:
            reader.skip(kind)
    if found is None:
        raise _refusal(f"has a chunk of column {leaf.path!r} without metadata")
    return found


_NEEDED: Final = {1: I32, 4: I32, 5: I64, 6: I64, 7: I64, 9: I64}
_DICTIONARY_PAGE, _STATISTICS = 11, 12


def _metadata(reader: Compact, leaf: Leaf) -> ColumnChunk:
    numbers: dict[int, int] = {}
    nulls, bounds = None, None
    for number, kind in reader.fields():
        if number in _NEEDED or number == _DICTIONARY_PAGE:
            numbers[number] = _number(reader, kind, _NEEDED.get(number, I64))
        elif number == _STATISTICS:
            _expect(kind, STRUCT)
            nulls, bounds = _statistics(reader, leaf)
        else:
            reader.skip(kind)
    if not numbers.keys() >= _NEEDED.keys():
        raise _refusal(f"has a chunk of column {leaf.path!r} without its numbers")
    if numbers[1] != leaf.kind:
        raise _refusal(f"has a chunk of physical type {numbers[1]} in column {leaf.path!r} of type {leaf.kind}")
    if not 0 <= numbers[4] < len(CODECS):
        raise _refusal(f"has a chunk of column {leaf.path!r} in codec {numbers[4]}, which is none")
    sizes = numbers[5], numbers[6], numbers[7], numbers[9]
    return ColumnChunk(leaf, CODECS[numbers[4]], *sizes, numbers.get(_DICTIONARY_PAGE), nulls, bounds)


def _statistics(reader: Compact, leaf: Leaf) -> tuple[int | None, tuple[bytes, bytes] | None]:
    """Returns number of nulls, and bounds. The older pair of bounds has a defined order for signed numbers alone."""
    nulls = None
    ends: dict[int, bytes] = {}
    for number, kind in reader.fields():
        if number in (1, 2, 5, 6):
            ends[number] = _binary(reader, kind)
        elif number == 3:
            nulls = _number(reader, kind, I64)
        else:
            reader.skip(kind)
    low, high = (6, 5) if 6 in ends or leaf.kind not in (1, 2) else (2, 1)
    if low not in ends or high not in ends or (leaf.width and not (ends[low] or ends[high])):
        return nulls, None
    if leaf.width and not len(ends[low]) == len(ends[high]) == leaf.width:
        raise _refusal(f"bounds column {leaf.path!r} by values of {len(ends[low])} and {len(ends[high])} bytes")
    return nulls, (ends[low], ends[high])


def _structs(reader: Compact, kind: int) -> int:
    """Returns the number of structs that follow in a list."""
    _expect(kind, LIST)
    count, item = reader.items()
    if count:
        _expect(item, STRUCT)
    return count


def _number(reader: Compact, kind: int, wanted: int) -> int:
    _expect(kind, wanted)
    return reader.number()


def _binary(reader: Compact, kind: int) -> bytes:
    _expect(kind, BINARY)
    length = reader.length()
    return reader.raw[reader.at - length : reader.at]


def _expect(kind: int, wanted: int) -> None:
    if kind != wanted:
        raise _refusal("has a field of another type than Parquet's")


def _refusal(why: str) -> Invalid:
    return Invalid(f"not a readable Parquet file: its footer {why}", rule=UNREADABLE, hint="fetch it again")
