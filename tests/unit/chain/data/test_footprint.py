"""Files made to take all memory, and honest ones that must not notice: rows come in pieces, or the file is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st

from chain.data import dictionaries, footprint, logical_hash, parquet
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import open_slice
from chain.data.thrift import MAP, STRUCT, Compact, ThriftError
from chain.errors import Invalid
from worlds.depth import share
from worlds.table_strategies import tables

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


def written(folder: Path, column: pa.Array, **options: object) -> Path:
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
    return written(tmp_path, column(), **options)


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
    path = written(tmp_path, texts, dictionary_pagesize_limit=8 * MEBI)
    before = pool.max_memory()
    hashed = logical_hash_file(path)
    assert pool.max_memory() - before < 256 * MEBI
    whole = logical_hash.LogicalHasher(pa.schema([("a", pa.string())]))
    for _ in range(200):
        whole.update(pa.record_batch({"a": ["y" * MEBI]}))
    assert hashed == whole.finish()


@pytest.mark.slow
def test_prefixes_that_grow(tmp_path: Path, pool: pa.MemoryPool) -> None:
    path = written(
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


def test_thrift_ends_somewhere() -> None:
    for raw in (b"\x1c" * 1000, b"\x19\xfc\xff\xff\xff\xff\x0f", b"\x15" + b"\xff" * 20, b"\x18\xff\xff\x7f"):
        with pytest.raises(ThriftError):
            Compact(raw).skip(STRUCT)
