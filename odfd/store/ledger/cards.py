"""Stores cards: the signed public descriptions that publishers give of their datasets, and nodes of themselves.

One card of each dataset is kept: the one under the newest version of its authority, of those the latest, and of equal
times the one with the higher id; so any order of arrival leaves every node with the same. A card of a superseded
version holds until the owner signs another. Of cards of nodes only this node's own is kept, which it signed itself or
received again after a backup was restored; those of others stay in memory (``odfd.network.peer_cards``). Calls are
synchronous, on the connection they are given; the tables are the ledger's. Spec: docs/spec/trust.md#cards, #node-cards.
"""

from __future__ import annotations

import sqlite3

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.card import Card
from chain.statements.envelope import Signed
from chain.statements.node_card import NODE_CARD, NodeCard
from chain.statements.statement import CARD
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import CARDS, NODE_CARDS


class Cards:
    """Stores the current card of each dataset, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def is_news(self, card: Card, sid: Multihash) -> bool:
        """Whether a card follows the one that is kept."""
        row = CARDS.one(self._db, "dataset = ?", (card.dataset,))
        return row is None or (card.authority, card.issued, sid) > (row[2], row[3], Multihash(row[5]))

    def keep(self, card: Card, signed: Signed, outcome: str, peer: str, now: Instant) -> None:
        """Keeps a card that is news, and appends it to the log."""
        Ledger(self._db).append((now, card.dataset, card.author, CARD, signed.sid, signed.envelope, peer, outcome))
        CARDS.put(
            self._db,
            card.dataset,
            card.author,
            card.authority,
            card.issued,
            int(card.is_withdrawal),
            signed.sid,
            signed.envelope,
        )

    def of(self, dataset: DatasetId) -> Card | None:
        """Returns the card of a dataset; ``None`` if there is none. Raises Environment if its row is damaged."""
        row = CARDS.one(self._db, "dataset = ?", (dataset,))
        return None if row is None else read(bytes(row[6]))

    def withdrawn_at(self, dataset: DatasetId) -> Instant | None:
        """Returns when the publisher of a dataset signed that it shows it no more; ``None`` if its card says otherwise,
        or there is none. Reads no card."""
        row = self._db.execute("SELECT issued FROM trust_cards WHERE dataset = ? AND withdrawn", (dataset,)).fetchone()
        return None if row is None else Instant(row[0])

    def list_shown(self) -> dict[DatasetId, Multihash]:
        """Returns the ids of all cards that were not withdrawn; reads an index only."""
        rows = self._db.execute("SELECT dataset, sid FROM trust_cards WHERE NOT withdrawn")
        return {DatasetId(dataset): Multihash(sid) for dataset, sid in rows}

    def list_withdrawn(self) -> dict[DatasetId, Multihash]:
        """Returns the ids of the cards by which publishers withdrew earlier ones."""
        rows = self._db.execute("SELECT dataset, sid FROM trust_cards WHERE withdrawn")
        return {DatasetId(dataset): Multihash(sid) for dataset, sid in rows}


def read(sealed: bytes) -> Card:
    """Decodes the card in an envelope that was admitted before. Raises Invalid."""
    predicate = statement.decode_any(envelope.unseal(sealed, Card.MAX_ENVELOPE).payload)
    assert isinstance(predicate, Card), "a row of this table is a card"
    return predicate


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
