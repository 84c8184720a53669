"""Encodes cosignatures, by which a witness states that it never signed two trees that contradict each other.

Two trees contradict each other if neither begins with the other. The bytes signed are ``cosignature/v1\\ntime
<seconds>\\n`` and the checkpoint. The name, which is not signed, is always the witness's did:key, even if it has
another name. Between nodes a cosignature travels as a JSON object beside its tree. Pure. Spec:
c2sp.org/tlog-cosignature; docs/spec/trust.md#witnesses; ADR 16.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import KeyDid
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import canonical, checkpoint, keys
from chain.statements.checkpoint import COSIGNATURE_KEY, SignatureLine, TreeCheckpoint, VerifierKey
from chain.statements.keys import SigningKey
from chain.statements.predicate import NS, Count

COSIGNATURE: Final = NS + "cosignature/v1"
MAX_COSIGNATURE: Final = 1 << 10
"""Largest encoded cosignature, in bytes; most take 0.4 KiB."""
_TIME_SIZE: Final = 8
_MAX_TIME: Final = 2**53
"""Greatest time in seconds: far beyond any clock, and safe in every language."""


class Cosignature(msgspec.Struct, frozen=True, kw_only=True):
    """A cosignature that was verified. Made by ``cosign``, ``verify`` and ``decode`` only."""

    witness: KeyDid
    checkpoint: TreeCheckpoint
    at: Instant
    line: str
    """The signature line as it would stand below the note, under the did:key."""

    def encode(self) -> bytes:
        """Returns the canonical bytes that nodes pass on."""
        return canonical.encode(
            {
                "type": COSIGNATURE,
                "origin": self.checkpoint.origin,
                "size": self.checkpoint.size,
                "rootHash": base64.b64encode(self.checkpoint.root_hash).decode(),
                "line": self.line,
            }
        )

    @property
    def id(self) -> Multihash:
        return Multihash.sha3_256(self.encode())


def message(tree: TreeCheckpoint, seconds: int) -> bytes:
    return b"cosignature/v1\ntime %d\n" % seconds + tree.encode()


def cosign(key: SigningKey, tree: TreeCheckpoint, now: Instant) -> Cosignature:
    """Signs a tree. The caller has compared it with the last one it signed, and must store it before sending this."""
    seconds = now // SECOND
    data = seconds.to_bytes(_TIME_SIZE, "big") + key.sign(message(tree, seconds))
    line = line_of(VerifierKey(str(key.did), COSIGNATURE_KEY, key.public), data)
    return Cosignature(witness=key.did, checkpoint=tree, at=Instant(seconds * SECOND), line=line)


def line_of(key: VerifierKey, data: bytes) -> str:
    return SignatureLine(key.name, key.key_id, data).encode()


def verify(tree: TreeCheckpoint, line: str, named: VerifierKey | None = None) -> Cosignature:
    """Verifies a line below a checkpoint. Raises Invalid.

    ``named``: the key of a witness whose name is not its did:key; the result then has the did:key instead, so that all
    nodes write it alike.
    """
    read = checkpoint.decode_line(line)
    key = KeyDid.parse(read.name) if named is None else KeyDid.from_public_key(named.public_key)
    own = VerifierKey(str(key), COSIGNATURE_KEY, key.public_key)
    expected = named or own
    if read.name != expected.name:
        raise Invalid(f"cosigned by {read.name[:80]!r}, not by {expected.name}", rule="cosignature-name")
    if expected.kind != COSIGNATURE_KEY or read.key_id != expected.key_id:
        raise Invalid("the line names another key, or another kind of signature", rule="cosignature-key")
    seconds = int.from_bytes(read.data[:_TIME_SIZE], "big")
    if not 0 < seconds < _MAX_TIME or not keys.verify(key.public_key, message(tree, seconds), read.data[_TIME_SIZE:]):
        raise Invalid("the cosignature does not verify", rule="cosignature-signature")
    at = Instant(seconds * SECOND)
    return Cosignature(witness=key, checkpoint=tree, at=at, line=line_of(own, read.data))


def decode(raw: bytes) -> Cosignature:
    """Decodes and verifies a cosignature from another node. Raises Invalid."""
    if len(raw) > MAX_COSIGNATURE:
        raise Invalid(f"cosignature of {len(raw)} bytes, the limit is {MAX_COSIGNATURE}", rule="cosignature-size")
    try:
        form = msgspec.convert(canonical.decode(raw), _Form)
    except msgspec.MsgspecError as error:
        raise Invalid(f"not a cosignature: {error}", rule="cosignature") from error
    if form.type != COSIGNATURE:
        raise Invalid(f"cosignature of type {form.type[:80]!r}", rule="cosignature-type", hint=COSIGNATURE)
    made = verify(checkpoint.checkpoint_of(form.origin, str(form.size), form.root_hash), form.line)
    if made.encode() != raw:
        raise Invalid("a cosignature with more in it than it says", rule="cosignature")
    return made


class _Form(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    origin: str
    size: Count
    root_hash: str
    line: str
