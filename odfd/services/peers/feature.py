"""Makes what speaks with other nodes: the statements of all, what this node serves, and its membership in networks."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator

from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.statement import HeadStatement, PolicyStatement
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.network import outbox, statement_store, unheld_statements
from odfd.network.evidence_provider import EvidenceProvider
from odfd.network.library import ServingLibrary, ServingTerms
from odfd.network.membership import MAX_PUBLISHERS, Known, Membership, MembershipTerms
from odfd.network.outbox import Outbox
from odfd.network.statement_quota import StatementQuota
from odfd.network.statement_store import LedgerStatementStore, NewStatement, Subscribers, network_rules
from odfd.network.swarm_parts import SwarmParts
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.feature import UNLABELLED, Feature, Ground, Reading, cache, listener, queue, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import (
    CosignatureHeard,
    PeersMet,
    PolicyChanged,
    ProofKept,
    SettingsChanged,
    SliceDamaged,
    StatementHeard,
    StatementSigned,
    VisibilityChanged,
)
from odfd.services.peers.host_options import host_options
from odfd.services.peers.invitation_uses import InvitationUses
from odfd.services.views.feature import ViewsFeature
from odfd.store import mirror_specs
from odfd.store.invitation_tokens import InvitationTokens
from odfd.store.ledger.runs import Rechecks
from odfd.store.ledger.signed_heads import publishing_keys
from odfd.trust.admission.rules import AdmissionOutcome
from odfd.trust.admission.statement_kinds import KINDS
from odfd.trust.evidence.bundle_store import BundleStore
from p2p.driver.statements import MAX_QUEUE
from p2p.pace import Bandwidth
from p2p.peers.book import MAX_PEERS
from p2p.ports import Topic


class PeersFeature(Feature):
    def __init__(
        self,
        ground: Ground,
        judgement: JudgementFeature,
        views: ViewsFeature,
        membership: Callable[..., Membership] = Membership,
    ) -> None:
        """``membership`` replaces the class of what reaches others."""
        home, context, bus, clock = ground.home, ground.context, ground.bus, ground.context.clock
        self._ground, self._judgement, self._readers = ground, judgement, views.views.readers
        self.quota = self._make_quota()
        self.board = LedgerStatementStore(
            home.database,
            home.chains,
            clock.now,
            home.visibility.public_of,
            Subscribers(
                bus.publish,
                lambda proof, is_made_here: bus.publish(ProofKept(proof, is_made_here)),
                lambda made: bus.publish(CosignatureHeard(made)),
            ),
            self.quota,
            network_rules(home.visibility, clock.now),
        )
        self.bundles = BundleStore(home.folder("evidence"), refuted=self._list_untrue)
        self.arriving = UncommittedObjects(judgement.evaluator.passes_on_unjudged)
        swarms = SwarmParts(home, self.arriving, clock.now)
        self.library = ServingLibrary(
            home.database,
            home.chains,
            home.objects,
            ServingTerms(home.visibility.public_of, judgement.count_served, home.visibility.within, swarms),
            clock.now,
            lambda dataset, spot: bus.publish(SliceDamaged(dataset, spot)),
            EvidenceProvider(self.bundles, home.visibility.public_of),
        )
        self.bandwidth = Bandwidth()
        self._cap_bandwidth()
        self.membership = membership(
            host_options(ground.settings, home, self.bandwidth),
            (self.library, self.board),
            home.database,
            clock,
            context.logger,
            MembershipTerms(
                ground.in_force.networks,
                self.find_known_peers,
                home.visibility.scope,
                lambda peer, token: self.invitations.redeem(peer, token),
                lambda: bus.publish(PeersMet()),
            ),
        )
        self.invitations: InvitationUses = InvitationUses(home, self.membership, clock, secrets.token_bytes)
        self.outbox = Outbox(self.membership, home.visibility.told_of, context.logger, home.visibility.scope)
        self.children = worker("outbox", self.outbox.run), listener("network", self._run)
        bus.subscribe(self._hear, NewStatement)
        bus.subscribe(self._gossip_proof, ProofKept)
        bus.subscribe(self._change_policy, PolicyChanged)
        bus.subscribe(lambda _: self._cap_bandwidth(), SettingsChanged)
        bus.subscribe(self._send, StatementSigned)
        bus.subscribe(lambda each: self.library.note_change(each.dataset), VisibilityChanged)
        bus.subscribe(lambda _: self.membership.look_again(), VisibilityChanged, soon=True)

    async def _run(self, life: Life) -> None:
        # All that follows in the order of the start may be woken from now on.
        self._ground.bus.open()
        await self.membership.run(life)

    def find_known_peers(self) -> Known:
        """Returns the peers that have reserved slots: listed keys and admitted nodes, and publishers of mirrors."""
        policy, me = self._judgement.policy, self._judgement.evaluator.me
        listed = frozenset(key for group in policy.groups for key in group.keys)
        witnesses = frozenset(policy.witnesses.groups)
        with self._ground.home.database.read() as connection:
            mirrored = sorted(mirror_specs.all_of(connection), key=lambda spec: -spec.priority)
            found = ([*publishing_keys(connection, spec.id), *spec.sharing] for spec in mirrored[:MAX_PUBLISHERS])
            publishers = frozenset(key for each in found for key in each)
            admitted = InvitationTokens(connection).list_admitted(network.name for network in self.membership.networks)
        return Known((listed | witnesses | admitted) - {me}, publishers - {me})

    def list_interests(self, connection: sqlite3.Connection) -> set[DatasetId]:
        """Returns the datasets and keys about which this node wants to hear, also in rounds of anti-entropy.

        These are datasets that are held, mirrored, witnessed, or read by a public one here; listed keys of validators
        and witnesses, for proofs against them; and the keys of the networks' policies. Inputs of private datasets are
        left out, so that nobody learns that they exist. Raises Environment, Invalid.
        """
        home, policy = self._ground.home, self._judgement.policy
        listed = {key for group in policy.groups for key in group.keys}
        keys = {*listed, *policy.witnesses.groups, *self._judgement.effective_policy.keys(connection).values()}
        return {
            *policy.attended,
            *(spec.id for spec in mirror_specs.all_of(connection)),
            *home.chains.datasets(),
            *self._readers.inputs(home.visibility.told_of),
            *(DatasetId.from_public_key(key.public_key) for key in keys),
        }

    def _make_quota(self) -> StatementQuota:
        judgement = self._judgement
        return StatementQuota(
            is_listed=lambda key: self._is_own(key) or judgement.policy.group_of(key) is not None,
            witnesses=lambda: judgement.policy.witnesses,
            is_mirrored=self._is_mirrored,
            speaks_for_us=self._speaks_for_us,
            is_mine=self._is_mine,
            interests=self.list_interests,
            share_of=lambda peer: self.membership.share_of(peer),
        )

    def _is_own(self, key: KeyDid) -> bool:
        """Whether a key is this node's, or the one for its verdicts, which may differ."""
        return key in (self._judgement.evaluator.me, self._ground.home.keys.node_key().did)

    def _is_mine(self, key: KeyDid) -> bool:
        keys = self._ground.home.keys
        return self._is_own(key) or keys.has_dataset_key(DatasetId.from_public_key(key.public_key))

    def _is_mirrored(self, connection: sqlite3.Connection, dataset: DatasetId) -> bool:
        return (
            dataset in self._judgement.policy.attended
            or mirror_specs.of(connection, dataset) is not None
            or self._readers.has_any(dataset)
        )

    def _speaks_for_us(self, statement: PolicyStatement) -> bool:
        network = self.membership.find(statement.network)
        return network is not None and statement.key == self._judgement.effective_policy.key_in(network)

    def _list_untrue(self, bundles: Collection[Multihash]) -> frozenset[Multihash]:
        with self._ground.home.database.read() as connection:
            return Rechecks(connection).untrue(bundles)

    def _cap_bandwidth(self) -> None:
        p2p = self._ground.settings.p2p
        self.bandwidth.cap(p2p.download_rate, p2p.upload_rate, p2p.relay_rate)

    def _change_policy(self, _: PolicyChanged) -> None:
        for dataset in self._judgement.policy.attended:
            self.board.adopt(dataset)
        self.library.policy_changed()

    def _send(self, signed: StatementSigned) -> None:
        self.library.note_change(signed.dataset)
        self.outbox.put_signed(signed.dataset, signed.signed)

    def _hear(self, news: NewStatement) -> None:
        # The statement store calls from worker threads, where the name may be read; the rest is for the event loop.
        self._ground.bus.call_soon(self._tell_of, news, self._ground.home.name_of(news.predicate.dataset))

    def _tell_of(self, news: NewStatement, name: str) -> None:
        predicate, events = news.predicate, self._ground.context.events
        if isinstance(predicate, HeadStatement) and news.outcome is AdmissionOutcome.FORK:
            text = "it contradicts what the same key signed before"
            events.emit("head.refused", name, text, about=about(predicate.dataset))
            return
        if (make := KINDS[predicate.KIND].notice) is not None:
            notice = make(predicate, name)
            events.emit(notice.kind, notice.subject, notice.message, about=notice.about, **notice.data)
        self._ground.bus.publish(StatementHeard(predicate.dataset, predicate))

    def _gossip_proof(self, kept: ProofKept) -> None:
        """Gossips a proof once if it was made here; others spread by themselves."""
        if kept.is_made_here:
            self.outbox.put(Topic.PROOFS, kept.proof.dataset, kept.proof.raw)

    def gauges(self) -> Iterator[Reading]:
        figures, traffic, counts = self.membership.figures(), self.membership.traffic, self.arriving.counts
        yield from queue("announcements", len(self.outbox), outbox.WAITING)
        yield from queue("statements", figures.judging, MAX_QUEUE)
        yield from queue("answers", figures.answering)
        yield from cache("statements-judged", self.board.judged, statement_store.SEEN)
        yield from cache("unheld-statements", len(self.board.unheld), unheld_statements.MAX_DATASETS)
        yield from cache("peers-known", figures.known, MAX_PEERS)
        yield "odfd_peers_connected", figures.connected, UNLABELLED
        yield "odfd_peers_blocked", self.membership.blocked, UNLABELLED
        yield "odfd_relay", figures.relays, {"what": "used"}
        yield "odfd_relay", figures.reserved, {"what": "reservations"}
        yield "odfd_relay", figures.circuits, {"what": "circuits"}
        yield "odfd_direct", figures.punched, {"what": "succeeded"}
        yield "odfd_direct", figures.unpunched, {"what": "failed"}
        yield "odfd_direct", figures.not_dialled, {"what": "addresses-refused"}
        yield "odfd_direct", figures.dial_backs_refused, {"what": "dial-backs-refused"}
        yield "odfd_lookup", figures.lookup_nodes, {"what": "nodes"}
        yield "odfd_lookup", figures.lookup_records, {"what": "records"}
        yield "odfd_lookup", figures.lookup_refused, {"what": "questions-refused"}
        yield "odfd_lookup", figures.lookup_forged, {"what": "records-forged"}
        yield "odfd_swarm_pieces_total", counts.from_publisher, {"what": "from-publishers"}
        yield "odfd_swarm_pieces_total", counts.from_mirrors, {"what": "from-mirrors"}
        yield "odfd_swarm_pieces_total", counts.refused, {"what": "refused"}
        yield "odfd_swarm_pieces_total", counts.offered, {"what": "offered"}
        yield "odfd_swarm_bytes_total", counts.bytes_from_publisher, {"what": "from-publishers"}
        yield "odfd_swarm_bytes_total", counts.bytes_from_mirrors, {"what": "from-mirrors"}
        yield "odfd_swarm_bytes_total", counts.bytes_given, {"what": "given"}
        yield "odfd_network_received_bytes_total", traffic.received, UNLABELLED
        yield "odfd_network_sent_bytes_total", traffic.sent, UNLABELLED
        for what, number in (
            ("statements-unread", figures.unread),
            ("statements-kept-back", figures.kept_back),
            ("statements-unwanted", figures.unwanted),
            ("peers-unread", figures.peers_unread),
        ):
            yield "odfd_gossip_dropped_total", number, {"what": what}
