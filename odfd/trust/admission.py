"""Admission of signed statements: what a received head or attestation changes (trust.md sections 1 and 4). Pure.

One ``now`` per decision. Order among heads is (epoch, size, time of issue), never the clock alone: a replay is merely
older, and a far date locks nobody out. Authority version 0 is the dataset's own key; higher versions are not known
here yet, and statements under them are set aside, not refused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from chain import instant
from chain.instant import Instant
from chain.statements.envelope import Signed, dataset_key, sid
from chain.statements.statement import Attestation, HeadStatement, encode, limit_of

EARLY_LIMIT: Final = 10 * 60 * instant.SECOND
"""How far ahead of our clock an honest clock may be."""
LIFETIME_LIMIT: Final = 90 * 86400 * instant.SECOND


class Outcome(enum.Enum):
    """What an admitted statement means for what we hold."""

    ADVANCE = "advance"
    """Larger than what I hold, as far as I can tell: fetch and check the blocks."""
    RENEWED = "renewed"
    """Same tree, issued later: kept in place of the older one."""
    NEW = "new"
    OLDER = "older"
    OLD_EPOCH = "old-epoch"
    FORK = "fork"
    EARLY = "early"
    UNKNOWN_AUTHORITY = "unknown-authority"
    REJECTED = "rejected"

    @property
    def changes(self) -> bool:
        return self in _CHANGING


_CHANGING: Final = frozenset({Outcome.ADVANCE, Outcome.RENEWED, Outcome.NEW, Outcome.FORK})


class Verdict(msgspec.Struct, frozen=True):
    outcome: Outcome
    reason: str = ""


RootAt = Callable[[int], bytes | None]
"""Root of my own tree at a size, or ``None`` when I have fewer blocks."""


def admit_head(
    head: HeadStatement,
    signed: Signed,
    newest: HeadStatement | None,
    root_at: RootAt,
    now: Instant,
    *,
    forked_at: int | None = None,
) -> Verdict:
    """``newest`` is the newest head known of this dataset, whether or not its blocks are here yet.

    ``forked_at`` is where this epoch is proven to be forked: no head of it is followed any more.
    """
    if len(signed.envelope) > limit_of(head):
        return Verdict(Outcome.REJECTED, "larger than a head may be")
    if head.issued > now + EARLY_LIMIT:
        return Verdict(Outcome.EARLY, f"issued at {head.issued_at}, ahead of this clock")
    if not head.issued < head.expires <= head.issued + LIFETIME_LIMIT:
        return Verdict(Outcome.REJECTED, "a head lives at most 90 days")
    if head.authority > 0:
        return Verdict(Outcome.UNKNOWN_AUTHORITY, f"authority version {head.authority} is not known here")
    if dataset_key(head.dataset) not in signed.signers:
        return Verdict(Outcome.REJECTED, "not signed by a writer of this dataset")
    if newest is not None and head.epoch < newest.epoch:
        return Verdict(Outcome.OLD_EPOCH)
    if head.epoch > 0:
        return Verdict(Outcome.UNKNOWN_AUTHORITY, f"epoch {head.epoch} was not opened by an authority known here")
    verdict = _against_mine(head, newest, root_at)
    if forked_at is not None and verdict.outcome in (Outcome.ADVANCE, Outcome.RENEWED):
        return Verdict(Outcome.OLDER, f"epoch {head.epoch} is forked at block #{forked_at}; it ends there")
    return verdict


def _against_mine(head: HeadStatement, newest: HeadStatement | None, root_at: RootAt) -> Verdict:
    mine = root_at(head.size)
    if mine is not None and mine != head.root_hash:
        return Verdict(Outcome.FORK, f"my tree of {head.size} blocks has another root")
    if newest is None:
        return Verdict(Outcome.ADVANCE)
    if head.size == newest.size:
        if head.root_hash != newest.root_hash:
            return Verdict(Outcome.FORK, f"two signed trees of {head.size} blocks")
        return Verdict(Outcome.RENEWED if head.issued > newest.issued else Outcome.OLDER)
    return Verdict(Outcome.ADVANCE if head.size > newest.size else Outcome.OLDER)


def admit_attestation(said: Attestation, signed: Signed, newest: Attestation | None, now: Instant) -> Verdict:
    """``newest`` is the last attestation of this validator on this dataset and epoch."""
    if len(signed.envelope) > limit_of(said):
        return Verdict(Outcome.REJECTED, "larger than an attestation may be")
    if instant.parse(said.finished_at) > now + EARLY_LIMIT:
        return Verdict(Outcome.EARLY, f"finished at {said.finished_at}, ahead of this clock")
    if said.validator not in signed.signers:
        return Verdict(Outcome.REJECTED, "not signed by its validator")
    mistake = _span_mistake(said)
    if mistake:
        return Verdict(Outcome.REJECTED, mistake)
    if newest is None:
        return Verdict(Outcome.NEW)
    if said.serial < newest.serial:
        return Verdict(Outcome.OLDER)
    if said.serial == newest.serial:
        return Verdict(Outcome.OLDER if said == newest else Outcome.FORK, "two attestations of one serial")
    if said.serial == newest.serial + 1 and said.previous != sid(encode(newest)):
        return Verdict(Outcome.FORK, "a successor that does not follow its predecessor")
    return Verdict(Outcome.NEW)


def _span_mistake(said: Attestation) -> str:
    at = 0
    for span in said.spans:
        if span.first != at or span.last < span.first:
            return "spans must cover the blocks in order without gaps"
        at = span.last + 1
    return "" if at == said.size else "spans must cover all blocks of the tree"
