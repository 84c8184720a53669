"""Writes logical types in one line for people and tables, ``Timestamp(Millisecond, UTC)``. Nothing parses it. Pure."""

from __future__ import annotations

from chain.model import schema as odf
from chain.model.schema import DataType, TimeUnit


def spell(type_: DataType) -> str:
    """An optional type ends in ``?``."""
    match type_:
        case odf.Option(inner=inner):
            return spell(inner) + "?"
        case odf.Binary(fixed_length=int(size)):
            return f"Binary({size})"
        case odf.Decimal(precision=precision, scale=scale):
            return f"Decimal({precision}, {scale})"
        case odf.Timestamp(unit=unit, timezone=zone):
            return f"Timestamp({_unit(unit)}, {zone or 'UTC'})"
        case odf.Time(unit=unit) | odf.Duration(unit=unit):
            return f"{type(type_).__name__}({_unit(unit)})"
        case odf.List(item_type=item, fixed_length=size):
            return f"List({spell(item)}{'' if size is None else f', {size}'})"
        case odf.Map(key_type=key, value_type=value):
            return f"Map({spell(key)}, {spell(value)})"
        case odf.Struct(fields=fields):
            return f"Struct({', '.join(f'{field.name}: {spell(field.type)}' for field in fields)})"
    return type(type_).__name__


def _unit(unit: TimeUnit | None) -> str:
    return (unit or TimeUnit.MILLISECOND).value
