"""Decides what the card of this node states next, and when. Pure. Spec: docs/spec/trust.md#node-cards."""

from __future__ import annotations

from typing import Final, NamedTuple

from chain import instant
from chain.ids import KeyDid
from chain.instant import Instant
from chain.statements import statement
from chain.statements.node_card import NODE_CARD_LIFETIME, NOTHING_SAID, NodeCard, NodeClaims

NODE_CARD_RENEWED: Final = NODE_CARD_LIFETIME // 3
"""Time after which an unchanged card is signed anew."""


class NextNodeCard(NamedTuple):
    """The card to sign now (``None``: none), and when to decide again (``None``: when the settings change)."""

    card: NodeCard | None
    again: Instant | None


def next_node_card(before: NodeCard | None, claims: NodeClaims | None, node: KeyDid, now: Instant) -> NextNodeCard:
    """Decides after ``before``, the card signed last. ``claims``: what is to be published now; ``None``: nothing."""
    if claims is None:
        is_told = before is not None and not before.is_withdrawal and before.expires > now
        return NextNodeCard(_card(before, None, node, now) if is_told else None, None)
    if before is not None and before.claims == claims and now < before.issued + NODE_CARD_RENEWED:
        return NextNodeCard(None, Instant(before.issued + NODE_CARD_RENEWED))
    card = _card(before, claims, node, now)
    return NextNodeCard(card, Instant(card.issued + NODE_CARD_RENEWED))


def _card(before: NodeCard | None, claims: NodeClaims | None, node: KeyDid, now: Instant) -> NodeCard:
    issued = now if before is None else max(now, Instant(before.issued + instant.SECOND))
    return NodeCard(
        node=node,
        issued_at=statement.when(issued),
        expires_at=statement.when(Instant(issued + NODE_CARD_LIFETIME)),
        claims=claims,
        head=NOTHING_SAID if claims is None else claims.digest,
    )
