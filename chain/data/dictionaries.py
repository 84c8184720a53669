"""Keeps texts that repeat as the dictionaries of the Parquet file: faster to read, and to hash.

Which columns are worth it, and whether they turn out to be what the footer says. That a column is encoded so is no
part of its type: ``decoded`` is the schema that everybody else sees.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from chain.data.footer import ColumnChunk, ParquetFooter

MAX_DICTIONARY: Final = 64 * 1024 * 1024
"""Bytes of a column's dictionary. Writers keep theirs under one or a few MiB; beyond this a footer has lied."""
_PLACE_BYTES: Final = 3
"""Of a row: more than places in a dictionary of ordinary size take, and less than most texts would."""


def repeating(footer: ParquetFooter, schema: pa.Schema) -> tuple[str, ...]:
    """Columns of texts and byte strings that are dictionaries throughout, as far as the footer can tell."""
    found = []
    for number, leaf in enumerate(footer.leaves):
        place = schema.get_field_index(leaf.path)  # none for a column below a struct, nor for one that stands twice
        text = place >= 0 and _is_text(schema.field(place).type)
        if text and all(_is_dictionary(group.chunks[number]) for group in footer.groups):
            found.append(leaf.path)
    return tuple(found)


def check(batch: pa.RecordBatch, columns: tuple[str, ...]) -> None:
    """Raises ValueError for a column that was taken for repeating and is not."""
    for name in columns:
        if name in batch.schema.names and batch.column(name).dictionary.nbytes > MAX_DICTIONARY:
            raise ValueError(f"column {name!r} is larger than the footer says")


def decoded(schema: pa.Schema) -> pa.Schema:
    """The schema of the rows whose encoded batches have this one."""
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return pa.schema(fields)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_dictionary(chunk: ColumnChunk) -> bool:
    return chunk.dictionary_page is not None and chunk.opened_size <= _PLACE_BYTES * chunk.values
