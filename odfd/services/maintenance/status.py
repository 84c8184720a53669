"""Reports the status of the node and its engines, and runs the doctor (``doctor``)."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import trio

from chain import instant
from chain.ids import KeyDid
from chain.wording import plural
from config.render import toml
from engines.errors import NOT_INSTALLED
from engines.query.installed import why_no_sql
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import NODE_PATH, Owner, Permission, operation
from odfd.network.membership import Membership
from odfd.runtime.hanging_calls import Stepped
from odfd.runtime.subjects import Sees, about
from odfd.runtime.tasks import TaskPhase
from odfd.services.execution.engine import NodeEngine
from odfd.services.flows.service import FlowService
from odfd.services.maintenance.dependencies import Dependencies
from odfd.services.maintenance.doctor import Doctor, fail, ok
from odfd.services.network.mirrors import MirrorService
from odfd.services.trust.journal_recovery import JournalRecovery
from odfd.services.views.cache import BLOCKED
from odfd.services.views.views import DatasetViews
from odfd.store.directory import StateDirectory

_UNFINISHED: Final = (TaskPhase.RUNNING, TaskPhase.WAITING)


class RunningParts(NamedTuple):
    """The running parts of a node whose state the status shows."""

    engine: NodeEngine
    membership: Membership
    urls: Callable[[], Mapping[str, tuple[str, ...]]]
    """Returns the addresses at which others reach this node, by the table of settings or the door."""
    journal_recovery: JournalRecovery
    flows: FlowService
    mirrors: MirrorService
    verdict_key: KeyDid
    """The key with which this node signs verdicts."""


class StatusService:
    """The API service for the status of a node."""

    def __init__(
        self,
        home: StateDirectory,
        views: DatasetViews,
        doctor: Doctor,
        dependencies: Dependencies,
        running: RunningParts,
        context: Context,
        name: str,
    ) -> None:
        self._home = home
        self._doctor, self.dependencies = doctor, dependencies
        self._views = views
        self._engine = running.engine
        self._membership = running.membership
        self._urls = running.urls
        self._journal_recovery = running.journal_recovery
        self._flows, self._mirrors = running.flows, running.mirrors
        self._verdict_key = running.verdict_key
        self._context = context
        self._name = name
        self._started = context.clock.now()

    def account_status(self, account: str, sees: Sees) -> wire.Status:
        """Returns the status for an account: that the node is up, and counts of what the account may see. Blocking."""
        views = self._views.all()
        tasks = [task for task in self._context.board.list() if task.state in _UNFINISHED]
        told = sees([*(about(view.id) for view in views), *(task.about for task in tasks)])
        seen = [view for view, is_told in zip(views, told, strict=False) if is_told]
        return wire.Status(
            node_id="",
            version=self._context.version,
            name=self._name,
            datasets=dict(Counter(view.state for view in seen)),
            published=sum(view.published for view in seen),
            flows=self._flows.seen_counts(sees),
            mirrors=self._mirrors.counts(sees),
            tasks=sum(told[len(views) :]),
            account=account,
            started_at=instant.render(self._started),
        )

    @operation("GET", NODE_PATH + "/status", needs=Permission.BY_RULE)
    async def status(self) -> wire.Status:
        """Returns the status of the node: its ids and addresses, and counts of what it holds and does."""
        views, disk, mirrors = await trio.to_thread.run_sync(self._measure)
        peer, figures = self._membership.peer_id, self._membership.figures()
        node, urls = self._home.keys.node_key().did, self._urls()
        return wire.Status(
            node_id=str(node),
            version=self._context.version,
            name=self._name,
            peer_id=peer,
            listen=tuple(self._full(address) for address in self._membership.addresses()),
            http=urls.get("http", ()),
            flight=urls.get("flight", ()),
            api=urls.get("api", ()),
            networks=tuple(network.name for network in self._membership.networks),
            relays=figures.relays,
            reserved=figures.reserved,
            circuits=figures.circuits,
            peers=sum(view.connected for view in self._membership.peers()),
            datasets=dict(Counter(view.state for view in views)),
            published=sum(view.published for view in views),
            blocked=sum(BLOCKED in view.conditions for view in views),
            engine=self._engine.view(),
            disk=disk,
            flows=self._flows.counts(),
            lost_journals=len(self._journal_recovery.lost),
            mirrors=mirrors,
            tasks=sum(task.state in _UNFINISHED for task in self._context.board.list()),
            validator_key=None if self._verdict_key == node else str(self._verdict_key),
            started_at=instant.render(self._started),
            troubles=self._context.readiness.faults(),
            pid=os.getpid(),
            memory=resident_bytes(),
        )

    def _full(self, address: str) -> str:
        """Returns an address in the form that another node gives to ``--bootstrap``."""
        return address if "/p2p/" in address else f"{address}/p2p/{self._membership.peer_id}"

    def _measure(self) -> tuple[Sequence[wire.DatasetView], wire.DiskView, dict[str, int]]:
        usage = shutil.disk_usage(self._home.directory)
        disk = wire.DiskView(
            path=str(self._home.directory), total=usage.total, free=usage.free, database=self._home.database_size()
        )
        return self._views.all(), disk, self._mirrors.counts()

    @operation("GET", NODE_PATH + "/settings", needs=Owner.MACHINE)
    def settings(self) -> wire.SettingsView:
        """Returns the settings as they were loaded last; some take effect only at the next start."""
        loaded = self._context.settings()
        shown = toml(loaded.settings, loaded.origins)
        return wire.SettingsView(toml=shown, file=None if loaded.file is None else str(loaded.file))

    @operation(needs=Owner.MACHINE)
    async def doctor(self) -> Sequence[wire.Probe]:
        """Checks cheaply what the node depends on: disk, database, keys, heads, engine, network."""
        return [probe async for probe in self.examine(deep=False)]

    @operation(needs=Owner.MACHINE)
    async def examine(self, *, deep: bool = True) -> AsyncIterator[wire.Probe]:
        """Yields the result of each check as it is known. ``deep`` reads the whole database, which may take minutes."""
        probes = self._doctor.deep() if deep else self._doctor.quick()
        async for probe in Stepped(probes):
            yield probe
        for probe in (*self._around(), *await self.dependencies.probes()):
            yield probe

    def _around(self) -> list[wire.Probe]:
        probes = [self._parts_probe(), self._engine_probe(), _sql_probe(), self._sandbox_probe(), self._network_probe()]
        return [probe for probe in probes if probe is not None]

    def _engine_probe(self) -> wire.Probe:
        host = self._engine.host
        if host is not None:
            identity = host.identity
            engine = f"{identity.name} {identity.version}, {identity.digest[:18]}…"
            return ok("engine", f"{engine}, Java at {host.java.home}")
        why = self._engine.why_not
        if why is None:
            return wire.Probe(name="engine", result="warning", message="still starting")
        if why.rule == NOT_INSTALLED:
            return wire.Probe(name="engine", result="ok", message=str(why), hint=why.hint)
        return fail("engine", str(why), why.hint)

    def _sandbox_probe(self) -> wire.Probe | None:
        host = self._engine.host
        if host is None:
            return None
        weaker = "; ".join(str(verdict) for verdict in host.choice.passed_over)
        level = host.choice.level.value
        if level == "none":
            return wire.Probe(
                name="sandbox",
                result="warning",
                message=f"queries run unconfined ({weaker})",
                hint="odfctl docs cluster says what confines them then" if host.cluster else "install bubblewrap",
            )
        return ok("sandbox", f"level {level} ({weaker})" if weaker else f"level {level}")

    def _parts_probe(self) -> wire.Probe:
        """Tells which parts of the node failed and do not run steadily again: of all that are supervised."""
        parts, troubles = self._context.readiness.parts, self._context.readiness.troubles()
        down = [name for name, health in troubles.items() if health.up_since is None]
        if not troubles:
            return ok("parts", f"{plural(len(parts), 'part')} of the node, all run")
        text = "; ".join(f"{name} {health}" for name, health in troubles.items())
        hints = dict.fromkeys(
            hint for trouble in troubles.values() if (fault := trouble.trouble()) and (hint := fault.hint)
        )
        return wire.Probe(
            name="parts", result="failed" if down else "warning", message=text, hint="; ".join(hints) or "odfctl logs"
        )

    def _network_probe(self) -> wire.Probe:
        networks, failure = self._membership.networks, self._membership.failure
        if failure is not None:
            return fail("network", str(failure), failure.hint)
        if not networks:
            return wire.Probe(
                name="network",
                result="warning",
                message="no network joined",
                hint="odfctl network join NAME --bootstrap MULTIADDR",
            )
        peers = sum(view.connected for view in self._membership.peers())
        names = ", ".join(network.name for network in networks)
        names += f"; {self._membership.note}" if self._membership.note else ""
        if not peers and any(network.bootstrap for network in networks):
            return wire.Probe(
                name="network", result="warning", message=f"{names}: no peer answers", hint="odfctl peer list"
            )
        return ok("network", f"{plural(peers, 'peer')} in {names}")


def resident_bytes() -> int | None:
    """Returns the resident memory of this process; ``None`` if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _sql_probe() -> wire.Probe | None:
    why = why_no_sql()
    return None if why is None else wire.Probe(name="sql", result="ok", message=str(why), hint=why.hint)
