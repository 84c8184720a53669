"""Rows given in one statement are the rows that were meant."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from chain.store import bulk_rows

VALUES = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 255)), max_size=30)
NUMBERED = st.lists(st.tuples(st.binary(min_size=1, max_size=4), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=30)


@given(VALUES)
def test_values_come_back_whole_with_their_tags(rows: list[tuple[bytes, int]]) -> None:
    values, tags = [value for value, _ in rows], [tag for _, tag in rows]
    with closing(sqlite3.connect(":memory:")) as database:
        back = database.execute(
            f"SELECT {bulk_rows.each('?1')}, {bulk_rows.TAG} FROM json_each(?2)",
            (b"".join(values), bulk_rows.places(values, tags)),
        ).fetchall()
    assert back == rows


@given(NUMBERED)
def test_values_of_all_widths_keep_their_numbers(rows: list[tuple[bytes, int]]) -> None:
    back: list[tuple[bytes, int]] = []
    with closing(sqlite3.connect(":memory:")) as database:
        for width, values, numbers in bulk_rows.by_width([each[0] for each in rows], [each[1] for each in rows]):
            back += database.execute(
                "SELECT substr(?1, key * ?2 + 1, ?2), value FROM json_each(?3)", (values, width, numbers)
            ).fetchall()
    assert sorted(back) == sorted(rows)


def test_the_last_byte_that_fits() -> None:
    """Place and length take all their bits, and a tag is no part of them."""
    (one,) = map(int, bulk_rows.places([bytes(1)], [255]).strip("[]").split(","))
    assert one == 1 << 8 | 255
    with closing(sqlite3.connect(":memory:")) as database:
        at = (bulk_rows.MOST - 1) << 33 | bulk_rows.LONGEST << 8 | 255
        found = database.execute(
            f"SELECT (value >> 33), (value >> 8) & {bulk_rows.LONGEST}, {bulk_rows.TAG} FROM json_each(?)",
            (bulk_rows.numbers([at]),),
        ).fetchone()
    assert found == (bulk_rows.MOST - 1, bulk_rows.LONGEST, 255)
