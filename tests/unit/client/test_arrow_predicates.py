"""A predicate selects the same rows of a repository as in the node's SQL."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfd_client import Invalid, Predicate, col
from odfd_client.arrow_predicates import expression
from worlds.depth import share

DAY = datetime.date(2024, 5, 1)
ONE = uuid.UUID(int=1)
AT = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
NAN = float("nan")
ROWS = pa.table(
    {
        "place": pa.array(range(6)),
        "n": pa.array([1, 2, None, 3, 2, -5], pa.int64()),
        "x": pa.array([0.5, NAN, None, -1.0, float("inf"), 2.0], pa.float64()),
        "city": pa.array(["Graz", "Linz", None, "100%", "a\\b", "Gr_z"]),
        "cost": pa.array([decimal.Decimal("1.50"), None, *[decimal.Decimal("2.25")] * 4], pa.decimal128(9, 2)),
        "day": pa.array([DAY, None, *[DAY + datetime.timedelta(days=1)] * 4]),
        "at": pa.array([AT, None, *[AT + datetime.timedelta(hours=1)] * 4], pa.timestamp("us", "UTC")),
        "is": pa.array([True, False, None, True, False, True]),
    }
)
VALUES: dict[str, list[Any]] = {
    "n": [2, -5, 1.5],
    "x": [0.5, 2, float("inf"), -1.0],
    "city": ["Graz", "", "a\\b"],
    "cost": [decimal.Decimal("1.5"), decimal.Decimal("2.25"), 2],
    "day": [DAY, DAY + datetime.timedelta(days=1)],
    "at": [AT, AT + datetime.timedelta(hours=1)],
    "is": [True, False],
}


@st.composite
def compared(draw: st.DrawFn) -> Predicate:
    name = draw(st.sampled_from(list(VALUES)))
    values = st.sampled_from(VALUES[name])
    column = col(name)
    found: Predicate = draw(
        st.sampled_from(
            [
                column == draw(values),
                column != draw(values),
                column < draw(values),
                column <= draw(values),
                column > draw(values),
                column >= draw(values),
                column.isin(draw(st.lists(values, max_size=2))),
                column.is_null(),
                column.is_not_null(),
                col("city").like(draw(st.sampled_from(["G%", "Gr_z", "%\\%", "100%", "a\\b", "%"]))),
            ]
        )
    )
    return found


PREDICATE = st.recursive(
    compared(),
    lambda inner: st.one_of(
        inner.map(lambda each: ~each),
        st.tuples(inner, inner).map(lambda two: two[0] & two[1]),
        st.tuples(inner, inner).map(lambda two: two[0] | two[1]),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=share(100), deadline=None)
@given(PREDICATE)
def test_the_same_rows_are_selected_as_in_sql(predicate: Predicate) -> None:
    parameters: dict[str, Any] = {}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.register("rows", ROWS)
        text = f"SELECT place FROM rows WHERE {predicate.sql(parameters)} ORDER BY place"
        wanted = [row[0] for row in connection.execute(text, parameters).fetchall()]
    assert ROWS.filter(expression(predicate, ROWS.schema))["place"].to_pylist() == wanted


@pytest.mark.parametrize("wrong", [col("none") == 1, col("n") == "x", col("x") > NAN, col("n").like("1%")])
def test_what_cannot_be_compared_is_refused(wrong: Predicate) -> None:
    with pytest.raises(Invalid):
        expression(wrong, ROWS.schema)


def test_uuids_are_not_compared_in_a_repository() -> None:
    """Arrow compares values of no extension; whether one is there can be asked."""
    rows = pa.table({"id": pa.array([ONE.bytes, None], pa.uuid())})
    for asked in (col("id") == ONE, col("id").isin([str(ONE)])):
        with pytest.raises(Invalid, match="not compared by UUIDs") as refused:
            expression(asked, rows.schema)
        assert refused.value.hint == "read them on a node"
    assert rows.filter(expression(col("id").is_null(), rows.schema)).num_rows == 1
