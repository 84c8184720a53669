from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain import instant
from chain.data import parquet
from chain.data.parquet import SliceWriter, open_slice, write_slice
from chain.errors import Environment, Invalid, NotFound

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
