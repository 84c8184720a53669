"""What a schema says of a dataset's rows: whether they can be taken back by later ones.

A root's sources tell it of a root. Of a derived dataset only the engine that analysed its query knows, and whoever
mirrors the dataset without its inputs could not find out; so the engine says it in an attribute of the schema that it
tells with the first transaction, and the chain keeps it. Pure. Engine semantics, section 5.
"""

from __future__ import annotations

from typing import Final

import msgspec

from chain.model.schema import DataSchema

CHANGELOG: Final = "w3id.org/odfd/changelog"
"""Attribute of a schema: true or false."""


def says_changelog(schema: DataSchema | None) -> bool | None:
    """Whether rows can be retracted and corrected; ``None`` where the schema does not say, or not in this form."""
    said = (schema.extra or {}).get(CHANGELOG) if schema is not None else None
    return said if isinstance(said, bool) else None


def saying_changelog(schema: DataSchema, changelog: bool | None) -> DataSchema:
    """The schema with the attribute, other attributes as they were; ``None`` takes it away."""
    others = {name: value for name, value in (schema.extra or {}).items() if name != CHANGELOG}
    extra = others if changelog is None else {**others, CHANGELOG: changelog}
    return msgspec.structs.replace(schema, extra=extra or None)
