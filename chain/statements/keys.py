"""Signs with Ed25519 keys, and verifies signatures strictly.

RFC 8032 leaves corners in which libraries differ, and a signature that some accept and others refuse splits a network.
So this module refuses, before it asks the library: S not below the group order (malleable), public keys that are not
the one encoding of their point, and the eight points of small order, under which signatures can be made without any
secret.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid

FIELD: Final = 2**255 - 19
ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_SIGN_BIT: Final = 1 << 255
_SMALL_ORDER_Y: Final = frozenset(
    {
        0,
        1,
        FIELD - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    }
)
"""The y coordinates of the eight points of small order (RFC 7748 and 8032 curves; x follows up to sign)."""


class SigningKey:
    """A private key in memory. Made from 32 secret bytes; never printed."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    @property
    def did(self) -> KeyDid:
        return KeyDid.from_public_key(self.public)

    @property
    def dataset_id(self) -> DatasetId:
        return DatasetId.from_public_key(self.public)

    def __repr__(self) -> str:
        return f"SigningKey({self.did})"


def check_public_key(key: bytes) -> None:
    """Raises Invalid for a key that is not a canonical point, or of small order."""
    number = int.from_bytes(key, "little") & ~_SIGN_BIT
    if len(key) != 32 or number >= FIELD:
        raise Invalid("public key is not a canonical point", rule="strict-key")
    if number in _SMALL_ORDER_Y:
        raise Invalid("public key of small order: anyone could sign for it", rule="strict-key")


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether ``signature`` is a strict Ed25519 signature of ``message`` under the 32-byte ``key``."""
    if len(signature) != 64 or int.from_bytes(signature[32:], "little") >= ORDER:
        return False
    try:
        check_public_key(key)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (Invalid, InvalidSignature):
        return False
    return True
