"""Values that have to be of one kind."""

from __future__ import annotations

from typing import TypeVar

Kind = TypeVar("Kind")


def expect(kind: type[Kind], value: object) -> Kind:
    """The value, of which the type checker knows the kind as well."""
    assert isinstance(value, kind), value
    return value
