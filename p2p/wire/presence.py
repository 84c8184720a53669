"""Lays out presences (where a node is reached and what it serves), and messages that carry them (ADR 6).

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

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey, verify
from p2p.address import parse_address
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.layout import (
    U64,
    LayoutFault,
    Many,
    MessageLayout,
    OctetString,
    RestBytes,
    u8,
    u16,
    u32,
)
from p2p.wire.limits import (
    MAX_PEERS_ASK,
    MAX_PRESENCE,
    MAX_PRESENCE_ADDRESSES,
    MAX_PRESENCE_LIFETIME,
    MAX_PRESENCES,
    MAX_TAGS,
    MAX_TAGS_ASKED,
)

PROTOCOL: Final = "/odf/1/peers"
MAX_ADDRESS: Final = 255
"""Bytes of one address; its length is one byte."""
_SIGNATURE: Final = 64
_DOMAIN: Final = b"odf presence 1\0"


def _load_address(raw: bytes) -> str:
    text = raw.decode("ascii", "replace")
    parsed = parse_address(text)
    # One spelling of each address, since the signature covers it (docs/spec/replication.md#presences).
    if parsed.peer is not None or str(parsed) != text or not parsed.port:
        raise LayoutFault(f"the address {text!r}")
    return text


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    key: Annotated[bytes, OctetString(32)]
    """Its Ed25519 public key: its peer id and its ``did:key``."""
    issued: U64
    """Milliseconds since the epoch by the peer's own clock; of two presences of a peer the later one counts."""
    lifetime: Annotated[int, u16(MAX_PRESENCE_LIFETIME, 1)]
    """Seconds for which the presence is valid."""
    more: Annotated[bool, u8(1, load=bool)] = False
    """Whether it serves more datasets than those of its tags."""
    addresses: Annotated[
        tuple[str, ...], Many(u8(MAX_PRESENCE_ADDRESSES), OctetString(u8(), _load_address, str.encode))
    ] = ()
    tags: Annotated[tuple[int, ...], Many(u16(MAX_TAGS), u32())] = ()

    @property
    def peer(self) -> PeerId:
        return peer_of_did(KeyDid.from_public_key(self.key))

    @property
    def expires(self) -> int:
        """Returns when the presence expires, in milliseconds since the epoch."""
        return self.issued + 1000 * self.lifetime


class PeersAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A question for the presences of ``wanted`` peers; with ``tags``, of peers that serve one of these datasets."""

    wanted: Annotated[int, u8(MAX_PRESENCES)]
    tags: Annotated[tuple[int, ...], Many(u8(MAX_TAGS_ASKED), u32())] = ()
    own: Annotated[bytes, RestBytes(MAX_PEERS_ASK)] = b""


def tag_of(dataset: DatasetId) -> int:
    """Hashes a dataset to its tag. A collision (one in four billion) costs one question that is answered with no."""
    return int.from_bytes(Multihash.sha3_256(dataset).digest[:4], "big")


def _check_order(presence: Presence) -> str | None:
    # The signature covers one spelling: tags in another order, or twice, would be another presence that says the same.
    return "tags that do not ascend" if any(one >= other for one, other in pairwise(presence.tags)) else None


_PRESENCE: Final = MessageLayout("presence", 0x01, Presence, _check_order)
encode = _PRESENCE.encode


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
    if len(raw) > MAX_PRESENCE:
        raise Invalid(f"a presence of {len(raw)} bytes", rule="presence", hint=f"at most {MAX_PRESENCE}")
    return _PRESENCE.decode(raw[:-_SIGNATURE])


_ASK: Final = MessageLayout("peers-ask", 0x01, PeersAsk)
encode_ask, decode_ask = _ASK.encode, _ASK.decode


class _Answer(msgspec.Struct, frozen=True):
    presences: Sequence[bytes]


def _answer_layout(wanted: int) -> MessageLayout[_Answer]:
    return MessageLayout("peers-answer", 0x81, _Answer, presences=Many(u8(wanted), OctetString(u16())))


def encode_answer(presences: Iterable[bytes]) -> bytes:
    return _answer_layout(MAX_PRESENCES).encode(_Answer(list(presences)))


def decode_answer(body: bytes, ask: PeersAsk) -> list[bytes]:
    """Decodes an answer into raw, unchecked presences. Raises Invalid, also for more presences than ``ask`` wanted."""
    return list(_answer_layout(ask.wanted).decode(body).presences)
