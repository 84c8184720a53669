"""Current rows of a repository are those that the node's query engine gives for the same log."""

from __future__ import annotations

from collections import Counter

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.query.views import SliceView, folded_sql
from odfd_client.folding import difference, standing
from worlds.depth import share

SCHEMA = pa.schema([("offset", pa.int64()), ("op", pa.int32()), ("city", pa.string()), ("n", pa.int64())])
ROW = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3]), st.sampled_from(["Graz", "Linz", None]), st.none() | st.integers(1, 2)
)


@pytest.mark.slow
@settings(max_examples=share(60), deadline=None)
@given(st.lists(ROW, max_size=30), st.booleans())
def test_the_same_rows_stand_as_in_sql(rows: list[tuple[int, str | None, int | None]], by_key: bool) -> None:
    log = pa.table([range(len(rows)), *([row[at] for row in rows] for at in range(3))], schema=SCHEMA)
    same = ["city"] if by_key else ["city", "n"]
    kept = standing(log.select(["offset", "op", *same]), "offset", "op", by_key=by_key)
    offsets = log["offset"] if kept is None else kept
    view = SliceView(
        name="t", files=(), schema=b"", fold="key" if by_key else "rows", key=("city",) if by_key else (),
        system=("offset", "op", "op"),
    )  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("log", log)
        wanted = {"offset": "BIGINT", "op": "INTEGER", "city": "VARCHAR", "n": "BIGINT"}
        found = connection.sql(folded_sql(view, "SELECT * FROM log", wanted)).fetchall()
    assert sorted(offsets.to_pylist()) == [each[0] for each in found]


TABLE = st.lists(st.tuples(st.sampled_from(["Graz", "Linz", None]), st.sampled_from([1.0, None, 0.5])), max_size=12)


@pytest.mark.slow
@settings(max_examples=share(40), deadline=None)
@given(TABLE, TABLE)
def test_a_difference_makes_the_one_the_other(old: list[tuple[object, ...]], new: list[tuple[object, ...]]) -> None:
    kinds = pa.schema([("city", pa.string()), ("n", pa.float64())])
    before, now = (pa.table([[row[at] for row in rows] for at in range(2)], schema=kinds) for rows in (old, new))
    rows = difference(before, now, ["city", "n"]).to_pylist()
    has = Counter(old)
    for row in rows:
        has[row["city"], row["n"]] += -1 if row["op"] == 1 else 1
    assert +has == Counter(new)
    assert min(has.values(), default=0) >= 0
    assert not {(row["city"], row["n"]) for row in rows if row["op"] == 1} & {
        (row["city"], row["n"]) for row in rows if row["op"] == 0
    }
    assert difference(pa.table({}), pa.table({}), []).num_rows == 0
