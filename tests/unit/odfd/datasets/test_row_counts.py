"""The records beside the blocks: whatever is appended, given up or merged, sums are those of the records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.ids import DatasetId
from chain.store.database import Database
from engines.contract import RowCounts, SkippedFile
from odfd.store import row_counts
from odfd.store.row_counts import add_counts

DATASET, OTHER = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "test.sqlite")
    opened.migrate(row_counts.ROOM, row_counts.STEPS)
    yield opened
    opened.close()


def counts(read: int, *files: str) -> RowCounts:
    return RowCounts(read=read, unchanged=read, skipped=tuple(SkippedFile(name=name, reason="x") for name in files))


commands = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 9)),
        st.tuples(st.just("idle"), st.just(0), st.integers(1, 9)),
        st.tuples(st.just("reset"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("merge"), st.integers(0, 9), st.integers(2, 4)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commands)
def test_sums_are_those_of_the_records(database: Database, ran: list[tuple[str, int, int]]) -> None:
    model: list[tuple[int, bool, int]] = []
    """(block, idle, rows read) of each transaction."""
    size = 1
    with database.write() as connection:
        row_counts.COUNTS.forget(connection, DATASET)
        row_counts.keep(connection, OTHER, 3, counts(1000))
        for command, one, two in ran:
            if command == "append":
                size += one
                row_counts.keep(connection, DATASET, size - 1, counts(two))
                model.append((size - 1, False, two))
            elif command == "idle":
                row_counts.keep(connection, DATASET, size - 1, counts(two), idle=True)
                model.append((size - 1, True, two))
            elif command == "reset":
                size = max(1, min(size, one))
                row_counts.cut(connection, DATASET, size)
                model = [each for each in model if each[0] < size]
            else:
                start, width = min(one, size), two

                def moved(number: int, start: int = start, width: int = width) -> int:
                    return start + (number - start) // width

                row_counts.move(connection, DATASET, start, moved)
                model = [(moved(block) if block >= start else block, idle, n) for block, idle, n in model]
                size = moved(size - 1) + 1 if size > start else size
        kept = row_counts.newest(connection, DATASET)
        found = row_counts.of_blocks(connection, DATASET, 0, 1 << 40)
        row_counts.COUNTS.forget(connection, OTHER)
    by_block: dict[int, int] = {}
    for block, idle, n in model:
        if not idle:
            by_block[block] = by_block.get(block, 0) + n
    assert {block: each.read for block, each in found.items()} == by_block
    if kept is None:
        assert not model
    else:
        assert (kept.total.transactions, kept.total.counts.read) == (len(model), sum(n for _, _, n in model))
        newest = max((block, idle) for block, idle, _ in model)
        assert kept.last.counts.read == sum(n for block, idle, n in model if (block, idle) == newest)


def test_records_are_there_after_a_restart_and_sealed(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite"
    first = Database(path)
    first.migrate(row_counts.ROOM, row_counts.STEPS)
    with first.write() as connection:
        row_counts.keep(connection, DATASET, 3, counts(5, "a.csv"))
        row_counts.keep(connection, DATASET, 3, counts(7, "a.csv", "b.csv"), idle=True)
        row_counts.keep(connection, DATASET, 3, counts(1, "b.csv"), idle=True)
    first.close()
    second = Database(path)
    second.migrate(row_counts.ROOM, row_counts.STEPS)
    with second.read() as connection:
        kept = row_counts.newest(connection, DATASET)
    assert kept is not None
    assert (kept.total.since, kept.total.transactions, kept.total.counts.read) == (3, 3, 13)
    assert (kept.last.transactions, kept.last.counts.read) == (2, 8)
    assert [each.name for each in kept.last.counts.skipped] == ["a.csv", "b.csv"]
    assert kept.total.counts.skipped == ()
    second.close()


def test_what_one_does_not_say_is_not_known_of_both() -> None:
    assert add_counts(RowCounts(read=1, late=2), RowCounts(read=3)) == RowCounts(read=4)
