"""Takes, renews, releases and lists read holds, for the API. Spec: docs/spec/collections.md#holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from chain import instant
from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, from_millis, to_millis
from chain.store.base import Head
from chain.store.shards import SEALED, Shard, View
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import NODE_PATH, Owner, Parameter, operation
from odfd.datasets.shard_reading import find_complete_time, find_end
from odfd.queries.rendition_times import active_at
from odfd.services.views.hold_views import hold_view
from odfd.store import collections, read_holds
from odfd.store.catalog import Catalog, DatasetEntry, is_one_chain
from odfd.store.directory import StateDirectory
from odfd.store.read_holds import ReadHold, ReadHolds

_OF: Final = Parameter("dataset", "text", "Only of this dataset.")
_FENCE: Final = Parameter("fence", "number", "Of the process that ends an owned hold.", 1)


@dataclass(eq=False)
class HoldService:
    """The API service for read holds."""

    home: StateDirectory
    context: Context
    new_id: Callable[[], str]
    released: Callable[[DatasetId], object] = lambda _: None
    """Called with a dataset when one of its holds ends: whatever waited for that can go on."""

    @operation("GET", NODE_PATH + "/holds", needs=Owner.DISK)
    def list(self, ref: Annotated[str | None, _OF] = None) -> Sequence[wire.HoldView]:
        """Lists the live holds of a dataset, or of all datasets, oldest first. Raises NotFound.

        Those of a collection are those of all its renditions.
        """
        entry = None if ref is None else self.home.resolve(ref)
        with self.home.database.read() as connection:
            found = ReadHolds(connection).all(self.context.clock.now())
            wanted = None if entry is None else Catalog(connection).chains_of(entry)
        return [hold_view(self.home, each) for each in found if wanted is None or each.dataset in wanted]

    @operation("POST", NODE_PATH + "/holds", needs=Owner.DISK)
    def take(self, request: wire.HoldRequest) -> wire.HoldView:
        """Holds a dataset at a time, or as it is now, so that its history there stays readable.

        Raises NotFound, Invalid; Refused for a time that is not complete yet or before the first block, and for too
        many holds.
        """
        entry, now = self.home.resolve(request.ref), self.context.clock.now()
        at = None if request.at is None else _millis(request.at)
        entry = entry if at is None else active_at(self.home, request.ref, entry, at)
        # The cut is chosen and stored in one write transaction, so no history can be given up in between.
        with self.home.database.write() as connection:
            time, head = self._choose(connection, entry, at, named=not is_one_chain(request.ref))
            hold = ReadHold(
                id=self.new_id(), dataset=entry.id, time=time, block=head.hash, note=request.note,
                taken=now, expires=now, owner=request.owner,
            )  # fmt: skip
            holds = ReadHolds(connection)
            if request.owner:
                among = () if is_one_chain(request.ref) else Catalog(connection).chains_of(entry)
                taken = holds.own(hold, now, moves=at is not None, among=among)
            else:
                taken = holds.take(hold, _ttl(request.seconds), now)
        return hold_view(self.home, taken)

    @operation("PUT", NODE_PATH + "/holds/{id}", needs=Owner.DISK)
    def renew(self, hold_id: str, request: wire.HoldRenewal) -> wire.HoldView:
        """Renews a hold, or moves an owned one. Raises Refused (``hold-lost``, ``hold-fenced``), Invalid."""
        with self.home.database.write() as connection:
            holds = ReadHolds(connection)
            held = holds.renew(hold_id, _ttl(request.seconds), self.context.clock.now(), request.fence)
            if request.at is not None:
                entry = self.home.resolve(str(held.dataset))
                time, head = self._choose(connection, entry, _millis(request.at), named=True)
                held = holds.move(hold_id, request.fence, time, head.hash)
        return hold_view(self.home, held)

    @operation("DELETE", NODE_PATH + "/holds/{id}", needs=Owner.DISK)
    def release(self, hold_id: str, fence: Annotated[int | None, _FENCE] = None) -> wire.HoldView:
        """Releases a hold; ``fence`` is that of the process that owned it. Raises NotFound, Refused."""
        with self.home.database.write() as connection:
            held = ReadHolds(connection).release(hold_id, self.context.clock.now(), fence)
        self.released(held.dataset)
        return hold_view(self.home, held)

    def _choose(
        self, connection: sqlite3.Connection, entry: DatasetEntry, at: int | None, *, named: bool
    ) -> tuple[int, Head]:
        """Returns the time to hold and the last block up to it, of one chain or of the first of several shards."""
        shards = collections.shards_of(connection, entry.id) if named else (entry.id,)
        is_plain = len(shards) == 1
        return self._cut(entry, at if is_plain else self._last_of(shards, at), named=named and is_plain)

    def _cut(self, entry: DatasetEntry, at: int | None, *, named: bool) -> tuple[int, Head]:
        """Returns the time to read at, in milliseconds, and the last block up to it.

        ``named``: the collection is meant, which a mirror that is late at a handover has up to that.

        A time is definite only if it is complete; without one, the present head is. Raises Refused, NotFound.
        """
        chain = self.home.chains.chain(entry.id)
        head, upper = chain.head(), self.home.chains.upper(entry.id)
        end = find_end(self.home, entry.id) if named and head is not None else None
        if end is not None:
            last, upper = chain.block_at(end[1] - 1), min(upper, end[0])
            head = Head(last.hash, last.sequence_number)
        if head is None:
            raise NotFound(f"{entry.name} has no blocks here", rule="chain-empty", hint=f"odfctl pull {entry.name}")
        if at is None:
            return max(to_millis(chain.block_at(head.sequence_number).system_time), self._active_since(entry.id)), head
        if at >= upper:
            raise Refused(
                f"times from {instant.render(from_millis(upper))} on are not complete yet",
                rule="hold-upper",
                hint=f"odfctl advance {entry.name}, where it is written; or hold it as it is now, without a time",
            )
        size = View(Shard(head, upper), chain.block_at).size_at(at)
        if not size:
            raise Refused(
                f"{entry.name} begins after {instant.render(from_millis(at))}",
                rule="hold-since",
                hint="name a time from its first block on: odfctl log",
            )
        last = chain.block_at(size - 1)
        return at, Head(last.hash, last.sequence_number)

    def _last_of(self, shards: Sequence[DatasetId], at: int | None) -> int:
        """Returns a time that is complete in all shards: by default that of the newest block of any of them.

        Shards are written together, so the time of the newest block is complete in each.
        """
        if at is not None:
            return at
        complete = find_complete_time(self.home, shards)
        if complete is not None and complete + 1 < SEALED:
            return max(complete, self._active_since(shards[0]))
        heads = [(self.home.chains.chain(shard), self.home.chains.chain(shard).head()) for shard in shards]
        times = [to_millis(chain.block_at(head.sequence_number).system_time) for chain, head in heads if head]
        return max(*times, self._active_since(shards[0]))

    def _active_since(self, dataset: DatasetId) -> int:
        """Returns when the collection handed over to this rendition, in milliseconds; 0 if it is not the active one."""
        with self.home.database.read() as connection:
            state = collections.of(connection, dataset)
        return state.timeline.switches[-1].time if state.active.dataset == dataset else 0


def _ttl(seconds: int | None) -> int:
    return read_holds.TTL if seconds is None else seconds * SECOND


def _millis(text: str) -> int:
    moment = instant.parse(text)
    if moment < 0:
        raise Invalid("a time before 1970", rule="hold-time")
    return to_millis(moment)
