"""Converts one Ed25519 key between its forms: seed, ``did:key:z6Mk…`` for signatures, ``12D3KooW…`` for peers.

libp2p peer ids: the identity multihash of the protobuf ``PublicKey{Type: Ed25519, Data: 32 bytes}``, in base58btc.
"""

from __future__ import annotations

from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from chain import multibase
from chain.errors import Invalid
from chain.ids import KeyDid
from p2p.ports import PeerId

SEED_SIZE: Final = 32
_PREFIX: Final = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
"""The bytes before the key in a peer id:
identity multihash of 36 bytes · field 1 (type) = 1 (Ed25519) · field 2 (data) of 32 bytes"""


def did_of_seed(seed: bytes) -> KeyDid:
    """Returns the public identity of a 32-byte seed. Raises Invalid for a seed of another size."""
    if len(seed) != SEED_SIZE:
        raise Invalid(f"a key seed of {len(seed)} bytes", rule="key-seed", hint=f"an Ed25519 seed has {SEED_SIZE}")
    return KeyDid.from_public_key(Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw())


def peer_of_did(did: KeyDid) -> PeerId:
    return PeerId(multibase.encode_base58(_PREFIX + did.public_key).removeprefix("z"))


def peer_of_seed(seed: bytes) -> PeerId:
    return peer_of_did(did_of_seed(seed))


def did_of_peer(peer: str) -> KeyDid:
    """Returns the ``did:key`` of a peer. Raises Invalid for text that is not the peer id of an Ed25519 key."""
    raw = multibase.decode("z" + peer)
    if len(raw) != len(_PREFIX) + 32 or not raw.startswith(_PREFIX):
        raise Invalid(
            f"not the peer id of an Ed25519 key: {peer[:60]!r}", rule="peer-id", hint="it looks like 12D3KooW…"
        )
    return KeyDid.from_public_key(raw[len(_PREFIX) :])


def parse_peer(text: str) -> PeerId:
    """Parses a peer id into its canonical form. Raises Invalid for text that is not the peer id of an Ed25519 key."""
    return peer_of_did(did_of_peer(text))
