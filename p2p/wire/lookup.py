"""Encodes and decodes the lookup's messages, and signs records of who serves a dataset (ADR 59).

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
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from chain.errors import Invalid
from chain.statements.keys import SigningKey, verify
from p2p.wire import presence
from p2p.wire.contact import Contact
from p2p.wire.limits import MAX_LOOKUP_CONTACTS, MAX_LOOKUP_RECORDS, MAX_RECORD
from p2p.wire.presence import Presence

LOOKUP_PROTOCOL: Final = "/odf/1/lookup"
KEY_BYTES: Final = 32
_FIND, _NODES, _STORE, _STORED = 0x01, 0x81, 0x02, 0x82
_SIGNATURE: Final = 64
_DOMAIN: Final = b"odf provider 1\0"
At: TypeAlias = tuple[bytes, int]
"""An IP address, packed, and a port."""


class Stored(enum.IntEnum):
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


class Find(msgspec.Struct, frozen=True, kw_only=True):
    key: bytes
    own: At | None = None


class Store(msgspec.Struct, frozen=True, kw_only=True):
    key: bytes
    record: bytes
    own: At | None = None


class StoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``Store``: it also names nodes near the key, as the answer to ``Find`` does."""

    outcome: Stored
    contacts: tuple[Contact, ...] = ()


class Nodes(msgspec.Struct, frozen=True, kw_only=True):
    contacts: tuple[Contact, ...] = ()
    records: tuple[bytes, ...] = ()


def encode_find(ask: Find) -> bytes:
    return bytes([_FIND]) + ask.key + _own(ask.own)


def encode_store(ask: Store) -> bytes:
    return bytes([_STORE]) + ask.key + _own(ask.own) + ask.record


def decode_lookup(body: bytes) -> Find | Store:
    """Decodes a question. Raises Invalid. A record in it is not checked."""
    if len(body) < 2 + KEY_BYTES or body[0] not in (_FIND, _STORE):
        raise _bad("question", body)
    key = body[1 : 1 + KEY_BYTES]
    own: At | None = None
    end = 2 + KEY_BYTES
    if body[1 + KEY_BYTES]:
        own, end = _read_at(body, 1 + KEY_BYTES)
    rest = body[end:]
    if body[0] == _STORE:
        if not 0 < len(rest) <= MAX_RECORD:
            raise _bad("record", body)
        return Store(key=key, record=rest, own=own)
    if rest:
        raise _bad("question", body)
    return Find(key=key, own=own)


def encode_nodes(answer: Nodes) -> bytes:
    records = b"".join(len(each).to_bytes(2, "big") + each for each in answer.records)
    return bytes([_NODES]) + _contacts(answer.contacts) + bytes([len(answer.records)]) + records


def decode_nodes(body: bytes) -> Nodes:
    """Decodes an answer to ``Find``. Raises Invalid. The records in it are not checked."""
    if len(body) < 3 or body[0] != _NODES:
        raise _bad("answer", body)
    contacts, at = _read_contacts(body, 1)
    if at >= len(body) or body[at] > MAX_LOOKUP_RECORDS:
        raise _bad("answer", body)
    count, at, records = body[at], at + 1, []
    for _ in range(count):
        length = int.from_bytes(body[at : at + 2], "big")
        if not 0 < length <= MAX_RECORD:
            raise _bad("record", body)
        records.append(body[at + 2 : at + 2 + length])
        at += 2 + length
    if at != len(body):
        raise _bad("answer", body)
    return Nodes(contacts=contacts, records=tuple(records))


def encode_stored(answer: StoreAnswer) -> bytes:
    return bytes([_STORED, answer.outcome]) + _contacts(answer.contacts)


def decode_stored(body: bytes) -> StoreAnswer:
    """Decodes an answer to ``Store``. Raises Invalid."""
    if len(body) < 3 or body[0] != _STORED or body[1] not in Stored.__members__.values():
        raise _bad("answer", body)
    contacts, at = _read_contacts(body, 2)
    if at != len(body):
        raise _bad("answer", body)
    return StoreAnswer(outcome=Stored(body[1]), contacts=contacts)


def _contacts(contacts: Sequence[Contact]) -> bytes:
    return bytes([len(contacts)]) + b"".join(_at((each.ip, each.port)) + each.key for each in contacts)


def _read_contacts(body: bytes, start: int) -> tuple[tuple[Contact, ...], int]:
    """Reads nodes at ``start``; returns them and the position after them. Raises Invalid."""
    if body[start] > MAX_LOOKUP_CONTACTS:
        raise _bad("answer", body)
    at, contacts = start + 1, []
    for _ in range(body[start]):
        (ip, port), at = _read_at(body, at)
        key = body[at : at + KEY_BYTES]
        if len(key) != KEY_BYTES:
            raise _bad("answer", body)
        contacts.append(Contact(key, ip, port))
        at += KEY_BYTES
    return tuple(contacts), at


def _own(at: At | None) -> bytes:
    return b"\0" if at is None else _at(at)


def _at(at: At) -> bytes:
    ip, port = at
    return bytes([4 if len(ip) == 4 else 6]) + ip + port.to_bytes(2, "big")


def _read_at(body: bytes, start: int) -> tuple[At, int]:
    """Reads an address at ``start``; returns it and the position after it. Raises Invalid."""
    version = body[start] if start < len(body) else 0
    size = {4: 4, 6: 16}.get(version, 0)
    end = start + 1 + size + 2
    if not size or end > len(body):
        raise _bad("address", body)
    ip, port = body[start + 1 : start + 1 + size], int.from_bytes(body[end - 2 : end], "big")
    if not port or (size == 16 and ipaddress.IPv6Address(ip).ipv4_mapped is not None):
        raise _bad("address", body)
    return (ip, port), end


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


def _bad(what: str, body: bytes) -> Invalid:
    return Invalid(f"no {what} of a lookup: {body[:8].hex()}… of {len(body)} bytes", rule="lookup-message")
