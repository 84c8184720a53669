"""Makes renditions of collections, hands over to them and abandons them, for the API.

``odfd.renditions.handover`` decides what is next; this module performs one durable effect after another. A command that
is repeated with the same id continues where its process died. Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
import trio

from chain import instant
from chain.data.partition import MAX_SHARDS
from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.events import DatasetKind
from chain.state import load_state
from chain.store.shards import SEALED
from chain.wording import plural
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, NODE_PATH, NumberPart, Owner, Permission, operation
from odfd.datasets.manifest import MAX_SHARD_COLUMNS
from odfd.datasets.shard_reading import find_end
from odfd.ingest.copying import Layout
from odfd.queries.rendition_times import owner_timeline
from odfd.renditions import handover
from odfd.renditions.handover import BringUp, ChooseTime, Command, Effect, HandOver, Refuse, RunOn
from odfd.renditions.timeline import find_switch
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.publishing.visibility import check_card_of
from odfd.services.renditions.derived import DerivedRenditions
from odfd.services.renditions.differences import RenditionDifferences
from odfd.services.renditions.effects import RenditionEffects
from odfd.services.renditions.origins import RenditionOrigins
from odfd.services.renditions.reading import reading_at_the_end
from odfd.services.renditions.upkeep import RenditionUpkeep
from odfd.store import collections
from odfd.store.catalog import DatasetEntry
from odfd.store.collections import CollectionState, Member
from odfd.store.directory import StateDirectory

MAX_ID: Final = 64
EFFECTS: Final = 1000
"""Most effects of one command; each makes progress, so more of them are a bug."""

_NUMBER: Final = NumberPart("a rendition", hint="odfctl get renditions")


class RenditionService:
    """The API service for renditions."""

    def __init__(  # noqa: PLR0913  # each part of a handover keeps a state of its own
        self,
        home: StateDirectory,
        effects: RenditionEffects,
        origins: RenditionOrigins,
        derived: DerivedRenditions,
        upkeep: RenditionUpkeep,
        differences: RenditionDifferences,
        context: Context,
        delete: Callable[[DatasetId], Awaitable[object]],
        new_id: Callable[[], str],
        show_to_others: Callable[[DatasetId], None],
        moved: Callable[[DatasetId], object],
    ) -> None:
        """``show_to_others`` tells other nodes of a dataset that they may know since a handover.

        ``moved``: called with each rendition that a handover began or ended.
        """
        self._show_to_others, self._moved = show_to_others, moved
        self._home, self._delete, self._new_id = home, delete, new_id
        self._effects, self._origins, self._derived = effects, origins, derived
        self.upkeep, self._differences = upkeep, differences
        self._board, self._clock, self._events = context.board, context.clock, context.events

    @operation("GET", DATASET_PATH + "/renditions", needs=Permission.BY_RULE, also=(NODE_PATH + "/renditions",))
    def list(self, ref: str | None = None) -> Sequence[wire.RenditionView]:
        """Lists the renditions of a collection, or of all collections that have several; a plain dataset has one.

        Raises NotFound.
        """
        with self._home.database.read() as connection:
            states = collections.every(connection) if ref is None else []
        found = states if ref is None else [self._effects.state(self._home.resolve(ref).id)]
        return [
            view
            for state in found
            for view in (*self._elsewhere(state), *(self._view(state, member) for member in state.members))
        ]

    @operation("GET", DATASET_PATH + "/handover", needs=Action.READ)
    def reading(self, ref: str) -> wire.HandoverReading:
        """Describes the difference that a reader of a former rendition reads at its end. Raises NotFound."""
        dataset = self._home.resolve(ref).id
        state = self._effects.state(dataset)
        return reading_at_the_end(self._home, state, state.number_of(dataset))

    @operation("POST", DATASET_PATH + "/renditions", needs=Owner.SOURCES)
    def create(self, ref: str, request: wire.RenditionRequest) -> wire.TaskRef:
        """Makes a rendition: from the captured bytes, as the collection is declared now, or from its present contents.

        Result: RenditionView. Raises NotFound, Invalid; Refused if something was not captured.
        """
        name, layout = self._id(request.id), _layout(request)
        entry, first = self._resolve(ref)
        collections.check_rendition(self._effects.state(entry.id))

        async def work(report: Report) -> wire.RenditionView:
            is_raw = request.origin == "raw"
            report.begin(f"{'decoding' if is_raw else 'reading'} {entry.name} again", None, "transactions")
            async with self._alone(first, entry):
                if is_raw:
                    number = await trio.to_thread.run_sync(self._origins.from_raw, entry.id, name, layout)
                else:
                    number = await self._origins.from_snapshot(entry.id, name, layout)
                self._effects.step("rendition-begun")
                if is_raw:
                    await self._effects.decode_rest(entry.id, number, report)
            return await self._show(entry.id, number)

        return task_ref(self._board.submit("rendition", entry.name, work, about(entry.id)))

    @operation("POST", DATASET_PATH + "/renditions/{number}/handover", needs=Owner.SOURCES)
    def hand_over(self, ref: str, number: Annotated[int, _NUMBER], request: wire.HandoverRequest) -> wire.TaskRef:
        """Makes a rendition the active one, at one time. Result: RenditionView. Raises NotFound, Invalid, Refused."""
        name = self._id(request.id)
        asked = 0 if request.at is None else to_millis(instant.parse(request.at))
        entry, first = self._resolve(ref)

        async def work(report: Report) -> wire.RenditionView:
            report.begin(f"handing {entry.name} over", None, "transactions")
            async with self._alone(first, entry):
                given = Command(name, number, asked)
                command = await trio.to_thread.run_sync(self._accept, entry.id, given, request.difference)
                self._effects.step("handover-asked")
                await self._perform(entry.id, command, report)
                if request.difference:
                    await self._differences.make(entry.id, name)
            self.upkeep.loop.poke()
            return await self._show(entry.id, number)

        return task_ref(self._board.submit("handover", entry.name, work, about(entry.id)))

    async def hand_over_readers(
        self, old: Member, new: Member, also: Callable[[sqlite3.Connection], None]
    ) -> Sequence[DatasetId]:
        """Hands over what derives here from a mirrored rendition, and swaps its names by ``also``, in one transaction.

        Returns the new renditions; none: nothing derives from it, and ``also`` was not called. Raises Fault if a
        transform cannot run over ``new``; nothing is changed then.
        """
        readers = await trio.to_thread.run_sync(self._derived.list_affected, old.dataset)
        async with AsyncExitStack() as turns:
            for reader in readers:
                await turns.enter_async_context(self._home.turns.of(reader))
            moves = (await self._derived.prepare(old, new))[1:]
            if not moves:
                return ()

            def switch() -> None:
                uppers = [self._effects.upper(member) for move in moves for member in move]
                time = max(to_millis(self._clock.now()), *uppers)
                for each in self._effects.switch(time, f"{old.dataset}@{new.dataset}:{time}", moves, also):
                    self._show_to_others(each)

            await trio.to_thread.run_sync(switch)
        for move in moves:
            for member in move:
                self._tell(member.dataset)
        return [move.new.dataset for move in moves]

    @operation("DELETE", DATASET_PATH + "/renditions/{number}", needs=Owner.SOURCES)
    async def abandon(self, ref: str, number: Annotated[int, _NUMBER]) -> wire.RenditionView:
        """Deletes a rendition that was never active, or a recorded difference, which is number 0 of its own name.

        Raises NotFound, Invalid, Refused.
        """
        entry, first = await trio.to_thread.run_sync(self._resolve, ref)
        async with self._alone(first, entry):
            view = await self._show(entry.id, number)
            if view.origin == "difference":
                await self._delete(entry.id)
                return msgspec.structs.replace(view, dataset="", state="Dropped")
            member = await trio.to_thread.run_sync(self._find_inactive, entry.id, number)
            if not member.dropped:
                await self._delete(member.dataset)
            return await self._show(entry.id, number)

    def _find_inactive(self, dataset: DatasetId, number: int) -> Member:
        """Returns a rendition that was never active. Raises NotFound, Refused."""
        state = self._effects.state(dataset)
        member = state.member(number)
        if any(switch.to.number == number for switch in state.timeline.switches):
            raise Refused(
                f"rendition {number} was active: readers may be in it",
                rule="rendition-active",
                hint=f"it goes with the dataset: odfctl delete dataset {self._home.name_of(state.active.dataset)}",
            )
        return member

    def _resolve(self, ref: str) -> tuple[DatasetEntry, DatasetId]:
        """Returns a dataset, and the id of its collection. Raises NotFound."""
        entry = self._home.resolve(ref)
        with self._home.database.read() as connection:
            return entry, collections.whole(connection, entry.id).id

    @asynccontextmanager
    async def _alone(self, first: DatasetId, entry: DatasetEntry) -> AsyncIterator[None]:
        """Excludes other commands on the collection, and ingests into the active rendition, which is the only one fed.

        ``first``: the id of the collection.
        The lock of a collection is taken before that of a dataset, and that of an input before those of its readers,
        always: so nobody can deadlock.
        """
        async with self._home.turns.of(("rendition", first)), AsyncExitStack() as turns:
            for each in await trio.to_thread.run_sync(self._list_written, entry.id):
                await turns.enter_async_context(self._home.turns.of(each))
            yield

    def _list_written(self, dataset: DatasetId) -> Sequence[DatasetId]:
        """Lists the active rendition of a collection, and those that derive from it."""
        active = self._effects.state(dataset).active.dataset
        return [active, *self._derived.list_affected(active)]

    async def _perform(self, dataset: DatasetId, command: Command, report: Report) -> None:
        """Performs the effects of a command until none is due now. Raises Refused.

        Those that listen are told at the end: what they ask for then is complete.
        """
        moved: list[DatasetId] = []
        try:
            for _ in range(EFFECTS):
                state, known, effect = await trio.to_thread.run_sync(self._advance, dataset, command)
                if isinstance(effect, HandOver):
                    moved += await self._hand_over(state, known, effect, report)
                elif not isinstance(effect, ChooseTime | Refuse) and not await self._effect(state, effect, report):
                    return
                self._effects.step(type(effect).__name__)
        finally:
            for each in moved:
                self._tell(each)
        raise Conflict("a handover makes no progress", rule="handover-effects", hint="report it")

    def _advance(self, dataset: DatasetId, command: Command) -> tuple[CollectionState, Command, Effect]:
        """Returns the next effect of a command; a decision is noted already. Raises Refused."""
        state = self._effects.state(dataset)
        known = state.command(command.id) or command
        effect = handover.next_effect(self._effects.situation(state, known))
        if isinstance(effect, ChooseTime | Refuse):
            self._decide(dataset, known, effect)
        return state, known, effect

    def _decide(self, dataset: DatasetId, command: Command, effect: ChooseTime | Refuse) -> None:
        """Notes the chosen time of a command. If it is refused, forgets the command and raises Refused."""
        try:
            timed = self._set_time(command, effect)
        except Refused:
            self._note(dataset, command, None)
            raise
        self._note(dataset, command, timed)

    def _set_time(self, command: Command, effect: ChooseTime | Refuse) -> Command:
        """Returns a command with its chosen time. Raises Refused if it cannot be carried out, or not yet."""
        if isinstance(effect, ChooseTime):
            if from_millis(effect.time) <= self._clock.now():
                return msgspec.structs.replace(command, time=effect.time)
            when = instant.render(from_millis(effect.time))
            effect = Refuse("handover-time", f"the handover is for {when}, which is not yet")
        hint = "ask again then; or leave out --at" if effect.rule == "handover-time" else "odfctl get renditions"
        raise Refused(effect.message, rule=effect.rule, hint=hint)

    async def _hand_over(
        self, state: CollectionState, command: Command, effect: HandOver, report: Report
    ) -> Sequence[DatasetId]:
        """Performs the handover itself. Returns the datasets whose names changed."""
        await self._effects.bring_up(state.active.dataset, effect.to, report)
        moves = await self._derived.prepare(state.active, state.member(effect.to))

        def switch() -> None:
            for dataset in self._effects.switch(effect.time, command.id, moves):
                self._show_to_others(dataset)

        await trio.to_thread.run_sync(switch)
        return [member.dataset for move in moves for member in move]

    async def _effect(self, state: CollectionState, effect: Effect, report: Report) -> bool:
        """Performs another effect; returns false if none is due now."""
        if not isinstance(effect, BringUp | RunOn):
            return False
        if isinstance(effect, BringUp):
            await self._effects.bring_up(state.active.dataset, effect.rendition, report)
        await trio.to_thread.run_sync(self._effects.run_on, state.member(effect.rendition), effect.until)
        return True

    def _tell(self, dataset: DatasetId) -> None:
        name = self._home.name_of(dataset)
        said = "its collection handed over"
        self._moved(dataset)
        self._events.emit("dataset.renamed", name, said, about=about(dataset), id=str(dataset))

    def _accept(self, dataset: DatasetId, command: Command, with_difference: bool) -> Command:
        """Stores a command with its time, in one transaction, or returns it if it is stored already.

        Raises Invalid if the same id asked for something else, Refused; with the difference also if there can be none.
        """
        state = self._effects.state(dataset)
        if with_difference and find_switch(state.timeline, command.id) is None and command.to < len(state.members):
            self._differences.check_comparable(state, command.to)
        if (known := self._find_command(state, command)) is not None:
            return known
        effect = handover.next_effect(self._effects.situation(state, command))
        assert isinstance(effect, ChooseTime | Refuse)
        timed = self._set_time(command, effect)
        with self._home.database.write() as connection:
            state = collections.of(connection, dataset)
            if (known := self._find_command(state, command)) is not None:
                return known
            collections.keep(connection, msgspec.structs.replace(state, commands=(*state.commands, timed)))
        return timed

    def _find_command(self, state: CollectionState, command: Command) -> Command | None:
        """Returns a command that is stored; ``None`` for one that may be. Raises as ``_accept``."""
        known = state.command(command.id)
        if known is not None:
            if (known.to, known.asked) != (command.to, command.asked):
                raise Invalid(f"command {command.id} asked for something else", rule="rendition-command")
            return known
        if state.member(command.to).is_gone or state.active.row.number == command.to:
            raise Refused(f"rendition {command.to} is active, or gone", rule="rendition-active")
        self._check_root(state.active.dataset)
        if self._effects.is_told(state.active.dataset):
            check_card_of(state.member(command.to), self._home.name_of(state.active.dataset))
        return None

    def _check_root(self, dataset: DatasetId) -> None:
        """Raises Refused for a derived dataset, which hands over only with its inputs."""
        if load_state(self._home.chains.chain(dataset)).kind is DatasetKind.DERIVATIVE:
            raise Refused(
                f"{self._home.name_of(dataset)} is derived: it hands over with its inputs",
                rule="rendition-derived",
                hint="hand the input over",
            )

    def _note(self, dataset: DatasetId, command: Command, became: Command | None) -> None:
        """Stores what became of a command; ``None``: it was refused, and is removed."""
        with self._home.database.write() as connection:
            state = collections.of(connection, dataset)
            commands = [became if each.id == command.id else each for each in state.commands]
            kept = tuple(each for each in commands if each is not None)
            collections.keep(connection, msgspec.structs.replace(state, commands=kept))

    async def _show(self, dataset: DatasetId, number: int) -> wire.RenditionView:
        def show() -> wire.RenditionView:
            state = self._effects.state(dataset)
            return self._view(state, state.member(number))

        return await trio.to_thread.run_sync(show)

    def _elsewhere(self, state: CollectionState) -> Sequence[wire.RenditionView]:
        """Lists former renditions of a mirror that are not here, as its owner tells of them."""
        rows = owner_timeline(self._home, state.active.dataset)
        return [
            wire.RenditionView(
                number=row.number, dataset="", dataset_id=str(row.to), origin="owner", state="Superseded",
                active_since=instant.render(from_millis(row.time)) if row.time else None,
                until=instant.render(from_millis(after.time)),
            )
            for row, after in pairwise(rows)
            if not any(member.has(row.to) for member in state.members)
        ]  # fmt: skip

    def _until(self, state: CollectionState, number: int) -> str | None:
        """Returns the time before which a rendition is known to be active."""
        switches = state.timeline.switches
        ends = [after.time for before, after in pairwise(switches) if before.to.number == number]
        if number != state.active.row.number:
            return instant.render(from_millis(ends[-1])) if ends else None
        upper = self._effects.upper(state.active)
        end = find_end(self._home, state.active.dataset)
        decided = max(state.timeline.upper, upper) if end is None else end[0]
        return instant.render(from_millis(decided)) if 0 < decided < SEALED else None

    def _view(self, state: CollectionState, member: Member) -> wire.RenditionView:
        number, active = member.row.number, state.active.row.number
        times = [switch.time for switch in state.timeline.switches[1:] if switch.to.number == number]
        upper = 0 if member.dropped else self._effects.upper(member)
        is_sharded = len(member.shards) > 1
        been = any(switch.to.number == number for switch in state.timeline.switches)
        phase: Literal["Active", "Superseded", "Building"]
        phase = "Active" if number == active else "Superseded" if been else "Building"
        return wire.RenditionView(
            number=number,
            dataset="" if member.dropped else self._home.name_of(member.dataset),
            dataset_id=str(member.dataset),
            origin=member.origin,
            state="Dropped" if member.is_gone else "Sealed" if upper == SEALED else phase,
            active_since=instant.render(from_millis(times[-1])) if times else None,
            since=None if member.of is None else instant.render(from_millis(member.row.since)),
            upper=instant.render(from_millis(upper)) if 0 < upper < SEALED else None,
            shards=tuple(map(str, member.shards)) if is_sharded else (),
            by=member.row.by,
            until=self._until(state, number),
        )

    def _id(self, given: str | None) -> str:
        if given is None:
            return self._new_id()
        if not 0 < len(given) <= MAX_ID:
            raise Invalid(f"an id of {len(given)} characters", rule="rendition-command", hint=f"1 to {MAX_ID}")
        return given


def _layout(request: wire.RenditionRequest) -> Layout | None:
    """Returns the shards that a request asks for, or ``None`` for none. Raises Invalid."""
    if request.shards is None and not request.by:
        return None
    shards = 1 if request.shards is None else request.shards
    if not 1 <= shards <= MAX_SHARDS or (shards > 1) != bool(request.by) or len(request.by) > MAX_SHARD_COLUMNS:
        raise Invalid(
            f"{plural(shards, 'shard')} by {plural(len(request.by), 'column')}",
            rule="shard-number",
            hint=f"1 without a column, or 2 to {MAX_SHARDS} by 1 to {MAX_SHARD_COLUMNS}: --shards 4 --by id",
        )
    return Layout(shards, request.by)
