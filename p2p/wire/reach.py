"""Encodes and decodes the messages of AutoNAT v2 and DCUtR of libp2p, and the multiaddresses that both carry. Pure.

By AutoNAT v2 a node asks whether, and where, it can be dialled. The asking node sends addresses and a nonce over
``ASK``. The asked node may want bytes first (``DialDataRequest``), dials one of the addresses, sends the nonce over
``BACK`` on that connection, and answers with the outcome. Each message is protobuf, after its length as a varint.
Unknown fields are ignored. libp2p specification: AutoNAT v2. Pure.

By DCUtR two peers agree when to dial each other. Each message is protobuf, after its length as a varint. Unknown fields
are ignored.

Multiaddresses are of TCP over IP, in binary. These messages only need addresses that can be dialled directly: an IP
address and a TCP port. Addresses of other kinds (a name, a circuit, QUIC) are skipped when a list is read.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import Final, TypeAlias

import msgspec

from chain.codec.protobuf import Field, bytes_of, delimited, field, fixed64_field, number_of, read_fields
from chain.errors import Invalid
from p2p.address import PeerAddress
from p2p.ip import parse_ip

ASK: Final = "/libp2p/autonat/2/dial-request"
BACK: Final = "/libp2p/autonat/2/dial-back"
MAX_DIAL_MESSAGE: Final = 8192
"""Bytes of a message, as in go-libp2p; one part of the data before a dial has at most 4,096."""
MAX_ADDRESSES: Final = 50
"""Addresses in one question, as in go-libp2p."""
MAX_DATA: Final = 4096
"""Bytes of one part of the data that is sent before a dial."""
LEAST_DATA, MOST_DATA = 30_000, 100_000
"""Range of the bytes that the asker must send first if the address to dial is not the one it is seen at."""
_RULE: Final = "autonat-message"


class DialStatus(enum.IntEnum):
    UNUSED = 0
    DIAL_ERROR = 100
    DIAL_BACK_ERROR = 101
    OK = 200


class ResponseStatus(enum.IntEnum):
    INTERNAL_ERROR = 0
    REQUEST_REJECTED = 100
    DIAL_REFUSED = 101
    OK = 200


class DialRequest(msgspec.Struct, frozen=True):
    addresses: tuple[bytes, ...]
    """Multiaddresses, the most important first."""
    nonce: int


class DialResponse(msgspec.Struct, frozen=True):
    status: int
    """The outcome; a number that is not in ``ResponseStatus`` is ignored."""
    index: int = 0
    """The position of the dialled address in the question."""
    dial: int = DialStatus.UNUSED


class DialDataRequest(msgspec.Struct, frozen=True):
    index: int
    count: int
    """Bytes that the asker must send before the dial."""


class DialData(msgspec.Struct, frozen=True):
    data: bytes


Message: TypeAlias = DialRequest | DialResponse | DialDataRequest | DialData


def encode(message: Message) -> bytes:
    """Encodes a message with its length prefix."""
    match message:
        case DialRequest(addresses, nonce):
            body = b"".join(field(1, address) for address in addresses) + fixed64_field(2, nonce)
            return delimited(field(1, body))
        case DialResponse(status, index, dial):
            return delimited(field(2, _numbers((1, status), (2, index), (3, dial))))
        case DialDataRequest(index, count):
            return delimited(field(3, _numbers((1, index), (2, count))))
        case DialData(data):
            return delimited(field(4, field(1, data)))


def decode(raw: bytes) -> Message:
    """Decodes a message without its length prefix. Raises Invalid."""
    if len(raw) > MAX_DIAL_MESSAGE:
        raise Invalid(f"a message of {len(raw):,} bytes", rule=_RULE, hint=f"at most {MAX_DIAL_MESSAGE:,}")
    kinds = [(number, content) for number, content in read_fields(raw, _RULE) if 1 <= number <= 4]
    if len(kinds) != 1:
        raise Invalid(f"{len(kinds)} messages in one", rule=_RULE)
    number, content = kinds[0]
    fields = list(read_fields(bytes_of(content, _RULE), _RULE))
    if number == 1:
        return _request(fields)
    found = dict(fields)
    if number == 4:
        data = bytes_of(found.get(1, b""), _RULE)
        if len(data) > MAX_DATA:
            raise Invalid(f"{len(data):,} bytes of data at once", rule=_RULE, hint=f"at most {MAX_DATA:,}")
        return DialData(data)
    one, two, three = (number_of(found.get(each, 0), _RULE) for each in (1, 2, 3))
    return DialResponse(one, two, three) if number == 2 else DialDataRequest(one, two)


def encode_back(nonce: int) -> bytes:
    """Encodes the nonce, as it is sent over the connection of the dial-back."""
    return delimited(fixed64_field(1, nonce))


def decode_back(raw: bytes) -> int:
    """Decodes the nonce of a dial-back. Raises Invalid."""
    return number_of(dict(read_fields(raw, _RULE)).get(1, 0), _RULE)


BACK_HEARD: Final = b"\x00"
"""The answer to a dial-back: status OK, which is zero, as an empty message."""


def decode_observed(raw: bytes) -> bytes:
    """Decodes a message of libp2p's identify protocol:
    returns the address at which its sender sees us. Raises Invalid."""
    return bytes_of(dict(read_fields(raw, "identify-message")).get(4, b""), "identify-message")


def _request(fields: list[tuple[int, Field]]) -> DialRequest:
    addresses = tuple(bytes_of(content, _RULE) for number, content in fields if number == 1)
    if len(addresses) > MAX_ADDRESSES:
        raise Invalid(f"{len(addresses)} addresses", rule=_RULE, hint=f"at most {MAX_ADDRESSES}")
    return DialRequest(addresses, number_of(dict(fields).get(2, 0), _RULE))


def _numbers(*pairs: tuple[int, int]) -> bytes:
    return b"".join(field(number, value) for number, value in pairs if value)


PUNCH: Final = "/libp2p/dcutr"
MAX_PUNCH: Final = 4096
"""Bytes of a message, as the specification says."""
MAX_PUNCH_ADDRESSES: Final = 16
"""Addresses that are read from one message; further ones are ignored."""
_PUNCH_RULE: Final = "dcutr-message"


class PunchKind(enum.IntEnum):
    CONNECT = 100
    SYNC = 300


class PunchMessage(msgspec.Struct, frozen=True):
    kind: PunchKind
    addresses: tuple[bytes, ...] = ()
    """Multiaddresses at which others see the sender."""


def encode_punch(message: PunchMessage) -> bytes:
    """Encodes a message with its length prefix."""
    return delimited(field(1, message.kind) + b"".join(field(2, address) for address in message.addresses))


def decode_punch(raw: bytes) -> PunchMessage:
    """Decodes a message without its length prefix. Raises Invalid."""
    if len(raw) > MAX_PUNCH:
        raise Invalid(f"a message of {len(raw):,} bytes", rule=_PUNCH_RULE, hint=f"at most {MAX_PUNCH:,}")
    kind = 0
    addresses: list[bytes] = []
    for number, content in read_fields(raw, _PUNCH_RULE):
        if number == 1:
            kind = number_of(content, _PUNCH_RULE)
        elif number == 2 and len(addresses) < MAX_PUNCH_ADDRESSES:
            addresses.append(bytes_of(content, _PUNCH_RULE))
    if kind not in set(PunchKind):
        raise Invalid(f"a message of the kind {kind}", rule=_PUNCH_RULE)
    return PunchMessage(PunchKind(kind), tuple(addresses))


_IP4, _TCP, _IP6 = 0x04, 0x06, 0x29
_LENGTHS: Final = {_IP4: 4, _IP6: 16}
MAX_BYTES: Final = 512
"""Bytes of one address; longer ones are skipped."""


def encode_multiaddr(address: PeerAddress) -> bytes:
    """Encodes the IP address and port of an address. Raises ValueError for a name or a circuit."""
    ip = address.ip
    if ip is None or address.relay is not None:
        raise ValueError(f"{address} is no IP address and port")
    code = _IP4 if ip.version == 4 else _IP6
    return bytes([code]) + ip.packed + bytes([_TCP]) + address.port.to_bytes(2, "big")


def decode_multiaddr(raw: bytes) -> PeerAddress | None:
    """Decodes an address, without the peer id that may follow; ``None`` for another kind."""
    length = _LENGTHS.get(raw[0]) if 0 < len(raw) <= MAX_BYTES else None
    if length is None or len(raw) < length + 4 or raw[length + 1] != _TCP:
        return None
    rest = raw[length + 4 :]
    if rest[:2] != b"\xa5\x03" and rest:  # /p2p
        return None
    if rest and (len(rest) < 3 or rest[2] >= 0x80 or len(rest) != 3 + rest[2]):
        return None
    ip = parse_ip(str(ipaddress.ip_address(raw[1 : length + 1])))
    port = int.from_bytes(raw[length + 2 : length + 4], "big")
    return PeerAddress(f"ip{ip.version}", str(ip), port) if port else None
