"""Describes a table of a query, and writes the SQL of the view over its files. Pure.

A fold computes current rows from a log by columns: windows over keys or whole rows, never a loop. Operations are those
of ODF: 0 appends, 1 retracts, 2 and 3 are the old and the new row of a correction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

Fold = Literal["log", "key", "rows"]
"""How rows are folded. ``log``: all rows as published. ``key``: the last row of each key, unless it is retracted.
``rows``: the rows that were never taken back."""
ASSERTS: Final = "(0, 3)"
"""Operations that state a row; the others take one back."""
_PLACE: Final = "rowid"
"""DuckDB's column with the position of a row in a table."""
FOLD_TABLE: Final = "rows"
"""Name of the table in the database file of a fold."""
MOST_MARKED: Final = 100_000_000
"""Most earlier rows that are marked, each with one bit."""
_HOW: Final = ("ANTI", "SEMI")


class SliceView(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a query: its files, and how they become rows."""

    name: str
    files: tuple[str, ...]
    """Paths as the process sees them, in the order of their offsets."""
    schema: bytes
    """Arrow IPC of the columns, with their order and types."""
    mixed: bool = False
    """Whether files may differ in their columns."""
    fold: Fold = "log"
    key: tuple[str, ...] = ()
    """Columns that identify rows, for a fold by key."""
    system: tuple[str, str, str] = ("offset", "op", "system_time")
    """Columns that describe the statement, not the row's data."""
    event_time: str = "event_time"
    until: int | None = None
    """Microseconds since 1970: rows with a later event time, or none, are left out."""
    earlier: str | None = None
    """A database file with the rows in force before ``files``, folded in the same way; ``None``: there is none."""
    parts: tuple[SliceView, ...] = ()
    """Views to concatenate instead of ``files``; rows that fold together are all in one of them."""

    @property
    def is_computed(self) -> bool:
        """Whether the view differs from the plain rows of its files."""
        return self.fold != "log" or self.until is not None or self.mixed


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def files_sql(files: Sequence[str], *, mixed: bool) -> str:
    """Builds SQL for all rows of the files, in their order."""
    named = ", ".join(text(file) for file in files)
    # Statistics of Parquet leave NaN out, which is above all numbers in SQL; DuckDB takes them for bounds all the same
    # unless told (its issue 25521).
    return f"read_parquet([{named}], union_by_name={str(mixed).lower()}, hive_partitioning=false, can_have_nan=true)"


def rows_sql(view: SliceView, wanted: Mapping[str, str], have: Mapping[str, str]) -> str:
    """Builds SQL for rows with columns ``wanted``, from files with columns ``have``; both are types by name.

    Without files there are no rows.
    """
    columns = ", ".join(_column(name, kind, have.get(name)) for name, kind in wanted.items())
    source = f"SELECT {columns} " + (f"FROM {files_sql(view.files, mixed=view.mixed)}" if view.files else "WHERE false")
    if view.until is not None:
        moment = f"make_timestamp({view.until})"
        source = f"SELECT * FROM ({source}) WHERE CAST({quote_name(view.event_time)} AS TIMESTAMP) <= {moment}"
    return source


def can_mark(view: SliceView, wanted: Iterable[str]) -> bool:
    """Whether earlier rows can be marked as changed; those that are kept then need no sorting."""
    is_fold = view.fold == "key" and bool(view.key) and view.earlier is not None
    return is_fold and _PLACE not in map(str.lower, wanted)


def marks_sql(view: SliceView, source: str, held_table: str, rows: int) -> str:
    """Builds SQL for a bit for each of the ``rows`` earlier rows, set if ``source`` has a statement about its key."""
    names = ", ".join(map(quote_name, view.key))
    held = f"SELECT {names}, {_PLACE} FROM {held_table}"
    _, touched = _apart(view, held, source, view.key)
    none = f"bitstring('0', {rows})"
    return f"SELECT coalesce(bitstring_agg({_PLACE}::BIGINT, 0, {rows - 1}), {none}) FROM ({touched})"


def marked_sql(view: SliceView, source: str, wanted: Mapping[str, str], held_table: str, marks: str) -> str:
    """Builds the SQL of ``folded_sql`` with marks from a variable; the offsets of ``source`` are after
    those of all earlier rows."""
    columns = ", ".join(map(quote_name, wanted))
    kept = f"SELECT {columns} FROM {held_table} WHERE get_bit(getvariable({text(marks)}), {_PLACE}::INT) = 0"
    stands = _stands(view, source, view.key, wanted)
    return f"{kept} UNION ALL (SELECT * FROM ({stands}) ORDER BY {quote_name(view.system[0])})"


def folded_sql(view: SliceView, source: str, wanted: Mapping[str, str], held_table: str = "") -> str:
    """Builds SQL for the rows of ``source`` that are in force, after the earlier rows in
    ``held_table``, if there is one."""
    offset = quote_name(view.system[0])
    if view.fold == "log":
        return source
    same = view.key if view.fold == "key" else tuple(name for name in wanted if name not in view.system)
    if not held_table:
        return f"{_stands(view, source, same, wanted)} ORDER BY {offset}"
    columns = ", ".join(map(quote_name, wanted))
    held = f"SELECT {columns} FROM {held_table}"
    if not same:
        return f"{_stands(view, f'{held} UNION ALL {source}', same, wanted)} ORDER BY {offset}"
    kept, touched = _apart(view, held, source, same)
    if view.fold == "rows":
        source = f"{touched} UNION ALL {source}"
    return f"SELECT * FROM ({kept} UNION ALL {_stands(view, source, same, wanted)}) ORDER BY {offset}"


def _apart(view: SliceView, held: str, source: str, same: Sequence[str]) -> tuple[str, str]:
    """Builds SQL for the earlier rows about which ``source`` has no statement, and for the others."""
    op, names = quote_name(view.system[1]), ", ".join(map(quote_name, same))
    says = f"{op} <> 2" if view.fold == "key" else f"{op} NOT IN {ASSERTS}"
    new = f'(SELECT DISTINCT {names} FROM ({source}) WHERE {says}) AS "odfd new"'
    equal = " AND ".join(f'"odfd held".{name} IS NOT DISTINCT FROM "odfd new".{name}' for name in map(quote_name, same))
    kept, touched = (f'SELECT "odfd held".* FROM ({held}) AS "odfd held" {how} JOIN {new} ON {equal}' for how in _HOW)
    return kept, touched


def _stands(view: SliceView, source: str, same: Sequence[str], wanted: Mapping[str, str]) -> str:
    """Builds SQL for the rows of ``source`` that are in force, in no order; ``same``: columns that identify a row."""
    offset, op, _ = map(quote_name, view.system)
    group = ", ".join(map(quote_name, same)) or "1"
    if view.fold == "key":
        # The old row of a correction is ignored: the new one follows, unless the cut is between them.
        last = (
            f"SELECT * FROM ({source}) WHERE {op} <> 2"
            f" QUALIFY row_number() OVER (PARTITION BY {group} ORDER BY {offset} DESC) = 1"
        )
        return f"SELECT * FROM ({last}) WHERE {op} IN {ASSERTS}"
    # A retraction without a row takes nothing back; it shows as a new low of the row's balance below zero.
    counted = (
        f'SELECT *, {op} IN {ASSERTS} AS "odfd says", '
        f"sum(CASE WHEN {op} IN {ASSERTS} THEN 1 ELSE -1 END) OVER (PARTITION BY {group} ORDER BY {offset}"
        f' ROWS UNBOUNDED PRECEDING) AS "odfd balance" FROM ({source})'
    )
    ranked = (
        f'SELECT *, count(*) FILTER ("odfd says") OVER (PARTITION BY {group} ORDER BY {offset}'
        f' ROWS UNBOUNDED PRECEDING) AS "odfd place", count(*) FILTER (NOT "odfd says") OVER (PARTITION BY {group})'
        f' + least(0, min("odfd balance") OVER (PARTITION BY {group})) AS "odfd taken" FROM ({counted})'
    )
    columns = ", ".join(map(quote_name, wanted))
    return f'SELECT {columns} FROM ({ranked}) WHERE "odfd says" AND "odfd place" > "odfd taken"'


def _column(name: str, wanted: str, have: str | None) -> str:
    if have is None:
        return f"CAST(NULL AS {wanted}) AS {quote_name(name)}"
    if have == wanted:
        return quote_name(name)
    return f"CAST({quote_name(name)} AS {wanted}) AS {quote_name(name)}"
