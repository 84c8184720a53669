"""Finds link columns, whose values name objects by hash: large files beside the rows (spec: RFC-017, ObjectLink).

Pure but for reading a slice. A schema says which columns are links; a slice's values are the names. A name is a
multihash in text, and the object is stored with the dataset's slices.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from chain.data.parquet import SliceFile, open_slice
from chain.errors import Invalid
from chain.libraries import pa, pc
from chain.model.schema import DataSchema
from chain.multihash import Multihash

_TYPE: Final = "opendatafabric.org/type"
MAX_LINKS: Final = 250_000
"""Most distinct objects that one slice may name: a checker holds their names in memory, about 30 MB."""


def link_columns(schema: DataSchema | None) -> tuple[str, ...]:
    """Returns the top-level columns that hold links to objects by multihash; none if there is no schema."""
    return tuple(field.name for field in (schema.fields if schema else ()) if _is_link((field.extra or {}).get(_TYPE)))


def _is_link(kind: object) -> bool:
    if not isinstance(kind, dict) or kind.get("kind") != "ObjectLink":
        return False
    link = kind.get("linkType")
    return isinstance(link, dict) and link.get("kind") == "Multihash"


def links_of(source: SliceFile, columns: tuple[str, ...]) -> Iterator[Multihash]:
    """Yields every object that the rows name, once. Raises Invalid for a value that is no hash, and for too many."""
    seen: set[bytes] = set()
    there = set(source.schema.names)
    present = [name for name in columns if name in there]
    for batch in source.batches(columns=present) if present else ():
        for column in batch.columns:
            for value in _texts(column):
                name = _parsed(value)
                if name not in seen:
                    seen.add(name)
                    if len(seen) > MAX_LINKS:
                        raise Invalid(f"more than {MAX_LINKS:,} objects linked from one slice", rule="link-count")
                    yield name


def links_in(path: Path, columns: tuple[str, ...]) -> Generator[Multihash, None, None]:
    """Yields the links of the slice at ``path``, opened only if there are link columns. Raises NotFound too."""
    if columns:
        with open_slice(path) as source:
            yield from links_of(source, columns)


def _texts(column: pa.Array) -> list[str]:
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise Invalid(f"a column of links is text, not {values.type}", rule="link-type")
    return [value for value in pc.unique(values).to_pylist() if value is not None]


def _parsed(value: str) -> Multihash:
    try:
        return Multihash.parse(value)
    except Invalid as error:
        raise Invalid(f"a link is the hash of an object, not {value[:60]!r}", rule="link-value") from error
