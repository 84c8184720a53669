"""What may be proven: answers that come whenever the query runs over the same rows; the others are refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from chain.errors import Refused
from engines.query.duckdb_session import QuerySession, SessionLimits
from engines.query.requests import RowSelection
from engines.query.views import SliceView

SCHEMA = pa.schema({"offset": pa.int64(), "op": pa.int32(), "k": pa.string(), "n": pa.int64(), "x": pa.float64()})
LIMITS = SessionLimits(memory=128 << 20, temporary=64 << 20, threads=1)
VIEW = SliceView(name="odfd 0", files=(), schema=SCHEMA.serialize().to_pybytes(), system=("offset", "op", "time"))


def proven(tmp_path: Path, sql: str) -> list[dict[str, object]]:
    answering = QuerySession(LIMITS, tmp_path, tmp_path)
    prepared = answering.prepare(sql)
    places = [0] * len(prepared.tables)
    with answering.translated_faults(prepared, [VIEW], places):
        rows: list[dict[str, object]] = answering.run(
            prepared, [VIEW], places, None, wanted=RowSelection(prove=True)
        ).read_all().to_pylist()  # fmt: skip
    return rows


@pytest.mark.parametrize(
    "sql",
    [
        "select k, sum(n), avg(n), max(x), count(*), median(x) from t group by k order by 2 desc",
        "select k, sum(x::decimal(18, 3)) from t group by k; ",
        "select * from t qualify rank() over (partition by k order by n desc) <= 3 -- the best",
        "select * from t order by all limit 3",
        "select list_sort(list(k)) from t",
        "select min(k), max(k), mode_of.n from t, (select count(distinct k) n from t) mode_of group by all",
        "select upper(k) || n, list_transform(list_sort(list(n)), lambda y: y + 1) from t group by all",
        "with a as (select distinct k from t) select count(*) from a join t using (k) union all select 1",
        "select sum(n) over (order by n range between 1 preceding and current row) from t",
    ],
)
def test_what_repeats_is_proven(tmp_path: Path, sql: str) -> None:
    proven(tmp_path, sql)


@pytest.mark.parametrize(
    ("sql", "named", "instead"),
    [
        ("select * from t limit 3", "LIMIT", "ORDER BY ALL"),
        ("select * from t order by n limit 3", "LIMIT", "rank()"),
        ("select (select n from t order by n limit 1)", "LIMIT", "rank()"),
        ("select * from t offset 3", "OFFSET", "rank()"),
        ("select distinct on (k) * from t", "DISTINCT ON", "rank()"),
        ("select * from t using sample 3", "sample", "hash"),
        ("select k, row_number() over (order by n) from t", "row_number", "rank()"),
        ("select sum(n) over (order by n rows 1 preceding) from t", "ROWS", "RANGE"),
        ("select first(k) from t", "first", "min"),
        ("select list(k) from t", "list", "list_sort"),
        ("select list_sort([1]), list(k) from t", "list", "list_sort"),
        ("select string_agg(k, ',') from t", "string_agg", "array_to_string"),
        ("select arg_max(k, n) from t", "arg_max", "max"),
        ("select sum(x) from t", "sum", "DECIMAL"),
        ("select avg(x) over () from t", "avg", "DECIMAL"),
        ("select stddev(n) from t", "stddev", "DECIMAL"),
        ("select json_group_structure(k) from t", "string_agg", "outside"),
        ("select now()", "now", "write the value"),
        ("select random()", "random", "write the value"),
        ("select exp(x) from t", "exp", "outside"),
        ("select * from t asof join t u on t.n >= u.n", "ASOF", "rank()"),
        ("select * from t positional join t u", "POSITIONAL", "rank()"),
        ("select distinct k collate nocase from t", "COLLATE", "lower"),
    ],
)
def test_what_depends_on_the_run_is_refused_by_name(tmp_path: Path, sql: str, named: str, instead: str) -> None:
    with pytest.raises(Refused) as refusal:
        proven(tmp_path, sql)
    assert refusal.value.rule == "query-prove"
    assert named in refusal.value.message
    assert instead in refusal.value.hint


@pytest.mark.slow
def test_rows_are_in_the_order_of_their_columns(tmp_path: Path) -> None:
    rows = proven(tmp_path, "select * from (values (2, 'b'), (1, 'z'), (2, 'a')) v(n, k) order by n desc")
    assert [tuple(row.values()) for row in rows] == [(1, "z"), (2, "a"), (2, "b")]
