"""Names the services behind the control API: what its endpoints are given, and what a node has to make."""

from __future__ import annotations

from dataclasses import dataclass

from odfd.api.authority import AuthorityService
from odfd.api.backups import BackupService
from odfd.api.datasets import DatasetService
from odfd.api.declaring import DeclarationService
from odfd.api.engine_migration import EngineMigrationService
from odfd.api.flows import FlowService
from odfd.api.history_rewrite import HistoryRewriteService
from odfd.api.ingest_pull import IngestPullService
from odfd.api.lineage import LineageService
from odfd.api.mirrors import MirrorService, PeerService
from odfd.api.networks import NetworkService
from odfd.api.policies import PolicyService
from odfd.api.queries import QueryService
from odfd.api.resolutions import ResolutionService
from odfd.api.resource_schemas import SchemaService
from odfd.api.status import StatusService
from odfd.api.trust import TrustService
from odfd.api.verification import VerificationService
from odfd.api.visibility import VisibilityService
from odfd.control.board import BoardTasks, LogEvents
from odfd.workers.garbage_collection import GarbageCollection
from odfd.workers.ipfs_publication import PublicationService
from odfd.workers.journal_recovery import JournalRecovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Their operations take and give values of ``wire``, and raise nothing but faults.

    A ``ref`` is what a person wrote: a local name or ``did:odf:…``. Where nothing is found under it, NotFound comes.
    What takes long checks what it can at once, then answers with a ``TaskRef``; its docstring names the result's type.
    """

    about: StatusService
    datasets: DatasetService
    flow: IngestPullService
    flows: FlowService
    rewriting: HistoryRewriteService
    collection: GarbageCollection
    backups: BackupService
    mirrors: MirrorService
    visibility: VisibilityService
    publications: PublicationService
    networks: NetworkService
    peers: PeerService
    verification: VerificationService
    proving: EngineMigrationService
    lineage: LineageService
    queries: QueryService
    journal_recovery: JournalRecovery
    trust: TrustService
    policies: PolicyService
    resolving: ResolutionService
    schemas: SchemaService
    declarations: DeclarationService
    authority: AuthorityService
    tasks: BoardTasks
    events: LogEvents
