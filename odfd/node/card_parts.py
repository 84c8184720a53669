"""Makes the parts of a node that publish cards of its datasets and its own node card."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from config.model import Settings
from odfd.control.assembly import Context
from odfd.network.outbox import Outbox
from odfd.network.statement_store import LedgerStatementStore
from odfd.services.publishing.card_publisher import CardPublisher
from odfd.services.publishing.node_card_publisher import NodeCardPublisher
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Visibility
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from p2p.ports import Topic


class CardContext(Protocol):
    """The parts of a node that these parts need; ``odfd.node.parts.NodeParts`` has them."""

    home: StateDirectory
    context: Context
    visibility: Visibility
    outbox: Outbox
    board: LedgerStatementStore
    evaluator: TrustEvaluator

    @property
    def settings(self) -> Settings: ...


def card_publishers_of(parts: CardContext) -> tuple[CardPublisher, NodeCardPublisher]:
    def names_node() -> bool:
        return parts.settings.p2p.card

    name = parts.settings.node.name
    cards = CardPublisher(
        parts.home,
        parts.visibility,
        parts.outbox.put_card,
        name,
        parts.context,
        lambda dataset: parts.evaluator.reach(dataset, parts.evaluator.serve(dataset)).blocks,
        names_node,
        parts.board.shared_cards,
    )
    tell = partial(parts.outbox.put, Topic.HEADS, None)
    return cards, NodeCardPublisher(parts.home, lambda: parts.settings, tell, parts.context)
