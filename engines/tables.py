"""Defines the encoding of all messages of the engine contract; absent values take no space."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of a table of the contract."""


class Variant(Table, frozen=True, kw_only=True, tag_field="kind"):
    """The base of an alternative response."""
