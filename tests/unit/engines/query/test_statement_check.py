"""Statements are checked before they are run, by what is installed."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from chain.errors import Environment, Invalid
from engines.query.installed import SQL_MISSING, need_sql, why_no_sql
from engines.query.reader import QueryLimits, QueryProcesses
from engines.query.statement_check import TABLE_FUNCTIONS, TableRef, check_statement, functions
from engines.query.temporal import AS_AT, AS_OF, AT_BLOCK, take_out
from odfd.services.maintenance.status import _sql_probe

# What a query may say, judged by DuckDB's own parse tree.

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "sql.md"


def judged(sql: str) -> list[TableRef]:
    statement, clauses = take_out(sql.encode())
    ((tree,),) = duckdb.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement.decode()]).fetchall()
    return check_statement(json.loads(tree), statement, clauses)


def names(sql: str) -> list[str]:
    return [".".join(table.path) for table in judged(sql)]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from read_csv('/etc/passwd')", "a query may not call read_csv"),
        ("select * from read_parquet('https://example.com/x.parquet')", "a query may not call read_parquet"),
        ("select * from read_text('/etc/passwd')", "a query may not call read_text"),
        ("select * from glob('/*')", "a query may not call glob"),
        ("from query('select 1')", "a query may not call query"),
        ("select * from duckdb_settings()", "a query may not call duckdb_settings"),
        ("select getenv('HOME')", "a query may not call getenv"),
        ("select current_setting('memory_limit')", "a query may not call current_setting"),
        ("select sum(x) over (order by getenv('HOME')) from t", "a query may not call getenv"),
        ("select * from t where exists (select main.read_blob('x'))", "a query may not call main.read_blob"),
        ("with a as (select sleep_ms(1)) select * from a", "a query may not call sleep_ms"),
        ("select 1 order by getenv('x') limit (select getenv('y'))", "a query may not call getenv"),
        ("attach 'x.db'", "ATTACH is not a query"),
        ("copy t to '/tmp/x'", "COPY is not a query"),
        ("install httpfs", "INSTALL is not a query"),
        ("load httpfs", "LOAD is not a query"),
        ("set memory_limit = '1TB'", "SET is not a query"),
        ("pragma database_list", "PRAGMA is not a query"),
        ("create table x as select 1", "CREATE is not a query"),
        ("insert into t values (1)", "INSERT is not a query"),
        ("call pragma_version()", "CALL is not a query"),
        ("export database 'x'", "EXPORT is not a query"),
        ("describe t", "a query may not say DESCRIBE, SHOW or SUMMARIZE"),
        ("select 1; select 2", "a query is one statement, and here are 2"),
        ("", "the query is empty"),
        ("select * from t at (version => 1)", "AT (…) is not understood"),
    ],
)
def test_what_a_query_may_not_say_is_refused_by_name(sql: str, said: str) -> None:
    """Attack T-QUERY-01: a query in SQL that reads files, addresses, settings or the catalog.

    Defence: the parse tree is checked against lists of what is allowed, and the rest is refused by name.
    """
    with pytest.raises(Invalid) as refusal:
        judged(sql)
    assert refusal.value.message == said


def test_a_file_or_an_address_is_a_name_of_a_dataset() -> None:
    assert names("from '/etc/passwd', 'https://example.com/a.csv' x") == ["/etc/passwd", "https://example.com/a.csv"]
    assert names("select * from information_schema.tables") == ["information_schema.tables"]


def test_tables_are_found_wherever_they_stand() -> None:
    sql = (
        "with recursive a as (select * from w), r as (select 1 n union all select n + 1 from r where n < 3) "
        "select (select max(x) from b.c), * from a join r on true, lateral (select * from current.d.e.f) q "
        'where y in (select y from "g h") union all by name select * from a as w'
    )
    assert names(sql) == ["w", "b.c", "current.d.e.f", "g h"]


def test_a_common_table_hides_a_dataset_only_in_its_scope() -> None:
    assert names("with weather as (select * from weather) select * from weather") == ["weather"]
    assert names("select * from (with a as (select 1) select * from a) x, a") == ["a"]
    assert names("with a as (select * from b), b as (select 1) select * from a, b") == ["b"]


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("select 1\n  frm t u", "line 2, column 7"),
        ("select 'ü', foo bar baz from t", "line 1, column 21"),
        ("select 1,\n getenv('x')", "line 2, column 2"),
    ],
)
def test_the_place_of_a_mistake_is_told(sql: str, place: str) -> None:
    with pytest.raises(Invalid) as refusal:
        judged(sql)
    assert refusal.value.place == place


def test_what_is_near_is_proposed() -> None:
    with pytest.raises(Invalid) as refusal:
        judged("select medain(x) from t")
    assert "did you mean median?" in refusal.value.hint


def test_clauses_of_time_belong_to_the_table_before_them() -> None:
    sql = (
        "select 'as of ''x''' from weather /* at block '#9' */ FOR SYSTEM_TIME AS OF TIMESTAMP '2024-05-01' w "
        "join a.b at block '#12' as at '2024-01-01' as x on true -- as of 'y'"
    )
    weather, other = judged(sql)
    assert [(each.kind, each.value) for each in weather.clauses] == [(AS_OF, "2024-05-01")]
    assert weather.alias == "w"
    assert [(each.kind, each.value) for each in other.clauses] == [(AT_BLOCK, "#12"), (AS_AT, "2024-01-01")]
    assert other.alias == "x"
    assert sql.encode()[other.start : other.end] == b"a.b"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from weather w as of '2024-05-01'", "a time clause is not behind a dataset's name"),
        ("select 1 as of '2024-05-01'", "a time clause is not behind a dataset's name"),
        ("select * from w as of '2024-05-01' as of '2024-05-02'", "a dataset has two time clauses"),
    ],
)
def test_a_clause_that_belongs_to_nothing_is_refused(sql: str, said: str) -> None:
    with pytest.raises(Invalid) as refusal:
        judged(sql)
    assert refusal.value.message == said


def test_blanks_take_the_place_of_clauses() -> None:
    sql = "select * from ü at block '#1' where x"
    statement, (clause,) = take_out(sql.encode())
    assert len(statement) == len(sql.encode())
    assert statement.decode() == "select * from ü " + " " * (clause.end - clause.start) + " where x"


def test_a_query_may_be_deep_but_not_without_end() -> None:
    with pytest.raises(Invalid) as refusal:
        judged("select " + "(" * 90 + "1" + " + 1)" * 90)
    assert refusal.value.rule in ("query-depth", "query-syntax")


def test_the_allowed_functions_are_functions() -> None:
    found = duckdb.execute("select distinct lower(function_name) from duckdb_functions()").fetchall()
    syntax = {"grouping", "if", "ifnull", "current_date", "current_timestamp"}
    assert functions() <= {name for (name,) in found} | syntax
    reaching = re.compile(r"read_|pragma_|duckdb_|getenv|current_setting|query|glob|sniff|write_|scan")
    assert not [name for name in functions() | TABLE_FUNCTIONS if reaching.match(name)]


def test_macros_are_made_of_what_is_allowed() -> None:
    """DuckDB puts their texts in the place of calls, where no check of a statement sees them."""
    found = duckdb.execute(
        "select function_name, macro_definition from duckdb_functions() where function_type = 'macro' and internal"
    ).fetchall()
    permitted = [(name, text) for name, text in found if name in functions()]
    assert permitted
    for name, text in permitted:
        computed = text.replace('"error"(', "upper(")  # which refuses an argument
        assert judged(f"select {computed}") == [], name


def test_the_examples_of_the_documentation_are_queries() -> None:
    examples = re.findall(r"(?ms)^```sql\n(.*?)^```$", DOCUMENT.read_text())
    assert len(examples) >= 3
    for example in examples:
        for sql in example.split(";\n"):
            if sql.strip():
                judged(sql.removesuffix(";\n"))


@pytest.mark.parametrize(
    "sql", ["table t", "(table t) union all (table u)", "select exists (table t)", "table current.t"]
)
def test_a_table_without_a_place_is_refused_in_words(sql: str) -> None:
    """The process of the query ended by an error of its own."""
    with pytest.raises(Invalid) as refusal:
        judged(sql)
    assert refusal.value.rule == "query-table"
    assert "FROM in place of TABLE" in refusal.value.hint


# Without SQL, which Debian has in a package of its own, queries are refused by name.


@pytest.fixture
def without_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *more: Any) -> Any:
        return None if name in ("duckdb", "prompt_toolkit", "xlsxwriter") else real(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_with_sql_nothing_is_said() -> None:
    assert why_no_sql() is None
    assert _sql_probe() is None
    need_sql("xlsxwriter")


@pytest.mark.usefixtures("without_sql")
async def test_a_query_is_refused_and_the_package_is_named(tmp_path: Path) -> None:
    async def choose() -> Any:
        raise AssertionError("no sandbox is looked for")

    processes = QueryProcesses(tmp_path, choose, QueryLimits())
    with pytest.raises(Environment, match="SQL is not installed with this odfd") as refused:
        async with processes.one():
            raise AssertionError("a process was lent")
    assert refused.value.rule == SQL_MISSING
    assert "odfd-sql" in refused.value.hint
    probe = _sql_probe()
    assert probe is not None
    assert (probe.result, probe.message) == ("ok", str(refused.value))


@pytest.mark.usefixtures("without_sql")
def test_a_spreadsheet_is_refused_as_well(tmp_path: Path) -> None:
    from odfd.cli.sql.output_file import _sheet

    with (tmp_path / "out.xlsx").open("wb") as out, pytest.raises(Environment, match="SQL is not installed"):
        _sheet(out, [("x", "int64")])
