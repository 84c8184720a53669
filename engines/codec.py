"""Encodes messages of the engine contract: a FlatBuffers root inside the one-field protobuf message of ODF.

Every message of both services is ``message { bytes flatbuffer = 1; }``, which the codec of the chain reads
without protoc. The FlatBuffers inside are derived from ``engines.contract`` by the codec of the chain. Does no
I/O; everything is made at import. ODF specification: schemas/engine.proto, schemas/odf.fbs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from chain.codec import flat, protobuf
from chain.errors import Invalid
from engines import contract
from engines.contract import SessionRequest, SessionState
from engines.errors import BadFrame

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

MAX_MESSAGE: Final = 64 << 20
"""Most bytes of one message. A catch-up over 100,000 blocks names as many files, about 20 MiB; no rows are in it."""
_FIELD: Final = 1
_RULE: Final = "engine-message"


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One remote procedure: its gRPC path, its request and response types."""

    path: str
    request: type[Q]
    response: type[A]

    def encode_request(self, value: Q) -> bytes:
        return frame(flat.encode(value))

    def decode_request(self, raw: bytes) -> Q:
        """Decodes a request. Raises Invalid."""
        return flat.decode(self.request, unframe(raw))

    def encode_response(self, value: A) -> bytes:
        return frame(flat.encode(value))

    def decode_response(self, raw: bytes) -> A:
        """Decodes a response. Raises Invalid."""
        return flat.decode(self.response, unframe(raw))


TRANSFORM: Final = Method("/engine.Engine/ExecuteTransform", contract.TransformRequest, contract.TransformResponseRoot)
RAW_QUERY: Final = Method("/engine.Engine/ExecuteRawQuery", contract.RawQueryRequest, contract.RawQueryResponseRoot)
INGEST: Final = Method("/odfd.Engine/ExecuteIngest", contract.IngestBatchRequest, contract.IngestResponseRoot)
VALIDATE: Final = Method("/odfd.Engine/ValidateQuery", contract.ValidateRequest, contract.ValidateResponse)
MIGRATE: Final = Method("/odfd.Engine/MigrateQuery", contract.MigrateRequest, contract.MigrateResponseRoot)
IDENTITY: Final = Method("/odfd.Engine/Identity", contract.IdentityRequest, contract.EngineIdentity)
SESSION: Final = Method("/odfd.Engine/Session", SessionRequest, SessionState)
PROVENANCE: Final = Method("/odfd.Engine/DeriveProvenance", contract.ProvenanceRequest, contract.ProvenanceResponseRoot)


def frame(payload: bytes) -> bytes:
    """Returns the protobuf of ``{ bytes flatbuffer = 1; }``; an empty payload is the empty message, as in proto3."""
    return protobuf.field(_FIELD, payload) if payload else b""


def unframe(raw: bytes) -> bytes:
    """Returns the payload of field 1. The last occurrence counts; unknown fields are skipped. Raises BadFrame."""
    if len(raw) > MAX_MESSAGE:
        raise _bad(f"message of {len(raw)} bytes")
    try:
        return protobuf.bytes_of(dict(protobuf.read_fields(raw, _RULE)).get(_FIELD, b""), _RULE)
    except Invalid as error:
        raise _bad(error.message) from error


def _bad(message: str) -> BadFrame:
    return BadFrame(
        f"not a message of the engine contract: {message}", rule=_RULE, hint="check that this is an ODF engine"
    )
