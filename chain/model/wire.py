"""Declares how a field of a model class lies in FlatBuffers, beside the field's type.

A model class is a table; its fields, in order, are the table's slots. ``int`` fields name their width with one of the
aliases below. A field that may be ``None`` is written only when it has a value (scalars then even when zero); a
required scalar is left out when zero, as FlatBuffers does with defaults. A union field takes two slots; the number of a
variant is its place in the union type, from one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from chain.instant import Instant


@dataclass(frozen=True, slots=True)
class Scalar:
    """The FlatBuffers name of a scalar type, which gives the width of a number."""

    name: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Marks a layout that the type alone does not imply: ``timestamp``, ``json-object``, ``wrapped-union``."""

    name: str


U64 = Annotated[int, Scalar("uint64")]
U32 = Annotated[int, Scalar("uint32")]
I32 = Annotated[int, Scalar("int32")]
I64 = Annotated[int, Scalar("int64")]
Time = Annotated[Instant, Mark("timestamp")]
"""A time: in FlatBuffers the 16-byte struct ``Timestamp``, in text RFC 3339."""
Extra = Annotated[dict[str, object], Mark("json-object")]
"""The table ``ExtraAttributes``: one string, a JSON object with sorted keys and no spaces."""
WRAPPED = Mark("wrapped-union")
"""Marks a vector of unions: FlatBuffers has none, so each value is wrapped in a one-field table of its own."""
REFERS_TO: Final = "x-refers-to"
"""Key in the JSON Schema of a text that refers to something; its value is the type of the thing."""
DATASET_REF = Annotated[str, msgspec.Meta(extra_json_schema={REFERS_TO: "Dataset"})]
