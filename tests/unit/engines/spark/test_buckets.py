"""Buckets: the same rows lie the same way however they came there, and only what is touched is opened."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.spark.state import files
from engines.spark.state.files import BucketedTable, StoredTable, hashes_of, pack, unpack
from worlds.depth import share

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
KEYS = st.text("abcdé", max_size=3) | st.none()


def table(rows):
    return pa.table([[k for k, _ in rows], [n for _, n in rows]], schema=SCHEMA)


def hash_of(rows):
    return hashes_of(rows.select(["k"]))


def stored(kept):
    described, parts = pack(kept)
    return unpack(described, memoryview(b"".join(parts))).stored


def rows_of(state):
    return sorted((tuple(row.values()) for each in state.values() for row in each.table().to_pylist()), key=repr)


def bytes_of(state):
    return {name: bytes(each.raw) for name, each in state.items()}


def step(state, change):
    """All rows of some keys anew."""
    bucketed = BucketedTable("t", SCHEMA, state)
    taken = pa.concat_tables([SCHEMA.empty_table(), *bucketed.take(hash_of(table([(key, 0) for key in change])))])
    others = [tuple(row.values()) for row in taken.to_pylist() if row["k"] not in change]
    return stored(
        bucketed.keep(table(others + [(key, n) for key, many in change.items() for n in range(many)]), hash_of)
    )


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(files, "BUCKET", 4)
    monkeypatch.setattr(files, "MAX_BITS", 6)


@pytest.mark.slow
@settings(max_examples=share(120))
@given(st.lists(st.dictionaries(KEYS, st.integers(0, 6), max_size=8), max_size=8))
def test_the_route_does_not_show(changes):
    state, now = {}, {}
    for change in changes:
        state = step(state, change)
        now |= change
    expected = sorted(((key, n) for key, many in now.items() for n in range(many)), key=repr)
    assert rows_of(state) == expected
    assert bytes_of(state) == bytes_of(step({}, now))
    assert all(each.rows <= 4 or name.endswith(tuple("01")) for name, each in state.items())


def test_only_touched_buckets_are_opened_and_others_are_copied(monkeypatch):
    state = step({}, {f"key {n}": 1 for n in range(500)})
    assert len(state) > 40
    opened = []
    read = StoredTable.table
    monkeypatch.setattr(StoredTable, "table", lambda self: opened.append(self) or read(self))
    after = step(state, {"key 7": 2})
    assert sum(each.rows for each in opened) <= 8 + 500 // 2**6 + 4
    assert sum(bytes(after[name].raw) == bytes(each.raw) for name, each in state.items() if name in after) > 35


def test_a_schema_that_grew_opens_all():
    state = step({}, {"a": 3, "b": 3})
    wider = pa.schema([*SCHEMA, ("new", pa.int64())])
    bucketed = BucketedTable("t", wider, state)
    old = bucketed.take(hash_of(table([("a", 0)])))
    assert sum(each.num_rows for each in old) == 6
    grown = pa.concat_tables([each.append_column("new", pa.nulls(each.num_rows, pa.int64())) for each in old])
    after = stored(bucketed.keep(grown, hash_of))
    assert bytes_of(after) == bytes_of(stored(BucketedTable("t", wider, {}).keep(grown, hash_of)))
    assert not set(after) & set(state)


def test_a_damaged_bucket_is_found_when_it_is_opened():
    described, parts = pack(BucketedTable("t", SCHEMA, {}).keep(table([("a", 1)]), hash_of))
    raw = bytearray(b"".join(parts))
    raw[40] ^= 1
    with pytest.raises(Invalid, match="damaged"):
        unpack(described, memoryview(bytes(raw)))["t/" + next(iter(described)).name.split("/", 1)[1]]


@pytest.mark.parametrize("extra", [b"x", None])
def test_state_ends_where_it_says(extra):
    described, parts = pack({"t": table([("a", 1)])})
    raw = b"".join(parts)
    with pytest.raises(Invalid):
        unpack(described, memoryview(raw + extra if extra else raw[:-1]))


def test_hashes_are_the_same_for_ever():
    """A golden number for each type: another would lose rows that are kept by it."""
    keys = pa.table(
        {
            "text": ["Zürich", "", None],
            "number": pa.array([7, -1, None], pa.int32()),
            "time": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
            "day": pa.array([1, 2, None], pa.date32()),
            "amount": pa.array(["1.50", "-2.25", None]).cast(pa.decimal128(10, 2)),
            "yes": [True, False, None],
            "raw": pa.array([b"\x00", b"", None], pa.binary()),
        }
    )
    found = {name: [format(int(each), "016x") for each in hashes_of(keys.select([name]))] for name in keys.column_names}
    assert found == GOLDEN
    assert len(set(map(int, hashes_of(keys)))) == 3
    sliced = pa.table({name: pa.concat_arrays([keys[name].combine_chunks()]).slice(1) for name in keys.column_names})
    assert list(hashes_of(sliced)) == list(hashes_of(keys)[1:])
    assert list(hashes_of(keys.select([]))) == [files._STEP] * 3


GOLDEN = {
    "text": ["221e5908af2f2b25", "623d7033fff4157d", "d8a7246c446f5feb"],
    "number": ["103d1076d4349232", "f7a5c538b1e1df56", "d8a7246c446f5feb"],
    "time": ["0b9d65dd131ac54a", "bb0912957ea8b297", "d8a7246c446f5feb"],
    "day": ["0b9d65dd131ac54a", "bb0912957ea8b297", "d8a7246c446f5feb"],
    "amount": ["734f790dbe297025", "3ebfb5c47dc79b32", "d8a7246c446f5feb"],
    "yes": ["0b9d65dd131ac54a", "623d7033fff4157d", "d8a7246c446f5feb"],
    "raw": ["28812587918f9be4", "623d7033fff4157d", "d8a7246c446f5feb"],
}
