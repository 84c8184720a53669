"""Lays out what nodes that fetch or hold one dataset tell each other of its objects (ADR 61).

One question and one answer a stream, numbers in network order::

    parts   01  34 did  u64 size  32 last  u64 start  u32 count (1 .. 65,536)  map
    told    81  u64 given  map  map  u8 n (<= 8)  n x (u16 length, presence)
    none    82

``size`` and ``last`` name the history: its length, and the sha3-256 of its last block. A map has a bit for each block
from ``start`` on, the lowest bit of the first byte first, and no others. In the question it is set where the asker has
all objects of the block. In the answer the first map tells the same of the answering node, and the second which of them
the asker may take there first. ``given`` counts the bytes of objects that the node gave to those who asked so.
Presences are of others who fetch it. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from p2p.ports import HeldParts, PartsAsk, Tip
from p2p.wire.layout import DID, BitMap, FieldGroup, Many, MessageLayout, OctetString, u8, u16, u32, u64
from p2p.wire.limits import MAX_PRESENCE, MAX_SWARM_BLOCKS, MAX_SWARM_PEERS

SWARM_PROTOCOL: Final = "/odf/1/swarm"
NONE: Final = b"\x82"
"""The answer of a node that has nothing of it, or tells nobody."""
_MAX_SIZE: Final = (1 << 63) - 1


class PartsTold(msgspec.Struct, frozen=True):
    """An answer. ``parts``: ``None`` where the node has nothing of it, or tells nobody."""

    parts: HeldParts | None
    presences: tuple[bytes, ...] = ()


_PARTS: Final = MessageLayout(
    "swarm-message",
    0x01,
    PartsAsk,
    lambda ask: "blocks beyond the end" if ask.start + ask.count > ask.tip.size else None,
    dataset=DID,
    tip=FieldGroup(Tip, size=u64(_MAX_SIZE), last=OctetString(32)),
    start=u64(),
    count=u32(MAX_SWARM_BLOCKS, 1),
    have=BitMap(int, "count"),
)
encode_parts, decode_parts = _PARTS.encode, _PARTS.decode


def _false_offer(answer: PartsTold) -> str | None:
    parts = answer.parts
    return "an offer of what is not there" if parts is not None and parts.offers & ~parts.has else None


def _answer_layout(count: int) -> MessageLayout[PartsTold]:
    bits = BitMap(lambda _: count)
    return MessageLayout(
        "swarm-message",
        0x81,
        PartsTold,
        _false_offer,
        parts=FieldGroup(HeldParts, given=u64(), has=bits, offers=bits),
        presences=Many(u8(MAX_SWARM_PEERS), OctetString(u16(MAX_PRESENCE, 1))),
    )


def encode_told(told: PartsTold, count: int) -> bytes:
    """``count``: as in the question."""
    return NONE if told.parts is None else _answer_layout(count).encode(told)


def decode_told(body: bytes, count: int) -> PartsTold:
    """Presences are split and not looked at. Raises Invalid."""
    return PartsTold(None) if body == NONE else _answer_layout(count).decode(body)
