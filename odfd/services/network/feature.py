"""Builds the feature of networks, peers, mirrors, and the search over what others publish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from chain.ids import DatasetId
from chain.statements.node_card import NodeCard
from odfd.control.assembly import Context
from odfd.datasets.uncommitted_objects import SwarmCounts
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.network.membership import Membership
from odfd.network.node_names import node_names
from odfd.network.statement_store import LedgerStatementStore
from odfd.policy.policy import Policy
from odfd.services.network.controllers import MirrorController, NetworkController, PeerController
from odfd.services.network.invitation_uses import InvitationUses
from odfd.services.network.mirrors import MirrorLinks, MirrorService, PeerService
from odfd.services.network.networks import NetworkFacts, NetworkService
from odfd.services.network.search import SearchService
from odfd.services.resources.views import GetResource
from odfd.services.transfer.remotes import Remotes
from odfd.services.trust.effective_policy import EffectivePolicy
from odfd.services.views.holder_counts import HolderCounts
from odfd.services.views.views import DatasetViews
from odfd.store.directory import StateDirectory
from odfd.trust.judgement.trust_evaluator import TrustEvaluator


class NetworkNeeds(NamedTuple):
    """The parts of the node, and the work of other features, by which it works."""

    membership: Membership
    statements: LedgerStatementStore
    scheduler: MirrorScheduler
    remotes: Remotes
    evaluator: TrustEvaluator
    views: DatasetViews
    effective_policy: EffectivePolicy
    policy: Callable[[], Policy]
    policy_changed: Callable[[], None]
    invitations: InvitationUses
    swarm: SwarmCounts
    own_card: Callable[[], NodeCard | None]
    get: GetResource
    withdraw: Callable[[str, str], Awaitable[object]]
    """Deletes a resource, given its type and name."""
    adopt: Callable[[DatasetId, str], Awaitable[object]]
    follow_shards: Callable[[DatasetId], Awaitable[Sequence[DatasetId]]]


class NetworkFeature(NamedTuple):
    """The operations of the feature, and its controllers in the order in which an apply prepares them."""

    networks: NetworkService
    peers: PeerService
    mirrors: MirrorService
    search: SearchService
    holders: HolderCounts
    peer_controllers: tuple[NetworkController, PeerController]
    mirror_controller: MirrorController


def build(home: StateDirectory, context: Context, needs: NetworkNeeds) -> NetworkFeature:
    holders = HolderCounts(needs.scheduler, needs.membership.serving, needs.membership.share_of)
    names, unheld = node_names(needs.statements.peer_cards, needs.own_card), needs.statements.unheld
    search = SearchService(home, needs.views, unheld, holders, needs.policy, context.clock, names)
    links = MirrorLinks(needs.membership.find, needs.get, needs.adopt, needs.follow_shards)
    mirrors = MirrorService(
        home, needs.scheduler, needs.evaluator, context.board, needs.remotes, holders, search, links
    )
    networks = NetworkService(
        home,
        needs.membership,
        NetworkFacts(holders, unheld, search.index, names, needs.swarm),
        needs.effective_policy,
        context.clock,
        needs.policy_changed,
        needs.invitations,
        needs.withdraw,
    )
    peers = PeerService(needs.membership, home, holders, names)
    controllers = NetworkController(networks), PeerController(networks, peers)
    return NetworkFeature(
        networks, peers, mirrors, search, holders, controllers, MirrorController(mirrors, needs.scheduler)
    )
