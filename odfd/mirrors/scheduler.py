"""Keeps all mirrors up to date: runs one worker for each mirror, woken by news and by the clock.

Made by the wiring, works while ``run`` runs. A pass that fails because of the network is tried again with growing
pauses; one that fails because the chain breaks a rule waits for news, since asking again would give the same answer.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import msgspec
import trio

from chain import instant
from chain.backoff import Backoff
from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.store.database import Database
from chain.store.shards import SEALED
from chain.wording import plural
from odfd.errors import sole_faults
from odfd.mirrors.mirror_state import FOUND, Mirror, MirrorVisibility, SchedulerState
from odfd.mirrors.sync import Current, MirrorSync, NobodyHasIt, Outcome, Synced
from odfd.obs.events import EventLog
from odfd.runtime.clock import Clock
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life, Logger
from odfd.store import mirror_specs, unmanaged, visibility
from odfd.store.catalog import Catalog
from odfd.store.holdings import Holdings
from odfd.store.ledger.signed_heads import DataAvailability
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.read_holds import HistoryHeld
from p2p.ports import PeerId

ROUND_SECONDS: Final = 60.0
"""Seconds after which a mirror is checked even without announcements."""
AGAIN: Final = Backoff(first=1.0, most=ROUND_SECONDS)
"""Pauses before a failed pass is tried again."""
NEWCOMERS_SECONDS: Final = 2.0
"""Seconds between two times that new peers are asked for missing data, as peers may come and go at any rate."""


class MirrorScheduler:
    """Schedules the passes of all mirrors of a node.

    ``after_sync`` is called for every head that moved, and for data that came later than its blocks.

    ``doubted`` is called for each pass that brought no blocks though more are signed: they may be of another history.
    """

    def __init__(
        self,
        database: Database,
        sync: MirrorSync,
        events: EventLog,
        clock: Clock,
        logger: Logger,
        after_sync: Callable[[DatasetId], None],
        on_stored: Callable[[DatasetId], object],
        is_joined: Callable[[], bool],
        doubted: Callable[[DatasetId], object] = lambda _: None,
    ) -> None:
        """``on_stored``: called from a worker thread after a spec was stored, before anything is fetched for it.

        ``is_joined``: whether the node is in a network, so that peers may be asked.
        """
        self._on_stored, self.is_joined = on_stored, is_joined
        self._doubted = doubted
        self._database = database
        self._sync = sync
        self._events = events
        self._clock = clock
        self._logger = logger
        self._after_sync = after_sync
        self._mirrors: dict[DatasetId, Mirror] = {}
        self._nursery: trio.Nursery | None = None
        self._asks_newcomers = False
        self._newcomers_after = -math.inf

    async def run(self, life: Life) -> None:
        """Runs until asked to stop; a pass under way is then cancelled, and continues after the next start."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for spec in await trio.to_thread.run_sync(self._specs):
                    self._begin(spec)
                life.ready()
                await life.stopping.wait()
                self._nursery = None
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None

    async def add(self, spec: MirrorSpec, shown: MirrorVisibility = FOUND) -> Mirror:
        """Adds a mirror and begins at once. Adding it again with other terms replaces them.

        Raises Invalid, Environment; Refused while its data is protected from deletion.
        """

        def record() -> None:
            with self._database.write() as connection:
                self.record(connection, spec, shown)

        await trio.to_thread.run_sync(record)
        return await self.take_up(spec)

    def record(self, connection: sqlite3.Connection, spec: MirrorSpec, shown: MirrorVisibility) -> None:
        """Records a mirror in the transaction of others; ``take_up`` follows. Raises as ``add``."""
        spec.check()
        now = self._clock.now()
        unmanaged.check_managed(connection, spec.id)
        Catalog(connection).add(spec.name, spec.id, now)
        mirror_specs.keep(connection, spec, now)
        visibility.mark_mirrored(
            connection, spec.id, shown.mark(spec), now, is_said=shown.private is not None or bool(spec.peers)
        )
        if spec.network is not None:
            visibility.limit_to(connection, spec.id, spec.network, now)
        inside = mirror_specs.inside(connection, spec.id)
        for each in inside:  # what pauses a collection pauses all its chains
            mirror_specs.keep(connection, msgspec.structs.replace(each, paused=spec.paused), now)
        for each in (spec, *inside):
            Holdings(connection).replan(each.id)

    async def take_up(self, spec: MirrorSpec) -> Mirror:
        """Begins a recorded mirror, or goes on by its new terms. Raises Environment while the daemon stops."""
        await trio.to_thread.run_sync(self._on_stored, spec.id)
        specs = (*await trio.to_thread.run_sync(self._inside, spec.id), spec)
        for each in specs:
            if each.paused and (known := self._mirrors.get(each.id)) is not None:
                await self._stop(known)
        mirrors = list(map(self._go_on, specs))
        await self.dismiss(mirror.spec.id for mirror in mirrors)  # one may be deleted already
        return mirrors[-1]

    async def reread(self, datasets: Iterable[DatasetId]) -> None:
        """Takes the names and terms of mirrors as they are stored now."""
        for dataset in datasets:
            spec = await trio.to_thread.run_sync(self._spec, dataset)
            known = self._mirrors.get(dataset)
            if spec is not None and known is not None:
                known.spec = spec

    def _go_on(self, spec: MirrorSpec) -> Mirror:
        known = self._mirrors.get(spec.id)
        if known is None or known.spec.paused:
            return self._begin(spec)
        known.spec = spec
        self._sync.spec_changed(spec)
        known.fresh = known.passes + (2 if known.passing else 1)
        self.poke(spec.id)
        return known

    async def dismiss(self, datasets: Iterable[DatasetId]) -> None:
        """Stops mirroring those of some datasets of which no mirror is stored any more."""
        for dataset in datasets:
            mirror = self._mirrors.get(dataset)
            if mirror is not None and await trio.to_thread.run_sync(self._spec, dataset) is None:
                await self._stop(mirror)

    async def pause(self, dataset: DatasetId, *, paused: bool) -> Mirror:
        """Pauses a mirror or resumes it; remembered over restarts. Cancels a pass without loss. Raises NotFound."""
        mirror = self.get(dataset)
        if mirror.spec.paused == paused:
            return mirror

        def record() -> MirrorSpec:
            with self._database.write() as connection:
                held = mirror_specs.of(connection, dataset)  # it may be renamed or deleted meanwhile
                if held is None:
                    raise mirror_specs.not_mirrored(dataset)
                spec = msgspec.structs.replace(held, paused=paused)
                mirror_specs.keep(connection, spec, self._clock.now())
                return spec

        spec = await trio.to_thread.run_sync(record)
        await self._stop(mirror)
        self._events.emit("mirror.paused" if paused else "mirror.resumed", spec.name, about=about(spec.id))
        mirror = self._begin(spec)
        await self.dismiss([dataset])
        return mirror

    @asynccontextmanager
    async def still(self, dataset: DatasetId) -> AsyncIterator[None]:
        """Stops the worker of this mirror, if it is one, for the duration of the block."""
        mirror = self._mirrors.get(dataset)
        if mirror is None:
            yield
            return
        await self._stop(mirror)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                spec = await trio.to_thread.run_sync(self._spec, dataset)
            if spec is not None and self._nursery is not None:
                self._begin(spec)

    async def _stop(self, mirror: Mirror) -> None:
        self._mirrors.pop(mirror.spec.id, None)
        mirror.scope.cancel()
        await mirror.ended.wait()

    def get(self, dataset: DatasetId) -> Mirror:
        """Returns the mirror of a dataset. Raises NotFound."""
        mirror = self._mirrors.get(dataset)
        if mirror is None:
            raise mirror_specs.not_mirrored(dataset)
        return mirror

    def refused_by(self, dataset: DatasetId) -> str:
        """Returns the rule by which newer blocks of a mirror are refused; empty: they are not, or it is no mirror."""
        mirror = self._mirrors.get(dataset)
        if mirror is None or mirror.state is not SchedulerState.REFUSED or mirror.fault is None:
            return ""
        return mirror.fault.rule

    def find(self, dataset: DatasetId) -> Mirror | None:
        return self._mirrors.get(dataset)

    def holders(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, frozenset[PeerId]]:
        """Returns, for those of ``datasets`` that are mirrors, the connected peers among the last known holders."""
        return self._sync.holders(dataset for dataset in datasets if dataset in self._mirrors)

    def all(self) -> list[Mirror]:
        return sorted(self._mirrors.values(), key=lambda mirror: mirror.spec.name.casefold())

    def poke(self, dataset: DatasetId) -> bool:
        """Wakes the mirror of a dataset, because something may concern it; returns whether there is one."""
        mirror = self._mirrors.get(dataset)
        if mirror is not None:
            mirror.is_for_newcomers = False
            mirror.poked.set()
        return mirror is not None

    def poke_all(self) -> None:
        for mirror in self._mirrors.values():
            mirror.poked.set()

    def met_someone(self) -> None:
        """Lets mirrors that lack something ask new peers soon, all together."""
        if self._nursery is not None and not self._asks_newcomers:
            self._asks_newcomers = True
            self._nursery.start_soon(self._ask_newcomers)

    async def _ask_newcomers(self) -> None:
        try:
            await trio.sleep_until(self._newcomers_after)
        finally:
            self._asks_newcomers = False
        self._newcomers_after = trio.current_time() + NEWCOMERS_SECONDS
        for mirror in self._mirrors.values():
            if (mirror.lacks_peers or mirror.rests) and not mirror.poked.is_set():
                mirror.is_for_newcomers = True
                mirror.poked.set()

    async def pass_now(self, dataset: DatasetId) -> Mirror:
        """Requests news and a pass, and waits for a pass begun after this call. Raises NotFound, Refused (paused)."""
        mirror = self.get(dataset)
        if mirror.spec.paused:
            name = mirror.spec.name
            raise Refused(f"{name} is paused", rule="mirror-paused", hint=f"odfctl mirror resume {name}")
        mirror.silent = await self._sync.ask_around(dataset)
        wanted = mirror.passes + (2 if mirror.passing else 1)
        mirror.poked.set()
        while mirror.passes < wanted and not mirror.ended.is_set():
            await mirror.turned.wait()
        if mirror.ended.is_set():
            raise mirror_specs.not_mirrored(dataset)
        return mirror

    def _spec(self, dataset: DatasetId) -> MirrorSpec | None:
        with self._database.read() as connection:
            return mirror_specs.of(connection, dataset)

    def _inside(self, dataset: DatasetId) -> list[MirrorSpec]:
        with self._database.read() as connection:
            return mirror_specs.inside(connection, dataset)

    def _specs(self) -> list[MirrorSpec]:
        with self._database.read() as connection:
            return mirror_specs.all_of(connection)

    def _begin(self, spec: MirrorSpec) -> Mirror:
        if self._nursery is None:
            raise Environment(
                "mirrors are not running: the daemon is stopping", rule="draining", hint="try again later"
            )
        mirror = self._mirrors[spec.id] = Mirror(spec)
        if spec.paused:
            mirror.state = SchedulerState.PAUSED
            mirror.ended.set()
        else:
            self._nursery.start_soon(self._work, mirror)
        return mirror

    async def _work(self, mirror: Mirror) -> None:
        try:
            with mirror.scope:
                await self._passes(mirror)
        finally:
            mirror.ended.set()
            mirror.turned.set()

    async def _passes(self, mirror: Mirror) -> None:
        failures = 0
        while True:
            mirror.poked, mirror.is_for_newcomers = trio.Event(), False
            mirror.passing = True
            again = await self._pass(mirror)
            short = mirror.tally.blocks < mirror.tally.blocks_wanted
            # If our own disk fails, nobody withholds anything.
            if (short or mirror.wanting) and mirror.state is not SchedulerState.FAILED:
                await self._note_withheld(mirror)
            mirror.passing = False
            mirror.passes += 1
            turned, mirror.turned = mirror.turned, trio.Event()
            turned.set()
            failures = failures + 1 if again else 0
            mirror.rests = self._is_alone(mirror)
            pause = math.inf if mirror.rests else AGAIN.whole(failures) if again else ROUND_SECONDS
            with trio.move_on_after(pause):
                await mirror.poked.wait()
                # Earlier failures say nothing about news. Newcomers reset nothing: there may be any number of them.
                failures = failures if mirror.is_for_newcomers else 0

    def _is_alone(self, mirror: Mirror) -> bool:
        """Whether only news can change the mirror's state: nobody can be asked, and nothing changes by time alone."""
        if self.is_joined() or mirror.wanting or mirror.fault is not None:
            return False
        is_at_rest = mirror.state in (SchedulerState.WAITING, SchedulerState.CURRENT)
        return is_at_rest and mirror.spec.via is None and mirror.spec.keep is None

    async def _pass(self, mirror: Mirror) -> bool:
        """Runs one pass; returns whether to try again soon. Every fault becomes the mirror's state and ends nothing."""
        try:
            with sole_faults():
                return self._settle(mirror, await self._sync.sync(mirror.spec, mirror.tally, partial(_begun, mirror)))
        except HistoryHeld as held:
            self._note(mirror, str(held))
            mirror.state, mirror.message, mirror.fault = SchedulerState.WAITING, str(held), held
            return True
        except Fault as fault:
            return self._fail(mirror, fault)

    async def _note_withheld(self, mirror: Mirror) -> None:
        def note() -> tuple[bool, bool]:
            with self._database.write() as connection:
                withheld = DataAvailability(connection).note(mirror.spec.id, self._clock.now())
            return withheld, mirror.tally.blocks < mirror.tally.blocks_wanted

        withheld, mirror.wanting = await trio.to_thread.run_sync(note)
        if withheld and not mirror.withheld:
            wanted, here = mirror.tally.blocks_wanted, mirror.tally.blocks
            message = f"{plural(wanted, 'block')} signed, and for a day no peer served more than {here}"
            self._events.emit(
                "head.withheld", mirror.spec.name, message, about=about(mirror.spec.id), blocks=here, signed=wanted
            )
        mirror.withheld = withheld

    def _settle(self, mirror: Mirror, outcome: Outcome) -> bool:
        name = mirror.spec.name
        mirror.fault = None
        match outcome:
            case Synced(head=head, blocks=blocks, peers=peers, note=note):
                self._note(mirror, note)
                mirror.state, mirror.message, mirror.asked = SchedulerState.CURRENT, note, peers
                self._events.emit(
                    "mirror.synced",
                    name,
                    f"{plural(blocks, 'block')}, head #{head.sequence_number}",
                    about=about(mirror.spec.id),
                    blocks=blocks,
                    id=mirror.spec.dataset,
                )
                self._after_sync(mirror.spec.id)
                return False
            case Current(peers=peers, connected=connected, objects=objects, note=note, upper=upper):
                if objects or upper is not None:
                    self._after_sync(mirror.spec.id)
                if upper is not None:
                    told, did = about(mirror.spec.id), mirror.spec.dataset
                    until = None if upper == SEALED else instant.render(from_millis(upper))
                    text = "its owner signed a later frontier"
                    self._events.emit("mirror.advanced", name, text, about=told, id=did, upper=until)
                self._note(mirror, note)
                mirror.state, mirror.asked = SchedulerState.CURRENT, peers
                mirror.message = note if peers else _nobody_to_ask(connected)
                return False
            case NobodyHasIt(reason=reason, is_unshared=is_unshared):
                if is_unshared and mirror.message != reason:
                    self._events.emit("mirror.unshared", name, reason, about=about(mirror.spec.id))
                mirror.state, mirror.message = SchedulerState.WAITING, reason
                return mirror.passes > 0 or mirror.tally.blocks < mirror.tally.blocks_wanted

    def _note(self, mirror: Mirror, note: str) -> None:
        if note and note != mirror.message:
            self._events.emit("mirror.held", mirror.spec.name, note, about=about(mirror.spec.id))

    def _fail(self, mirror: Mirror, fault: Fault) -> bool:
        refused = isinstance(fault, Invalid | Refused) and not isinstance(fault, NotFound)
        ours = isinstance(fault, Environment)
        if not ours and mirror.tally.blocks < mirror.tally.blocks_wanted:
            self._doubted(mirror.spec.id)
        mirror.state = SchedulerState.REFUSED if refused else SchedulerState.FAILED if ours else SchedulerState.STALLED
        mirror.fault = fault if refused or ours else None
        if mirror.message != str(fault):
            self._events.emit(
                f"mirror.{mirror.state.value}",
                mirror.spec.name,
                str(fault),
                about=about(mirror.spec.id),
                rule=fault.rule,
            )
            self._logger.error("mirror pass failed", mirror=mirror.spec.name, fault=str(fault), rule=fault.rule)
        mirror.message = str(fault)
        return not refused


def _begun(mirror: Mirror) -> None:
    mirror.state = SchedulerState.SYNCING


def _nobody_to_ask(connected: int) -> str:
    if not connected:
        return "no peer is connected that could be asked for more"
    return f"no connected peer serves it this far (there are {connected}), so none could be asked for more"
