"""Earlier rows: found by their keys, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, NotFound
from chain.multihash import Multihash
from chain.store.files import ObjectDamaged
from engines.spark.ingest import streamed
from engines.spark.ingest.history import History, ranges_of
from engines.spark.ingest.streamed import ExternalSort
from worlds.depth import share

# Slices are left out only when their statistics prove that they cannot matter.

TS = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("k", pa.int64()),
        ("s", pa.string()),
        ("t", TS),
        ("d", pa.date32()),
        ("f", pa.float64()),
    ]
)
NUMBERS = {"t": pa.int64(), "d": pa.int32()}
VALUES = {
    "k": st.none() | st.integers(-3, 3),
    "s": st.none() | st.sampled_from(["", "a", "b", "é"]),
    "t": st.none() | st.integers(-3, 3),
    "d": st.none() | st.sampled_from([-719_530, -719_528, 0, 2_932_897]),  # years -1, 0 and 10000
    "f": st.none() | st.sampled_from([0.0, 1.0, float("nan")]),
}
ROW = st.fixed_dictionaries(VALUES)


def table(rows: list[dict[str, object]], start: int) -> pa.Table:
    full = [{"offset": start + n, **row} for n, row in enumerate(rows)]
    columns = [pa.array([row.get(name) for row in full], NUMBERS.get(name)) for name in SCHEMA.names]
    return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(150))
@given(st.lists(st.lists(ROW, min_size=1, max_size=4), max_size=3), st.lists(ROW, max_size=4), st.data())
def test_no_slice_that_could_match_is_left_out(
    tmp_path: Path, slices: list[list[dict[str, object]]], batch: list[dict[str, object]], data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    paths, start = [], 0
    for number, rows in enumerate(slices):
        paths.append(tmp_path / f"slice-{number}")
        pq.write_table(table(rows, start), paths[-1], row_group_size=2)
        start += len(rows)
    kept = History(SCHEMA, paths).overlapping(ranges_of(table(batch, 0).select(keys)))

    def key(row: dict[str, object]) -> tuple[object, ...] | None:
        values = tuple("nan" if row[name] != row[name] else row[name] for name in keys)
        return None if None in values else values

    new = {key(row) for row in batch} - {None}
    for path, rows in zip(paths, slices, strict=True):
        if {key(row) for row in rows} & new:
            assert path in kept


def test_disjoint_slices_are_left_out(tmp_path: Path) -> None:
    rows = [{"k": 1, "s": "a", "t": 5, "f": None}]
    pq.write_table(table(rows, 0), tmp_path / "one")
    history = History(SCHEMA, [tmp_path / "one"])
    for name, far in (("k", 2), ("s", "b"), ("t", 6)):
        other = table([{**rows[0], name: far}], 0)
        assert history.overlapping(ranges_of(other.select([name]))) == ()
    assert history.overlapping(ranges_of(table(rows, 0).select(["k", "t"]))) == (tmp_path / "one",)
    assert history.overlapping(ranges_of(table(rows, 0).select(["f"]))) == (tmp_path / "one",)


def test_rows_by_offset_come_from_several_slices(tmp_path: Path) -> None:
    for start in (0, 3):
        rows = [{"k": n, "s": None, "t": None, "f": None} for n in range(start, start + 3)]
        pq.write_table(table(rows, start).drop_columns(["f"]), tmp_path / str(start))
    history = History(SCHEMA, [tmp_path / "0", tmp_path / "3"])
    found = history.rows_at(np.array([1, 3, 5]), "offset", ["k", "f"])
    assert found.to_pylist() == [{"k": 1, "f": None}, {"k": 3, "f": None}, {"k": 5, "f": None}]
    with pytest.raises(Invalid, match="1 earlier rows are not in the slices given"):
        history.rows_at(np.array([1, 9]), "offset", ["k"])


def test_a_slice_that_is_not_there_or_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(b"PAR1 and no more")
    keys = table([{"k": 1, "s": None, "t": None, "f": None}], 0).select(["k"])
    with pytest.raises(NotFound, match="no slice gone"):
        History(SCHEMA, [tmp_path / "gone"]).overlapping(ranges_of(keys))
    with pytest.raises(Invalid, match="torn is not a readable Parquet file"):
        History(SCHEMA, [tmp_path / "torn"]).overlapping(ranges_of(keys))


def test_what_is_merged_with_is_hashed_before(tmp_path: Path) -> None:
    names = []
    for start in (0, 3):
        path = tmp_path / str(start)
        pq.write_table(table([{"k": n, "s": "a", "t": None, "f": None} for n in range(start, start + 3)], start), path)
        names.append(Multihash.sha3_256(path.read_bytes()))
    raw = bytearray((tmp_path / "3").read_bytes())
    raw[6] ^= 1
    (tmp_path / "3").write_bytes(raw)

    def history() -> History:
        return History(SCHEMA, [tmp_path / "0", tmp_path / "3"], names)

    assert history().rows_at(np.array([1]), "offset", ["k"]).num_rows == 1
    with pytest.raises(ObjectDamaged, match=names[1].short) as told:
        history().rows_at(np.array([1, 4]), "offset", ["k"])
    assert told.value.hint
    (tmp_path / "3").write_bytes(raw[:50])
    with pytest.raises(ObjectDamaged, match=names[1].short):
        history().overlapping(ranges_of(table([{"k": 1, "s": None, "t": None, "f": None}], 0).select(["k"])))


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4), st.randoms())
def test_rows_of_shards_are_found_though_their_offsets_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], lot: Random
) -> None:
    """Slices of each shard follow one another, and what is known of a row is its offset and the run it is in."""
    folder, paths, rows = tmp_path_factory.mktemp("shards"), [], {}
    for place, slices in enumerate(shards):
        start = 0
        for number, count in enumerate(slices):
            found = [{"k": place * 100 + start + each} for each in range(count)]
            paths.append(folder / f"{place}-{number}")
            pq.write_table(table(found, start), paths[-1])
            rows.update({(place, start + each): row["k"] for each, row in enumerate(found)})
            start += count
    history = History(SCHEMA, paths)
    runs = history.runs("offset")
    assert [path for run in runs for path in run] == paths
    assert len(runs) == len(shards), "each shard begins at offset 0"
    wanted = sorted((offset * len(runs) + place, k) for (place, offset), k in rows.items() if lot.random() < 0.5)
    got = history.rows_of_runs(np.array([place for place, _ in wanted], np.int64), "offset", ["k"])
    assert got.column("k").to_pylist() == [k for _, k in wanted]


# Rows that are sorted on disk come in the order of a stable sort of them all, however they were cut into parts.

PARTS = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=12), min_size=1, max_size=8)
KINDS = st.sampled_from([pa.timestamp("ms", "UTC"), pa.timestamp("ns", "UTC"), pa.date32()])


def rows_of(times: list[int], kind: pa.DataType, first: int) -> pa.Table:
    width = pa.int32() if kind == pa.date32() else pa.int64()
    names = [f"row {first + number}" for number in range(len(times))]
    return pa.table({"time": pa.array(times, width).cast(kind), "name": names})


@given(PARTS, KINDS, st.integers(1, 40), st.integers(1, 4))
def test_the_order_is_that_of_all_rows(parts: list[list[int]], kind: pa.DataType, window: int, sampled: int) -> None:
    whole = [time for part in parts for time in part]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "WINDOW", window)
        patch.setattr(streamed, "SAMPLED", sampled)
        runs, first = ExternalSort(Path(folder), "time"), 0
        for part in parts:
            runs.add(rows_of(part, kind, first))
            first += len(part)
        merged = list(runs.merge())
    assert all(piece.num_rows <= window + sampled * (len(parts) + 1) for piece in merged)
    expected = rows_of(whole, kind, 0).take(pa.array(np.argsort(whole, kind="stable")))
    assert pa.concat_tables(merged).equals(expected)


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "run-0.arrow").symlink_to("/dev/full")
    with pytest.raises(Environment, match="run-0"):
        ExternalSort(tmp_path, "time").add(rows_of([1] * 100_000, pa.date32(), 0))
