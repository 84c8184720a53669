"""Encodes and decodes the messages of libp2p's DCUtR, by which two peers agree when to dial each other. Pure.

Each message is protobuf, after its length as a varint. Unknown fields are ignored.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chain.codec.protobuf import bytes_of, delimited, field, number_of, read_fields
from chain.errors import Invalid

PROTOCOL: Final = "/libp2p/dcutr"
MAX_MESSAGE: Final = 4096
"""Bytes of a message, as the specification says."""
MAX_ADDRESSES: Final = 16
"""Addresses that are read from one message; further ones are ignored."""
_RULE: Final = "dcutr-message"


class PunchKind(enum.IntEnum):
    CONNECT = 100
    SYNC = 300


class PunchMessage(msgspec.Struct, frozen=True):
    kind: PunchKind
    addresses: tuple[bytes, ...] = ()
    """Multiaddresses at which others see the sender."""


def encode_punch(message: PunchMessage) -> bytes:
    """Encodes a message with its length prefix."""
    return delimited(field(1, message.kind) + b"".join(field(2, each) for each in message.addresses))


def decode_punch(raw: bytes) -> PunchMessage:
    """Decodes a message without its length prefix. Raises Invalid."""
    if len(raw) > MAX_MESSAGE:
        raise Invalid(f"a message of {len(raw):,} bytes", rule=_RULE, hint=f"at most {MAX_MESSAGE:,}")
    kind = 0
    addresses: list[bytes] = []
    for number, content in read_fields(raw, _RULE):
        if number == 1:
            kind = number_of(content, _RULE)
        elif number == 2 and len(addresses) < MAX_ADDRESSES:
            addresses.append(bytes_of(content, _RULE))
    if kind not in set(PunchKind):
        raise Invalid(f"a message of the kind {kind}", rule=_RULE)
    return PunchMessage(PunchKind(kind), tuple(addresses))
