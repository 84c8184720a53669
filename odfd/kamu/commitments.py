"""Checks whether a kamu node's commitment to an answer is one, before anybody runs its query again. Pure.

The hashes are of canonical JSON (sorted names, no blanks, other than ASCII escaped), the signature is of the hashes.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from chain import multibase
from chain.errors import Invalid
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements.keys import verify

PROOF: Final = "Ed25519Signature2020"
_DISPUTED: Final = "The commitment is invalid and cannot be disputed"


class Commitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    input_hash: str
    output_hash: str
    sub_queries_hash: str


class Proof(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    type: str
    verification_method: str
    """``did:key:…`` of the node that answered."""
    proof_value: str


class Verification(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of ``/verify``."""

    input: dict[str, Any]
    sub_queries: list[Any]
    commitment: Commitment
    proof: Proof


def verification_of(body: bytes) -> Verification:
    """Raises Invalid."""
    try:
        return msgspec.json.decode(body, type=Verification)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, _, place = str(error).partition(" - at ")
        raise Invalid(message, rule="request", place=place.strip("`")) from error


def fault_of(asked: Verification) -> dict[str, str] | None:
    """What is wrong with the commitment by itself, as kamu tells it. Raises Invalid for another kind of proof."""
    if asked.proof.type != PROOF:
        raise Invalid(f"there is no proof {asked.proof.type[:40]!r} here", rule="request", hint=PROOF)
    for name, said, value in (
        ("InputHash", asked.commitment.input_hash, asked.input),
        ("SubQueriesHash", asked.commitment.sub_queries_hash, asked.sub_queries),
    ):
        if said != hash_of(value):
            what = name[0].lower() + name[1:]
            return _told(name, f"{_DISPUTED}: commitment.{what} doesn't match the hash of {what[:-4]} object")
    if not _is_signed(asked):
        return _told("BadSignature", f"{_DISPUTED}: Verification equation was not satisfied")
    return None


def hash_of(value: object) -> str:
    return str(Multihash.sha3_256(canonical(value)))


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _is_signed(asked: Verification) -> bool:
    try:
        key = KeyDid.parse(asked.proof.verification_method)
        signature = multibase.decode(asked.proof.proof_value)
    except Invalid:
        return False
    return verify(key.public_key, canonical(msgspec.to_builtins(asked.commitment)), signature)


def _told(name: str, message: str) -> dict[str, str]:
    return {"kind": f"InvalidRequest::{name}", "message": message}
