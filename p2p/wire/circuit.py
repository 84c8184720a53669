"""Encodes and decodes the messages of libp2p's circuit relay v2, and its reservation vouchers.

Over ``HOP`` a node asks a relay to make it reachable (``RESERVE``) or to connect it to another node (``CONNECT``); the
relay opens the circuit to that node over ``STOP``. Each message is protobuf, after its length as a varint. Unknown
fields are ignored. libp2p specifications: circuit relay v2; RFC 2, signed envelopes. Pure.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from chain import multibase
from chain.codec.protobuf import Field, bytes_of, delimited, field, number_of, read_fields
from chain.errors import Invalid
from chain.multibase import varint
from chain.statements.keys import SigningKey, verify
from p2p.identity import did_of_peer
from p2p.ports import PeerId

HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
STOP: Final = "/libp2p/circuit/relay/0.2.0/stop"
MAX_MESSAGE: Final = 4096
"""Bytes of a message, as in go-libp2p. A reservation with eight addresses and its voucher has 900."""
MAX_PEER: Final = 64
"""Bytes of a peer id; those of Ed25519 keys have 38."""
_RULE: Final = "circuit-message"
_DOMAIN: Final = b"libp2p-relay-rsvp"
_VOUCHER: Final = b"\x03\x02"
"""The type that an envelope states for its payload, a voucher."""
_KEY: Final = bytes([0x08, 0x01, 0x12, 32])
"""The bytes before the key in an encoded public key: field 1 (type) = 1 (Ed25519) · field 2 (data) of 32 bytes."""


class CircuitStatus(enum.IntEnum):
    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


class HopKind(enum.IntEnum):
    RESERVE = 0
    CONNECT = 1
    STATUS = 2


class StopKind(enum.IntEnum):
    CONNECT = 0
    STATUS = 1


class Limit(msgspec.Struct, frozen=True):
    """Limits of one circuit; 0 means no limit."""

    seconds: int = 0
    data: int = 0
    """Bytes in each direction."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    expires: int
    """Seconds since the epoch, by the relay's clock."""
    addresses: tuple[bytes, ...] = ()
    """Multiaddresses of the relay, as bytes."""
    voucher: bytes = b""


class HopMessage(msgspec.Struct, frozen=True, kw_only=True):
    kind: HopKind
    peer: PeerId | None = None
    reservation: Reservation | None = None
    limit: Limit = Limit()
    status: int | None = None
    """The outcome; a number that is not in ``CircuitStatus`` is treated as a refusal."""


class StopMessage(msgspec.Struct, frozen=True, kw_only=True):
    kind: StopKind
    peer: PeerId | None = None
    limit: Limit = Limit()
    status: int | None = None


def encode_hop(message: HopMessage) -> bytes:
    """Encodes a hop message with its length prefix."""
    reservation = b"" if message.reservation is None else field(3, _reservation_bytes(message.reservation))
    return delimited(
        field(1, message.kind)
        + _peer_field(message.peer)
        + reservation
        + _limit_field(4, message.limit)
        + (b"" if message.status is None else field(5, message.status))
    )


def encode_stop(message: StopMessage) -> bytes:
    """Encodes a stop message with its length prefix."""
    return delimited(
        field(1, message.kind)
        + _peer_field(message.peer)
        + _limit_field(3, message.limit)
        + (b"" if message.status is None else field(4, message.status))
    )


def decode_hop(raw: bytes) -> HopMessage:
    """Decodes a hop message without its length prefix. Raises Invalid."""
    found = _fields(raw)
    reservation = found.get(3)
    return HopMessage(
        kind=HopKind(_kind(found, len(HopKind))),
        peer=_read_peer(found),
        reservation=None if reservation is None else _read_reservation(_bytes(reservation)),
        limit=_read_limit(found.get(4, b"")),
        status=_status(found.get(5)),
    )


def decode_stop(raw: bytes) -> StopMessage:
    """Decodes a stop message without its length prefix. Raises Invalid."""
    found = _fields(raw)
    return StopMessage(
        kind=StopKind(_kind(found, len(StopKind))),
        peer=_read_peer(found),
        limit=_read_limit(found.get(3, b"")),
        status=_status(found.get(4)),
    )


# --- vouchers --------------------------------------------------------------------------------------------------------


def seal_voucher(key: SigningKey, relay: PeerId, peer: PeerId, expires: int) -> bytes:
    """Signs a reservation voucher: the relay states that ``peer`` is reached through it until ``expires``."""
    payload = field(1, _peer_bytes(relay)) + field(2, _peer_bytes(peer)) + field(3, expires)
    signature = key.sign(_signed_bytes(payload))
    return field(1, _KEY + key.public) + field(2, _VOUCHER) + field(3, payload) + field(5, signature)


def check_voucher(raw: bytes, relay: PeerId, peer: PeerId) -> None:
    """Raises Invalid unless ``relay``, which has an Ed25519 key, signed this voucher for ``peer``."""
    envelope = _fields(raw)
    payload = _bytes(envelope.get(3, b""))
    fields = _fields(payload)
    if (fields.get(1), fields.get(2)) != (_peer_bytes(relay), _peer_bytes(peer)):
        raise Invalid("a voucher for another relay or another peer", rule="circuit-voucher")
    signature = _bytes(envelope.get(5, b""))
    if envelope.get(2) != _VOUCHER or not verify(did_of_peer(relay).public_key, _signed_bytes(payload), signature):
        raise Invalid("a voucher that the relay did not sign", rule="circuit-voucher")


def _signed_bytes(payload: bytes) -> bytes:
    return b"".join(varint(len(part)) + part for part in (_DOMAIN, _VOUCHER, payload))


# --- parts -----------------------------------------------------------------------------------------------------------


def _fields(raw: bytes) -> dict[int, Field]:
    if len(raw) > MAX_MESSAGE:
        raise Invalid(f"a message of {len(raw):,} bytes", rule=_RULE, hint=f"at most {MAX_MESSAGE:,}")
    return dict(read_fields(raw, _RULE))


def _kind(found: dict[int, Field], kinds: int) -> int:
    kind = found.get(1)
    if not isinstance(kind, int) or kind >= kinds:
        raise Invalid(f"a message of the kind {kind!r}", rule=_RULE)
    return kind


def _status(found: Field | None) -> int | None:
    if isinstance(found, bytes):
        raise Invalid("a status that is no number", rule=_RULE)
    return found


def _bytes(found: Field) -> bytes:
    return bytes_of(found, _RULE)


def _number(found: Field) -> int:
    return number_of(found, _RULE)


def _peer_bytes(peer: PeerId) -> bytes:
    return multibase.decode("z" + peer)


def _peer_field(peer: PeerId | None) -> bytes:
    return b"" if peer is None else field(2, field(1, _peer_bytes(peer)))


def _read_peer(found: dict[int, Field]) -> PeerId | None:
    """Returns the peer id; ignores the addresses beside it, since our relay dials none that others name."""
    if 2 not in found:
        return None
    raw = _bytes(_fields(_bytes(found[2])).get(1, b""))
    if not 0 < len(raw) <= MAX_PEER:
        raise Invalid(f"a peer id of {len(raw)} bytes", rule=_RULE)
    return PeerId(multibase.encode_base58(raw).removeprefix("z"))


def _limit_field(number: int, limit: Limit) -> bytes:
    parts = b"".join(field(at, value) for at, value in ((1, limit.seconds), (2, limit.data)) if value)
    return field(number, parts) if parts else b""


def _read_limit(raw: Field) -> Limit:
    found = _fields(_bytes(raw))
    return Limit(_number(found.get(1, 0)), _number(found.get(2, 0)))


def _reservation_bytes(reservation: Reservation) -> bytes:
    addresses = b"".join(field(2, address) for address in reservation.addresses)
    voucher = field(3, reservation.voucher) if reservation.voucher else b""
    expires = field(1, reservation.expires) if reservation.expires else b""
    return expires + addresses + voucher


def _read_reservation(raw: bytes) -> Reservation:
    expires, addresses, voucher = 0, [], b""
    for number, content in read_fields(raw, _RULE):
        if number == 1:
            expires = _number(content)
        elif number == 2:
            addresses.append(_bytes(content))
        elif number == 3:
            voucher = _bytes(content)
    return Reservation(expires=expires, addresses=tuple(addresses), voucher=voucher)
