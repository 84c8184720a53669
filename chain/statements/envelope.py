"""Encodes and verifies DSSE v1 envelopes around canonical payloads (docs/spec/trust.md#bytes).

Received bytes are verified, then the same bytes are parsed. Rights follow from the key that verified; ``keyid`` only
hints which key to try. The node passes on its own encoding, with only the signatures that it verified.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DID_ODF, DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import keys
from chain.statements.keys import SigningKey

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MAX_SIGNATURES: Final = 32
"""Most signatures of an envelope: nine roots of two versions, and some room."""


class Signed(msgspec.Struct, frozen=True):
    """A payload and the keys whose signatures of it were verified."""

    payload: bytes
    signers: tuple[KeyDid, ...]
    envelope: bytes
    """Our own encoding, ready to be passed on."""

    @property
    def sid(self) -> Multihash:
        return sid(self.payload)


def sid(payload: bytes) -> Multihash:
    """Returns a statement's id, which leaves out the signatures, as they are not unique."""
    return Multihash.sha3_256(payload)


def preauth(payload: bytes, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Returns the bytes that are signed: DSSE's PAE."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, *signers: SigningKey, as_dataset: bool = False) -> bytes:
    """Returns an envelope signed by each of ``signers``; ``as_dataset`` names them by their did:odf."""
    signatures = []
    for key in signers:
        name = str(key.dataset_id if as_dataset else key.did)
        signatures.append((name, key.sign(preauth(payload))))
    return _encode(payload, signatures)


def gather(payload: bytes, signatures: Iterable[tuple[KeyDid, bytes]]) -> bytes:
    """Builds an envelope of signatures that were made separately; ``unseal`` verifies them."""
    return _encode(payload, [(str(key), signature) for key, signature in signatures])


def unseal(envelope: bytes, limit: int) -> Signed:
    """Verifies an envelope of at most ``limit`` bytes. Raises Invalid if malformed, or if no signature verifies.

    Signatures by keys of other kinds, which others may add, are dropped like those that do not verify.
    """
    if len(envelope) > limit:
        raise Invalid(f"envelope of {len(envelope)} bytes, the limit is {limit}", rule="envelope-size")
    payload, claimed = _decode(envelope)
    message = preauth(payload)
    good: dict[bytes, tuple[str, bytes]] = {}
    strange: Invalid | None = None
    for keyid, signature in claimed:
        try:
            key = KeyDid.parse(keyid)
        except Invalid as fault:
            strange = strange or fault
            continue
        if key not in good and keys.verify(key.public_key, message, signature):
            good[key] = (keyid, signature)
    if not good:
        raise strange or Invalid("no signature of this envelope verifies", rule="envelope-signature")
    return Signed(payload, tuple(KeyDid(key) for key in good), _encode(payload, list(good.values())))


def payload_of(envelope: bytes) -> bytes:
    """Returns the payload of an envelope that was verified before. Raises Invalid when it is malformed."""
    return _decode(envelope)[0]


def _encode(payload: bytes, signatures: list[tuple[str, bytes]]) -> bytes:
    body = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": name, "sig": base64.b64encode(value).decode()} for name, value in signatures],
    }
    return json.dumps(body, separators=(",", ":"), sort_keys=True).encode()


class _Signature(msgspec.Struct):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


def _decode(envelope: bytes) -> tuple[bytes, list[tuple[str, bytes]]]:
    try:
        parsed = msgspec.json.decode(envelope, type=_Envelope)
        payload = _base64(parsed.payload)
        signatures = [(item.keyid, _base64(item.sig)) for item in parsed.signatures]
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError) as error:
        raise Invalid(f"not a DSSE envelope: {error}", rule="envelope") from error
    if parsed.payload_type != PAYLOAD_TYPE:
        raise Invalid(f"payload of type {parsed.payload_type[:60]!r}", rule="envelope-type", hint=PAYLOAD_TYPE)
    if len(signatures) > MAX_SIGNATURES:
        raise Invalid(f"{len(signatures)} signatures, the limit is {MAX_SIGNATURES}", rule="envelope-signatures")
    return payload, signatures


def _base64(text: str) -> bytes:
    """Decodes base64 in either alphabet, as readers of DSSE do."""
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def dataset_key(dataset: DatasetId) -> KeyDid:
    """Returns the key that is a dataset's id."""
    return KeyDid.parse(DID_ODF + dataset.multibase)
