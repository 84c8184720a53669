"""Computes on changelogs: which statement retracts which row, when each takes effect, and until when versions are in
force.

Works on whole columns, in the order of the chain; knows no files and no queries. Effective time: a fact counts from its
own time, but never from before the watermark that its chain had when the fact was stated. Spec:
docs/spec/engine-semantics.md#effective-time.

The total order sorts rows by all columns ascending, so that rows which compare equal are the same row: nulls first, NaN
last, -0.0 before 0.0, text by its UTF-8 bytes, structs and lists field by field. Vectorised: a column becomes one or
more key columns that Arrow can sort. Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chain.data.operations import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT
from chain.errors import Invalid
from chain.libraries import np, pa, pc
from engines.contract import Vocab

MAX_LIST: Final = 4096
"""Most elements of a list that can be ordered; each position is a sort key."""


def total_order(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Returns the indices that sort ``table`` by ``columns``, the first column first.
    Raises Invalid for unordered types."""
    keys: list[pa.Array] = []
    for name in columns:
        keys.extend(order_keys(table.column(name).combine_chunks(), name))
    names = [str(position) for position in range(len(keys))]
    sort_keys = [(name, "ascending", "at_start") for name in names]
    return pc.sort_indices(pa.table(keys, names=names), sort_keys=sort_keys)


def order_keys(column: pa.Array | pa.ChunkedArray, name: str, one_zero: bool = False) -> Iterator[pa.Array]:
    """Yields columns that sort as the values do, one after another; they are all equal exactly where
    the values are the same.

    ``one_zero``: -0.0 is 0.0, so that they are equal where SQL calls the values equal.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if pa.types.is_floating(kind):
        yield _float_key(array, one_zero)
    elif pa.types.is_struct(kind):
        yield array.is_valid()
        for position in range(kind.num_fields):
            yield from order_keys(pc.struct_field(array, position), name, one_zero)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _list_keys(array, name, one_zero)
    elif pa.types.is_null(kind):
        return
    elif pa.types.is_map(kind) or pa.types.is_dictionary(kind) or pa.types.is_interval(kind):
        raise Invalid(f"column {name}: values of type {kind} have no order", rule="total-order", hint="select an array")
    else:
        yield array


def _float_key(array: pa.Array, one_zero: bool) -> pa.Array:
    """Converts floats to whole numbers of the same order, by their bits; all NaN become one number, the greatest."""
    valid = np.asarray(array.is_valid())
    numbers = np.asarray(array.cast(pa.float64()).fill_null(0.0)).copy()
    numbers[np.isnan(numbers)] = np.nan
    numbers[(numbers == 0) & one_zero] = 0.0
    bits = numbers.view(np.int64)
    turned = np.where(bits < 0, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF), bits)
    return pa.array(turned, mask=~valid)


def _list_keys(array: pa.Array, name: str, one_zero: bool) -> Iterator[pa.Array]:
    """Yields keys for whether a list is null, then for each position: a list that has ended comes
    before one that goes on."""
    yield array.is_valid()
    lengths = pc.list_value_length(array).fill_null(0)
    longest = pc.max(lengths).as_py() or 0
    if longest > MAX_LIST:
        raise Invalid(f"column {name}: a list of {longest} elements", rule="total-order", hint=f"at most {MAX_LIST}")
    starts = np.asarray(array.offsets)[:-1].astype(np.int64)
    counts = np.asarray(lengths)
    values = array.values
    for position in range(longest):
        present = counts > position
        picked = pa.array(np.where(present, starts + position, 0), mask=~present)
        yield pa.array(present)
        yield from order_keys(values.take(picked), name, one_zero)


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Returns each number once, ascending.

    ``np.unique`` alone would hash the numbers first, which takes many times as long for numbers as regular as those of
    keys and rounds.
    """
    ordered = np.sort(numbers)
    kept = np.ones(len(ordered), bool)
    kept[1:] = ordered[1:] != ordered[:-1]
    found: np.ndarray = ordered[kept]
    return found


NEVER: Final = 2**62
"""An effective time later than all others."""
LONG_AGO: Final = -(2**62)


def positive(ops: np.ndarray) -> np.ndarray:
    """Marks the statements that assert a row; the others retract one."""
    asserted: np.ndarray = (ops == APPEND) | (ops == CORRECT_TO)
    return asserted


def key_codes(keys: pa.Table) -> np.ndarray:
    """Returns a number for each row, equal where SQL calls all columns equal: 0.0 and -0.0 are one key."""
    return row_codes(keys, one_zero=True)


def row_codes(rows: pa.Table, one_zero: bool = False) -> np.ndarray:
    """Returns a number for each row, equal exactly where all columns, nested ones too, have the same value."""
    codes: np.ndarray | None = None
    for name in rows.column_names:
        for key in order_keys(rows.column(name), name, one_zero):
            values = _codes(key)
            if codes is None:
                codes = values
                continue
            codes = np.unique(codes * (values.max(initial=0) + 1) + values, return_inverse=True)[1].astype(np.int64)
    return np.zeros(rows.num_rows, np.int64) if codes is None else codes


def _codes(key: pa.Array) -> np.ndarray:
    encoded = key.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices, dtype=np.int64)


def cancelled_by(groups: np.ndarray, ops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds which statement retracts each row, and which retractions have no row.

    Statements are in chain order; those of one number in ``groups`` may cancel each other. Of several equal rows the
    first is cancelled first. Returns for each position the position of its canceller (-1: none), and a mask of
    retractions without a row.
    """
    count = len(ops)
    order = np.argsort(groups, kind="stable")
    asserted = positive(ops)[order]
    sorted_groups = groups[order]
    steps = np.where(asserted, 1, -1)
    balance = _within(sorted_groups, np.cumsum(steps))
    # A retraction that takes the balance to a new low below zero has no row to take back.
    lowest = np.minimum(_running_least(sorted_groups, balance), 0)
    earlier = np.zeros(count, np.int64)
    earlier[1:] = np.where(sorted_groups[1:] == sorted_groups[:-1], lowest[:-1], 0)
    idle = ~asserted & (lowest < earlier)
    effective = ~asserted & ~idle
    canceller = np.full(count, -1, np.int64)
    additions = _number_places(sorted_groups, asserted)
    removals = _number_places(sorted_groups, effective)
    taken = np.isin(additions, removals)
    # Both hold (group, number within it) ascending, so matching elements are in the same order.
    canceller[order[np.flatnonzero(asserted)[taken]]] = order[np.flatnonzero(effective)]
    nothing = np.zeros(count, bool)
    nothing[order[idle]] = True
    return canceller, nothing


def _number_places(groups: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns a number for each chosen row that identifies its group and its place among
    the chosen rows of that group."""
    numbers = _within(groups, np.cumsum(chosen))
    keyed: np.ndarray = groups[chosen] * (len(groups) + 1) + numbers[chosen]
    return keyed


def _within(groups: np.ndarray, running: np.ndarray) -> np.ndarray:
    """Computes a running sum over sorted groups, restarted in each."""
    if not len(groups):
        return running
    begins = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    offsets = np.append(0, running[begins[1:] - 1])
    sizes = np.diff(np.append(begins, len(groups)))
    anew: np.ndarray = running - np.repeat(offsets, sizes)
    return anew


def _running_least(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the least value so far within each of the sorted groups."""
    if not len(values):
        return values
    ranks = np.cumsum(np.append(0, groups[1:] != groups[:-1]))
    known, codes = np.unique(values, return_inverse=True)
    # Lower numbers for later groups, so that nothing of an earlier group can be the least.
    lifted = codes + (ranks[-1] - ranks) * len(known)
    return np.asarray(known[np.minimum.accumulate(lifted) % len(known)])


def effective_times(
    ops: np.ndarray, times: np.ndarray, before: np.ndarray, after: np.ndarray, keys: np.ndarray, known: np.ndarray
) -> np.ndarray:
    """Returns from when each statement is in force, microseconds; statements in chain order.

    ``before`` and ``after``: watermark of the chain before and after the statement's block. ``keys``: a number for each
    primary key. ``known``: effective times where they are settled already, ``NEVER`` elsewhere.
    """
    own = np.maximum(times, before)
    following = np.append(own[1:], own[-1:])
    own = np.where(ops == CORRECT_FROM, following, own)
    current = _current(ops, keys)
    has = current >= 0
    later = np.where(has, times > times[current], True)
    own = np.where((ops == RETRACT) & ~later, np.maximum(own, after), own)
    own = np.where(known != NEVER, known, own)
    # No negative statement counts earlier than the row it cancels; a correction's time is that of its second half.
    held = np.where(has & (ops == RETRACT), own[current], LONG_AGO)
    final: np.ndarray = np.where(known != NEVER, known, np.maximum(own, held))
    return final


def _current(ops: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns the position of the row of the same key in force before each statement, -1 if there is none."""
    count = len(ops)
    order = np.argsort(keys, kind="stable")
    sorted_ops, sorted_keys = ops[order], keys[order]
    speaks = sorted_ops != CORRECT_FROM
    last = np.maximum.accumulate(np.where(speaks, np.arange(count), -1)) if count else np.empty(0, np.int64)
    previous = np.append(-1, last[:-1])[:count]
    fits = (previous >= 0) & (sorted_keys[previous] == sorted_keys) & positive(sorted_ops[previous])
    found = np.full(count, -1, np.int64)
    found[order] = np.where(fits, order[previous], -1)
    return found


def valid_until(keys: np.ndarray, ranks: np.ndarray, taus: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Returns when the version of each statement ends: at the least effective time of those of the same key that rank
    higher, or at its ``limits`` if that is sooner; never before it begins."""
    if not len(keys):
        return limits
    order = np.lexsort((ranks, keys))[::-1]
    sorted_keys = keys.max() - keys[order]
    least = _running_least(sorted_keys, taus[order])
    higher = np.full(len(keys), NEVER, np.int64)
    higher[1:] = np.where(sorted_keys[1:] == sorted_keys[:-1], least[:-1], NEVER)
    ends = np.empty(len(keys), np.int64)
    ends[order] = higher
    until: np.ndarray = np.maximum(taus, np.minimum(ends, limits))
    return until


def data_of(rows: pa.Table, vocab: Vocab) -> pa.Table:
    """Returns event time and data: the columns that a retraction repeats of its row."""
    return rows.drop_columns([vocab.offset, vocab.operation_type, vocab.system_time])
