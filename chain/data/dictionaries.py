"""Keeps repeating texts in the dictionary encoding of the Parquet file, which is faster to read and to hash.

Chooses such columns by the footer, and checks that their dictionaries are as small as it says. The encoding is no part
of a column's type: ``decoded`` is the schema that all other modules see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chain.data.buffers import numbers
from chain.data.footer import ColumnChunk, ParquetFooter
from chain.data.footprint import BATCH_BYTES, MAX_ROW
from chain.errors import Invalid
from chain.libraries import np, pa, pc

if TYPE_CHECKING:
    import numpy.typing as npt

MAX_DICTIONARY: Final = 64 * 1024 * 1024
"""Largest dictionary of a column, in bytes. Writers stop at one or a few MiB; a larger one means a false footer."""
_PLACE_BYTES: Final = 3
"""Bytes per row: more than a reference into an ordinary dictionary takes, and less than most texts would."""
FREE_TEXT: Final = 2 << 30
TEXT_PER_BYTE: Final = 1024
"""Most bytes of text that a file may stand for: FREE_TEXT, and TEXT_PER_BYTE for each byte of the file."""
Weights: TypeAlias = "npt.NDArray[np.int64]"


def repeating(footer: ParquetFooter, schema: pa.Schema) -> tuple[str, ...]:
    """Lists the columns of texts and byte strings that, by the footer, are dictionary-encoded throughout."""
    found = []
    for number, leaf in enumerate(footer.leaves):
        place = schema.get_field_index(leaf.path)  # -1 for a column below a struct, and for a name that occurs twice
        text = place >= 0 and _is_text(schema.field(place).type)
        if text and all(_is_dictionary(group.chunks[number]) for group in footer.groups):
            found.append(leaf.path)
    return tuple(found)


def check(batch: pa.RecordBatch, columns: tuple[str, ...]) -> None:
    """Raises ValueError if the dictionary of one of ``columns`` is larger than MAX_DICTIONARY."""
    there = set(batch.schema.names)
    for name in columns:
        if name in there and batch.column(name).dictionary.nbytes > MAX_DICTIONARY:
            raise ValueError(f"column {name!r} is larger than the footer says")


def decoded(schema: pa.Schema) -> pa.Schema:
    """Returns the schema of the decoded rows of batches with this schema."""
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_dictionary(chunk: ColumnChunk) -> bool:
    return chunk.dictionary_page is not None and chunk.opened_size <= _PLACE_BYTES * chunk.values


def written_out(batches: Iterable[pa.RecordBatch], schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    """Yields batches whose dictionary references are replaced by their texts, in pieces of about BATCH_BYTES.

    In order, and under the schema that the file has when it is read plainly; lists, structs and maps of such columns
    too. This is what lets a million references to one long text be read at all (see ``footprint``). ``size``: of the
    file, in bytes. Raises Invalid when one row, or all of them, take more than is reasonable.
    """
    total, most = 0, FREE_TEXT + TEXT_PER_BYTE * size
    for batch in batches:
        for piece in _pieces(batch, schema):
            total += piece.nbytes
            if total > most:
                raise Invalid(
                    f"{size:,} bytes stand for more than {most:,} bytes of text",
                    rule="slice-footprint",
                    hint="no honest file repeats long texts so often",
                )
            yield piece


def _pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    known = {field.name: field for field in schema}
    # Names may occur twice, then columns match by position; a selection of columns matches by name.
    fields = list(schema) if len(batch.columns) == len(schema) else [known[name] for name in batch.schema.names]
    weights = sum((_weights(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
    if weights.max(initial=0) > MAX_ROW:
        raise Invalid(f"a row of {int(weights.max()):,} bytes", rule="slice-footprint", hint=f"at most {MAX_ROW:,}")
    start = 0
    ends = np.cumsum(weights)
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
        # ``take`` instead of ``slice``: casting a slice of lists casts all of their items.
        rows = batch.take(pa.array(np.arange(start, stop))) if stop - start < batch.num_rows else batch
        columns = [_plain(column, field.type) for column, field in zip(rows.columns, fields, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=schema.metadata))
        start = stop


def _weights(array: pa.Array) -> Weights:
    """Returns the bytes of text that each row refers to."""
    t, type_ = pa.types, array.type
    if t.is_dictionary(type_):
        lengths = numbers(pc.binary_length(array.dictionary)).astype(np.int64)
        if not len(lengths):
            return np.zeros(len(array), np.int64)
        found: Weights = lengths[numbers(array.indices.fill_null(0))]
        return found
    if t.is_struct(type_):
        parts = (_weights(array.field(i)) for i in range(type_.num_fields))
        return sum(parts, np.zeros(len(array), np.int64))
    if t.is_map(type_):
        return _of_items(numbers(array.offsets), _weights(array.keys) + _weights(array.items))
    if t.is_list(type_) or t.is_large_list(type_):
        return _of_items(numbers(array.offsets), _weights(array.values))
    if t.is_fixed_size_list(type_):
        bounds = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * type_.list_size
        return _of_items(bounds, _weights(array.values))
    return np.zeros(len(array), np.int64)


def _of_items(bounds: npt.NDArray[np.integer[Any]], weights: Weights) -> Weights:
    """Sums weights over the items of each row, ``bounds[i] <= n < bounds[i + 1]``."""
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(weights)))
    found: Weights = totals[bounds[1:]] - totals[bounds[:-1]]
    return found


def _plain(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """Casts in two steps, as views cannot be made from dictionary references in one."""
    if column.type == type_:
        return column
    return column.cast(_without_references(column.type)).cast(type_)


def _without_references(type_: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_dictionary(type_):
        return type_.value_type
    inner = [type_.field(i).with_type(_without_references(type_.field(i).type)) for i in range(type_.num_fields)]
    if t.is_struct(type_):
        return pa.struct(inner)
    if t.is_map(type_):
        key, item = _without_references(type_.key_type), _without_references(type_.item_type)
        return pa.map_(type_.key_field.with_type(key), type_.item_field.with_type(item), type_.keys_sorted)
    if t.is_list(type_):
        return pa.list_(inner[0])
    if t.is_large_list(type_):
        return pa.large_list(inner[0])
    return pa.list_(inner[0], type_.list_size) if t.is_fixed_size_list(type_) else type_
