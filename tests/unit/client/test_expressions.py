"""Expressions select the rows that SQL does."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfd_client import Invalid, Predicate, col
from odfd_client.arrow_predicates import expression
from odfd_client.datasets import Dataset
from odfd_client.expressions import instant, plain, quote_name
from odfd_client.relations import Selection
from odfd_client.transport import Transport
from odfd_client.values import Pin
from worlds.depth import share

# A predicate is text with values beside it: DuckDB finds the rows that are meant, and no others.

NOON = datetime.datetime(2024, 1, 2, 12, tzinfo=datetime.UTC)
CASES: list[tuple[Predicate, list[str]]] = [
    ((col("people") > 100_000) & (col("city") != "Linz"), ["Graz"]),
    (col("people").is_null(), ["O'Hara"]),
    (~col("people").is_null() & col("people").is_not_null(), ["Graz", "Linz", "Wels"]),
    (col("city") == "O'Hara", ["O'Hara"]),
    (col("city") == "' or 1=1 --", []),
    (~(col("time") >= NOON), ["Graz"]),
    (col("time") < datetime.date(2024, 1, 3), ["Graz", "Linz"]),
    (col("city").isin(["Graz", "Wels", "$p0"]) | col("city").like("L%"), ["Graz", "Linz", "Wels"]),
    (col("people").between(62_000, 210_000), ["Linz", "Wels"]),
    (col("share") <= decimal.Decimal("0.20"), ["Wels"]),
    (col("mark") == b"\x00'", ["Linz"]),
    (col('a"b') == True, ["Graz"]),  # noqa: E712
    (col("city").isin([]), []),
]


@pytest.fixture(scope="module")
def cities() -> Iterator[Any]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(
            """create table cities as select * from (values
              ('Graz', 300000, timestamptz '2024-01-01 00:00:00Z', 0.30, '\\x01'::blob, true),
              ('Linz', 210000, timestamptz '2024-01-02 12:00:00Z', 0.21, '\\x00'::blob || ''''::blob, false),
              ('Wels', 62000, timestamptz '2024-01-03 00:00:00Z', 0.06, null, false),
              ('O''Hara', null, timestamptz '2024-01-04 00:00:00Z', null, null, null)
            ) t(city, people, time, share, mark, "a""b")"""
        )
        yield connection


@pytest.mark.parametrize(("predicate", "expected"), CASES)
def test_a_predicate_finds_what_it_says(cities: Any, predicate: Predicate, expected: list[str]) -> None:
    parameters: dict[str, Any] = {}
    text = f"select city from cities where {predicate.sql(parameters)}"
    assert [city for (city,) in cities.execute(text, parameters).fetchall()] == expected
    assert "Graz" not in text


def test_what_no_predicate_can_say_is_told() -> None:
    for wrong in (lambda: 0 < col("a") < 1, lambda: col("a") == None, lambda: col("a") > object()):  # type: ignore[operator]  # noqa: E711
        with pytest.raises(Invalid):
            wrong()
    with pytest.raises(Invalid, match="38 digits"):
        (col("a") == decimal.Decimal(10) ** 40).sql({})
    with pytest.raises(Invalid, match="cannot be sent"):
        plain(float("nan"))
    with pytest.raises(Invalid, match="cannot be sent"):
        plain(object())


def test_times_and_names_are_written_as_sql_reads_them() -> None:
    assert instant(NOON.replace(tzinfo=None)) == instant(NOON) == "2024-01-02T12:00:00Z"
    assert instant(datetime.date(2024, 1, 2)) == "2024-01-02"
    assert quote_name('a"; drop') == '"a""; drop"'
    assert plain([1, decimal.Decimal("1.10"), None]) == [1, "1.10", None]


def test_a_dataset_in_a_notebook_shows_its_statement_and_cut_without_a_request() -> None:
    warm = Dataset(Transport("http://nowhere.invalid"), Selection(name="weather")).where(col("celsius") > 30)
    assert repr(warm) == '<Dataset SELECT * FROM "weather" WHERE ("celsius" > $p0)>'
    pin = Pin(name="weather", id="did:odf:1", block="f1620", sequence_number=7)
    assert repr(warm.pinned(pin)).endswith(", weather at block #7>")


# A predicate selects the same rows of a repository as in the node's SQL.

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
