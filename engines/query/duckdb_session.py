"""Runs one query in DuckDB, on a connection that is locked before it has any text of a person.

It can read files of its own folders and nothing else: external access is off, extensions are not loaded, settings are
locked. A statement is bound to empty tables first, and what it reads then is checked; after that the views take the
tables' places, and the same text runs. Raises faults with the place in the person's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa

from chain.data.uuids import as_texts
from chain.errors import Invalid, Refused
from engines.query.duckdb_faults import MAIN, Most, replace_tables, translated_faults
from engines.query.repeatable import judge_plan, judge_text
from engines.query.requests import ALL_ROWS, MAX_PARAMETERS, RowSelection
from engines.query.statement_check import (
    EXPLAINED,
    LOGICAL,
    PHYSICAL,
    TableRef,
    check_bound,
    check_statement,
    decode_document,
    without_schemas,
)
from engines.query.temporal import take_out, with_plain_blanks
from engines.query.views import (
    FOLD_TABLE,
    MOST_MARKED,
    SliceView,
    can_mark,
    files_sql,
    folded_sql,
    marked_sql,
    marks_sql,
    quote_name,
    rows_sql,
    text,
)

BATCH_ROWS: Final = 65_536
MOST_BATCH_ROWS: Final = 4 * BATCH_ROWS
_BATCH_BYTES: Final = 2 << 20
_WIDTHS: Final = {
    **dict.fromkeys(("BOOLEAN", "TINYINT", "UTINYINT"), 1),
    **dict.fromkeys(("SMALLINT", "USMALLINT"), 2),
    **dict.fromkeys(("INTEGER", "UINTEGER", "FLOAT", "DATE"), 4),
    **dict.fromkeys(("BIGINT", "UBIGINT", "DOUBLE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"), 8),
}
"""Bytes of a value, by types of DuckDB; the values of other types vary."""
_MOST_ROWS: Final = 2**62
MOST_CACHED: Final = 16
"""Most slices whose footers are kept in memory while a query is planned: a footer is parsed for the columns of a
view, for the view and for the statement. For more slices that memory would have no bound."""
_ENDS: Final = " ;\t\n\r"
_NO_ROWS: Final = "LIMIT 0"
"""Ends a statement whose parameters have no values: DuckDB computes one with parameters at once."""
_STORAGE: Final = "v1.2.0"
"""Format of fold files, which DuckDB 1.2 and later read."""


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one query's DuckDB."""

    memory: int
    """Most bytes of DuckDB's buffers."""
    temporary: int
    """Most bytes on disk for data that does not fit into memory."""
    threads: int


class PreparedStatement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement that was parsed and checked."""

    statement: bytes
    tables: Sequence[TableRef]
    tree: Mapping[str, Any]
    parameters: Sequence[str] = ()
    """Names of the parameters, or their numbers from 1, in order."""


class QuerySession:
    """One query, from its text to its rows. Call ``prepare``, then ``run``."""

    def __init__(self, limits: SessionLimits, inputs: Path, temporary: Path) -> None:
        self._limits, self._most = limits, Most(limits.memory, limits.temporary)
        self._folds: dict[str, str] = {}
        self._declared: set[str] = set()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{limits.memory}B",
                "threads": limits.threads,
                "temp_directory": str(temporary),
                "max_temp_directory_size": f"{limits.temporary}B",
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
                # Else a name that is no table is looked up among Python's variables.
                "python_enable_replacements": False,
            },
        )
        self._ahead = ""
        """What was put before the person's statement in the one that runs."""
        for setting in (
            # A message as text does not tell where in the statement it is at fault.
            "errors_as_json = true",
            "enable_progress_bar = false",
            "TimeZone = 'UTC'",
            # Rows of a log have an order, and a query without ORDER BY shows it.
            "preserve_insertion_order = true",
            # ``check_bound`` reads the plan that is bound and not optimized: what is optimized away was read all the
            # same.
            "explain_output = 'ALL'",
            f"allowed_directories = [{text(str(inputs))}, {text(str(temporary))}]",
            "allowed_configs = ['parquet_metadata_cache']",
            # After the folders, which cannot be allowed any more once this is off.
            "enable_external_access = false",
            # Last: no statement of a person can take any of it back.
            "lock_configuration = true",
        ):
            self._connection.execute(f"SET {setting}")

    def warm(self) -> None:
        """Loads modules and runs each step of a query once, so that the first request need not wait for it."""
        view = SliceView(name="odfd warm", files=(), schema=pa.schema([("x", pa.int64())]).serialize().to_pybytes())
        self.run(self.prepare("SELECT * FROM warm"), (view,), (0,), None).read_all()
        self._connection.execute(f"DROP VIEW {quote_name(view.name)}")
        self._declared.clear()

    def prepare(self, sql: str) -> PreparedStatement:
        """Parses and checks a statement. Raises Invalid."""
        statement, clauses = take_out(with_plain_blanks(sql.encode("utf-8", "surrogatepass")))
        try:
            clean = statement.decode()
        except UnicodeDecodeError as error:
            raise Invalid("the query is not UTF-8", rule="query-text") from error
        if "\0" in clean:
            raise Invalid("the query holds a character of value zero", rule="query-text")
        with translated_faults(statement, (), reads=False):
            ((tree,),) = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [clean]).fetchall()
        parsed = decode_document(tree)
        tables = check_statement(parsed, statement, clauses)
        statement = without_schemas(parsed, statement, tables)
        return PreparedStatement(statement=statement, tables=tables, tree=parsed, parameters=_parameters(parsed))

    def run(
        self,
        prepared: PreparedStatement,
        views: Sequence[SliceView],
        places: Sequence[int],
        parameters: Any,
        *,
        explain: bool = False,
        wanted: RowSelection = ALL_ROWS,
    ) -> pa.RecordBatchReader:
        """Returns a reader of the rows, which are computed while it is read. ``places``: number of the view of each
        table.

        ``explain``: returns the plan as text instead. Raises Invalid, Refused, Environment.
        """
        statement = self.bind(prepared, views, places, parameters, wanted)
        if explain:
            self._ahead = "EXPLAIN "
        elif wanted.prove or _is_unbound(prepared, wanted):
            self._ahead = "SELECT * FROM ("
            statement = f"{statement.rstrip(_ENDS)}\n) {'ORDER BY ALL' if wanted.prove else _NO_ROWS}"
        with self.translated_faults(prepared, views, places):
            if sum(map(_file_count, views)) <= MOST_CACHED:
                self._connection.execute("SET parquet_metadata_cache = true")
            for view in views:
                self._make(view)
            relation = self._connection.sql(self._ahead + statement, params=_values(prepared, parameters, wanted))
            if explain:
                relation = relation.filter(f"explain_key = '{PHYSICAL}'")
            if wanted.limit is not None or wanted.skip:
                relation = relation.limit(_MOST_ROWS if wanted.limit is None else wanted.limit, wanted.skip)
            few = wanted.plain or wanted.layout is not None
            kinds = list(map(str, relation.types))
            reader = relation.to_arrow_reader(BATCH_ROWS if few else batch_rows(kinds))
        texts = [place for place, kind in enumerate(kinds) if kind == "UUID"]
        return pa.RecordBatchReader.from_batches(as_texts(reader.schema, texts), reader) if texts else reader

    def bind(
        self,
        prepared: PreparedStatement,
        views: Sequence[SliceView],
        places: Sequence[int],
        parameters: Any = None,
        wanted: RowSelection = ALL_ROWS,
    ) -> str:
        """Binds a statement to empty tables in place of the views, and checks what it reads then. Returns its text,
        which reads the views once these are made.

        Raises Invalid for one that reads anything but the views, Refused for one that is to be proven and may not be.
        """
        edits = _edits(prepared, views, places)
        statement = replace_tables(prepared.statement, edits).decode()
        with translated_faults(prepared.statement, edits, self._most, EXPLAINED, reads=False, views=views):
            for view in views:
                self._declare(view)
            values = _values(prepared, parameters, wanted)
            plans = dict(self._connection.execute(EXPLAINED + statement, values).fetchall())
        check_bound(plans[LOGICAL], {MAIN + quote_name(view.name) for view in views})
        if wanted.prove:
            self._judge_repeatable(prepared, statement, parameters)
        return statement

    def _judge_repeatable(self, prepared: PreparedStatement, statement: str, parameters: Any) -> None:
        """Raises Refused if a later run could give other rows. ``statement``: the one that reads empty tables."""
        if parameters:
            raise Refused("a proven query has its values in its text", rule="query-prove", hint="write them there")
        judge_text(prepared.tree, prepared.statement)
        ((plan,),) = self._connection.execute("SELECT json_serialize_plan(?::VARCHAR)", [statement]).fetchall()
        judge_plan(decode_document(plan))

    def save(self, view: SliceView, path: Path) -> int:
        """Writes the rows of a view to a new file, unchanged. Returns their number. Raises Refused."""
        with translated_faults(b"", (), self._most):
            self._declare(view)
            self._make(view)
            said = (
                f"COPY (SELECT * FROM {quote_name(view.name)}) TO {text(str(path))} (FORMAT parquet, COMPRESSION zstd)"
            )
            ((rows,),) = self._connection.execute(said).fetchall()
            # Parquet holds some types of DuckDB as others, for instance HUGEINT as DOUBLE.
            if self._types(files_sql((str(path),), mixed=False)) != self._types(quote_name(view.name)):
                raise Refused("a file cannot hold its columns as they are", rule="query-view")
        return int(rows)

    def save_fold(self, view: SliceView, path: Path) -> int:
        """Writes the rows of a view to a new database file, in their order. Returns their number. Raises Refused.

        DuckDB reads its own files in half the time of Parquet, and they can hold any columns of a view.
        """
        with translated_faults(b"", (), self._most):
            self._declare(view)
            self._make(view)
            self._connection.execute(f"ATTACH {text(str(path))} AS kept (STORAGE_VERSION {text(_STORAGE)})")
            said = f"CREATE TABLE kept.main.{FOLD_TABLE} AS SELECT * FROM {quote_name(view.name)}"
            ((rows,),) = self._connection.execute(said).fetchall()
            self._connection.execute("DETACH kept")
        return int(rows)

    def save_answer(
        self, prepared: PreparedStatement, views: Sequence[SliceView], places: Sequence[int], path: Path
    ) -> int:
        """Writes the rows of a statement to a new Parquet file. Returns their number. Raises as ``run``."""
        import pyarrow.parquet as pq  # most processes answer without it

        reader, rows = self.run(prepared, views, places, None), 0
        with self.translated_faults(prepared, views, places):
            try:
                with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
                    for batch in reader:
                        writer.write_batch(batch)
                        rows += batch.num_rows
            except OSError as error:
                if error.errno is None:  # raised by Arrow while reading, for a value or a slice
                    raise
                raise Refused(
                    f"the answer is not written: {error}", rule="query-answer", hint="ask for less"
                ) from error
        return rows

    def translated_faults(
        self, prepared: PreparedStatement, views: Sequence[SliceView], places: Sequence[int]
    ) -> AbstractContextManager[None]:
        """Rewords faults that occur within it, while rows are read, in terms of the user's statement."""
        return translated_faults(prepared.statement, _edits(prepared, views, places), self._most, self._ahead)

    def _declare(self, view: SliceView) -> None:
        """Makes an empty table with the name and the columns of a view, and those of its parts, once."""
        if view.name in self._declared:
            return
        self._declared.add(view.name)
        for part in view.parts:
            self._declare(part)
        schema = pa.ipc.read_schema(pa.py_buffer(view.schema))
        # DuckDB has no such type, and its own fault names no column.
        if (wide := next((field for field in schema if "decimal256" in str(field.type)), None)) is not None:
            raise Invalid(
                f"the column {wide.name!r} is {wide.type}: SQL here knows decimals of 38 digits at most",
                rule="query-schema",
                hint="odfctl tail shows the rows; a derived dataset can cast the column",
            )
        self._connection.register("odfd shape", pa.Table.from_batches((), schema))
        self._connection.execute(f'CREATE TABLE {quote_name(view.name)} AS SELECT * FROM "odfd shape"')
        self._connection.unregister("odfd shape")

    def _make(self, view: SliceView) -> None:
        """Puts a view in the place of its empty table."""
        for part in view.parts:
            self._make(part)
        if view.parts:
            source = " UNION ALL ".join(f"SELECT * FROM {quote_name(part.name)}" for part in view.parts)
        else:
            wanted = self._types(quote_name(view.name))
            described = view.files if view.mixed else view.files[:1]  # the first has the columns of all
            have = self._types(files_sql(described, mixed=view.mixed)) if described else {}
            source = self._fold_view(view, rows_sql(view, wanted, have), wanted)
        self._connection.execute(f"DROP TABLE {quote_name(view.name)}")
        self._connection.execute(f"CREATE VIEW {quote_name(view.name)} AS {source}")

    def _fold_view(self, view: SliceView, source: str, wanted: Mapping[str, str]) -> str:
        """Returns SQL of a folded view. If possible, first marks the earlier rows that later ones change,
        so they need no sorting."""
        if view.earlier is None:
            return folded_sql(view, source, wanted)
        held = self._held_table(view.earlier)
        if not view.files or not can_mark(view, wanted):
            return folded_sql(view, source, wanted, held)
        ((rows,),) = self._connection.execute(f"SELECT count(*) FROM {held}").fetchall()
        if not 0 < rows <= MOST_MARKED:
            return folded_sql(view, source, wanted, held)
        marks = f"{view.name} touched"
        self._connection.execute(f"SET VARIABLE {quote_name(marks)} = ({marks_sql(view, source, held, rows)})")
        return marked_sql(view, source, wanted, held, marks)

    def _held_table(self, fold: str) -> str:
        """Returns the name of the table in a fold's file; attaches the file on first use."""
        if fold not in self._folds:
            self._folds[fold] = quote_name(f"odfd fold {len(self._folds)}")
            self._connection.execute(f"ATTACH {text(fold)} AS {self._folds[fold]} (READ_ONLY)")
        return f"{self._folds[fold]}.main.{FOLD_TABLE}"

    def _types(self, source: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self._connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}


def batch_rows(types: Iterable[str]) -> int:
    """Returns the rows of a batch of Arrow for columns of these types.

    Narrow rows come in larger batches: each batch costs several processes a switch. They have at most 2 MiB.
    """
    widths = [_WIDTHS.get(type_, _BATCH_BYTES) for type_ in types]
    fitting = _BATCH_BYTES // max(1, sum(widths)) // BATCH_ROWS * BATCH_ROWS
    return min(max(fitting, BATCH_ROWS), MOST_BATCH_ROWS)


def _file_count(view: SliceView) -> int:
    return len(view.files) + sum(map(_file_count, view.parts))


def _parameters(tree: Mapping[str, Any]) -> list[str]:
    """Returns the names of the parameters. Raises Invalid if there are too many."""
    named = sorted(tree["statements"][0].get("named_param_map", ()), key=lambda each: int(each["value"]))
    if len(named) > MAX_PARAMETERS:
        raise Invalid(f"the query has more than {MAX_PARAMETERS} parameters", rule="query-parameters", hint="join them")
    return [str(each["key"]) for each in named]


def _is_unbound(prepared: PreparedStatement, wanted: RowSelection) -> bool:
    return wanted.unbound and bool(prepared.parameters)


def _values(prepared: PreparedStatement, parameters: Any, wanted: RowSelection) -> Any:
    """Returns the values of the parameters, as DuckDB takes them; nulls, if there are none yet."""
    return dict.fromkeys(prepared.parameters) if _is_unbound(prepared, wanted) else parameters or None


def _edits(
    prepared: PreparedStatement, views: Sequence[SliceView], places: Sequence[int]
) -> list[tuple[TableRef, str]]:
    """Returns the tables of a statement, each with the name of the view that it reads."""
    return [(table, views[place].name) for table, place in zip(prepared.tables, places, strict=True)]


def over_views(prepared: PreparedStatement, views: Sequence[SliceView], places: Sequence[int]) -> bytes:
    """Returns the statement with bare names of views, for an engine that has no others."""
    return replace_tables(prepared.statement, _edits(prepared, views, places), within="")
