"""Declares, in a row for each kind of statement, what a node does with statements of it.

Where they are kept and for how long is declared with their tables (``odfd.store.ledger.kinds``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.card import Card
from chain.statements.envelope import Signed
from chain.statements.node_card import NodeCard
from chain.statements.statement import (
    ATTESTATION,
    AUTHORITY,
    CARD,
    HEAD,
    NODE_CARD,
    OBSERVATION,
    POLICY,
    AnyPredicate,
    Attestation,
    Authority,
    HeadStatement,
    Observation,
    PolicyStatement,
)
from chain.wording import plural
from odfd.runtime.subjects import NODE, Subjects, about
from odfd.store.keys import journal_topics
from odfd.store.keys.journal import JournalEntry
from odfd.store.ledger.cards import NodeCards
from odfd.store.ledger.kinds import COSIGNATURE, PROOF
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.network_policies import NetworkPolicies
from odfd.store.ledger.observations import Observations
from p2p.budget.buckets import Rate
from p2p.ports import Topic

MAX_LISTED: Final = 64
MAX_UNLISTED: Final = 16
"""Unlisted validators, and likewise observers, that are kept for one dataset."""
IsListed: TypeAlias = Callable[[KeyDid], bool]
TopicEntry: TypeAlias = tuple[str, JournalEntry]
"""A topic of the signing journal, and what is written there."""


class WordStore(Protocol):
    """Keeps statements of a kind of which no two contradict each other."""

    def is_news(self, predicate: Any, sid: Multihash) -> bool: ...

    def keep(self, predicate: Any, signed: Signed, outcome: str, peer: str, now: Instant) -> None: ...


class StatementNotice(NamedTuple):
    """The event of a new statement, as people see it."""

    kind: str
    subject: str
    message: str
    about: Subjects
    data: dict[str, object] = {}  # noqa: RUF012  nobody changes it


def _has_room(_connection: sqlite3.Connection, _statement: object, _is_listed: IsListed) -> bool:
    """Admits kinds that have at most one statement for each writer, root or version."""
    return True


class StatementKind(NamedTuple):
    """The row of one kind: what a node does with statements of it."""

    topic: Topic
    """The topic on which they are gossiped."""
    pace: Rate | None = None
    """How often one signer may say something of one dataset; ``None``: as often as it has something new."""
    by_unlisted: bool = False
    """Whether keys that nobody listed may sign it: their statements of all such kinds share one limit.

    About datasets that are not held, a ``Word`` of such a kind is taken from listed keys only.
    """
    has_room: Callable[[sqlite3.Connection, Any, IsListed], bool] = _has_room
    """Whether one more may be kept, for a known dataset."""
    store: Callable[[sqlite3.Connection], WordStore] | None = None
    """Of a ``Word``: its store. Other kinds have rules of their own in ``StatementProcessor``."""
    journal: Callable[[KeyDid, Any, Multihash], TopicEntry] | None = None
    """The entry in a key's journal that keeps it from contradicting itself; ``None``: no two contradict each other."""
    notice: Callable[[Any, str], StatementNotice] | None = None
    """Makes the event, from the statement and the local name of its dataset."""


def journal_entries(key: KeyDid, predicate: AnyPredicate, sid: Multihash) -> list[TopicEntry]:
    """Returns the journal entries of ``key`` for a statement: none for a kind that is not journalled."""
    journal = KINDS[predicate.KIND].journal
    entries = [] if journal is None else [journal(key, predicate, sid)]
    if isinstance(predicate, HeadStatement) and predicate.upper is not None:
        topic = journal_topics.upper(key, predicate.dataset)
        entries.append((topic, JournalEntry((predicate.upper,), journal_topics.PROMISED)))
    return entries


def _journal_head(key: KeyDid, head: HeadStatement, _sid: Multihash) -> TopicEntry:
    return journal_topics.head(key, head.dataset), JournalEntry((head.epoch, head.size), head.root_hash.hex())


def _journal_authority(key: KeyDid, authority: Authority, sid: Multihash) -> TopicEntry:
    return journal_topics.authority(key, authority.dataset), JournalEntry((authority.version,), str(sid))


def _journal_attestation(_key: KeyDid, attestation: Attestation, sid: Multihash) -> TopicEntry:
    topic = journal_topics.attestation(attestation.dataset, attestation.epoch)
    return topic, JournalEntry((attestation.serial,), str(sid))


def _journal_policy(_key: KeyDid, policy: PolicyStatement, sid: Multihash) -> TopicEntry:
    return journal_topics.policy(policy.network), JournalEntry((policy.version,), str(sid))


def _has_room_for_validator(connection: sqlite3.Connection, attestation: Attestation, is_listed: IsListed) -> bool:
    heard = Ledger(connection).signers(attestation.dataset, ATTESTATION)
    if attestation.validator in heard:
        return True
    listed = is_listed(attestation.validator)
    return sum(is_listed(key) is listed for key in heard) < (MAX_LISTED if listed else MAX_UNLISTED)


def _has_room_for_observer(connection: sqlite3.Connection, observation: Observation, is_listed: IsListed) -> bool:
    listed = is_listed(observation.observer)
    return Observations(connection).has_room(observation, listed=listed, most=MAX_LISTED if listed else MAX_UNLISTED)


def _notice_head(head: HeadStatement, name: str) -> StatementNotice:
    return StatementNotice("head.heard", name, plural(head.size, "block"), about(head.dataset), {"size": head.size})


def _notice_authority(authority: Authority, name: str) -> StatementNotice:
    version = authority.version
    return StatementNotice(
        "authority.heard", name, f"version {version}", about(authority.dataset), {"version": version}
    )


def _notice_attestation(attestation: Attestation, name: str) -> StatementNotice:
    wrong = [each.sequence_number for each in attestation.mismatch]
    verdict = f"mismatch at #{wrong[0]}" if wrong else plural(attestation.size, "block")
    text = f"{attestation.validator.short}: {verdict}"
    return StatementNotice("attestation.heard", name, text, about(attestation.dataset))


def _notice_observation(observation: Observation, name: str) -> StatementNotice:
    number, result = observation.sequence_number, observation.result
    text = f"{observation.observer.short}: #{number} {result}"
    return StatementNotice(
        "observation.heard", name, text, about(observation.dataset), {"block": number, "result": result}
    )


def _notice_policy(policy: PolicyStatement, _name: str) -> StatementNotice:
    return StatementNotice(
        "policy.heard", policy.network, f"version {policy.version}", NODE, {"version": policy.version}
    )


def _notice_card(card: Card, name: str) -> StatementNotice:
    if card.claims is None:
        text = "its publisher withdrew it; a copy here stays"
        return StatementNotice("card.withdrawn", name, text, about(card.dataset), {"at": card.issued_at})
    return StatementNotice("card.heard", name, f"called {card.claims.name}", about(card.dataset))


def _notice_node_card(card: NodeCard, _name: str) -> StatementNotice:
    """Reports a node card of this node itself; cards of others stay in memory, without an event."""
    text = "it was taken back" if card.claims is None else f"called {card.claims.name}"
    return StatementNotice("node-card.heard", card.node.short, text, NODE)


HEAD_PACE: Final = Rate(per_second=1.0, burst=60.0)
CARD_PACE: Final = Rate(per_second=1 / 600, burst=8.0)
KINDS: Final = {
    HEAD: StatementKind(Topic.HEADS, pace=HEAD_PACE, journal=_journal_head, notice=_notice_head),
    AUTHORITY: StatementKind(
        Topic.HEADS,
        pace=Rate(per_second=1 / 60, burst=256.0),  # up to 256 versions, which come at once
        journal=_journal_authority,
        notice=_notice_authority,
    ),
    ATTESTATION: StatementKind(
        Topic.ATTEST,
        pace=Rate(per_second=1 / 60, burst=8.0),
        by_unlisted=True,
        has_room=_has_room_for_validator,
        journal=_journal_attestation,
        notice=_notice_attestation,
    ),
    OBSERVATION: StatementKind(
        Topic.ATTEST,
        pace=Rate(per_second=1 / 10, burst=64.0),
        by_unlisted=True,
        has_room=_has_room_for_observer,
        store=Observations,
        notice=_notice_observation,
    ),
    POLICY: StatementKind(Topic.HEADS, store=NetworkPolicies, journal=_journal_policy, notice=_notice_policy),
    CARD: StatementKind(Topic.HEADS, pace=CARD_PACE, notice=_notice_card),
    NODE_CARD: StatementKind(Topic.HEADS, pace=CARD_PACE, store=NodeCards, notice=_notice_node_card),
    COSIGNATURE: StatementKind(Topic.HEADS),
    PROOF: StatementKind(Topic.PROOFS),
}
JOURNALLED: Final = frozenset(kind for kind, row in KINDS.items() if row.journal is not None)
