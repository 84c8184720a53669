"""Observes declared resources, with one controller for each type, and reports how they compare with the declaration.

A controller asks the part of the node that does the work, never the declaration, so a status reports what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import trio

from chain.errors import Environment, Fault, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.store.volumes import VolumeUsage
from chain.wording import plural
from odfd.access.uses import NOT_GRANTED
from odfd.api.datasets.flows import FlowService
from odfd.api.datasets.portals import Portal, PortalService
from odfd.api.network.networks import NetworkService
from odfd.api.queries.projections import ProjectionState, ProjectionTables
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.sources import SourceReader
from odfd.api.trust.service import TrustService
from odfd.api.views.views import DatasetViews
from odfd.ingest.settings import IngestSettings
from odfd.mirrors.mirror_state import SchedulerState
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.queries.projections import TableRecord
from odfd.resources.reader import ResourceReader
from odfd.resources.resource import Resource
from odfd.resources.sets import SecretSealer, binding
from odfd.resources.status import ConditionValue
from odfd.state.directory import StateDirectory
from odfd.trust.policy.manifest import unreachable
from odfd.trust.policy.policy import Policy
from odfd.workers.reconciler import Controller, ObservedState
from odfd.workers.volumes import VolumeWorker
from odfd.workers.webhook_deliveries import FAILING
from odfd.workers.webhooks import WebhookWorker


def controllers_of(
    home: StateDirectory,
    services: tuple[DatasetViews, DeclarationService, FlowService],
    mirrors: MirrorScheduler,
    others: tuple[NetworkService, TrustService, WebhookWorker, ProjectionTables, VolumeWorker],
    more: Mapping[str, Controller],
) -> Mapping[str, Controller]:
    """Makes the controllers, by type. Raises ValueError if two report the same condition, which is a bug."""
    (views, declarations, flows), (networks, trust, webhooks, projections, volumes) = services, others
    found: dict[str, Controller] = {
        "Account": AsDeclared(),
        "Dataset": DatasetController(home, views, volumes, flows),
        "Flow": FlowController(flows),
        "Group": AsDeclared(),
        "Mirror": MirrorController(mirrors),
        "Network": NetworkController(networks),
        "Peer": AsDeclared(),
        "PersistentVolume": VolumeController(home, volumes),
        "Projection": ProjectionController(projections),
        "Relations": AsDeclared(),
        "Repository": AsDeclared(),
        "Validator": ValidatorController(trust),
        "VariableSet": SetController(declarations),
        "SecretSet": SecretController(declarations, home.secrets),
        "Variable": AsDeclared(),
        "Secret": AsDeclared(),
        "WebhookTarget": WebhookController(webhooks),
        **more,
    }
    check_conditions(found)
    return found


def check_conditions(controllers: Mapping[str, Controller]) -> None:
    """Raises ValueError if two controllers report the same condition."""
    owners: dict[str, str] = {}
    for type_, each in controllers.items():
        for key in each.conditions:
            if owners.setdefault(key, type_) != type_:
                raise ValueError(f"{key} is told of by both {owners[key]} and {type_}")


class AsDeclared:
    """The controller of types of which nothing but the declaration exists."""

    conditions: Collection[str] = ()

    async def observe(self, resource: Resource) -> ObservedState:  # noqa: ARG002  as all controllers
        return ObservedState()

    async def perform(self, resource: Resource, step: str) -> None:
        """Does nothing, because there are no steps."""

    async def finalize(self, resource: Resource) -> None:
        """Does nothing, because nothing but the declaration exists."""


class DatasetController(AsDeclared):
    """Reports the state of a dataset's chain on this node, not how far it may be relied on."""

    conditions: Collection[str] = ("DatasetState",)

    def __init__(self, home: StateDirectory, views: DatasetViews, volumes: VolumeWorker, flows: FlowService) -> None:
        self._home = home
        self._views = views
        self._volumes = volumes
        self._flows = flows

    async def observe(self, resource: Resource) -> ObservedState:
        if resource.did is not None and resource.status.observed_generation != resource.generation:
            self._volumes.touch(DatasetId.parse(resource.did))
            await self._flows.look([DatasetId.parse(resource.did)])  # its name and labels may select it for others
        seen = await trio.to_thread.run_sync(self._observe, resource)
        was_refused = resource.status.code == NOT_GRANTED
        if was_refused and resource.did is not None and (seen.fault is None or seen.fault.rule != NOT_GRANTED):
            self._flows.touch(DatasetId.parse(resource.did))  # its account may read its inputs again
        return seen

    def _observe(self, resource: Resource) -> ObservedState:
        entry = self._home.resolve(resource.did or resource.name)
        view = self._views.dataset(entry)
        state = ConditionValue(value=view.state, message=", ".join(view.conditions))
        if view.state != "damaged":
            with self._home.database.read() as connection:
                fault = self._home.uses.fault(ResourceReader(connection), resource)
            return ObservedState(told={"DatasetState": state}, fault=fault)
        why = view.rely_on.fact if view.rely_on is not None else "it cannot be read"
        return ObservedState(told={"DatasetState": state}, fault=Environment(why, rule="damaged", hint="odfctl doctor"))


class FlowController(AsDeclared):
    """Reports whether a flow is in force, and how its last run ended."""

    conditions: Collection[str] = ("LastRun",)

    def __init__(self, flows: FlowService) -> None:
        self._flows = flows

    async def observe(self, resource: Resource) -> ObservedState:
        view = await self._flows.in_force(resource)
        if view.outcome is None:
            return ObservedState()
        return ObservedState(told={"LastRun": ConditionValue(value=view.outcome, message=view.message)})

    async def finalize(self, resource: Resource) -> None:
        await self._flows.removed(resource)


class MirrorController(AsDeclared):
    """Reports whether all that is announced is here."""

    conditions: Collection[str] = ("Synced",)
    _REFUSED: Final = (SchedulerState.REFUSED, SchedulerState.FAILED)

    def __init__(self, mirrors: MirrorScheduler) -> None:
        self._mirrors = mirrors

    async def observe(self, resource: Resource) -> ObservedState:
        mirror = self._mirrors.find(DatasetId.parse(resource.spec["source"]))
        if mirror is None:
            # The scheduler adopts an intent shortly after its commit; a deleted mirror deletes its resource too.
            return ObservedState(told={"Synced": ConditionValue(value=False, code="waiting", message="not begun yet")})
        synced = ConditionValue(
            value=mirror.state is SchedulerState.CURRENT, code=mirror.state.value, message=mirror.message
        )
        fault = mirror.fault if mirror.state in self._REFUSED else None
        return ObservedState(told={"Synced": synced}, fault=fault)


class NetworkController(AsDeclared):
    """Reports whether this node is in the network and connected to a peer."""

    conditions: Collection[str] = ("Joined",)

    def __init__(self, networks: NetworkService) -> None:
        self._networks = networks

    async def observe(self, resource: Resource) -> ObservedState:
        if not self._networks.is_joined(resource.name):
            # Its declaration is committed before the network is joined.
            return ObservedState(steps=("join the network",))
        view = await self._networks.show(resource.name)
        return ObservedState(
            told={"Joined": ConditionValue(value=True, message="" if view.peers else "no peer is connected")}
        )

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        await self._networks.take_up()


class ValidatorController(AsDeclared):
    """Reports whether the word of a validator counts."""

    conditions: Collection[str] = ("Counts",)

    def __init__(self, trust: TrustService) -> None:
        self._trust = trust

    async def observe(self, resource: Resource) -> ObservedState:
        did = resource.spec["did"]
        for each in await self._trust.validators():
            if each.key == did:
                return ObservedState(told={"Counts": ConditionValue(value=not each.suspended, message=each.reason)})
        raise NotFound("no policy names it", rule="validator", hint="apply it again")


class TrustPolicyController(AsDeclared):
    """Puts a policy in force, and reports a quorum that cannot be reached."""

    def __init__(self, policy: Callable[[], Policy], changed: Callable[[], None]) -> None:
        """``changed`` judges all datasets anew, by the policies as they are declared."""
        self._policy, self._changed = policy, changed

    async def observe(self, resource: Resource) -> ObservedState:
        if resource.status.observed_generation != resource.generation:
            self._changed()
        unmet = unreachable(resource, self._policy())
        if not unmet:
            return ObservedState()
        hint = "odfctl trust validator add lists more, or ask for fewer; until then nothing of it is used or served"
        return ObservedState(fault=Refused("; ".join(unmet), rule="quorum-unreachable", hint=hint))

    async def finalize(self, resource: Resource) -> None:  # noqa: ARG002  the others are judged by too
        self._changed()


class WebhookController(AsDeclared):
    """Reports whether the target answers, and which deliveries were given up."""

    conditions: Collection[str] = ("Answers",)

    def __init__(self, webhooks: WebhookWorker) -> None:
        self._webhooks = webhooks

    async def observe(self, resource: Resource) -> ObservedState:
        calls, waiting = await self._webhooks.state(resource)
        failing, silence = calls.failures >= FAILING, ""
        if not calls.delivered and not failing:  # whether it answers is not known before somebody asks
            silence = await self._webhooks.reach(resource)
        lost = f"{plural(calls.dead, 'delivery', 'deliveries')} given up" if calls.dead else ""
        repeated = f"a call failed, and is repeated: {calls.said}" if calls.failures and not failing else ""
        unknown = f"it took the connection, but gave no answer to HEAD: {silence}; a call will tell" if silence else ""
        message = "; ".join(each for each in (unknown, repeated, lost) if each)
        told = {"Answers": ConditionValue(value=not (failing or silence), message=message)}
        if not failing:
            return ObservedState(told=told)
        text = f"{calls.said}; {plural(waiting, 'delivery waits', 'deliveries wait')}"
        return ObservedState(told=told, fault=Remote(text, rule="webhook-failed", hint="it is tried again by itself"))

    async def finalize(self, resource: Resource) -> None:
        await self._webhooks.remove(resource)


class SourceController(AsDeclared):
    """Reports whether a Source could be fetched from, without fetching: its values are here, and settings allow it."""

    def __init__(self, sources: SourceReader, settings: Callable[[], IngestSettings]) -> None:
        self._sources, self._settings = sources, settings

    async def observe(self, resource: Resource) -> ObservedState:
        await trio.to_thread.run_sync(self._sources.check, resource.id, self._settings())
        return ObservedState()

    async def finalize(self, resource: Resource) -> None:
        await trio.to_thread.run_sync(self._sources.forget, resource.id)


class PortalController(AsDeclared):
    """Takes rows into a portal when its private dataset has more, and reports what the rule withholds."""

    conditions: Collection[str] = ("Rows",)

    def __init__(self, home: StateDirectory, portals: PortalService) -> None:
        self._home, self._portals = home, portals
        self._last: dict[str, tuple[str, ConditionValue]] = {}
        """The head of the private dataset when rows were last taken, and the result, by id of the Portal."""

    async def observe(self, resource: Resource) -> ObservedState:
        portal = await trio.to_thread.run_sync(self._portals.resolved, resource)
        is_due = await trio.to_thread.run_sync(self._portals.check, portal)
        head, said = self._last.get(resource.id, ("", None))
        told = {} if said is None else {"Rows": said}
        if not is_due or head == self._head(portal):
            return ObservedState(told=told)
        return ObservedState(told=told, steps=("take rows",), is_drift=False)

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        portal = await trio.to_thread.run_sync(self._portals.resolved, resource)
        async with self._home.turns.of(portal.dataset):
            head = self._head(portal)
            taken = await self._portals.take(portal)
        value = {"rows": taken.rows, "leftOut": taken.left_out, "withheld": bool(taken.withheld)}
        text = taken.withheld or f"{plural(taken.rows, 'row')} taken, {taken.left_out:,} left out"
        self._last[resource.id] = head, ConditionValue(value=value, message=text)

    async def finalize(self, resource: Resource) -> None:
        self._last.pop(resource.id, None)

    def _head(self, portal: Portal) -> str:
        head = self._home.chains.chain(portal.input).head()
        return "" if head is None else str(head.hash)


class ProjectionController(AsDeclared):
    """Keeps the table of a projection, and reports how far it is behind its inputs."""

    conditions: Collection[str] = ("Table",)

    def __init__(self, tables: ProjectionTables) -> None:
        self._tables = tables
        self._faults: dict[str, Fault] = {}
        """Faults of computations, by id of the Projection, until they are reported beside the present table."""

    async def observe(self, resource: Resource) -> ObservedState:
        fault = self._faults.pop(resource.id, None)
        state = await trio.to_thread.run_sync(self._tables.state, resource)
        told = {} if state.record is None else {"Table": _table_condition(state, state.record)}
        if state.is_current or fault is not None:
            return ObservedState(told=told, fault=fault)
        return ObservedState(told=told, steps=("compute the table",), is_drift=False)

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        try:
            await self._tables.compute(resource)
        except Fault as fault:
            self._faults[resource.id] = fault

    async def finalize(self, resource: Resource) -> None:
        self._faults.pop(resource.id, None)
        await trio.to_thread.run_sync(self._tables.remove, resource)


def _table_condition(state: ProjectionState, record: TableRecord) -> ConditionValue:
    inputs = [
        {"name": each.name, "did": each.dataset, "head": {"hash": each.block, "sequenceNumber": each.size - 1}}
        for each in record.inputs
    ]
    value = {"rows": record.rows, "bytes": record.size, "lag": state.lag, "inputs": inputs}
    behind = f", {plural(state.lag, 'block')} behind" if state.lag else ""
    return ConditionValue(value=value, message=f"{plural(record.rows, 'row')}{behind}")


class VolumeController(AsDeclared):
    """Reports how much is in a volume, and why it cannot be used."""

    conditions: Collection[str] = ("Usage",)

    def __init__(self, home: StateDirectory, volumes: VolumeWorker) -> None:
        self._index, self._volumes = home.objects.volumes, volumes

    async def observe(self, resource: Resource) -> ObservedState:
        state = self._volumes.state(resource)
        usage = await trio.to_thread.run_sync(self._index.usage, resource.id)
        if state is None:  # the worker reports after its first look: until then its place is asked here
            await trio.to_thread.run_sync(self._volumes.volumes.claimed, resource)
            return ObservedState(told={"Usage": _usage_condition(usage, 0)})
        return ObservedState(told={"Usage": _usage_condition(usage, state.waiting)}, fault=state.fault)

    async def finalize(self, resource: Resource) -> None:
        await trio.to_thread.run_sync(self._volumes.volumes.release, resource)


def _usage_condition(usage: VolumeUsage, waiting: int) -> ConditionValue:
    value = {"slices": usage.objects, "bytes": usage.bytes, "waiting": waiting, "remains": usage.remains}
    still = f", {waiting:,} also here still, since somebody may be reading them" if waiting else ""
    remains = f", {plural(usage.remains, 'copy', 'copies')} to be deleted" if usage.remains else ""
    return ConditionValue(value=value, message=f"{plural(usage.objects, 'slice')}{still}{remains}")


class SetController(AsDeclared):
    """Reports whether each value of a set has its element, and makes those that older sets lack."""

    def __init__(self, declarations: DeclarationService) -> None:
        self._declarations = declarations

    async def observe(self, resource: Resource) -> ObservedState:
        is_lacking = await trio.to_thread.run_sync(self._declarations.lacks_parts, resource)
        return ObservedState(steps=("make its elements",) if is_lacking else ())

    async def perform(self, resource: Resource, step: str) -> None:  # noqa: ARG002  there is one step
        await trio.to_thread.run_sync(self._declarations.make_parts, resource)


class SecretController(SetController):
    """Reports whether each value of a SecretSet can still be opened."""

    def __init__(self, declarations: DeclarationService, keys: SecretSealer) -> None:
        super().__init__(declarations)
        self._keys = keys

    async def observe(self, resource: Resource) -> ObservedState:
        await trio.to_thread.run_sync(self._open_all, resource)
        return await super().observe(resource)

    def _open_all(self, resource: Resource) -> None:
        """Opens each secret. Raises Environment if the key of one is not here."""
        for key, sealed in resource.spec["secrets"].items():
            self._keys.open(sealed["value"], (binding(resource.id, key),))
