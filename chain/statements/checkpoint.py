"""Encodes C2SP checkpoints and signed notes: a dataset's tree in the form that witnesses of transparency logs read.

A checkpoint is ``origin\\nsize\\nroot\\n``: the origin is ``<did:odf>/<epoch>``, or ``<did:odf>/authority``, whose
leaves are the ids of the authority's versions. A note adds a blank line and signature lines, each ``— <name> <base64>``
of four bytes that identify the key, followed by a signature in the form of that kind of key. Pure. Spec:
c2sp.org/signed-note, tlog-checkpoint; docs/spec/trust.md#bytes, #witnesses.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.statements import keys
from chain.statements.canonical import MAX_INTEGER
from chain.statements.tree import HASH_SIZE

MAX_CHECKPOINT: Final = 512
"""Largest checkpoint, in bytes; ours have about 150."""
MAX_LINE: Final = 512
"""Longest signature line, in characters."""
NOTE_KEY: Final = 0x01
"""Kind of an Ed25519 key that signs notes unchanged."""
COSIGNATURE_KEY: Final = 0x04
"""Kind of an Ed25519 key that signs notes with a time before them."""
AUTHORITY: Final = "authority"
_DASH: Final = "— "
_ID_SIZE: Final = 4
_KEY_SIZE: Final = 32
_ORIGIN: Final = re.compile(r"(did:odf:f[0-9a-f]{68})/(0|[1-9][0-9]{0,15}|authority)\Z", re.ASCII)
_SIZE: Final = re.compile(r"(0|[1-9][0-9]{0,15})\Z", re.ASCII)
_NAME: Final = re.compile(r"[!-*,-~]+\Z", re.ASCII)
"""Pattern of a name: no spaces or plus signs. Ours are DIDs; others are host names and paths."""


class TreeCheckpoint(msgspec.Struct, frozen=True):
    """Size and root of a tree, with the origin that names it."""

    dataset: DatasetId
    epoch: int | None
    """The epoch; ``None`` for the tree of the authority's versions."""
    size: int
    root_hash: bytes

    @property
    def origin(self) -> str:
        return f"{self.dataset}/{AUTHORITY if self.epoch is None else self.epoch}"

    def encode(self) -> bytes:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root_hash).decode()}\n".encode()


class SignatureLine(msgspec.Struct, frozen=True):
    """A signature line below a note; the form of ``data`` depends on the kind of key."""

    name: str
    key_id: bytes
    data: bytes

    def encode(self) -> str:
        return f"{_DASH}{self.name} {base64.b64encode(self.key_id + self.data).decode()}\n"


def decode(text: bytes) -> TreeCheckpoint:
    """Decodes the exact bytes of a checkpoint of this project. Raises Invalid."""
    if len(text) > MAX_CHECKPOINT:
        raise Invalid(f"tree note of {len(text)} bytes, the limit is {MAX_CHECKPOINT}", rule="checkpoint-size")
    lines = _text(text, "tree note").split("\n")
    if len(lines) != 4 or lines[3]:
        raise Invalid("a tree note has three lines", rule="checkpoint", hint="origin, size, tree hash")
    return checkpoint_of(lines[0], lines[1], lines[2])


def checkpoint_of(origin: str, size: str, root: str) -> TreeCheckpoint:
    """Makes a checkpoint from its three lines. Raises Invalid."""
    named = _ORIGIN.match(origin)
    if named is None:
        raise Invalid(f"origin {origin[:100]!r}", rule="checkpoint-origin", hint="did:odf:f…/EPOCH or /authority")
    if _SIZE.match(size) is None or not 0 < int(size) <= MAX_INTEGER:
        raise Invalid(f"size {size[:20]!r} of a tree note", rule="checkpoint-tree")
    root_hash = _base64(root, "tree hash of a tree note")
    if len(root_hash) != HASH_SIZE:
        raise Invalid(f"a tree hash of {len(root_hash)} bytes", rule="checkpoint-tree")
    epoch = None if named[2] == AUTHORITY else int(named[2])
    return TreeCheckpoint(DatasetId.parse(named[1]), epoch, int(size), root_hash)


def decode_line(text: str) -> SignatureLine:
    """Decodes one signature line, with its newline. Raises Invalid."""
    if len(text) > MAX_LINE:
        raise Invalid(f"signature line of {len(text)} characters", rule="note-line", hint=f"at most {MAX_LINE}")
    parts = text.removeprefix(_DASH).removesuffix("\n").split(" ")
    if not text.startswith(_DASH) or not text.endswith("\n") or len(parts) != 2 or _NAME.match(parts[0]) is None:
        raise Invalid(f"not a signature line: {text[:60]!r}", rule="note-line", hint="— NAME BASE64")
    data = _base64(parts[1], "signature line")
    if len(data) <= _ID_SIZE:
        raise Invalid("a signature line without a signature", rule="note-line")
    return SignatureLine(parts[0], data[:_ID_SIZE], data[_ID_SIZE:])


def key_id(name: str, kind: int, public_key: bytes) -> bytes:
    """Computes the four bytes that distinguish a key of this kind and name from others."""
    return hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public_key).digest()[:_ID_SIZE]


class VerifierKey(msgspec.Struct, frozen=True):
    """A key in the form in which signers of notes are configured."""

    name: str
    kind: int
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        return key_id(self.name, self.kind, self.public_key)

    def encode(self) -> str:
        return verifier_key(self.name, self.kind, self.public_key)


def decode_verifier_key(text: str) -> VerifierKey:
    """Decodes ``name+id+base64`` of an Ed25519 key of one of our two kinds. Raises Invalid."""
    parts = text.split("+", 2)
    if len(text) > MAX_LINE or len(parts) != 3 or _NAME.match(parts[0]) is None:
        raise Invalid(
            f"not a verifier key: {text[:60]!r}", rule="note-key", hint="NAME+ID+BASE64, as its owner published it"
        )
    raw = _base64(parts[2], "verifier key")
    if raw[:1] not in (bytes([NOTE_KEY]), bytes([COSIGNATURE_KEY])) or len(raw) != 1 + _KEY_SIZE:
        raise Invalid(
            f"the verifier key of {parts[0][:60]!r} is of a kind that is not known here",
            rule="note-key",
            hint="Ed25519: 0x01 of notes, 0x04 of cosignatures",
        )
    keys.check_public_key(raw[1:])
    made = VerifierKey(parts[0], raw[0], raw[1:])
    if made.encode() != text:
        raise Invalid(f"the id of the verifier key {parts[0][:60]!r} is not that of its key", rule="note-key")
    return made


def verifier_key(name: str, kind: int, public_key: bytes) -> str:
    """Formats a key as configurations of witnesses and logs do: ``name+id+base64``."""
    encoded = base64.b64encode(bytes([kind]) + public_key).decode()
    return f"{name}+{key_id(name, kind, public_key).hex()}+{encoded}"


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise Invalid(f"a {what} that is not ASCII", rule="checkpoint") from error


def _base64(text: str, what: str) -> bytes:
    """Decodes base64, only in the one spelling that encoding gives. Raises Invalid."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"the {what} is not base64", rule="checkpoint-base64") from error
    if base64.b64encode(raw).decode() != text:
        raise Invalid(f"the {what} is not the base64 of its bytes", rule="checkpoint-base64")
    return raw
