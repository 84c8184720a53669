"""Repairs a stored chain: finds replacements for damaged blocks by their hashes, which intact blocks state.

A block's hash is stated in the one after it, and the last one's in the head; so below an intact block every hash is
known, and bytes of any origin (the damaged row itself, a misplaced row, a peer) either have it or are worthless. A
``BlockRepair`` is made for one chain at one moment; only ``SqliteChains.mend`` writes. Synchronous.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chain.codec.blocks import decode_block, read_link
from chain.errors import Invalid
from chain.model.block import Block
from chain.multihash import Multihash
from chain.statements.tree import Frontier
from chain.store.sqlite import SqliteChain


class BlockRepair:
    """Finds bytes for the damaged blocks of one chain, by the hashes that its intact blocks state.

    Memory: a hash for each block, and the bytes of the damaged ones.
    """

    def __init__(self, chain: SqliteChain, size: int, damaged: Iterable[int]) -> None:
        """Reads a chain of ``size`` blocks; those ``damaged``, and those not in their place, count as lacking."""
        self._chain = chain
        self._size = size
        doubted = {number for number in damaged if 0 <= number < size}
        self._names: dict[int, Multihash] = {}
        self._known: dict[Multihash, bytes] = {}
        for stored in chain.stored_blocks(0, size):
            if stored.sequence_number in doubted:
                self.offer([stored.raw or b""])
            else:
                self._names[stored.sequence_number] = stored.name
        self.offer(chain.strays(size))
        self.lacking = tuple(number for number in range(size) if number not in self._names)
        """Numbers of the blocks to find."""

    def offer(self, raws: Iterable[bytes]) -> None:
        """Adds bytes that may be wanted blocks; other bytes do no harm."""
        for raw in raws:
            self._known[Multihash.sha3_256(raw)] = raw

    def stretches(self) -> Iterator[range]:
        """Yields ``lacking`` in runs of consecutive numbers, the last run first."""
        stop = following = None
        for number in reversed(self.lacking):
            if following is None or number != following - 1:
                if stop is not None and following is not None:
                    yield range(following, stop)
                stop = number + 1
            following = number
        if stop is not None and following is not None:
            yield range(following, stop)

    def fill(self, head: Multihash) -> list[Block] | None:
        """Returns the missing blocks below the head ``head``; ``None`` when one cannot be found."""
        found: list[Block] = []
        for stretch in self.stretches():
            wanted = self._name_before(stretch.stop, head)
            for number in reversed(stretch):
                block = self._take(wanted, number)
                if block is None:
                    return None
                found.append(block)
                wanted = block.prev_block_hash
            if wanted != self._names.get(stretch.start - 1):
                return None
        found.reverse()
        return found

    def tree(self, filled: Iterable[Block]) -> Frontier:
        names = self._names | {block.sequence_number: block.hash for block in filled}
        return Frontier().extend(names[number].digest for number in range(self._size))

    def last(self) -> Multihash | None:
        """Returns the hash of the last block; ``None`` if that block is lacking."""
        return self._names.get(self._size - 1)

    def candidates(self) -> list[Multihash]:
        """Returns hashes that the last block may have: those of blocks with its number that were stored or offered."""
        known = [name for name, raw in self._known.items() if _number(raw) == self._size - 1]
        return known if (last := self.last()) is None else [last]

    def _name_before(self, stop: int, head: Multihash) -> Multihash | None:
        if stop == self._size:
            return head
        (raw,) = self._chain.raw_blocks(stop, stop + 1)
        return read_link(raw).prev_block_hash

    def _take(self, name: Multihash | None, number: int) -> Block | None:
        raw = None if name is None else self._known.get(name)
        if raw is None or _number(raw) != number:
            return None
        return decode_block(raw)


def _number(raw: bytes) -> int | None:
    try:
        return read_link(raw).sequence_number
    except Invalid:
        return None
