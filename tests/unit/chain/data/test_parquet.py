"""Slices as files: written, read, and those of strangers refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, assume, example, given, reject, settings
from hypothesis import strategies as st

from chain import instant
from chain.data import dictionaries, footer, footprint, logical_hash, parquet
from chain.data.footer import ParquetFooter, parse_footer
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import SliceWriter, open_slice, write_slice
from chain.data.thrift import BINARY, I32, MAP, STRUCT, Compact, ThriftError, Wanted
from chain.errors import Environment, Fault, Invalid, NotFound
from worlds.depth import share
from worlds.table_strategies import tables

#

TIME = pa.timestamp("ms", "UTC")


def rows(count: int, start: int = 0) -> pa.Table:
    return pa.table(
        {
            "offset": pa.array(range(start, start + count), pa.int64()),
            "op": pa.array([0] * count, pa.int32()),
            "system_time": pa.array([1_700_000_000_000] * count, TIME),
            "event_time": pa.array([1_600_000_000_000 + i for i in range(count)], TIME),
            "tags": pa.array([["a", None]] * count, pa.list_(pa.string())),
            "where": pa.array([{"x": 1.5}] * count, pa.struct([("x", pa.float64())])),
        }
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_slice(rows(10), tmp_path / "s")
    with open_slice(tmp_path / "s") as source:
        assert source.rows == 10
        assert source.read().equals(rows(10))
        assert [b.num_rows for b in source.batches(rows=4)] == [4, 4, 2]
        assert source.tail(3).equals(rows(10).slice(7))
        assert source.tail(3, ["offset"]).column("offset").to_pylist() == [7, 8, 9]


def test_bytes_are_a_function_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP", 64)
    whole = rows(200)
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 63), whole.slice(64, 100), whole.slice(164)])
    write_slice(whole, tmp_path / "one")
    write_slice(pieces, tmp_path / "many")
    with SliceWriter(tmp_path / "streamed", whole.schema) as writer:
        for batch in whole.to_batches(max_chunksize=7):
            writer.write(batch)
    assert writer.rows == 200
    one = (tmp_path / "one").read_bytes()
    assert one == (tmp_path / "many").read_bytes() == (tmp_path / "streamed").read_bytes()
    with open_slice(tmp_path / "one") as source:
        assert source.row_groups == [64, 64, 64, 8]
        assert source.tail(10).equals(whole.slice(190))


def test_settings_are_the_pinned_ones(tmp_path: Path) -> None:
    write_slice(rows(100), tmp_path / "s")
    metadata = pq.ParquetFile(tmp_path / "s").metadata
    columns = {metadata.row_group(0).column(i).path_in_schema: metadata.row_group(0).column(i) for i in range(6)}
    assert {one.compression for one in columns.values()} == {"SNAPPY"}
    assert all(one.statistics is not None for one in columns.values())
    assert {name for name, one in columns.items() if not one.has_dictionary_page} == {"offset"}
    assert "tags.list.element" in columns
    assert "where.x" in columns
    assert metadata.schema.to_arrow_schema().field("system_time").type == TIME


def test_stats_come_from_the_footer_or_the_column(tmp_path: Path) -> None:
    write_slice(rows(10, start=5), tmp_path / "s")
    pq.write_table(rows(10, start=5), tmp_path / "bare", write_statistics=False)
    first = instant.from_millis(1_600_000_000_000)
    for name in ("s", "bare"):
        with open_slice(tmp_path / name) as file:
            stats = file.stats()
        assert stats.rows == 10
        assert stats.offsets == (5, 14)
        assert stats.event_times == (first, first + 9 * instant.MILLISECOND)


def test_stats_of_dates_and_of_nothing(tmp_path: Path) -> None:
    dates = pa.table({"offset": [0, 1], "when": pa.array([dt.date(1970, 1, 2), None])})
    write_slice(dates, tmp_path / "dates")
    day = 86_400 * instant.SECOND
    write_slice(dates.slice(0, 0), tmp_path / "none")
    with open_slice(tmp_path / "dates") as some, open_slice(tmp_path / "none") as none:
        assert some.stats(event_time="when").event_times == (day, day)
        assert none.stats() == parquet.SliceStats(0, None, None)


@pytest.mark.parametrize("kind", [pa.timestamp("s", "UTC"), pa.time32("s"), pa.date64(), pa.list_(pa.time32("s"))])
def test_types_that_parquet_would_change_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="Parquet has no type"):
        write_slice(pa.table({"a": pa.array([], kind)}), tmp_path / "s")
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_offsets_take_next_to_nothing(tmp_path: Path) -> None:
    write_slice(rows(100_000, start=1 << 40), tmp_path / "s")
    offsets = pq.ParquetFile(tmp_path / "s").metadata.row_group(0).column(0)
    assert offsets.path_in_schema == "offset"
    assert offsets.total_compressed_size < 2_000
    with open_slice(tmp_path / "s") as file:
        assert file.stats().offsets == ((1 << 40), (1 << 40) + 99_999)


def test_an_exception_leaves_no_file(tmp_path: Path) -> None:
    def write() -> None:
        with SliceWriter(tmp_path / "s", rows(1).schema) as writer:
            writer.write(rows(5))
            writer.write(pa.table({"a": [1]}))

    with pytest.raises(Invalid, match="another schema"):
        write()
    assert not (tmp_path / "s").exists()


def test_a_folder_that_is_not_there_is_the_environments_fault(tmp_path: Path) -> None:
    with pytest.raises(Environment, match="cannot write"):
        write_slice(rows(1), tmp_path / "no" / "s")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_slice(tmp_path / "s")


@pytest.mark.parametrize("damage", ["empty", "text", "head", "cut", "middle"])
def test_damage_is_told_as_such(tmp_path: Path, damage: str) -> None:
    write_slice(rows(20_000), tmp_path / "s")
    good = (tmp_path / "s").read_bytes()
    half = len(good) // 2
    raw = {
        "empty": b"",
        "text": b"offset,op\n1,2\n",
        "head": good[:half],
        "cut": good[: half // 2] + good[half:],
        "middle": good[:half] + bytes(3000) + good[half + 3000 :],
    }[damage]
    (tmp_path / "s").write_bytes(raw)
    with pytest.raises(Invalid, match="not a readable Parquet file"), open_slice(tmp_path / "s") as source:
        for _ in source.batches():
            pass


# Footers of strangers: ours is read as pyarrow reads it, and none ends the process. pyarrow alone dies of these.

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
    """Attack T-BYTES-01: a footer that ends the process: a chunk without metadata, an unknown codec, a bound of the
    wrong width (C++ errors of pyarrow that Python does not see).

    Defence: our own strict reader (`chain/data/footer.py`) reads footers; pyarrow reads schema and rows alone, from the
    checked bytes.
    """
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


# Files made to take all memory, and honest ones that must not notice: rows come in pieces, or the file is refused.

MEBI = 1 << 20
FREE = settings(
    max_examples=share(60),
    phases=[Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts from now on what Arrow allocates."""
    usual = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counting)
    try:
        yield counting
    finally:
        pa.set_memory_pool(usual)


def references(count: int, *texts: str) -> pa.Array:
    """A column that refers to the last of ``texts`` over and over."""
    places = np.full(count, len(texts) - 1, np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(list(texts)))


def write_bomb(folder: Path, column: pa.Array, **options: object) -> Path:
    path = folder / "bomb"
    pq.write_table(pa.table({"a": column}), path, store_schema=False, write_statistics=False, **options)
    return path


def repeated(count: int) -> pa.Array:
    """One row that is a list of nulls."""
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), pa.nulls(count, pa.int64()))


@pytest.fixture
def bomb(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Made for the test that asks for it, in the usual memory: only what reading it takes is counted."""
    column, options = request.param
    return write_bomb(tmp_path, column(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (
            (lambda: pa.array([bytes(300 * MEBI)]), {"compression": "zstd", "use_dictionary": False}),
            "pages of 314,572,8",
        ),
        ((lambda: repeated(20_000_000), {"compression": "zstd"}), "20,000,000 values of column 'a.list.element'"),
        ((lambda: pa.nulls(20_000_000, pa.bool_()), {"row_group_size": 10**9}), "20,000,000 rows in "),
        ((lambda: references(50_000, "", "x" * MEBI), {"compression": "zstd"}), "stand for more than "),
    ],
    indirect=["bomb"],
    ids=["page", "list", "rows", "text"],
)
def test_bombs_are_refused(bomb: Path, pool: pa.MemoryPool, message: str) -> None:
    """Attack T-BYTES-01: slices that expand when they are read.

    Defence: page headers are checked first: few rows at a time, long texts as references, or a refusal; footers of 16
    MiB at most.
    """
    assert bomb.stat().st_size < MEBI
    before = pool.max_memory()
    with (
        mock.patch.object(dictionaries, "FREE_TEXT", 50 * MEBI),
        mock.patch.object(footprint, "FREE_VALUES", MEBI),
        mock.patch.object(footprint, "VALUES_PER_BYTE", 64),
        pytest.raises(Invalid, match=message) as caught,
    ):
        logical_hash_file(bomb)
    assert caught.value.rule == "slice-footprint"
    assert pool.max_memory() - before < 256 * MEBI


@pytest.mark.slow
def test_a_long_text_is_written_out_where_it_is_worth_it(tmp_path: Path, pool: pa.MemoryPool) -> None:
    texts = references(200, "short", "y" * MEBI)
    path = write_bomb(tmp_path, texts, dictionary_pagesize_limit=8 * MEBI)
    before = pool.max_memory()
    hashed = logical_hash_file(path)
    assert pool.max_memory() - before < 256 * MEBI
    whole = logical_hash.LogicalHasher(pa.schema([("a", pa.string())]))
    for _ in range(200):
        whole.update(pa.record_batch({"a": ["y" * MEBI]}))
    assert hashed == whole.finish()


@pytest.mark.slow
def test_prefixes_that_grow(tmp_path: Path, pool: pa.MemoryPool) -> None:
    path = write_bomb(
        tmp_path, pa.array(["z" * MEBI] * 100), use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"}
    )
    assert path.stat().st_size < 2 * MEBI
    before = pool.max_memory()
    logical_hash_file(path)
    assert pool.max_memory() - before < 256 * MEBI


@pytest.mark.slow
def test_windows_that_matter_are_kept_within_reason(tmp_path: Path) -> None:
    inner = pa.array(["w" * (MEBI // 64)] * 9_000)
    path = tmp_path / "s"
    pq.write_table(pa.table({"s": pa.StructArray.from_arrays([inner], ["x"])}), path)
    with (
        mock.patch.object(logical_hash, "MAX_WINDOW_BYTES", 40 * MEBI),
        pytest.raises(Invalid, match="nullable") as caught,
    ):
        logical_hash_file(path)
    assert caught.value.rule == "logical-hash-window"


@pytest.mark.slow
@FREE
@given(data=st.data())
def test_the_hash_does_not_depend_on_the_room(data: st.DataObject, tmp_path: Path) -> None:
    table = data.draw(tables(max_rows=30))
    # Arrow neither writes views in parts nor reads nulls of lists of fixed size.
    assume(not any(kind in str(table.schema) for kind in ("view", "fixed_size_list")))
    path = tmp_path / "slice"
    pq.write_table(
        table,
        path,
        row_group_size=data.draw(st.sampled_from([4, 100])),
        data_page_size=data.draw(st.sampled_from([20, 1000])),
        write_batch_size=data.draw(st.sampled_from([2, 1024])),
        compression=data.draw(st.sampled_from(["snappy", "zstd"])),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
    )
    try:
        whole = pq.read_table(path)
    except pa.ArrowInvalid:
        reject()  # Lists below a null struct in the smallest pages of version 2: Arrow does not read what it wrote.
    expected = logical_hash_file(path)
    with (
        mock.patch.object(footprint, "BATCH_BYTES", data.draw(st.sampled_from([1, 40, 200]))),
        mock.patch.object(dictionaries, "BATCH_BYTES", data.draw(st.sampled_from([1, 5]))),
        mock.patch.object(footprint, "_SHORT", 0),
    ):
        assert logical_hash_file(path) == expected
        with open_slice(path) as source:
            assert pa.Table.from_batches(source.batches(), source.schema).to_pylist() == whole.to_pylist()


@pytest.mark.slow
def test_references_in_every_shape_are_written_out(tmp_path: Path) -> None:
    texts = ["a", "bb" * 40, None, "", "bb" * 40] * 20
    table = pa.table(
        {
            "plain": pa.array(texts),
            "viewed": pa.array(texts, pa.string_view()),
            "bytes": pa.array([None if text is None else text.encode() for text in texts]).cast(pa.binary_view()),
            "lists": pa.array([[text, "x"] for text in texts], pa.large_list(pa.large_string())),
            "deep": pa.array([[[text]] for text in texts], pa.list_(pa.list_(pa.string_view(), 1))),
            "struct": pa.array([{"x": text, "n": 1, "y": [text]} for text in texts]),
            "map": pa.array([[("key", text)] for text in texts], pa.map_(pa.string(), pa.string())),
            "number": pa.array(range(100)),
        }
    )
    pq.write_table(table, tmp_path / "s", row_group_size=30)
    with (
        mock.patch.object(footprint, "BATCH_BYTES", 300),
        mock.patch.object(dictionaries, "BATCH_BYTES", 300),
        open_slice(tmp_path / "s") as source,
    ):
        batches = list(source.batches())
    assert len(batches) > 10
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()
    assert batches[0].schema.types == table.schema.types


def test_most_slices_are_read_as_before(tmp_path: Path) -> None:
    golden = Path(__file__).parents[3] / "golden" / "kamu"
    for path in sorted(golden.glob("*/data/*")):
        with path.open("rb") as file:
            found = footprint.plan(file, path.stat().st_size, parquet.open_slice(path).footer)
        assert found == footprint.FootprintPlan(parquet.READ_ROWS, {})


def test_a_footer_of_absurd_size(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with path.open("wb") as file:
        file.truncate(200 * MEBI)
        file.seek(0, 2)
        file.write(struct.pack("<I", 150 * MEBI) + b"PAR1")
    with pytest.raises(Invalid, match="a footer of 157,286,400 bytes"), open_slice(path):
        pass


@pytest.mark.slow
def test_headers_that_lie(tmp_path: Path) -> None:
    """Every byte of the page headers turned, one at a time: a hash or Invalid, never anything else."""
    path = tmp_path / "s"
    table = pa.table({"a": ["x" * 2000, "y", "x" * 2000], "l": [[1], [2, 3], None]})
    # Statistics of the long texts would be nine tenths of the bytes.
    pq.write_table(table, path, compression="zstd", write_statistics=["l.list.element"], store_schema=False)
    raw = path.read_bytes()
    refused = 0
    with mock.patch.object(footprint, "BATCH_BYTES", 100), mock.patch.object(footprint, "FREE_VALUES", 1000):
        for place in range(4, len(raw) - 8):
            for turned in (raw[place] ^ 0x81, 0xFF):
                path.write_bytes(raw[:place] + bytes([turned]) + raw[place + 1 :])
                try:
                    logical_hash_file(path)
                except Invalid as fault:
                    refused += bool(fault.rule)
    assert refused > 50


@given(st.binary(max_size=60))
def test_any_bytes_are_thrift_or_broken(raw: bytes) -> None:
    for kind in (STRUCT, MAP):
        reader = Compact(raw)
        try:
            reader.skip(kind)
        except ThriftError:
            continue
        assert 0 < reader.at <= len(raw)


@given(st.binary(max_size=60))
@example(b"\x15\x02\x15\x02\x00")
@example(b"\x15\x80\x01\x18\x02ab\x1c\x15\x02\x00\x00")
@example(b"\x06\x02\x02\x00")
@example(b"\x05\x80\x01\x02\x00")
def test_a_struct_is_read_as_its_fields_are(raw: bytes) -> None:
    """Field by field, and by one call: the same values, the same end, the same refusal."""
    kinds: Wanted = {1: I32, 2: BINARY, 3: {1: I32}}
    assert _outcome(lambda reader: reader.struct(kinds), raw) == _outcome(lambda reader: _fields(reader, kinds), raw)


def _outcome(read: Callable[[Compact], dict[int, Any]], raw: bytes) -> tuple[dict[int, Any], int] | None:
    reader = Compact(raw)
    try:
        return read(reader), reader.at
    except ThriftError:
        return None


def _fields(reader: Compact, wanted: Wanted) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for number, kind in reader.fields():
        want = wanted.get(number)
        if want is None:
            reader.skip(kind)
        elif kind != (want if isinstance(want, int) else STRUCT):
            raise ThriftError
        elif not isinstance(want, int):
            found[number] = _fields(reader, want)
        elif kind == BINARY:
            length = reader.length()
            found[number] = reader.raw[reader.at - length : reader.at]
        else:
            found[number] = reader.number()
    return found


def test_thrift_ends_somewhere() -> None:
    for raw in (b"\x1c" * 1000, b"\x19\xfc\xff\xff\xff\xff\x0f", b"\x15" + b"\xff" * 20, b"\x18\xff\xff\x7f"):
        with pytest.raises(ThriftError):
            Compact(raw).skip(STRUCT)
