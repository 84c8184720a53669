"""Names the services behind the control API, which a node makes, and finds the operations that they declare."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from odfd.control.board import BoardTasks, LogEvents, LogService
from odfd.control.operations import Operation, operation_of
from odfd.page.server import PageServer
from odfd.services.access.accounts import AccountService
from odfd.services.datasets.history_rewrite import HistoryRewriteService
from odfd.services.datasets.holds import HoldService
from odfd.services.datasets.service import DatasetService
from odfd.services.datasets.unmanaged import UnmanagedService
from odfd.services.datasets.verification import EngineMigrationService, VerificationService
from odfd.services.flows.service import FlowService
from odfd.services.ingest.gaps import GapService
from odfd.services.ingest.ingest_pull import IngestPullService
from odfd.services.ingest.push_endpoints import EndpointService
from odfd.services.ingest.raw import RawService
from odfd.services.lineage.service import LineageService
from odfd.services.maintenance.backups import BackupService
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.services.maintenance.status import StatusService
from odfd.services.network.mirrors import MirrorService, PeerService
from odfd.services.network.networks import NetworkService
from odfd.services.network.search import SearchService
from odfd.services.portals.service import PortalService
from odfd.services.publishing.ipfs_publication import PublicationService
from odfd.services.publishing.visibility import VisibilityService
from odfd.services.queries.service import QueryService
from odfd.services.renditions.service import RenditionService
from odfd.services.resources.apply import ApplyOperation
from odfd.services.resources.declarations import DeclarationService
from odfd.services.resources.history import HistoryService
from odfd.services.resources.types import SchemaService
from odfd.services.transfer.push import PushService
from odfd.services.trust.authority import AuthorityService
from odfd.services.trust.journal_recovery import JournalRecovery
from odfd.services.trust.policies import PolicyService
from odfd.services.trust.resolutions import ResolutionService
from odfd.services.trust.service import TrustService


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


@cache
def _fields() -> Mapping[str, Any]:
    return typing.get_type_hints(Services)


def services_among(made: Sequence[object]) -> Services:
    """Returns the services that were made, each as the field of its type. Raises TypeError for one that has none."""
    fields = _fields()
    found = {name: each for each in made for name, type_ in fields.items() if isinstance(each, type_)}
    if len(found) != len(made):
        raise TypeError(f"no field for some of {[type(each).__name__ for each in made]}")
    return Services(**found)


class Declared(NamedTuple):
    """An operation with the field of ``Services`` that it is of."""

    service: str
    function: Callable[..., Any]
    operation: Operation

    @property
    def name(self) -> str:
        return f"{self.service}.{self.function.__name__}"

    @property
    def called(self) -> str:
        """The name of the function that makes a call of it (``odfd.control.calls``)."""
        return f"{self.service}_{self.function.__name__.strip('_')}"


def declared() -> Iterator[Declared]:
    """Yields all operations of all services, as their classes define them."""
    for field, cls in _fields().items():
        for name in dir(cls):
            function = inspect.getattr_static(cls, name)
            found = operation_of(function)
            if found is not None:
                yield Declared(field, function, found)


@cache
def operations() -> Mapping[Callable[..., Any], Declared]:
    """Returns all operations, by the function that their class defines."""
    return {each.function: each for each in declared()}
