"""Makes what manages networks, peers and mirrors, the search over what others publish, and the site of the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from odfd.network.joined_networks import PEER
from odfd.network.node_names import node_names
from odfd.resources.resource import Resource
from odfd.services.feature import Feature, Ground, listener
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.network.controllers import MirrorController, NetworkController, PeerController
from odfd.services.network.mirrors import MirrorLinks, MirrorService, PeerService
from odfd.services.network.network_types import PeerResourceSpec
from odfd.services.network.networks import NetworkFacts, NetworkService
from odfd.services.network.search import SearchService
from odfd.services.network.site_library import open_site
from odfd.services.peers.feature import PeersFeature
from odfd.services.publishing.feature import PublishingFeature
from odfd.services.queries.feature import QueriesFeature
from odfd.services.renditions.feature import RenditionsFeature
from odfd.services.resources.node_types import ready_resource
from odfd.services.resources.views import GetResource
from odfd.services.transfer.feature import TransferFeature
from odfd.services.trust.feature import TrustFeature
from odfd.services.views.feature import ViewsFeature
from odfd.smart.ports import SmartBackend


class NetworkFeature(Feature):
    def __init__(  # noqa: PLR0913  # what is above all that fetches, trusts and publishes
        self,
        ground: Ground,
        judgement: JudgementFeature,
        views: ViewsFeature,
        peers: PeersFeature,
        transfer: TransferFeature,
        trust: TrustFeature,
        publishing: PublishingFeature,
        queries: QueriesFeature,
        renditions: RenditionsFeature,
        get: GetResource,
        delete: Callable[[str, str], Awaitable[object]],
        smart_backend: Callable[[], SmartBackend],
    ) -> None:
        """``delete``: deletes a resource, given its type and name. ``smart_backend``: what serves pulls of the site."""
        home, context, board = ground.home, ground.context, peers.board
        names = node_names(board.peer_cards, lambda: publishing.node_card.current)
        search = SearchService(
            home, views.views, board.unheld, transfer.counts, lambda: judgement.policy, context.clock, names
        )
        follow_shards = renditions.handovers.shards.follow
        links = MirrorLinks(peers.membership.find, get, transfer.import_export.adopt, follow_shards)
        self.mirrors = MirrorService(
            home,
            transfer.scheduler,
            judgement.evaluator,
            context.board,
            transfer.remotes,
            transfer.counts,
            search,
            links,
        )
        networks = NetworkService(
            home,
            peers.membership,
            NetworkFacts(transfer.counts, board.unheld, search.index, names, peers.arriving.counts),
            judgement.effective_policy,
            context.clock,
            judgement.change_policy,
            peers.invitations,
            delete,
        )
        known = PeerService(peers.membership, home, transfer.counts, names)
        site = open_site(
            ground.settings,
            home,
            peers.library,
            context.logger,
            trust.checkpoints,
            queries.doors.values(),
            smart_backend,
        )
        self.site = None if site is None else site.server
        self.smart = None if site is None else site.smart
        if self.site is not None:
            context.servers.append(self.site.server)
        self.operations = networks, known, self.mirrors, search
        self.controllers = (
            NetworkController(networks),
            PeerController(networks, known),
            MirrorController(self.mirrors, transfer.scheduler),
        )
        self.undeclared = {PEER: self._list_peers}
        self.children = () if self.site is None else (listener("site", self.site.run),)
        self._membership, self._node, self._since = peers.membership, home.keys.node_key().did, context.clock.now()

    async def _list_peers(self) -> Sequence[Resource]:
        """Lists the known peers of which nothing is declared."""
        met = [peer.peer for peer in self._membership.peers() if not peer.blocked]
        return [
            ready_resource(self._node, self._since, PEER, each, each, PeerResourceSpec(peer_id=each, blocked=False))
            for each in met
        ]
