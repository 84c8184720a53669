"""Folds a log to the rows that stand, with Arrow alone: by the rules of ``current`` of ``docs/reference/sql.md``.

Operations: 0 appends, 1 retracts, 2 and 3 are the old and the new row of a correction. No loop over rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from odfd_client.errors import Refused

_STATE: Final = (0, 3)
"""Operations that state a row."""
_OLD: Final = 2


def standing(table: pa.Table, offset: str, op: str, *, by_key: bool) -> pa.ChunkedArray | None:
    """Returns the offsets of the rows that stand; ``None``: all do.

    ``table``: offset and operation, and the columns by which rows are equal, in the order of offsets. ``by_key``: they
    are a key, of which the last row counts; else a retraction takes back the oldest row that is equal.
    """
    import pyarrow.compute as pc

    names = [name for name in table.column_names if name not in (offset, op)]
    ops = table[op].cast(pa.int32())
    plain = pa.table(
        [*(table[name] for name in names), table[offset].cast(pa.int64()), ops],
        names=[*(f"c{place}" for place in range(len(names))), "offset", "op"],
    )
    same = [f"c{place}" for place in range(len(names))]
    if not same:
        plain, same = plain.append_column("c0", pa.nulls(len(plain), pa.int8())), ["c0"]
    try:
        if by_key:
            said = plain.filter(pc.not_equal(plain["op"], _OLD))
            last = said.group_by(same).aggregate([("offset", "max")])["offset_max"]
            return said.filter(pc.and_(pc.is_in(said["offset"], last), _states(said["op"])))["offset"]
        if len(plain) == 0 or not pc.any(pc.not_equal(ops, 0)).as_py():
            return None
        groups = plain.group_by(same, use_threads=False).aggregate([("offset", "list"), ("op", "list")])
    except pa.ArrowNotImplementedError as error:
        raise Refused(
            f"rows with such columns cannot be compared here: {error}",
            rule="repository-current",
            hint="read the log, or mirror the dataset on a node",
        ) from error
    return _never_taken(groups["offset_list"].combine_chunks(), groups["op_list"].combine_chunks())


def _never_taken(offsets: pa.ListArray, ops: pa.ListArray) -> pa.ChunkedArray:
    """Returns the offsets of rows that were never taken back, of lists of equal rows.

    A retraction without an earlier row takes nothing back; it shows as a new low of the balance below zero.
    """
    import pyarrow.compute as pc

    group, offset, op = pc.list_parent_indices(offsets), pc.list_flatten(offsets), pc.list_flatten(ops)
    says = _states(op)
    ones = pc.cast(says, pa.int64())
    step = pc.subtract(pc.multiply(ones, 2), 1)
    lengths = pc.list_value_length(offsets)
    starts = pc.subtract(pc.cumulative_sum(pc.cast(lengths, pa.int64())), lengths)
    balance, place = (_within(values, starts, group) for values in (step, ones))
    each = pa.table({"group": group, "balance": balance, "taken": pc.subtract(1, ones)})
    totals = each.group_by("group").aggregate([("balance", "min"), ("taken", "sum")]).sort_by("group")
    taken = pc.add(totals["taken_sum"], pc.min_element_wise(totals["balance_min"], 0)).combine_chunks()
    kept = pc.and_(says, pc.greater(place, pc.take(taken, group)))
    return pa.chunked_array([pc.filter(offset, kept)])


def _within(values: pa.Array, starts: pa.Array, group: pa.Array) -> pa.Array:
    """Returns the running sums of values, begun anew in each group."""
    import pyarrow.compute as pc

    sums = pc.cumulative_sum(values)
    before = pc.subtract(pc.take(sums, starts), pc.take(values, starts))
    return pc.subtract(sums, pc.take(before, group))


def _states(ops: Any) -> Any:
    import pyarrow.compute as pc

    return pc.is_in(ops, pa.array(_STATE, pa.int32()))


def difference(old: pa.Table, new: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Returns the rows that one of two tables has more often, as many times: ``op`` 1 for the old one's, 0 for the
    new one's."""
    import pyarrow.compute as pc

    parts = []
    for table, weight in ((old, -1), (new, 1)):
        there = set(table.column_names)
        have = [table[name] if name in there else pa.nulls(len(table), pa.null()) for name in columns]
        weights = pa.repeat(pa.scalar(weight, pa.int64()), len(table))
        parts.append(pa.table([*have, weights], names=[*(f"c{place}" for place in range(len(columns))), "w"]))
    try:
        both = pa.concat_tables(parts, promote_options="permissive")
        names = [f"c{place}" for place in range(len(columns))]
        sums = both.group_by(names).aggregate([("w", "sum")])
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Refused(
            f"the rows of both renditions cannot be compared here: {error}",
            rule="repository-current",
            hint="mirror the dataset on a node, and cross there",
        ) from error
    differ = sums.filter(pc.not_equal(sums["w_sum"], 0)).sort_by("w_sum").combine_chunks()
    if len(differ) == 0:
        made = differ
    else:
        ends = pc.cumulative_sum(pc.abs(differ["w_sum"].combine_chunks()))
        numbers = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(differ))), 1)
        made = differ.take(pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, numbers)))
    op = pc.if_else(pc.less(made["w_sum"], 0), pa.scalar(1, pa.int32()), pa.scalar(0, pa.int32()))
    return pa.table([op, *(made[name] for name in names)], names=["op", *columns])
