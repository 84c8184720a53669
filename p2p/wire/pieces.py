"""Encodes and decodes what nodes that fetch or hold one large object tell each other of its pieces (ADR 65).

A piece is a range of ``piece_size(size)`` bytes; the last one may be shorter. One question and one answer a stream,
numbers in network order::

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
import struct
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey, verify
from p2p.ports import PiecesAsk
from p2p.wire.limits import MIB
from p2p.wire.objects import MAX_SIZE

PIECES_PROTOCOL: Final = "/odf/1/pieces"
LEAST_PIECE: Final = 1 * MIB
"""Bytes of a piece of a large object: of what is read at once, and larger where there would be more than"""
MAX_PIECES: Final = 4096
"""pieces."""
LARGE_OBJECT: Final = 8 * MIB
"""Bytes of an object that is divided among those who fetch it together; a smaller one is taken whole."""
HASH: Final = 32
_LIST, _PIECES, _LISTED = 0x01, 0x02, 0x83
_HEAD: Final = struct.Struct(">B34s34sQ")
_SIGNATURE: Final = 64
_DOMAIN: Final = b"odf pieces 1\0"


class PieceListAsk(msgspec.Struct, frozen=True):
    """Asks for the list of an object that a dataset names."""

    dataset: DatasetId
    name: Multihash
    size: int


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
        return len(self.hashes) // HASH

    def span(self, number: int) -> tuple[int, int]:
        """The first byte of a piece, and the one after its last."""
        piece = piece_size(self.size)
        return number * piece, min(self.size, (number + 1) * piece)

    def fits(self, number: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether bytes are those of a piece."""
        start, stop = self.span(number)
        wanted = self.hashes[number * HASH : (number + 1) * HASH]
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


def encode_list_ask(ask: PieceListAsk) -> bytes:
    return _HEAD.pack(_LIST, ask.dataset, ask.name, ask.size)


def encode_pieces_ask(ask: PiecesAsk) -> bytes:
    count = piece_count(ask.size)
    return (
        _HEAD.pack(_PIECES, ask.dataset, ask.name, ask.size) + ask.root + ask.have.to_bytes((count + 7) // 8, "little")
    )


def decode_question(body: bytes) -> PieceListAsk | PiecesAsk:
    """Either kind. Raises Invalid."""
    if len(body) < _HEAD.size or body[0] not in (_LIST, _PIECES):
        raise _bad("question", body)
    kind, did, raw, size = _HEAD.unpack_from(body)
    dataset, name = DatasetId.from_bytes(did), Multihash.from_bytes(raw)
    if not LARGE_OBJECT <= size <= MAX_SIZE:
        raise _bad("size", body)
    if kind == _LIST:
        if len(body) != _HEAD.size:
            raise _bad("question", body)
        return PieceListAsk(dataset, name, size)
    count, at = piece_count(size), _HEAD.size + HASH
    if len(body) != at + (count + 7) // 8:
        raise _bad("question", body)
    have = int.from_bytes(body[at:], "little")
    if have >> count:
        raise _bad("map", body)
    return PiecesAsk(dataset=dataset, name=name, size=size, root=body[_HEAD.size : at], have=have)


def encode_listed(made: PieceList) -> bytes:
    return bytes([_LISTED]) + made.signature + made.hashes


def decode_listed(body: bytes, ask: PieceListAsk) -> PieceList | None:
    """Signature unchecked; ``None``: the node has no list. Raises Invalid."""
    if body == NONE:
        return None
    if len(body) != 1 + _SIGNATURE + HASH * piece_count(ask.size) or body[0] != _LISTED:
        raise _bad("list", body)
    return PieceList(ask.name, ask.size, body[1 + _SIGNATURE :], body[1 : 1 + _SIGNATURE])


NONE: Final = b"\x82"
"""The answer of a node that has nothing of it, or tells nobody."""


def _bad(what: str, body: bytes) -> Invalid:
    return Invalid(f"no {what} about pieces: {body[:8].hex()}… of {len(body)} bytes", rule="pieces-message")
