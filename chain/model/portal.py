"""Declares the rule by which a portal publishes rows of a private dataset: an attribute of the schema of its rows.

The chain keeps the attribute, so anyone who has the rows can check them again; implementations that do not know it
carry it along. The private dataset appears only as a hash with a secret salt. Pure. Spec: docs/spec/trust.md#portals.
"""

from __future__ import annotations

from typing import Annotated, Final, cast

import msgspec

from chain.errors import Invalid
from chain.model.schema import DataSchema

PORTAL: Final = "w3id.org/odfd/portal"
"""Attribute of a schema, a ``PortalRule``; also the kind of the source state in a portal's blocks."""
RULE: Final = "portal-rule"
MAX_COLUMNS: Final = 32
MAX_SUPPRESSED: Final = 16
MAX_LEAST: Final = 1_000_000
_Column = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Columns = Annotated[tuple[_Column, ...], msgspec.Meta(min_length=1, max_length=MAX_COLUMNS)]
_Least = Annotated[int, msgspec.Meta(ge=2, le=MAX_LEAST)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Base of the parts of a rule. Names of fields are those of the manifest."""


class KAnonymity(_Part, frozen=True, kw_only=True):
    """In each block, at least ``k`` rows agree on the columns that could identify people."""

    k: _Least
    quasi_identifiers: _Columns


class Suppression(_Part, frozen=True, kw_only=True):
    """Leaves out rows that stand for fewer than ``below``, and publishes each group once."""

    count: _Column
    """The column that says how many a row stands for."""
    below: _Least
    groups: _Columns
    """The columns by which groups are told apart."""


class PortalRule(_Part, frozen=True, kw_only=True):
    input: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    """A salted hash of the private dataset's id, which holders of the salt can check."""
    k_anonymity: KAnonymity | None = None
    suppress: Annotated[tuple[Suppression, ...], msgspec.Meta(max_length=MAX_SUPPRESSED)] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rule names, each once."""
        said = self.k_anonymity.quasi_identifiers if self.k_anonymity is not None else ()
        more = (name for each in self.suppress for name in (each.count, *each.groups))
        return tuple(dict.fromkeys((*said, *more)))


def portal_rule(schema: DataSchema | None) -> PortalRule | None:
    """Returns the rule of a portal; ``None`` for the schema of another dataset. Raises Invalid."""
    value = None if schema is None else (schema.extra or {}).get(PORTAL)
    if value is None:
        return None
    try:
        return msgspec.convert(value, PortalRule)
    except msgspec.ValidationError as error:
        hint = "it was written by another version: update odfd"
        raise Invalid(f"the rule of the portal cannot be read: {error}", rule=RULE, hint=hint) from error


def is_portal(schema: DataSchema | None) -> bool:
    """Whether a schema is that of a portal, of any version."""
    return schema is not None and PORTAL in (schema.extra or {})


def described(rule: PortalRule) -> str:
    """Describes a rule for people."""
    said = rule.k_anonymity
    parts = [] if said is None else [f"k = {said.k} in {', '.join(said.quasi_identifiers)}"]
    parts += [f"{each.count} at least {each.below}, once for each {', '.join(each.groups)}" for each in rule.suppress]
    return "; ".join(parts)


def with_portal_rule(schema: DataSchema, rule: PortalRule) -> DataSchema:
    """Returns the schema with the rule as attribute and all others unchanged."""
    value = cast("dict[str, object]", msgspec.to_builtins(rule))
    return msgspec.structs.replace(schema, extra={**(schema.extra or {}), PORTAL: value})
