"""Declares kinds of sources that the format has no fetch step for: queries of databases.

As options of a read step (``read_options``) they are an attribute of the step's columns, beside a fetch step ``Url``.
Its URL has a scheme that is none of the web, so an implementation that does not know the attribute refuses the source,
and takes no other data for it. Pure.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.model.schema import DataSchema

FETCH: Final = "w3id.org/odfd/fetch"
"""Attribute of the schema of a read step: an object of one of ``FetchOptions``."""
RULE: Final = "fetch-option"
_MAX_QUERY: Final = 64 << 10
_MAX_CURSOR: Final = 8
BATCH_ROWS: Final = 100_000
_MAX_BATCH: Final = 10_000_000
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class SqlQuery(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="Sql",
):
    """The rows of a query, which a database answers."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=_MAX_QUERY)]
    cursor: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=_MAX_CURSOR)] = ()
    """Columns whose values grow: a pull asks for rows beyond the last ones; without it for all."""
    batch_rows: Annotated[int, msgspec.Meta(ge=1, le=_MAX_BATCH)] = BATCH_ROWS
    """Rows of one transaction, where there is a cursor."""


FetchOptions: TypeAlias = SqlQuery
KINDS: Final = {"Sql": "Url"}
"""Kinds of sources that manifests know, and the fetch step that stands for each in a chain."""
NAMES: Final = frozenset(field.encode_name for field in msgspec.structs.fields(SqlQuery))
"""As manifests write them beside the fields of the step."""


def fetch_options(schema: DataSchema | None) -> FetchOptions | None:
    """Returns what a source is beyond its fetch step, by the columns of its read step. Raises Invalid."""
    found = None if schema is None else (schema.extra or {}).get(FETCH)
    return None if found is None else declared_fetch(found)


def declared_fetch(value: object) -> FetchOptions:
    """The meaning of the attribute's value. Raises Invalid."""
    try:
        return msgspec.convert(value, FetchOptions)
    except msgspec.ValidationError as error:
        raise Invalid(
            f"options of the fetch step: {error}",
            rule=RULE,
            hint=f"kind: Sql has url, {', '.join(sorted(NAMES))}; see docs/sources.md",
        ) from error
