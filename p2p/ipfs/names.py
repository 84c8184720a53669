"""Computes the IPNS name (``k51qzi5u…``) of a dataset from its ``did:odf`` key.

A CIDv1 of codec libp2p-key whose identity multihash holds the protobuf ``PublicKey{Type: Ed25519, Data: 32 bytes}``, in
base36: one key, so that whoever holds the did can find and check what its owner published. Specs: peer ids, IPNS.
"""

from __future__ import annotations

from typing import Final

from chain.errors import Invalid
from chain.ids import DatasetId

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_KEY: Final = bytes([0x00, 36, 0x08, 0x01, 0x12, 32])
"""identity multihash of 36 bytes · field 1 (type) = 1 (Ed25519) · field 2 (data) of 32 bytes"""
_CID: Final = bytes([0x01, 0x72]) + _KEY
"""CID version 1 · codec libp2p-key"""
MAX_NAME: Final = 80
"""Characters; the name of an Ed25519 key has 62."""


def name_of(dataset: DatasetId) -> str:
    """Base36 with its multibase letter."""
    number = int.from_bytes(_CID + dataset.public_key, "big")
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "k" + "".join(reversed(digits))


def dataset_of(name: str) -> DatasetId:
    """Raises Invalid for a name that is not of an Ed25519 key in base36."""
    text = name.removeprefix("ipns://").removeprefix("/ipns/")
    if not text.startswith("k") or len(text) > MAX_NAME or set(text) - set(_DIGITS):
        raise _bad(name)
    number = int(text[1:] or "0", 36)
    if number >> 8 * (len(_CID) + 32):
        raise _bad(name)
    raw = number.to_bytes(len(_CID) + 32, "big")
    if not raw.startswith(_CID):
        raise _bad(name)
    dataset = DatasetId.from_public_key(raw[len(_CID) :])
    if name_of(dataset) != text:
        raise _bad(name)
    return dataset


def routing_key(dataset: DatasetId) -> bytes:
    """What records of the name are stored under."""
    return b"/ipns/" + _KEY + dataset.public_key


def _bad(name: str) -> Invalid:
    return Invalid(
        f"{name[:80]!r} is not the IPNS name of a dataset",
        rule="ipns-name",
        hint="it looks like k51qzi5u… and is made of the dataset's key",
    )
