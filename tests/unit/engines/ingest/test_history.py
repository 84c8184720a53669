"""Earlier rows: found by their keys as a dictionary of them would find them, in any order, however slices cut them."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, NotFound
from chain.multihash import Multihash
from chain.store.files import ObjectDamaged
from engines.contract import Vocab
from engines.spark.ingest import key_match, streamed
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


# Rows are looked up by key as a dictionary of all earlier rows would find them, however these are cut into slices.

VOCAB = Vocab()
TIME = pa.timestamp("ms", "UTC")
COLUMNS = {"event_time": TIME, "k": pa.int64(), "s": pa.string(), "v": pa.float64(), "d": pa.decimal128(9, 2)}
FORCE = pa.schema([("offset", pa.int64()), ("op", pa.int32()), *COLUMNS.items()])
KEYED_ROW = st.fixed_dictionaries(
    {
        "event_time": st.sampled_from([None, 0, 1]),
        "k": st.sampled_from([None, -1, 0, 1, 2]) | st.sampled_from([2**63 - 1, -(2**63)]),
        "s": st.sampled_from([None, "", "ab", "\0"]),
        "v": st.sampled_from([None, math.nan, 0.0, -0.0, 1.5]),
        "d": st.sampled_from([None, 1, 2]),
    }
)
EARLIER = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3]), KEYED_ROW), max_size=12)
TAKEN_BACK = st.lists(st.booleans(), min_size=8, max_size=8)
STANDS = {"event_time": 1, "k": 0, "s": None, "v": math.nan, "d": 1}
"""A row of which nothing changes if it comes again, with its time or without."""
KEYS = st.sampled_from([("k",), ("s",), ("d",), ("k", "s"), ("s", "d", "k")])
Row = dict[str, Any]


def keyed(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema(list(COLUMNS.items())))


def history(earlier: list[tuple[int, Row]], cuts: list[int], folder: Path) -> History:
    rows = [{"offset": number, "op": op, **row} for number, (op, row) in enumerate(earlier)]
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    paths = []
    for start, end in itertools.pairwise(bounds):
        paths.append(folder / f"slice-{start}")
        pq.write_table(pa.Table.from_pylist(rows[start:end], FORCE), paths[-1])
    return History(FORCE, paths)


def key_of(row: Row, keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(row[name] for name in keys)


def equal(new: Row, old: Row, keys: tuple[str, ...]) -> bool:
    def same(name: str) -> bool:
        one, other = new[name], old[name]
        if one is None and name == "event_time":
            return True
        both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
        return bool(both_nan or one == other)

    return all(same(name) for name in new if name not in keys)


def sought(rows: list[Row], keys: tuple[str, ...]) -> key_match.Sought:
    return key_match.Sought(keyed(rows), keys, tuple(name for name in COLUMNS if name not in keys))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_match, "ROW_GROUP", 3)


@pytest.mark.slow
@given(
    EARLIER, st.lists(st.integers(1, 11), max_size=3), st.lists(KEYED_ROW, max_size=8), KEYS, st.booleans(), TAKEN_BACK
)
@example([(0, STANDS)], [], [STANDS | {"event_time": None}], ("k",), True, [])
@settings(deadline=None)
def test_changes_are_those_of_a_dictionary(
    earlier: list[tuple[int, Row]],
    cuts: list[int],
    rows: list[Row],
    keys: tuple[str, ...],
    whole: bool,
    taken_back: list[bool],
) -> None:
    rows = list({key_of(row, keys): row for row in rows}.values())
    gone = None if whole else np.array(taken_back[: len(rows)], bool)
    with TemporaryDirectory() as folder:
        found = key_match.changed_rows(
            sought(rows, keys), history(earlier, cuts, Path(folder)), VOCAB, gone, whole=whole
        )
    assert found is not None
    newest = {key_of(row, keys): (number, op, row) for number, (op, row) in enumerate(earlier)}
    state = {key: (number, row) for key, (number, op, row) in newest.items() if op != 1}
    expected = []
    for number, row in enumerate(rows):
        place, old = state.pop(key_of(row, keys), (-1, None))
        if gone is not None and gone[number]:
            expected += [(place, -1)] if old is not None else []
        elif old is None or not equal(row, old, keys):
            expected.append((place, number))
    expected += [(place, -1) for place, _ in state.values()] if whole else []
    assert sorted(zip(found.old.tolist(), found.new.tolist(), strict=True)) == sorted(expected)


@pytest.mark.slow
@given(EARLIER, st.lists(st.integers(1, 11), max_size=3), st.lists(KEYED_ROW, min_size=1, max_size=8), KEYS)
@settings(deadline=None)
def test_rows_of_a_ledger_are_new_or_told_before(
    earlier: list[tuple[int, Row]], cuts: list[int], rows: list[Row], keys: tuple[str, ...]
) -> None:
    with TemporaryDirectory() as folder:
        before = history(earlier, cuts, Path(folder))
        unseen = key_match.unseen_rows(keyed(rows), keys, before, VOCAB, before.paths)
        repeating = key_match.repeating_rows(sought(rows, keys), before, VOCAB, before.paths)

    def meets(row: Row) -> list[Row]:
        key = key_of(row, keys)
        return [] if None in key else [old for _, old in earlier if key_of(old, keys) == key]

    assert unseen is not None
    assert unseen.tolist() == [number for number, row in enumerate(rows) if not meets(row)]
    assert repeating == sum(any(equal(row, old, keys) for old in meets(row)) for row in rows)


def test_of_a_key_in_two_shards_the_row_of_the_greater_offset_is_the_newest(tmp_path: Path) -> None:
    """Shards count their offsets by themselves, and the slices of one come after all of the other."""
    empty: Row = dict.fromkeys(COLUMNS)
    old, now = empty | {"k": 1, "d": 1}, empty | {"k": 1, "d": 2}
    for name, rows in (("one", [empty, empty, now]), ("other", [old, empty, empty])):
        shard = [{"offset": number, "op": 0, **row} for number, row in enumerate(rows)]
        pq.write_table(pa.Table.from_pylist(shard, FORCE), tmp_path / name)
    before = History(FORCE, [tmp_path / "one", tmp_path / "other"])
    found = key_match.changed_rows(sought([now], ("k",)), before, VOCAB, None, whole=False)
    assert found is not None
    assert not found.taken, "the row says what the newest says"


def test_keys_of_many_columns_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Numbers of keys stay within 64 bits: they are counted anew where they would not."""
    monkeypatch.setattr(key_match, "_MAX_CODE", 5)
    keys = ("k", "s", "d")
    rows = [dict.fromkeys(COLUMNS) | {"k": n % 3, "s": "ab"[n % 2], "d": n // 6} for n in range(12)]
    found = key_match.changed_rows(
        sought(rows[3:], keys), history([(0, row) for row in rows[:9]], [4], tmp_path), VOCAB, None, whole=True
    )
    assert found is not None
    pairs = sorted(zip(found.old.tolist(), found.new.tolist(), strict=True))
    assert pairs == [(-1, 6), (-1, 7), (-1, 8), (0, -1), (1, -1), (2, -1)]


def test_what_is_not_compared_here_is_left_to_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = dict.fromkeys(COLUMNS) | {"k": 1}
    before = history([(0, row)], [], tmp_path)
    by_float = key_match.Sought(keyed([row]), ("v",), ())
    assert key_match.changed_rows(by_float, before, VOCAB, None, whole=True) is None
    monkeypatch.setattr(key_match, "MAX_LOST", 0)
    assert key_match.changed_rows(sought([], ("k",)), before, VOCAB, None, whole=True) is None
    monkeypatch.setattr(key_match, "MAX_PAIRS", 0)
    assert key_match.repeating_rows(sought([row], ("k",)), before, VOCAB, before.paths) is None
