"""Finds the slices that may hold a key, using one file with the key bounds of each slice as a row.

A coordinator gives an engine this file in place of slices that it may not need. Columns: ``name``, the hash of the
slice; ``changed``, whether it may hold corrections; and for each key column that can be compared its least and greatest
value, ``low NAME`` and ``high NAME``, both null where nothing is known, and ``empty NAME`` where all values are null.
Pure but for the file; uses nothing of Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from chain.errors import Environment, Invalid
from chain.libraries import np, pa, pc, pq
from engines.footers import ColumnBounds, Footer, may_change

NAME: Final = "name"
CHANGED: Final = "changed"


def bounds_table(
    slices: Mapping[str, Footer], schema: pa.Schema, keys: Sequence[str], operation_column: str
) -> pa.Table:
    """Builds the table of key bounds of slices, given by hash. ``schema``: the schema in force."""
    columns: dict[str, pa.Array] = {
        NAME: pa.array(list(slices), pa.string()),
        CHANGED: pa.array([may_change(each, operation_column) for each in slices.values()], pa.bool_()),
    }
    for key in dict.fromkeys(keys):
        kind = _kind(schema.field(key).type)
        if kind is None:
            continue
        known = [_usable_bounds(each.bounds.get(key), kind) for each in slices.values()]
        columns[f"low {key}"] = pa.array([each and each.low for each in known], kind)
        columns[f"high {key}"] = pa.array([each and each.high for each in known], kind)
        empty = [key in each.columns and key not in each.bounds for each in slices.values()]
        columns[f"empty {key}"] = pa.array(empty, pa.bool_())
    return pa.table(columns)


def write_bounds(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path)


def read_bounds(path: Path) -> pa.Table:
    """Reads a file of key bounds. Raises Invalid, Environment."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, ValueError) as error:
        raise Invalid(f"{path.name} is not a readable file of bounds: {error}", rule="key-bounds") from error
    except OSError as error:
        raise Environment(f"cannot read {path}: {error}", rule="disk") from error
    if not {NAME, CHANGED} <= set(table.column_names):
        raise Invalid(f"{path.name} does not say which slices it is of", rule="key-bounds")
    return table


def meeting(table: pa.Table, ranges: Mapping[str, ColumnBounds]) -> list[str]:
    """Names the slices that may hold a row within ``ranges`` in all columns. Other slices certainly hold none."""
    may = np.ones(table.num_rows, bool)
    for key, wanted in ranges.items():
        if f"low {key}" not in table.column_names:
            continue
        may &= ~table.column(f"empty {key}").to_numpy()
        low, high = table.column(f"low {key}"), table.column(f"high {key}")
        if _usable_bounds(wanted, low.type) is None:
            continue
        above = pc.greater(low, pa.scalar(wanted.high, low.type))
        below = pc.less(high, pa.scalar(wanted.low, low.type))
        may &= ~pc.fill_null(pc.or_kleene(above, below), False).to_numpy()
    return [str(name) for name in table.column(NAME).filter(pa.array(may)).to_pylist()]


def any_changed(table: pa.Table) -> bool:
    """Whether any of the slices may hold corrections or retractions."""
    return bool(pc.any(table.column(CHANGED)).as_py())


def _kind(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type of a column's bounds, ``None`` if they are not written; times and dates are nanoseconds."""
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.int64()
    return pa.string() if pa.types.is_string(kind) else None


def _usable_bounds(bounds: ColumnBounds | None, kind: pa.DataType) -> ColumnBounds | None:
    """Returns the bounds, or ``None`` if unknown or not of this type: an older type, or beyond 64 bits."""
    if bounds is None or not all(_fits(end, kind) for end in bounds):
        return None
    return bounds


def _fits(value: Any, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):
        return type(value) is int and -(2**63) <= value < 2**63
    return type(value) is str and bool(pa.types.is_string(kind))
