"""Rows are looked up by key as a dictionary of all earlier rows would find them, however these are cut into slices."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engines.contract import Vocab
from engines.spark.ingest import key_match
from engines.spark.ingest.history import History

VOCAB = Vocab()
TIME = pa.timestamp("ms", "UTC")
COLUMNS = {"event_time": TIME, "k": pa.int64(), "s": pa.string(), "v": pa.float64(), "d": pa.decimal128(9, 2)}
FORCE = pa.schema([("offset", pa.int64()), ("op", pa.int32()), *COLUMNS.items()])
ROW = st.fixed_dictionaries(
    {
        "event_time": st.sampled_from([None, 0, 1]),
        "k": st.sampled_from([None, -1, 0, 1, 2]) | st.sampled_from([2**63 - 1, -(2**63)]),
        "s": st.sampled_from([None, "", "ab", "\0"]),
        "v": st.sampled_from([None, math.nan, 0.0, -0.0, 1.5]),
        "d": st.sampled_from([None, 1, 2]),
    }
)
EARLIER = st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3]), ROW), max_size=12)
TAKEN_BACK = st.lists(st.booleans(), min_size=8, max_size=8)
STANDS = {"event_time": 1, "k": 0, "s": None, "v": math.nan, "d": 1}
"""A row of which nothing changes if it comes again, with its time or without."""
KEYS = st.sampled_from([("k",), ("s",), ("d",), ("k", "s"), ("s", "d", "k")])
Row = dict[str, Any]


def table(rows: list[Row]) -> pa.Table:
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
    return key_match.Sought(table(rows), keys, tuple(name for name in COLUMNS if name not in keys))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_match, "ROW_GROUP", 3)


@pytest.mark.slow
@given(EARLIER, st.lists(st.integers(1, 11), max_size=3), st.lists(ROW, max_size=8), KEYS, st.booleans(), TAKEN_BACK)
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
@given(EARLIER, st.lists(st.integers(1, 11), max_size=3), st.lists(ROW, min_size=1, max_size=8), KEYS)
@settings(deadline=None)
def test_rows_of_a_ledger_are_new_or_told_before(
    earlier: list[tuple[int, Row]], cuts: list[int], rows: list[Row], keys: tuple[str, ...]
) -> None:
    with TemporaryDirectory() as folder:
        before = history(earlier, cuts, Path(folder))
        unseen = key_match.unseen_rows(table(rows), keys, before, VOCAB, before.paths)
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
    by_float = key_match.Sought(table([row]), ("v",), ())
    assert key_match.changed_rows(by_float, before, VOCAB, None, whole=True) is None
    monkeypatch.setattr(key_match, "MAX_LOST", 0)
    assert key_match.changed_rows(sought([], ("k",)), before, VOCAB, None, whole=True) is None
    monkeypatch.setattr(key_match, "MAX_PAIRS", 0)
    assert key_match.repeating_rows(sought([row], ("k",)), before, VOCAB, before.paths) is None
