"""Sums the bytes of the slices that each chain names, and keeps the sums in memory.

A question reads the few blocks that came since the last one. A long chain that came at once is summed beside the
questions, by the worker that ``step`` is for: blocks of one shape are added up together. What is not summed up to the
head yet is not told, so that no part of a size passes for all of it.
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
from chain.rules.pages import Group, Pages
from chain.store.base import Head
from odfd.state.directory import StateDirectory

AT_ONCE: Final = 128
"""Blocks that one question reads, however many datasets it names: about three milliseconds."""
STEP_BLOCKS: Final = 512
"""Read in one step beside the questions: three milliseconds, in which other threads wait for the interpreter."""
PAUSE_SECONDS: Final = 0.005
"""Between two steps: answers go first."""
FEW: Final = 32
_SIZE: Final = "event.new_data.size"


class _Summed(NamedTuple):
    blocks: int
    last: Multihash | None
    """The block up to which it is summed: another history has another there."""
    bytes: int


_NOTHING: Final = _Summed(0, None, 0)


class DataSizes:
    """The sizes of the datasets of one node. Called from worker threads."""

    def __init__(self, home: StateDirectory, at_once: int = AT_ONCE, step_blocks: int = STEP_BLOCKS) -> None:
        self._home, self._at_once, self._step = home, at_once, step_blocks
        self._summed: dict[DatasetId, _Summed] = {}
        self._behind: dict[DatasetId, None] = {}
        """Asked for and not summed up to the head, in the order of the questions."""
        self._lock = threading.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._behind)

    def of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, int]:
        """Returns the sizes that are known up to the head; the others are left to ``step``. Raises Environment."""
        wanted, found, left = tuple(datasets), {}, self._at_once
        heads = self._heads(wanted)
        with self._lock:
            for dataset in wanted:
                head = heads.get(dataset)
                if head is None:
                    continue
                known = self._summed.get(dataset, _NOTHING)
                if known.last != head.hash and head.size - known.blocks <= left:
                    known, read = self._further(dataset, known, head.size, left)
                    self._summed[dataset], left = known, left - read
                if known.last == head.hash:
                    found[dataset] = known.bytes
                else:
                    self._behind[dataset] = None
        return found

    def step(self) -> None:
        """Sums more of one dataset that a question found behind, until it is summed or a block cannot be read."""
        with self._lock:
            dataset = next(iter(self._behind), None)
            if dataset is None:
                return
            del self._behind[dataset]
            known = self._summed.get(dataset, _NOTHING)
        head = self._home.chains.chain(dataset).head()
        if head is None:
            return
        # Blocks are read outside of the lock, so that no question waits: one of two sums of the same blocks is dropped.
        further, read = self._further(dataset, known, head.size, self._step)
        with self._lock:
            if self._summed.get(dataset, _NOTHING) == known:
                self._summed[dataset] = further
            if further.last != head.hash and read == self._step:
                self._behind[dataset] = None

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
        chain, start = self._home.chains.chain(dataset), known.blocks
        raws: list[bytes] = []
        with suppress(Environment, Invalid, NotFound):
            if start and (start > size or chain.block_at(start - 1).hash != known.last):
                known, start = _NOTHING, 0
            for raw in chain.raw_blocks(start, min(size, start + most)):
                raws.append(raw)
        count, total = sum_sizes(raws)
        if not count:
            return known, 1
        return _Summed(start + count, Multihash.sha3_256(raws[count - 1]), known.bytes + total), count


def sum_sizes(raws: Sequence[bytes]) -> tuple[int, int]:
    """Adds up the slices of blocks up to the first that is damaged. Returns how many they are, and their bytes."""
    total = 0
    for stretch in (page := Pages().sort(None, raws)).stretches:
        if stretch.groups:
            total += sum(map(_bytes_of, stretch.groups))
            continue
        for number in range(stretch.start, stretch.stop):
            try:
                event = decode_block(raws[number]).event
            except Invalid:
                return number, total
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                total += event.new_data.size
    return len(page.raws), total


def _bytes_of(group: Group) -> int:
    """The slices of blocks of one shape; where their size is no value of its own, it is the same in all."""
    sizes = group.values.get(_SIZE)
    if sizes is not None:
        return sum(sizes.copy().view("<u8").ravel().tolist())
    event = group.shape.template.event
    assert isinstance(event, AddData | ExecuteTransform), "groups are of data events"
    return 0 if event.new_data is None else event.new_data.size * len(group.rows)
