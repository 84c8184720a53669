"""Encodes and decodes what nodes that fetch or hold one dataset tell each other of its objects (ADR 61).

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

import struct
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from p2p.ports import Parts, PartsAsk, Tip
from p2p.wire.limits import MAX_PRESENCE, MAX_SWARM_BLOCKS, MAX_SWARM_PEERS

SWARM_PROTOCOL: Final = "/odf/1/swarm"
_PARTS, _TOLD, _NONE = 0x01, 0x81, 0x82
_ASK: Final = struct.Struct(">B34sQ32sQI")
_ANSWER: Final = struct.Struct(">BQ")
_LAST_BLOCK: Final = 1 << 63


class PartsTold(msgspec.Struct, frozen=True):
    """An answer. ``parts``: ``None`` where the node has nothing of it, or tells nobody."""

    parts: Parts | None
    presences: tuple[bytes, ...] = ()


def map_bytes(count: int) -> int:
    """Bytes of a map of so many blocks."""
    return (count + 7) // 8


def encode_parts(ask: PartsAsk) -> bytes:
    head = _ASK.pack(_PARTS, ask.dataset, ask.tip.size, ask.tip.last, ask.start, ask.count)
    return head + _map(ask.have, ask.count)


def decode_parts(body: bytes) -> PartsAsk:
    """Raises Invalid."""
    if len(body) < _ASK.size or body[0] != _PARTS:
        raise _bad("question", body)
    _, did, size, last, start, count = _ASK.unpack_from(body)
    if not 0 < count <= MAX_SWARM_BLOCKS or not start + count <= size < _LAST_BLOCK:
        raise _bad("question", body)
    if len(body) != _ASK.size + map_bytes(count):
        raise _bad("question", body)
    have = _bits(body, _ASK.size, count)
    return PartsAsk(dataset=DatasetId.from_bytes(did), tip=Tip(size, last), start=start, count=count, have=have)


def encode_told(told: PartsTold, count: int) -> bytes:
    """``count``: as in the question."""
    if told.parts is None:
        return bytes([_NONE])
    parts = told.parts
    names = b"".join(len(each).to_bytes(2, "big") + each for each in told.presences)
    maps = _map(parts.has, count) + _map(parts.offers, count)
    return _ANSWER.pack(_TOLD, parts.given) + maps + bytes([len(told.presences)]) + names


def decode_told(body: bytes, count: int) -> PartsTold:
    """Presences are split and not looked at. Raises Invalid."""
    if body == bytes([_NONE]):
        return PartsTold(None)
    at = _ANSWER.size + 2 * map_bytes(count)
    if len(body) <= at or body[0] != _TOLD or body[at] > MAX_SWARM_PEERS:
        raise _bad("answer", body)
    _, given = _ANSWER.unpack_from(body)
    has, offers = _bits(body, _ANSWER.size, count), _bits(body, _ANSWER.size + map_bytes(count), count)
    if offers & ~has:
        raise Invalid("an offer of what is not there", rule="swarm-message")
    presences, left, at = [], body[at], at + 1
    for _ in range(left):
        length = int.from_bytes(body[at : at + 2], "big")
        if not 0 < length <= MAX_PRESENCE or at + 2 + length > len(body):
            raise _bad("presence", body)
        presences.append(body[at + 2 : at + 2 + length])
        at += 2 + length
    if at != len(body):
        raise _bad("answer", body)
    return PartsTold(Parts(has=has, offers=offers, given=given), tuple(presences))


def _map(bits: int, count: int) -> bytes:
    return bits.to_bytes(map_bytes(count), "little")


def _bits(body: bytes, start: int, count: int) -> int:
    bits = int.from_bytes(body[start : start + map_bytes(count)], "little")
    if bits >> count:
        raise _bad("map", body)
    return bits


def _bad(what: str, body: bytes) -> Invalid:
    return Invalid(f"no {what} of a swarm: {body[:8].hex()}… of {len(body)} bytes", rule="swarm-message")
