"""Encodes and decodes presences (where a node is reached and what it serves), and messages that carry them (ADR 0006).

Bytes of a presence, numbers in network order::

    01  32 key  u64 issued  u16 lifetime  u8 flags  u8 n  n x (u8 length, address)  u16 m  m x u32 tag  64 signature

``issued`` is in milliseconds since the epoch, ``lifetime`` in seconds. A tag is the first four bytes of the sha3-256 of
a dataset's id; tags ascend. Flag 1: it serves more datasets than it has tags. Addresses are multiaddresses without a
peer id, since the key is the peer. The signature covers the network's name, so that a presence of one network is not
valid in another.

Messages of ``/odf/1/peers``, one question and one answer a stream::

    ask     01  u8 wanted (<= 64)  u8 n (<= 16)  n x u32 tag  the asker's own presence, or nothing
    answer  81  u8 n  n x (u16 length, presence)

Without tags the answer is a sample of all peers; with tags, peers that say they serve one of the datasets. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey, verify
from p2p.address import parse_address
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.limits import (
    MAX_PRESENCE,
    MAX_PRESENCE_ADDRESSES,
    MAX_PRESENCE_LIFETIME,
    MAX_PRESENCES,
    MAX_TAGS,
    MAX_TAGS_ASKED,
)

PROTOCOL: Final = "/odf/1/peers"
VERSION: Final = 0x01
MORE: Final = 0x01
"""Flag: the node serves more datasets than those of its tags."""
ASK_KIND: Final = 0x01
ANSWER_KIND: Final = 0x81
MAX_ADDRESS: Final = 255
"""Bytes of one address; its length is one byte."""
_HEAD: Final = struct.Struct(">B32sQHBB")
_SIGNATURE: Final = 64
_DOMAIN: Final = b"odf presence 1\0"


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    key: bytes
    """Its Ed25519 public key: its peer id and its ``did:key``."""
    issued: int
    """Milliseconds since the epoch by the peer's own clock; of two presences of a peer the later one counts."""
    lifetime: int
    """Seconds for which the presence is valid."""
    addresses: tuple[str, ...] = ()
    tags: tuple[int, ...] = ()
    more: bool = False

    @property
    def peer(self) -> PeerId:
        return peer_of_did(KeyDid.from_public_key(self.key))

    @property
    def expires(self) -> int:
        """Returns when the presence expires, in milliseconds since the epoch."""
        return self.issued + 1000 * self.lifetime


class PeersAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A question for the presences of ``wanted`` peers; with ``tags``, of peers that serve one of these datasets."""

    wanted: int
    tags: tuple[int, ...] = ()
    own: bytes = b""


def tag_of(dataset: DatasetId) -> int:
    """Hashes a dataset to its tag. A collision (one in four billion) costs one question that is answered with no."""
    return int.from_bytes(Multihash.sha3_256(dataset).digest[:4], "big")


def encode(presence: Presence) -> bytes:
    head = _HEAD.pack(
        VERSION, presence.key, presence.issued, presence.lifetime, MORE if presence.more else 0, len(presence.addresses)
    )
    texts = [address.encode() for address in presence.addresses]
    addresses = b"".join(bytes([len(text)]) + text for text in texts)
    return head + addresses + struct.pack(f">H{len(presence.tags)}I", len(presence.tags), *presence.tags)


def seal(presence: Presence, network: str, key: SigningKey) -> bytes:
    """Encodes a presence and signs it with ``key`` for one network."""
    body = encode(presence)
    return body + key.sign(_message(network, body))


def is_signed(raw: bytes, presence: Presence, network: str) -> bool:
    """Whether the peer itself signed this for this network. Expensive, so all cheap checks come before it."""
    return verify(presence.key, _message(network, raw[:-_SIGNATURE]), raw[-_SIGNATURE:])


def _message(network: str, body: bytes) -> bytes:
    return _DOMAIN + network.encode() + b"\0" + body


def decode(raw: bytes) -> Presence:
    """Decodes a presence without checking its signature.
    Raises Invalid for bytes that the encoder would not have written."""
    if not _HEAD.size + 2 + _SIGNATURE <= len(raw) <= MAX_PRESENCE or raw[0] != VERSION:
        raise _bad(f"{len(raw)} bytes that begin with {raw[:4].hex()}")
    _, key, issued, lifetime, flags, count = _HEAD.unpack_from(raw)
    if flags & ~MORE or count > MAX_PRESENCE_ADDRESSES or not 0 < lifetime <= MAX_PRESENCE_LIFETIME:
        raise _bad(f"flags {flags}, {count} addresses, a lifetime of {lifetime} s")
    body = raw[:-_SIGNATURE]
    addresses, at = _addresses(body, count)
    (count,) = struct.unpack_from(">H", body, at) if at + 2 <= len(body) else (-1,)
    if not 0 <= count <= MAX_TAGS or at + 2 + 4 * count != len(body):
        raise _bad(f"{count} tags in {len(body) - at} bytes")
    tags = struct.unpack_from(f">{count}I", body, at + 2)
    if any(one >= other for one, other in pairwise(tags)):
        raise _bad("tags that do not ascend")
    return Presence(key=key, issued=issued, lifetime=lifetime, addresses=addresses, tags=tags, more=bool(flags & MORE))


def _addresses(body: bytes, count: int) -> tuple[tuple[str, ...], int]:
    at, found = _HEAD.size, []
    for _ in range(count):
        length = body[at] if at < len(body) else 0
        text = body[at + 1 : at + 1 + length].decode("ascii", "replace")
        at += 1 + length
        parsed = parse_address(text)
        if parsed.peer is not None or str(parsed) != text or not parsed.port:
            raise _bad(f"the address {text!r}")
        found.append(text)
    return tuple(found), at


def encode_ask(ask: PeersAsk) -> bytes:
    return struct.pack(f">BBB{len(ask.tags)}I", ASK_KIND, ask.wanted, len(ask.tags), *ask.tags) + ask.own


def decode_ask(body: bytes) -> PeersAsk:
    """Decodes a question. Raises Invalid. The presence ``own`` is not checked."""
    if len(body) < 3 or body[0] != ASK_KIND or body[1] > MAX_PRESENCES or body[2] > MAX_TAGS_ASKED:
        raise Invalid(f"not a question for peers: {body[:8].hex()}…", rule="peers-ask")
    count = body[2]
    if len(body) < 3 + 4 * count:
        raise Invalid(f"{count} tags in a question of {len(body)} bytes", rule="peers-ask")
    return PeersAsk(wanted=body[1], tags=struct.unpack_from(f">{count}I", body, 3), own=body[3 + 4 * count :])


def encode_answer(presences: Iterable[bytes]) -> bytes:
    answered = list(presences)
    return bytes([ANSWER_KIND, len(answered)]) + b"".join(len(one).to_bytes(2, "big") + one for one in answered)


def decode_answer(body: bytes, ask: PeersAsk) -> list[bytes]:
    """Decodes an answer into raw, unchecked presences. Raises Invalid, also for more presences than ``ask`` wanted."""
    if len(body) < 2 or body[0] != ANSWER_KIND or body[1] > ask.wanted:
        raise Invalid(f"not an answer about peers: {body[:8].hex()}…", rule="peers-answer")
    at, answered = 2, []
    for _ in range(body[1]):
        length = int.from_bytes(body[at : at + 2], "big")
        answered.append(body[at + 2 : at + 2 + length])
        at += 2 + length
    if at != len(body):
        raise Invalid(f"{body[1]} presences do not fill {len(body)} bytes", rule="peers-answer")
    return answered


def _bad(what: str) -> Invalid:
    return Invalid(f"not a presence: {what}", rule="presence")
