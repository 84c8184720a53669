"""Footers of strangers: ours is read as pyarrow reads it, and none ends the process. pyarrow alone dies of these."""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from chain.data import footer
from chain.data.footer import ParquetFooter, parse_footer
from chain.data.parquet import open_slice
from chain.errors import Fault, Invalid
from worlds.table_strategies import tables

ROWS = pa.table({"n": pa.array([7, 8]), "s": ["a", "b"], "l": [[1], []]})


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False, **options)
    return sink.getvalue()


def footer_of(raw: bytes) -> bytes:
    (length,) = struct.unpack("<i", raw[-8:-4])
    return raw[-8 - length : -8]


def with_footer(raw: bytes, changed: bytes) -> bytes:
    return raw[: -8 - len(footer_of(raw))] + changed + struct.pack("<i", len(changed)) + b"PAR1"


def read_all(raw: bytes) -> ParquetFooter:
    with open_slice(raw) as source:
        source.stats("n", "t")
        source.tail(1)
        for _ in source.batches(encoded=True):
            pass
        return source.footer


@pytest.mark.slow
def test_no_flipped_bit_ends_the_process() -> None:
    raw = written(ROWS)
    whole = footer_of(raw)
    refused = 0
    for at in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        try:
            read_all(with_footer(raw, bytes(flipped)))
        except Fault:
            refused += 1
    assert refused > len(whole)


@pytest.mark.slow
@given(tables(), st.sampled_from(["NONE", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"]), st.booleans())
def test_chunks_are_as_pyarrow_has_them(table: pa.Table, codec: str, dictionary: bool) -> None:
    options = {"compression": codec, "use_dictionary": dictionary, "row_group_size": 2}
    try:
        raw = written(table, version="2.6", **options)
    except pa.ArrowNotImplementedError:  # it cannot cut some nested types into row groups
        reject()
    theirs, ours = pq.ParquetFile(pa.BufferReader(raw)).metadata, parse_footer(footer_of(raw))
    assert (ours.rows, len(ours.groups)) == (theirs.num_rows, theirs.num_row_groups)
    columns = [theirs.schema.column(number) for number in range(theirs.num_columns)]
    assert [(leaf.path, leaf.repeated) for leaf in ours.leaves] == [
        (column.path, column.max_repetition_level > 0) for column in columns
    ]
    for number, group in enumerate(ours.groups):
        assert group.rows == theirs.row_group(number).num_rows
        for place, chunk in enumerate(group.chunks):
            assert_alike(chunk, theirs.row_group(number).column(place))


def assert_alike(ours: footer.ColumnChunk, theirs: pq.ColumnChunkMetaData) -> None:
    assert ours.codec.removesuffix("_raw") == theirs.compression.lower()
    assert (ours.values, ours.opened_size) == (theirs.num_values, theirs.total_uncompressed_size)
    assert (ours.stored_size, ours.data_page) == (theirs.total_compressed_size, theirs.data_page_offset)
    assert (ours.dictionary_page is not None) == theirs.has_dictionary_page
    if theirs.has_dictionary_page:
        assert ours.dictionary_page == theirs.dictionary_page_offset
    stats = theirs.statistics
    if stats is None or not stats.has_min_max:
        return
    assert ours.bounds is not None
    if theirs.physical_type in ("INT32", "INT64"):
        assert [int.from_bytes(end, "little", signed=True) for end in ours.bounds] == [stats.min_raw, stats.max_raw]
    if stats.has_null_count:
        assert ours.nulls == stats.null_count


I64 = struct.pack("<q", 8)
CRAFTED = {
    "a bound of three bytes": (b"(\x08" + I64, b"(\x03abc"),
    "an unknown codec": (b"\x18\x01n\x15\x02", b"\x18\x01n\x15\x22"),
    "another physical type": (b"\x1c\x15\x04\x19", b"\x1c\x15\x0c\x19"),
    "a physical type that is none": (b"\x1c\x15\x04\x19", b"\x1c\x15\x60\x19"),
    "metadata under another number": (b"&\x00\x1c\x15\x04", b"&\x00\x3c\x15\x04"),
    "a field that stands twice": (b"\x1c\x15\x04\x19", b"\x1c\x15\x04\x05\x02\x04\x19"),
    "a stop with a number": (b"\x18\x01n\x15\x02", b"\x18\x01n\x10\x15\x02"),
    "a column fewer": (b"\x19<&\x00\x1c", b"\x19,&\x00\x1c"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_footer_is_refused(name: str) -> None:
    raw = written(ROWS)
    whole = footer_of(raw)
    before, after = CRAFTED[name]
    assert before in whole
    with pytest.raises(Invalid, match="not a readable Parquet file"):
        read_all(with_footer(raw, whole.replace(before, after)))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(Invalid):
        parse_footer(raw)
