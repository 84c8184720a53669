"""Makes commitments to answers as kamu's nodes do, and checks that one is sound before its query runs again. Pure.

The hashes are of canonical JSON (sorted names, no blanks, non-ASCII escaped); the signature is of the hashes.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from chain import multibase
from chain.errors import Invalid
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements.keys import SigningKey, verify

PROOF: Final = "Ed25519Signature2020"
FAILED: Final = "VerificationFailed"
_DISPUTED: Final = "The commitment is invalid and cannot be disputed"


class Commitment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    input_hash: str
    output_hash: str
    sub_queries_hash: str


class Proof(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    type: str
    verification_method: str
    """The ``did:key:…`` of the node that answered."""
    proof_value: str


class Verification(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of ``/verify``."""

    input: dict[str, Any]
    sub_queries: list[Any]
    commitment: Commitment
    proof: Proof


def verification_of(body: bytes) -> Verification:
    """Decodes the body of ``/verify``. Raises Invalid."""
    try:
        return msgspec.json.decode(body, type=Verification)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, _, place = str(error).partition(" - at ")
        raise Invalid(message, rule="request", place=place.strip("`")) from error


def committed(question: dict[str, Any], output: object, key: SigningKey) -> dict[str, Any]:
    """Builds the commitment to an output, with its proof."""
    hashes = {"inputHash": hash_of(question), "outputHash": hash_of(output), "subQueriesHash": hash_of([])}
    value = multibase.encode_base64url(key.sign(canonical(hashes)))
    proof = {"type": PROOF, "verificationMethod": str(key.did), "proofValue": value}
    return {"input": question, "subQueries": [], "commitment": hashes, "proof": proof}


def mismatch(asked: Verification, output: object) -> dict[str, str] | None:
    """Returns kamu's error if the query gives another output here, or ``None``."""
    expected, actual = asked.commitment.output_hash, hash_of(output)
    text = (
        "Query was reproduced but resulted in output hash different from expected. This means that the output was"
        " either falsified, or the query reproducibility was not guaranteed by the system."
    )
    hashes = {"expected_hash": expected, "actual_hash": actual}
    return None if actual == expected else {"kind": f"{FAILED}::OutputMismatch", "message": text, **hashes}


def not_here(dataset: str, block: str | None) -> dict[str, str]:
    """Returns kamu's error for absent data of a query. ``block``: the absent one of a dataset that is here."""
    if block is None:
        text = "Unable to reproduce the query as one of the input datasets cannot be found here."
        return {"kind": f"{FAILED}::DatasetNotFound", "message": text, "dataset_id": dataset}
    text = "Unable to reproduce the query as one of the input datasets does not contain a block with specified hash."
    found = {"dataset_id": dataset, "block_hash": block}
    return {"kind": f"{FAILED}::DatasetBlockNotFound", "message": text, **found}


def fault_of(asked: Verification) -> dict[str, str] | None:
    """Returns kamu's error for an inconsistent commitment, or ``None``. Raises Invalid for another kind of proof."""
    if asked.proof.type != PROOF:
        raise Invalid(f"there is no proof {asked.proof.type[:40]!r} here", rule="request", hint=PROOF)
    for name, stated, value in (
        ("InputHash", asked.commitment.input_hash, asked.input),
        ("SubQueriesHash", asked.commitment.sub_queries_hash, asked.sub_queries),
    ):
        if stated != hash_of(value):
            what = name[0].lower() + name[1:]
            return _error(name, f"{_DISPUTED}: commitment.{what} doesn't match the hash of {what[:-4]} object")
    if not _is_signed(asked):
        return _error("BadSignature", f"{_DISPUTED}: Verification equation was not satisfied")
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


def _error(name: str, message: str) -> dict[str, str]:
    return {"kind": f"InvalidRequest::{name}", "message": message}
