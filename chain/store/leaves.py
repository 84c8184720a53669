"""Keeps the leaves of a chain's Merkle tree: the digests of its blocks."""

from __future__ import annotations

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.base import ChainReader, ChainStore


def leaves(chain: ChainReader, start: int, stop: int) -> list[bytes]:
    """Of blocks ``start <= n < stop``, hashed from their bytes. Raises as ``raw_blocks``."""
    return [Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(start, stop)]


def leaves_of(chains: ChainStore, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
    """The same of the chain of a dataset."""
    return leaves(chains.chain(dataset), start, stop)
