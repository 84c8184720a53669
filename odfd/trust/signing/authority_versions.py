"""Publishes a new version of an authority: collects root signatures, stores it, and notes it in their journals.

The order allows recovery from a crash at any moment: the journals are checked, the version is stored in one transaction
with whatever belongs to it, and only then it is noted in the journals and may be announced. A crash before the last
step leaves a durable version, and ``note_newest`` catches up at the next start. In the other order, a version that was
noted but not stored could never be signed again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from chain import instant
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.authority import Rights, missing_signatures
from chain.statements.envelope import Signed, dataset_key
from chain.statements.statement import MAX_VERSION, MAX_WRITERS, SHOWN_EPOCHS, Authority, Epoch, Roots, TreeHead, Writer
from chain.store.database import Database
from chain.wording import plural
from odfd.store.keys import journal_topics
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.trust.admission.rules import AdmissionOutcome, admit_authority


def sign_version(
    database: Database, keys: KeyStore, authority: Authority, payload: bytes, given: list[tuple[KeyDid, bytes]]
) -> Signed:
    """Signs a version with this node's root keys and adds ``given`` signatures; does not publish it.

    Raises Refused if roots are missing, Invalid.
    """
    with database.read() as connection:
        rights = Authorities(connection).rights(authority.dataset)
    roots = rights.roots.union(authority.roots.keys)
    signatures = dict(given)
    for held in keys.keys_for(authority.dataset):
        if held.did in roots:
            signatures.setdefault(held.did, held.sign(envelope.preauth(payload)))
    if not signatures:
        raise _lacking(1)
    signed = envelope.unseal(envelope.gather(payload, signatures.items()), Authority.MAX_ENVELOPE)
    if missing := missing_signatures(rights, authority, signed.signers):
        raise _lacking(missing)
    return signed


def keep_version(
    connection: sqlite3.Connection, keys: KeyStore, authority: Authority, signed: Signed, now: Instant
) -> Rights:
    """Stores a version, which is then in force here; returns the rights by it.

    Raises Invalid, Conflict, and Refused if a journal forbids it.
    """
    authorities, ledger = Authorities(connection), Ledger(connection)
    verdict, rights = admit_authority(authority, signed, authorities.walk(authority.dataset), now)
    if verdict.outcome is AdmissionOutcome.REJECTED:
        raise Invalid(verdict.reason, rule="authority")
    if verdict.outcome is not AdmissionOutcome.NEW:
        raise Conflict(
            f"version {authority.version} does not follow: {verdict.reason or verdict.outcome.value}",
            rule="authority-version",
            hint="another version was signed first, or the clock is wrong: ask for a new draft",
        )
    for key in signed.signers:
        keys.may_note(key, journal_topics.authority(key, authority.dataset), (authority.version,), str(signed.sid))
    authorities.keep(authority, signed)
    ledger.close_epochs(rights)
    ledger.record_authority(authority, signed, "signed", "", now)
    return rights


def note_version(keys: KeyStore, authority: Authority, signed: Signed) -> None:
    """Notes a version in the journals of all its signers, after it is stored and before it is published."""
    for key in signed.signers:
        keys.note(key, journal_topics.authority(key, authority.dataset), (authority.version,), str(signed.sid))


def note_newest(connection: sqlite3.Connection, keys: KeyStore, dataset: DatasetId) -> None:
    """Notes the newest version in journals if a crash prevented that.
    Journals that know as much or more are unchanged."""
    versions = Authorities(connection).versions(dataset)
    if not versions:
        return
    newest, signed = versions[-1]
    for key in signed.signers:
        last = keys.last_signed(key, journal_topics.authority(key, dataset))
        if last is None or last.order < (newest.version,):
            keys.note(key, journal_topics.authority(key, dataset), (newest.version,), str(signed.sid))


def _lacking(count: int) -> Refused:
    return Refused(
        f"{count} more of the root keys must sign this version",
        rule="authority-signatures",
        hint="give the file that holds the dataset's key: --offline-key FILE",
    )


DAY: Final = 86400 * instant.SECOND
USUAL_DAYS: Final = 365
MAX_DAYS: Final = 399
"""Days for which a writer may be named: one less than the limit, since drafts are signed later than they are made."""


class EpochOpening(msgspec.Struct, frozen=True):
    """The fields of an epoch that replaces blocks, except its number."""

    reason: Literal["reset", "recovery", "fork", "compaction"]
    base: TreeHead
    """The part of the present chain that is kept."""
    last: TreeHead
    """The whole present chain."""


Reason: TypeAlias = Literal["rotation", "recovery", "fork"]
"""Why an epoch that keeps all blocks is opened: as planned, after a theft, or to choose one of two histories."""


def rotate(
    rights: Rights, writer: KeyDid, chain: TreeHead, seed: Multihash, now: Instant, reason: Reason = "rotation"
) -> Authority:
    """Drafts a version in which ``writer`` is the only writer, from the end of ``chain`` on."""
    epoch = Epoch(number=rights.epoch + 1, reason=reason, base=chain, last=chain)
    return _next(rights, {writer: _until(now, USUAL_DAYS)}, seed, now, epoch)


def rewritten(rights: Rights, opened: EpochOpening, mine: Iterable[KeyDid], seed: Multihash, now: Instant) -> Authority:
    """Drafts a version with another history from ``opened.base`` on.
    Writers stay; those of ``mine`` get another year."""
    epoch = Epoch(number=rights.epoch + 1, reason=opened.reason, base=opened.base, last=opened.last)
    return _next(rights, _lengthen(rights, mine, now), seed, now, epoch)


def renew(rights: Rights, mine: Iterable[KeyDid], seed: Multihash, now: Instant) -> Authority:
    """Drafts a version that extends the rights of writers of ``mine`` by a year, and keeps all else."""
    return _next(rights, _lengthen(rights, mine, now), seed, now, None)


def is_short(rights: Rights, mine: Iterable[KeyDid], now: Instant) -> bool:
    """Whether a right to write of one of ``mine`` lasts less than a third of a year,
    and there is a version left to renew it."""
    ends = [until for key in mine if (until := rights.writers.get(key)) is not None]
    return rights.version < MAX_VERSION and any(until - now < USUAL_DAYS * DAY // 3 for until in ends)


def with_writer(rights: Rights, key: KeyDid, days: int, seed: Multihash, now: Instant) -> Authority:
    """Drafts a version in which ``key`` may write too, or for longer. Raises Invalid."""
    if not 1 <= days <= MAX_DAYS:
        raise Invalid(f"a writer for {plural(days, 'day')}", rule="authority-writer-lifetime", hint=f"1…{MAX_DAYS}")
    if key not in rights.writers and len(rights.writers) >= MAX_WRITERS:
        raise Invalid(f"there are {MAX_WRITERS} writers already", rule="authority-writers", hint="remove one first")
    return _next(rights, {**_keep_writers(rights, now), key: _until(now, days)}, seed, now, None)


def without_writer(rights: Rights, key: KeyDid, chain: TreeHead, seed: Multihash, now: Instant) -> Authority:
    """Drafts a version without a writer; what ``key`` signs beyond ``chain`` then belongs to a closed epoch.

    Raises NotFound.
    """
    if key not in rights.writers:
        raise NotFound(
            f"{key.short} is no writer of it",
            rule="authority-writer",
            hint="odfctl trust authority show REF lists them",
        )
    kept = {each: until for each, until in _keep_writers(rights, now).items() if each != key}
    epoch = Epoch(number=rights.epoch + 1, reason="rotation", base=chain, last=chain)
    return _next(rights, kept, seed, now, epoch)


def _lengthen(rights: Rights, mine: Iterable[KeyDid], now: Instant) -> dict[KeyDid, Instant]:
    kept, year = _keep_writers(rights, now), _until(now, USUAL_DAYS)
    return kept | {key: max(kept[key], year) for key in mine if key in kept}


def _keep_writers(rights: Rights, now: Instant) -> dict[KeyDid, Instant]:
    """Returns the present writers and until when.
    Expired ones stay named for a day: omitting one would open an epoch."""
    whole = Instant(now + DAY)
    return {
        key: _until(now, USUAL_DAYS) if until is None else max(until, whole) for key, until in rights.writers.items()
    }


def _until(now: Instant, days: int) -> Instant:
    return Instant(now + days * DAY)


def _next(
    rights: Rights, writers: Mapping[KeyDid, Instant], seed: Multihash, now: Instant, epoch: Epoch | None
) -> Authority:
    if rights.version >= MAX_VERSION:
        raise Refused(
            f"this is version {MAX_VERSION} of the authority, the last possible one",
            rule="authority-versions",
            hint="continue in a new dataset; the signers of this one can no longer change",
        )
    roots = sorted(rights.roots) if rights.version else [dataset_key(rights.dataset)]
    epochs = rights.epochs if epoch is None else (*rights.epochs, epoch)[-SHOWN_EPOCHS:]
    return Authority(
        dataset=rights.dataset,
        version=rights.version + 1,
        previous=rights.sid,
        issued_at=statement.when(now),
        roots=Roots(threshold=rights.threshold, keys=tuple(roots)),
        writers=tuple(Writer(key=key, expires_at=statement.when(until)) for key, until in sorted(writers.items())),
        epochs=epochs,
        head=seed,
    )
