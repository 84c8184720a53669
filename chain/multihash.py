"""Defines multihash values: self-describing digests that name blocks, objects and rows.

Text form is multibase base16, lower case (``f1620…``); the other bases of multibase are read too.
Codes used by the format: sha3-256 for bytes, arrow0-sha3-256 for rows (a private-use multicodec), sha2-256 read only.
"""

from __future__ import annotations

import hashlib
from io import BufferedReader
from typing import Final

from typing_extensions import Buffer

from chain import multibase
from chain.errors import Invalid

SHA2_256: Final = 0x12
SHA3_256: Final = 0x16
ARROW0_SHA3_256: Final = 0x300016

_NAMES: Final = {SHA2_256: "sha2-256", SHA3_256: "sha3-256", ARROW0_SHA3_256: "arrow0-sha3-256"}
_DIGEST_SIZE: Final = 32
_PREFIXES: Final = {code: multibase.varint(code) + bytes([_DIGEST_SIZE]) for code in _NAMES}


class Multihash(bytes):
    """The bytes ``varint(code) varint(length) digest``; equality and order are those of the bytes."""

    __slots__ = ()

    @classmethod
    def from_digest(cls, code: int, digest: bytes) -> Multihash:
        return cls(_PREFIXES[code] + digest)

    @classmethod
    def sha3_256(cls, data: Buffer) -> Multihash:
        return cls(_PREFIXES[SHA3_256] + hashlib.sha3_256(data).digest())

    @classmethod
    def sha3_256_of(cls, file: BufferedReader) -> Multihash:
        """Hashes the rest of an open file with sha3-256, in bounded memory. Raises OSError."""
        return cls(_PREFIXES[SHA3_256] + hashlib.file_digest(file, "sha3_256").digest())

    @classmethod
    def from_bytes(cls, raw: bytes) -> Multihash:
        """Raises Invalid unless ``raw`` is one of the known codes with a digest of its size."""
        for prefix in _PREFIXES.values():
            if raw.startswith(prefix) and len(raw) == len(prefix) + _DIGEST_SIZE:
                return cls(raw)
        raise Invalid(
            f"not a known multihash: {raw[:40].hex() or 'empty'}",
            rule="multihash",
            hint="expected a sha3-256, sha2-256 or arrow0-sha3-256 digest of 32 bytes",
        )

    @classmethod
    def parse(cls, text: str) -> Multihash:
        """Parses text in any supported multibase. Raises Invalid."""
        return cls.from_bytes(multibase.decode(text))

    @property
    def digest(self) -> bytes:
        return bytes(self[-_DIGEST_SIZE:])

    @property
    def code(self) -> int:
        return next(code for code, prefix in _PREFIXES.items() if self.startswith(prefix))

    @property
    def algorithm(self) -> str:
        return _NAMES[self.code]

    def __str__(self) -> str:
        return "f" + self.hex()

    def __repr__(self) -> str:
        return f"Multihash({self})"

    @property
    def short(self) -> str:
        """The short form for people: ``f1620 9c41…b2``."""
        text = str(self)
        cut = len(text) - 2 * _DIGEST_SIZE
        return f"{text[:cut]} {text[cut : cut + 4]}…{text[-2:]}"
