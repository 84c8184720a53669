"""Collects from the ledger what this node's keys have signed, and decides when lost signing journals may begin again.

Peers are asked first, because a ledger from an old backup knows too little. Statements that strangers show count, since
a signature is valid whoever shows it. That strangers know of nothing more proves nothing, since keys are free: only
answers of validators and witnesses that the policy lists make a new journal acceptable. Reads all of the ledger, once.
Spec: docs/spec/trust.md#journals.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from chain.ids import KeyDid
from chain.statements import canonical, cosignature, envelope, statement
from chain.statements.proof import DOUBLE_COSIGN
from chain.statements.statement import AUTHORITY
from odfd.policy.policy import Policy
from odfd.store.keys import journal_topics
from odfd.store.keys.journal import JournalEntry
from odfd.store.ledger import hash_links
from odfd.store.ledger.kinds import PROOF
from odfd.store.ledger.tables import COSIGNATURES
from odfd.trust.admission.statement_kinds import JOURNALLED, journal_entries

ENOUGH: Final = 3
"""Listed groups that must have answered before a new journal is begun."""
PATIENCE: Final = 60.0
"""Seconds after which fewer groups are enough, as long as one of them is honest."""


class RecoveryGroups(msgspec.Struct, frozen=True):
    """The groups whose nodes sent everything they know of our keys."""

    validators: frozenset[str] = frozenset()
    witnesses: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.validators | self.witnesses)


def told_by(policy: Policy, keys: Iterable[KeyDid], *me: KeyDid) -> RecoveryGroups:
    """Returns the listed groups that answered, except groups with a key of this node."""
    own = {group for key in me for group in (policy.group_of(key), policy.witnesses.groups.get(key))} - {None}
    validators = {policy.group_of(key) for key in keys}
    witnesses = {policy.witnesses.groups.get(key) for key in keys}
    return RecoveryGroups(
        *(frozenset(name for name in names if name and name not in own) for names in (validators, witnesses))
    )


def may_go_on(policy: Policy, groups: RecoveryGroups, waited: float) -> bool:
    """Whether these groups are enough ``waited`` seconds after the first was asked: more than may be faulty."""
    is_one_honest = len(groups.validators) > policy.tolerated or len(groups.witnesses) > policy.witnesses.faulty
    return is_one_honest and (len(groups) >= ENOUGH or waited >= PATIENCE)


_KINDS: Final = (*JOURNALLED, PROOF)


class _Pair(msgspec.Struct):
    """The two statements of a proof, which was verified when it came."""

    kind: str
    statements: tuple[msgspec.Raw, ...]


def recall(connection: sqlite3.Connection, keys: Collection[KeyDid]) -> dict[KeyDid, dict[str, JournalEntry]]:
    """Returns, by key, the last known signed statement of each topic. Raises Environment if the ledger is damaged."""
    last: dict[KeyDid, dict[str, JournalEntry]] = {key: {} for key in keys}
    for key, (topic, entry) in _known_entries(connection, keys):
        known = last.get(key)
        if known is not None and (topic not in known or entry.order > known[topic].order):
            known[topic] = entry
    return last


_KeyEntry: TypeAlias = tuple[KeyDid, tuple[str, JournalEntry]]


def _known_entries(connection: sqlite3.Connection, keys: Collection[KeyDid]) -> Iterator[_KeyEntry]:
    for key in keys:
        for row in COSIGNATURES.rows(connection, "witness = ?", (key,)):
            yield key, journal_topics.cosigned(cosignature.decode(row[6]))
    kinds = ",".join("?" * len(_KINDS))
    for entry in hash_links.whole(hash_links.entries(connection, f"type IN ({kinds})", _KINDS)):
        if entry.type == PROOF:
            yield from _read_proof(entry.body)
        elif entry.type == AUTHORITY or entry.signer in keys:
            yield from _entries_of(entry.body)


def _entries_of(sealed: bytes) -> Iterator[_KeyEntry]:
    signed = envelope.unseal(sealed, statement.MAX_ANY)
    predicate = statement.decode_any(signed.payload)
    for key in signed.signers:
        for entry in journal_entries(key, predicate, signed.sid):
            yield key, entry


def _read_proof(proof: bytes) -> Iterator[_KeyEntry]:
    """Yields the statements that a proof shows to be signed, which may never have come by themselves."""
    pair = msgspec.json.decode(proof, type=_Pair)
    for raw in pair.statements:
        whole = canonical.encode(msgspec.json.decode(raw))
        if pair.kind == DOUBLE_COSIGN:
            made = cosignature.decode(whole)
            yield made.witness, journal_topics.cosigned(made)
        else:
            yield from _entries_of(whole)
