"""Lays out the lookup's messages, and signs records of who serves a dataset (ADR 59).

One question and one answer a stream, numbers in network order::

    find    01  32 key  own                    who is near this key, and who serves the dataset of it
    nodes   81  u8 n (<= 20)  n x (at, 32 key)  u8 m (<= 16)  m x (u16 length, record)
    store   02  32 key  own  record            keep this record of mine, and who is near this key
    stored  82  u8 outcome  u8 n (<= 20)  n x (at, 32 key)

    at      u8 4 or 6, the address, u16 port (>= 1)
    own     u8 0, or ``at`` of the asker, if it can be asked there

A record is a presence (``p2p.wire.presence``) without tags and flags. The peer that serves the dataset signs it over
``odf provider 1`` 00 network 00 key, and then all bytes of the presence before the signature. Pure.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.statements.keys import SigningKey, verify
from p2p.wire import presence
from p2p.wire.contact import LookupContact
from p2p.wire.layout import (
    FieldGroup,
    LayoutFault,
    Many,
    MessageBytes,
    MessageKinds,
    MessageLayout,
    OctetString,
    RestBytes,
    u8,
    u16,
)
from p2p.wire.limits import MAX_LOOKUP_CONTACTS, MAX_LOOKUP_RECORDS, MAX_RECORD
from p2p.wire.presence import Presence

LOOKUP_PROTOCOL: Final = "/odf/1/lookup"
KEY_BYTES: Final = 32
_SIGNATURE: Final = 64
_DOMAIN: Final = b"odf provider 1\0"
At: TypeAlias = tuple[bytes, int]
"""An IP address, packed, and a port."""


class StoreOutcome(enum.IntEnum):
    """The outcome of a request to keep a record. A closed set: another number makes the message Invalid."""

    KEPT = 0
    FULL = 1
    """There is no room for another record from its block of addresses."""
    FAR = 2
    """The answering node knows many nodes that are nearer to the key."""
    BAD = 3
    """The record is expired, from the future, or not the asker's."""
    BUSY = 4
    """The asker sent too many questions."""


class _Place:
    """An address: its version, 4 or 6, its bytes and a port; or a zero, if it is optional."""

    def __init__(self, is_optional: bool = False) -> None:
        self._is_optional = is_optional

    def write(self, value: At | None, _owner: Any, out: list[bytes]) -> None:
        ip, port = value or (b"", 0)
        out += [b"\0"] if value is None else [bytes([4 if len(ip) == 4 else 6]), ip, port.to_bytes(2, "big")]

    def read(self, source: MessageBytes) -> At | None:
        (version,) = source.take(1)
        if not version and self._is_optional:
            return None
        if version not in (4, 6):
            raise LayoutFault(f"an address of version {version}")
        ip, port = source.take(4 if version == 4 else 16), int.from_bytes(source.take(2), "big")
        # A mapped IPv4 address would be a second spelling, by which a node could pass for two.
        if not port or (version == 6 and ipaddress.IPv6Address(ip).ipv4_mapped is not None):
            raise LayoutFault("an address that no host has")
        return ip, port


_KEY: Final = OctetString(KEY_BYTES)
_CONTACTS: Final = Many(
    u8(MAX_LOOKUP_CONTACTS), FieldGroup(lambda at, key: LookupContact(key, *at), at=_Place(), key=_KEY)
)
_OWN: Final = _Place(is_optional=True)


class Find(msgspec.Struct, frozen=True, kw_only=True):
    key: Annotated[bytes, _KEY]
    own: Annotated[At | None, _OWN] = None


class Store(msgspec.Struct, frozen=True, kw_only=True):
    key: Annotated[bytes, _KEY]
    own: Annotated[At | None, _OWN] = None
    record: Annotated[bytes, RestBytes(MAX_RECORD, 1)]


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``Store``: it also names nodes near the key, as the answer to ``Find`` does."""

    outcome: Annotated[StoreOutcome, u8(load=StoreOutcome)]
    contacts: Annotated[tuple[LookupContact, ...], _CONTACTS] = ()


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    contacts: Annotated[tuple[LookupContact, ...], _CONTACTS] = ()
    records: Annotated[tuple[bytes, ...], Many(u8(MAX_LOOKUP_RECORDS), OctetString(u16(MAX_RECORD, 1)))] = ()


_RULE: Final = "lookup-message"
_FIND: Final = MessageLayout(_RULE, 0x01, Find)
_STORE: Final = MessageLayout(_RULE, 0x02, Store)
_NODES: Final = MessageLayout(_RULE, 0x81, Nodes)
_STORED: Final = MessageLayout(_RULE, 0x82, StoreAnswer)
encode_find, encode_store = _FIND.encode, _STORE.encode
decode_lookup = MessageKinds[Find | Store](_FIND, _STORE).decode
encode_nodes, decode_nodes = _NODES.encode, _NODES.decode
encode_stored, decode_stored = _STORED.encode, _STORED.decode


# Records


def seal_record(provider: Presence, network: str, key: bytes, signer: SigningKey) -> bytes:
    """Signs and encodes a record: the peer of ``provider`` serves the dataset of ``key``."""
    body = presence.encode(provider)
    return body + signer.sign(_message(network, key, body))


def is_record_signed(raw: bytes, provider: Presence, network: str, key: bytes) -> bool:
    """Whether the peer of the record signed it for this key and network. Expensive, so other checks come first."""
    return verify(provider.key, _message(network, key, raw[:-_SIGNATURE]), raw[-_SIGNATURE:])


def _message(network: str, key: bytes, body: bytes) -> bytes:
    return _DOMAIN + network.encode() + b"\0" + key + body


def decode_record(raw: bytes) -> Presence:
    """Decodes a record without checking its signature. Raises Invalid."""
    if len(raw) > MAX_RECORD:
        raise Invalid(f"a record of {len(raw)} bytes", rule="lookup-record", hint=f"at most {MAX_RECORD}")
    found = presence.decode(raw)
    if found.tags or found.more or not found.addresses:
        raise Invalid("a record that names datasets, or no address", rule="lookup-record")
    return found
