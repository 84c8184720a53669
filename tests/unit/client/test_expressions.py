"""A predicate is text with values beside it: DuckDB finds the rows that are meant, and no others."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from odfd_client import Invalid, Predicate, col
from odfd_client.datasets import Dataset
from odfd_client.expressions import instant, plain, quote_name
from odfd_client.relations import Selection
from odfd_client.transport import Transport
from odfd_client.values import Pin

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
