"""Spark and DuckDB give the same rows of generated questions over generated datasets.

What differs is written in the questions: where rows without a value stand in an order, and no ties in it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain.data.parquet import write_slice
from chain.model.source import TransformSql
from engines.contract import EngineIdentity, RawQueryRequest, RawQuerySuccess, RawQueryView
from engines.query.duckdb_session import QuerySession, SessionLimits, over_views
from engines.query.temporal import with_backquotes
from engines.query.views import SliceView
from engines.request_control import RequestControl
from engines.spark.handler import SparkHandler
from worlds.depth import share

pytestmark = pytest.mark.engine
TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [("offset", pa.int64()), ("op", pa.int32()), ("system_time", TIME), ("event_time", TIME), ("city", pa.string()),
     ("k", pa.int32()), ("x", pa.float64()), ("money", pa.decimal128(12, 2)), ("day", pa.date32()), ("is", pa.bool_())]
)  # fmt: skip
ZERO = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
LIMITS = SessionLimits(memory=256 << 20, temporary=64 << 20, threads=1)
ROW = st.tuples(
    st.none() | st.sampled_from(["Graz", "it's", 'a "b"', "back\\slash", "é", ""]),
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from([0.5, -2.25, 1e300, math.inf, math.nan, 0.0]),
    st.none() | st.integers(-300, 300).map(lambda cents: decimal.Decimal(cents) / 100),
    st.none() | st.integers(0, 40).map(lambda days: ZERO.date() + dt.timedelta(days)),
    st.none() | st.booleans(),
)
TABLES = st.lists(st.lists(ROW, max_size=12), min_size=2, max_size=2)
CONDITIONS = (
    "k > 0", "k is null", "not \"is\"", "city = 'it''s'", "city = 'back\\slash'", "city like '%a%'", "money >= 1.10",
    "day < date '2024-01-15'", "x > 0.25", "k in (1, 2)", "coalesce(k, 0) between -1 and 1", "length(city) > 2",
)  # fmt: skip
VALUES = (
    "k", "city", "money", "day", "x", '"is"', "k + 1", "k * k", "abs(k)", "upper(city)", "money + k", "k % 2", "-x",
    "coalesce(city, 'none')", "case when k > 0 then 'more' else city end", "cast(k as string)", "nullif(k, 1)",
    "extract(month from day)", "substr(city, 2, 2)", "k = 1 and \"is\"",
)  # fmt: skip
TOTALS = ("count(*)", "count(k)", "sum(k)", "min(city)", "max(day)", "sum(money)", "count(distinct city)", "max(x)")


@st.composite
def questions(draw: st.DrawFn) -> str:
    where = " and ".join(draw(st.lists(st.sampled_from(CONDITIONS), max_size=2))) or "true"
    kind = draw(st.sampled_from(["rows", "groups", "joined", "ordered", "both"]))
    if kind == "groups":
        by = draw(st.sampled_from(["k", "city", '"is"', "day"]))
        totals = draw(st.lists(st.sampled_from(TOTALS), min_size=1, max_size=3, unique=True))
        named = ", ".join(f"{each} as t{n}" for n, each in enumerate(totals))
        having = draw(st.sampled_from(["", " having count(*) > 1"]))
        return f"select {by} as g, {named} from a where {where} group by {by}{having}"
    values = draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True))
    named = ", ".join(f"{each} as v{n}" for n, each in enumerate(values))
    if kind == "joined":
        how = draw(st.sampled_from(["join", "left join", "full join"]))
        return f"select l.k as k, l.city as c, r.money as m from a l {how} b r on l.k = r.k and l.city is not null"
    if kind == "both":
        way = draw(st.sampled_from(["union all", "union", "except", "intersect"]))
        return f"select k, city from a where {where} {way} select k, city from b"
    if kind == "ordered":
        way = draw(st.sampled_from(["asc nulls first", "desc nulls last"]))
        return f'select {named} from a where {where} order by k {way}, "offset" limit 3'
    return f"select {named} from a where {where}"


def filled(rows: list[Any]) -> pa.Table:
    head = [(number, 0, ZERO, None) for number in range(len(rows))]
    columns = list(zip(*(a + b for a, b in zip(head, rows, strict=True)), strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def plain(value: Any) -> Any:
    """Without what the two call differently: widths of numbers, and NaN that is not equal to itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return float(value) if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool) else value


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(plain(value) for value in row.values()) for row in table.to_pylist()]


def _row(k: int, x: float) -> tuple[Any, ...]:
    return "Graz", k, x, None, None, None


@settings(max_examples=share(25))
@example(
    tables=[[_row(1, -2.25), _row(2, math.nan)], []],
    asked=["select k from a where x > 0.25", "select x > 0.25 as v from a", "select max(x) as v from a"],
)
@given(tables=TABLES, asked=st.lists(questions(), min_size=1, max_size=4))
def test_both_engines_give_the_same_rows(jvm: Any, tables: list[list[Any]], asked: list[str]) -> None:
    handler = SparkHandler(
        jvm.session(),
        lambda: EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test"),
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for number, rows in enumerate(tables):
            write_slice(filled(rows), place / str(number))
        views = [
            SliceView(name=f"odfd {n}", files=(str(place / str(n)),), schema=SCHEMA.serialize().to_pybytes())
            for n in range(2)
        ]
        for number, sql in enumerate(asked):
            session = QuerySession(LIMITS, place, place)
            prepared = session.prepare(sql)
            places = [("a", "b").index(table.path[0]) for table in prepared.tables]
            expected = rows_of(session.run(prepared, views, places, None).read_all())
            request = RawQueryRequest(
                input_data_paths=(),
                transform=TransformSql(engine="spark", query=with_backquotes(over_views(prepared, views, places))),
                output_data_path=str(place / f"answer {number}"),
                views=tuple(RawQueryView(name=view.name, data_paths=view.files) for view in views),
            )
            outcome = handler.raw_query(request, RequestControl())
            assert isinstance(outcome, RawQuerySuccess), (sql, outcome)
            found = rows_of(pq.read_table(request.output_data_path))
            in_order = "order by" in sql
            assert (found if in_order else sorted(found, key=repr)) == (
                expected if in_order else sorted(expected, key=repr)
            ), sql
