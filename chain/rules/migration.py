"""What keeps old slices readable under a new schema, found by walking both schemas together. Spec: DataSchema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from chain.model.schema import DataField, DataType, Duration, List, Map, Option, Struct, Time, Timestamp, TimeUnit


@dataclass(frozen=True, slots=True)
class Incompatibility:
    message: str
    expected: str
    actual: str


def incompatibilities(
    old: Sequence[DataField], new: Sequence[DataField], *, upgrade: bool = False, path: str = ""
) -> Iterator[Incompatibility]:
    """Every change from ``old`` to ``new`` that a reader of old data could not bridge, named by the column's path.

    ``upgrade``: ``old`` comes from the legacy form, where Arrow decided what may be null; optionality may change then.
    """
    theirs = {each.name: each for each in new}
    known = {each.name for each in old}
    for field in old:
        place = f"{path}{field.name}"
        if field.name not in theirs:
            yield Incompatibility(f"column {place!r} is removed", shown(field.type), "nothing")
        else:
            yield from _type_changes(field.type, theirs[field.name].type, place, upgrade)
    for field in new:
        if field.name not in known and not isinstance(field.type, Option):
            place = f"{path}{field.name}"
            yield Incompatibility(
                f"the new column {place!r} is required", f"Option<{shown(field.type)}>", shown(field.type)
            )


def _type_changes(old: DataType, new: DataType, place: str, upgrade: bool) -> Iterator[Incompatibility]:
    if upgrade:
        old, new = _spelled_out(old), _spelled_out(new)
    if isinstance(old, Option) and isinstance(new, Option):
        yield from _type_changes(old.inner, new.inner, place, upgrade)
    elif isinstance(old, Struct) and isinstance(new, Struct):
        yield from incompatibilities(old.fields, new.fields, upgrade=upgrade, path=f"{place}.")
    elif isinstance(old, List) and isinstance(new, List) and old.fixed_length == new.fixed_length:
        yield from _type_changes(old.item_type, new.item_type, f"{place}[]", upgrade)
    elif old != new:
        what = "type" if isinstance(old, Option) == isinstance(new, Option) else "optionality"
        yield Incompatibility(f"column {place!r} changes its {what}", shown(old), shown(new))


def _spelled_out(data_type: DataType) -> DataType:
    """Without optionality, and with the unit and zone that ODF leaves unsaid and Arrow says."""
    if isinstance(data_type, Option):
        return _spelled_out(data_type.inner)
    if isinstance(data_type, Timestamp):
        return Timestamp(unit=data_type.unit or TimeUnit.MILLISECOND, timezone=data_type.timezone or "UTC")
    if isinstance(data_type, Time | Duration):
        return type(data_type)(unit=data_type.unit or TimeUnit.MILLISECOND)
    return data_type


def shown(data_type: DataType) -> str:
    """A type for people: ``Option<List<Int32>>``, ``Timestamp<Nanosecond, UTC>``."""
    match data_type:
        case Option(inner=inner):
            return f"Option<{shown(inner)}>"
        case List(item_type=item):
            return f"List<{shown(item)}>"
        case Struct(fields=fields):
            return f"Struct<{', '.join(f'{each.name}: {shown(each.type)}' for each in fields)}>"
        case Map(key_type=key, value_type=value):
            return f"Map<{shown(key)}, {shown(value)}>"
    said = [each for each in msgspec.structs.astuple(data_type) if each is not None]
    what = ", ".join(str(each.value) if isinstance(each, TimeUnit) else str(each) for each in said)
    return type(data_type).__name__ + (f"<{what}>" if what else "")
