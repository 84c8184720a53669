"""Tries what a node depends on beyond its own process and disk, for ``doctor``, ``status``, ``/readyz`` and metrics.

``TRIED_BY`` says for each setting that names something beyond the process by which probe it is tried. Declared
repositories and volumes are tried too, and the addresses at which others reach the node are dialled. Each try is a real
question, with a limit of its own. The results are kept in ``Readiness.dependencies`` and repeated while ``loop`` runs,
so that metrics need not ask.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import httpx
import trio

from chain.errors import Environment, Fault, Remote
from chain.wording import plural
from config.model import Settings
from odfd.control import wire
from odfd.ingest.containers import podman_version
from odfd.network.membership import Membership
from odfd.obs.span_exporter import ask_collector
from odfd.repositories.catalog import TYPE as REPOSITORY
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import run_abandonable
from odfd.runtime.reconcile_loop import ReconcileLoop
from odfd.runtime.supervision import Readiness
from odfd.services.transfer.remotes import Remotes
from odfd.services.volumes.worker import VolumeWorker
from odfd.site.server import SiteServer
from odfd.store.directory import StateDirectory
from p2p.web.client import new_client

TRY_SECONDS: Final = 10.0
"""Most seconds of one try: what answers later is of no use to whoever waits for it."""
SITE_SECONDS: Final = 2.0
"""Seconds until the node's own site must answer."""
WATCH_SECONDS: Final = 60.0
"""Seconds between two rounds of tries."""
TRIED_BY: Final = {
    "node.state-dir": "disk", "control.socket": "parts", "p2p.listen": "parts", "p2p.network": "network",
    "p2p.bootstrap": "network", "p2p.relays": "network", "http.listen": "parts", "http.ui": "parts",
    "http.ui-certificate": "parts", "http.ui-key": "parts", "http.ui-tokens": "parts", "metrics.listen": "parts",
    "traces.endpoint": "traces", "engine.java-home": "engine", "engine.master": "engine",
    "engine.cluster-address": "engine", "engine.cluster-settings": "engine", "flight.listen": "parts",
    "flight.certificate": "parts", "flight.key": "parts", "flight.tokens": "parts", "api.listen": "parts",
    "api.certificate": "parts", "api.key": "parts", "ingest.folders": "folders", "ingest.container": "containers",
    "policy.witness.public": "witnesses", "ipfs.api": "ipfs", "ipfs.token": "ipfs",
}  # fmt: skip
"""The probe that tries what a setting names: of the doctor, of the tree of parts, or one of this module."""
Try: TypeAlias = Callable[[], Awaitable[str]]
"""Tries one thing; returns what was found. Raises Fault."""


class Dependencies:
    """Tries the dependencies of one node."""

    def __init__(
        self,
        home: StateDirectory,
        remotes: Remotes,
        volumes: VolumeWorker,
        settings: Callable[[], Settings],
        membership: Membership,
        site: SiteServer | None,
        readiness: Readiness,
    ) -> None:
        """Strangers reach the node at the addresses of ``membership`` and of ``site``, if it has one."""
        self._home, self._remotes, self._volumes = home, remotes, volumes
        self._membership, self._site = membership, site
        self._settings, self._readiness = settings, readiness
        self.loop = ReconcileLoop(self._round)

    async def _round(self) -> float:
        await self.probes()
        return WATCH_SECONDS

    async def probes(self) -> Sequence[wire.Probe]:
        """Tries everything at once; returns the results in a fixed order. Nothing is listed that is not set."""
        tries = await trio.to_thread.run_sync(self._tries)
        found: dict[str, wire.Probe] = {}
        async with trio.open_nursery() as nursery:
            for name, each in tries.items():
                nursery.start_soon(_note, found, name, each)
        said = {name: "" if found[name].result == "ok" else found[name].message for name in tries}
        self._readiness.dependencies = said
        return [found[name] for name in tries]

    def _tries(self) -> dict[str, Try]:
        settings, tries = self._settings(), dict[str, Try]()
        if self._membership.networks or settings.p2p.listen or self._site is not None:
            tries["listening"] = self._listening
        if self._remotes.has_ipfs:
            tries["ipfs"] = self._ipfs
        if settings.traces.endpoint:
            tries["traces"] = self._traces
        if settings.ingest.folders:
            tries["folders"] = self._folders
        if settings.ingest.container != "never":
            tries["containers"] = self._containers
        with self._home.database.read() as connection:
            names = [each.name for each in ResourceStore(connection).all(REPOSITORY)]
        if names:
            tries["repositories"] = lambda: self._repositories(names)
        if volumes := self._volumes.volumes.all():
            tries["volumes"] = lambda: self._volumes_answer([volume.name for volume in volumes])
        return tries

    async def _listening(self) -> str:
        """Dials the node's own addresses, as a stranger does who comes from this machine."""
        urls = self._site.urls if self._site is not None else ()
        answered = dict(await self._membership.dial_own()) | dict.fromkeys(urls, False)
        async with trio.open_nursery() as nursery:
            for url in urls:
                nursery.start_soon(_ask_site, url, answered)
        heard = ", ".join(each for each, is_there in answered.items() if is_there)
        silent = ", ".join(each for each, is_there in answered.items() if not is_there)
        if silent or not answered:
            but = f"; {heard} answers" if heard else ""
            raise Environment(
                f"dialled from this machine, nothing answers at {silent}{but}" if silent else "it listens nowhere",
                rule="listening", hint="does a firewall of this machine close it, or is the node too busy? odfctl logs",
            )  # fmt: skip
        return f"{heard}: dialled from this machine, all answer; odfctl peer netcheck shows others"

    async def _ipfs(self) -> str:
        return f"Kubo {await self._remotes.ipfs_version()} answers"

    async def _traces(self) -> str:
        why = await ask_collector(self._settings().traces.endpoint)
        if why:
            raise Remote(
                f"the collector of traces does not take them: {why}", rule="traces",
                hint="is it running at traces.endpoint? Spans are dropped meanwhile, and no work waits for it",
            )  # fmt: skip
        return "the collector takes them"

    async def _folders(self) -> str:
        folders = self._settings().ingest.folders
        await run_abandonable(partial(_check_folders, folders))
        return f"{plural(len(folders), 'folder')} of sources can be read"

    async def _containers(self) -> str:
        return f"podman {await podman_version()} answers"

    async def _repositories(self, names: Sequence[str]) -> str:
        failed: dict[str, Fault] = {}

        async def ask(name: str) -> None:
            try:
                await self._remotes.ask_repository(name)
            except Fault as fault:
                failed[name] = fault

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name)
        raise_all(failed, names)
        answer = "answers" if len(names) == 1 else "answer"
        return f"{plural(len(names), 'repository', 'repositories')} {answer}"

    async def _volumes_answer(self, names: Sequence[str]) -> str:
        failed = await run_abandonable(self._volumes.faults)
        raise_all(failed, names)
        return f"{plural(len(names), 'volume')}"


def raise_all(failed: Mapping[str, Fault], names: Sequence[str]) -> None:
    """Raises one fault for those that failed, if any did."""
    first = next((failed[name] for name in names if name in failed), None)
    if first is not None:
        text = "; ".join(f"{name}: {failed[name]}" for name in names if name in failed)
        raise type(first)(text, rule=first.rule, hint=first.hint)


async def _note(found: dict[str, wire.Probe], name: str, each: Try) -> None:
    found[name] = wire.Probe(name=name, result="failed", message=f"no answer in {TRY_SECONDS:g} s")
    with trio.move_on_after(TRY_SECONDS):
        try:
            found[name] = wire.Probe(name=name, result="ok", message=await each())
        except Fault as fault:
            found[name] = wire.Probe(name=name, result="failed", message=str(fault), hint=fault.hint)


def _check_folders(folders: Sequence[str]) -> None:
    for text in folders:
        folder = Path(text).expanduser()
        if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
            raise Environment(
                f"{folder} cannot be read", rule="ingest-folder",
                hint="ingest.folders names it: make it, or let the node's user read it",
            )  # fmt: skip


async def _ask_site(url: str, answered: dict[str, bool]) -> None:
    """Notes whether anything is answered over HTTP, be it a refusal."""
    async with new_client(trust_env=False, timeout=SITE_SECONDS) as client:
        try:
            await client.head(url)
            answered[url] = True
        except httpx.TransportError:
            answered[url] = False
