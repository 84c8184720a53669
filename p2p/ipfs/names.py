"""Computes the IPNS name (``k51qzi5u…``) of a dataset from its ``did:odf`` key.

A CIDv1 of codec libp2p-key whose identity multihash holds the protobuf ``PublicKey{Type: Ed25519, Data: 32 bytes}``, in
base36: one key, so that whoever holds the did can find and check what its owner published. Specs: peer ids, IPNS.
"""

from __future__ import annotations

from typing import Final

from multiformats import CID, multibase, multihash

from chain.errors import Invalid
from chain.ids import DatasetId

_KEY: Final = bytes([0x08, 0x01, 0x12, 32])
"""field 1 (type) = 1 (Ed25519) · field 2 (data) of 32 bytes"""
_CODEC, _HASH, _BASE = "libp2p-key", "identity", "base36"
MAX_NAME: Final = 80
"""Characters; the name of an Ed25519 key has 62."""
MAX_CID: Final = 128
"""Characters of a CID that somebody else made; most have 59."""


def name_of(dataset: DatasetId) -> str:
    """Base36 with its multibase letter."""
    return str(_cid(dataset))


def dataset_of(name: str) -> DatasetId:
    """Raises Invalid for a name that is not of an Ed25519 key in base36."""
    text = name.removeprefix("ipns://").removeprefix("/ipns/")
    try:
        key = CID.decode(text[: MAX_NAME + 1]).raw_digest
        dataset = DatasetId.from_public_key(key[len(_KEY) :])
    except (ValueError, LookupError, Invalid) as error:
        raise _bad(name) from error
    # Of all spellings of a CID one is a name: other bases, capitals, codecs and hashes are not.
    if name_of(dataset) != text:
        raise _bad(name)
    return dataset


def check_cid(text: str) -> None:
    """Raises Invalid for a text that is no CID, of either version and in any base."""
    try:
        CID.decode(text[: MAX_CID + 1])
    except (ValueError, LookupError) as error:
        raise Invalid(f"{text[:80]!r} is no CID", rule="cid", hint="it looks like bafybei… or Qm…") from error


def check_key_name(text: str) -> None:
    """Raises Invalid for a text that names no key: neither a CID of one, nor a peer id as it was written before."""
    raw = f"z{text}" if text.startswith(("12D3", "Qm")) else None
    try:
        if raw is not None:
            multihash.unwrap(multibase.decode(raw[: MAX_CID + 1]))
        elif CID.decode(text[: MAX_CID + 1]).codec.name != _CODEC:
            raise ValueError(text)
    except (ValueError, LookupError) as error:
        raise Invalid(f"{text[:80]!r} names no key", rule="ipns-name", hint="it looks like k51qzi5u…") from error


def _cid(dataset: DatasetId) -> CID:
    return CID(_BASE, 1, _CODEC, (_HASH, _KEY + dataset.public_key))


def _bad(name: str) -> Invalid:
    return Invalid(
        f"{name[:80]!r} is not the IPNS name of a dataset",
        rule="ipns-name",
        hint="it looks like k51qzi5u… and is made of the dataset's key",
    )
