"""Refuses types that a file, or a query over one, has and no slice can hold: by name, with what to do next.

A slice holds what has a logical hash. Queries see what Spark can read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from chain.data.logical_hash import described
from chain.errors import Invalid
from chain.wording import a
from engines.spark.catalyst.types import struct_type

_RULE: Final = "column-type"


def check_read(schema: pa.Schema, place: str, *, queried: bool) -> None:
    """Of columns as they are read; ``queried``: a query makes others of them. Raises Invalid."""
    for field in schema:
        if not _known(struct_type if queried else described, field):
            raise Invalid(_message(field), rule=_RULE, hint=_hint_of_read(field), place=place)


def check_made(schema: pa.Schema) -> None:
    """Of columns as a query makes them. Raises Invalid."""
    for field in schema:
        if not _known(described, field):
            hint = f"make it a number, or a text, in its query: to_json({field.name}) as {field.name}"
            raise Invalid(_message(field), rule=_RULE, hint=hint)


def check_once(schema: pa.Schema, place: str, above: str = "") -> None:
    """Raises Invalid for two columns, or two members of a struct, of one name."""
    names = schema.names
    for field in schema:
        if names.count(field.name) > 1:
            raise Invalid(
                f"{names.count(field.name)} columns are called {above + field.name!r}",
                rule="read-columns",
                hint="rename all but one where the file is written",
                place=place,
            )
        if pa.types.is_struct(field.type):
            check_once(pa.schema(list(field.type)), place, f"{above}{field.name}.")


def _known(judge: Callable[[pa.Schema], object], field: pa.Field) -> bool:
    try:
        judge(pa.schema([field]))
    except Invalid:
        return False
    return True


def _message(field: pa.Field) -> str:
    kind = str(field.type)
    if pa.types.is_map(field.type):
        kind = f"map of {field.type.key_type} to {field.type.item_type}"
    return f"column {field.name!r} is {a(kind)}, which no dataset holds"


def _hint_of_read(field: pa.Field) -> str:
    if pa.types.is_duration(field.type):
        return f"declare the columns in the read schema, this one as {field.name} BIGINT: the number of its units"
    if _known(struct_type, field):
        return f"make it a text in preprocess: to_json({field.name}) as {field.name}"
    return "declare the other columns in the read schema, which leaves it out, or write it as a text of JSON"
