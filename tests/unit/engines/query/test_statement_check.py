"""Statements are checked before they are run, by what is installed, and so is what DuckDB makes of their names."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Environment, Fault, Invalid, Refused
from engines.query.duckdb_session import PreparedStatement, QuerySession, SessionLimits
from engines.query.installed import SQL_MISSING, need_sql, why_no_sql
from engines.query.reader import QueryLimits, QueryProcesses
from engines.query.repeatable import judge_plan
from engines.query.requests import UNREADABLE, RowSelection
from engines.query.statement_check import TABLE_FUNCTIONS, TableRef, check_statement, functions
from engines.query.temporal import AS_AT, AS_OF, AT_BLOCK, take_out
from engines.query.views import SliceView
from odfd.services.maintenance.status import _sql_probe
from worlds.sql_texts import Grammar, by_lot

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


# What names of a statement become: DuckDB binds them, and what it bound is checked before anything runs.
# The oracles are DuckDB's own: the names that it looks for outside of WITH, and its plan by another way than that
# by which the check has it. Then the statement runs where paths and files hold a secret.

MUTANTS = int(os.environ.get("ODF_FUZZ", "0")) or 300
LIMITS = SessionLimits(memory=128 << 20, temporary=64 << 20, threads=1)
SCHEMA = pa.schema({"op": pa.int32(), "city": pa.string(), "people": pa.int64()})
ROWS = pa.table({"op": pa.array([0, 0], pa.int32()), "city": ["graz", "linz"], "people": [1, 2]}, schema=SCHEMA)
CANARY = "canary"
"""Name of files in the folders of the query; statements know it."""
SECRET = "nightingale"
"""A word in all paths, and in the files: no statement has it, and no answer may."""
FIRST = int(os.environ.get("ODF_FUZZ_FIRST", "0"))
"""Mutated statements, and the seed of their lot, from which a long run goes on."""
SECONDS = 0.5
"""Seconds after which a mutant that does not end is interrupted, and counted."""


class Bed:
    """A session with a slice, and DuckDB beside it as the oracle."""

    def __init__(self, folder: Path) -> None:
        self.inputs, self.temporary = folder / SECRET / "in", folder / SECRET / "tmp"
        for each in (self.inputs, self.temporary):
            each.mkdir(parents=True)
            (each / f"{CANARY}.csv").write_text(f"city,people\n{SECRET},1\n")
            pq.write_table(pa.table({"city": [SECRET], "people": [1]}), each / f"{CANARY}.parquet")
        self.slice = self.inputs / "f1620"
        pq.write_table(ROWS, self.slice)
        self.session = QuerySession(LIMITS, self.inputs, self.temporary)
        self.bare = duckdb.connect(":memory:", config={"enable_external_access": False})
        self.plans, self.runs = _oracle(), _oracle()
        self.views: list[SliceView] = []
        self.stopped = 0

    def bind(self, sql: str | PreparedStatement, *, prove: bool = False) -> tuple[PreparedStatement, str]:
        """Prepares and binds a statement. Each of its tables has a view of its own, so that plans tell them apart."""
        prepared = self.session.prepare(sql) if isinstance(sql, str) else sql
        while len(self.views) < len(prepared.tables):
            self._another_view()
        places = range(len(prepared.tables))
        wanted = RowSelection(prove=prove, unbound=True)
        return prepared, self.session.bind(prepared, self.views, places, None, wanted)

    def _another_view(self) -> None:
        view = SliceView(name=f"odfd {len(self.views)}", files=(), schema=SCHEMA.serialize().to_pybytes())
        self.views.append(view)
        self.plans.execute(f'CREATE TABLE "{view.name}" (op int, city varchar, people bigint)')
        self.runs.execute(f"CREATE VIEW \"{view.name}\" AS SELECT * FROM read_parquet('{self.slice}')")

    def scanned(self, statement: str) -> set[str] | None:
        """Returns what DuckDB reads for a statement, by its plan in another form than ours; ``None`` if it has none."""
        ((told,),) = self.plans.execute("SELECT json_serialize_plan(?::VARCHAR)", [statement]).fetchall()
        plan = json.loads(told)
        if plan["error"]:
            return None
        return set(_sources(plan["plans"]))

    def looked_for(self, prepared: PreparedStatement) -> set[str]:
        """Returns the names that DuckDB looks for outside of WITH, in a database that has nothing."""
        try:
            return set(self.bare.get_table_names(prepared.statement.decode()))
        except duckdb.Error:  # of a statement that needs columns
            return set()

    def answer(self, statement: str) -> str:
        """Runs a statement without our check. Returns its rows as text."""
        timer = threading.Timer(SECONDS, self.runs.interrupt)
        timer.start()
        try:
            return str(self.runs.execute(statement).fetchmany(100))
        except duckdb.InterruptException:
            self.stopped += 1
        except duckdb.Error:  # of values: it was bound
            pass
        finally:
            timer.cancel()
        return ""


def _oracle() -> duckdb.DuckDBPyConnection:
    config = {"threads": 1, "memory_limit": "128MB", "python_enable_replacements": False}
    return duckdb.connect(":memory:", config=config)


def _sources(plan: object) -> Iterator[str]:
    waiting = [plan]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if each.get("type") == "LOGICAL_GET":
                path = each["qname"]["path"]
                yield each["function_data"]["table"] if path == ["seq_scan"] else path[-1]
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    made = Bed(tmp_path)
    monkeypatch.chdir(made.inputs.parent)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "datasets"),
    [
        ("with recursive n as (select * from n union all select * from n where false) select * from n", ["n"]),
        ("with recursive N(a) as (select city from n union all select a from n where false) select * from n", ["n"]),
        ("with recursive n as (from u union all (with m as (from n) from m where false)) from n", ["u"]),
        ("with recursive a as (with n as (from a) from n union all from a where false) from a", ["a"]),
        ('with "duc\u212adb_views" as (select 1) select * from duckdb_views', ["duckdb_views"]),
        ('with "É" as (select 1) from "é"', ["é"]),
        ('with "Graz" as (select 1) from gRAZ a, "GRAZ" b', []),
        ("with a as (from recurring.a) from a", ["recurring.a"]),
    ],
)
def test_a_name_is_a_dataset_where_duckdb_has_no_other_for_it(bed: Bed, sql: str, datasets: list[str]) -> None:
    """Each of these once was read from the catalog, or as a file: the check had another scope in mind."""
    prepared, statement = bed.bind(sql)
    assert [".".join(table.path) for table in prepared.tables] == datasets
    assert bed.scanned(statement) == {f"odfd {number}" for number in range(len(datasets))}
    assert bed.looked_for(prepared) <= {table.path[-1] for table in prepared.tables}


@pytest.mark.slow
def test_blanks_of_unicode_move_no_name(bed: Bed) -> None:
    """DuckDB counts each as one byte: the place that it told was once that of ``aa``, and the catalog was read."""
    for blanks in ("\u2003" * 2, "\u00a0\u2003", "\ufeff\u3000", " /*\u2003\u2003*/ "):
        prepared, statement = bed.bind(
            f"select z.city from (select 1){blanks}aa, duckdb_views z where 'a\u00a0' <> city"
        )
        assert [table.path for table in prepared.tables] == [("duckdb_views",)]
        assert bed.scanned(statement) == {"odfd 0"}
        assert "a\u00a0".encode() in prepared.statement


@pytest.mark.slow
def test_a_name_that_is_not_where_it_should_be_is_refused(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else moves the places that DuckDB tells."""
    monkeypatch.setattr("engines.query.duckdb_session.with_plain_blanks", lambda statement: statement)
    with pytest.raises(Invalid) as refusal:
        bed.bind("select z.city from (select 1)\u2003\u2003aa, duckdb_views z")
    assert refusal.value.message == "the place of duckdb_views is not known"


@pytest.mark.slow
@pytest.mark.parametrize("sql", ['select city from"t"where true', 'select "g h".city from t"g h"', "(from t)"])
def test_a_name_without_blanks_around_it_is_found(bed: Bed, sql: str) -> None:
    assert "graz" in bed.answer(bed.bind(sql)[1])


@pytest.mark.slow
def test_a_statement_that_cannot_be_bound_accuses_no_slice(bed: Bed) -> None:
    with pytest.raises(Invalid) as refusal:
        bed.bind("from t intersect all from u order by ? limit 3 offset 1")
    assert refusal.value.message == "Parameter not supported in ORDER BY clause"


@pytest.mark.slow
def test_a_recursion_by_key_reads_all_that_it_has(bed: Bed) -> None:
    step = "select a, b + 1 from recurring.n where b < 4"
    prepared, statement = bed.bind(f"with recursive n(a, b) using key (a) as (select 1, 2 union {step}) from n")
    assert prepared.tables == []
    assert bed.answer(statement) == "[(1, 4)]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from duckdb_views", "would read duckdb_views"),
        ("select 1 where false and exists (select * from sqlite_master)", "would read duckdb_"),
        ("select * from information_schema.tables", "would read duckdb_"),
        ("from pg_catalog.pg_class limit 0", "would read duckdb_"),
        ("from duckdb_settings()", "would read duckdb_settings"),
        ("with recursive n as (from duckdb_views union all from n where false) from n", "would read duckdb_views"),
        ('select * from "odfd 7"', 'would read memory.main."odfd 7"'),
        ('select * from temp."odfd 8"', 'would read "temp".main."odfd 8"'),
        ("from repeat('x', 3)", "would read repeat"),
        ("from test_all_types()", "would read test_all_types"),
        (f"from '{CANARY}.csv'", "file system operations are disabled"),
        ("from 'https://example.com/x.parquet'", "file system operations are disabled"),
        ("from read_text('/etc/passwd')", "file system operations are disabled"),
        ("from glob('/*')", "file system operations are disabled"),
    ],
)  # fmt: skip
def test_what_duckdb_bound_to_anything_else_is_refused(bed: Bed, sql: str, said: str) -> None:
    """Whatever the check of the text lets through: these come here without it, as if it had been deceived."""
    bed.session._connection.execute('CREATE TABLE "odfd 7" AS SELECT 1 AS x')
    bed.session._connection.execute('CREATE TEMP TABLE "odfd 8" AS SELECT 1 AS x')
    with pytest.raises(Invalid) as refusal:
        bed.bind(PreparedStatement(statement=sql.encode(), tables=(), tree={}))
    assert said in refusal.value.message


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{CANARY}.csv", f"{CANARY}.parquet"])
def test_a_file_in_the_folders_of_a_query_is_no_table(bed: Bed, name: str) -> None:
    for folder in (bed.inputs, bed.temporary):
        with pytest.raises(Invalid, match=r"would read (read_csv|parquet_scan)"):
            bed.bind(PreparedStatement(statement=f"from '{folder / name}'".encode(), tables=(), tree={}))


@pytest.mark.slow
def test_a_name_of_a_view_is_no_name_of_a_with(bed: Bed) -> None:
    prepared, statement = bed.bind("with \"odfd 0\" as (select 'no' city) select city from t")
    assert [table.path for table in prepared.tables] == [("t",)]
    assert "graz" in bed.answer(statement)


@pytest.mark.slow
def test_nothing_but_tables_is_proven(bed: Bed) -> None:
    """Attack T-QUERY-05: a proof of rows that are not of datasets, by a statement that deceived the check.

    Defence: the plan that has types is checked again before it is signed.

    By the plan itself, behind both other checks.
    """
    for sql in ("from duckdb_views", "from duckdb_settings()"):
        ((plan,),) = bed.plans.execute("SELECT json_serialize_plan(?::VARCHAR)", [sql]).fetchall()
        with pytest.raises(Refused, match=r"may not read duckdb_(views|settings)"):
            judge_plan(json.loads(plan))
    bed.bind("select city, count(*) from t, range(2) group by city", prove=True)


@pytest.mark.slow
def test_a_statement_too_deep_to_be_read_is_refused(bed: Bed) -> None:
    with pytest.raises(Invalid) as refusal:
        bed.bind("select 1 from " + ", ".join(f"range(1) t{number}" for number in range(1200)))
    assert refusal.value.rule == "query-depth"


@pytest.mark.slow
def test_valid_statements_are_accepted_and_read_their_datasets(bed: Bed) -> None:
    """By lot, with WITHs that hide datasets, catalog and each other; a sixth as many as ODF_FUZZ says."""
    lot = random.Random(FIRST)
    grammar = Grammar(lot)
    hidden = 0
    for _ in range(MUTANTS // 6):
        made = grammar.statement()
        prepared, statement = bed.bind(made.text)
        found = [bytes(prepared.statement[table.start : table.end]).decode() for table in prepared.tables]
        assert found == list(made.datasets), made.text
        assert bed.looked_for(prepared) <= {table.path[-1] for table in prepared.tables}, made.text
        scanned = bed.scanned(statement)
        assert scanned is not None, made.text
        assert scanned - TABLE_FUNCTIONS == {f"odfd {each}" for each in made.read}, made.text
        hidden += len(made.read) < len(made.datasets)
    assert hidden


@pytest.mark.slow
def test_mutated_statements_read_their_slices_alone(bed: Bed) -> None:
    """Attack T-QUERY-01: a name that the check takes for a table of a WITH, and DuckDB for one of its catalog, or for a
    file: in the first part of a recursion, in letters that only Python folds, behind blanks of Unicode that move the
    places of what follows.

    Defence: the statement is bound to empty tables before it runs; in the plan that DuckDB made of it, any operator but
    tables of the query, permitted table functions, and what computes from these is refused; names in the text must be
    those of the parse tree.

    ODF_FUZZ says how many.
    """
    lot = random.Random(FIRST)
    grammar, grown = Grammar(lot), list[str]()
    counts = Counter[str]()
    for _ in range(MUTANTS):
        sql = by_lot(lot, grammar, grown)
        counts["tried"] += 1
        try:
            prepared, statement = bed.bind(sql)
        except Fault as fault:
            counts[fault.rule] += 1
            continue
        counts["accepted"] += 1
        permitted = {view.name for view in bed.views[: len(prepared.tables)]} | TABLE_FUNCTIONS
        scanned = bed.scanned(statement)
        counts["unplanned"] += scanned is None
        assert scanned is None or scanned <= permitted, sql
        assert bed.looked_for(prepared) <= {table.path[-1] for table in prepared.tables}, sql
        if not prepared.parameters:
            assert SECRET not in bed.answer(statement).lower(), sql
            counts["run"] += 1
        if len(sql) < 500 and len(grown) < 400:
            grown.append(sql)
    print(dict(counts), "interrupted", bed.stopped)
    assert counts["accepted"] > MUTANTS // 20
    assert counts["run"]
    assert not counts[""]
    assert not counts[UNREADABLE], "no slice is read before a statement is bound"
