"""Defines the base classes of all messages of the engine contract, and their encoding; absent values take no space."""

from __future__ import annotations

import msgspec


class ContractTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of a table of the contract."""


class Variant(ContractTable, frozen=True, kw_only=True, tag_field="kind"):
    """Base of an alternative in a response."""
