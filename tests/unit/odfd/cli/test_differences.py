"""The rows that ``odfctl diff`` shows are those of one bag of rows that the other has not."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from odfd.cli.commands.diff import _check_columns
from odfd.cli.sql.read_options import difference
from odfd.control import wire

ROWS = st.lists(st.tuples(st.none() | st.integers(0, 2), st.none() | st.sampled_from("ab"), st.integers(0, 1)))


@pytest.mark.slow
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


def test_columns_are_compared_by_name_and_what_came_later_is_null() -> None:
    with duckdb.connect() as base:
        base.execute(
            "CREATE TABLE one AS SELECT 1 AS a, 2 AS b; CREATE TABLE other AS SELECT 2 AS b, 1 AS a, NULL AS c"
        )
        assert base.sql(difference("one", "other")).fetchall() == []


def test_datasets_of_other_columns_are_refused_with_what_differs() -> None:
    def do(call: Any) -> Any:
        user = {"a": (("x", "Int64"), ("y", "String")), "b": (("x", "String"), ("z", "Int64"))}[
            call.path.split("/")[-2]
        ]
        fields = tuple(
            wire.Column(name=name, type=kind) for name, kind in (*((each, "Int64") for each in "osm"), *user)
        )
        return Namespace(value=wire.Schema(ref="a", fields=fields))

    session: Any = Namespace(client=Namespace(do=do))
    for values in (False, True):
        _check_columns(session, "a", "a", values=values)
        with pytest.raises(Invalid) as caught:
            _check_columns(session, "a", "b", values=values)
        assert caught.value.message == (
            "a and b have different columns: only a has y; only b has z; x is Int64 and String"
        )
