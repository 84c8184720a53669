from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from chain.data import arrow0_values, dictionaries, parquet
from chain.data import logical_hash as module
from chain.data.logical_hash import LogicalHasher, logical_hash, logical_hash_file, logical_hashes
from chain.data.parquet import write_slice
from chain.errors import Invalid
from worlds.arrow0_reference import reference_hash
from worlds.depth import share
from worlds.table_strategies import tables

GOLDEN = Path(__file__).parents[3] / "golden" / "arrow-digest"
INDEX = json.loads((GOLDEN / "index.json").read_text())
FREE = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", sorted(INDEX))
def test_files_hash_as_the_reference_hashes_them(name: str) -> None:
    assert str(logical_hash_file(GOLDEN / name)) == INDEX[name]["logicalHash"]


def test_there_are_golden_files() -> None:
    assert len(INDEX) == 80


def test_the_pinned_vector() -> None:
    table = pa.table({"offset": [1, 0], "city": ["B", "A"], "population": pa.array([200, 100], pa.uint64())})
    expected = "f9680c001200b3483eecc3d5c6b50ee6b8cba11b51c08f89ea1f53d3a334c743199f5fe656e"
    assert str(logical_hash(table)) == expected


LISTS = pa.list_(pa.int32())
EQUAL = [
    (pa.array(["foo", "bar"]), pa.array(["foo", "bar"], pa.large_string())),
    (pa.array(["foo", "bar"]), pa.array(["foo", "bar"], pa.string_view())),
    (pa.array([b"one", b"two"]), pa.array([b"one", b"two"], pa.binary(3))),
    (pa.array([b"one", b"", b"two"]), pa.array([b"one", b"", b"two"], pa.binary_view())),
    (pa.array([True, False, None]), pa.array([None, True, False, None])[1:]),
]
DIFFERENT = [
    (pa.array([1, 2, 3]), pa.array([1, 2, None, 3])),
    (pa.array([1, 2, 3], pa.int32()), pa.array([1, 2, 3], pa.uint32())),
    (pa.array([True, False]), pa.array([True, True])),
    (pa.array(["foo", "bar"]), pa.array(["foo", "", "bar"])),
    (pa.array(["foo", ""]), pa.array(["foo", None])),
    (pa.array([[0, 1], None, [3, None]], LISTS), pa.array([[0, 1], None, [3, 4]], LISTS)),
    (pa.array([[3, None, 4, 5], [6, 7]], LISTS), pa.array([[3, None, 4], [5, 6, 7]], LISTS)),
    (pa.array([b"one", b"", b"two"]), pa.array([b"one", b"two"])),
    (pa.array([{"c": 1}, {"c": 2}]), pa.array([{"c": 1}, None])),
    (pa.array([0.0]), pa.array([-0.0])),
]


@pytest.mark.parametrize("one, other", EQUAL)
def test_encodings_do_not_matter(one: pa.Array, other: pa.Array) -> None:
    assert logical_hash(pa.table({"a": one})) == logical_hash(pa.table({"a": other}))


@pytest.mark.parametrize("one, other", DIFFERENT)
def test_values_matter(one: pa.Array, other: pa.Array) -> None:
    assert logical_hash(pa.table({"a": one})) != logical_hash(pa.table({"a": other}))


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("s"),
        pa.dictionary(pa.int32(), pa.string()),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.struct([("a", pa.int32())])),
        pa.list_view(pa.int32()),
        pa.month_day_nano_interval(),
    ],
)
def test_types_without_a_hash_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(Invalid, match="have no logical hash") as caught:
        logical_hash(pa.table({"ok": pa.array([], pa.int8()), "bad": pa.array([], kind)}))
    assert caught.value.place == "column 'bad'"


def test_a_column_of_nothing_but_nulls_is_refused_only_when_it_has_rows() -> None:
    logical_hash(pa.table({"a": pa.nulls(0)}))
    with pytest.raises(Invalid):
        logical_hash(pa.table({"a": pa.nulls(1)}))


def test_rows_of_another_schema_are_refused() -> None:
    hasher = LogicalHasher(pa.schema([("a", pa.int32())]))
    with pytest.raises(Invalid, match="another schema"):
        hasher.update(pa.record_batch({"a": pa.array([1])}))


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of four rows and row groups of seven, so that small tables cross both."""
    monkeypatch.setattr(module, "QUIRK_WINDOW", 4)
    monkeypatch.setattr(module, "WIDE_WINDOW", 5)
    monkeypatch.setattr(module, "SHARED_WINDOW", 6)
    monkeypatch.setattr(parquet, "ROW_GROUP", 7)


@pytest.mark.slow
@FREE
@given(data=st.data())
def test_vectorised_is_row_by_row(data: st.DataObject, small_windows: None) -> None:
    table = data.draw(tables())
    assert logical_hash(table).digest == reference_hash(table, window=4, row_group=7)


@pytest.mark.slow
@FREE
@given(data=st.data())
def test_slicing_into_batches_does_not_matter(data: st.DataObject, small_windows: None) -> None:
    table = data.draw(tables())
    cuts = sorted(data.draw(st.sets(st.integers(0, table.num_rows))))
    whole = logical_hash(table)
    hasher = LogicalHasher(table.schema)
    for start, stop in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        for batch in table.slice(start, stop - start).to_batches():
            hasher.update(batch)
    assert hasher.finish() == whole


@pytest.mark.slow
@settings(FREE, max_examples=share(60))
@given(data=st.data())
def test_a_file_hashes_like_its_rows(data: st.DataObject, small_windows: None, tmp_path: Path) -> None:
    table = data.draw(tables())
    # Parquet has no seconds; below a missing struct pyarrow can neither read a list of fixed size nor write views.
    kinds = str(table.schema)
    assume(not any(kind in kinds for kind in ("time32[s]", "timestamp[s]", "fixed_size_list")))
    assume(not ("_view" in kinds and "struct" in kinds))
    path = tmp_path / "slice"
    write_slice(table, path)
    assert logical_hash_file(path) == logical_hash(table)


@pytest.mark.slow
@FREE
@given(data=st.data())
def test_slices_together_hash_as_each_alone(data: st.DataObject, small_windows: None) -> None:
    """Of row groups of their own, as small files are."""
    table = data.draw(tables().filter(lambda table: 0 < table.num_rows <= 7))
    batch = table.combine_chunks().to_batches()[0]
    cuts = data.draw(st.sets(st.integers(1, batch.num_rows - 1))) if batch.num_rows > 1 else set()
    bounds = [0, *sorted(cuts), batch.num_rows]
    alone = [logical_hash(batch.slice(start, stop - start)) for start, stop in itertools.pairwise(bounds)]
    assert logical_hashes(batch, bounds) == alone


WORDS = st.sampled_from([None, "", "a", "b", "gamma", "δ", "a long word of more than one line"])


@FREE
@given(texts=st.lists(WORDS, max_size=60), piece=st.integers(1, 200), cut=st.integers(0, 60), data=st.data())
def test_dictionaries_do_not_matter(
    texts: list[str | None], piece: int, cut: int, data: st.DataObject, small_windows: None
) -> None:
    plain = pa.array(texts, data.draw(st.sampled_from([pa.string(), pa.binary()])))
    hasher = LogicalHasher(pa.schema([("a", plain.type)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow0_values, "PIECE", piece)
        for part in (plain[:cut], plain[cut:]):
            hasher.update(pa.record_batch({"a": part.dictionary_encode()}))
        assert hasher.finish() == logical_hash(pa.table({"a": plain}))


def repeating(path: Path, rows: int = 5_000) -> pa.Table:
    """A file of several row groups, two columns of which hold a few texts again and again."""
    rng = np.random.default_rng(rows)
    few = pa.array(["x", "yy", None, "zzz" * 5])
    table = pa.table(
        {
            "n": np.arange(rows),
            "text": few.take(pa.array(rng.integers(0, 4, rows))),
            "bytes": few.take(pa.array(rng.integers(0, 4, rows))).cast(pa.binary()),
            "key": [f"key {n}" for n in range(rows)],
        }
    )
    pq.write_table(table, path, row_group_size=1_300)
    return table


def test_texts_that_repeat_are_not_spelt_out_and_hash_alike(tmp_path: Path) -> None:
    table = repeating(tmp_path / "few")
    with parquet.open_slice(tmp_path / "few") as source:
        kinds = [field.type for field in next(source.batches(encoded=True)).schema]
    assert [pa.types.is_dictionary(kind) for kind in kinds] == [False, True, True, False]
    assert logical_hash_file(tmp_path / "few") == logical_hash(table)


def test_a_dictionary_beyond_its_footer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeating(tmp_path / "few")
    monkeypatch.setattr(dictionaries, "MAX_DICTIONARY", 10)
    with pytest.raises(Invalid, match="'text' is larger than the footer says"):
        logical_hash_file(tmp_path / "few")


@pytest.mark.slow
def test_columns_side_by_side_give_the_same() -> None:
    rng = np.random.default_rng(7)
    table = pa.table({f"c{i}": rng.random(150_000) for i in range(5)} | {"s": [str(i) for i in range(150_000)]})
    with ThreadPoolExecutor(3) as pool:
        assert logical_hash(table, pool) == logical_hash(table)


def test_row_groups_of_a_file_are_heard(tmp_path: Path, small_windows: None) -> None:
    """A null of a present struct is hashed as what the reference's reader left in its slot, per row group."""
    rows = [{"x": 5}, {"x": None}, None, {"x": 7}, {"x": None}, {"x": 8}, None, {"x": None}]
    table = pa.table({"p": pa.array(rows, pa.struct([("x", pa.int64())]))})
    for size in (1, 2, 3, 8):
        path = tmp_path / f"{size}"
        pq.write_table(table, path, row_group_size=size)
        assert logical_hash_file(path).digest == reference_hash(table, window=4, row_group=size)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long"
    write_slice(pa.table({"a": np.arange(3_000_000), "s": pa.array(["text"] * 3_000_000)}), path)
    before = pa.total_allocated_bytes()
    peak = 0
    with parquet.open_slice(path) as source:
        hasher = LogicalHasher(source.schema, row_groups=source.row_groups)
        for batch in source.batches():
            hasher.update(batch)
            peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 24_000_000, "less than one column of one row group"
