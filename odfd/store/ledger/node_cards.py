"""Stores this node's own card, which it signed itself or received again after a backup was restored.

Of each key the latest card is kept, and of equal times the one with the higher id. Cards of other nodes stay in memory
(``odfd.network.peer_cards``). Calls are synchronous, on the connection they are given; the table is the ledger's. Spec:
docs/spec/trust.md#node-cards.
"""

from __future__ import annotations

import sqlite3

from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.node_card import NODE_CARD, NodeCard
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import NODE_CARDS


class NodeCards:
    """Stores node cards, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def is_news(self, card: NodeCard, sid: Multihash) -> bool:
        """Whether a card follows the one that is kept."""
        row = NODE_CARDS.one(self._db, "node = ?", (card.node,))
        return row is None or (card.issued, sid) > (row[1], Multihash(row[3]))

    def keep(self, card: NodeCard, signed: Signed, outcome: str, peer: str, now: Instant) -> None:
        """Keeps a card that is news, and appends it to the log."""
        Ledger(self._db).append((now, card.dataset, card.node, NODE_CARD, signed.sid, signed.envelope, peer, outcome))
        NODE_CARDS.put(self._db, card.node, card.issued, int(card.is_withdrawal), signed.sid, signed.envelope)

    def is_damaged(self, node: KeyDid) -> bool:
        """Whether the row of a key exists with a broken seal; then the card is signed anew over it."""
        return not NODE_CARDS.look(self._db, "node = ?", (node,))[1]

    def of(self, node: KeyDid) -> NodeCard | None:
        """Returns the card of a node; ``None`` if there is none. Raises Environment if its row is damaged."""
        row = NODE_CARDS.one(self._db, "node = ?", (node,))
        if row is None:
            return None
        predicate = statement.decode_any(envelope.unseal(bytes(row[4]), NodeCard.MAX_ENVELOPE).payload)
        assert isinstance(predicate, NodeCard), "a row of this table is a node's card"
        return predicate
