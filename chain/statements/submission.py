"""Parses what a log sends to a witness: ``old`` and its size, a consistency proof, an empty line, a note.

The note is a checkpoint, a blank line and signature lines. Ours has one line of kind 0x01, by the key that signed the
head of the same tree, under the origin as its name. Pure. Spec: c2sp.org/tlog-witness, signed-note;
docs/spec/trust.md#witnesses.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.statements import checkpoint, keys
from chain.statements.checkpoint import NOTE_KEY, SignatureLine, TreeCheckpoint, VerifierKey
from chain.statements.keys import SigningKey
from chain.statements.tree import HASH_SIZE

MAX_PROOF: Final = 63
"""Most nodes of a proof in a request (tlog-witness)."""
MAX_LINES: Final = 16
"""Most signature lines of a note or an answer that are looked at; a witness makes one with each kind of key."""
MAX_SUBMISSION: Final = 10 << 10
"""Largest request, in bytes: 63 nodes, a checkpoint and 8 lines."""
MAX_ANSWER: Final = 64 << 10
"""Largest answer of a witness, in bytes: lines of larger kinds of keys, which are skipped, take some kilobytes."""
_OLD: Final = re.compile(r"old (0|[1-9][0-9]{0,15})\Z", re.ASCII)
_SIZE: Final = re.compile(rb"(0|[1-9][0-9]{0,15})\n\Z")


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    old: int
    """Size of the tree that the log believes the witness cosigned last."""
    proof: tuple[bytes, ...] = ()
    tree: TreeCheckpoint
    lines: tuple[str, ...]
    """Signature lines, each with its newline; also those of other signers, in forms that are not known here."""

    def encode(self) -> bytes:
        nodes = "".join(base64.b64encode(node).decode() + "\n" for node in self.proof)
        return f"old {self.old}\n{nodes}\n".encode() + self.tree.encode() + b"\n" + "".join(self.lines).encode()


def log_key(tree: TreeCheckpoint, public_key: bytes) -> VerifierKey:
    """Returns the key of a log in the form in which witnesses are configured with it."""
    return VerifierKey(tree.origin, NOTE_KEY, public_key)


def sign_note(key: SigningKey, tree: TreeCheckpoint) -> str:
    """Signs a tree as a note. The key has already signed a head of the same tree, so this promises nothing new."""
    name = log_key(tree, key.public)
    return SignatureLine(name.name, name.key_id, key.sign(tree.encode())).encode()


def is_by(line: str, key: VerifierKey) -> bool:
    """Whether a line names this key as its signer; lines of other signers are not parsed further."""
    try:
        read = checkpoint.decode_line(line)
    except Invalid:
        return False
    return (read.name, read.key_id) == (key.name, key.key_id)


def is_signed_by(tree: TreeCheckpoint, line: str, key: VerifierKey) -> bool:
    """Whether a line is a note's signature of this tree by this key."""
    if key.kind != NOTE_KEY or not is_by(line, key):
        return False
    return keys.verify(key.public_key, tree.encode(), checkpoint.decode_line(line).data)


def decode(raw: bytes) -> Submission:
    """Decodes a request that submits a tree of this project's origins. Raises Invalid."""
    if len(raw) > MAX_SUBMISSION:
        raise Invalid(f"request of {len(raw)} bytes, the limit is {MAX_SUBMISSION}", rule="submission-size")
    head, apart, note = raw.partition(b"\n\n")
    text, blank, signatures = note.partition(b"\n\n")
    if not apart or not blank:
        raise Invalid("a request has an empty line before the note, and one in it", rule="submission")
    first, *nodes = _text(head).split("\n")
    old = _OLD.match(first)
    if old is None or len(nodes) > MAX_PROOF:
        raise Invalid(f"a request begins {first[:30]!r} and {len(nodes)} nodes", rule="submission", hint="old SIZE")
    return Submission(
        old=int(old[1]),
        proof=tuple(_node(node) for node in nodes),
        tree=checkpoint.decode(text + b"\n"),
        lines=_lines(_text(signatures)),
    )


def decode_answer(raw: bytes) -> tuple[str, ...]:
    """Returns the signature lines of a witness's answer, each with its newline, of any kind of key. Raises Invalid."""
    if len(raw) > MAX_ANSWER:
        raise Invalid(f"answer of {len(raw)} bytes, the limit is {MAX_ANSWER}", rule="submission-size")
    return _lines(_text(raw))


def decode_size(raw: bytes) -> int:
    """Decodes the size that a witness reports as its last cosignature. Raises Invalid."""
    found = _SIZE.match(raw)
    if found is None:
        raise Invalid(f"not a size: {raw[:30]!r}", rule="submission-size")
    return int(found[1])


def _lines(text: str) -> tuple[str, ...]:
    lines = tuple(line + "\n" for line in text.removesuffix("\n").split("\n"))
    if not text.endswith("\n") or len(lines) > MAX_LINES or not all(line.startswith("— ") for line in lines):
        raise Invalid(f"not 1 to {MAX_LINES} signature lines: {text[:40]!r}", rule="submission-lines")
    return lines


def _node(text: str) -> bytes:
    try:
        node = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid("a proof holds something that is not base64", rule="submission-proof") from error
    if len(node) != HASH_SIZE or base64.b64encode(node).decode() != text:
        raise Invalid(f"a proof holds a node of {len(node)} bytes", rule="submission-proof")
    return node


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Invalid("a request that is not UTF-8", rule="submission") from error
