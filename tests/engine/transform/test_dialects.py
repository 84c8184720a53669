"""Hints for what other dialects write, applied by a program: accepted then, with the rows that DuckDB has for it."""

from __future__ import annotations

from collections import Counter

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chain.data.arrow_schema import from_arrow
from chain.model.source import SqlQueryStep, TemporalTable, TransformSql
from conformance import nexmark
from conformance.coordinator import Bed, dataset_of
from conformance.duck import Duck
from conformance.histories import ADDED, CORRECT_TO
from engines.contract import EngineIdentity, Severity, ValidateInput, ValidateRequest, Vocab
from engines.spark.analysis.dialects import QUOTED, TEMPORAL, WINDOW, foreign
from engines.spark.handler import SparkHandler
from engines.spark.sql.parsing import words_of
from worlds.dialect_rewrite import translated

pytestmark = pytest.mark.engine
IDENTITY = EngineIdentity(name="spark", version="0", digest="sha256:0", sandbox="none", platform="test")
SCHEMAS = nexmark.schemas()
COLUMNS = {name for schema in SCHEMAS.values() for name in schema.names}
EVENTS = nexmark.events()
TEN = "time_bucket(interval '10' second, event_time)"
HOPS = (
    "(select *, unnest(generate_series(time_bucket(interval '2 seconds', event_time) - interval '8 seconds', "
    "time_bucket(interval '2 seconds', event_time), interval '2 seconds')) as s from bid)"
)
CASES = {
    "tumble": (
        WINDOW, {},
        "select TUMBLE_END(event_time, INTERVAL '10' SECOND) as event_time, auction, count(*) as n from bid\n"
        "group by auction, TUMBLE(event_time, INTERVAL '10' SECOND)",
        f"select {TEN} + interval '10' second as event_time, auction, count(*) as n from bid group by all",
    ),
    "tumble, the last instant": (
        WINDOW, {},
        "select Tumble_RowTime(event_time, interval 10 seconds) as event_time, max(price) as high from bid\n"
        "group by tumble(event_time, interval 10 seconds)",
        f"select {TEN} + interval '9999' millisecond as event_time, max(price) as high from bid group by {TEN}",
    ),
    "hop": (
        WINDOW, {},
        "select HOP_START(event_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND) as event_time, auction,\n"
        "  count(*) as n from bid group by HOP(event_time, INTERVAL '2' SECOND, INTERVAL '10' SECOND), auction",
        f"select s as event_time, auction, count(*) as n from {HOPS} group by s, auction",
    ),
    "session": (
        WINDOW, {},
        "select bidder, count(*) as bids, SESSION_END(event_time, INTERVAL '10' SECOND) as event_time from bid\n"
        "group by bidder, SESSION(event_time, INTERVAL '10' SECOND)",
        "select bidder, count(*) as bids, max(event_time) + interval '10' second as event_time from ("
        "  select *, sum(begins) over (partition by bidder order by event_time range unbounded preceding) as n from ("
        "    select *, case when event_time - lag(event_time) over (partition by bidder order by event_time)"
        "      <= interval '10' second then 0 else 1 end as begins from bid)) group by bidder, n",
    ),
    "tumble over a table": (
        WINDOW, {},
        "select window_end as event_time, auction, count(*) as n\n"
        "from TABLE(TUMBLE(TABLE bid, DESCRIPTOR(event_time), INTERVAL '10' SECONDS))\n"
        "group by window_start, window_end, auction",
        f"select {TEN} + interval '10' second as event_time, auction, count(*) as n from bid group by all",
    ),
    "hop over a table": (
        WINDOW, {},
        "select w.window_start as event_time, w.auction, count(*) as n from TABLE(HOP(DATA => TABLE bid,\n"
        "  TIMECOL => DESCRIPTOR(\"event_time\"), SIZE => INTERVAL '10' SECOND, SLIDE => INTERVAL '2' SECOND)) as w\n"
        "group by w.window_start, w.window_end, w.auction",
        f"select s as event_time, auction, count(*) as n from {HOPS} group by s, auction",
    ),
    "as of": (
        TEMPORAL, {"side_input": ["key"]},
        "select b.auction, b.bidder, b.event_time, s.value from bid b\n"
        "join side_input for system_time as of b.event_time as s on mod(b.auction, 10000) = s.key",
        "select b.auction, b.bidder, b.event_time, s.value from bid b join side_input s on b.auction % 10000 = s.key",
    ),
    "names": (
        QUOTED, {},
        'select b."auction", b.price as "much", "b"."event_time" from bid as "b"',
        "select auction, price as much, event_time from bid",
    ),
    "a column or a text": (
        QUOTED, {},
        'select event_time, "auction", \'price\' as what from bid where "price" > 1000',
        "select event_time, auction, 'price' as what from bid where price > 1000",
    ),
}  # fmt: skip


@pytest.fixture
def handler(spark_root: SparkSession) -> SparkHandler:
    return SparkHandler(spark_root, lambda: IDENTITY)


def asked(handler: SparkHandler, sql: str, temporal=None):
    given = tuple(
        ValidateInput(query_alias=alias, dataset_id=dataset_of(alias), schema=from_arrow(schema), vocab=Vocab(),
                      changelog=False)
        for alias, schema in SCHEMAS.items()
    )  # fmt: skip
    tables = tuple(TemporalTable(name=name, primary_key=tuple(keys)) for name, keys in (temporal or {}).items())
    transform = TransformSql(engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=tables or None)
    return handler.validate(ValidateRequest(transform=transform, inputs=given, vocab=Vocab()))


def obeyed(spark: SparkSession, sql: str, diagnostics):
    """The query with each hint in place of the words that stand where its diagnostic points."""
    words = words_of(spark, sql)
    hints = {(each.line, each.column): each.replace for each in diagnostics}
    phrases = [phrase for phrase in foreign(words, COLUMNS) if phrase.place in hints]
    assert [hints[phrase.place] for phrase in phrases] == [phrase.replace for phrase in phrases]
    return translated(sql, words, phrases)


def standing(rows):
    left: Counter[tuple[object, ...]] = Counter()
    for op, *row in rows:
        left[tuple(row)] += 1 if op in (ADDED, CORRECT_TO) else -1
    return +left


@pytest.mark.parametrize("name", CASES)
def test_a_hint_that_is_followed_is_accepted_with_the_same_meaning(name, handler, spark, analyst, duck: Duck, tmp_path):
    code, temporal, sql, oracle = CASES[name]
    answer = asked(handler, sql, temporal)
    assert {each.code for each in answer.diagnostics} == {code}, answer.diagnostics
    assert all(each.replace and each.line for each in answer.diagnostics)
    for _ in range(3):
        if answer.diagnostics:
            sql = obeyed(spark, sql, answer.diagnostics)
            answer = asked(handler, sql, temporal)
    assert (answer.ok, answer.diagnostics) == (True, ()), (sql, answer.diagnostics)
    query = nexmark.Query("", sql, steps=[nexmark.Step(sql, temporal)], refused=["x"], duck=oracle)
    came = nexmark.compute(
        query, "at once", nexmark.lay_out(tmp_path, EVENTS), Bed(spark.newSession, analyst), tmp_path
    )
    wanted = nexmark.expected(query, EVENTS, duck, came.columns[-1])
    assert len(wanted) > 1
    assert standing(came.outcomes[-1].rows) == Counter(wanted)


def test_a_text_called_like_a_column_is_a_warning_with_its_place(handler):
    answer = asked(handler, 'select event_time,\n  "price" as p from bid')
    assert answer.ok
    assert answer.schema is not None
    (only,) = answer.diagnostics
    assert (only.severity, only.code, only.replace) == (Severity.WARNING, QUOTED, "`price`")
    assert (only.line, only.column) == (2, 3)


def test_a_text_called_like_the_event_time_is_told_beside_what_it_breaks(handler):
    said = asked(handler, 'select "event_time", price from bid').diagnostics
    assert [(each.code, each.replace) for each in said][1:] == [(QUOTED, "`event_time`")]
    assert said[0].code == "event-time-type"


def test_an_accepted_query_without_doubt_has_no_warnings(handler):
    answer = asked(handler, "select event_time, \"cheap\" as a, 'price' as b, `price` from bid")
    assert (answer.ok, answer.diagnostics) == (True, ())


@pytest.mark.parametrize(
    ("sql", "codes"),
    [
        ("select event_time, nope from bid", ["unresolved-column"]),
        ("select event_time from nowhere", ["table-or-view-not-found"]),
        ("select event_time, price from bid where (price", ["parse-syntax-error"]),
        ("select event_time, count(*) from bid group by price", ["missing-aggregation"]),
        ("select event_time, channel.x from bid", ["invalid-extract-base-field-type"]),
        ("select event_time, sum(sum(price)) from bid group by 1", ["nested-aggregate-function"]),
        ("select event_time, price from bid union select event_time from bid", ["num-columns-mismatch"]),
        ("select tumble(event_time, interval '1' month) as event_time, nope(price) from bid", [WINDOW]),
        ("select * from bid for system_time as of timestamp'2024-05-01'", [TEMPORAL]),
        (
            "select TUMBLE_END(event_time, interval '1' hour) as event_time, count(*) as n from bid "
            "group by window(event_time, '1 hour')",
            [WINDOW],
        ),
    ],
)
def test_errors_of_sparks_own_have_a_hint(handler, sql, codes):
    found = asked(handler, sql).diagnostics
    assert [each.code.partition(".")[0] for each in found] == codes, found
    assert all(each.replace for each in found)


BAD_PATTERNS = [
    ("event_time, to_timestamp(channel, 'yyyy-MM-dd bb') as t", "read"),
    ("event_time, try_to_timestamp(channel, 'yyyy-QQQQQ') as t", "read"),
    ("event_time, to_date(channel, 'YYYY-MM-dd') as t", "read"),
    ('event_time, unix_timestamp(channel, "yyyy\'") as t', "read"),
    ("event_time, date_format(event_time, 'uuuu-nonsense') as t", "written"),
    ("event_time, from_unixtime(price, 'YYYY') as t", "written"),
]


@pytest.mark.parametrize(("columns", "verb"), BAD_PATTERNS)
def test_a_pattern_that_no_row_could_be_read_by_is_refused_without_rows(handler, spark, columns, verb):
    (only,) = asked(handler, f"select {columns} from bid").diagnostics
    assert (only.code, only.line, only.column) == ("time-pattern", 1, 20)
    assert f"not {verb} by the pattern" in only.message
    assert only.replace
    row = "values (timestamp'2024-05-01', '2024', 1L) as bid(event_time, channel, price)"
    with pytest.raises(PySparkException):
        spark.sql(f"select {columns} from {row}").collect()


CERTAIN = {
    "channel rlike '('": "invalid-parameter-value",
    "regexp_extract(channel, '(', 1)": "invalid-parameter-value",
    "regexp_replace(channel, '[', '')": "invalid-parameter-value",
    "regexp_count(channel, '(')": "invalid-parameter-value",
    "regexp_substr(channel, '(')": "invalid-parameter-value",
    "split(channel, '(')": "invalid-parameter-value",
    "channel like 'a!b' escape '!'": "invalid-format",
    "channel ilike 'a!b' escape '!'": "invalid-format",
    "from_utc_timestamp(event_time, 'Nowhere/City')": "time-zone",
    "encode(channel, 'nocharset')": "invalid-parameter-value",
    "decode(cast(channel as binary), 'nocharset')": "invalid-parameter-value",
    "next_day(event_time, 'someday')": "illegal-day-of-week",
    "make_timestamp(2024, 13, 1, 0, 0, 0)": "datetime-field-out-of-bounds",
    "make_date(2024, 2, 30)": "datetime-field-out-of-bounds",
    "price + cast('abc' as int)": "cast-invalid-input",
    "price + (1 + cast('abc' as int)) / 2": "cast-invalid-input",
    "price > 'abc'": "cast-invalid-input",
    "1 / 0": "divide-by-zero",
    "price / 0": "divide-by-zero",
    "price % 0": "remainder-by-zero",
    "price % (1 % 0)": "remainder-by-zero",
    "array(1, 2)[5]": "invalid-array-index",
    "element_at(array(1), 0)": "invalid-index-of-zero",
    "coalesce(1 / 0, price)": "divide-by-zero",
    "case when 1 / 0 > price then 1 end": "divide-by-zero",
    "channel rlike '(' and price > 1": "invalid-parameter-value",
    "max(price / 0) over (partition by time_bucket(interval '1' day, event_time))": "divide-by-zero",
}
"""What fails with the first row, whatever it holds; by which rule it is refused."""
UNCERTAIN = (
    "coalesce(price, 1 / 0)", "case when price > 1 then 1 / 0 end", "try_divide(1, 0)", "try_cast('x' as int)",
    "case price when 1 then 2 when 1 / 0 then 3 end", "if(price > 1, 1 / 0, 2)",
    "if(price > 1, channel rlike '(', true)",
    "nvl(price, 1 / 0)", "nvl2(price, 1, 1 / 0)", "nullif(price, 3)", "ifnull(channel, cast('x' as int))",
    "price in (1, 1 / 0)", "elt(1, channel, cast(1 / 0 as string))", "coalesce(1, 1 / 0)", "if(true, 1, 1 / 0)",
    "transform(array(price), x -> 1 / 0)", "try_add(price, 1)", "try_element_at(array(1), 5)",
    "1 / 2 + if(price > 1, 1 / 0, 2)",
    "struct(1 / 0 as a, price as b).b", "array(price, 1 / 0)[0]", "price < 1 or 1 / 0 > 1",
    "lag(price, 1, 1 div 0) over (partition by time_bucket(interval '1' day, event_time) order by event_time, price)",
    "null / 0", "cast(null as int) % 0", "split(channel, null)", "price / null",
    "cast('12' as int)", "channel rlike '\\\\d+(a)'", "channel like '100\\\\%'", "split(channel, '[|]')",
    "price / price", "from_utc_timestamp(event_time, 'Europe/Vienna')", "encode(channel, 'utf-8')",
    "date_add(event_time, 1)", "next_day(event_time, 'MO')",
    "price > 1 and 1 / 0 > 1", "channel rlike 'it\\'s'", "count(1) over (partition by window(event_time, '1 day'))",
)  # fmt: skip
ROWS_DECIDE = {
    "a column that nobody selects": "select event_time, price from (select event_time, price, 1 / 0 as z from bid)",
    "another table's": "with t as (select event_time, 1 / 0 as z from bid) select event_time, price from bid",
    "a part of one": "with t as (select event_time, price, 1 / 0 as z from bid) select event_time, price from t",
    "of a union": "select event_time from (select event_time, 1 from bid union all select event_time, 1 / 0 from bid)",
}
"""Queries that do not fail."""
NO_ROW_DOES = {
    "a filter": ("select event_time from bid where price > 1 and channel rlike '('", 1, 56),
    "below": ("with t as (select event_time, 1 / 0 as z from bid)\nselect event_time, z from t", 1, 31),
    "an aggregate": ("select max(event_time) as event_time, auction, sum(price div 0) as z from bid group by auction",
                     1, 52),
    "a union": ("select event_time, 1 as z from bid union all\nselect event_time, 1 div 0 from bid", 2, 20),
}  # fmt: skip
"""Queries that fail, and where."""


@pytest.mark.parametrize("call", CERTAIN)
def test_what_fails_with_any_row_is_refused_without_rows(call, handler, spark):
    answer = asked(handler, f"select event_time, {call} as t from bid")
    row = "values (timestamp'2024-05-01', '2024', 1L) as bid(event_time, channel, price)"
    with pytest.raises((PySparkException, Py4JJavaError)):
        spark.sql(f"select event_time, {call} as t from {row}").collect()
    assert [each.code for each in answer.diagnostics] == [CERTAIN[call]]
    assert all(each.replace and each.line == 1 and each.column for each in answer.diagnostics)


def test_what_may_not_fail_is_accepted(handler):
    refused = {call: said for call in UNCERTAIN
               if not (said := asked(handler, f"select event_time, {call} as t from bid")).ok}  # fmt: skip
    assert not refused


@pytest.mark.parametrize("name", ROWS_DECIDE)
def test_a_constant_that_nobody_uses_fails_no_row(name, handler):
    said = asked(handler, ROWS_DECIDE[name])
    assert (said.ok, said.diagnostics) == (True, ())


@pytest.mark.parametrize("name", NO_ROW_DOES)
def test_a_constant_that_fails_is_found_wherever_it_is_used(name, handler):
    sql, line, column = NO_ROW_DOES[name]
    (only,) = asked(handler, sql).diagnostics
    assert (only.severity, only.line, only.column) == (Severity.ERROR, line, column)


def test_patterns_that_spark_takes_are_left_alone(handler):
    said = asked(
        handler,
        "select event_time, to_timestamp(channel, \"yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]\") as a, "
        "to_date(url, 'M/d/y') as b, "
        "date_format(event_time, 'EEEE, d MMMM yyyy QQQ') as c, from_unixtime(price, 'HH') as d from bid",
    )
    assert said.ok, said.diagnostics
