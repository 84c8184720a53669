"""Links: columns whose values name objects by hash, large files beside the rows (spec: RFC-017, ObjectLink).

Pure but for reading a slice. A schema says which columns are links; a slice says what they name. A name is a multihash
in text, and the object lies with the dataset's slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from chain.data.parquet import SliceFile
from chain.errors import Invalid
from chain.model.schema import DataSchema
from chain.multihash import Multihash

_TYPE: Final = "opendatafabric.org/type"
_MAX_LINKS: Final = 1_000_000
"""Distinct objects that one slice may name."""


def link_columns(schema: DataSchema | None) -> tuple[str, ...]:
    """Top-level columns that hold links to objects by multihash; none where there is no schema."""
    return tuple(field.name for field in (schema.fields if schema else ()) if _is_link((field.extra or {}).get(_TYPE)))


def _is_link(kind: object) -> bool:
    if not isinstance(kind, dict) or kind.get("kind") != "ObjectLink":
        return False
    link = kind.get("linkType")
    return isinstance(link, dict) and link.get("kind") == "Multihash"


def links_of(source: SliceFile, columns: tuple[str, ...]) -> Iterator[Multihash]:
    """Every object that the rows name, each once. Raises Invalid for a value that is no hash, and for too many."""
    seen: set[str] = set()
    present = [name for name in columns if name in source.schema.names]
    for batch in source.batches(columns=present) if present else ():
        for column in batch.columns:
            for value in _texts(column):
                if value not in seen:
                    seen.add(value)
                    if len(seen) > _MAX_LINKS:
                        raise Invalid(f"more than {_MAX_LINKS:,} objects linked from one slice", rule="link-count")
                    yield _parsed(value)


def _texts(column: pa.Array) -> list[str]:
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise Invalid(f"a column of links is text, not {values.type}", rule="link-type")
    return [value for value in pc.unique(values).to_pylist() if value is not None]


def _parsed(value: str) -> Multihash:
    try:
        return Multihash.parse(value)
    except Invalid as error:
        raise Invalid(f"a link is the hash of an object, not {value[:60]!r}", rule="link-value") from error
