"""Admission by the authority's walk: who may write, which epoch holds, what becomes of blocks that are here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from chain import instant
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.authority import Rights, follow, implicit
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, Authority, Epoch, HeadStatement, Roots, Span, TreeHead, Writer
from odfd.trust.admission.rules import (
    EARLY_LIMIT,
    AdmissionContext,
    AdmissionOutcome,
    admit_attestation,
    admit_authority,
    admit_head,
    admit_word,
    turn_to,
)

OWNER, NODE, NEW, STRANGER = (SigningKey(letter * 32) for letter in (b"d", b"n", b"m", b"s"))
SEED = Multihash.sha3_256(b"seed")
NOW = instant.parse("2026-11-20T08:00:00Z")
DAY = 86400 * instant.SECOND
ROOT = b"r" * 32


def signed(said: statement.AnyPredicate, *keys: SigningKey) -> Signed:
    return envelope.unseal(envelope.seal(statement.encode(said), *keys), statement.MAX_ANY)


def tree(size: int, root: bytes = ROOT) -> TreeHead:
    return TreeHead(size=size, root_hash=root)


def version(before: Rights, writers: list[SigningKey], *epochs: Epoch, at: Instant = NOW) -> Authority:
    return Authority(
        dataset=OWNER.dataset_id,
        version=before.version + 1,
        previous=before.sid,
        issued_at=statement.when(at),
        roots=Roots(threshold=1, keys=(OWNER.did,)),
        writers=tuple(Writer(key=key.did, expires_at=statement.when(Instant(NOW + 90 * DAY))) for key in writers),
        epochs=(*before.epochs, *epochs),
        head=SEED,
    )


def opened(number: int, base: int, last: int | None = None, root: bytes = ROOT) -> Epoch:
    reason = "rotation" if last in (None, base) else "reset"
    return Epoch(number=number, reason=reason, base=tree(base, root), last=tree(last or base, root))


def grown(before: Rights, writers: list[SigningKey], *epochs: Epoch) -> Rights:
    said = version(before, writers, *epochs)
    return follow(before, said, signed(said, OWNER))


ZERO = implicit(OWNER.dataset_id)
ONE = grown(ZERO, [OWNER, NODE])
TWO = grown(ONE, [NEW], opened(1, 8))
"""The node's key was stolen: it is out, and epoch 1 begins at 8 blocks."""
RESET = grown(TWO, [NEW], opened(2, 5, 12))


def head(size: int, epoch: int = 0, authority: int = 0, root: bytes = ROOT, at: Instant = NOW) -> HeadStatement:
    return HeadStatement(
        dataset=OWNER.dataset_id,
        epoch=epoch,
        size=size,
        root_hash=root,
        authority=authority,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + 7 * DAY)),
        head=SEED,
    )


def admitted(
    said: HeadStatement, by: SigningKey, newest: HeadStatement | None = None, **context: Any
) -> AdmissionOutcome:
    mine = context.pop("mine", {})
    walk = context.pop("walk", (ZERO, ONE, TWO))
    now = context.pop("now", NOW)
    terms = AdmissionContext(walk, **context)
    return admit_head(said, signed(said, by), newest, mine.get, now, context=terms).outcome


@pytest.mark.parametrize(
    ("said", "by", "outcome"),
    [
        (head(9, epoch=1, authority=2), NEW, AdmissionOutcome.ADVANCE),
        (head(9, epoch=1, authority=2), STRANGER, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=1, authority=2), NODE, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=0, authority=1), NODE, AdmissionOutcome.OLD_EPOCH),
        (head(10**9, epoch=0, authority=1), NODE, AdmissionOutcome.OLD_EPOCH),
        (head(9, epoch=0, authority=0), NODE, AdmissionOutcome.REJECTED),
        (head(9, epoch=1, authority=0), OWNER, AdmissionOutcome.REJECTED),
        (head(9, epoch=0, authority=0), OWNER, AdmissionOutcome.OLD_EPOCH),
        (head(9, epoch=1, authority=1), NODE, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=2, authority=2), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(9, epoch=2, authority=3), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(7, epoch=1, authority=2), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
        (head(8, epoch=1, authority=2), NEW, AdmissionOutcome.ADVANCE),
        (head(8, epoch=1, authority=2, root=b"x" * 32), NEW, AdmissionOutcome.UNKNOWN_AUTHORITY),
    ],
)
def test_who_may_write_and_in_which_epoch(said: HeadStatement, by: SigningKey, outcome: AdmissionOutcome) -> None:
    assert admitted(said, by) is outcome


def test_a_writer_added_since_may_name_the_version_it_knew() -> None:
    assert admitted(head(9), OWNER, walk=(ZERO, ONE)) is AdmissionOutcome.ADVANCE
    assert admitted(head(9), NODE, walk=(ZERO, ONE)) is AdmissionOutcome.ADVANCE


def test_a_right_that_has_ended_writes_no_more() -> None:
    late = Instant(NOW + 90 * DAY)
    said = head(9, authority=1, at=late)
    verdict = admit_head(said, signed(said, NODE), None, {}.get, late, context=AdmissionContext((ZERO, ONE)))
    assert verdict.outcome is AdmissionOutcome.UNKNOWN_AUTHORITY


def test_a_right_that_a_later_version_shortens_ends_then() -> None:
    """Whatever the version says that the head names; who signed in good faith is not blamed."""
    said = version(ONE, [OWNER, NODE])
    until = statement.when(Instant(NOW + DAY))
    said = msgspec.structs.replace(said, writers=tuple(Writer(key=each.key, expires_at=until) for each in said.writers))
    walk = (ZERO, ONE, follow(ONE, said, signed(said, OWNER)))
    for at, outcome in ((NOW, AdmissionOutcome.ADVANCE), (Instant(NOW + DAY), AdmissionOutcome.OLDER)):
        assert admitted(head(9, authority=1, at=at), NODE, walk=walk, now=at) is outcome


def test_who_knows_another_form_of_a_version_is_not_blamed() -> None:
    """Roots signed two; whoever knows one of them hears the heads of the other from honest relays."""
    other = grown(ONE, [STRANGER], opened(1, 5, 12))
    for said, by, walk in (
        (head(13, epoch=1, authority=2), STRANGER, (ZERO, ONE, TWO)),
        (head(9, epoch=1, authority=2), NEW, (ZERO, ONE, other)),
    ):
        assert admitted(said, by, walk=walk) is AdmissionOutcome.UNKNOWN_AUTHORITY
        assert admitted(said, by, walk=(ZERO, ONE, other if walk[-1] is TWO else TWO)) is AdmissionOutcome.ADVANCE


def test_a_disputed_authority_stops_its_heads() -> None:
    assert admitted(head(9, epoch=1, authority=2), NEW, conflict=True) is AdmissionOutcome.OLDER


def test_fast_forward_is_undone_by_an_epoch() -> None:
    """The thief's head of a billion blocks is the newest known: the first head of the next epoch comes after it."""
    thief = head(10**9, authority=1)
    assert admitted(head(9, epoch=1, authority=2), NEW, thief) is AdmissionOutcome.ADVANCE
    assert admitted(thief, NODE, head(9, epoch=1, authority=2)) is AdmissionOutcome.OLD_EPOCH


@pytest.mark.parametrize(
    ("size", "root", "outcome"),
    [
        (3, ROOT, AdmissionOutcome.ADVANCE),
        (8, ROOT, AdmissionOutcome.ADVANCE),
        (8, b"x" * 32, AdmissionOutcome.REWRITE),
        (11, ROOT, AdmissionOutcome.REWRITE),
    ],
)
def test_blocks_that_an_epoch_gives_up_are_seen(size: int, root: bytes, outcome: AdmissionOutcome) -> None:
    said = head(12, epoch=1, authority=2)
    assert admitted(said, NEW, head(size), size=size, mine={size: root}) is outcome


def test_heads_of_different_epochs_never_form_a_fork() -> None:
    said = head(11, epoch=1, authority=2, root=b"x" * 32)
    assert admitted(said, NEW, head(11), size=11, mine={11: ROOT}) is AdmissionOutcome.REWRITE
    in_epoch = head(11, epoch=1, authority=2)
    assert admitted(said, NEW, in_epoch, size=11, epoch=1, mine={11: ROOT}) is AdmissionOutcome.FORK
    assert admitted(said, NEW, in_epoch) is AdmissionOutcome.FORK


def test_a_turn_tells_what_is_kept_over_several_epochs() -> None:
    walk = (ZERO, ONE, TWO, RESET)
    assert turn_to(1, 0, walk) is not None
    both = turn_to(2, 0, walk)
    assert both is not None
    assert (both.base.size, both.reasons, both.replaces) == (5, ("rotation", "reset"), True)
    rotation = turn_to(1, 0, walk)
    assert rotation is not None
    assert not rotation.replaces
    assert turn_to(3, 0, walk) is None
    assert turn_to(2, 2, walk) is None


def test_authorities_are_admitted_in_order() -> None:
    walk = [ZERO, ONE]
    new = version(ONE, [OWNER, NODE, NEW])
    verdict, rights = admit_authority(new, signed(new, OWNER), walk, NOW)
    assert (verdict.outcome, rights.version) == (AdmissionOutcome.NEW, 2)
    after = version(rights, [OWNER, NODE, NEW])
    assert admit_authority(after, signed(after, OWNER), walk, NOW)[0].outcome is AdmissionOutcome.UNKNOWN_AUTHORITY
    again = admit_authority(new, signed(new, OWNER), [*walk, rights], NOW)
    assert (again[0].outcome, again[1]) == (AdmissionOutcome.OLDER, rights)
    other = version(ONE, [OWNER, NODE])
    disputed = admit_authority(other, signed(other, OWNER), [*walk, rights], NOW)
    assert (disputed[0].outcome, disputed[1]) == (AdmissionOutcome.FORK, rights)


def test_an_authority_of_another_chain_is_not_taken() -> None:
    """One key may have signed two Seeds; what is said of one chain is not grafted onto the other."""
    said, other = version(ZERO, [OWNER, NODE]), Multihash.sha3_256(b"another seed").digest
    sealed = signed(said, OWNER)
    verdict, rights = admit_authority(said, sealed, [ZERO], NOW, other)
    assert (verdict.outcome, verdict.lasts, rights) == (AdmissionOutcome.OLDER, False, ZERO)
    assert admit_authority(said, sealed, [ZERO], NOW, SEED.digest)[0].outcome is AdmissionOutcome.NEW
    again = version(ZERO, [OWNER, NEW])
    assert admit_authority(again, signed(again, OWNER), [ZERO, ONE], NOW, other)[0].outcome is AdmissionOutcome.FORK, (
        "two of one version accuse the roots all the same"
    )


def test_retired_root_cannot_rotate() -> None:
    """The dataset key, once out of the roots, signs no version, and its old ones change nothing."""
    handed = Authority(
        dataset=OWNER.dataset_id, version=2, previous=ONE.sid, issued_at=statement.when(NOW),
        roots=Roots(threshold=1, keys=(NEW.did,)), writers=tuple(
            Writer(key=key.did, expires_at=statement.when(Instant(NOW + DAY))) for key in (OWNER, NODE)
        ), head=SEED,
    )  # fmt: skip
    two = follow(ONE, handed, signed(handed, OWNER, NEW))
    third = version(two, [STRANGER, OWNER, NODE])
    assert admit_authority(third, signed(third, OWNER), [ZERO, ONE, two], NOW)[0].outcome is AdmissionOutcome.REJECTED
    stolen = version(ONE, [OWNER, NODE, STRANGER])
    verdict, rights = admit_authority(stolen, signed(stolen, OWNER), [ZERO, ONE, two], NOW)
    assert (verdict.outcome, rights) == (AdmissionOutcome.FORK, two)


def test_forged_and_early_authorities_are_not_taken() -> None:
    new = version(ONE, [OWNER, NODE, STRANGER])
    assert admit_authority(new, signed(new, STRANGER), [ZERO, ONE], NOW)[0].outcome is AdmissionOutcome.REJECTED
    early = version(ONE, [OWNER, NODE], at=Instant(NOW + 3600 * instant.SECOND))
    assert admit_authority(early, signed(early, OWNER), [ZERO, ONE], NOW)[0].outcome is AdmissionOutcome.EARLY


def attestation(at: Instant) -> Attestation:
    return Attestation(
        validator=NODE.did, dataset=OWNER.dataset_id, epoch=0, size=3, root_hash=ROOT, serial=1, determinism="strict",
        finished_at=statement.when(at), engines=(), spans=(Span(first=0, last=2, verdict="not-attempted"),), head=SEED,
    )  # fmt: skip


def test_an_attestation_from_the_future_waits_and_one_without_its_validator_or_with_gaps_is_none() -> None:
    """Else the serial of a clock that was ahead would outrank what the validator says afterwards."""
    for ahead, outcome in ((EARLY_LIMIT, AdmissionOutcome.NEW), (EARLY_LIMIT + instant.SECOND, AdmissionOutcome.EARLY)):
        said = attestation(Instant(NOW + ahead))
        assert admit_attestation(said, signed(said, NODE), None, NOW).outcome is outcome
    said = attestation(NOW)
    assert admit_attestation(said, signed(said, NEW), None, NOW).outcome is AdmissionOutcome.REJECTED
    for first, last in ((1, 2), (0, 1), (0, 3)):
        gap = msgspec.structs.replace(said, spans=(Span(first=first, last=last, verdict="not-attempted"),))
        assert admit_attestation(gap, signed(gap, NODE), None, NOW).outcome is AdmissionOutcome.REJECTED


def test_an_envelope_that_is_larger_than_its_kind_is_refused_whatever_it_says() -> None:
    """The bytes around a statement are a stranger's: they are stored with it, and passed on."""

    def padded(said: Any, by: SigningKey) -> Signed:
        whole = signed(said, by)
        return Signed(whole.payload, whole.signers, whole.envelope + bytes(said.MAX_ENVELOPE))

    def outcomes(made: Any) -> list[AdmissionOutcome]:
        said, next_version, judged = head(9), version(ZERO, [OWNER, NODE]), attestation(NOW)
        rules = statement.PolicyStatement(
            network="village",
            version=1,
            issued_at=statement.when(NOW),
            policy=statement.Rules(use="data"),
            key=OWNER.did,
            head=SEED,
        )
        return [
            admit_head(said, made(said, OWNER), None, {}.get, NOW).outcome,
            admit_authority(next_version, made(next_version, OWNER), (ZERO,), NOW)[0].outcome,
            admit_attestation(judged, made(judged, NODE), None, NOW).outcome,
            admit_word(rules, made(rules, OWNER), NOW, is_news=True).outcome,
        ]

    assert AdmissionOutcome.REJECTED not in outcomes(signed)
    assert outcomes(padded) == [AdmissionOutcome.REJECTED] * 4
