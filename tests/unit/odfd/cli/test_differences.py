"""The rows that ``odfctl diff`` shows are those of one bag of rows that the other has not."""

from __future__ import annotations

from collections import Counter

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from odfd.cli.sql.read_options import difference

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab"), st.integers(0, 1)))


@given(ROWS, ROWS, st.booleans())
def test_rows_differ_by_how_often_they_are_there(
    one: list[tuple[int | None, str | None, int]], other: list[tuple[int | None, str | None, int]], apart: bool
) -> None:
    with duckdb.connect() as base:
        for name, rows in (("one", one), ("other", other)):
            base.execute(f"CREATE TABLE {name} (a INTEGER, b VARCHAR, c INTEGER)")
            base.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows) if rows else None
        sql = difference("one", "other", apart=' EXCLUDE ("c")' if apart else "")
        found = Counter(base.sql(sql).fetchall())
    left, right = (Counter(row[: 2 if apart else 3] for row in rows) for rows in (one, other))
    expected = Counter({("-", *row): count for row, count in (left - right).items()})
    expected.update({("+", *row): count for row, count in (right - left).items()})
    assert found == expected
