"""Queries in ``preprocess`` are checked as transforms are: the same rows in other parts give the same result."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Invalid
from chain.model.source import SqlQueryStep, TransformSql
from engines.spark.ingest.preprocess import preprocess

pytestmark = pytest.mark.engine
ROWS = pa.table({
    "k": ["a", "b", "a", None, "a", "b"],
    "v": [1, 2, 3, 4, 1, 2],
    "f": [0.1, -0.0, 1e300, 0.0, -1e300, 0.2],
    "s": [{"x": 1}] * 6,
    "t": pa.array(range(6), pa.timestamp("ms", "UTC")),
})  # fmt: skip
REFUSED = {
    "select format_string('%s', s) as x from input": "format_string prints where lists, structures",
    "select printf('%s', array(v)) as x from input": "format_string prints where lists, structures",
    "select k from input limit 1": "LIMIT keeps depends on their order",
    "select k from input offset 1": "LIMIT keeps depends on their order",
    "select k from input order by v limit 1": "LIMIT depends on the order",
    "select k from (select * from input limit 2)": "LIMIT keeps depends on their order",
    "select k, (select max(v) from (select v from input limit 2)) as m from input": "LIMIT keeps depends",
    "select k from input where v in (select v from input limit 1)": "LIMIT keeps depends on their order",
    "select k from input where exists (select uuid() from input limit 1)": "uuid",
    "select * from input tablesample (50 percent)": "a sample depends on how rows are stored",
    "select t, k, row_number() over (order by v) as r from input": "row_number depends on the order",
    "select t, sum(v) over (order by v rows 1 preceding) as r from input": "sum over ROWS depends on the order",
    "select k, sum(distinct f) as x from input group by k": "sum over floating point",
    "select date_trunc('century', t) as x from input": "date_trunc('century', …) is null",
    "select a.t from input a left asof join input b match_condition (a.t >= b.t) on a.k = b.k": "an as-of join",
    "with x as (select k from input limit 1) select * from x union all select k from input": "LIMIT keeps",
    "select k from input order by hash(rand()) limit 1": "rand",
}
GIVEN = {
    "select k, v from input order by k, v limit 3": 3,
    "select k, v from (select distinct k, v from input) order by k, v limit 2 offset 1": 2,
    "select k, sum(f) as x, avg(f) as y, stddev(f) as z, max(f) as m from input group by k": 3,
    "select f, count(*) as c from input group by f": 5,
    "select t, row_number() over (partition by k order by v, t) as r from (select t, k, v from input)": 6,
    "select array_sort(collect_list(v)) as l from input": 1,
    "select a.k, b.v from input a full join input b on a.v = b.v + 1": 10,
    "select k from input where v in (select max(v) from input)": 1,
    "select k from input except select 'a'": 2,
    "select k, w from input join (values ('a', 1), ('b', 2)) as x(l, w) on k = l": 5,
    "select k, x from input, lateral (select v + 1 as x)": 6,
    "select session_window(t, '1 day').start as w, count(*) as c from input group by session_window(t, '1 day')": 1,
    "select k, sum(v) as s from input group by rollup(k)": 4,
    "select id from range(3)": 3,
    "select sin(v) as x, to_json(s) as y from input": 6,
}


def parted(folder, rows, name):
    """As two parts, of which the first has a row more at each call."""
    folder = folder / name
    folder.mkdir()
    cut = 1 + len(list(folder.parent.iterdir()))
    parts = [folder / "one", folder / "two"]
    for path, part in zip(parts, (rows.slice(0, cut), rows.slice(cut)), strict=True):
        pq.write_table(part, path)
    return parts


def asked(spark, parts, sql):
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),))
    return preprocess(spark.newSession(), parts, ROWS.schema, transform)


def test_what_parts_or_ties_could_decide_is_refused(spark, tmp_path):
    """Attack T-QUERY-03: a query of a source whose rows depend on how its bytes were cut into parts, so that other
    nodes do not get them from these bytes again.

    Defence: queries in `preprocess` are checked by the walk of transforms, with the differences declared in one place.
    """
    parts = parted(tmp_path, ROWS, "given")
    for sql, why in REFUSED.items():
        with pytest.raises(Invalid) as refused:
            asked(spark, parts, sql)
        assert refused.value.rule == "preprocess-deterministic", sql
        assert why in refused.value.message, (sql, refused.value.message)
        assert refused.value.hint


def test_the_same_rows_in_other_parts_and_order_give_the_same(spark, tmp_path):
    backwards = ROWS.take(list(range(5, -1, -1)))
    routes = [parted(tmp_path, ROWS, "given"), parted(tmp_path, backwards, "cut elsewhere, and backwards")]
    for sql, count in GIVEN.items():
        made = [sorted(map(repr, asked(spark, parts, sql).to_pylist())) for parts in routes]
        assert len(made[0]) == count, (sql, made[0])
        assert made[0] == made[1], sql
