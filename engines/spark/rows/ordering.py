"""Sorts rows in the total order: by all columns ascending, so that rows which compare equal are the same row.

Nulls first, NaN last, -0.0 before 0.0, text by its UTF-8 bytes, structs and lists field by field. Vectorised: a column
becomes one or more key columns that Arrow can sort. Pure. Spec: docs/spec/engine-semantics.md#determinism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chain.errors import Invalid
from chain.libraries import np, pa, pc

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
