"""A node whose table and records are as full as anybody can make them."""

from __future__ import annotations

from random import Random

from p2p.lookup.node import LookupNode
from p2p.lookup.records import LIMITS, Kept
from p2p.wire.contact import LookupContact
from p2p.wire.limits import MAX_RECORD

from .sizes import deep_size


def largest() -> int:
    """Bytes. Records are put in unsigned, as making eight thousand signatures shows nothing."""
    lot = Random(1)
    node = LookupNode("net", b"m" * 32, lot, b"secret")
    for number in range(200_000):
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
