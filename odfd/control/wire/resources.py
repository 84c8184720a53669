"""Values about types of resources."""

from __future__ import annotations

from odfd.control.wire.value import Value


class TypeView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl types``: a type of resource that this node knows."""

    name: str
    uri: str
    plural: str
    aliases: tuple[str, ...] = ()
    acts: bool
    """Whether a manifest of it can be applied."""
    about: str
    instead: str = ""
    """Of one that does not act: what does its work."""


class FieldView(Value, frozen=True, kw_only=True):
    """One field of a part of a type."""

    name: str
    type: str
    required: bool = False
    description: str = ""


class Explanation(Value, frozen=True, kw_only=True):
    """What ``odfctl explain`` says of a type, or of a part of it."""

    name: str
    uri: str
    path: str
    """Of the part; empty: the whole."""
    type: str
    description: str
    fields: tuple[FieldView, ...]
    example: str = ""
    """A manifest, where it is explained as a whole."""
