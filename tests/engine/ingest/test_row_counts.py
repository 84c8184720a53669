"""What became of every row, by each merge strategy: held against a plain account of the same batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from chain.model.source import (
    MergeAppend,
    MergeChangelogStream,
    MergeLedger,
    MergeSnapshot,
    MergeStrategy,
    MergeUpsertStream,
    SqlQueryStep,
    TransformSql,
    traits,
)
from engines.contract import RowCounts, SkippedFile, Success
from engines.output_check import operations
from worlds.depth import share

DDL = "event_time TIMESTAMP, k STRING, v BIGINT"
OP_DDL = f"op INT, {DDL}"
KEYS = ("k",)
Row = tuple[int, str, int | None, int]
"""Hour of the event, key, value, operation (read by the strategies that know one)."""
batches = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 23), st.sampled_from("abcd"), st.none() | st.integers(0, 2), st.sampled_from([0, 0, 1])
        ),
        max_size=6,
    ),
    min_size=1,
    max_size=3,
)
few = settings(max_examples=share(12), suppress_health_check=[HealthCheck.function_scoped_fixture])


def text(rows: Sequence[Row], *, op: bool = False) -> str:
    lines = [
        (f"{row[3]}," if op else "") + f"2020-01-01T{row[0]:02}:00:00Z,{row[1]},{'' if row[2] is None else row[2]}"
        for row in rows
    ]
    return "\n".join([("op," if op else "") + "event_time,k,v", *lines, ""])


def said(made: Any, answer: Any) -> dict[str, int]:
    """What the engine says, and what its slice holds; only what is not zero."""
    assert isinstance(answer, Success), answer
    assert isinstance(answer.rows, RowCounts)
    named = {name: getattr(answer.rows, name) for name in RowCounts.__struct_fields__ if name != "skipped"}
    if answer.new_offset_interval is not None:
        named.update(operations(Path(made.slices[-1]), "op")._asdict())
    return {name: count for name, count in named.items() if count}


def expected(strategy: MergeStrategy, before: list[list[Row]], batch: list[Row]) -> dict[str, int]:
    found: Counter[str] = Counter(read=len(batch), shaped=len(batch))
    state: dict[str, Row] = {}
    known: dict[str, set[Row]] = {}
    for rows in before:
        _, state, known = merged(strategy, rows, state, known)
    found.update(merged(strategy, batch, state, known)[0])
    return {name: count for name, count in found.items() if count}


def merged(
    strategy: MergeStrategy, batch: list[Row], state: dict[str, Row], known: dict[str, set[Row]]
) -> tuple[Counter[str], dict[str, Row], dict[str, set[Row]]]:
    """Of one batch by the rules of the format; ``state``: newest row of a key, ``known``: rows of keys in a ledger."""
    found: Counter[str] = Counter()
    after, seen = dict(state), {key: set(rows) for key, rows in known.items()}
    match strategy:
        case MergeAppend():
            found["append"] = len(batch)
        case MergeLedger():
            for row in batch:
                old = known.get(row[1])
                kind = (
                    "append" if old is None else "unchanged" if row[:3] in {each[:3] for each in old} else "conflicting"
                )
                found[kind] += 1
                if old is None:
                    seen.setdefault(row[1], set()).add(row)
        case MergeChangelogStream():
            for row in batch:
                found[("append", "retract")[row[3]]] += 1
        case MergeSnapshot():
            for row in batch:
                old_row = state.get(row[1])
                if old_row is None:
                    found["append"] += 1
                elif old_row[:3] != row[:3]:
                    found.update(correct_from=1, correct_to=1)
                else:
                    found["unchanged"] += 1
            found["retract"] = len(state.keys() - {row[1] for row in batch})
            after = {row[1]: row for row in batch}
        case MergeUpsertStream():
            last = {row[1]: row for row in batch}
            found["superseded"] = len(batch) - len(last)
            for key, row in last.items():
                old_row = state.get(key)
                if row[3]:
                    found["retract" if old_row is not None else "unchanged"] += 1
                    after.pop(key, None)
                elif old_row is None:
                    found["append"] += 1
                    after[key] = row
                elif old_row[:3] != row[:3]:
                    found.update(correct_from=1, correct_to=1)
                    after[key] = row
                else:
                    found["unchanged"] += 1
        case _:
            raise AssertionError(strategy)
    return found, after, seen


@pytest.mark.parametrize(
    "strategy",
    [kind(**dict.fromkeys(kind.__struct_fields__[:1], KEYS)) for kind in get_args(MergeStrategy)],
    ids=lambda strategy: type(strategy).__name__,
)
@few
@given(given_batches=batches)
def test_each_row_is_accounted_for(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    dataset_class: Any,
    csv_step: Callable[..., Any],
    strategy: MergeStrategy,
    given_batches: list[list[Row]],
) -> None:
    op = traits(strategy).carries_op
    made = dataset_class(spark, tmp_path_factory.mktemp("rows"), strategy)
    before: list[list[Row]] = []
    for batch in given_batches:
        rows = list({row[1]: row for row in batch}.values()) if traits(strategy).whole_state else batch
        watermark = made.watermark
        answer = made.ingest(text(rows, op=op), csv_step(OP_DDL if op else DDL))
        found = said(made, answer)
        late = found.pop("late", 0)
        assert found == expected(strategy, before, rows)
        assert watermark is not None or late == 0
        before.append(rows)


def test_late_rows_are_kept_and_counted(dataset: Callable[..., Any], csv_step: Callable[..., Any]) -> None:
    made = dataset(MergeAppend())
    made.ingest(text([(5, "a", 1, 0)]), csv_step(DDL))
    found = said(made, made.ingest(text([(4, "a", 1, 0), (5, "b", 1, 0), (6, "c", 1, 0)]), csv_step(DDL)))
    assert found == {"read": 3, "shaped": 3, "append": 3, "late": 1}


def test_rows_that_preprocess_leaves_out_are_told_from_those_read(
    dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    made = dataset(MergeAppend())
    query = TransformSql(
        engine="spark", queries=(SqlQueryStep(query="SET odf.ahead = 'any'; select * from input where v > 1"),)
    )
    answer = made.ingest(text([(1, "a", 1, 0), (2, "b", 2, 0), (3, "c", 3, 0)]), csv_step(DDL), preprocess=query)
    assert said(made, answer) == {"read": 3, "shaped": 2, "append": 2}


def test_a_file_without_bytes_is_named_and_the_others_are_read(
    dataset: Callable[..., Any], csv_step: Callable[..., Any]
) -> None:
    made = dataset(MergeAppend())
    answer = made.ingest([text([(1, "a", 1, 0)]), ""], csv_step(DDL))
    assert said(made, answer) == {"read": 1, "shaped": 1, "append": 1}
    assert answer.rows.skipped == (SkippedFile(name="input-1.csv", reason="it is empty"),)
