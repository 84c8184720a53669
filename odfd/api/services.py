"""Names the services behind the control API, which its endpoints use and a node makes."""

from __future__ import annotations

from dataclasses import dataclass

from odfd.api.access.accounts import AccountService
from odfd.api.datasets.flows import FlowService
from odfd.api.datasets.gaps import GapService
from odfd.api.datasets.history_rewrite import HistoryRewriteService
from odfd.api.datasets.holds import HoldService
from odfd.api.datasets.ingest_pull import IngestPullService
from odfd.api.datasets.portals import PortalService
from odfd.api.datasets.push import PushService
from odfd.api.datasets.raw import RawService
from odfd.api.datasets.renditions import RenditionService
from odfd.api.datasets.service import DatasetService
from odfd.api.datasets.unmanaged import UnmanagedService
from odfd.api.datasets.verification import EngineMigrationService, VerificationService
from odfd.api.datasets.visibility import VisibilityService
from odfd.api.lineage.service import LineageService
from odfd.api.maintenance.backups import BackupService
from odfd.api.maintenance.status import StatusService
from odfd.api.network.mirrors import MirrorService, PeerService
from odfd.api.network.networks import NetworkService
from odfd.api.network.search import SearchService
from odfd.api.queries.service import QueryService
from odfd.api.resources.apply import ApplyOperation
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.endpoints import EndpointService
from odfd.api.resources.history import HistoryService
from odfd.api.resources.types import SchemaService
from odfd.api.trust.authority import AuthorityService
from odfd.api.trust.policies import PolicyService
from odfd.api.trust.resolutions import ResolutionService
from odfd.api.trust.service import TrustService
from odfd.control.board import BoardTasks, LogEvents, LogService
from odfd.page.server import PageServer
from odfd.workers.garbage_collection import GarbageCollector
from odfd.workers.ipfs_publication import PublicationService
from odfd.workers.journal_recovery import JournalRecovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services of one node. Their operations take and return values of ``wire``, and raise only faults.

    A ``ref`` is what a person wrote: a local name or ``did:odf:…``; NotFound is raised if nothing has it. An operation
    that takes long checks what it can at once, then returns a ``TaskRef``; its docstring names the type of the result.
    """

    about: StatusService
    accounts: AccountService
    applying: ApplyOperation
    datasets: DatasetService
    flow: IngestPullService
    flows: FlowService
    portals: PortalService
    pushing: PushService
    rewriting: HistoryRewriteService
    collection: GarbageCollector
    backups: BackupService
    mirrors: MirrorService
    visibility: VisibilityService
    publications: PublicationService
    networks: NetworkService
    search: SearchService
    peers: PeerService
    verification: VerificationService
    proving: EngineMigrationService
    lineage: LineageService
    queries: QueryService
    holds: HoldService
    endpoints: EndpointService
    raw: RawService
    renditions: RenditionService
    gaps: GapService
    unmanaged: UnmanagedService
    journal_recovery: JournalRecovery
    trust: TrustService
    policies: PolicyService
    resolving: ResolutionService
    schemas: SchemaService
    declarations: DeclarationService
    history: HistoryService
    authority: AuthorityService
    tasks: BoardTasks
    events: LogEvents
    log_lines: LogService
    page: PageServer
