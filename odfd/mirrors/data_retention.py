"""Decides which data of a mirror is kept, and deletes the rest.

The plan is one row of a table. A deletion changes that row first and removes files afterwards, so that an interruption
leaves files that are removed the next time. Never deleted: data from which a dataset of this node is derived, data that
another dataset here needs, and data that is being read. Synchronous; one call at a time for each dataset.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Final

import msgspec

from chain.ids import DatasetId
from chain.model.block import objects_of
from chain.multihash import Multihash
from chain.store.base import ChainReader
from odfd.store import mirror_specs
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Extent, Holdings
from odfd.store.ledger.log import Ledger
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.read_holds import HistoryHeld
from odfd.store.references import references_to
from odfd.store.retention import ALL, Piece, first_kept, giving_way, oldest_kept, parse_keep

_DATA: Final = ("AddData", "ExecuteTransform")
_PAGE: Final = 256
"""Objects deleted in one transaction."""


class DataRetention:
    """Manages the data that a node's mirrors keep.
    ``reader`` names a dataset of this node that derives from one, if any."""

    def __init__(
        self,
        home: StateDirectory,
        reader: Callable[[DatasetId], str | None],
    ) -> None:
        """``reader``: returns the name of a dataset that derives from one here, or ``None``."""
        self._database, self._chains, self._objects, self._held = home.database, home.chains, home.objects, home.held
        self._reader = reader
        self._gave_way: dict[DatasetId, str] = {}
        self._lock = threading.RLock()

    def taken(self) -> int:
        """Returns the bytes on disk that all mirrors use, blocks included."""
        with self._database.read() as connection:
            return Holdings(connection).bytes_taken()

    def count_blocks(self, dataset: DatasetId) -> None:
        """Begins to count the blocks of a mirror, unless they are counted already."""
        with self._database.read() as connection:
            counted = Holdings(connection).counts_blocks(dataset)
        if not counted:
            with self._database.write() as connection:
                Holdings(connection).count_blocks(dataset)

    def give_way(self, spec: MirrorSpec, needed: int) -> bool:
        """Deletes data of mirrors with a lower priority than this spec's,
        if that frees so many bytes; else deletes nothing."""
        with self._lock, ExitStack() as open_cursors, self._database.read() as connection:
            holdings = Holdings(connection)
            lower = [each for each in mirror_specs.all_of(connection) if each.priority < spec.priority]
            lower = [each for each in lower if each.want == "data" and self._may_go(connection, each.id)]
            others = []
            for each in sorted(lower, key=lambda each: each.priority):
                pieces = holdings.by_block(each.id, Ledger(connection).chain(each.id).data)
                others.append((each.id, open_cursors.enter_context(closing(pieces))))
            plan = giving_way(needed, others)
        for dataset, first in (plan or {}).items():
            self._gave_way[dataset] = f"data before block #{first} gave way to {spec.name}"
            try:
                self.let_go(dataset, first)
            except HistoryHeld:  # held since the plan was made
                self._gave_way.pop(dataset)
                return False
        return plan is not None

    def note(self, dataset: DatasetId, objects: Sequence[tuple[Multihash, int, int]]) -> None:
        """Records objects that came: the name and size of each,
        and the number of the block that names or links to it."""
        with self._database.write() as connection:
            Holdings(connection).note(dataset, objects)

    def settle(self, spec: MirrorSpec) -> None:
        """Plans again if the plan in force differs from the spec's."""
        with self._database.read() as connection:
            planned = Holdings(connection).extent(spec.id).keep
        if planned != self._bounds(spec):
            self.plan(spec)

    def plan(self, spec: MirrorSpec) -> None:
        """Decides from which block on data is to be here, before any of it is fetched."""
        with self._lock:
            self._plan(spec)

    def _plan(self, spec: MirrorSpec) -> None:
        dataset, chain, bounds = spec.id, self._chains.chain(spec.id), self._bounds(spec)
        head = chain.head()
        if head is None:
            with self._database.write() as connection:
                Holdings(connection).keep_extent(dataset, Extent(0, 0, bounds))
            return
        with self._database.read() as connection:
            extent, checked = Holdings(connection).extent(dataset), Ledger(connection).chain(dataset)
        anew = extent.keep != bounds
        if anew:
            self._count(dataset, chain, checked.data)
            self._gave_way.pop(dataset, None)
        floor = 0 if anew else max(checked.data, extent.first)
        newest = chain.block_at(head.sequence_number).system_time
        wanted = oldest_kept(parse_keep(bounds), newest, _newest_first(chain, floor), head.size) if bounds else 0
        place = replanned(RetainedRange(extent.first, checked.data, extent.seen), wanted if anew else wanted or floor)
        with self._database.write() as connection:
            Holdings(connection).keep_extent(dataset, Extent(place.first, place.seen, bounds))
            ledger = Ledger(connection)
            ledger.keep_chain(dataset, msgspec.structs.replace(ledger.chain(dataset), data=place.data))

    def _count(self, dataset: DatasetId, chain: ChainReader, stop: int) -> None:
        """Records the objects here of blocks before ``stop``,
        since a mirror may be older than the counting of its objects."""
        before, found = stop, list[tuple[Multihash, int, int]]()
        while (block := chain.last_of(_DATA, before)) is not None or found:
            if block is not None:
                before = block.sequence_number
                found += [(name, size, before) for name, size in objects_of(block) if self._objects.has(name)]
            if len(found) >= _PAGE or block is None:
                self.note(dataset, found)
                found = []

    def trim(self, spec: MirrorSpec) -> str:
        """Deletes data beyond the spec; returns why none may go or why more went, or an empty text."""
        with self._lock:
            return self._trim(spec)

    def _trim(self, spec: MirrorSpec) -> str:
        dataset, chain = spec.id, self._chains.chain(spec.id)
        head = chain.head()
        if head is None:
            return ""
        newest = chain.block_at(head.sequence_number).system_time
        with self._database.read() as connection:
            holdings = Holdings(connection)
            extent, total = holdings.extent(dataset), holdings.bytes(dataset)
            checked = Ledger(connection).chain(dataset)
            # Closed before the transaction ends: an open cursor would pass its old snapshot on to the next reader.
            with closing(holdings.by_block(dataset, checked.data)) as by_block:
                pieces = (Piece(number, chain.block_at(number).system_time, size) for number, size in by_block)
                first = first_kept(parse_keep(spec.keep or ALL), newest, pieces, total, extent.first)
        if first > extent.first and not self._bounds(spec):
            return f"all is kept: {self._reader(dataset)} is derived from it here"
        try:
            self.let_go(dataset, first)
        except HistoryHeld as held:
            return f"no data is deleted: {held.message}"
        return self._gave_way.get(dataset, "")

    def _may_go(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        try:
            self._held.check(connection, dataset)
        except HistoryHeld:
            return False
        return self._reader(dataset) is None

    def let_go(self, dataset: DatasetId, first: int) -> None:
        """Deletes data of blocks before ``first`` from now on. Raises Refused while it is held."""
        with self._lock:
            with self._database.read() as connection:
                extent = Holdings(connection).extent(dataset)
            if first > extent.first:
                with self._database.write() as connection:
                    self._held(connection, dataset)
                    Holdings(connection).keep_extent(dataset, msgspec.structs.replace(extent, first=first))
            self._free(dataset, max(first, extent.first))

    def count_objects(self, dataset: DatasetId) -> int:
        """Records the objects here of a dataset of this node's own, before they may be deleted.
        Returns its number of blocks."""
        chain = self._chains.chain(dataset)
        head = chain.head()
        size = 0 if head is None else head.size
        self._count(dataset, chain, size)
        return size

    def _free(self, dataset: DatasetId, first: int) -> None:
        """Deletes objects, except those that are being read, which are left for the next time."""
        while True:
            with self._database.read() as connection:
                names = Holdings(connection).needless(dataset, first, _PAGE)
                needed = {name for name in names if _needed_elsewhere(connection, dataset, name)}
            freed = [name for name in names if not self._objects.holds.is_held(name)]
            if not freed:
                return
            # Files first: after a crash in between the rows are still there, by which the next call finds them.
            self._objects.remove_all([name for name in freed if name not in needed])
            with self._database.write() as connection:
                Holdings(connection).drop(dataset, freed)

    def _bounds(self, spec: MirrorSpec) -> str:
        """Returns the spec's bounds; empty for all data, also if all is needed here."""
        return "" if spec.keep is None or self._reader(spec.id) is not None else spec.keep


class RetainedRange(msgspec.Struct, frozen=True):
    """Data of blocks ``first`` to ``data`` is here; that of blocks from ``seen`` on was checked."""

    first: int
    data: int
    seen: int


def replanned(place: RetainedRange, wanted: int) -> RetainedRange:
    """Moves the retained range so that data of blocks from ``wanted`` on is fetched; data is deleted later."""
    if place.seen > max(place.data, place.first):
        return RetainedRange(wanted, wanted, wanted)
    data = max(place.data, place.first)
    if wanted > data:
        return RetainedRange(wanted, wanted, wanted)
    if wanted < place.first:
        return RetainedRange(wanted, wanted, min(place.seen, wanted))
    return RetainedRange(place.first, data, place.seen)


def _needed_elsewhere(connection: sqlite3.Connection, dataset: DatasetId, name: Multihash) -> bool:
    """Whether another dataset here needs an object: a mirror that holds it too, or a dataset that is no mirror."""
    holders = Holdings(connection).holders(name)
    return any(
        other in holders or mirror_specs.of(connection, other) is None
        for other, _ in references_to(connection, name)
        if other != dataset
    )


def _newest_first(chain: ChainReader, floor: int) -> Iterator[Piece]:
    before: int | None = None
    while (block := chain.last_of(_DATA, before)) is not None and block.sequence_number >= floor:
        before = block.sequence_number
        yield Piece(before, block.system_time, sum(size for _, size in objects_of(block)))
