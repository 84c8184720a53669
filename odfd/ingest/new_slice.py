"""Takes a slice that was just written into the object store, and says what it holds. Blocking."""

from __future__ import annotations

from pathlib import Path

from chain.errors import Invalid
from chain.model.events import DataSlice
from chain.model.schema import DataSchema
from chain.store.base import ObjectStore
from engines.output_check import measured


def keep_slice(objects: ObjectStore, path: Path, schema: DataSchema | None, offset: str) -> DataSlice:
    """What the file really holds; then it becomes an object. Raises Invalid."""
    found = measured(path, schema, offset)
    if objects.add_file(path) != found.physical_hash:
        raise Invalid(f"{path.name} changed after it was measured", rule="engine-output")
    return found
