"""Tells from a schema whether later rows can retract rows of a dataset, and how versions are ranked.

For a root, its sources tell, until one of its rows is corrected by hand. For a derived dataset only the engine that
analysed its query knows, and a mirror without the inputs could not find out; so attributes of the schema, which the
chain keeps, say it. Pure. Spec: docs/spec/engine-semantics.md#changelogs.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from chain.model.defaults import same
from chain.model.schema import DataSchema

CHANGELOG: Final = "w3id.org/odfd/changelog"
"""Attribute of a schema, true or false: whether later rows can retract or correct rows."""
VERSIONS: Final = "w3id.org/odfd/versions"
"""Attribute of a schema: how rows of one key are ranked if rows can be retracted; by default in the chain's order."""
BY_EVENT_TIME: Final = "event-time"


def says_changelog(schema: DataSchema | None) -> bool | None:
    """Whether rows can be retracted and corrected; ``None`` if the schema does not state it in a known form."""
    value = (schema.extra or {}).get(CHANGELOG) if schema is not None else None
    return value if isinstance(value, bool) else None


def says_by_time(schema: DataSchema | None) -> bool:
    """Whether event time ranks the rows of a key although rows can be retracted, as in a corrected ledger."""
    return schema is not None and (schema.extra or {}).get(VERSIONS) == BY_EVENT_TIME


def with_changelog(schema: DataSchema, changelog: bool | None, *, by_time: bool = False) -> DataSchema:
    """Returns the schema with the attributes set and all others unchanged; ``None`` removes them."""
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
    return not same(one, other) and same(with_changelog(one, None), with_changelog(other, None))
