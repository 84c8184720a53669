"""Lets mirrors follow when an owner hands a collection over to another rendition, as its last block says.

The successor is mirrored on the same terms, beside the old rendition, with all its shards. Once both are complete to
the handover, the dataset's name changes to it, in one transaction with the timeline of the collection; then listeners
of the old rendition are told. ``odfd.mirrors.mirror_handover`` decides from the stored state, so an interrupted
round is done again. Spec: docs/spec/collections.md#published.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec
import trio

from chain.errors import Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from odfd.control.assembly import Context
from odfd.mirrors.mirror_handover import Await, Begin, Cross, Step, next_step
from odfd.mirrors.mirror_state import MirrorVisibility
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.published.signed import beside
from odfd.renditions.chain_timeline import check, rows_of
from odfd.renditions.successor import HandoverNotice, notice_in
from odfd.renditions.timeline import RenditionRow, Switch, append
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.services.renditions.shard_follower import ShardFollower
from odfd.store import collections, mirror_specs
from odfd.store.catalog import Catalog, hand_on
from odfd.store.collections import MAX_RENDITIONS, CollectionState, Member
from odfd.store.directory import StateDirectory
from odfd.store.mirror_specs import MirrorSpec

MOST: Final = MAX_RENDITIONS
"""Handovers of one collection that one round follows."""

START_SECONDS: Final = 10.0
"""Seconds until the first check of all mirrors, unless one moves: a starting node has more urgent work."""


Also = Callable[[sqlite3.Connection], None]
Readers = Callable[[Member, Member, Also], Awaitable[Sequence[DatasetId]]]
"""Returns the new renditions of what derived from the first; none: the transaction was not made. Raises Fault."""


class _Followed(msgspec.Struct, frozen=True):
    """A mirror whose chain says that its collection continues in another dataset."""

    state: CollectionState
    spec: MirrorSpec
    notice: HandoverNotice
    step: Step


class HandoverFollower:
    """Follows the handovers of one node's mirrors. ``loop`` is touched with a dataset whose chain moved."""

    def __init__(
        self,
        home: StateDirectory,
        scheduler: MirrorScheduler,
        context: Context,
        derived: Callable[[DatasetId], Sequence[str]],
        readers: Readers,
        moved: Callable[[DatasetId], object],
    ) -> None:
        """``derived``: returns names of this node's datasets that derive from a dataset.

        ``readers``: hands over what derives here from a mirrored rendition, in the transaction that swaps the mirror's
        names. ``moved``: called with each rendition that a handover began or ended.
        """
        self._home, self._scheduler, self._visibility = home, scheduler, home.visibility
        self._readers, self._moved = readers, moved
        self._clock, self._events, self._logger = context.clock, context.events, context.logger
        self._derived = derived
        self._faults: dict[DatasetId, str] = {}
        """Faults that were reported already."""
        self.shards = ShardFollower(home, scheduler, home.visibility, context)
        self.step: Callable[[str], None] = lambda _: None
        """Called after each durable step; tests use it to let a process die there."""
        self.loop = KeyedReconcileLoop[DatasetId](self._round, start_after=START_SECONDS)

    async def _round(self) -> float:
        for dataset in await trio.to_thread.run_sync(self._list_mirrors, self.loop.take()):
            try:
                await self.shards.follow(dataset)
                await self._follow(dataset)
            except Fault as fault:
                if self._faults.get(dataset) == str(fault):
                    continue
                self._faults[dataset] = str(fault)
                name = await trio.to_thread.run_sync(self._home.name_of, dataset)
                self._logger.error("a handover is not followed", mirror=name, fault=str(fault), rule=fault.rule)
                told = f"{fault}: {fault.hint}" if fault.hint else str(fault)
                self._events.emit("mirror.held", name, told, about=about(dataset), rule=fault.rule)
            else:
                self._faults.pop(dataset, None)
        return UNTIL_POKED

    def _list_mirrors(self, touched: Iterable[DatasetId] | None) -> list[DatasetId]:
        """Returns the mirrors among the touched datasets; at the start all of them."""
        with self._home.database.read() as connection:
            if touched is None:
                return [spec.id for spec in mirror_specs.all_of(connection)]
            return [each for each in touched if mirror_specs.of(connection, each) is not None]

    async def _follow(self, dataset: DatasetId) -> None:
        for _ in range(MOST):
            found = await trio.to_thread.run_sync(self._look, dataset)
            match None if found is None else found.step:
                case Begin():
                    assert found is not None
                    await self._mirror(found)
                    await self.shards.follow(found.notice.to)
                case Cross(member=member):
                    assert found is not None
                    await self._switch(found, member)
                case Await():
                    assert found is not None
                    _check_listed(found)
                    return
                case _:
                    return

    def _look(self, dataset: DatasetId) -> _Followed | None:
        chains = self._home.chains
        with self._home.database.read() as connection:
            state = collections.of(connection, dataset)
            spec = mirror_specs.of(connection, state.active.dataset)
        active = chains.chain(state.active.dataset)
        if spec is None:
            return None
        # The block is the owner's claim: it may not contradict the handovers that were followed already.
        check(rows_of(active, state.active.dataset), state.timeline)
        notice = notice_in(active.last_of(("SetInfo",)))
        if notice is None:
            return None
        successor = next((member.shards for member in state.members if member.dataset == notice.to), ())
        uppers = {shard: chains.upper(shard) for shard in (*state.active.shards, *successor)}
        return _Followed(state, spec, notice, next_step(state, notice, uppers, has_block=self._is_here(notice)))

    async def _mirror(self, found: _Followed) -> None:
        """Begins to mirror the successor. Raises Invalid if it is here in another way."""
        number = len(found.state.members)
        spec = msgspec.structs.replace(
            found.spec,
            dataset=str(found.notice.to),
            name=f"{found.spec.name}.r{number}",
            via=_via(found),
            expect=None,
        )
        if await trio.to_thread.run_sync(self._join, found, spec):
            self.step("mirrored")
            await self._scheduler.take_up(spec)

    def _check_new(self, found: _Followed, spec: MirrorSpec) -> bool:
        """Checks that the successor is new here;
        returns whether the mirror is public, as it will be too. Raises Invalid."""
        name = found.spec.name
        if len(found.state.members) >= MAX_RENDITIONS:
            raise Invalid(f"{name} handed over more than {MAX_RENDITIONS} times", rule="rendition-limit")
        with self._home.catalog() as catalog:
            held = catalog.find(found.notice.to)
        if self._home.keys.has_dataset_key(found.notice.to) or (held is not None and held.name != spec.name):
            raise Invalid(
                f"{name} continues as {found.notice.to}, which is here already"
                f"{'' if held is None else f', as {held.name}'}",
                rule="rendition-here",
                hint="read that one; or delete it, and the mirror continues with it",
            )
        return self._visibility.is_told(found.spec.id)

    def _join(self, found: _Followed, spec: MirrorSpec) -> bool:
        """Records the successor, as a rendition and as a mirror inside the collection, in one transaction.

        Returns false if the collection is mirrored no longer, or has more renditions than before. Raises Invalid.
        """
        is_told = self._check_new(found, spec)
        shown = MirrorVisibility(private=None if is_told and not spec.is_from_web else not is_told)
        number = len(found.state.members)
        with self._home.database.write() as connection:
            state = collections.of(connection, found.spec.id)
            # ``_look`` read outside this transaction; a person may have deleted the mirror, or another round was here.
            if len(state.members) != number or mirror_specs.of(connection, found.spec.id) is None:
                return False
            row = RenditionRow(number=number, shards=(str(found.notice.to),), reason="its owner handed over")
            member = Member(row=row, origin="owner")
            collections.keep(connection, msgspec.structs.replace(state, members=(*state.members, member)))
            self._scheduler.record(connection, spec, shown)
        return True

    def _is_here(self, notice: HandoverNotice) -> bool:
        try:
            self._home.chains.chain(notice.to).block_by_hash(notice.block)
        except NotFound:
            return False
        return True

    async def _switch(self, found: _Followed, member: Member) -> None:
        old, names = found.state.active, dict[DatasetId, str]()

        def swap(connection: sqlite3.Connection) -> None:
            names.clear()
            state, now = collections.of(connection, found.spec.id), self._clock.now()
            hand_on(connection, old, member, now)
            command = f"{old.dataset}@{found.notice.time}"
            timeline = append(state.timeline, Switch(found.notice.time, command, member.row))
            collections.keep(connection, msgspec.structs.replace(state, timeline=timeline))
            names.update({each.dataset: Catalog(connection).name_of(each.dataset) for each in (old, member)})
            # In the same transaction as the names: a crash in between would mirror one rendition under the name of the
            # other.
            mirror_specs.hand_on(connection, old.dataset, member.dataset, now)

        def swap_alone() -> Sequence[str]:
            """Swaps the names unless that is done; returns the datasets that still derive from the old rendition."""
            with self._home.database.write() as connection:
                is_due = collections.of(connection, found.spec.id).active.dataset == old.dataset
                if is_due:
                    swap(connection)
            return self._derived(old.dataset) if is_due else ()

        why = ""
        try:
            await self._readers(old, member, swap)
        except Fault as fault:
            why = f": {fault.message}"
        # Readers that cannot follow do not keep the name back; they stay at the old rendition, and it is told.
        stay = await trio.to_thread.run_sync(swap_alone)
        self.step("switched")
        await self._scheduler.reread(shard for each in (old, member) for shard in each.shards)
        for dataset, name in names.items():
            said = "its collection handed over"
            self._moved(dataset)
            self._events.emit("dataset.renamed", name, said, about=about(dataset), id=str(dataset))
        text = f"it continues with rendition {member.row.number}, as its owner says"
        if stay:
            text += f"; {', '.join(stay)} still derives from {names[old.dataset]}{why}"
        self._events.emit(
            "rendition.followed", names[member.dataset], text, about=about(member.dataset), id=str(member.dataset)
        )


def _via(found: _Followed) -> str | None:
    """Returns the place of the successor, if a web server has it: shards lie in folders of their ids."""
    via = found.spec.via if found.spec.is_from_web else None
    return via if via is None or found.notice.shards == 1 else beside(via, found.notice.to)


def _check_listed(found: _Followed) -> None:
    """Raises Refused if nothing that was read tells which chains the shards of the successor are.

    Peers tell that of themselves; of a web server or IPFS only one file does, in a folder whose name is not known.
    """
    to, count = found.notice.to, found.notice.shards
    member = next((member for member in found.state.members if member.dataset == to), None)
    if found.spec.via is None or member is None or len(member.shards) == count:
        return
    if found.spec.is_from_web:
        place = f"{found.spec.via.rpartition('/')[0]}/NAME"
        hint = f"odfctl mirror add {place}, with the folder to which its publisher pushed the collection"
    else:
        hint = "its card comes from peers: odfctl join the network of its publisher, and the mirror continues by itself"
    raise Refused(
        f"{found.spec.name} continues as {count} shards from {to} on, and {found.spec.via} does not say which they are",
        rule="shard-card",
        hint=hint,
    )
