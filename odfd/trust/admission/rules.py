"""Decides what a received head, authority, attestation, observation or policy changes. Pure.

Each decision uses one ``now``. Heads are ordered by (epoch, size, time of issue), never by the clock alone: a replay is
merely older, and a date in the far future locks nobody out. The versions of the dataset's authority, as far as the
caller knows them, say who may write; statements under a later version are set aside, not refused.
Spec: docs/spec/trust.md#admission, #attestations.

Determines which of the blocks held here a new epoch keeps, and which it gives up. A node follows an epoch that replaces
no blocks without asking; its policy decides whether it follows one that does (docs/spec/trust.md#epochs).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from chain import instant
from chain.errors import Conflict, Invalid
from chain.ids import KeyDid
from chain.instant import Instant
from chain.statements.authority import Rights, follow, implicit
from chain.statements.card import Card
from chain.statements.envelope import Signed, sid
from chain.statements.statement import (
    Attestation,
    Authority,
    Epoch,
    HeadStatement,
    PolicyStatement,
    TreeHead,
    Word,
    encode,
)
from chain.wording import plural
from odfd.policy.policy_merge import check_rules

RootAt = Callable[[int], bytes | None]
"""Returns the root of my own tree at a size, or ``None`` if I have fewer blocks."""


class EpochSwitch(msgspec.Struct, frozen=True):
    """The step from an earlier epoch to a later one."""

    base: TreeHead
    """The shortest of the trees that the epochs in between keep."""
    reasons: tuple[str, ...]
    replaces: bool
    """Whether any published block is given up."""

    def keeps(self, size: int, root_at: RootAt) -> bool:
        """Whether none of my ``size`` blocks has to be given up, as far as known without the other blocks."""
        return size < self.base.size or (size == self.base.size and root_at(size) == self.base.root_hash)


def turn_to(epoch: int, mine: int, walk: Sequence[Rights]) -> EpochSwitch | None:
    """Returns the switch from epoch ``mine`` to ``epoch``;
    ``None`` if an epoch in between is unknown, or there is none."""
    known: dict[int, Epoch] = {each.number: each for rights in walk for each in rights.epochs}
    between = [known.get(number) for number in range(mine + 1, epoch + 1)]
    opened = [each for each in between if each is not None]
    if not opened or len(opened) < len(between):
        return None
    return EpochSwitch(
        base=min((each.base for each in opened), key=lambda base: base.size),
        reasons=tuple(each.reason for each in opened),
        replaces=any(each.replaces for each in opened),
    )


def begins_at(head: HeadStatement, base: TreeHead) -> bool:
    """Whether a head can belong to an epoch that begins with ``base``, as far as known without blocks."""
    return head.size > base.size or (head.size == base.size and head.root_hash == base.root_hash)


def epoch_of(size: int, root_at: RootAt, walk: Sequence[Rights], heads: Iterable[HeadStatement]) -> int:
    """Determines the epoch of an imported chain of ``size`` blocks from signed heads; ``root_at`` computes its roots.

    The newest head whose tree is in the chain gives the epoch. Each later epoch then counts as the chain's too, if it
    keeps all blocks that are here, or begins within them and did not give up the rest. Raises Conflict if a later epoch
    gave the chain up, or if nobody can tell.
    """
    known = {epoch.number: epoch for rights in walk for epoch in rights.epochs}
    of_it = [head for head in heads if head.size <= size and root_at(head.size) == head.root_hash]
    newest = max(of_it, key=lambda each: each.order, default=None)
    epoch = 0 if newest is None or (newest.epoch and newest.epoch not in known) else newest.epoch
    while (opened := known.get(epoch + 1)) is not None and opened.base.size <= size:
        base, last = opened.base, opened.last
        if root_at(base.size) != base.root_hash:
            raise _given_up(opened, f"it keeps {plural(base.size, 'block')} other than those of the copy")
        if size > base.size:
            if newest is not None and newest.size > base.size:
                raise _given_up(opened, f"of its {plural(size, 'block')} that keeps {base.size}")
            if opened.replaces and size < last.size:
                raise Conflict(
                    f"it is not known whether the blocks from #{base.size} on are those that epoch {opened.number}"
                    " dropped",
                    rule="import-epoch",
                    hint="the copy has no signed head: export it again from a node that has it",
                )
            if opened.replaces and root_at(last.size) == last.root_hash:
                raise _given_up(opened, f"of its {plural(size, 'block')} that keeps {base.size}")
        epoch += 1
    return epoch


def _given_up(opened: Epoch, why: str) -> Conflict:
    return Conflict(
        f"the copy is of a history that epoch {opened.number} dropped ({opened.reason}): {why}",
        rule="import-given-up",
        hint="import a copy that was made since, or mirror the dataset",
    )


EARLY_LIMIT: Final = 10 * 60 * instant.SECOND
"""How far an honest clock may be ahead of ours."""
LIFETIME_LIMIT: Final = 90 * 86400 * instant.SECOND


class AdmissionOutcome(enum.Enum):
    """The effect of an admitted statement on what we hold."""

    ADVANCE = "advance"
    """The head is larger than mine, as far as I can tell: fetch and check its blocks."""
    RENEWED = "renewed"
    """The head has the same tree and was issued later: it replaces the older one."""
    REWRITE = "rewrite"
    """The head's epoch gives up blocks that I hold: it is kept as the newest; policy says whether it is followed."""
    NEW = "new"
    OLDER = "older"
    OLD_EPOCH = "old-epoch"
    FORK = "fork"
    EARLY = "early"
    UNKNOWN_AUTHORITY = "unknown-authority"
    """The statement rests on a version of the authority that is not known here, or is known in another form."""
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
    """Whether the same statement would get the same answer again; not if a person's decision can change it."""


class AdmissionContext(msgspec.Struct, frozen=True):
    """The facts by which a head is judged, besides the newest head: the authority, and the history of my blocks."""

    walk: Sequence[Rights]
    """The rights of every version known, from version 0 on."""
    conflict: bool = False
    """Whether two statements of the newest version are known, so that the writers are undetermined."""
    size: int = 0
    """The number of blocks that are here."""
    epoch: int = 0
    """The epoch of the blocks that are here."""
    chosen: Mapping[int, int] = {}
    """For each epoch in which a person chose one of two histories: the place up to which that holds."""

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
    """Decides what a head changes. ``newest``: the newest head known of this dataset,
    whether or not its blocks are here.

    ``forked_at``: where this epoch is proven to be forked; no head of it is followed any more. Without ``context`` only
    version 0 of the authority is known.
    """
    if len(signed.envelope) > head.MAX_ENVELOPE:
        return Admitted(AdmissionOutcome.REJECTED, "larger than a head may be")
    # A wrong clock is no lie: the head waits, and nobody is penalised
    # (test_a_clock_an_hour_ahead_delays_and_nothing_more).
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
    """Decides what a card changes. ``walk``: the rights of every known version; a card rests on the version that it
    names, even if that is superseded."""
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
    """Returns a signer of this head whom these rights allow to write it; ``None`` if there is none."""
    return min((key for key in signed.signers if rights.may_write(key, head.issued)), default=None)


def _rights_doubted(
    head: HeadStatement, signed: Signed, newest: HeadStatement | None, context: AdmissionContext
) -> Admitted | None:
    """Checks the authority of a head; ``None`` if a present writer signed it for this epoch.

    A peer is not penalised for a head that was valid when it was signed, even if its writer was removed since; nor for
    one that this node's form of the version does not allow: the roots may have signed two forms of a version, and a
    node with the other form forwards its heads in good faith. Version 0 has only one form.
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
        # Here end the heads of a stolen key, whatever their size and date (test_stolen_writer_closed_out).
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
    """Judges a head of a later epoch than that of my own blocks."""
    if newest is not None and newest.epoch == head.epoch:
        verdict = _against_mine(head, newest, lambda _: None)
        if verdict.outcome is not AdmissionOutcome.ADVANCE:
            return verdict
    turn = turn_to(head.epoch, context.epoch, context.walk)
    if turn is None or not turn.keeps(context.size, root_at):
        return Admitted(AdmissionOutcome.REWRITE, f"epoch {head.epoch} drops blocks that are here")
    return Admitted(AdmissionOutcome.ADVANCE)


def _against_mine(head: HeadStatement, newest: HeadStatement | None, root_at: RootAt) -> Admitted:
    mine = root_at(head.size)
    if mine is not None and mine != head.root_hash:
        return Admitted(AdmissionOutcome.FORK, f"my tree of {plural(head.size, 'block')} has another tree hash")
    if newest is None:
        return Admitted(AdmissionOutcome.ADVANCE)
    if head.size == newest.size:
        if head.root_hash != newest.root_hash:
            return Admitted(AdmissionOutcome.FORK, f"two signed trees of {plural(head.size, 'block')}")
        return _judge_renewal(head, newest)
    return Admitted(AdmissionOutcome.ADVANCE if head.size > newest.size else AdmissionOutcome.OLDER)


def _judge_renewal(head: HeadStatement, newest: HeadStatement) -> Admitted:
    """Judges a head of the same blocks: its frontier counts before its time, and never goes back."""
    if (head.upper or 0) < (newest.upper or 0):
        return Admitted(
            AdmissionOutcome.OLDER, f"a head of the same blocks states frontier {newest.upper}, which is later"
        )
    return Admitted(AdmissionOutcome.RENEWED if head.order > newest.order else AdmissionOutcome.OLDER)


def admit_authority(
    authority: Authority, signed: Signed, walk: Sequence[Rights], now: Instant, seed: bytes | None = None
) -> tuple[Admitted, Rights]:
    """Decides what a version of an authority changes, and returns the rights that hold afterwards.

    FORK: another, equally valid statement of a known version; the known one is kept. ``seed``: the digest of the first
    block, if it is here, so that no authority is attached to another chain of the same key.
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
    """Decides what an attestation changes. ``newest``: the last one of this validator on this dataset; one of a later
    epoch replaces it."""
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
    """Admits statements of kinds that cannot contradict others.

    ``is_news``: it says more than the statements kept of its author, and no person's decision went further.

    Both of two policies of one version are kept: each stricter rule applies, and only a person loosens rules.
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
