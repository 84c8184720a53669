"""Runs one query in its own process, and writes its rows as a Parquet file.

It reads the rows after a position in the order of the cursor. A full batch ends where the cursor's value changes, so a
row with the same value as the last one taken is never skipped. All statements run in one transaction of the database,
so they see the same moment.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from chain.errors import Invalid, Refused
from chain.libraries import pa, pc, pq
from chain.wording import plural
from odfd.ingest.databases.connections import Database, connect
from odfd.ingest.databases.job import (
    CURSOR_RULE,
    Position,
    QueryJob,
    QueryResult,
    position_of,
    value_at,
)
from odfd.ingest.source_process import run_job, serve


def answer(job: QueryJob) -> QueryResult:
    """Runs the query and writes its rows; a fault becomes an answer."""
    return run_job(job, _query, QueryResult, "lower batchRows, or select fewer columns")


def _query(job: QueryJob) -> QueryResult:
    with connect(job.url) as base:
        return _write(job, *_batch(base, job))


def _batch(base: Database, job: QueryJob) -> tuple[pa.Table, bool]:
    """Returns the rows of one batch, and whether more follow. Raises Invalid, Refused."""
    # On lines of its own: a comment at the end of the query (-- …) would take in the bracket.
    inner = f"SELECT * FROM (\n{job.query.strip().rstrip(';')}\n) AS q"  # noqa: S608  the query is the owner's own
    if not job.cursor:
        return base.table(inner), False
    names = [base.quote_name(name) for name in job.cursor]
    _refuse_nulls(base, inner, names, job.cursor)
    after = [] if job.after is None else [value_at(*each) for each in job.after.values()]
    marks = [base.placeholder(number) for number in range(1, len(after) + 1)]
    beyond = f" WHERE {_row(names)} > {_row(marks)}" if after else ""
    order = f" ORDER BY {', '.join(names)} LIMIT {job.batch_rows}"
    found = base.table(f"{inner}{beyond}{order}", after)
    there = set(found.column_names)
    missing = [name for name in job.cursor if name not in there]
    if missing:
        raise Invalid(f"the query gives no column {missing[0]!r}, its cursor", rule=CURSOR_RULE, hint="select it too")
    if found.num_rows < job.batch_rows:
        return found, False
    return _whole_groups(found, job.cursor), True


def _row(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)})" if len(parts) > 1 else parts[0]


def _refuse_nulls(base: Database, inner: str, names: Sequence[str], cursor: Sequence[str]) -> None:
    """Raises Invalid if a cursor column has nulls, which are neither before nor after any position."""
    empty = " OR ".join(f"{name} IS NULL" for name in names)
    if base.table(f"{inner} WHERE {empty} LIMIT 1").num_rows:
        raise Invalid(
            f"{' or '.join(cursor)} has no value in some rows, which no pull would find again",
            rule=CURSOR_RULE,
            hint="leave such rows out in the query (where … is not null), or name another column",
        )


def _whole_groups(found: pa.Table, cursor: Sequence[str]) -> pa.Table:
    """Drops the rows at the end of a full batch that share the last cursor value, as more may follow.

    Raises Refused if that would leave no row.
    """
    last = position_of(found, cursor, -1)
    same: pa.ChunkedArray | None = None
    for name in cursor:
        column = found.column(name).combine_chunks()
        equal = pc.equal(column, column[-1])
        same = equal if same is None else pc.and_(same, equal)
    kept = found.num_rows - (pc.sum(same).as_py() or 0)
    if not kept:
        shown = ", ".join(f"{name} {text}" for name, (_, text) in last.items())
        raise Refused(
            f"a batch of {plural(found.num_rows, 'row')} has one cursor ({shown}), so nothing says which come next",
            rule=CURSOR_RULE,
            hint="add a column to the cursor that tells them apart, like [changed, id], or raise batchRows",
        )
    return found.slice(0, kept)


def _write(job: QueryJob, found: pa.Table, more: bool) -> QueryResult:
    """Writes rows as a Parquet file. Raises Invalid, Refused, Environment."""
    table = _cast(found, job)
    target, digest = Path(job.target), hashlib.sha3_256()
    plain = {"use_dictionary": False}  # so that the footer tells how much memory the rows take
    with pq.ParquetWriter(target, table.schema, compression="zstd", compression_level=1, **plain) as writer:
        for part in table.to_batches(max_chunksize=64 << 10):
            writer.write_batch(part)
            if target.stat().st_size > job.limit:
                raise Refused(
                    f"its rows are larger than {job.limit:,} bytes",
                    rule="max-source-bytes",
                    hint="lower batchRows, or raise ingest.source-bytes of the settings",
                )
    digest.update(target.read_bytes())
    last: Position | None = None
    if job.cursor and found.num_rows:
        last = position_of(found, job.cursor, -1)
    return QueryResult(rows=table.num_rows, more=more, last=last, digest=digest.hexdigest())


def _cast(found: pa.Table, job: QueryJob) -> pa.Table:
    """Gives values for which a database has no type the declared types. Raises Invalid."""
    declared = pa.ipc.read_schema(pa.py_buffer(job.columns)) if job.columns else pa.schema([])
    known = set(declared.names)
    fields, columns = [], []
    for field, column in zip(found.schema, found.columns, strict=True):
        wanted = declared.field(field.name).type if field.name in known else None
        if pa.types.is_null(field.type) and wanted is None:
            wanted = pa.string() if not found.num_rows else None
            if wanted is None:
                raise Invalid(
                    f"column {field.name!r} has no value in any row, so nothing says its type",
                    rule="column-type",
                    hint="declare the columns: ddlSchema of the read step",
                )
        bare = column.type.storage_type if isinstance(column.type, pa.BaseExtensionType) else column.type
        if bare != column.type:
            column = column.cast(bare)
        if wanted is not None and bare != wanted and (pa.types.is_null(bare) or _is_spelled(bare, wanted)):
            column = _as_declared(field.name, column, wanted)
        fields.append(pa.field(field.name, column.type))
        columns.append(column)
    return pa.table(columns, schema=pa.schema(fields))


def _as_declared(name: str, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Casts a column to a declared type. Times without a zone are taken as UTC, as in files. Raises Invalid."""
    kinds = [[wanted], [pa.timestamp(wanted.unit), wanted]] if pa.types.is_timestamp(wanted) else [[wanted]]
    for last, steps in zip((*[False] * (len(kinds) - 1), True), kinds, strict=True):
        try:
            return functools.reduce(lambda found, kind: found.cast(kind), steps, column)
        except pa.ArrowException as error:
            if last:
                raise Invalid(
                    f"column {name!r} does not fit {wanted}: {error}", rule="column-type", hint="declare another type"
                ) from error
    raise AssertionError("the last step returns or raises")


def _is_spelled(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of texts holds exact values of the declared type: some databases send numerics and times so."""
    types = pa.types
    exact = types.is_decimal(wanted) or types.is_timestamp(wanted) or types.is_date(wanted)
    return bool(types.is_string(found) and exact)


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(QueryJob, answer)


if __name__ == "__main__":
    sys.exit(main())
