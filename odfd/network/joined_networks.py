"""Reads the networks that this node joined, which the database keeps as resources."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from odfd.resources.store import Resources

NETWORK: Final = "network"
"""Resource kind."""
BLOCKED: Final = "blocked-peer"
"""Resource kind: a peer that a person shut out."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """A membership, kept as a resource."""

    name: str
    bootstrap: tuple[str, ...] = ()
    policy_key: str = ""
    """The DID of the network's policy key, from the invitation; empty: there is none."""
    invited_by: str = ""
    """The DID that signed the invitation; empty: joined by addresses."""


def joined(connection: sqlite3.Connection) -> tuple[Network, ...]:
    """The networks that a person joined, first the one joined first; one of the settings is in no database."""
    found = sorted(Resources(connection).all(NETWORK), key=lambda each: (each.created_at, each.name))
    return tuple(msgspec.json.decode(each.spec, type=Network) for each in found)
