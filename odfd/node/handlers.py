"""Makes the services behind the control API, and gives each the parts of the node that it needs.

``odfd.node.parts`` makes the parts, ``odfd.node.assembly`` says which of them run.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from chain.ids import DatasetId
from odfd.api.access.requests import AccessControl
from odfd.api.services import Services
from odfd.api.smart_backend import NodeSmartBackend
from odfd.control.board import LogEvents, LogService
from odfd.flows.tasks import RUN
from odfd.flows.tasks import TYPE as TASK
from odfd.node.own_parts import live_resources_of, own_of
from odfd.node.parts import NodeParts
from odfd.node.rendition_parts import effects_of, holds_of, renditions_of
from odfd.node.trust_parts import witness_views
from odfd.page.server import PageServer
from odfd.resources.controller import Controllers
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.tasks import TaskEnded, TasksChanged
from odfd.services.access.accounts import AccountController, AccountService
from odfd.services.datasets.controller import DatasetController
from odfd.services.datasets.deletion import DatasetDeletion
from odfd.services.datasets.history_rewrite import HistoryRewriteService
from odfd.services.datasets.planning import DatasetPlanning
from odfd.services.datasets.service import DatasetService
from odfd.services.datasets.unmanaged import UnmanagedService
from odfd.services.datasets.verification import EngineMigrationService, VerificationService
from odfd.services.flows.service import FlowController, FlowService
from odfd.services.ingest.gaps import GapService
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.promises import advance_upper
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.ingest.raw import RawService
from odfd.services.ingest.raw_chains import RawChains
from odfd.services.ingest.sources import SourceController, SourceReader
from odfd.services.lineage.service import LineageService
from odfd.services.maintenance.backups import BackupService
from odfd.services.maintenance.dependencies import Dependencies
from odfd.services.maintenance.doctor import Doctor
from odfd.services.maintenance.own_resources import OwnController, OwnResources
from odfd.services.maintenance.probes import ClockProbe, TrustProbes, pins_probe
from odfd.services.maintenance.status import RunningParts, StatusService
from odfd.services.network.feature import NetworkFeature, NetworkNeeds
from odfd.services.network.feature import build as network_feature
from odfd.services.network.mirrors import MirrorService
from odfd.services.node_events import DatabaseWritten
from odfd.services.portals.service import PortalController, PortalService
from odfd.services.publishing.visibility import VisibilityService
from odfd.services.queries.projections import ProjectionController
from odfd.services.renditions.effects import RenditionEffects
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService, Surroundings
from odfd.services.resources.history import HistoryService
from odfd.services.resources.node_types import ENGINE, NODE
from odfd.services.resources.planning import PartsKeeper, Planning
from odfd.services.resources.set_controllers import SecretController, SetController, SetValues
from odfd.services.resources.types import SchemaService
from odfd.services.resources.views import GetResource
from odfd.services.tasks.declared_tasks import FlowRunController, TaskController, TaskService
from odfd.services.tasks.flow_tasks import FlowTasks
from odfd.services.transfer.push import PushService
from odfd.services.transfer.repository_controller import RepositoryController
from odfd.services.trust.authority import AuthorityService
from odfd.services.trust.controllers import TrustPolicyController, ValidatorController
from odfd.services.trust.evidence import EvidenceService
from odfd.services.trust.policies import PolicyService
from odfd.services.trust.resolutions import ResolutionService
from odfd.services.trust.service import HeadState, TrustService
from odfd.services.views.data_sizes import DataSizes
from odfd.services.views.dataset_states import DatasetStates
from odfd.services.views.holder_counts import HolderCounts
from odfd.services.volumes.worker import VolumeController
from odfd.services.webhooks.calls import WebhookController
from odfd.store.directory import UPLOADS
from odfd.store.uploads import Uploads
from odfd.transform.pending import ahead


def services_of(parts: NodeParts) -> Services:
    home, context = parts.home, parts.context
    declarations: DeclarationService
    network = _network(
        parts, lambda type_, ref: declarations.get(type_, ref), lambda type_, name: declarations.delete(type_, name)
    )
    networks, mirrors = network.networks, network.mirrors
    keeper, states = PartsKeeper(home, context.clock, lambda: str(uuid.uuid4())), _states(parts, network.holders)
    portals = PortalService(home, parts.ingest_deps, context, parts.observer.note)
    pulling = _pulling(parts, portals)
    pushing = PushService(home, parts.visibility, parts.import_export, context.board)
    flows, performing, verification, rewriting = _flows(parts, pulling, pushing)
    effects = effects_of(parts)
    judging, seen = _judging(parts), _visibility(parts, effects)
    deletion = DatasetDeletion(home, states, parts.scheduler, context, partial(_visibility_changed, parts))
    services = network, judging, portals
    own = own_of(parts)
    controllers = _controllers(parts, keeper, (flows, performing, deletion, states), services, own)
    declarations = _reconciling(parts, keeper, controllers, own, flows)
    renditions = renditions_of(parts, effects, deletion, seen)
    return Services(
        about=_status(parts, flows, mirrors),
        accounts=AccountService(home, parts.tokens, context),
        applying=_applying(parts, Planning(home, context, keeper, controllers), declarations),
        datasets=DatasetService(home, states),
        flow=pulling,
        flows=flows,
        portals=portals,
        pushing=pushing,
        rewriting=rewriting,
        collection=parts.collection,
        backups=BackupService(home, parts.collection, context),
        mirrors=mirrors,
        visibility=seen,
        publications=parts.publications,
        networks=networks,
        search=network.search,
        peers=network.peers,
        verification=verification,
        proving=EngineMigrationService(home, parts.transform_deps, parts.committer, context.board, context.events),
        lineage=LineageService(home, parts.transform_deps, context.board, lambda: secrets.token_hex(8), parts.views),
        queries=parts.queries,
        holds=holds_of(parts, renditions),
        endpoints=EndpointService(home, context, parts.flows.arrived, declarations.get),
        raw=RawService(home, parts.ingest_deps, context, RawChains(home, parts.committer, parts.observer, context)),
        renditions=renditions,
        gaps=GapService(home, pulling.dependencies, context),
        unmanaged=UnmanagedService(home, parts.import_export, context),
        journal_recovery=parts.journal_recovery,
        trust=judging,
        policies=PolicyService(home, parts.membership, context.clock, parts.effective_policy, parts.ruled),
        resolving=ResolutionService(home, parts.pending_decisions, parts.scheduler, context, parts.moved),
        schemas=SchemaService(),
        declarations=declarations,
        history=HistoryService(home, context, declarations),
        authority=AuthorityService(home, parts.committer, context.clock, parts.signed),
        tasks=TaskService(context.board, home, declarations, context.events),
        events=LogEvents(context.events),
        log_lines=LogService(context.lines),
        page=PageServer(parts.settings.http, partial(secrets.token_urlsafe, 32), context.logger, parts.late.api),
    )


def _network(parts: NodeParts, get: GetResource, withdraw: Callable[[str, str], Awaitable[object]]) -> NetworkFeature:
    needs = NetworkNeeds(
        membership=parts.membership,
        statements=parts.board,
        scheduler=parts.scheduler,
        remotes=parts.remotes,
        evaluator=parts.evaluator,
        views=parts.views,
        effective_policy=parts.effective_policy,
        policy=lambda: parts.policy,
        policy_changed=parts.policy_changed,
        invitations=parts.invitations,
        swarm=parts.arriving.counts,
        own_card=lambda: parts.node_card.current,
        get=get,
        withdraw=withdraw,
        adopt=parts.import_export.adopt,
        follow_shards=parts.handovers.shards.follow,
    )
    return network_feature(parts.home, parts.context, needs)


def access_of(parts: NodeParts, services: Services) -> AccessControl:
    """Makes the access control, which decides who makes each request, and what the things of accounts may use."""
    with parts.home.database.read() as connection:
        log = ResourceStore(connection).epoch().encode()
    # With the identity of the log: a position in an earlier one does not open here, and the client lists anew.
    key = hmac.digest(parts.home.keys.node_seed(), b"odfd: positions of accounts in the log " + log, hashlib.sha512)
    about = services.tasks.about, services.declarations.subjects
    return AccessControl(parts.home, parts.home.access, os.geteuid(), about, parts.tokens.is_good, key=key)


def smart_backend_of(parts: NodeParts, access: AccessControl) -> NodeSmartBackend:
    """Makes the backend of the smart protocol, which decides what tokens permit over HTTP."""
    return NodeSmartBackend(
        parts.home, parts.library, (access, parts.tokens), parts.import_export, parts.remotes, parts.context,
        lambda: secrets.token_hex(8),
    )  # fmt: skip


def _flows(
    parts: NodeParts, pulling: IngestPullService, pushing: PushService
) -> tuple[FlowService, FlowTasks, VerificationService, HistoryRewriteService]:
    """Makes the service of flows, the performer of their tasks, and the other services that it uses."""
    home, context = parts.home, parts.context
    verification = VerificationService(home, parts.transform_deps, context.board, parts.damage, parts.scheduler)
    rewriting = HistoryRewriteService(
        home, parts.committer, parts.scheduler, context, parts.moved, parts.following.apart
    )
    performing = FlowTasks(
        home,
        context.board,
        pulling,
        verification,
        rewriting,
        parts.collection,
        parts.webhooks,
        pushing,
        SourceReader(home),
        context.clock.now,
        {},
    )
    parts.late.performing.fill(performing)
    flows = FlowService(home, parts.flows, context)
    return flows, performing, verification, rewriting


def _doctor(parts: NodeParts) -> Doctor:
    clock = ClockProbe(parts.home, parts.context.clock.now, parts.jumps.ahead)
    trust = TrustProbes(parts.home, parts.evaluator, parts.visibility, lambda: parts.effective_policy.profile)
    pins = partial(pins_probe, parts.views.all)
    return Doctor(
        parts.home,
        parts.visibility,
        parts.heads.troubles,
        {"clock": clock, **trust.all(), "engine pins": pins},
        lambda: parts.settings.limits.disk_reserve_bytes,
    )


def _visibility(parts: NodeParts, effects: RenditionEffects) -> VisibilityService:
    member = parts.membership
    return VisibilityService(
        parts.home, parts.visibility, parts.context, partial(_visibility_changed, parts), parts.signed, member.peers,
        lambda: member.networks, parts.committer.sign_upper, parts.cards.visibility_changed,
        effects.say_handovers,
    )  # fmt: skip


@in_loop
def _visibility_changed(parts: NodeParts, dataset: DatasetId) -> None:
    parts.visibility.note_change()
    parts.visibility_changed(dataset)
    parts.reconciler.regrant()


def _states(parts: NodeParts, holders: HolderCounts) -> DatasetStates:
    return DatasetStates(parts.home, parts.views, DataSizes(parts.home), holders)


async def _follow_name(parts: NodeParts, dataset: DatasetId) -> None:
    """Lets the mirrors of a dataset and its card have its new name."""

    def chains() -> Sequence[DatasetId]:
        with parts.home.catalog() as catalog:
            entry = catalog.find(dataset)
            return () if entry is None else catalog.chains_of(entry)

    await parts.scheduler.reread(await trio.to_thread.run_sync(chains))
    parts.cards.visibility_changed(dataset)


def _controllers(
    parts: NodeParts,
    keeper: PartsKeeper,
    working: tuple[FlowService, FlowTasks, DatasetDeletion, DatasetStates],
    services: tuple[NetworkFeature, TrustService, PortalService],
    own: OwnResources,
) -> Controllers:
    """Makes the controllers; peers, then trust, then mirrors, as an apply prepares them."""
    (flows, performing, deletion, states), (network, judging, portals) = working, services
    return Controllers(
        [
            OwnController(ENGINE, own.engine_states),
            OwnController(NODE, own.node_states),
            *network.peer_controllers,
            ValidatorController(judging),
            network.mirror_controller,
            AccountController(parts.home),
            DatasetController(parts.home, states, parts.volumes, flows, _dataset_planning(parts), deletion),
            FlowController(flows),
            PortalController(parts.home, portals),
            ProjectionController(parts.projections),
            RepositoryController(lambda: parts.remotes.own_shelves, parts.context.clock.now),
            SecretController(keeper, parts.home.secrets),
            SetController(keeper),
            SourceController(parts.home, lambda: parts.ingest_deps.settings),
            FlowRunController(parts.home, performing, parts.context.clock),
            TaskController(parts.home, performing, parts.context.clock),
            TrustPolicyController(lambda: parts.policy, parts.policy_changed),
            VolumeController(parts.home, parts.volumes),
            WebhookController(parts.webhooks),
        ]
    )


def _status(parts: NodeParts, flows: FlowService, mirrors: MirrorService) -> StatusService:
    running, context = _running(parts, flows, mirrors), parts.context
    dependencies = Dependencies(
        parts.home,
        parts.remotes,
        parts.volumes,
        lambda: parts.settings,
        parts.membership,
        parts.site,
        context.readiness,
    )
    doctor = _doctor(parts)
    return StatusService(parts.home, parts.views, doctor, dependencies, running, context, parts.settings.node.name)


def _running(parts: NodeParts, flows: FlowService, mirrors: MirrorService) -> RunningParts:
    return RunningParts(
        parts.engine, parts.membership, parts.urls, parts.journal_recovery, flows,
        mirrors, parts.evaluator.me,
    )  # fmt: skip


def _reconciling(
    parts: NodeParts, keeper: PartsKeeper, controllers: Controllers, own: OwnResources, flows: FlowService
) -> DeclarationService:
    """Gives the reconciler its controllers, and notifies it of all that may have changed."""
    reconciler, bus = parts.reconciler, parts.context.bus
    bus.subscribe(lambda _: parts.context.events.nudge(), TasksChanged)

    parts.late.controllers.fill(controllers)
    bus.subscribe(lambda each: reconciler.touch(RUN if each.task.kind == "run" else TASK, each.task.id), TaskEnded)

    def look_again(_: DatabaseWritten) -> None:
        parts.views.refresher.loop.poke()
        reconciler.loop.poke()

    bus.subscribe(look_again, DatabaseWritten, soon=True)
    around = Surroundings(controllers, live_resources_of(parts, own, flows), reconciler.undone)
    declarations = DeclarationService(parts.home, parts.context, keeper, around)
    parts.late.declarations.fill(declarations)
    return declarations


def _pulling(parts: NodeParts, portals: PortalService) -> IngestPullService:
    home, clock = parts.home, parts.context.clock
    return IngestPullService(
        home=home,
        deps=parts.ingest_deps,
        transform=parts.transform_deps,
        scheduler=parts.scheduler,
        context=parts.context,
        uploads=Uploads(
            home.folder(UPLOADS),
            lambda: parts.settings.limits.upload_bytes,
            lambda: secrets.token_hex(8),
            lambda: parts.settings.limits.disk_reserve_bytes,
        ),
        import_export=parts.import_export,
        repairing=parts.repairing,
        values=SetValues(home).of,
        promise=partial(advance_upper, home, clock.now, parts.jumps.ahead, parts.committer.sign_upper),
        derivatives=parts.views.readers,
        portals=portals,
        ahead=partial(ahead, parts.home.chains, parts.home.keys.has_dataset_key, parts.engine.warm),
        unheld=parts.views.unheld,
        turned=partial(parts.reconciler.touch, "Dataset"),
    )


def _judging(parts: NodeParts) -> TrustService:
    return TrustService(
        parts.home,
        parts.pending_decisions,
        parts.context.clock,
        parts.policy_changed,
        EvidenceService(parts.home, parts.bundles, parts.evidence_fetcher, parts.context.board),
        parts.effective_policy.policy,
        HeadState(
            parts.heads.troubles, partial(witness_views, parts), lambda entry: parts.views.cache.dataset(entry).unheld
        ),
    )


def _applying(parts: NodeParts, planning: Planning, declarations: DeclarationService) -> ApplyOperation:
    ended = parts.reconciler.loop.poke, parts.flows.applied
    return ApplyOperation(parts.committer, parts.context, planning, declarations, ended)


def _dataset_planning(parts: NodeParts) -> DatasetPlanning:
    adopt = UnmanagedService(parts.home, parts.import_export, parts.context).adopt
    return DatasetPlanning(
        parts.home, parts.transform_deps.engines, lambda: parts.ingest_deps.settings, parts.context.events, adopt,
        partial(_follow_name, parts),
    )  # fmt: skip
