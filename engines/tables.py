"""Defines how all messages of the engine contract are spelt; what is not said takes no room."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A table of the contract."""


class Variant(Table, frozen=True, kw_only=True, tag_field="kind"):
    """An alternative answer."""
