"""Reads the blocks of a copy that the store lacks, so that what a pull fetches does not grow with history."""

from __future__ import annotations

from collections.abc import Iterator

from chain.model.block import SealedBlock
from chain.store.base import ChainStore
from chain.store.layout import DirectoryChain
from odfd.transfer.folders import blocks_here
from odfd.verify.terms import ChainTerms, pages_of


def new_pages(
    source: DirectoryChain, chains: ChainStore, blocks: int
) -> Iterator[tuple[ChainTerms, list[SealedBlock]]]:
    """Yields the blocks that a store lacks, ``blocks`` at a time, with the terms before each page. Blocking."""
    head = source.head()
    if head is not None:
        yield from pages_of(source, blocks_here(source, chains), head.size, blocks)
