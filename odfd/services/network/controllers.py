"""Prepares and observes declared networks, peers and mirrors."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from odfd.control import wire
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.joined_networks import NETWORK, PEER, Network
from odfd.resources.controller import ApplyBatch, Controller, Intent, ObservedState
from odfd.resources.plan import DesiredResource, PlannedResource
from odfd.resources.resource import Json, Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.subjects import Sees
from odfd.services.network.mirrors import MirrorService, PeerService
from odfd.services.network.networks import NetworkService
from odfd.store import mirror_specs
from p2p.ports import PeerId


class NetworkController(Controller):
    """Reports whether this node is in the network and connected to a peer."""

    type = NETWORK
    prepares = "changes"
    has_own_events = True
    conditions: Collection[str] = ("Joined",)

    def __init__(self, networks: NetworkService) -> None:
        self._networks = networks

    def check(self, before: Resource, after: Resource | None) -> None:
        """Raises Invalid for another name."""
        if after is not None and before.name != after.name:
            text = f"nodes meet by the name of their network: {after.name} is another one than {before.name}"
            hint = f"odfctl network leave {before.name}, and apply {after.name}"
            raise Invalid(text, rule="network-name", hint=hint)

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:  # noqa: ARG002  it needs no other
        after = planned.after
        if any(each is not None and "policyKey" in each.spec for each in (planned.before, after)):
            text = f"{after.name} is joined by an invitation, which says whose policies hold there"
            raise Refused(text, rule="immutable", hint="leave it first: odfctl network leave NAME")
        network = Network(name=after.name, bootstrap=tuple(after.spec["bootstrap"]))
        self._networks.prepare(network)
        return Intent(lambda connection: self._networks.record(connection, network), self._networks.take_up)

    async def finalize(self, resource: Resource) -> None:
        await self._networks.left(resource.name)

    async def observe(self, resource: Resource) -> ObservedState:
        peers = self._networks.peers_in(resource.name)
        if peers is None:
            # Its declaration is committed before the network is joined.
            return ObservedState(steps=("join the network",))
        told = ConditionValue(value=True, message="" if peers else "no peer is connected")
        return ObservedState(told={"Joined": told})

    async def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        if sees is not None:
            return {}
        joined = [resource for resource in resources if self._networks.peers_in(resource.name) is not None]
        return {each.id: await self._networks.state(each.name) for each in joined}

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        await self._networks.take_up()


class PeerController(Controller):
    """Blocks the peers of which that is declared."""

    type = PEER
    prepares = "changes"
    has_own_events = True

    def __init__(self, networks: NetworkService, peers: PeerService) -> None:
        self._networks, self._peers = networks, peers

    async def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        found = {} if sees is not None else await self._peers.states()
        return {
            resource.id: found[resource.spec["peerId"]] for resource in resources if resource.spec["peerId"] in found
        }

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:  # noqa: ARG002  it needs no other
        peer = PeerId(planned.after.spec["peerId"])
        return Intent(lambda connection: self._networks.record_block(connection, peer), self._networks.take_up)

    async def finalize(self, resource: Resource) -> None:  # noqa: ARG002  whose blocking is declared no longer
        await self._networks.unblocked()


class MirrorController(Controller):
    """Reports whether all that is announced is here."""

    type = mirror_specs.TYPE
    prepares = "changes"
    has_own_events = True
    conditions: Collection[str] = ("Synced",)
    hears = ("mirror",)
    _REFUSED: Final = (SchedulerState.REFUSED, SchedulerState.FAILED)

    def __init__(self, service: MirrorService, mirrors: MirrorScheduler) -> None:
        self._service, self._mirrors = service, mirrors

    def spec_to_store(self, desired: DesiredResource, before: Resource | None) -> Json:
        """Returns the spec for what it mirrors now, if its owner handed over since it was written."""
        spec, now = desired.spec, None if before is None else before.did
        whole = str(self._service.whole_of(DatasetId.parse(spec["source"])))
        return {**spec, "source": now} if now not in (None, spec["source"]) and whole == now else spec

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent:  # noqa: ARG002  it needs no other
        spec = mirror_specs.spec_of(planned.after)
        mirror = await trio.to_thread.run_sync(lambda: self._service.prepare(spec, is_new=planned.action == "created"))
        return Intent(
            lambda connection: self._service.record(connection, mirror),
            lambda: self._service.take_up(mirror),
            (lambda: self._service.links.adopt(mirror.spec.id, mirror.spec.name)) if mirror.is_kept else None,
            did=mirror.spec.id,
        )

    @contextmanager
    def deletion(self, connection: sqlite3.Connection, gone: Resource, *, purge: bool) -> Iterator[None]:  # noqa: ARG002
        for each in mirror_specs.inside(connection, DatasetId.parse(gone.spec["source"])):
            mirror_specs.drop_inner(connection, each.id)
        yield

    async def finalize(self, resource: Resource) -> None:
        dataset = DatasetId.parse(resource.spec["source"])
        await self._mirrors.dismiss(await trio.to_thread.run_sync(self._service.chains_of, dataset))

    def states(self, resources: Sequence[wire.ResourceView], sees: Sees | None) -> Mapping[str, wire.Value]:
        datasets = {resource.id: DatasetId.parse(resource.spec["source"]) for resource in resources}
        found = self._service.states(datasets.values(), sees)
        return {id_: found[dataset] for id_, dataset in datasets.items() if dataset in found}

    async def observe(self, resource: Resource) -> ObservedState:
        mirror = self._mirrors.find(DatasetId.parse(resource.spec["source"]))
        if mirror is None:
            # The scheduler adopts an intent shortly after its commit.
            return ObservedState(told={"Synced": ConditionValue(value=False, code="waiting", message="not begun yet")})
        synced = ConditionValue(
            value=mirror.state is SchedulerState.CURRENT, code=mirror.state.value, message=mirror.message
        )
        fault = mirror.fault if mirror.state in self._REFUSED else None
        return ObservedState(told={"Synced": synced}, fault=fault)
