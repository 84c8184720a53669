"""Reads the footer of a Parquet file under Thrift's strictest rules: its columns and their chunks.

pyarrow offers the same facts, but its C++ library ends the process instead of raising an error for a footer whose chunk
has no metadata, an unknown codec, or a bound of the wrong width. So chunks are read here, and pyarrow is asked for rows
and schema alone, where its errors are caught. Spec: Apache Parquet, ``parquet.thrift`` (FileMetaData, SchemaElement,
RowGroup, ColumnChunk, ColumnMetaData, Statistics).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from chain.data.thrift import BINARY, I32, I64, LIST, STRUCT, Compact, ThriftError, ThriftKindError, Wanted
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
                leaves = _schema(reader, kind)
            elif number == 3:
                rows = _number(reader, kind, I64)
            elif number == 4 and leaves is not None:
                groups = tuple(_group(reader, leaves) for _ in range(_structs(reader, kind)))
            elif number == 4:
                raise _refusal("has row groups before a schema")
            else:
                reader.skip(kind)
    except ThriftKindError:
        raise _refusal("has a field of another type than Parquet's") from None
    except (ThriftError, UnicodeDecodeError):
        raise _refusal("ends too early, or is none that all readers read alike") from None
    if leaves is None or rows is None:
        raise _refusal("has no schema, or no number of rows")
    return ParquetFooter(rows, leaves, groups)


_SCHEMAS: Final = 4
_schemas: deque[tuple[bytes, int, tuple[Leaf, ...]]] = deque(maxlen=_SCHEMAS)
"""The schemas that were read last: their bytes, Thrift's type of the field, their columns.

Slices of a dataset share one, and to read it is a quarter of the work on a small slice's footer."""
_MAX_SHARED: Final = 1 << 16
"""Bytes of a schema that is kept, at most."""


def _schema(reader: Compact, kind: int) -> tuple[Leaf, ...]:
    """Returns the columns of the schema."""
    start = reader.at
    for raw, kind_then, leaves in tuple(_schemas):
        # What is read from here on depends on nothing before, so the same bytes are the same schema, and end there.
        if kind == kind_then and reader.raw.startswith(raw, start):
            reader.at += len(raw)
            return leaves
    leaves = tuple(_leaves(reader, kind))
    if (raw := reader.raw[start : reader.at]) and len(raw) <= _MAX_SHARED:
        _schemas.append((raw, kind, leaves))
    return leaves


_ELEMENT: Final = {1: I32, 2: I32, 3: I32, 4: BINARY, 5: I32}
_KIND, _LENGTH, _REPETITION, _NAME, _CHILDREN = _ELEMENT
"""Fields of a SchemaElement: a column, or a group of the elements that follow it."""


def _leaves(reader: Compact, kind: int) -> list[Leaf]:
    """Returns the columns of the schema, whose elements are stored in the order of a walk from the root."""
    found: list[Leaf] = []
    above: list[tuple[str, bool]] = []
    left: list[int] = []
    for place in range(_structs(reader, kind)):
        element = reader.struct(_ELEMENT)
        children = element.get(_CHILDREN, 0)
        if children < 0:
            raise _refusal("has a group of fewer than no elements")
        while left and not left[-1]:
            left.pop()
            above.pop()
        if place and not left:
            raise _refusal("has elements beside the root of its schema")
        if left:
            left[-1] -= 1
        path, repeated = above[-1] if above else ("", False)
        name = element.get(_NAME, b"").decode()
        path = f"{path}.{name}" if path else name
        repeated |= element.get(_REPETITION) == _REPEATED
        if _KIND not in element:
            left.append(children)
            above.append((path if place else "", repeated and place > 0))
        elif children or not place:
            raise _refusal("has an element of the schema that is a column and a group")
        else:
            found.append(Leaf(path, element[_KIND], _width(element[_KIND], element.get(_LENGTH, 0)), repeated))
    if any(left):
        raise _refusal("has a group of the schema without all of its elements")
    return found


def _width(kind: int, length: int) -> int:
    if kind == FIXED:
        return max(length, 0)
    if kind != BYTE_ARRAY and kind not in WIDTHS:
        raise _refusal(f"has a column of physical type {kind}, which is none")
    return WIDTHS.get(kind, 0)


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


_NEEDED: Final = {1: I32, 4: I32, 5: I64, 6: I64, 7: I64, 9: I64}
_DICTIONARY_PAGE, _STATISTICS = 11, 12
_BOUNDS: Final[Wanted] = {1: BINARY, 2: BINARY, 3: I64, 5: BINARY, 6: BINARY}
_METADATA, _CRYPTO, _CIPHERED = 3, 8, 9
_CHUNK: Final[Wanted] = {
    _METADATA: {**_NEEDED, _DICTIONARY_PAGE: I64, _STATISTICS: _BOUNDS},
    _CRYPTO: {},
    _CIPHERED: BINARY,
}
"""Fields of a ColumnChunk, of its ColumnMetaData and of its Statistics."""


def _chunk(reader: Compact, leaf: Leaf) -> ColumnChunk:
    chunk = reader.struct(_CHUNK)
    if _CRYPTO in chunk or _CIPHERED in chunk:
        raise _refusal(f"says that column {leaf.path!r} is encrypted")
    if _METADATA not in chunk:
        raise _refusal(f"has a chunk of column {leaf.path!r} without metadata")
    metadata = chunk[_METADATA]
    if not metadata.keys() >= _NEEDED.keys():
        raise _refusal(f"has a chunk of column {leaf.path!r} without its numbers")
    if metadata[1] != leaf.kind:
        raise _refusal(f"has a chunk of physical type {metadata[1]} in column {leaf.path!r} of type {leaf.kind}")
    if not 0 <= metadata[4] < len(CODECS):
        raise _refusal(f"has a chunk of column {leaf.path!r} in codec {metadata[4]}, which is none")
    sizes = metadata[5], metadata[6], metadata[7], metadata[9]
    statistics = metadata.get(_STATISTICS, {})
    return ColumnChunk(
        leaf, CODECS[metadata[4]], *sizes, metadata.get(_DICTIONARY_PAGE), statistics.get(3), _bounds(statistics, leaf)
    )


def _bounds(statistics: Mapping[int, Any], leaf: Leaf) -> tuple[bytes, bytes] | None:
    """Returns the bounds. The older pair of them has a defined order for signed numbers alone."""
    low, high = (6, 5) if 6 in statistics or leaf.kind not in (1, 2) else (2, 1)
    if low not in statistics or high not in statistics:
        return None
    least, greatest = statistics[low], statistics[high]
    if leaf.width and not (least or greatest):
        return None
    if leaf.width and not len(least) == len(greatest) == leaf.width:
        raise _refusal(f"bounds column {leaf.path!r} by values of {len(least)} and {len(greatest)} bytes")
    return least, greatest


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


def _expect(kind: int, wanted: int) -> None:
    if kind != wanted:
        raise ThriftKindError


def _refusal(why: str) -> Invalid:
    return Invalid(f"not a readable Parquet file: its footer {why}", rule=UNREADABLE, hint="fetch it again")
