"""Measures how much memory an object takes with all that it holds, and a node as full as anybody can make it."""

from __future__ import annotations

import sys
from random import Random
from typing import Any, Final

from p2p.lookup.node import LookupNode
from p2p.lookup.records import LIMITS, Kept
from p2p.wire.contact import LookupContact
from p2p.wire.limits import MAX_RECORD

CONTACTS: Final = 40_000
"""Nodes that a node hears of: five times as many fill two more of its lists, of twenty entries each."""


def deep_size(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of an object with all that it holds; once for what is held twice."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, dict):
        size += sum(deep_size(key, seen) + deep_size(value, seen) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        size += sum(deep_size(each, seen) for each in thing)
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*slots, *getattr(type(thing), "__struct_fields__", ()), *getattr(thing, "__dict__", {})]
    for name in names:
        if isinstance(name, str) and hasattr(thing, name):
            size += deep_size(getattr(thing, name), seen)
    return size


def largest() -> int:
    """Bytes. Records are put in unsigned, as making eight thousand signatures shows nothing."""
    lot = Random(1)
    node = LookupNode("net", b"m" * 32, lot, b"secret")
    for number in range(CONTACTS):
        ip = (0x20010000_00000000_00000000_00000000 + lot.getrandbits(100)).to_bytes(16, "big")
        contact = LookupContact(number.to_bytes(32, "big"), ip, 1)
        node.table.note_answer(contact, 0.0)
        node.table.suggest(LookupContact((number + (1 << 40)).to_bytes(32, "big"), ip, 1))
    records = node.records
    while len(records) < LIMITS.in_all:
        key, who = lot.randbytes(32), lot.randbytes(32)
        records._keys.setdefault(key, {})[who] = Kept(lot.randbytes(MAX_RECORD), 0, 0, lot.randbytes(6))
        records._all.add((key, who))
        records._blocks[who[:6]] += 1
    node.publication.want([number.to_bytes(32, "big") for number in range(1024)], 0.0)
    return deep_size([node.table, node.records, node.publication])
