"""Statements are answered from slices, alike each time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chain.errors import Environment, Fault, Invalid, Refused
from engines.query.duckdb_session import (
    BATCH_ROWS,
    MOST_BATCH_ROWS,
    MOST_CACHED,
    QuerySession,
    SessionLimits,
    batch_rows,
)
from engines.query.requests import RowSelection
from engines.query.views import Fold, SliceView
from worlds.depth import share
from worlds.faults import breaks

# DuckDB over slices: logs, folds, cuts by event time, and what a locked connection refuses.

TIME = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    {
        "offset": pa.int64(),
        "op": pa.int32(),
        "system_time": TIME,
        "event_time": TIME,
        "city": pa.string(),
        "people": pa.int64(),
    }
)
Row = tuple[int, int, str, int]
"""Operation, event time in seconds, city, people."""
LOG: list[Row] = [(0, 0, "a", 1), (0, 1, "b", 2), (2, 1, "b", 2), (3, 1, "b", 3), (1, 0, "a", 1), (0, 2, "a", 9)]
LIMITS = SessionLimits(memory=128 << 20, temporary=64 << 20, threads=1)


class Slices:
    """Files of one dataset, and questions about it."""

    def __init__(self, folder: Path) -> None:
        self.inputs, self.temporary = folder / "in", folder / "tmp"
        self.inputs.mkdir(exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.files: list[str] = []

    def write(self, table: pa.Table) -> None:
        self.files.append(str(self.inputs / str(len(self.files))))
        pq.write_table(table, self.files[-1])

    def rows(self, rows: list[Row], size: int = 4) -> None:
        ops, times, cities, people = ([row[place] for row in rows] for place in range(4))
        columns = [range(len(rows)), ops, [0] * len(rows), [1000 * each for each in times], cities, people]
        whole = pa.table(
            [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
        for start in range(0, len(rows), size):
            self.write(whole.slice(start, size))

    def ask(
        self, sql: str, parameters: Any = None, limits: SessionLimits = LIMITS, **view: Any
    ) -> list[tuple[Any, ...]]:
        answering = QuerySession(limits, self.inputs, self.temporary)
        prepared = answering.prepare(sql)
        view.setdefault("schema", SCHEMA.serialize().to_pybytes())
        views = [SliceView(name="odfd 0", files=tuple(self.files), **view)]
        places = [0] * len(prepared.tables)
        reader = answering.run(prepared, views, places, parameters)
        with answering.translated_faults(prepared, views, places):
            table = reader.read_all()
        return [tuple(row.values()) for row in table.to_pylist()]


@pytest.fixture
def slices(tmp_path: Path) -> Slices:
    return Slices(tmp_path)


@pytest.mark.slow
def test_a_value_amid_rows_that_does_not_fit_is_the_query_s_fault(slices: Slices) -> None:
    many = 3 * BATCH_ROWS
    slices.rows([(0, 0, "x7" if number == many - 5 else str(number), number) for number in range(many)], many)
    with pytest.raises(Invalid) as caught:
        slices.ask('select "offset",\n  cast(city as int) from weather')
    assert "Could not convert string 'x7' to INT32" in str(caught.value)
    assert (caught.value.rule, caught.value.place) == ("query", "line 2, column 3")
    assert "try_cast" in caught.value.hint
    with breaks("query", Invalid, match="out of range"):
        slices.ask("select people::smallint from weather")
    assert slices.ask("select count(*) from weather where try_cast(city as int) is null") == [(1,)]


@pytest.mark.parametrize(
    ("sql", "message", "place"),
    [
        ("select 1,\n  city * 2 from weather", "* takes no (VARCHAR, INTEGER)", "line 2, column 3"),
        ("select sum(city) from weather", "sum takes no (VARCHAR)", "line 1, column 8"),
    ],
)
def test_a_function_that_a_type_does_not_fit_is_told_in_a_line(
    slices: Slices, sql: str, message: str, place: str
) -> None:
    slices.rows([(0, 0, "graz", 1)], 1)
    with pytest.raises(Invalid) as caught:
        slices.ask(sql)
    assert (caught.value.message, caught.value.rule, caught.value.place) == (message, "query-types", place)
    assert "try_cast" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("selec city from weather", "did you mean SELECT?"),
        ("select city from weather wher city = 'x'", "did you mean WHERE?"),
        ("select city from weather where", "odfctl docs sql"),
    ],
)
def test_a_misspelt_keyword_is_told(slices: Slices, sql: str, hint: str) -> None:
    with pytest.raises(Invalid, match="syntax error") as caught:
        slices.ask(sql)
    assert hint in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "values", "message"),
    [
        ("select city from weather where people > ?", None, "not provided"),
        ("select city from weather where people > ?", [1, 2], "excess"),
        ("select city from weather", [1], "mismatch"),
    ],
)
def test_values_that_are_missing_or_too_many_are_told(
    slices: Slices, sql: str, values: list[int] | None, message: str
) -> None:
    slices.rows([(0, 0, "graz", 1)], 1)
    with pytest.raises(Invalid, match=message) as caught:
        slices.ask(sql, values)
    assert "-p VALUE" in caught.value.hint


@pytest.mark.slow
def test_a_damaged_footer_is_damage(slices: Slices) -> None:
    """DuckDB has no one kind of error for it."""
    slices.rows([(0, 0, "Graz", 1)], 1)
    file = Path(slices.files[0])
    whole = file.read_bytes()
    length = int.from_bytes(whole[-8:-4], "little")
    for at in range(len(whole) - 8 - length, len(whole) - length, 3):
        file.write_bytes(whole[:at] + bytes(each ^ 0xFF for each in whole[at : at + 8]) + whole[at + 8 :])
        with breaks("query-slice", Environment, match="a slice cannot be read"):
            slices.ask("select * from weather")


@pytest.mark.slow
def test_damage_amid_rows_stays_damage(slices: Slices) -> None:
    slices.rows([(0, 0, f"town {number}", number) for number in range(3 * BATCH_ROWS)], 3 * BATCH_ROWS)
    file = Path(slices.files[0])
    whole = bytearray(file.read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 2000] = bytes(each ^ 0xFF for each in whole[middle : middle + 2000])
    file.write_bytes(whole)
    with breaks("query-slice", Environment, match="a slice cannot be read"):
        slices.ask("select * from weather")


def test_narrow_rows_come_in_larger_batches() -> None:
    assert batch_rows(["BIGINT"]) == MOST_BATCH_ROWS
    assert batch_rows(["BIGINT", "DATE"]) == 2 * BATCH_ROWS
    assert batch_rows(["BIGINT"] * 5) == batch_rows(["BIGINT", "VARCHAR"]) == BATCH_ROWS


@pytest.mark.slow
def test_the_log_is_in_the_order_of_offsets(slices: Slices) -> None:
    slices.rows(LOG, 2)
    assert slices.ask('select "offset", op, city from weather') == [(n, row[0], row[2]) for n, row in enumerate(LOG)]
    assert slices.ask('select weather."offset" from weather limit 2 offset 3') == [(3,), (4,)]


@pytest.mark.slow
def test_a_dataset_may_be_named_twice_and_as_one_likes(slices: Slices) -> None:
    slices.rows(LOG)
    assert slices.ask("select count(*) from a.weather join a.weather w on weather.city = w.city and w.op = 0") == [(9,)]
    assert slices.ask("with x as (from weather) select count(*) from x, weather") == [(36,)]


@pytest.mark.slow
def test_a_column_is_named_with_the_schema_of_its_table(slices: Slices) -> None:
    slices.rows(LOG)
    asked = 'select current.cities.city from current.cities where "Current" . "CITIES".people = 9'
    assert slices.ask(asked) == [("a",)]
    joined = (
        "select c.city, current.cities.people from cities c join current.cities on c.offset = current.cities.offset"
    )
    assert len(slices.ask(joined)) == len(LOG)
    with pytest.raises(Invalid) as wrong:
        slices.ask("select current.cities.citi from current.cities")
    assert wrong.value.place == "line 1, column 16", "where the column stands, behind its schema"
    with pytest.raises(Invalid, match="current"):
        slices.ask("select current.cities.city from current.cities as c")


@pytest.mark.slow
def test_values_are_given_by_name_and_by_place(slices: Slices) -> None:
    slices.rows(LOG)
    assert slices.ask("select count(*) from t where city = $city and people > $least", {"city": "a", "least": 2}) == [
        (1,)
    ]
    assert slices.ask("select count(*) from t where city = ?", ["b"]) == [(3,)]
    with pytest.raises(Invalid):
        slices.ask("select $x")


@pytest.mark.slow
def test_current_is_the_last_row_of_each_key_that_stands(slices: Slices) -> None:
    slices.rows(LOG)
    found = slices.ask('select "offset", city, people from weather', fold="key", key=("city",))
    assert found == [(3, "b", 3), (5, "a", 9)]
    slices.rows([])
    (before,) = slices.ask("select city from w", fold="key", key=("city",), until=500_000)[:1] or [None]
    assert before is None, "the first row of a was taken back by then"


def test_rows_are_taken_back_as_often_as_they_are_retracted(slices: Slices) -> None:
    slices.rows([*LOG, (1, 7, "z", 7), (0, 7, "z", 7), (0, 7, "z", 7), (1, 7, "z", 7)])
    found = slices.ask('select "offset", city, people from weather', fold="rows")
    assert found == [(3, "b", 3), (5, "a", 9), (8, "z", 7)]


def standing_rows(rows: list[Row]) -> list[int]:
    """Offsets of rows that no later one takes back: the oldest of equal ones goes first."""
    standing: dict[tuple[Any, ...], list[int]] = {}
    for offset, (op, *said) in enumerate(rows):
        held = standing.setdefault(tuple(said), [])
        if op in (0, 3):
            held.append(offset)
        elif held:
            held.pop(0)
    return sorted(offset for held in standing.values() for offset in held)


def last_of_keys(rows: list[Row]) -> list[int]:
    last: dict[str, tuple[int, int]] = {}
    for offset, (op, _, city, _) in enumerate(rows):
        if op != 2:
            last[city] = (offset, op)
    return sorted(offset for offset, op in last.values() if op in (0, 3))


ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 1)), max_size=14)
MODELS: dict[Fold, Callable[[list[Row]], list[int]]] = {"rows": standing_rows, "key": last_of_keys}


@pytest.mark.slow
@pytest.mark.parametrize("fold", sorted(MODELS))
@settings(max_examples=share(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, size=st.integers(1, 5))
def test_a_fold_is_that_of_the_model_however_slices_are_cut(
    tmp_path_factory: pytest.TempPathFactory, fold: Fold, rows: list[Row], size: int
) -> None:
    slices = Slices(tmp_path_factory.mktemp("s"))
    slices.rows(rows, size)
    found = slices.ask('select "offset" from t', fold=fold, key=("city",) if fold == "key" else ())
    assert [offset for (offset,) in found] == MODELS[fold](rows)


@pytest.mark.slow
def test_rows_of_a_later_event_time_are_left_out(slices: Slices) -> None:
    slices.rows(LOG)
    assert slices.ask("select count(*) from t", until=1_000_000) == [(5,)]
    assert slices.ask("select city, people from t", until=1_000_000, fold="rows") == [("b", 3)]


def test_columns_that_came_later_are_null_before(slices: Slices) -> None:
    slices.rows(LOG[:2])
    more = pa.table({"offset": pa.array([2]), "op": pa.array([0], pa.int32()), "city": ["c"], "mayor": ["Elke"]})
    slices.write(more)
    schema = SCHEMA.append(pa.field("mayor", pa.string())).append(pa.field("area", pa.float64()))
    found = slices.ask("select city, people, mayor, area from t", schema=schema.serialize().to_pybytes(), mixed=True)
    assert found == [("a", 1, None, None), ("b", 2, None, None), ("c", None, "Elke", None)]


def test_a_dataset_without_rows_has_columns(slices: Slices) -> None:
    assert slices.ask("select count(*), max(people) from t", fold="rows") == [(0, None)]


@pytest.mark.parametrize(
    ("sql", "rule", "said", "place"),
    [
        ("select\n citi from weather", "query-names", 'column "citi" not found', "line 2, column 2"),
        ("select peple.x from weather", "query-names", "peple", "line 1, column 8"),
        ("select 'x'::int + people from weather", "query", "Could not convert", "line 1, column 11"),
        ("select * frm weather", "query-syntax", "syntax error", "line 1, column 14"),
    ],
)
def test_mistakes_are_told_with_their_place(slices: Slices, sql: str, rule: str, said: str, place: str) -> None:
    slices.rows(LOG)
    with breaks(rule, Invalid) as fault:
        slices.ask(sql)
    assert said in fault.value.message
    assert fault.value.place == place or not place


def test_a_column_that_is_near_is_proposed(slices: Slices) -> None:
    slices.rows(LOG)
    with pytest.raises(Invalid) as fault:
        slices.ask("select citi from weather")
    assert fault.value.hint.startswith("did you mean city")


@pytest.mark.parametrize(
    "sql", ["select zz from weather", "select w.zz from weather w", "select * from weather order by zz"]
)
def test_columns_are_listed_where_none_is_near(slices: Slices, sql: str) -> None:
    slices.rows(LOG)
    with pytest.raises(Invalid) as fault:
        slices.ask(sql)
    assert fault.value.hint == "the columns are offset, op, system_time, event_time, city, people"


@pytest.mark.parametrize("sql", ["with x as (select 1 as k) select zz from x", "select 1::zzzzz"])
def test_no_name_is_proposed_that_is_not_near(slices: Slices, sql: str) -> None:
    with pytest.raises(Invalid) as fault:
        slices.ask(sql)
    assert "did you mean" not in fault.value.hint


def test_a_query_that_needs_too_much_is_refused(slices: Slices) -> None:
    """Attack T-QUERY-02: a query that takes all memory, disk or time.

    Defence: each has a limit, at which the process ends.
    """
    small = SessionLimits(memory=32 << 20, temporary=1 << 20, threads=1)
    with pytest.raises(Refused) as fault:
        slices.ask("select list(repeat('x', 50) || range) from range(3000000)", limits=small)
    assert fault.value.rule in ("query-memory", "query-temporary")


def test_a_connection_that_is_locked_reads_nothing_but_its_slices(slices: Slices, tmp_path: Path) -> None:
    """Attack T-QUERY-01: a query that passes the check.

    Defence: the connection is locked before the statement runs: no file but the slices, no extension, no setting.

    Even for a statement that no judge looked at.
    """
    slices.rows(LOG)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    answering = QuerySession(LIMITS, slices.inputs, slices.temporary)
    prepared = answering.prepare("select count(*) from t")
    view = SliceView(name="odfd 0", files=tuple(slices.files), schema=SCHEMA.serialize().to_pybytes())
    answering.run(prepared, [view], [0], None).read_all()
    for statement in (
        f"select * from read_csv('{tmp_path / 'secret.csv'}')",
        f"copy (select 1) to '{tmp_path / 'out.csv'}'",
        f"attach '{tmp_path / 'x.db'}'",
        "set enable_external_access = true",
        "set memory_limit = '1TB'",
        "install httpfs",
        "load httpfs",
    ):
        with pytest.raises(duckdb.Error):
            answering._connection.execute(statement)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(("count", "kept"), [(MOST_CACHED, True), (MOST_CACHED + 1, False)])
def test_footers_of_a_few_slices_are_kept_while_a_query_is_planned(slices: Slices, count: int, kept: bool) -> None:
    """Those of many would take memory without a bound. Slices of parts count too."""
    slices.rows([LOG[0]] * count, 1)
    schema = SCHEMA.serialize().to_pybytes()
    files = slices.files[:2], slices.files[2:]
    parts = tuple(SliceView(name=f"odfd 0 {part}", files=tuple(each), schema=schema) for part, each in enumerate(files))
    answering = QuerySession(LIMITS, slices.inputs, slices.temporary)
    prepared = answering.prepare("select count(*) as n from t")
    view = SliceView(name="odfd 0", files=(), schema=schema, parts=parts)
    assert answering.run(prepared, [view], [0], None).read_all().to_pylist() == [{"n": count}]
    setting = answering._connection.execute("select current_setting('parquet_metadata_cache')").fetchall()
    assert setting == [(kept,)]


NOT_A_NUMBER = {
    "x": pa.array([-2.25, math.nan]),
    "f": pa.array([-2.25, math.nan], pa.float32()),
    "list": pa.array([[-2.25], [math.nan]]),
    "struct": pa.array([{"y": -2.25}, {"y": math.nan}]),
}
"""A row of a number and one of NaN, which Parquet's statistics leave out."""


@pytest.mark.parametrize("slice_count", [1, 2])
@pytest.mark.parametrize("value", ["x", "f", "list[1]", "struct.y"])
def test_nan_is_above_all_numbers(slices: Slices, value: str, slice_count: int) -> None:
    table = pa.table({"offset": [0, 1], **NOT_A_NUMBER})
    for _ in range(slice_count):
        slices.write(table)
    expected = {
        f'select "offset" from t where {value} > 0.25': [(1,)],
        f'select "offset" from t where {value} <= -2.25': [(0,)],
        f'select "offset" from t where {value} <> -2.25': [(1,)],
        f"select \"offset\" from t where {value} = 'nan'": [(1,)],
        f"select nullif({value}, 'nan') is null from t": [(False,), (True,)],
        f"select {value} > 0.25 from t": [(False,), (True,)],
        f"select isnan({value}) from t": [(False,), (True,)],
    }
    schema = table.schema.serialize().to_pybytes()
    assert {sql: slices.ask(sql, schema=schema) for sql in expected} == {
        sql: rows * slice_count for sql, rows in expected.items()
    }
    assert slices.ask(f"select isnan(max({value})) from t", schema=schema) == [(True,)]
    assert slices.ask(f"select min({value}) from t", schema=schema) == [(-2.25,)]


@pytest.mark.slow
def test_a_slice_that_is_no_parquet_is_told(slices: Slices) -> None:
    slices.rows(LOG)
    Path(slices.files[0]).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(Fault) as fault:
        slices.ask("select * from t")
    assert isinstance(fault.value, Environment | Invalid)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["people", "rowid", "RowID"])
def test_a_large_fold_goes_on_in_the_order_of_offsets(slices: Slices, name: str) -> None:
    """By several threads over several row groups, and where a column is called as DuckDB calls a row's place."""
    schema = pa.schema(
        {"offset": pa.int64(), "op": pa.int32(), "system_time": TIME, "city": pa.int64(), name: pa.int64()}
    )
    view: dict[str, Any] = {"schema": schema.serialize().to_pybytes(), "fold": "key", "key": ("city",)}
    limits = SessionLimits(memory=256 << 20, temporary=64 << 20, threads=4)
    kept = 130_000  # DuckDB's row groups have 122,880

    def write(offsets: range, cities: list[int]) -> None:
        columns = [offsets, [0] * len(cities), [0] * len(cities), cities, offsets]
        slices.write(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))

    write(range(kept), list(range(kept)))
    fold = slices.temporary / "fold"
    made = SliceView(name="odfd 0", files=tuple(slices.files), **view)
    QuerySession(limits, slices.inputs, slices.temporary).save_fold(made, fold)
    slices.files.clear()
    changed = list(range(kept - 7, 0, -1000))
    write(range(kept, kept + len(changed)), changed)
    found = slices.ask('select "offset", city from w', limits=limits, earlier=str(fold), **view)
    gone = set(changed)
    stayed = [(place, place) for place in range(kept) if place not in gone]
    assert found == stayed + [(kept + place, city) for place, city in enumerate(changed)]


FLOATS = st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")])
FOLD_ROW = st.tuples(st.sampled_from([0, 0, 0, 1, 2, 3]), st.sampled_from(["a", "b", None]), FLOATS)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=share(60))
@given(st.lists(FOLD_ROW, max_size=14), st.lists(st.integers(0, 14), max_size=3), st.sampled_from(["key", "rows"]))
def test_prop_a_fold_goes_on_from_any_earlier_one(
    tmp_path_factory: pytest.TempPathFactory,
    log: list[tuple[int, str | None, float | None]],
    cuts: list[int],
    fold: Fold,
) -> None:
    """However often it was put down on the way, it comes to the same rows in the same order."""
    slices = Slices(tmp_path_factory.mktemp("fold"))
    schema = pa.schema(
        {"offset": pa.int64(), "op": pa.int32(), "system_time": TIME, "city": pa.string(), "x": pa.float64()}
    )
    places = sorted({0, len(log), *(cut for cut in cuts if cut < len(log))})
    earlier: str | None = None
    view: dict[str, Any] = {
        "schema": schema.serialize().to_pybytes(), "fold": fold, "key": ("city",) if fold == "key" else ()
    }  # fmt: skip
    for start, stop in itertools.pairwise(places):
        rows = [(place, log[place][0], 0, *log[place][1:]) for place in range(start, stop)]
        columns = list(zip(*rows, strict=True))
        slices.write(pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))
        made = SliceView(name="odfd 0", files=(slices.files[-1],), earlier=earlier, **view)
        earlier = str(slices.temporary / f"fold {stop}")
        count = QuerySession(LIMITS, slices.inputs, slices.temporary).save_fold(made, Path(earlier))
        alone = Slices(slices.inputs.parent)
        with_earlier = alone.ask("select * from w", earlier=earlier, **view)
        assert count == len(with_earlier)
        assert str(with_earlier) == str(slices.ask("select * from w", **view)), (fold, places, stop)


# What may be proven: answers that come whenever the query runs over the same rows; the others are refused by name.

KEYED = pa.schema({"offset": pa.int64(), "op": pa.int32(), "k": pa.string(), "n": pa.int64(), "x": pa.float64()})
VIEW = SliceView(name="odfd 0", files=(), schema=KEYED.serialize().to_pybytes(), system=("offset", "op", "time"))


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
    """Attack T-QUERY-05: an answer that cannot be repeated, offered as a proof.

    Defence: what depends on order, chance, time or machine is refused by name before it is signed.
    """
    with breaks("query-prove", Refused) as refusal:
        proven(tmp_path, sql)
    assert named in refusal.value.message
    assert instead in refusal.value.hint


@pytest.mark.slow
def test_rows_are_in_the_order_of_their_columns(tmp_path: Path) -> None:
    rows = proven(tmp_path, "select * from (values (2, 'b'), (1, 'z'), (2, 'a')) v(n, k) order by n desc")
    assert [tuple(row.values()) for row in rows] == [(1, "z"), (2, "a"), (2, "b")]
