"""Makes the parts of a node and connects them.

It is the only module that imports every package. It makes parts and passes them on, and has no logic of theirs.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec
import trio

from chain.ids import DatasetId, KeyDid
from chain.instant import SECOND
from chain.multihash import Multihash
from chain.statements.envelope import Signed
from chain.statements.statement import PolicyStatement, decode_any
from config.model import Settings
from engines.query.reader import QueryProcesses
from odfd.control.assembly import Context
from odfd.control.remote import RemoteServer
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.ingest.refetch import confine
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.mirrors.chain_repair import ChainRepair
from odfd.mirrors.data_retention import DataRetention
from odfd.mirrors.epoch_switch import following
from odfd.mirrors.first_contact import FirstContact
from odfd.mirrors.holders import Holders
from odfd.mirrors.object_fetcher import ObjectFetcher
from odfd.mirrors.repair import Repair
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.mirrors.sync import MirrorSync
from odfd.network.evidence import EvidenceFetcher
from odfd.network.evidence_provider import EvidenceProvider
from odfd.network.forks import ForkFinder
from odfd.network.library import ServingLibrary, ServingTerms
from odfd.network.membership import MAX_PUBLISHERS, Known, Membership, MembershipTerms
from odfd.network.network_rules import network_rules
from odfd.network.outbox import Outbox
from odfd.network.statement_quota import StatementQuota
from odfd.network.statement_store import LedgerStatementStore, Subscribers
from odfd.network.swarm_parts import SwarmParts
from odfd.node.card_parts import card_publishers_of
from odfd.node.component_settings import (
    engine_environ,
    host_options,
    ingest_settings,
    object_limits,
    query_isolation,
    query_limits,
    spark_options,
    webhook_networks,
)
from odfd.node.execution_parts import dependencies_of
from odfd.node.in_force import InForce
from odfd.node.late_parts import LateParts
from odfd.node.query_parts import doors_of, queries_of
from odfd.node.statement_events import StatementEvents, interests_of
from odfd.node.trust_parts import (
    checkpoint_receiver_of,
    observer_of,
    rechecking_of,
    submissions_of,
    validator_of,
    witnessing_of,
)
from odfd.policy.policy import Expression, Policy
from odfd.published.staging import StagingQuota
from odfd.runtime import hanging_calls
from odfd.runtime.clock import JumpWatch
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.datasets.damage import DamageRegistry
from odfd.services.flows.worker import FlowWorker, FollowSettings
from odfd.services.ingest.transforms import TransformCheck
from odfd.services.maintenance.engine import NodeEngine
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.services.network.invitation_uses import InvitationUses
from odfd.services.network.site_library import open_site
from odfd.services.publishing.ipfs_publication import PublicationService, PublicationTerms
from odfd.services.publishing.visibility import askable_peers, settle_visibility
from odfd.services.renditions.handover_follower import HandoverFollower
from odfd.services.resources.reconciler import Reconciler
from odfd.services.resources.types import TYPES
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.transfer.remotes import Remotes
from odfd.services.trust.effective_policy import EffectivePolicy, purposes
from odfd.services.trust.head_signer import HeadSigner
from odfd.services.trust.journal_recovery import JournalRecovery
from odfd.services.trust.resolutions import PendingDecisions
from odfd.services.views.views import DatasetViews
from odfd.services.volumes.worker import VolumeWorker
from odfd.services.webhooks.calls import WebhookWorker
from odfd.store import mirror_specs
from odfd.store.access_tokens import TokenStore
from odfd.store.damage import DamagedBlock
from odfd.store.directory import PARTIAL, PARTIAL_EVIDENCE, StateDirectory
from odfd.store.invitation_tokens import InvitationTokens
from odfd.store.ledger.recheck_results import Rechecks
from odfd.store.ledger.signed_heads import publishing_keys
from odfd.transform.driver import TransformDependencies as TransformDependencies
from odfd.trust.evidence.bundle_store import BundleStore
from odfd.trust.judgement.suspension_review import SuspensionReview
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.signing.owner_commit import OwnerCommitter
from odfd.trust.signing.signer_context import SignerContext
from p2p.ip import Allows, is_global
from p2p.kubo.rpc import IpfsDaemon
from p2p.pace import Bandwidth
from p2p.ports import Topic


class NodeParts:
    """All parts of one node. Attributes are in the order of their dependencies.

    Tests replace ``engine``, ``membership`` and ``ipfs``, with which the node computes and reaches others.
    """

    scheduler: MirrorScheduler

    def __init__(
        self,
        home: StateDirectory,
        in_force: InForce,
        context: Context,
        engine: NodeEngine | None = None,
        membership: Callable[..., Membership] = Membership,
        ipfs: IpfsDaemon | None = None,
        may_dial: Allows = is_global,
    ) -> None:
        """``may_dial`` says which addresses of sources that other nodes declared may be dialled."""
        self.may_dial = may_dial
        self.home, self.in_force, self.context = home, in_force, context
        settings = self.settings
        self._token: trio.lowlevel.TrioToken | None = None
        self.effective_policy = EffectivePolicy(in_force.settings)
        self.policy = self._policy()
        self._log_policy_notes()
        self._own_key = home.keys.validator_key() if settings.policy.publish.own_key else None
        self.evaluator = TrustEvaluator(
            home.database,
            home.chains,
            lambda: self.policy,
            (self._own_key or home.keys.node_key()).did,
            context.clock.now,
            self._purposes,
            home.keys.has_dataset_key,
            lambda one: self.policies.for_dataset(one, self.visibility.met_in),
        )
        self.visibility, self.late = home.visibility, LateParts()
        self.views = DatasetViews(
            home,
            self.evaluator,
            lambda dataset: self.scheduler.refused_by(dataset),
            lambda: self.engine.digests,
        )
        self.reconciler = Reconciler(home, context, TYPES, self.late.controllers)
        self.pending_decisions = PendingDecisions(home, self.evaluator)
        self.engine = engine or NodeEngine(
            spark_options(settings, home),
            engine_environ(settings, os.environ),
            context.logger,
            self._engine_changed,
        )
        self.readers = QueryProcesses(
            home.directory / "readers",
            lambda: query_isolation(self.settings),
            query_limits(settings),
            lambda why: context.logger.info("processes of queries are not forked", why=why),
        )
        self._hold_statements()
        self._hold_network(membership, ipfs)
        self.jumps = JumpWatch(context.clock)
        self.committer = self._committer()
        self.heads = HeadSigner(home.chains, self.committer, self.home.name_of, context.events, context.logger)
        self._hold_mirrors()
        self._settle()
        self.ingest_deps, self.transform_deps = dependencies_of(self, self._usable)
        self.check = TransformCheck(home, self.engine)
        self._hold_speakers()
        self.suspension_review = SuspensionReview(
            home.database, home.chains, self.evaluator, context.events, context.clock.now, self.scheduler.poke_all
        )
        self._hold_caretakers()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.in_force.settings()

    def _hold_statements(self) -> None:
        """Makes the store of statements, and the parts that serve this node's data and answer queries."""
        home, clock, public_of = self.home, self.context.clock, self.visibility.public_of
        events = StatementEvents(self)
        self.witnessed = events.witnessed
        hearers = Subscribers(events.heard, events.proven, events.witnessed)
        self.quota = self._quota()
        rules = network_rules(self.visibility, clock.now)
        self.board = LedgerStatementStore(home.database, home.chains, clock.now, public_of, hearers, self.quota, rules)
        self.damage = DamageRegistry(home, clock, self.context.bus, self._found_damaged)
        self.bundles = BundleStore(home.folder("evidence"), refuted=self._untrue)
        self.arriving = UncommittedObjects(self.evaluator.passes_on_unjudged)
        swarms = SwarmParts(home.database, home.chains, self.arriving, home.keys, clock.now)
        stores = home.database, home.chains, home.objects
        self.library = ServingLibrary(
            *stores,
            ServingTerms(public_of, self._count_served, self.visibility.within, swarms),
            clock.now,
            lambda dataset, spot: self.damage.found(dataset, [spot]),
            EvidenceProvider(self.bundles, public_of),
        )
        reading = (self.readers, self.engine), self.library.size
        shown = self.views.cache.dataset, self.evaluator
        made = queries_of(home, shown, *reading, self.settings, self.context)
        self.queries, self.public_queries, self.projections = made

    def _hold_network(self, membership: Callable[..., Membership], ipfs: IpfsDaemon | None) -> None:
        """Makes the parts that talk to peers, publish elsewhere, and send by themselves."""
        home, settings, context = self.home, self.settings, self.context
        self.bandwidth = Bandwidth()
        self._cap_bandwidth()
        self.membership = membership(
            host_options(settings, home, self.bandwidth),
            (self.library, self.board),
            home.database,
            context.clock,
            context.logger,
            MembershipTerms(
                self.in_force.networks,
                self._known_peers,
                self.visibility.scope,
                lambda peer, token: self.invitations.redeem(peer, token),
                self._retry_with_new_peers,
            ),
        )
        self.invitations: InvitationUses = InvitationUses(home, self.membership, context.clock, secrets.token_bytes)
        self.staging = StagingQuota(self._disk_reserve, lambda size: self.object_fetcher.room.check_staged(size))
        self.remotes = Remotes(
            settings,
            self.bandwidth,
            home,
            self.membership,
            self.board,
            ipfs,
            partial(askable_peers, home, self.visibility),
            self.staging,
            lambda text: context.logger.info("blocks come one by one", why=text),
        )
        self.doors = doors_of(settings, home, self.queries, self.public_queries, context)
        site = open_site(
            settings,
            home,
            self.library,
            context.logger,
            checkpoint_receiver_of(self),
            self.doors.values(),
            self.late.smart_backend,
        )
        self.site = None if site is None else site.server
        self.smart = None if site is None else site.smart
        self.forks = ForkFinder(home.database, home.chains, self.remotes.replication, self.board.keep, context.logger)
        self.outbox = Outbox(self.membership, self.visibility.told_of, context.logger, self.visibility.scope)
        self.cards, self.node_card = card_publishers_of(self)

    def _hold_caretakers(self) -> None:
        """Makes the garbage collection, the publication to IPFS, and the workers that act by themselves."""
        home, context, settings = self.home, self.context, self.settings
        self.collection = GarbageCollector(home, context, settings.node.collect_hours, self.quota.concerns)
        terms = PublicationTerms(self._count_served, self.visibility)
        self.publications = PublicationService(
            home, self.remotes.publisher, terms, lambda: self.settings.policy.publish.ipfs, context
        )
        self.flows = FlowWorker(
            home,
            context,
            self._follow,
            lambda plan, record: self.late.performing().run(plan, record),
            partial(self.reconciler.touch, "Flow"),
            lambda each: self.late.declarations().labels_of(each),
        )
        inside = lambda: webhook_networks(self.settings)  # noqa: E731
        self.webhooks = WebhookWorker(home, context, inside, partial(secrets.token_hex, 16))
        self.volumes = VolumeWorker(home, context, partial(self.reconciler.touch, "PersistentVolume"))
        self.tokens = TokenStore(home.database, context.clock.now, secrets.token_bytes)
        self.remote = RemoteServer(settings.api, self.tokens.admit, context.logger) if settings.api.listen else None

    def urls(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the addresses at which others reach this node, by the table of settings or the door."""
        servers = {"http": self.site, "api": self.remote, **self.doors}
        return {name: tuple(server.urls) for name, server in servers.items() if server is not None}

    def _cap_bandwidth(self) -> None:
        p2p = self.settings.p2p
        self.bandwidth.cap(p2p.download_rate, p2p.upload_rate, p2p.relay_rate)

    def _disk_reserve(self) -> int:
        return self.settings.limits.disk_reserve_bytes

    def _engine_changed(self) -> None:
        self.context.events.nudge()
        for name in self.views.cache.blocked():
            self.reconciler.touch("Dataset", name)

    def _follow(self) -> FollowSettings:
        flows = self.settings.flows
        return FollowSettings(flows.follow, int(flows.cooldown_seconds * SECOND))

    def _committer(self) -> OwnerCommitter:
        home, now = self.home, self.context.clock.now
        shards = ShardedWrites(home.database, home.chains, home.objects)
        return OwnerCommitter(
            home.database,
            home.chains,
            home.keys,
            now,
            self.signed,
            shards,
            self.visibility.is_known,
            self.jumps.ahead,
        )

    def _hold_speakers(self) -> None:
        """Makes the parts that sign their own findings, and the recovery of lost signing journals."""
        self.validator, self.rechecker = validator_of(self), rechecking_of(self)
        self.observer = observer_of(self)
        self.witnessing, self.submissions = witnessing_of(self), submissions_of(self)
        asking = msgspec.structs.replace(self.signer(), public_of=self.visibility.told_of)
        self.journal_recovery = JournalRecovery(asking, self.membership, lambda: self.policy, self._may_sign_again)

    def _hold_mirrors(self) -> None:
        """Makes the parts that fetch datasets of others, from peers and from where they are published."""
        home, context = self.home, self.context
        replication = self.remotes.replication
        self.keeping = DataRetention(home.database, home.chains, home.objects, self.views.readers.own, home.held)
        keeping = self.keeping
        self.evidence_fetcher = EvidenceFetcher(
            replication, self.bundles, home.folder(PARTIAL_EVIDENCE), self._disk_reserve
        )
        self.object_fetcher: ObjectFetcher = ObjectFetcher(
            home.objects,
            keeping,
            home.folder(PARTIAL),
            replication,
            lambda: object_limits(self.settings),
            self.arriving,
            self.staging,
        )
        self.holders = Holders(replication, replication.inquire)
        self.following = following(lambda: self.settings.policy)
        self.sync = MirrorSync(
            home.database,
            home.chains,
            self.object_fetcher,
            replication,
            self.holders,
            FirstContact(lambda: self.policy.witnesses, context.clock.now),
            following=self.following,
        )
        self.scheduler = MirrorScheduler(
            home.database,
            self.sync,
            context.events,
            context.clock,
            context.logger,
            self.moved,
            self.board.adopt,
            lambda: bool(self.membership.networks),
            self.forks.doubt,
        )
        self.handovers = HandoverFollower(
            home,
            self.scheduler,
            context,
            self._derived_here,
            lambda old, new, also: self.late.renditions().hand_over_readers(old, new, also),
            self.moved,
        )
        mender = ChainRepair(home.database, home.chains, home.objects, replication, self.holders)
        self.repairing = Repair(home, self.sync, mender, self._caught_up)
        self.import_export = CollectionTransfer(
            home, self.remotes, self.object_fetcher, context.clock, self.moved, self.board
        )

    def _settle(self) -> None:
        """Settles imports that the last run left unfinished, and logs what it finds; the doctor reports it too."""
        found = self.home.recovery
        if found.is_full or found.lost:
            self.context.logger.error("the start found trouble", found=str(found), pages=found.lost)
        for room, here, now in found.brought_forward:
            self.context.logger.info("tables of an older version brought forward", tables=room, version=here, to=now)
        for line in found.converted:
            self.context.logger.info("declared anew", change=line)
        found.settled, found.unsettled = self.import_export.mend()
        settle_visibility(self.home, self.visibility, self.settings, self.context)
        for name in found.settled:
            self.context.logger.info("an import that was cut off is settled", dataset=name)
        for trouble in found.unsettled:
            self.context.logger.error("a dataset cannot be settled", trouble=trouble)

    async def run_network(self, life: Life) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.context.bus.open()
        await self.membership.run(life)

    def in_loop(self, call: Callable[..., object], *args: object) -> None:
        """Calls a function in the event loop, from any thread. Does nothing before the node runs."""
        if self._token is not None:
            self._token.run_sync_soon(call, *args)

    def _policy(self) -> Policy:
        with self.home.database.read() as connection:
            self.policies = self.effective_policy.policies(connection)
        return self.policies.joint

    @hanging_calls.in_loop
    def ruled(self, signed: Signed | None) -> None:
        if signed is not None and isinstance(said := decode_any(signed.payload), PolicyStatement):
            self.outbox.put_in([said.network], Topic.HEADS, signed.envelope)
        self.policy_changed()

    def _log_policy_notes(self) -> None:
        for note in self.policy.notes:
            self.context.logger.info("policy", note=note)

    def _speaks_for_us(self, statement: PolicyStatement) -> bool:
        network = self.membership.find(statement.network)
        return network is not None and statement.key == self.effective_policy.key_in(network)

    def reload(self, settings: Settings) -> None:
        """Applies new settings. Raises Invalid for an impossible policy, and then changes nothing."""
        with self.home.database.read() as connection:
            self.effective_policy.policy(connection, settings)
        # Raises for malformed networks before anything is changed.
        webhook_networks(settings)
        self.in_force.settings.put(settings)
        self._cap_bandwidth()
        self.ingest_deps.settings = ingest_settings(settings, self.home, os.environ)
        # The observer fetches from sources that other nodes declare, which may name addresses inside this network.
        self.observer.deps.settings = confine(self.ingest_deps.settings, self.may_dial)
        self.in_loop(self.node_card.loop.poke)
        self.in_loop(self.cards.loop.touch_all)
        self.policy_changed()

    @hanging_calls.in_loop
    def policy_changed(self) -> None:
        self.policy = self._policy()
        for dataset in self.policy.attended:
            self.board.adopt(dataset)
        self.library.policy_changed()
        self.views.refresher.loop.poke()
        self._log_policy_notes()
        self.scheduler.poke_all()
        judged = (self.validator, self.observer, self.suspension_review, self.rechecker, self.witnessing)
        for part in (*judged, self.submissions, self.flows):
            part.loop.touch_all()
        for each in self.policy.rules:
            self.reconciler.touch("TrustPolicy", each.name)  # its quorum may have come within reach, or gone out of it
        self.context.events.emit("policy.changed", message=f"use {self.policy.use}, serve {self.policy.serve}")

    def _purposes(self, dataset: DatasetId) -> tuple[Expression | None, Expression | None]:
        with self.home.database.read() as connection:
            return purposes(connection, dataset, self.policy)

    def _known_peers(self) -> Known:
        """Returns the peers that have reserved slots: listed keys and admitted nodes, and publishers of mirrors."""
        listed = frozenset(key for group in self.policy.groups for key in group.keys)
        witnesses = frozenset(self.policy.witnesses.groups)
        with self.home.database.read() as connection:
            mirrored = sorted(mirror_specs.all_of(connection), key=lambda spec: -spec.priority)
            found = ([*publishing_keys(connection, spec.id), *spec.sharing] for spec in mirrored[:MAX_PUBLISHERS])
            publishers = frozenset(key for each in found for key in each)
            admitted = InvitationTokens(connection).admitted(each.name for each in self.membership.networks)
        return Known((listed | witnesses | admitted) - {self.evaluator.me}, publishers - {self.evaluator.me})

    def _quota(self) -> StatementQuota:
        return StatementQuota(
            is_listed=lambda key: self._is_own(key) or self.policy.group_of(key) is not None,
            witnesses=lambda: self.policy.witnesses,
            is_mirrored=self._is_mirrored,
            speaks_for_us=self._speaks_for_us,
            is_mine=self._is_mine,
            interests=partial(interests_of, self),
            share_of=lambda peer: self.membership.share_of(peer),
        )

    def _is_own(self, key: KeyDid) -> bool:
        """Whether a key is this node's, or the one for its verdicts, which may differ."""
        return key in (self.evaluator.me, self.home.keys.node_key().did)

    def _is_mine(self, key: KeyDid) -> bool:
        return self._is_own(key) or self.home.keys.has_dataset_key(DatasetId.from_public_key(key.public_key))

    def _is_mirrored(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        return (
            dataset in self.policy.attended
            or mirror_specs.of(connection, dataset) is not None
            or self.views.readers.has_any(dataset)
        )

    def _count_served(self, dataset: DatasetId) -> int:
        """Returns how many blocks of a public dataset policy passes on."""
        return self.evaluator.reach(dataset, self.evaluator.serve(dataset)).blocks

    def _usable(self, dataset: DatasetId) -> int | None:
        """Returns how many blocks may feed a transform here; ``None`` for all, as of this node's own datasets."""
        if self.home.keys.has_dataset_key(dataset):
            return None
        return self.evaluator.reach(dataset, self.evaluator.use(dataset)).blocks

    def signed(self, dataset: DatasetId, signed: Signed) -> None:
        self.library.note_change(dataset)
        self.outbox.put_signed(dataset, signed)
        for part in (self.publications, self.submissions, self.flows, self.webhooks, self.volumes, self.cards):
            self.in_loop(part.loop.touch, dataset)

    def _note_attested(self, dataset: DatasetId, signed: Signed) -> None:
        self.outbox.put(Topic.ATTEST, dataset, signed.envelope)

    def _found_damaged(self, dataset: DatasetId, spot: DamagedBlock) -> None:
        """Reports damage, from a worker thread, and makes a mirror fetch damaged objects again."""
        name = self.home.name_of(dataset)

        def tell() -> None:
            self.context.logger.error("damaged on disk", dataset=name, block=spot.sequence, found=spot.message)
            self.context.events.emit(
                "damage.found", name, f"block #{spot.sequence}: {spot.message}", about=about(dataset), rule=spot.rule
            )
            self.scheduler.poke(dataset)

        self.in_loop(tell)

    def _retry_with_new_peers(self) -> None:
        self.scheduler.met_someone()
        self.witnessing.loop.poke()
        self.journal_recovery.loop.poke()

    def _caught_up(self, dataset: DatasetId) -> None:
        self.moved(dataset)
        self.heads.loop.touch(dataset)

    def visibility_changed(self, dataset: DatasetId) -> None:
        """Updates announcements at once after a dataset was published, made private, added or removed."""
        self.library.note_change(dataset)
        self.in_loop(self.membership.look_again)
        self.in_loop(self.cards.visibility_changed, dataset)
        for part in (self.publications, self.submissions, self.flows, self.webhooks, self.volumes):
            self.in_loop(part.loop.touch, dataset)

    def _may_sign_again(self) -> None:
        for part in (self.heads, self.validator, self.witnessing):
            part.loop.touch_all()

    def _derived_here(self, source: DatasetId) -> list[str]:
        """Returns the names of this node's own datasets that derive from one."""
        return [each.name for each in self.views.readers.of(source) if self.home.keys.has_dataset_key(each.id)]

    def moved(self, dataset: DatasetId) -> None:
        followers = (self.suspension_review, self.rechecker, self.validator, self.observer, self.witnessing)
        for part in (*followers, self.handovers, self.publications, self.flows, self.webhooks, self.volumes):
            part.loop.touch(dataset)

    def signer(self) -> SignerContext:
        home, context = self.home, self.context
        return SignerContext(
            database=home.database,
            keys=home.keys,
            events=context.events,
            clock=context.clock,
            logger=context.logger,
            announce=self._note_attested,
            name_of=self.home.name_of,
            public_of=self.visibility.public_of,
            own_key=self._own_key,
        )

    def _untrue(self, bundles: Collection[Multihash]) -> frozenset[Multihash]:
        with self.home.database.read() as connection:
            return Rechecks(connection).untrue(bundles)
