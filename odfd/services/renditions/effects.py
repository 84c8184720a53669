"""Performs the effects of commands on renditions, one durable step each. Spec: docs/spec/collections.md#handover.

``odfd.renditions.handover`` decides which effect is next. Renditions with the same content as the active one (one was
made from a snapshot of the other) get copies of its blocks; others decode the captured bytes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.events import AddData
from chain.multihash import Multihash
from chain.state import load_state
from chain.store import uppers
from chain.store.base import ChainReader
from chain.store.shards import SEALED
from chain.store.sqlite_shards import SqliteShards
from odfd.datasets.commit import Commit, CommitPart, block_time
from odfd.ingest import segments
from odfd.ingest.copying import BlockGroup, copied_group, groups_after
from odfd.ingest.driver import ATTEMPTS, IngestDependencies
from odfd.ingest.push import commit_point
from odfd.ingest.raw_replay import decode, remaining
from odfd.mirrors.data_retention import DataRetention
from odfd.queries import folds
from odfd.renditions.chain_timeline import rows_of
from odfd.renditions.handover import Command, Situation
from odfd.renditions.successor import HandoverNotice, announce, going_on
from odfd.renditions.timeline import Switch, append, is_needed
from odfd.runtime.clock import Clock
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.tasks import Report
from odfd.services.ingest.own_roots import check_own_root
from odfd.services.ingest.sources import SourceReader
from odfd.store import captures, collections, pushes, visibility
from odfd.store.captures import BoundCapture, CapturedPart
from odfd.store.catalog import hand_on
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import FOLDS, SEGMENTS, StateDirectory
from odfd.store.holdings import Extent, Holdings
from odfd.store.read_holds import ReadHold, ReadHolds
from odfd.store.visibility import Visibility
from odfd.trust.signing.owner_commit import OwnerCommitter

_KINDS: Final = (AddData.__name__,)


class Move(NamedTuple):
    """A move of a collection's name from one rendition to another."""

    old: Member
    new: Member


class RenditionEffects:
    """Performs effects on the collections of one node. Methods without ``async`` are for worker threads."""

    def __init__(
        self,
        home: StateDirectory,
        ingest: IngestDependencies,
        committer: OwnerCommitter,
        keeping: DataRetention,
        clock: Clock,
        visibility: Visibility,
        readers: Callable[[DatasetId], Sequence[DatasetId]],
    ) -> None:
        """``readers`` lists the datasets here that derive directly from one."""
        self._home, self._ingest, self._committer = home, ingest, committer
        self._sources = SourceReader(home)
        self._keeping = keeping
        self._clock, self._visibility = clock, visibility
        self._readers = readers
        self._shards = SqliteShards(home.database, home.chains)
        self.step: Callable[[str], None] = lambda _: None
        """Called after each durable effect; tests use it to let a process die there."""

    def state(self, dataset: DatasetId) -> CollectionState:
        with self._home.database.read() as connection:
            return collections.of(connection, dataset)

    def state_member(self, dataset: DatasetId) -> Member:
        """Returns the rendition that a chain belongs to."""
        state = self.state(dataset)
        return state.member(state.number_of(dataset))

    def holds(self, state: CollectionState) -> list[ReadHold]:
        """Lists the live holds on all renditions of a collection."""
        now = self._clock.now()
        with self._home.database.read() as connection:
            shards = [shard for member in state.members for shard in member.shards]
            return [held for shard in shards for held in ReadHolds(connection).of(shard, now)]

    def situation(self, state: CollectionState, command: Command) -> Situation:
        to, active = command.to, state.active
        uppers = {member.row.number: self.upper(member) for member in state.members if not member.dropped}
        bound = self._bound_of(state, to)
        if to in uppers and not state.member(to).is_gone and to != active.row.number and uppers[to] < SEALED:
            rest = self._next_time(state, state.member(to))
            if rest is not None and uppers[to] < bound:
                uppers[to] = min(uppers[to], rest)
            elif rest is not None:
                uppers[to] = bound - 1
        return Situation(
            command=command,
            timeline=state.timeline,
            uppers=uppers,
            bound=bound,
            now=to_millis(self._clock.now()),
            held=min((held.time for held in self.holds(state)), default=None),
            wanted={each.to for each in state.commands if each.time is None},
            dropped={member.row.number for member in state.members if member.is_gone},
        )

    def _bound_of(self, state: CollectionState, to: int) -> int:
        """Returns the time after the active rendition's last transaction that rendition ``to`` has to get, in ms."""
        if to < len(state.members) and self._is_equal(state, state.member(to)):
            chains = self.chains(state.active)
            heads = [(chain, head) for chain in chains if (head := chain.head()) is not None]
            times = [to_millis(chain.block_at(head.sequence_number).system_time) for chain, head in heads]
            return max(times, default=-1) + 1
        source = self.captures_of(state, state.active.row.number)
        return source[-1].time + 1 if source else 0

    def _next_time(self, state: CollectionState, member: Member) -> int | None:
        """Returns the time (ms) of the active rendition's first transaction that another lacks; ``None`` if none."""
        if self._is_equal(state, member):
            left = self._list_uncopied(state, member)
            return to_millis(left[0].time) if left else None
        rest = self._captures_left(state, member)
        return rest[0].time if rest else None

    def captures_of(self, state: CollectionState, number: int) -> Sequence[BoundCapture]:
        """Lists the captures of a rendition, also those, up to its start, of the one whose snapshot it began with."""
        member = state.member(number)
        with self._home.database.read() as connection:
            own = captures.of(connection, member.dataset)
        if member.of is None:
            return own
        return [*(each for each in self.captures_of(state, member.of) if each.time <= member.row.since), *own]

    def whole(self, state: CollectionState) -> Sequence[BoundCapture]:
        """Lists the captures of the active rendition. Raises Refused unless each block of data has one."""
        active, name = state.active, self._home.name_of(state.active.dataset)
        self.check_owned(state)
        source = self.captures_of(state, active.row.number)
        missing = self._find_uncaptured(state, active.row.number, None)
        if missing or not source:
            raise Refused(
                f"{name} cannot be decoded again: {missing or 'nothing of it'} is {'not ' * bool(missing)}captured",
                rule="rendition-captures",
                hint="keepRaw: true before the first data; corrections and watermarks are not captured",
            )
        return source

    def _find_uncaptured(self, state: CollectionState, number: int, until: int | None) -> str:
        """Names the newest block of data up to a time that has no capture; empty if each has one."""
        member = state.member(number)
        with self._home.database.read() as connection:
            own = captures.of(connection, member.dataset)
        since = member.row.since if member.of is not None else -1
        for shard, chain in zip(member.shards, self.chains(member), strict=True):
            parts = [part for each in own for part in each.parts if part.dataset == shard]
            bound = {number for part in parts for number in range(part.first, part.last + 1)}
            block = chain.last_of(_KINDS)
            while block is not None and (time := to_millis(block.system_time)) > since:
                if block.sequence_number not in bound and (until is None or time <= until):
                    return f"block #{block.sequence_number}" + f" of {shard}" * (len(member.shards) > 1)
                block = chain.last_of(_KINDS, block.sequence_number)
        return "" if member.of is None else self._find_uncaptured(state, member.of, member.row.since)

    def check_owned(self, state: CollectionState) -> None:
        """Raises Refused if this node does not ingest the collection."""
        active = state.active.dataset
        check_own_root(self._home, active, self._home.name_of(active), "its owner decodes it again")

    async def decode_rest(self, dataset: DatasetId, number: int, report: Report) -> None:
        """Decodes the captures that a rendition lacks."""
        target, rest = await trio.to_thread.run_sync(self._list_undecoded, dataset, number)
        for each in rest:
            deps = await trio.to_thread.run_sync(self._sources.decoding, self._ingest, target, each.capture)
            await decode(deps, target, each)
            report.advance()
            self.step("decoded")

    def _list_undecoded(self, dataset: DatasetId, number: int) -> tuple[DatasetId, Sequence[BoundCapture]]:
        state = self.state(dataset)
        member = state.member(number)
        return member.dataset, self._captures_left(state, member)

    async def bring_up(self, dataset: DatasetId, number: int, report: Report) -> None:
        """Gives a rendition, and those of its content and of the active one's, all that the active one has.

        Raises Refused if something of that was not captured.
        """
        state = await trio.to_thread.run_sync(self._check_captured, dataset, number)
        active = state.active.row.number
        if not self._is_equal(state, state.member(number)):
            for equal in state.equals(number):
                if not self._is_sealed(equal):
                    await self.decode_rest(dataset, equal.row.number, report)
        for equal in state.equals(active):
            if equal.row.number != active and not self._is_sealed(equal):
                await trio.to_thread.run_sync(self._copy_rest, dataset, equal.row.number, report)

    def _check_captured(self, dataset: DatasetId, number: int) -> CollectionState:
        """Raises Refused if a rendition of other contents than the active one cannot be decoded from captures."""
        state = self.state(dataset)
        if not self._is_equal(state, state.member(number)):
            self.whole(state)
        return state

    def _copy_rest(self, dataset: DatasetId, number: int, report: Report) -> None:
        state = self.state(dataset)
        bound = self._bound_blocks(state)
        for group in self._list_uncopied(state, state.member(number)):
            end_if_unwanted()
            self._copy(state, number, group, bound.get(_last_of(group)))
            report.advance()
            self.step("copied")

    def _bound_blocks(self, state: CollectionState) -> dict[Multihash, BoundCapture]:
        """Returns the captures of the active rendition by the last block of each, in the first shard that has one."""
        with self._home.database.read() as connection:
            return {each.block: each for each in captures.of(connection, state.active.dataset)}

    def _copy(self, state: CollectionState, number: int, group: BlockGroup, bound: BoundCapture | None) -> None:
        """Copies one group of blocks, with their capture, and counts it as copied, in one transaction."""
        target = state.member(number).dataset
        own = load_state(self._home.chains.chain(target))
        copied = copied_group(self._ingest, group, own)
        is_several = len(state.member(number).shards) > 1 or len(group.blocks) > 1
        if is_several and bound is not None and _is_more(group, bound):
            bound = None  # its blocks are not told from the others of their time, which a rendition from raw refuses

        def together(connection: sqlite3.Connection) -> None:
            now = collections.of(connection, target)
            member = now.member(number)
            collections.keep(
                connection, now.with_members(msgspec.structs.replace(member, copied=member.copied + group.size))
            )
            if bound is not None and not is_several:  # a block by itself: the last of those that it is bound to
                (part,) = bound.parts
                (block,) = connection.execute("SELECT head_hash FROM datasets WHERE id = ?", (target,)).fetchone()
                same = CapturedPart(target, Multihash(block), own.size - (part.last - part.first), own.size)
                captures.keep(connection, target, bound.capture, (same,), bound.time)

        kept = (bound.capture,) if bound is not None and is_several else ()
        # Without events, its declarations are in force here already.
        part = CommitPart.after(own, group.time, copied.events, copied.objects, records=kept)
        self._committer.commit_now(Commit(parts=(part,), also=together))

    def _is_equal(self, state: CollectionState, member: Member) -> bool:
        return state.content_of(member.row.number) == state.content_of(state.active.row.number)

    def _is_sealed(self, member: Member) -> bool:
        return self.upper(member) == SEALED

    def upper(self, member: Member) -> int:
        """Returns the frontier of a rendition: times before it are complete in all shards."""
        return min(map(self._home.chains.upper, member.shards))

    def chains(self, member: Member) -> Sequence[ChainReader]:
        return [self._home.chains.chain(shard) for shard in member.shards]

    def _list_uncopied(self, state: CollectionState, member: Member) -> Sequence[BlockGroup]:
        """Lists the blocks of the active rendition that another of the same content lacks."""
        count = state.active.synced + member.copied
        return groups_after(self.chains(state.active), count, by_time=len(member.row.shards) > 1)

    def _captures_left(self, state: CollectionState, member: Member) -> Sequence[BoundCapture]:
        own = self.captures_of(state, member.row.number)
        return remaining(self.captures_of(state, state.active.row.number), own)

    def switch(
        self,
        time: int,
        command: str,
        moves: Sequence[Move],
        also: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> list[DatasetId]:
        """Hands over: changes timelines, names, frontiers and visibility in one transaction, with ``also`` first.

        Returns what others may know now. Both sides reach the handover in that transaction, so that a reader crosses
        at once. If others know a chain, its last block says where its collection goes on. Raises Conflict.
        """
        told = [move for move in moves if self.is_told(move.old.dataset)]
        ends = [part for move in told for part in self._ends(move, Switch(time, command, move.new.row))]
        added = {part.dataset for part in ends}
        grown = [
            {each.row.number: self.size(each) + len(each.shards) for each in move if each.dataset in added}
            for move in moves
        ]

        def together(connection: sqlite3.Connection) -> None:
            also(connection)
            for move, sizes in zip(moves, grown, strict=True):
                self._switch(connection, Switch(time, command, move.new.row), sizes)
                _reach(connection, move, time)
            for move in told:
                for shard in move.new.shards:
                    visibility.follow(connection, move.old.dataset, shard, self._clock.now())

        self._committer.commit_now(Commit(parts=ends, also=together))
        self.step("switched")
        for shard in (shard for move in moves for member in move for shard in member.shards):
            self._committer.sign_upper(shard)
        return [shard for move in told for shard in move.new.shards]

    def _ends(self, move: Move, switch: Switch) -> list[CommitPart]:
        """Returns the last block of a chain that others know, which says where its collection goes on.

        The chain that goes on says all handovers so far. Shards all get the block.
        """
        new = load_state(self._home.chains.chain(move.new.dataset))
        assert new.head is not None
        counts = len(move.old.shards), len(move.new.shards)
        notice = HandoverNotice(move.new.dataset, switch.time, new.head, *counts)
        ended = load_state(self._home.chains.chain(move.old.dataset))
        timeline = append(self.state(move.old.dataset).timeline, switch)
        return [
            CommitPart.after(ended, from_millis(switch.time), (announce(ended.set_info, notice),)),
            CommitPart.after(new, from_millis(switch.time), (going_on(new.set_info, timeline),)),
        ]

    def say_handovers(self, dataset: DatasetId) -> None:
        """Writes all handovers so far into the active chain, which others may know of from now on, if it lacks some.

        Raises Conflict if others write to it all the time.
        """
        chain = self._home.chains.chain(dataset)
        for attempt in range(ATTEMPTS):
            state, known = self.state(dataset), load_state(chain)
            said = [(each.number, each.time) for each in rows_of(chain, dataset)]
            told = [(switch.to.number, switch.time) for switch in state.timeline.switches]
            is_active = state.active.dataset == dataset and self._home.keys.has_dataset_key(dataset)
            if not is_active or len(told) == 1 or said == told or known.head is None:
                return
            time = block_time(known, self._clock.now(), self._home.chains.upper(dataset))
            part = CommitPart.after(known, time, (going_on(known.set_info, state.timeline),))
            try:
                self._committer.commit_now(Commit(parts=(part,)))
            except Conflict:
                if attempt + 1 == ATTEMPTS:
                    raise

    def _switch(self, connection: sqlite3.Connection, switch: Switch, added: Mapping[int, int]) -> None:
        """Writes one handover.

        ``added``: blocks of the renditions to which the transaction also appends some, by number.
        """
        state, now = collections.of(connection, DatasetId.parse(switch.to.shards[0])), self._clock.now()
        old, new = state.active, state.member(switch.to.number)
        hand_on(connection, old, new, now)
        end = commit_point([self._home.chains.chain(shard) for shard in new.shards])
        pushes.carry(connection, old.dataset, new.dataset, self._length(new.dataset) - 1, str(end.hash))
        sizes = {member.row.number: self.size(member) for member in state.members if not member.dropped} | dict(added)
        level = [*state.equals(old.row.number), *state.equals(new.row.number)]
        state = state.with_members(
            *(msgspec.structs.replace(each, synced=sizes[each.row.number], copied=0) for each in level)
        )
        collections.keep(connection, msgspec.structs.replace(state, timeline=append(state.timeline, switch)))

    def is_told(self, dataset: DatasetId) -> bool:
        return self._visibility.is_known(dataset)

    def size(self, member: Member) -> int:
        """Returns the number of blocks in all shards."""
        return sum(map(self._length, member.shards))

    def _length(self, dataset: DatasetId) -> int:
        head = self._home.chains.chain(dataset).head()
        return 0 if head is None else head.size

    def run_on(self, member: Member, until: int) -> None:
        self._shards.advance(member.shards, until)
        for shard in member.shards:
            self._committer.sign_upper(shard)

    def is_read(self, member: Member) -> bool:
        """Whether another dataset here still needs the data of a rendition."""
        with self._home.database.read() as connection:
            readers = [reader for shard in member.shards for reader in self._readers(shard)]
            return any(not collections.is_let_go(connection, reader) for reader in readers)

    def drop(self, member: Member) -> None:
        """Marks a rendition's data as gone, then frees it. Raises Refused or Conflict if a reader holds it."""
        sizes = {shard: self._keeping.count_objects(shard) for shard in member.shards}
        with self._home.database.write() as connection:
            for shard in member.shards:
                self._home.held(connection, shard)
            state, now = collections.of(connection, member.dataset), self._clock.now()
            shards = [shard for other in state.members for shard in other.shards]
            held = [each.time for other in shards for each in ReadHolds(connection).of(other, now)]
            if is_needed(state.timeline, member.row.number, min(held, default=None)):
                raise Conflict(f"a reader holds rendition {member.row.number}", rule="read-hold", hint="wait")
            collections.keep(connection, state.with_members(msgspec.structs.replace(member, let_go=True)))
            for shard, size in sizes.items():
                Holdings(connection).keep_extent(shard, Extent(size, size, ""))
        self.step("marked")
        self.sweep(member)

    def sweep(self, member: Member) -> bool:
        """Frees the data of a rendition that is marked as gone. Returns whether all of it is freed."""
        for shard in member.shards:
            segments.forget(self._home.folder(SEGMENTS), shard)
            folds.forget(self._home.folder(FOLDS), shard)
            self._keeping.let_go(shard, self._length(shard))
        return self.is_swept(member)

    def is_swept(self, member: Member) -> bool:
        with self._home.database.read() as connection:
            return not any(Holdings(connection).objects(shard) for shard in member.shards)

    def time_of(self, state: CollectionState) -> int:
        """Returns a time that is after all that the active rendition has, and before any block still to come."""
        uppers = map(self._home.chains.upper, state.active.shards)
        return max(to_millis(self._clock.now()), *uppers)


def _reach(connection: sqlite3.Connection, move: Move, time: int) -> None:
    """Completes the old rendition before a handover, and the new one at it: nobody writes to them meanwhile."""
    for member, upper in ((move.old, time), (move.new, time + 1)):
        for shard in member.shards:
            uppers.move_on(connection, shard, upper)


def _last_of(group: BlockGroup) -> Multihash:
    """Returns the last block of a group in the first shard that has one."""
    return next(own[-1].hash for own in group.blocks if own)


def _is_more(group: BlockGroup, bound: BoundCapture) -> bool:
    """Whether a group has other blocks than those that became of a capture."""
    numbers = [(own[0].sequence_number, own[-1].sequence_number) for own in group.blocks if own]
    return numbers != [(part.first, part.last) for part in bound.parts]
