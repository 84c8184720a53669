"""Lays out what nodes that fetch or hold one dataset, or one large object, tell each other of it (ADRs 61 and 65).

One question and one answer a stream, numbers in network order::

    parts   01  34 did  u64 size  32 last  u64 start  u32 count (1 .. 65,536)  map
    told    81  u64 given  map  map  u8 n (<= 8)  n x (u16 length, presence)
    none    82

``size`` and ``last`` name the history: its length, and the sha3-256 of its last block. A map has a bit for each block
from ``start`` on, the lowest bit of the first byte first, and no others. In the question it is set where the asker has
all objects of the block. In the answer the first map tells the same of the answering node, and the second which of them
the asker may take there first. ``given`` counts the bytes of objects that the node gave to those who asked so.
Presences are of others who fetch it.

Large objects are fetched in pieces (ADR 65). A piece is a range of
``piece_size(size)`` bytes; the last one may be shorter. One question and one answer a stream, numbers in network
order::

    list    01  34 did  34 multihash  u64 size
    pieces  02  34 did  34 multihash  u64 size  32 root  map
    listed  83  64 signature  n x 32 sha3-256
    told    81  as in ``/odf/1/swarm``
    none    82

A list has the hash of each piece, and is signed by the node that publishes the dataset: no block and no name says what
a part of an object hashes to. ``root`` is the hash of the list. A node tells of pieces only where its own list has that
root, so whoever gives a piece that does not fit the list lied. The map has a bit for each piece that the asker has.
Pure.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated, Final

import msgspec

from chain.multihash import Multihash
from chain.statements.keys import SigningKey, verify
from p2p.ports import HeldParts, PartsAsk, PiecesAsk, Tip
from p2p.wire.layout import (
    DID,
    HASH,
    BitMap,
    Did,
    FieldGroup,
    Many,
    MessageKinds,
    MessageLayout,
    Name,
    OctetString,
    RestBytes,
    u8,
    u16,
    u32,
    u64,
)
from p2p.wire.limits import MAX_PRESENCE, MAX_SWARM_BLOCKS, MAX_SWARM_PEERS, MIB
from p2p.wire.objects import MAX_SIZE

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


PIECES_PROTOCOL: Final = "/odf/1/pieces"
LEAST_PIECE: Final = 1 * MIB
"""Bytes of a piece of a large object: what is read at once; more where there would be too many pieces."""
MAX_PIECES: Final = 4096
"""Pieces of an object at most; the list of their hashes then has 128 KiB."""
LARGE_OBJECT: Final = 8 * MIB
"""Bytes of an object that is divided among those who fetch it together; a smaller one is taken whole."""
PIECE_HASH: Final = 32
_SIZE: Final = u64(MAX_SIZE, LARGE_OBJECT)
_DOMAIN: Final = b"odf pieces 1\0"


class PieceListAsk(msgspec.Struct, frozen=True):
    """Asks for the list of an object that a dataset names."""

    dataset: Did
    name: Name
    size: Annotated[int, _SIZE]


class PieceList(msgspec.Struct, frozen=True):
    """The hashes of the pieces of an object, end to end, and the signature of whoever says so."""

    name: Multihash
    size: int
    hashes: bytes
    signature: bytes = b""

    @property
    def root(self) -> bytes:
        return hashlib.sha3_256(self.hashes).digest()

    @property
    def count(self) -> int:
        return len(self.hashes) // PIECE_HASH

    def span(self, number: int) -> tuple[int, int]:
        """The first byte of a piece, and the one after its last."""
        piece = piece_size(self.size)
        return number * piece, min(self.size, (number + 1) * piece)

    def fits(self, number: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether bytes are those of a piece."""
        start, stop = self.span(number)
        wanted = self.hashes[number * PIECE_HASH : (number + 1) * PIECE_HASH]
        return len(data) == stop - start and hashlib.sha3_256(data).digest() == wanted


def piece_size(size: int) -> int:
    """Bytes of a piece of an object: the least power of two MiB that gives at most ``MAX_PIECES``."""
    piece = LEAST_PIECE
    while piece * MAX_PIECES < size:
        piece *= 2
    return piece


def piece_count(size: int) -> int:
    return -(-size // piece_size(size))


def sign_list(name: Multihash, size: int, hashes: bytes, key: SigningKey) -> PieceList:
    return PieceList(name, size, hashes, key.sign(_message(name, size, hashes)))


def is_signed(made: PieceList, key: bytes) -> bool:
    """Whether the node of this key signed a list."""
    return verify(key, _message(made.name, made.size, made.hashes), made.signature)


def _message(name: Multihash, size: int, hashes: bytes) -> bytes:
    return _DOMAIN + name + size.to_bytes(8, "big") + hashes


_LIST: Final = MessageLayout("pieces-message", 0x01, PieceListAsk)
_PIECES: Final = MessageLayout(
    "pieces-message",
    0x02,
    PiecesAsk,
    dataset=DID,
    name=HASH,
    size=_SIZE,
    root=OctetString(PIECE_HASH),
    have=BitMap(piece_count, "size"),
)
encode_list_ask, encode_pieces_ask = _LIST.encode, _PIECES.encode
decode_question = MessageKinds[PieceListAsk | PiecesAsk](_LIST, _PIECES).decode


def _list_layout(name: Multihash, size: int) -> MessageLayout[PieceList]:
    length = PIECE_HASH * piece_count(size)
    make = partial(PieceList, name, size)
    return MessageLayout("pieces-message", 0x83, make, signature=OctetString(64), hashes=RestBytes(length, length))


def encode_listed(made: PieceList) -> bytes:
    return _list_layout(made.name, made.size).encode(made)


def decode_listed(body: bytes, ask: PieceListAsk) -> PieceList | None:
    """Signature unchecked; ``None``: the node has no list. Raises Invalid."""
    return None if body == NONE else _list_layout(ask.name, ask.size).decode(body)
