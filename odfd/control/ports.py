"""Declares what the API can ask of a node: services implement these ports, and routes use nothing else of them.

Values in and out are those of ``wire``. Every method may raise any ``chain.errors.Fault``; nothing else may come out.
A ``ref`` is what a person wrote: a local name or ``did:odf:…``; a method that finds nothing under it raises NotFound.
What takes long is a task: the method checks what it can at once, then answers with a ``TaskRef``, and the task's
result is of the type that the method's docstring names.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from odfd.control import wire


class StatusPort(Protocol):
    """The node itself."""

    async def status(self) -> wire.Status: ...

    async def engines(self) -> Sequence[wire.EngineView]:
        """What queries are run by, with the processes that are up."""

    async def doctor(self) -> Sequence[wire.Probe]:
        """Try what the node stands on, each thing at little cost: disk, database, keys, heads, engine, network."""

    def examine(self) -> AsyncIterator[wire.Probe]:
        """The same, and everything of the database that can be read: minutes, where much is kept."""


class DatasetsPort(Protocol):
    async def list(self) -> Sequence[wire.DatasetView]: ...

    async def get(self, ref: str) -> wire.DatasetView: ...

    async def describe(self, ref: str) -> wire.DatasetDetail: ...

    async def manifest(self, ref: str) -> wire.ManifestView:
        """What is declared of it now."""

    async def delete(self, ref: str) -> wire.DatasetView:
        """Forget a dataset and what was known of it; answers with what it was. Refused while others derive from it."""

    async def rename(self, ref: str, request: wire.RenameRequest) -> wire.DatasetView:
        """Its local name alone; whoever else has it calls it as before."""

    async def log(
        self, ref: str, kinds: Sequence[str], limit: int, before: int | None, epoch: int | None = None
    ) -> Sequence[wire.BlockView]:
        """Newest first, below sequence number ``before``; of these events only, if any are named. ``epoch``: of what is
        kept of a former one, in place of the chain."""

    async def block(self, ref: str, at: str) -> wire.BlockDetail:
        """``at`` is a block's hash or its sequence number in digits."""

    async def tail(self, ref: str, limit: int) -> wire.Records:
        """The last records in the order of their offsets."""

    async def schema(self, ref: str) -> wire.Schema: ...

    async def apply(self, request: wire.ApplyRequest) -> wire.TaskRef:
        """Result: ApplyResult. Manifests that cannot be read raise at once; those refused later are items of it."""


class IngestPullPort(Protocol):
    """Data into and out of datasets."""

    async def stage(self, name: str, chunks: AsyncIterable[bytes]) -> wire.Upload:
        """Keep the bytes of one file until an ingest asks for them."""

    async def ingest(self, ref: str, request: wire.IngestRequest) -> wire.TaskRef:
        """Result: PullResult with one item."""

    async def set_watermark(self, ref: str, request: wire.WatermarkRequest) -> wire.TaskRef:
        """Result: PullResult with one item. Refused for what is no root of this node's own."""

    async def correct(self, ref: str, request: wire.CorrectRequest) -> wire.TaskRef:
        """Result: CorrectResult. Refused for what is no ledger of this node's own."""

    async def pull(self, request: wire.PullRequest) -> wire.TaskRef:
        """Result: PullResult."""

    async def export(self, ref: str, request: wire.ExportRequest) -> wire.TaskRef:
        """Result: TransferResult."""

    async def import_(self, request: wire.ImportRequest) -> wire.TaskRef:
        """Result: TransferResult."""


class HistoryRewritePort(Protocol):
    """Other histories for datasets that are published here."""

    async def rewrite(self, ref: str, request: wire.RewriteRequest) -> wire.TaskRef:
        """Result: RewriteResult. Refused for a dataset of somebody else."""


class CollectionPort(Protocol):
    """Objects that nobody names any more."""

    async def collect(self, request: wire.CollectRequest) -> wire.TaskRef:
        """Result: CollectResult."""


class MirrorsPort(Protocol):
    async def add(self, request: wire.MirrorRequest) -> wire.TaskRef:
        """Result: MirrorView, once all that is announced now is here. The wish stands until it is removed."""

    async def list(self) -> Sequence[wire.MirrorView]: ...

    async def remove(self, ref: str) -> wire.MirrorView:
        """Wish it no longer; the dataset stays until it is deleted."""

    async def pause(self, ref: str) -> wire.MirrorView:
        """Fetch nothing more of it until it is resumed; what is here stays and is served."""

    async def resume(self, ref: str) -> wire.MirrorView: ...


class VisibilityPort(Protocol):
    """Which datasets others may see and take."""

    async def publish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]: ...

    async def unpublish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]: ...


class PublicationsPort(Protocol):
    """Datasets that this node has on IPFS."""

    async def publish(self, request: wire.PublishRequest) -> wire.TaskRef:
        """Result: PublicationView."""

    async def list(self) -> Sequence[wire.PublicationView]: ...

    async def withdraw(self, ref: str) -> wire.PublicationView:
        """Take it from IPFS, as far as this node has put it there."""


class NetworksPort(Protocol):
    async def join(self, request: wire.NetworkRequest) -> wire.NetworkView: ...

    async def leave(self, name: str) -> wire.NetworkView: ...

    async def list(self) -> Sequence[wire.NetworkView]: ...

    async def show(self, name: str) -> wire.NetworkView: ...


class PeersPort(Protocol):
    async def list(self) -> Sequence[wire.PeerInfo]: ...

    async def show(self, peer: str) -> wire.PeerInfo:
        """By peer id or an unambiguous beginning of it."""

    async def block(self, peer: str) -> wire.PeerInfo: ...

    async def unblock(self, peer: str) -> wire.PeerInfo: ...

    async def connect(self, multiaddr: str) -> wire.PeerInfo: ...


class VerificationPort(Protocol):
    async def verify(self, ref: str, request: wire.VerifyRequest) -> wire.TaskRef:
        """Result: VerifyReport."""


class EngineMigrationPort(Protocol):
    async def prove(self, ref: str, request: wire.ProveRequest) -> wire.TaskRef:
        """Result: ProofReport."""


class LineagePort(Protocol):
    async def trace(self, ref: str, request: wire.LineageRequest) -> wire.TaskRef:
        """Result: Lineage."""

    async def graph(self, ref: str) -> wire.LineageGraph: ...


class SignersPort(Protocol):
    async def sign_again(self, request: wire.SignRequest) -> wire.SigningView:
        """Let keys sign again whose journals are gone. Raises Refused when no peer can be asked what they said."""


class TrustPort(Protocol):
    async def show(self, ref: str) -> wire.TrustView: ...

    async def evidence(self, evidence_id: str) -> bytes | Path:
        """What anyone can check: a bundle (a ``.odfe`` file, streamed to the caller) or a proof's bytes."""

    async def fetch_evidence(self, evidence_id: str) -> wire.TaskRef:
        """Ask connected peers for a bundle that is not kept here. Result: EvidenceFetched."""

    async def validators(self) -> Sequence[wire.ValidatorView]: ...

    async def add_validator(self, request: wire.ValidatorRequest) -> wire.ValidatorView: ...

    async def remove_validator(self, key: str) -> wire.ValidatorView: ...

    async def lift(self, request: wire.LiftRequest) -> Sequence[wire.ValidatorView]:
        """Let a suspended group count again. Refused when it does."""


class PoliciesPort(Protocol):
    """What is asked for before data is relied on: here, and by the network."""

    async def policy(self) -> wire.PolicyView: ...

    async def publish_rules(self, request: wire.NetworkRulesRequest) -> wire.NetworkRulesView:
        """Sign them with this node's key. Refused in no network, Invalid when no node could meet them."""

    async def accept_rules(self, request: wire.AcceptRequest) -> wire.NetworkRulesView:
        """A person's word, for what loosens."""


class ResolutionsPort(Protocol):
    """What a person decides where no rule can."""

    async def resolve(self, ref: str, request: wire.ResolveRequest) -> wire.Resolved:
        """Refused when nothing waits, or for an owner's fork."""


class AuthorityPort(Protocol):
    """The authority of a dataset: who may sign for it."""

    async def show_authority(self, ref: str) -> wire.AuthorityView: ...

    async def draft_authority(self, ref: str, request: wire.AuthorityDraftRequest) -> wire.AuthorityDraft:
        """The next version as it would be; nothing is signed or kept."""

    async def change_authority(self, ref: str, request: wire.AuthorityRequest) -> wire.AuthorityView:
        """Sign a draft with the keys that are here, join the signatures that came, keep and announce it."""

    async def dataset_key(self, ref: str) -> wire.DatasetKey:
        """The dataset's secret, for its owner to keep elsewhere."""


class TasksPort(Protocol):
    async def list(self) -> Sequence[wire.TaskView]: ...

    async def get(self, task_id: str) -> wire.TaskView: ...

    async def cancel(self, task_id: str) -> wire.TaskView: ...

    def follow(self, task_id: str) -> AsyncIterator[wire.TaskView]:
        """Snapshots, a few a second at most, the last one finished. Raises NotFound at the first step."""


class EventsPort(Protocol):
    def follow(self, since: int | None, kinds: Sequence[str]) -> AsyncIterator[wire.EventView]:
        """Those after number ``since``, or only new ones; of these kinds, or of kinds beginning with them."""


class Node(Protocol):
    """All of it."""

    @property
    def about(self) -> StatusPort: ...

    @property
    def datasets(self) -> DatasetsPort: ...

    @property
    def flow(self) -> IngestPullPort: ...

    @property
    def rewriting(self) -> HistoryRewritePort: ...

    @property
    def collection(self) -> CollectionPort: ...

    @property
    def mirrors(self) -> MirrorsPort: ...

    @property
    def visibility(self) -> VisibilityPort: ...

    @property
    def publications(self) -> PublicationsPort: ...

    @property
    def networks(self) -> NetworksPort: ...

    @property
    def signers(self) -> SignersPort: ...

    @property
    def policies(self) -> PoliciesPort: ...

    @property
    def peers(self) -> PeersPort: ...

    @property
    def verification(self) -> VerificationPort: ...

    @property
    def proving(self) -> EngineMigrationPort: ...

    @property
    def lineage(self) -> LineagePort: ...

    @property
    def trust(self) -> TrustPort: ...

    @property
    def resolving(self) -> ResolutionsPort: ...

    @property
    def authority(self) -> AuthorityPort: ...

    @property
    def tasks(self) -> TasksPort: ...

    @property
    def events(self) -> EventsPort: ...
