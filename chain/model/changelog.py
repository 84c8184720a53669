"""Tells from a schema whether later rows can retract rows of a dataset, and how versions are ranked.

A root's sources tell it of a root, until one of its rows is corrected by hand. Of a derived dataset only the engine
that analysed its query knows, and whoever mirrors the dataset without its inputs could not find out; so it is said in
attributes of the schema, which the chain keeps. Pure. Spec: docs/spec/engine-semantics.md#changelogs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chain.model.schema import DataSchema

CHANGELOG: Final = "w3id.org/odfd/changelog"
"""Attribute of a schema: true or false."""
VERSIONS: Final = "w3id.org/odfd/versions"
"""Attribute of a schema: what ranks the rows of one key where rows can be taken back; the chain's order if not said."""
BY_EVENT_TIME: Final = "event-time"


def says_changelog(schema: DataSchema | None) -> bool | None:
    """Whether rows can be retracted and corrected; ``None`` where the schema does not state it, or in another form."""
    value = (schema.extra or {}).get(CHANGELOG) if schema is not None else None
    return value if isinstance(value, bool) else None


def says_by_time(schema: DataSchema | None) -> bool:
    """Whether event time ranks the rows of a key though rows can be taken back, as in a ledger that was corrected."""
    return schema is not None and (schema.extra or {}).get(VERSIONS) == BY_EVENT_TIME


def with_changelog(schema: DataSchema, changelog: bool | None, *, by_time: bool = False) -> DataSchema:
    """The schema with the attributes, others as they were; ``None`` takes them away."""
    extra: dict[str, Any] = {
        name: value for name, value in (schema.extra or {}).items() if name not in (CHANGELOG, VERSIONS)
    }
    if changelog is not None:
        extra[CHANGELOG] = changelog
    if changelog and by_time:
        extra[VERSIONS] = BY_EVENT_TIME
    return msgspec.structs.replace(schema, extra=extra or None)


def differ_in_this_alone(one: DataSchema, other: DataSchema) -> bool:
    """Whether two schemas differ only in whether rows can be retracted."""
    return one != other and with_changelog(one, None) == with_changelog(other, None)
