"""Decides what a received head, authority, attestation, observation or policy changes. Pure.

One ``now`` per decision. Order among heads is (epoch, size, time of issue), never the clock alone: a replay is merely
older, and a far date locks nobody out. Who may write follows from the walk over the dataset's authority, which the
caller knows as far as it does; statements under a version beyond it are set aside, not refused.
Spec: docs/spec/trust.md#admission, #attestations.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from chain import instant
from chain.errors import Invalid
from chain.ids import KeyDid
from chain.instant import Instant
from chain.statements.authority import Rights, follow, implicit
from chain.statements.card import Card
from chain.statements.envelope import Signed, sid
from chain.statements.statement import Attestation, Authority, HeadStatement, PolicyStatement, Word, encode
from chain.wording import plural
from odfd.trust.admission.epoch_switch import RootAt, begins_at, turn_to
from odfd.trust.policy.policy_merge import check_rules

EARLY_LIMIT: Final = 10 * 60 * instant.SECOND
"""How far ahead of our clock an honest clock may be."""
LIFETIME_LIMIT: Final = 90 * 86400 * instant.SECOND


class AdmissionOutcome(enum.Enum):
    """The effect of an admitted statement on what we hold."""

    ADVANCE = "advance"
    """Larger than what I hold, as far as I can tell: fetch and check the blocks."""
    RENEWED = "renewed"
    """Same tree, issued later: kept in place of the older one."""
    REWRITE = "rewrite"
    """Of an epoch that gives up blocks which I hold: kept as the newest; policy says whether it is followed."""
    NEW = "new"
    OLDER = "older"
    OLD_EPOCH = "old-epoch"
    FORK = "fork"
    EARLY = "early"
    UNKNOWN_AUTHORITY = "unknown-authority"
    """It rests on a version that is not known here, or not in the form that its signer knows."""
    REJECTED = "rejected"

    @property
    def changes(self) -> bool:
        return self in _CHANGING


_CHANGING: Final = frozenset(
    {
        AdmissionOutcome.ADVANCE,
        AdmissionOutcome.RENEWED,
        AdmissionOutcome.REWRITE,
        AdmissionOutcome.NEW,
        AdmissionOutcome.FORK,
    }
)


class Admitted(msgspec.Struct, frozen=True):
    outcome: AdmissionOutcome
    reason: str = ""
    lasts: bool = True
    """Whether the same statement gets the same answer again; not where a person's decision would change it."""


class AdmissionContext(msgspec.Struct, frozen=True):
    """The facts by which a head is judged, besides the newest one: the authority, and the history of my blocks."""

    walk: Sequence[Rights]
    """The rights of every version known, from version 0 on."""
    conflict: bool = False
    """Whether two statements of the newest version are known, so that the writers are undetermined."""
    size: int = 0
    """Blocks that are here."""
    epoch: int = 0
    """The epoch that they belong to."""
    chosen: Mapping[int, int] = {}
    """By epoch: the place up to which a person said which of two histories to follow."""

    @property
    def rights(self) -> Rights:
        return self.walk[-1]


def admit_head(
    head: HeadStatement,
    signed: Signed,
    newest: HeadStatement | None,
    root_at: RootAt,
    now: Instant,
    *,
    forked_at: int | None = None,
    context: AdmissionContext | None = None,
) -> Admitted:
    """``newest`` is the newest head known of this dataset, whether or not its blocks are here yet.

    ``forked_at`` is where this epoch is proven to be forked: no head of it is followed any more. Without ``context``
    only version 0 of the authority is known.
    """
    if len(signed.envelope) > head.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than a head may be")
    if head.issued > now + EARLY_LIMIT:
        return Admitted(AdmissionOutcome.EARLY, f"issued at {head.issued_at}, ahead of this clock")
    if not head.issued < head.expires <= head.issued + LIFETIME_LIMIT:
        return Admitted(AdmissionOutcome.REJECTED, "a head lives at most 90 days")
    context = context or AdmissionContext((implicit(head.dataset),))
    doubt = _rights_doubted(head, signed, newest, context)
    if doubt is not None:
        return doubt
    if context.size and context.epoch < head.epoch:
        return _into_epoch(head, newest, root_at, context)
    if context.size <= context.chosen.get(head.epoch, -1):
        return Admitted(
            AdmissionOutcome.OLDER, "of two histories one was chosen here, and its blocks are not here yet", lasts=False
        )
    in_epoch = newest if newest is not None and newest.epoch == head.epoch else None
    verdict = _against_mine(head, in_epoch, root_at)
    if forked_at is not None and verdict.outcome in (AdmissionOutcome.ADVANCE, AdmissionOutcome.RENEWED):
        return Admitted(
            AdmissionOutcome.OLDER, f"epoch {head.epoch} is forked at block #{forked_at}; it ends there", lasts=False
        )
    return verdict


def admit_card(card: Card, signed: Signed, walk: Sequence[Rights], now: Instant, *, is_news: bool) -> Admitted:
    """``walk``: the rights of every version known; a card rests on the one that it names, superseded or not."""
    if len(signed.envelope) > card.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than a card may be")
    if card.issued > now + EARLY_LIMIT:
        return Admitted(AdmissionOutcome.EARLY, f"issued at {card.issued_at}, ahead of this clock")
    if not card.issued < card.expires <= card.issued + LIFETIME_LIMIT:
        return Admitted(AdmissionOutcome.REJECTED, "a card lives at most 90 days")
    if card.authority >= len(walk):
        return Admitted(AdmissionOutcome.UNKNOWN_AUTHORITY, f"version {card.authority} is not known here", lasts=False)
    if card.author not in signed.signers or not walk[card.authority].may_write(card.author, card.issued):
        return _not_of_my_version(card.authority, "not signed by a writer of this dataset")
    return Admitted(AdmissionOutcome.NEW if is_news else AdmissionOutcome.OLDER)


def writer_of(head: HeadStatement, signed: Signed, rights: Rights) -> KeyDid | None:
    """Returns a signer of this head who may write it by these rights."""
    return min((key for key in signed.signers if rights.may_write(key, head.issued)), default=None)


def _rights_doubted(
    head: HeadStatement, signed: Signed, newest: HeadStatement | None, context: AdmissionContext
) -> Admitted | None:
    """Checks the authority of a head; ``None`` when a present writer signed it for this epoch.

    A peer is not penalised for a head that was valid when it was signed, although its writer was removed since. Nor for
    one that this node's form of the version does not allow: roots may have signed two forms of a version, and a node
    with the other one forwards its heads in good faith. Version 0 has one form.
    """
    if head.authority >= len(context.walk):
        return Admitted(AdmissionOutcome.UNKNOWN_AUTHORITY, f"authority version {head.authority} is not known here")
    named, rights = context.walk[head.authority], context.rights
    disputed = f"two authorities of version {rights.version}: who may write is disputed"
    if context.conflict and named is rights:
        return Admitted(AdmissionOutcome.OLDER, disputed, lasts=False)
    writer = writer_of(head, signed, rights)
    if writer is None and writer_of(head, signed, named) is None:
        return _not_of_my_version(head.authority, "not signed by a writer of this dataset")
    if head.epoch > named.epoch:
        return _not_of_my_version(head.authority, f"authority version {head.authority} opened no epoch {head.epoch}")
    if head.epoch < rights.epoch or (newest is not None and head.epoch < newest.epoch):
        return Admitted(AdmissionOutcome.OLD_EPOCH)
    if writer is None:
        return Admitted(AdmissionOutcome.OLDER, "its writer's right has ended")
    if context.conflict:
        return Admitted(AdmissionOutcome.OLDER, disputed, lasts=False)
    opened = rights.opened(head.epoch)
    if opened is not None and not begins_at(head, opened.base):
        return _not_of_my_version(
            head.authority, f"epoch {head.epoch} keeps {plural(opened.base.size, 'block')} other than these"
        )
    return None


def _not_of_my_version(version: int, mistake: str) -> Admitted:
    outcome = AdmissionOutcome.UNKNOWN_AUTHORITY if version else AdmissionOutcome.REJECTED
    return Admitted(outcome, f"{mistake}, by authority version {version} as it is known here", lasts=False)


def _into_epoch(
    head: HeadStatement, newest: HeadStatement | None, root_at: RootAt, context: AdmissionContext
) -> Admitted:
    """A head of an epoch that my own blocks are not of yet."""
    if newest is not None and newest.epoch == head.epoch:
        verdict = _against_mine(head, newest, lambda _: None)
        if verdict.outcome is not AdmissionOutcome.ADVANCE:
            return verdict
    turn = turn_to(head.epoch, context.epoch, context.walk)
    if turn is None or not turn.keeps(context.size, root_at):
        return Admitted(AdmissionOutcome.REWRITE, f"epoch {head.epoch} gives up blocks that are here")
    return Admitted(AdmissionOutcome.ADVANCE)


def _against_mine(head: HeadStatement, newest: HeadStatement | None, root_at: RootAt) -> Admitted:
    mine = root_at(head.size)
    if mine is not None and mine != head.root_hash:
        return Admitted(AdmissionOutcome.FORK, f"my tree of {plural(head.size, 'block')} has another root")
    if newest is None:
        return Admitted(AdmissionOutcome.ADVANCE)
    if head.size == newest.size:
        if head.root_hash != newest.root_hash:
            return Admitted(AdmissionOutcome.FORK, f"two signed trees of {plural(head.size, 'block')}")
        return Admitted(AdmissionOutcome.RENEWED if head.issued > newest.issued else AdmissionOutcome.OLDER)
    return Admitted(AdmissionOutcome.ADVANCE if head.size > newest.size else AdmissionOutcome.OLDER)


def admit_authority(
    authority: Authority, signed: Signed, walk: Sequence[Rights], now: Instant, seed: bytes | None = None
) -> tuple[Admitted, Rights]:
    """Decides what a version of an authority changes, and the rights that hold afterwards.

    FORK: another statement of a version that is known, as rightly signed; the known one is kept. ``seed`` is the digest
    of the first block, where it is here: no authority is grafted onto another chain of the same key.
    """
    newest = walk[-1]
    if len(signed.envelope) > authority.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than an authority may be"), newest
    if authority.issued > now + EARLY_LIMIT:
        return Admitted(AdmissionOutcome.EARLY, f"issued at {authority.issued_at}, ahead of this clock"), newest
    if authority.version > len(walk) or authority.previous != walk[authority.version - 1].sid:
        return Admitted(
            AdmissionOutcome.UNKNOWN_AUTHORITY, f"the version before {authority.version} is not known here"
        ), newest
    try:
        rights = follow(walk[authority.version - 1], authority, signed)
    except Invalid as fault:
        return Admitted(AdmissionOutcome.REJECTED, str(fault)), newest
    is_next = authority.version == len(walk)
    if is_next and seed is not None and authority.head.digest != seed:
        return Admitted(
            AdmissionOutcome.OLDER, "it names another Seed block than the one that is here", lasts=False
        ), newest
    if is_next:
        return Admitted(AdmissionOutcome.NEW), rights
    if walk[authority.version].sid == signed.sid:
        return Admitted(AdmissionOutcome.OLDER), newest
    return Admitted(AdmissionOutcome.FORK, f"two authorities of version {authority.version}"), newest


def admit_attestation(attestation: Attestation, signed: Signed, newest: Attestation | None, now: Instant) -> Admitted:
    """``newest`` is the last attestation of this validator on this dataset; one of a later epoch takes its place."""
    if len(signed.envelope) > attestation.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than an attestation may be")
    if instant.parse(attestation.finished_at) > now + EARLY_LIMIT:
        return Admitted(AdmissionOutcome.EARLY, f"finished at {attestation.finished_at}, ahead of this clock")
    if attestation.validator not in signed.signers:
        return Admitted(AdmissionOutcome.REJECTED, "not signed by its validator")
    mistake = _span_mistake(attestation)
    if mistake:
        return Admitted(AdmissionOutcome.REJECTED, mistake)
    if newest is None or attestation.epoch > newest.epoch:
        return Admitted(AdmissionOutcome.NEW)
    if attestation.epoch < newest.epoch or attestation.serial < newest.serial:
        return Admitted(AdmissionOutcome.OLDER)
    if attestation.serial == newest.serial:
        return Admitted(
            AdmissionOutcome.OLDER if attestation == newest else AdmissionOutcome.FORK, "two attestations of one serial"
        )
    if attestation.serial == newest.serial + 1 and attestation.previous != sid(encode(newest)):
        return Admitted(AdmissionOutcome.FORK, "a successor that does not follow its predecessor")
    return Admitted(AdmissionOutcome.NEW)


def admit_word(predicate: Word, signed: Signed, now: Instant, *, is_news: bool) -> Admitted:
    """Admits what contradicts nothing.

    ``is_news``: it says more than what is kept of its author, and no person went further.

    Of two policies of one version both are kept: what either tightens holds, and only a person loosens.
    """
    if len(signed.envelope) > predicate.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than its kind may be")
    if predicate.issued > now + EARLY_LIMIT:
        return Admitted(AdmissionOutcome.EARLY, "made at a time that is ahead of this clock")
    if predicate.author not in signed.signers:
        return Admitted(AdmissionOutcome.REJECTED, f"not signed by its author {predicate.author.short}")
    try:
        if isinstance(predicate, PolicyStatement):
            check_rules(predicate.policy)
    except Invalid as fault:
        return Admitted(AdmissionOutcome.REJECTED, str(fault))
    return Admitted(AdmissionOutcome.NEW if is_news else AdmissionOutcome.OLDER)


def _span_mistake(attestation: Attestation) -> str:
    at = 0
    for span in attestation.spans:
        if span.first != at or span.last < span.first:
            return "spans must cover the blocks in order without gaps"
        at = span.last + 1
    return "" if at == attestation.size else "spans must cover all blocks of the tree"
