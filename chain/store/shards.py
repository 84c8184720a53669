"""Decides the outcome of a transaction proposed for a shard under concurrency: compare-and-append.

A shard is a chain and its ``upper``, a time in whole milliseconds: no transaction of an earlier time will ever follow.
Many writers may propose the transaction of one time. The first is accepted; the others are compared with it, so that a
writer whose answer was lost can safely ask again, and two that differ learn it before anything false is signed.
``decide`` is pure; ``CommitPoint`` repeats read, decide, compare-and-set over any store of shards (``ShardStore``).
Spec: docs/spec/collections.md#compare-and-append.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import to_millis
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.store.append import following
from chain.store.base import Head

SEALED: Final = 2**53 - 1
"""The upper of a shard that is complete for ever; also the largest integer of a signed statement."""
ATTEMPTS: Final = 32
"""Most restarts of a commit after a concurrent write; each time another writer made progress."""


class Shard(msgspec.Struct, frozen=True):
    """A chain's head and frontier, which change together."""

    head: Head | None = None
    upper: int = 0


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction for one shard: blocks of one time, or no blocks, which only moves the upper."""

    dataset: DatasetId
    blocks: Sequence[Block] = ()
    new_upper: int

    @property
    def start(self) -> int:
        """The time of the blocks, or without blocks the new upper."""
        return to_millis(self.blocks[0].system_time) if self.blocks else self.new_upper


class _OnShard(msgspec.Struct, frozen=True):
    shard: Shard
    """The shard as it was found, or as it is after the commit."""


class Committed(_OnShard, frozen=True, tag=True):
    """The transaction was stored by this call."""


class Same(_OnShard, frozen=True, tag=True):
    """The same bytes are stored already; or the upper is already that far."""


class Equivalent(_OnShard, frozen=True, tag=True):
    """The same rows are stored in slices of other bytes, as another library writes them. The stored ones stay."""


class Conflicting(_OnShard, frozen=True, tag=True):
    """The time is complete with other content, or with none: two writers disagree, and a person has to decide."""

    time: int
    stored: tuple[Multihash, ...]
    proposed: tuple[Multihash, ...]


class Stale(_OnShard, frozen=True, tag=True):
    """The head has changed: plan again from ``shard``."""


class ShardSealed(_OnShard, frozen=True, tag=True):
    """The shard is sealed against further transactions."""


Outcome: TypeAlias = Committed | Same | Equivalent | Conflicting | Stale | ShardSealed
STANDS: Final = (Committed, Same, Equivalent)
"""Outcomes after which the transaction is stored."""


class View:
    """A shard as it was at one moment, with access to its blocks."""

    def __init__(self, shard: Shard, block_at: Callable[[int], Block]) -> None:
        self.shard = shard
        self._block_at = block_at

    def transaction(self, time: int) -> list[Block]:
        """Returns all blocks of a time. A logarithmic number of reads, and one for each block."""
        found: list[Block] = []
        number = self._first(time)
        while number < self._size and to_millis((block := self._block_at(number)).system_time) == time:
            found.append(block)
            number += 1
        return found

    def size_at(self, time: int) -> int:
        """Returns the number of blocks whose time is not after ``time``."""
        return self._first(time + 1)

    @property
    def _size(self) -> int:
        return self.shard.head.size if self.shard.head else 0

    def _first(self, time: int) -> int:
        return bisect_left(range(self._size), time, key=lambda number: to_millis(self._block_at(number).system_time))


def decide(proposal: Proposal, view: View) -> Outcome:
    """Decides about a proposal that passed ``check_proposal``."""
    shard = view.shard
    if not proposal.blocks and proposal.new_upper <= shard.upper:
        return Same(shard)
    if proposal.blocks and proposal.start < shard.upper:
        return _compared(proposal, view)
    if shard.upper == SEALED:
        return ShardSealed(shard)
    if not proposal.blocks:
        return Committed(Shard(shard.head, proposal.new_upper))
    first, last = proposal.blocks[0], proposal.blocks[-1]
    if (first.sequence_number, first.prev_block_hash) != _next(shard.head):
        return Stale(shard)
    return Committed(Shard(Head(last.hash, last.sequence_number), proposal.new_upper))


def decide_all(proposals: Sequence[Proposal], views: Mapping[DatasetId, View]) -> list[Outcome]:
    """Decides about proposals for different shards, all or none."""
    outcomes = [decide(each, views[each.dataset]) for each in proposals]
    if all(isinstance(each, STANDS) for each in outcomes):
        return outcomes
    return [
        Stale(views[each.dataset].shard) if isinstance(outcome, Committed) else outcome
        for each, outcome in zip(proposals, outcomes, strict=True)
    ]


def check_proposal(proposal: Proposal) -> None:
    """Raises Invalid for a proposal that no shard could accept: several times, not linked, or an upper not after it."""
    place = proposal.dataset.short
    if not 0 <= proposal.new_upper <= SEALED:
        raise Invalid(f"upper {proposal.new_upper} is no time", rule="append-upper", place=place)
    if not proposal.blocks:
        return
    times = {to_millis(block.system_time) for block in proposal.blocks}
    if len(times) != 1:
        raise Invalid("the blocks of a transaction have one time", rule="append-time", place=place)
    if proposal.new_upper <= proposal.start:
        raise Invalid(
            f"upper {proposal.new_upper} does not end the transaction of {proposal.start}",
            rule="append-upper",
            hint="it is the time of the transaction + 1, or later",
            place=place,
        )
    first = proposal.blocks[0]
    head = None if first.prev_block_hash is None else Head(first.prev_block_hash, first.sequence_number - 1)
    for _ in following(head, proposal.blocks, place):
        pass


class Reading(NamedTuple):
    """Shards at one moment, with a token that shows whether they changed since."""

    views: Mapping[DatasetId, View]
    token: object


class ShardStore(Protocol):
    """The interface of a store of shards with a true compare-and-set."""

    def read(self, datasets: Sequence[DatasetId]) -> Reading: ...

    def write(self, reading: Reading, changes: Sequence[tuple[Proposal, Shard]]) -> bool:
        """Commits atomically; returns ``False`` if a shard has changed. Raises Invalid for a missing object."""


class CommitPoint:
    """Accepts or refuses transactions of some shards, as their only place of commit."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store

    def shard(self, dataset: DatasetId) -> Shard:
        return self._store.read([dataset]).views[dataset].shard

    def append(self, proposals: Sequence[Proposal]) -> list[Outcome]:
        """Returns the outcome of each: all of them are stored, if none is refused.

        Raises Invalid for a proposal that no shard could accept, Conflict after ATTEMPTS concurrent writes.
        """
        for each in proposals:
            check_proposal(each)
        named = [each.dataset for each in proposals]
        if len(set(named)) != len(named):
            raise Invalid("one commit appends twice to a shard", rule="append-distinct")
        for _ in range(ATTEMPTS):
            reading = self._store.read(named)
            outcomes = decide_all(proposals, reading.views)
            changes = [
                (each, outcome.shard)
                for each, outcome in zip(proposals, outcomes, strict=True)
                if isinstance(outcome, Committed)
            ]
            if not changes or self._store.write(reading, changes):
                return outcomes
        raise Conflict("others write to these shards without end", rule="compare-and-append", hint="try again")


def _next(head: Head | None) -> tuple[int, Multihash | None]:
    return (0, None) if head is None else (head.size, head.hash)


def _compared(proposal: Proposal, view: View) -> Outcome:
    """Compares a proposal with the stored transaction of its time, which is complete."""
    stored, proposed = view.transaction(proposal.start), proposal.blocks
    if [block.hash for block in stored] == [block.hash for block in proposed]:
        return Same(view.shard)
    if len(stored) == len(proposed) and list(map(_content, stored)) == list(map(_content, proposed)):
        return Equivalent(view.shard)
    if not stored and view.shard.upper == SEALED:
        return ShardSealed(view.shard)
    names = (tuple(block.hash for block in each) for each in (stored, proposed))
    return Conflicting(view.shard, proposal.start, *names)


def _content(block: Block) -> tuple[object, ...]:
    """Returns a block's content without links and without the bytes of its slice, which differ between libraries."""
    event = block.event
    if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
        bare = msgspec.structs.replace(event.new_data, physical_hash=event.new_data.logical_hash, size=0)
        event = msgspec.structs.replace(event, new_data=bare)
    return block.sequence_number, block.system_time, block.unknown_fields, event
