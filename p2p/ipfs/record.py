"""Makes and reads IPNS records, which say where a name points and until when, signed with the dataset's key.

The node makes them itself, so that the key never goes into an IPFS daemon. Both kinds of signature are written, as
today's nodes want; only the second, over a canonical CBOR map, is trusted, and the fields beside it must agree with the
map. Spec: IPNS Record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from chain import instant
from chain.codec.protobuf import Field, field, read_fields
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.keys import SigningKey, verify

if TYPE_CHECKING:
    # Imported only where a CID is made or read: loading its tables of codecs would slow the start of a node.
    from multiformats import CID

MAX_RECORD: Final = 10 << 10
"""Bytes of a record, the limit of the specification."""
SIGNED: Final = b"ipns-signature:"
_BYTES, _NUMBER, _TEXT_KEY = 0x40, 0x00, 0x60
_KEY: Final = bytes([0x08, 0x01, 0x12, 32])
"""The bytes before the key in an encoded public key: field 1 (type) = 1 (Ed25519) · field 2 (data) of 32 bytes."""
_CODEC, _HASH, _BASE = "libp2p-key", "identity", "base36"
MAX_NAME: Final = 80
"""Characters of a name; that of an Ed25519 key has 62."""
MAX_CID: Final = 128
"""Characters of a CID of others; most have 59."""


def name_of(dataset: DatasetId) -> str:
    """Returns the IPNS name of a dataset: base36 with its multibase letter."""
    return str(_cid(dataset))


def dataset_of(name: str) -> DatasetId:
    """Returns the dataset of an IPNS name. Raises Invalid if it is not that of an Ed25519 key in base36."""
    from multiformats import CID

    text = name.removeprefix("ipns://").removeprefix("/ipns/")
    try:
        key = CID.decode(text[: MAX_NAME + 1]).raw_digest
        dataset = DatasetId.from_public_key(key[len(_KEY) :])
    except (ValueError, LookupError, Invalid) as error:
        raise _bad_name(name) from error
    # Only one spelling of a CID is a name: other bases, capitals, codecs and hashes are not accepted.
    if name_of(dataset) != text:
        raise _bad_name(name)
    return dataset


def check_cid(text: str) -> None:
    """Raises Invalid if a text is no CID, of either version and in any base."""
    from multiformats import CID

    try:
        CID.decode(text[: MAX_CID + 1])
    except (ValueError, LookupError) as error:
        raise Invalid(f"{text[:80]!r} is no CID", rule="cid", hint="it looks like bafybei… or Qm…") from error


def check_key_name(text: str) -> None:
    """Raises Invalid if a text is no IPNS name: neither the CID of a key, nor a peer id in its older form."""
    from multiformats import CID, multibase, multihash

    raw = f"z{text}" if text.startswith(("12D3", "Qm")) else None
    try:
        if raw is not None:
            multihash.unwrap(multibase.decode(raw[: MAX_CID + 1]))
        elif CID.decode(text[: MAX_CID + 1]).codec.name != _CODEC:
            raise ValueError(text)
    except (ValueError, LookupError) as error:
        raise Invalid(f"{text[:80]!r} names no key", rule="ipns-name", hint="it looks like k51qzi5u…") from error


def _cid(dataset: DatasetId) -> CID:
    from multiformats import CID

    return CID(_BASE, 1, _CODEC, (_HASH, _KEY + dataset.public_key))


def _bad_name(name: str) -> Invalid:
    return Invalid(
        f"{name[:80]!r} is not the IPNS name of a dataset",
        rule="ipns-name",
        hint="it looks like k51qzi5u… and is made of the dataset's key",
    )


class Pointer(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a record: the target of a name. ``sequence`` grows with every change."""

    value: str
    """The target: ``/ipfs/`` and a CID."""
    sequence: int
    expires: Instant
    ttl: int
    """Nanoseconds for which others may cache the record."""


def seal(pointer: Pointer, key: SigningKey) -> bytes:
    value, validity = pointer.value.encode(), instant.render(pointer.expires).encode()
    data = _cbor(pointer, value, validity)
    fields: list[tuple[int, Field]] = [
        (1, value),
        (2, key.sign(value + validity + b"0")),
        # Written though it is the default: js-ipns refuses a record without it ("validityType did not match").
        (3, 0),
        (4, validity),
        (5, pointer.sequence),
        (6, pointer.ttl),
        (8, key.sign(SIGNED + data)),
        (9, data),
    ]
    return b"".join(field(number, content) for number, content in fields)


def unseal(raw: bytes, dataset: DatasetId) -> Pointer:
    """Decodes and verifies the record of a dataset's name. Raises Invalid. The caller checks whether it has expired."""
    if len(raw) > MAX_RECORD:
        raise Invalid(f"an IPNS record of {len(raw)} bytes", rule="ipns-record", hint=f"at most {MAX_RECORD}")
    fields = dict(read_fields(raw, "ipns-record"))
    data, signature = fields.get(9), fields.get(8)
    if not isinstance(data, bytes) or not isinstance(signature, bytes):
        raise _bad("it has no second signature")
    if not verify(dataset.public_key, SIGNED + data, signature):
        raise _bad("its signature is not that of the dataset's key")
    value, validity = fields.get(1, b""), fields.get(4, b"")
    sequence, ttl = fields.get(5, 0), fields.get(6, 0)
    if not (isinstance(value, bytes) and isinstance(validity, bytes)):
        raise _bad("its fields are of other types")
    if not (isinstance(sequence, int) and isinstance(ttl, int)):
        raise _bad("its fields are of other types")
    try:
        pointer = Pointer(
            value=value.decode(), sequence=sequence, expires=instant.parse(validity.decode()), ttl=ttl
        )  # fmt: skip
    except UnicodeDecodeError as error:
        raise _bad("its fields are not text") from error
    if _cbor(pointer, value, validity) != data:
        raise _bad("the fields and what is signed do not say the same")
    return pointer


def _cbor(pointer: Pointer, value: bytes, validity: bytes) -> bytes:
    """Encodes the signed map in its one canonical form: keys ordered by length, then by bytes."""
    entries: list[tuple[str, Field]] = [
        ("TTL", pointer.ttl),
        ("Value", value),
        ("Sequence", pointer.sequence),
        ("Validity", validity),
        ("ValidityType", 0),
    ]
    body = b"".join(_head(_TEXT_KEY, len(name)) + name.encode() + _item(content) for name, content in entries)
    return bytes([0xA0 | len(entries)]) + body


def _item(content: Field) -> bytes:
    return _head(_NUMBER, content) if isinstance(content, int) else _head(_BYTES, len(content)) + content


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([kind | code]) + number.to_bytes(size, "big")
    raise _bad(f"the number {number}")


def _bad(what: str) -> Invalid:
    return Invalid(f"not an IPNS record: {what}", rule="ipns-record")
