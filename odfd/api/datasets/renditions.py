"""Makes renditions of collections, hands over to them and abandons them, for the API.

What is next is decided by ``odfd.renditions.handover``; this performs one durable effect after the other, and asks
again. A command that is repeated with its id goes on where its process died. Spec: docs/spec/collections.md#renditions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec
import trio

from chain import instant
from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import from_millis, to_millis
from chain.model.events import AddData, DatasetKind, Seed
from chain.state import load_state
from chain.store.shards import SEALED, STANDS, CommitPoint, Proposal
from chain.store.sqlite_shards import SqliteShards
from odfd.api.resources.apply import BASE_KIND
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets import captures
from odfd.datasets.captures import BoundCapture
from odfd.datasets.catalog import Catalog, DatasetEntry
from odfd.datasets.creation import declaration
from odfd.datasets.visibility import Mark, Marks
from odfd.ingest.decoding import decode, remaining
from odfd.ingest.driver import IngestDependencies
from odfd.renditions import handover, tables
from odfd.renditions.handover import BringUp, ChooseTime, Command, HandOver, Refuse, RunOn, Seal, Situation
from odfd.renditions.tables import CollectionState, Member
from odfd.renditions.timeline import RenditionRow, Switch, appended
from odfd.resources.store import Resources
from odfd.runtime.about import about
from odfd.runtime.tasks import Report
from odfd.state.directory import StateDirectory
from odfd.trust.signing.owner_commit import OwnerCommitter

MAX_ID: Final = 64
EFFECTS: Final = 1000
"""Of one command at a time; each makes progress, so more are a mistake of ours."""


class RenditionService:
    """The API service for renditions."""

    def __init__(
        self,
        home: StateDirectory,
        ingest: IngestDependencies,
        committer: OwnerCommitter,
        context: Context,
        delete: Callable[[str], Awaitable[object]],
        used: Callable[[DatasetId], Sequence[str]],
        new_id: Callable[[], str],
    ) -> None:
        """``used``: why a dataset's identity has to stay, in words."""
        self._delete = delete
        self._home, self._ingest, self._committer = home, ingest, committer
        self._board, self._clock, self._events = context.board, context.clock, context.events
        self._used, self._new_id = used, new_id
        self._step: Callable[[str], None] = lambda _: None
        """Called after each durable effect, where tests let a process die."""
        self._point = CommitPoint(SqliteShards(home.database, home.chains))

    async def list(self, ref: str | None = None) -> Sequence[wire.RenditionView]:
        """Lists the renditions of a collection, of which a plain dataset has one; or of all that have several.

        Raises NotFound.
        """

        def look() -> Sequence[wire.RenditionView]:
            with self._home.database.read() as connection:
                states = tables.every(connection) if ref is None else []
            found = states if ref is None else [self._state(self._home.resolve(ref).id)]
            return [self._view(state, each) for state in found for each in state.members]

        return await trio.to_thread.run_sync(look)

    async def create(self, ref: str, request: wire.RenditionRequest) -> wire.TaskRef:
        """Decodes the captured bytes anew, as the collection is declared now. Result: RenditionView.

        Raises NotFound, Invalid, Refused: something of it was not captured.
        """
        name = self._id(request.id)
        if request.origin != "raw":
            raise Refused(
                f"a rendition from {request.origin!r} is not built",
                rule="rendition-from",
                hint="from raw; odfctl compact merges slices of a plain dataset",
            )
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)

        async def work(report: Report) -> wire.RenditionView:
            report.begin(f"decoding {entry.name} anew", None, "transactions")
            async with self._alone(entry):
                number = await trio.to_thread.run_sync(self._begun, entry, name)
                self._step("rendition-begun")
                state = await trio.to_thread.run_sync(self._state, entry.id)
                await self._bring_up(state, number, report)
            return await trio.to_thread.run_sync(lambda: self._shown(entry.id, number))

        return task_ref(self._board.submit("rendition", entry.name, work, about(entry.id)))

    async def hand_over(self, ref: str, number: int, request: wire.HandoverRequest) -> wire.TaskRef:
        """Makes a rendition the active one at one time. Result: RenditionView. Raises NotFound, Invalid, Refused."""
        name = self._id(request.id)
        asked = 0 if request.at is None else to_millis(instant.parse(request.at))
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)

        async def work(report: Report) -> wire.RenditionView:
            report.begin(f"handing {entry.name} over", None, "transactions")
            async with self._alone(entry):
                command = await trio.to_thread.run_sync(self._asked, entry.id, Command(name, number, asked))
                self._step("handover-asked")
                await self._perform(entry.id, command, report)
            return await trio.to_thread.run_sync(lambda: self._shown(entry.id, number))

        return task_ref(self._board.submit("handover", entry.name, work, about(entry.id)))

    async def abandon(self, ref: str, number: int) -> wire.RenditionView:
        """Deletes a rendition that was never active. Raises NotFound, Invalid, Refused."""
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)
        async with self._alone(entry):
            state = await trio.to_thread.run_sync(self._state, entry.id)
            member = state.member(number)
            if any(each.to.number == number for each in state.timeline.switches):
                raise Refused(
                    f"rendition {number} was active: readers may be in it",
                    rule="rendition-active",
                    hint=f"odfctl delete dataset {self._home.name_of(member.dataset)}, when nobody needs it",
                )
            if not member.dropped:
                await self._delete(str(member.dataset))
            return await trio.to_thread.run_sync(lambda: self._shown(entry.id, number))

    @asynccontextmanager
    async def _alone(self, entry: DatasetEntry) -> AsyncIterator[None]:
        """One command at a time, and nobody ingests into the active rendition; into others nobody does ever.

        The lock of a collection comes before that of a dataset, always: nobody waits in a circle.
        """
        first = await trio.to_thread.run_sync(self._state, entry.id)
        async with self._home.turns.of(("rendition", first.id)):
            active = (await trio.to_thread.run_sync(self._state, entry.id)).active.dataset
            async with self._home.turns.of(active):
                yield

    async def _perform(self, dataset: DatasetId, command: Command, report: Report) -> None:
        """One effect after another, until nothing is to be done now. Raises Refused."""
        for _ in range(EFFECTS):
            state = await trio.to_thread.run_sync(self._state, dataset)
            known = state.command(command.id) or command
            effect = await trio.to_thread.run_sync(lambda s=state, c=known: handover.next_effect(self._situation(s, c)))
            match effect:
                case Refuse(rule=rule, message=message):
                    raise Refused(message, rule=rule, hint="odfctl get renditions")
                case ChooseTime(time=time):
                    if from_millis(time) > self._clock.now():
                        raise Refused(
                            f"the handover is for {instant.render(from_millis(time))}, which is not yet",
                            rule="handover-time",
                            hint="ask again then; or leave out --at",
                        )
                    timed = msgspec.structs.replace(known, time=time)
                    await trio.to_thread.run_sync(self._note, dataset, timed)
                case BringUp(rendition=number, until=until):
                    await self._bring_up(state, number, report)
                    await trio.to_thread.run_sync(self._run_on, state.member(number), until)
                case HandOver(time=time, to=number):
                    await trio.to_thread.run_sync(
                        self._switch, dataset, Switch(time, known.id, state.member(number).row)
                    )
                    for each in (state.active, state.member(number)):
                        name = self._home.name_of(each.dataset)
                        self._events.emit(
                            "dataset.renamed",
                            name,
                            "its collection handed over",
                            about=about(each.dataset),
                            id=str(each.dataset),
                        )
                case RunOn(rendition=number, until=until):
                    await trio.to_thread.run_sync(self._run_on, state.member(number), until)
                case Seal(rendition=number):
                    await trio.to_thread.run_sync(self._run_on, state.member(number), SEALED)
                case _:
                    return
            self._step(type(effect).__name__)
        raise Conflict("a handover makes no progress", rule="handover-effects", hint="report it")

    def _situation(self, state: CollectionState, command: Command) -> Situation:
        with self._home.database.read() as connection:
            source = captures.of(connection, state.active.dataset)
            left = {
                each.row.number: remaining(source, captures.of(connection, each.dataset))
                for each in state.members
                if not each.dropped and each.row.number == command.to and command.to != state.active.row.number
            }
        uppers = {each.row.number: self._home.chains.upper(each.dataset) for each in state.members if not each.dropped}
        bound = source[-1].time + 1 if source else 0
        for number, rest in left.items():
            if rest and uppers[number] < SEALED and uppers[number] < bound:
                uppers[number] = min(uppers[number], rest[0].time)
        return Situation(
            command=command,
            timeline=state.timeline,
            uppers=uppers,
            bound=bound,
            now=to_millis(self._clock.now()),
            wanted={each.to for each in state.commands if each.time is None},
            dropped={each.row.number for each in state.members if each.dropped},
        )

    def _begun(self, entry: DatasetEntry, name: str) -> int:
        """Begins the chain of a new rendition with its name and its place in the collection. Raises Refused."""
        state = self._state(entry.id)
        made = next((each for each in state.members if each.command == name), None)
        if made is not None:
            return made.row.number
        source = self._whole(state)
        declared = declaration(load_state(self._home.chains.chain(state.active.dataset)), entry.name)
        base = self._home.name_of(state.active.dataset)
        number, time = len(state.members), from_millis(source[0].time)
        with self._home.newborn() as born:

            def together(connection: sqlite3.Connection) -> None:
                resources, now = Resources(connection), self._clock.now()
                Catalog(resources).add(f"{base}.r{number}", born, now)
                folder = resources.get(BASE_KIND, str(state.active.dataset))
                resources.apply(BASE_KIND, str(born), folder.spec if folder else b"", now)
                captures.begin(connection, born, now)
                Marks(connection).put(born, Mark.PRIVATE, now)  # whatever the settings publish
                row = RenditionRow(number=number, shards=(str(born),), since=source[0].time, reason="from raw")
                member = Member(row=row, origin="raw", command=name)
                tables.keep(connection, msgspec.structs.replace(state, members=(*state.members, member)))

            events = (Seed(dataset_id=born, dataset_kind=DatasetKind.ROOT), *declared.metadata)
            self._committer.commit_now(born, None, events, (), time, together)
        return number

    def _whole(self, state: CollectionState) -> Sequence[BoundCapture]:
        """The captures, if each block of data has one. Raises Refused."""
        active, name = state.active.dataset, self._home.name_of(state.active.dataset)
        chain = self._home.chains.chain(active)
        if load_state(chain).kind is not DatasetKind.ROOT or not self._home.keys.has_dataset_key(active):
            raise Refused(f"{name} is not ingested by this node", rule="raw-owner", hint="its owner decodes it anew")
        with self._home.database.read() as connection:
            source = captures.of(connection, active)
        bound = {number for each in source for number in range(each.first, each.last + 1)}
        block = chain.last_of((AddData.__name__,))
        while block is not None and block.sequence_number in bound:
            block = chain.last_of((AddData.__name__,), block.sequence_number)
        if block is not None or not source:
            which = "nothing of it is" if block is None else f"block #{block.sequence_number} is not"
            raise Refused(
                f"{name} cannot be decoded anew: {which} captured",
                rule="rendition-captures",
                hint="odfctl raw keep before the first data; corrections and watermarks are not captured",
            )
        return source

    async def _bring_up(self, state: CollectionState, number: int, report: Report) -> None:
        def left() -> Sequence[BoundCapture]:
            with self._home.database.read() as connection:
                source = captures.of(connection, state.active.dataset)
                return remaining(source, captures.of(connection, state.member(number).dataset))

        for each in await trio.to_thread.run_sync(left):
            await decode(self._ingest, state.member(number).dataset, each)
            report.advance()
            self._step("decoded")

    def _switch(self, dataset: DatasetId, switch: Switch) -> None:
        """The handover: the timeline and the names change in one transaction. Raises Refused, Conflict."""
        with self._home.database.write() as connection:
            state, now = tables.of(connection, dataset), self._clock.now()
            old, new = state.active.dataset, state.member(switch.to.number).dataset
            self._check_unused(old)
            catalog = Catalog(Resources(connection))
            name = catalog.name_of(old)
            catalog.rename(catalog.resolve(str(old)), f"{name}.r{state.active.row.number}", now)
            catalog.rename(catalog.resolve(str(new)), name, now)
            tables.keep(connection, msgspec.structs.replace(state, timeline=appended(state.timeline, switch)))

    def _check_unused(self, dataset: DatasetId) -> None:
        """Raises Refused where others go by the identity that the collection has now."""
        why = self._used(dataset)
        if why:
            raise Refused(
                f"the collection cannot hand over: {'; '.join(why)}, and would stay with the old rendition",
                rule="rendition-used",
                hint="derived and published datasets do not hand over with it yet",
            )

    def _asked(self, dataset: DatasetId, command: Command) -> Command:
        """Step 1: the command's row. The same id with another body is refused. Raises Invalid, Refused."""
        with self._home.database.write() as connection:
            state = tables.of(connection, dataset)
            known = state.command(command.id)
            if known is not None:
                if (known.to, known.asked) != (command.to, command.asked):
                    raise Invalid(f"command {command.id} asked for something else", rule="rendition-command")
                return known
            if state.member(command.to).dropped or state.active.row.number == command.to:
                raise Refused(f"rendition {command.to} is active, or gone", rule="rendition-active")
            self._check_unused(state.active.dataset)
            tables.keep(connection, msgspec.structs.replace(state, commands=(*state.commands, command)))
        return command

    def _note(self, dataset: DatasetId, command: Command) -> None:
        with self._home.database.write() as connection:
            state = tables.of(connection, dataset)
            commands = tuple(command if each.id == command.id else each for each in state.commands)
            tables.keep(connection, msgspec.structs.replace(state, commands=commands))

    def _run_on(self, member: Member, until: int) -> None:
        (outcome,) = self._point.append([Proposal(dataset=member.dataset, new_upper=until)])
        if not isinstance(outcome, STANDS):
            raise Conflict(f"the frontier of rendition {member.row.number} did not move", rule="compare-and-append")

    def _state(self, dataset: DatasetId) -> CollectionState:
        with self._home.database.read() as connection:
            return tables.of(connection, dataset)

    def _shown(self, dataset: DatasetId, number: int) -> wire.RenditionView:
        state = self._state(dataset)
        return self._view(state, state.member(number))

    def _view(self, state: CollectionState, member: Member) -> wire.RenditionView:
        number, active = member.row.number, state.active.row.number
        times = [each.time for each in state.timeline.switches[1:] if each.to.number == number]
        upper = 0 if member.dropped else self._home.chains.upper(member.dataset)
        been = any(each.to.number == number for each in state.timeline.switches)
        phase: Literal["Active", "Superseded", "Building"]
        phase = "Active" if number == active else "Superseded" if been else "Building"
        return wire.RenditionView(
            number=number,
            dataset="" if member.dropped else self._home.name_of(member.dataset),
            dataset_id=str(member.dataset),
            origin=member.origin,
            state="Dropped" if member.dropped else "Sealed" if upper == SEALED else phase,
            active_since=instant.render(from_millis(times[-1])) if times else None,
            upper=instant.render(from_millis(upper)) if 0 < upper < SEALED else None,
        )

    def _id(self, given: str | None) -> str:
        if given is None:
            return self._new_id()
        if not 0 < len(given) <= MAX_ID:
            raise Invalid(f"an id of {len(given)} characters", rule="rendition-command", hint=f"1 to {MAX_ID}")
        return given
