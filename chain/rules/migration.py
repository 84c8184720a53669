"""What keeps old slices readable under a new schema, found by walking both schemas together. Spec: DataSchema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chain.model.schema import DataField, DataType, List, Option, Struct


@dataclass(frozen=True, slots=True)
class Incompatibility:
    message: str
    expected: str
    actual: str


def incompatibilities(old: Sequence[DataField], new: Sequence[DataField], path: str = "") -> Iterator[Incompatibility]:
    """Every change from ``old`` to ``new`` that a reader of old data could not bridge, named by the column's path."""
    theirs = {each.name: each for each in new}
    known = {each.name for each in old}
    for field in old:
        place = f"{path}{field.name}"
        if field.name not in theirs:
            yield Incompatibility(f"column {place!r} is removed", shown(field.type), "nothing")
        else:
            yield from _type_changes(field.type, theirs[field.name].type, place)
    for field in new:
        if field.name not in known and not isinstance(field.type, Option):
            place = f"{path}{field.name}"
            yield Incompatibility(
                f"the new column {place!r} is required", f"Option<{shown(field.type)}>", shown(field.type)
            )


def _type_changes(old: DataType, new: DataType, place: str) -> Iterator[Incompatibility]:
    if isinstance(old, Option) and isinstance(new, Option):
        yield from _type_changes(old.inner, new.inner, place)
    elif isinstance(old, Struct) and isinstance(new, Struct):
        yield from incompatibilities(old.fields, new.fields, f"{place}.")
    elif isinstance(old, List) and isinstance(new, List) and old.fixed_length == new.fixed_length:
        yield from _type_changes(old.item_type, new.item_type, f"{place}[]")
    elif old != new:
        what = "type" if isinstance(old, Option) == isinstance(new, Option) else "optionality"
        yield Incompatibility(f"column {place!r} changes its {what}", shown(old), shown(new))


def shown(data_type: DataType) -> str:
    """A type for people: ``Option<List<Int32>>``."""
    match data_type:
        case Option(inner=inner):
            return f"Option<{shown(inner)}>"
        case List(item_type=item):
            return f"List<{shown(item)}>"
        case Struct(fields=fields):
            return f"Struct<{', '.join(f'{each.name}: {shown(each.type)}' for each in fields)}>"
        case _:
            return type(data_type).__name__
