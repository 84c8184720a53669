"""Encodes messages of the engine contract: a FlatBuffers root inside the one-field protobuf message of ODF.

Every message of both services is ``message { bytes flatbuffer = 1; }``, so twenty lines of varint code replace protoc
and a protobuf runtime. The FlatBuffers inside are derived from ``engines.contract`` by the codec of the chain. Does no
I/O; everything is made at import. ODF specification: schemas/engine.proto, schemas/odf.fbs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from chain.codec import flat
from chain.multibase import varint
from engines import contract
from engines.errors import BadFrame
from engines.session import SessionRequest, SessionState

Q = TypeVar("Q", bound=msgspec.Struct)
A = TypeVar("A", bound=msgspec.Struct)

MAX_MESSAGE: Final = 64 << 20
"""Most bytes of one message. A catch-up over 100,000 blocks names as many files, about 20 MiB; no rows are in it."""
_FIELD: Final = 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT: Final = 10


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One remote procedure: its gRPC path, its request and response types; ``streams`` if it sends many responses."""

    path: str
    request: type[Q]
    response: type[A]
    streams: bool = True

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
INGEST: Final = Method("/odfd.Engine/ExecuteIngest", contract.IngestRequest, contract.IngestResponseRoot)
VALIDATE: Final = Method("/odfd.Engine/ValidateQuery", contract.ValidateRequest, contract.ValidateResponse, False)
MIGRATE: Final = Method("/odfd.Engine/MigrateQuery", contract.MigrateRequest, contract.MigrateResponseRoot)
IDENTITY: Final = Method("/odfd.Engine/Identity", contract.IdentityRequest, contract.EngineIdentity, False)
SESSION: Final = Method("/odfd.Engine/Session", SessionRequest, SessionState, False)
PROVENANCE: Final = Method("/odfd.Engine/DeriveProvenance", contract.ProvenanceRequest, contract.ProvenanceResponseRoot)


def frame(payload: bytes) -> bytes:
    """Returns the protobuf of ``{ bytes flatbuffer = 1; }``; an empty payload is the empty message, as in proto3."""
    return bytes([_FIELD << 3 | _BYTES]) + varint(len(payload)) + payload if payload else b""


def unframe(raw: bytes) -> bytes:
    """Returns the payload of field 1. The last occurrence counts; unknown fields are skipped. Raises BadFrame."""
    if len(raw) > MAX_MESSAGE:
        raise _bad(f"message of {len(raw)} bytes", "message-size")
    payload, at = b"", 0
    while at < len(raw):
        key, at = _read_varint(raw, at)
        start, stop = _VALUE.get(key & 7, _unknown)(raw, at)
        if stop > len(raw):
            raise _bad(f"field at byte {at} ends {stop - len(raw)} bytes after the message", "protobuf-length")
        if key >> 3 == _FIELD:
            if key & 7 != _BYTES:
                raise _bad("field `flatbuffer` is not bytes", "protobuf-type")
            payload = raw[start:stop]
        at = stop
    return payload


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(raw[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _bad(f"number without an end at byte {at}", "protobuf-varint")


def _skip_varint(raw: bytes, at: int) -> tuple[int, int]:
    return at, _read_varint(raw, at)[1]


def _span(raw: bytes, at: int) -> tuple[int, int]:
    size, start = _read_varint(raw, at)
    return start, start + size


def _unknown(raw: bytes, at: int) -> tuple[int, int]:
    raise _bad(f"unknown kind of field before byte {at} of {len(raw)}", "protobuf-type")


_VALUE: Final[dict[int, Callable[[bytes, int], tuple[int, int]]]] = {
    _VARINT: _skip_varint,
    _FIXED64: lambda _, at: (at, at + 8),
    _BYTES: _span,
    _FIXED32: lambda _, at: (at, at + 4),
}


def _bad(message: str, rule: str) -> BadFrame:
    return BadFrame(f"not a message of the engine contract: {message}", rule=rule, hint="is this an engine of ODF?")
