"""Makes what tells others of this node's datasets: cards, the card of the node, and publications to IPFS."""

from __future__ import annotations

from functools import partial

from odfd.services.feature import Feature, Ground, worker
from odfd.services.judgement.feature import JudgementFeature
from odfd.services.node_events import DatasetMoved, SettingsChanged, StatementSigned, VisibilityChanged
from odfd.services.peers.feature import PeersFeature
from odfd.services.publishing.card_publisher import CardPublisher
from odfd.services.publishing.ipfs_publication import PublicationService, PublicationTerms
from odfd.services.publishing.node_card_publisher import NodeCardPublisher
from odfd.services.publishing.visibility import settle_visibility
from odfd.services.transfer.feature import TransferFeature
from p2p.ports import Topic


class PublishingFeature(Feature):
    def __init__(
        self, ground: Ground, judgement: JudgementFeature, peers: PeersFeature, transfer: TransferFeature
    ) -> None:
        home, context, bus = ground.home, ground.context, ground.bus
        settle_visibility(home, home.visibility, ground.settings, context)
        self.cards = CardPublisher(
            home,
            home.visibility,
            peers.outbox.put_card,
            ground.settings.node.name,
            context,
            judgement.count_served,
            lambda: ground.settings.p2p.card,
            peers.board.shared_cards,
        )
        tell = partial(peers.outbox.put, Topic.HEADS, None)
        self.node_card = NodeCardPublisher(home, lambda: ground.settings, tell, context)
        self.publications = PublicationService(
            home,
            transfer.remotes.publisher,
            PublicationTerms(judgement.count_served, home.visibility),
            lambda: ground.settings.policy.publish.ipfs,
            context,
        )
        self.operations = (self.publications,)
        self.children = (
            worker("cards", self.cards.loop.run),
            worker("node-card", self.node_card.loop.run),
            worker("publications", self.publications.loop.run),
        )
        publications, cards = self.publications.loop, self.cards
        bus.subscribe(lambda _: self.node_card.loop.poke(), SettingsChanged, soon=True)
        bus.subscribe(lambda _: cards.loop.touch_all(), SettingsChanged, soon=True)
        bus.subscribe(lambda each: cards.visibility_changed(each.dataset), VisibilityChanged, soon=True)
        bus.subscribe(lambda each: cards.loop.touch(each.dataset), StatementSigned, soon=True)
        bus.subscribe(lambda each: publications.touch(each.dataset), StatementSigned, VisibilityChanged, soon=True)
        bus.subscribe(lambda each: publications.touch(each.dataset), DatasetMoved)
