"""Defines the tokens of accounts for requests from other machines: their text, digest and record. Pure.

A token is ``odf_ID_SECRET_CHECK``: an id that is no secret, 256 random bits, and a checksum that detects a cut or
mistyped text before any lookup. A node stores only the digest. The secret has as many bits as the digest, so no slow
hash is needed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from typing import Final

import msgspec

from chain.instant import Instant
from odfd.access.relations import Role

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
LONGEST: Final = 128
"""Most characters that are examined."""
_TEXT: Final = re.compile(r"(odf_([0-9a-f]{16})_[a-z2-7]{52})_([0-9a-f]{8})\Z")


class TokenGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a token. ``most``: the highest role that it permits, on anything."""

    id: str
    account: str
    most: Role
    note: str
    created_at: Instant
    expires_at: Instant
    digest: bytes


def token_of(id_: bytes, secret: bytes) -> str:
    """Makes the text of a token from random bytes."""
    if (len(id_), len(secret)) != (ID_BYTES, SECRET_BYTES):
        raise ValueError("a token has 8 and 32 bytes")
    text = f"odf_{id_.hex()}_{base64.b32encode(secret).decode().rstrip('=').lower()}"
    return f"{text}_{_check(text)}"


def id_in(token: str) -> str | None:
    """Returns the id in a token; ``None`` if the text is not a token."""
    found = _TEXT.match(token) if len(token) <= LONGEST else None
    return found[2] if found is not None and found[3] == _check(found[1]) else None


def digest_of(token: str) -> bytes:
    return hashlib.sha3_256(b"odfd token\0" + token.encode("ascii")).digest()


def is_of(grant: TokenGrant | None, token: str, now: Instant) -> bool:
    """Whether a token is that of a grant, and not expired. Takes as long for a wrong secret as for an unknown id."""
    kept = bytes(SECRET_BYTES) if grant is None else grant.digest
    is_same = hmac.compare_digest(digest_of(token), kept)
    return is_same and grant is not None and now < grant.expires_at


def _check(text: str) -> str:
    return f"{zlib.crc32(text.encode('ascii')):08x}"
