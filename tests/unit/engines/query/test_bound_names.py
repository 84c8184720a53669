"""What names of a statement become: DuckDB binds them, and what it bound is checked before anything runs.

The oracles are DuckDB's own: the names that it looks for outside of WITH, and its plan by another way than that by
which the check has it. Then the statement runs where paths and files hold a secret.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.errors import Fault, Invalid, Refused
from engines.query.duckdb_session import PreparedStatement, QuerySession, SessionLimits
from engines.query.repeatable import judge_plan
from engines.query.requests import UNREADABLE, RowSelection
from engines.query.statement_check import TABLE_FUNCTIONS
from engines.query.views import SliceView
from worlds.sql_texts import Grammar, by_lot

MUTANTS = int(os.environ.get("ODFD_FUZZ", "0")) or 300
LIMITS = SessionLimits(memory=128 << 20, temporary=64 << 20, threads=1)
SCHEMA = pa.schema({"op": pa.int32(), "city": pa.string(), "people": pa.int64()})
ROWS = pa.table({"op": pa.array([0, 0], pa.int32()), "city": ["graz", "linz"], "people": [1, 2]}, schema=SCHEMA)
CANARY = "canary"
"""Name of files in the folders of the query; statements know it."""
SECRET = "nightingale"
"""A word in all paths, and in the files: no statement has it, and no answer may."""
FIRST = int(os.environ.get("ODFD_FUZZ_FIRST", "0"))
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
    """By lot, with WITHs that hide datasets, catalog and each other; a sixth as many as ODFD_FUZZ says."""
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

    ODFD_FUZZ says how many.
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
