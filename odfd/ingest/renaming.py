"""Recognises a query that only names columns, which means the same in every engine's SQL. Pure.

RFC-018's examples write such queries for an engine that a node may not have. Any other query is left to the engine that
it names, because the same words can mean something else elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from chain.model.source import (
    MergeStrategy,
    Transform,
)

ENGINE: Final = "spark"
"""The engine that runs such a query, whichever it names."""
_NAME: Final = r"(`[^`\n]{1,128}`|[A-Za-z_]\w{0,127})"
_ITEM: Final = re.compile(rf"\s*{_NAME}(?:\s+as\s+{_NAME})?\s*", re.IGNORECASE)
_SELECT: Final = re.compile(r"\s*select\s+(.+?)\s+from\s+input\s*;?\s*\Z", re.IGNORECASE | re.DOTALL)
_VALUES: Final = frozenset(
    {
        "all", "current_catalog", "current_date", "current_database", "current_role", "current_schema", "current_time",
        "current_timestamp", "current_timezone", "current_user", "distinct", "false", "localtime", "localtimestamp",
        "null", "rowid", "session_user", "sysdate", "true", "user",
    }
)  # fmt: skip
"""Words that are values, or no names, in the SQL of some engine."""


def renamed_columns(query: str) -> Mapping[str, str] | None:
    """Returns the columns of ``input`` that a query takes, each with its new name; ``None`` for any other query."""
    found = _SELECT.match(query)
    if found is None:
        return None
    columns: dict[str, str] = {}
    for item in found[1].split(","):
        column = _ITEM.fullmatch(item)
        if column is None or column[1].casefold() in _VALUES or column[1] in columns:
            return None
        columns[column[1].strip("`")] = (column[2] or column[1]).strip("`")
    return columns


def of_any_engine(transform: Transform | None) -> Mapping[str, str] | None:
    """Returns the columns of a transform that names another engine and that any engine computes; else ``None``."""
    if transform is None or transform.engine.lower() == ENGINE or transform.queries or transform.temporal_tables:
        return None
    return renamed_columns(transform.query or "")


def ours(
    transform: Transform | None, merge: MergeStrategy, columns: Mapping[str, str]
) -> tuple[Transform | None, MergeStrategy]:
    """Returns both for our engine: keys of the merge that are columns of the input get their names after the query."""
    assert transform is not None
    return msgspec.structs.replace(transform, engine=ENGINE, version=None), _keys_named(merge, columns)


def _keys_named(merge: MergeStrategy, columns: Mapping[str, str]) -> MergeStrategy:
    said = msgspec.structs.asdict(merge)  # each field of a merge strategy is a list of columns
    return msgspec.structs.replace(merge, **{key: rename_keys(names, columns) for key, names in said.items() if names})


def rename_keys(keys: tuple[str, ...], columns: Mapping[str, str]) -> tuple[str, ...]:
    """Returns keys by the names of columns after the query; one that is a name then stays."""
    after = set(columns.values())
    return tuple(each if each in after else columns.get(each, each) for each in keys)
