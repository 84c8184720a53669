"""Sums the bytes of the slices that each chain names, a bounded number of blocks at a time.

Kept in memory, and brought up to date by each question: blocks that came since are read, others are not. What is not
summed up to the head yet is not told, so that no part of a size passes for all of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from chain.codec.blocks import decode_block
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.store.base import Head
from odfd.state.directory import StateDirectory

STEP_BLOCKS: Final = 500
"""Read for one question, however many datasets it names: some tens of milliseconds."""
FEW: Final = 32


class _Summed(NamedTuple):
    blocks: int
    last: Multihash | None
    """The block up to which it is summed: another history has another there."""
    bytes: int


_NOTHING: Final = _Summed(0, None, 0)


class DataSizes:
    """The sizes of the datasets of one node. Called from worker threads."""

    def __init__(self, home: StateDirectory, step_blocks: int = STEP_BLOCKS) -> None:
        self._home, self._step = home, step_blocks
        self._summed: dict[DatasetId, _Summed] = {}
        self._lock = threading.Lock()

    def of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, int]:
        """Returns the sizes that are known up to the head. Raises Environment."""
        wanted, found, left = tuple(datasets), {}, self._step
        heads = self._heads(wanted)
        with self._lock:
            for dataset in wanted:
                head = heads.get(dataset)
                if head is None:
                    continue
                known = self._summed.get(dataset, _NOTHING)
                if known.last != head.hash and left > 0:
                    known, read = self._further(dataset, known, head.size, left)
                    self._summed[dataset], left = known, left - read
                if known.last == head.hash:
                    found[dataset] = known.bytes
        return found

    def _heads(self, wanted: Sequence[DatasetId]) -> Mapping[DatasetId, Head | None]:
        """Of few datasets one by one, of many by one question for all; then what is gone is forgotten."""
        chains = self._home.chains
        if len(wanted) < FEW:
            return {each: chains.chain(each).head() for each in wanted}
        heads = chains.heads()
        with self._lock:
            for gone in self._summed.keys() - heads.keys():
                del self._summed[gone]
        return heads

    def _further(self, dataset: DatasetId, known: _Summed, size: int, most: int) -> tuple[_Summed, int]:
        """Sums ``most`` blocks more, or those before one that cannot be read; says how many it read."""
        chain, block = self._home.chains.chain(dataset), None
        start, total = known.blocks, known.bytes
        with suppress(Environment, Invalid, NotFound):
            if start and (start > size or chain.block_at(start - 1).hash != known.last):
                known, start, total = _NOTHING, 0, 0
            for block in map(decode_block, chain.raw_blocks(start, min(size, start + most))):
                if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
                    total += block.event.new_data.size
        if block is None:
            return known, 1
        return _Summed(block.sequence_number + 1, block.hash, total), block.sequence_number + 1 - start
