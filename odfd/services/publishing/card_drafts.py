"""Decides when the card of a dataset is signed again, and cuts it to the size limit of a card. Pure.

The description of a dataset seldom changes, and a change is published within a minute. Its counts change with each
commit: they are published within a minute if the number of records changed by a tenth, or after a reset, and else once
an hour, since followers of the dataset have its heads. So a dataset that grows steadily causes few cards.
Spec: docs/spec/trust.md#cards.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from chain import instant
from chain.ids import KeyDid
from chain.instant import Instant
from chain.statements import statement
from chain.statements.card import Card, CardSample, ChainFacts
from chain.statements.node_card import NODE_CARD_LIFETIME, NOTHING_SAID, NodeCard, NodeClaims
from chain.statements.statement import encode

LIFETIME: Final = 90 * 86400 * instant.SECOND
RENEWED: Final = LIFETIME // 3
LEAST: Final = 60 * instant.SECOND
"""Shortest time between two cards of one dataset."""
COUNTED: Final = 3600 * instant.SECOND
"""Time between two cards that differ only a little, and in counts alone."""
FAR: Final = 10
"""Counts are far apart if they differ by more than one part in so many of the greater one."""
_SHORTENED: Final = ("description", "columns", "keywords", "inputs")
MAX_PAYLOAD: Final = (Card.MAX_ENVELOPE - 512) * 3 // 4
"""Bytes of a card's payload; an envelope holds it in base64, with a type and a signature."""


def due(before: Card | None, now_said: Card) -> Instant:
    """Returns when ``now_said`` is to be signed, if ``before`` was signed last; may be long past."""
    if before is None or before.is_withdrawal or now_said.is_withdrawal:
        return Instant(0)
    if before.authority != now_said.authority or before.author != now_said.author:
        return Instant(0)
    if _list_texts(before) != _list_texts(now_said):
        return Instant(before.issued + LEAST)
    if _is_far(before, now_said):
        return Instant(before.issued + LEAST)
    if _list_counts(before) != _list_counts(now_said):
        return Instant(before.issued + COUNTED)
    return Instant(before.issued + RENEWED)


def fit(card: Card) -> Card:
    """Cuts a card to ``MAX_PAYLOAD``: halves the longest field until it fits, and gives what is left to the sample."""
    sample = card.sample
    if sample is not None:
        card = msgspec.structs.replace(card, sample=CardSample(left_out=sample.total))
    while card.chain is not None and len(encode(card)) > MAX_PAYLOAD:
        shorter = msgspec.structs.replace(card, chain=_shorter(card.chain))
        if shorter == card and (shorter := _without_words(card)) == card:
            break  # too large whatever is left out: nobody takes it, and its publisher is told
        card = shorter
    return card if sample is None or card.chain is None else _with_rows(card, sample, len(card.chain.columns))


def _with_rows(card: Card, sample: CardSample, columns: int) -> Card:
    """Adds those rows of a sample that fit, of the first ``columns`` of the card; the newest are tried first."""
    places = tuple(place for place in sample.columns if place < columns)
    empty = CardSample(columns=places, left_out=sample.total)
    room = MAX_PAYLOAD - len(encode(msgspec.structs.replace(card, sample=empty))) - len(',"rows":[]')
    kept: list[tuple[str | bool, ...]] = []
    for row in reversed(sample.rows):
        short = row[: len(places)]
        size = len(msgspec.json.encode(short)) + 1
        if places and size <= room:
            kept.insert(0, short)
            room -= size
    if not kept:
        return card
    full = CardSample(columns=places, rows=tuple(kept), left_out=sample.total - len(kept))
    return msgspec.structs.replace(card, sample=full)


def _shorter(facts: ChainFacts) -> ChainFacts:
    longest = max(_SHORTENED, key=lambda name: len(msgspec.json.encode(getattr(facts, name), enc_hook=str)))
    whole = getattr(facts, longest)
    kept = whole[: len(whole) // 2]
    more = len(whole) - len(kept) if longest == "columns" else 0
    return msgspec.structs.replace(facts, **{longest: kept}, more_columns=facts.more_columns + more)


def _without_words(card: Card) -> Card:
    """Drops the longer of the publisher's texts, if its node signs a card of many shards with long names."""
    claims = card.claims
    if claims is None:
        return card
    longest = max("place", "title", key=lambda name: len(getattr(claims, name).encode()))
    return msgspec.structs.replace(card, claims=msgspec.structs.replace(claims, **{longest: ""}))


def _is_far(before: Card, now_said: Card) -> bool:
    if before.epoch != now_said.epoch:
        return True
    if before.chain is None or now_said.chain is None:
        return False
    records = sorted((before.chain.records, now_said.chain.records))
    return (records[1] - records[0]) * FAR > records[1]


def _list_counts(card: Card) -> object:
    facts = card.chain
    rows = card.sample and card.sample.rows
    times = facts and (facts.updated_at, facts.watermark, facts.first_event, facts.last_event, facts.update_interval)
    return card.epoch, card.size, card.head, rows, facts and (facts.records, facts.bytes), times


def _list_texts(card: Card) -> object:
    facts = card.chain
    if facts is None:
        return None
    counts = {"watermark": None, "first_event": None, "last_event": None, "update_interval": 0, "bytes": 0}
    plain = msgspec.structs.replace(facts, records=0, updated_at=facts.created_at, **counts)
    sample = card.sample and (card.sample.columns, card.sample.total)
    return plain, card.claims, card.shards, sample


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
