"""Sums the sizes of the slices that each chain names, and caches the sums in memory.

A request sums the few blocks that were appended since the last one. A chain that is far behind is summed in the
background by a worker that calls ``step``, many blocks of one shape at a time. A size is returned only if it is summed
up to the head, so that a partial sum never passes for the whole.
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
from odfd.store.directory import StateDirectory

AT_ONCE: Final = 128
"""Blocks that one request sums, for all its datasets together: about three milliseconds."""
STEP_BLOCKS: Final = 512
"""Blocks that one step sums: about three milliseconds, in which other threads wait for the interpreter."""
CHAIN_BLOCKS: Final = 16
"""Blocks whose sum costs as much as a look at their chain: a step sums 32 short chains, or a part of a long one."""
SINGLY: Final = 8
"""Fewer blocks are decoded one by one: short chains do not wait until NumPy is loaded."""
PAUSE_SECONDS: Final = 0.005
"""Between two steps, so that requests go first."""
FEW: Final = 32
_SIZE: Final = "event.new_data.size"


class _Summed(NamedTuple):
    blocks: int
    last: Multihash | None
    """The last block of the sum; after a history rewrite the chain has another block at its position."""
    bytes: int


_NOTHING: Final = _Summed(0, None, 0)


class DataSizes:
    """The sizes of the datasets of one node. Called from worker threads."""

    def __init__(self, home: StateDirectory, at_once: int = AT_ONCE, step_blocks: int = STEP_BLOCKS) -> None:
        self._home, self._at_once, self._step = home, at_once, step_blocks
        self._summed: dict[DatasetId, _Summed] = {}
        self._behind: dict[DatasetId, None] = {}
        """Datasets that were requested and are not summed up to their head, in the order of the requests."""
        self._lock = threading.Lock()

    @property
    def is_behind(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._behind)

    def of(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, int]:
        """Returns the sizes that are summed up to the head; leaves the others to ``step``. Raises Environment."""
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
        """Sums more blocks of datasets that a request found behind; gives up at a block that cannot be read."""
        left = self._step
        while left > 0 and (read := self._sum_next(left)) is not None:
            left -= max(read, CHAIN_BLOCKS)

    def _sum_next(self, most: int) -> int | None:
        """Sums up to ``most`` blocks of one dataset. Returns the number read; ``None`` if no dataset is behind."""
        with self._lock:
            dataset = next(iter(self._behind), None)
            if dataset is None:
                return None
            del self._behind[dataset]
            known = self._summed.get(dataset, _NOTHING)
        head = self._home.chains.chain(dataset).head()
        if head is None:
            return 0
        # Blocks are read outside of the lock, so that no question waits: one of two sums of the same blocks is dropped.
        further, read = self._further(dataset, known, head.size, most)
        with self._lock:
            if self._summed.get(dataset, _NOTHING) == known:
                self._summed[dataset] = further
            if further.last != head.hash and read == most:
                self._behind[dataset] = None
        return read

    def _heads(self, wanted: Sequence[DatasetId]) -> Mapping[DatasetId, Head | None]:
        """Returns the heads of ``wanted``: a query each for few, one in all for many, which also drops deleted ones."""
        chains = self._home.chains
        if len(wanted) < FEW:
            return {each: chains.chain(each).head() for each in wanted}
        heads = chains.heads()
        with self._lock:
            for gone in self._summed.keys() - heads.keys():
                del self._summed[gone]
        return heads

    def _further(self, dataset: DatasetId, known: _Summed, size: int, most: int) -> tuple[_Summed, int]:
        """Sums up to ``most`` more blocks, or those before an unreadable one; returns how many these were, too."""
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
    """Sums slice sizes of blocks up to the first damaged one. Returns the number of these blocks, and the bytes."""
    if len(raws) < SINGLY:
        return _sum_singly(raws)
    total = 0
    for stretch in (page := Pages().sort(None, raws)).stretches:
        if stretch.groups:
            total += sum(map(_bytes_of, stretch.groups))
            continue
        count, size = _sum_singly(raws[stretch.start : stretch.stop])
        total += size
        if count < stretch.stop - stretch.start:
            return stretch.start + count, total
    return len(page.raws), total


def _sum_singly(raws: Sequence[bytes]) -> tuple[int, int]:
    total = 0
    for number, raw in enumerate(raws):
        try:
            event = decode_block(raw).event
        except Invalid:
            return number, total
        if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
            total += event.new_data.size
    return len(raws), total


def _bytes_of(group: Group) -> int:
    """Sums slice sizes of blocks of one shape; if the shape has no such value, the size is equal in all of them."""
    sizes = group.values.get(_SIZE)
    if sizes is not None:
        return sum(sizes.copy().view("<u8").ravel().tolist())
    event = group.shape.template.event
    assert isinstance(event, AddData | ExecuteTransform), "groups are of data events"
    return 0 if event.new_data is None else event.new_data.size * len(group.rows)
