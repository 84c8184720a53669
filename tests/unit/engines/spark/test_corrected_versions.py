"""Versions of keys out of a ledger that was corrected: event time ranks them, and slicing does not matter."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from chain.data.parquet import write_slice
from chain.errors import Invalid
from engines.contract import Vocab
from engines.spark.analysis.influence import VersionedInput
from engines.spark.execution.inputs import advance
from engines.spark.planning.transaction import BlockFacts, VersionStep
from engines.spark.rows.changelog import NEVER
from worlds.depth import share

SECOND = 1_000_000
STAMP = pa.timestamp("us", "UTC")
SCHEMA = spark.StructType(
    [
        spark.StructField("offset", spark.LongType()),
        spark.StructField("op", spark.IntegerType()),
        spark.StructField("system_time", spark.TimestampType()),
        spark.StructField("event_time", spark.TimestampType()),
        spark.StructField("k", spark.LongType()),
        spark.StructField("v", spark.LongType()),
    ]
)
Statement = tuple[int, int, int, int]
"""Op, event time in seconds, key, value."""


@st.composite
def ledgers(draw):
    """Blocks of statements, each with the watermark after it; what is corrected or retracted stands."""
    standing: list[tuple[int, int, int]] = []
    blocks: list[tuple[list[Statement], int]] = []
    mark = value = 0
    for _ in range(draw(st.integers(1, 6))):
        said: list[Statement] = []
        for _ in range(draw(st.integers(0, 4))):
            value += 1
            what = draw(st.sampled_from("aaaccr")) if standing else "a"
            time, key = draw(st.integers(0, 12)), draw(st.integers(0, 1))
            if what == "a":
                row = (time, key, value)
                said.append((0, *row))
                standing.append(row)
                continue
            old = standing.pop(draw(st.integers(0, len(standing) - 1)))
            if what == "r":
                said.append((1, *old))
                continue
            row = (old[0], old[1], value)
            said += [(2, *old), (3, *row)]
            standing.append(row)
        mark += draw(st.integers(0, 4))
        blocks.append((said, mark))
    return blocks


def written(blocks, folder):
    """Facts of the blocks, their slices in ``folder``; and all statements with when each counts, rank and row."""
    facts, statements, offset, before = [], [], 0, None
    for number, (said, after) in enumerate(blocks):
        path = None
        if said:
            path = str(folder / f"{number}.parquet")
            columns = list(zip(*said, strict=True))
            offsets = np.arange(offset, offset + len(said))
            times = pa.array([time * SECOND for time in columns[1]], pa.int64()).cast(STAMP)
            table = pa.table(
                {
                    "offset": offsets, "op": pa.array(columns[0], pa.int32()), "system_time": times,
                    "event_time": times, "k": pa.array(columns[2], pa.int64()), "v": pa.array(columns[3], pa.int64()),
                }
            )  # fmt: skip
            write_slice(table, Path(path))
        for place, (op, time, key, value) in enumerate(said):
            tau = max(time, -1 if before is None else before, after if op == 1 else -1)
            statements.append((tau, key, (time, offset + place), None if op in (1, 2) else value))
        marks = (None if mark is None else mark * SECOND for mark in (before, after))
        facts.append(BlockFacts(str(number), path, *marks, rows=len(said)))
        offset, before = offset + len(said), after
    return facts, statements


def in_force(statements, key, at):
    """A person with a pencil: of what counts by then the highest in rank, if it asserts a row."""
    known = [(rank, value) for tau, of, rank, value in statements if of == key and tau <= at]
    return max(known)[1] if known else None


def step(blocks, since, until):
    life = VersionedInput(keys=("k",), clamped=True)
    low, high = ((-NEVER if since is None else since * SECOND), until * SECOND)
    return VersionStep(
        blocks=tuple((block, -NEVER) for block in blocks), lateness=0, life=life, seen_until=high, seen_from=low,
        kept_from=high,
    )  # fmt: skip


def valid(view, key, at):
    begins, ends = (view.column(name).cast(pa.int64()).to_pylist() for name in ("valid_from", "valid_to"))
    rows = zip(view.column("k").to_pylist(), view.column("v").to_pylist(), begins, ends, strict=True)
    found = [value for of, value, begin, end in rows if of == key and begin <= at * SECOND < end]
    assert len(found) <= 1, "two versions in force at once"
    return found[0] if found else None


@pytest.mark.slow
@given(ledgers(), st.data())
@settings(deadline=None, max_examples=share(300))
def test_what_is_in_force_is_what_a_person_would_say_in_any_slicing(blocks, data):
    cuts = sorted({*data.draw(st.lists(st.integers(1, len(blocks)), max_size=3)), len(blocks)})
    corrected = next((n for n, (said, _) in enumerate(blocks) if any(row[0] for row in said)), len(blocks))
    with tempfile.TemporaryDirectory() as folder:
        facts, statements = written(blocks, Path(folder))
        start, since, former = 0, None, None
        for cut in cuts:
            until = blocks[cut - 1][1]
            # Until its first correction its chain says that it only grows.
            changed = cut > corrected
            made = advance(step(facts[start:cut], since, until), former, SCHEMA, Vocab(), changed, by_time=changed)
            for at in range(-1 if since is None else since, until):
                for key in (0, 1):
                    assert valid(made.seen, key, at) == in_force(statements, key, at), (cut, key, at)
            start, since, former = cut, until, made.kept


def test_what_only_grows_takes_no_corrections(tmp_path):
    facts, _ = written([([(0, 1, 0, 1), (1, 1, 0, 1)], 5)], tmp_path)
    with pytest.raises(Invalid, match="holds corrections"):
        advance(step(facts, None, 5), None, SCHEMA, Vocab(), False)


def test_a_row_that_was_corrected_to_another_time_is_refused_with_the_way_out(tmp_path):
    facts, _ = written([([(0, 1, 0, 1)], 5), ([(2, 1, 0, 1), (3, 2, 0, 1)], 6)], tmp_path)
    with pytest.raises(Invalid, match="to another event time") as refused:
        advance(step(facts, None, 6), None, SCHEMA, Vocab(), True, by_time=True)
    assert "make a table" in refused.value.hint
