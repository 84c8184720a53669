"""Encodes statements about answers: the query, the blocks it read, the hash of the answer (docs/spec/trust.md#queries).

Signed by the node that answered. Unlike other statements they are about several datasets, contradict nothing, and are
not gossiped: they travel in files.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import canonical, envelope
from chain.statements.keys import SigningKey
from chain.statements.predicate import NS, Count, When
from chain.statements.statement import STATEMENT_TYPE

QUERY: Final = NS + "query/v1"
MAX_ENVELOPE: Final = 4 << 20
"""Largest envelope, in bytes; most of it is the query."""
DIALECT: Final = "duckdb"
_Short = Annotated[str, msgspec.Meta(max_length=4000)]


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A JSON object inside the statement."""


class AnswerPin(_Object, frozen=True, kw_only=True):
    name: _Short
    """Name by which the query refers to the dataset."""
    id: _Short
    block: _Short
    sequence_number: Count
    at: _Short = ""
    """Time at which the query says that the dataset is read; empty if it says none."""
    standing: _Short = ""
    """The dataset's standing: how far it could be relied on when it was read."""


class AnswerColumn(_Object, frozen=True, kw_only=True):
    name: _Short
    type: _Short
    """The type's name in Arrow."""


class AnswerStatement(_Object, frozen=True, kw_only=True):
    """A node's statement about an answer. The rows are those of the query, ordered by all columns."""

    query: Annotated[str, msgspec.Meta(max_length=1 << 20)]
    dialect: _Short
    engine: _Short
    """Name and version of the engine."""
    pins: Annotated[tuple[AnswerPin, ...], msgspec.Meta(max_length=256)]
    columns: Annotated[tuple[AnswerColumn, ...], msgspec.Meta(max_length=10_000)]
    rows: Count
    logical_hash: _Short
    standing: _Short
    """The weakest standing of the datasets read, at that time."""
    time: When


def seal(predicate: AnswerStatement, key: SigningKey) -> bytes:
    """Returns a signed envelope. Its subjects are the blocks at which the datasets were cut."""
    subjects = [
        {"digest": {"sha3_256": Multihash.parse(pin.block).digest.hex()}, "name": pin.id}
        for pin in {(pin.id, pin.block): pin for pin in predicate.pins}.values()
    ]
    body = {
        "_type": STATEMENT_TYPE,
        "predicate": msgspec.json.decode(msgspec.json.encode(predicate)),
        "predicateType": QUERY,
        "subject": subjects,
    }
    return envelope.seal(canonical.encode(body), key)


def unseal(data: bytes) -> tuple[AnswerStatement, tuple[KeyDid, ...]]:
    """Verifies an envelope, and returns the predicate and its signers. Raises Invalid."""
    signed = envelope.unseal(data, MAX_ENVELOPE)
    value = canonical.decode(signed.payload)
    if not isinstance(value, dict) or value.get("_type") != STATEMENT_TYPE or value.get("predicateType") != QUERY:
        raise Invalid("not a statement about an answer", rule="statement-type", hint=QUERY)
    try:
        predicate = msgspec.convert(value.get("predicate"), AnswerStatement)
    except msgspec.ValidationError as error:
        raise Invalid(f"not a statement about an answer: {error}", rule="statement") from error
    instant.parse(predicate.time)
    for pin in predicate.pins:
        DatasetId.parse(pin.id)
        Multihash.parse(pin.block)
    Multihash.parse(predicate.logical_hash)
    return predicate, signed.signers
