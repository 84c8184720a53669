"""Reads the networks that this node has joined, which are stored as resources."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from odfd.resources.store import Resources

NETWORK: Final = "network"
"""The kind of resource of a joined network."""
BLOCKED: Final = "blocked-peer"
"""The kind of resource of a peer that a person has blocked."""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """One joined network."""

    name: str
    bootstrap: tuple[str, ...] = ()
    policy_key: str = ""
    """The DID of the network's policy key, from the invitation; empty if there is none."""
    invited_by: str = ""
    """The DID that signed the invitation; empty if the network was joined by addresses."""


def joined(connection: sqlite3.Connection) -> tuple[Network, ...]:
    """Returns the networks that a person joined, in order; the network of the settings is not in the database."""
    found = sorted(Resources(connection).all(NETWORK), key=lambda each: (each.created_at, each.name))
    return tuple(msgspec.json.decode(each.spec, type=Network) for each in found)
