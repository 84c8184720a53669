"""Makes what fetches datasets of others, from peers and from where they are published, and what publishes elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

from chain.ids import DatasetId
from chain.statements.statement import HeadStatement
from config.model import Settings
from odfd.mirrors.data_retention import DataRetention
from odfd.mirrors.epoch_switch import following
from odfd.mirrors.first_contact import FirstContact
from odfd.mirrors.holders import Holders
from odfd.mirrors.object_fetcher import ObjectFetcher, ObjectLimits
from odfd.mirrors.repair import ChainRepair, Repair
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.mirrors.sync import MirrorSync
from odfd.network.evidence import EvidenceFetcher
from odfd.network.forks import Contradiction, ForkFinder
from odfd.network.statement_store import NewStatement
from odfd.published.staging import StagingQuota
from odfd.runtime.hanging_calls import in_loop
from odfd.runtime.supervision import Child
from odfd.services.feature import UNLABELLED, Feature, Ground, Reading, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import (
    CosignatureHeard,
    DamageFound,
    DatasetMoved,
    HoldReleased,
    PeersMet,
    PolicyChanged,
    StatementHeard,
)
from odfd.services.peers.feature import PeersFeature
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.transfer.push import PushService
from odfd.services.transfer.remotes import Remotes
from odfd.services.transfer.repository_controller import RepositoryController
from odfd.services.views.feature import ViewsFeature
from odfd.services.views.holder_counts import HolderCounts
from odfd.store import mirror_specs
from odfd.store.directory import PARTIAL, PARTIAL_EVIDENCE, StateDirectory
from odfd.trust.admission.rules import AdmissionOutcome
from p2p.kubo.rpc import IpfsDaemon


class TransferFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        views: ViewsFeature,
        peers: PeersFeature,
        ipfs: IpfsDaemon | None = None,
    ) -> None:
        """``ipfs`` replaces the Kubo of the settings."""
        home, context, clock = ground.home, ground.context, ground.context.clock
        self._ground, self._judgement = ground, judgement
        disk_reserve = lambda: ground.settings.limits.disk_reserve_bytes  # noqa: E731
        self.staging = StagingQuota(disk_reserve, lambda size: self.object_fetcher.room.check_staged(size))
        self.remotes = Remotes(
            ground.settings,
            peers.bandwidth,
            home,
            peers.membership,
            peers.board,
            ipfs,
            partial(list_askable, home),
            self.staging,
            lambda text: context.logger.info("blocks come one by one", why=text),
        )
        replication = self.remotes.replication
        self.forks = ForkFinder(home.database, home.chains, replication, peers.board.keep, context.logger)
        self.keeping = DataRetention(home, views.views.readers.own)
        self.evidence_fetcher = EvidenceFetcher(replication, peers.bundles, home.folder(PARTIAL_EVIDENCE), disk_reserve)
        self.object_fetcher: ObjectFetcher = ObjectFetcher(
            home.objects,
            self.keeping,
            home.folder(PARTIAL),
            replication,
            lambda: _object_limits(ground.settings),
            peers.arriving,
            self.staging,
        )
        self.holders = Holders(replication, replication.inquire)
        self.following = following(lambda: ground.settings.policy)
        self.sync = MirrorSync(
            home,
            self.object_fetcher,
            replication,
            self.holders,
            FirstContact(lambda: judgement.policy.witnesses, clock.now),
            following=self.following,
        )
        self.scheduler = MirrorScheduler(
            home.database,
            self.sync,
            context.events,
            clock,
            context.logger,
            self._publish_moved,
            peers.board.adopt,
            lambda: bool(peers.membership.networks),
            self.forks.doubt,
        )
        self.repairing, self.import_export = self._make_repair(), self._make_import(peers)
        home.recovery.settled, home.recovery.unsettled = self.import_export.mend()
        self.counts = HolderCounts(self.scheduler, peers.membership.serving, peers.membership.share_of)
        self.pushing = PushService(home, home.visibility, self.import_export, context.board)
        self.operations = (self.pushing,)
        mirroring = worker("forks", self.forks.run), worker("mirrors", self.scheduler.run)
        self.children = (*mirroring, Child("remotes", self.remotes.run))
        self.controllers = (RepositoryController(lambda: self.remotes.own_shelves, clock.now),)
        self._subscribe()

    def _make_repair(self) -> Repair:
        home, replication = self._ground.home, self.remotes.replication
        mender = ChainRepair(home, replication, self.holders)
        return Repair(home, self.sync, mender, self._catch_up)

    def _make_import(self, peers: PeersFeature) -> CollectionTransfer:
        home, clock = self._ground.home, self._ground.context.clock
        return CollectionTransfer(home, self.remotes, self.object_fetcher, clock, self._publish_moved, peers.board)

    def _subscribe(self) -> None:
        bus = self._ground.bus
        bus.subscribe(self._hear, NewStatement)
        bus.subscribe(lambda each: self.scheduler.poke(each.dataset), StatementHeard, HoldReleased)
        bus.subscribe(lambda each: self.scheduler.poke(each.dataset), DamageFound, soon=True)
        # A mirror may have waited for it.
        bus.subscribe(
            lambda each: self.scheduler.poke(each.cosignature.checkpoint.dataset), CosignatureHeard, soon=True
        )
        bus.subscribe(lambda _: self.scheduler.poke_all(), PolicyChanged)
        bus.subscribe(lambda _: self.scheduler.met_someone(), PeersMet)

    @in_loop
    def _publish_moved(self, dataset: DatasetId) -> None:
        self._ground.bus.publish(DatasetMoved(dataset))

    def _catch_up(self, dataset: DatasetId) -> None:
        self._publish_moved(dataset)
        self._judgement.heads.loop.touch(dataset)

    def _hear(self, news: NewStatement) -> None:
        predicate, call_soon = news.predicate, self._ground.bus.call_soon
        if not isinstance(predicate, HeadStatement):
            return
        if news.outcome is AdmissionOutcome.FORK and news.proof is None:
            call_soon(self.forks.put, Contradiction(predicate, news.envelope, news.sender))
        # Nobody else should know more of a dataset of ours; another writer may, or a thief of its key: look for a fork.
        if self._ground.home.keys.has_dataset_key(predicate.dataset):
            call_soon(self.forks.doubt, predicate.dataset, news.sender)

    def gauges(self) -> Iterator[Reading]:
        yield "odfd_staged_bytes", self.staging.total(), UNLABELLED


def list_askable(home: StateDirectory, dataset: DatasetId) -> Collection[str] | None:
    """Returns the only peers to ask about a dataset; ``None`` for any peer.

    These are the peers that share it, or nobody for a private site.
    """
    with home.database.read() as connection:
        spec = mirror_specs.of(connection, dataset)
    if spec is None or (not spec.peers and not spec.is_from_web):
        return None
    return spec.peers or (None if home.visibility.is_told(dataset) else ())


def _object_limits(settings: Settings) -> ObjectLimits:
    limits = settings.limits
    return ObjectLimits(
        object_bytes=limits.object_bytes, disk_reserve=limits.disk_reserve_bytes, mirror_bytes=limits.mirror_bytes
    )
