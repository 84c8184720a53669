"""Writes rows as JSON in the layouts that kamu's nodes know: objects, arrays, or a list for each column.

Integers are numbers whatever their size; decimals, times and bytes are text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from chain.data.json_values import plain_values
from engines.errors import LimitExceeded

Layout = Literal["JsonAoS", "JsonSoA", "JsonAoA"]
"""An array of structures, a structure of arrays, an array of arrays."""
MAX_COLUMNS_BYTES: Final = 64 << 20
"""Of a structure of arrays, which is whole in memory before its first byte leaves."""
_ROWS: Final = 4096
"""Made into Python's values at once."""
_encode: Final = msgspec.json.Encoder().encode


def json_pieces(batches: Iterable[pa.RecordBatch], names: list[str], layout: Layout) -> Iterator[bytes]:
    """One JSON value in pieces. Raises LimitExceeded."""
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
