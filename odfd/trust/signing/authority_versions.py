"""Publishes a new version of an authority: collects root signatures, stores it, and notes it in their journals.

The order allows recovery from a crash at any moment: the journals are checked, the version is stored in one transaction
with whatever belongs to it, and only then it is noted in the journals and may be announced. A crash before the last
step leaves a durable version, and ``note_newest`` catches up at the next start. In the other order, a version that was
noted but not stored could never be signed again.
"""

from __future__ import annotations

import sqlite3

from chain.errors import Conflict, Invalid, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.statements import envelope
from chain.statements.authority import Rights, missing_signatures
from chain.statements.envelope import Signed
from chain.statements.statement import Authority
from chain.store.database import Database
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
            hint="somebody was first, or the clock is wrong: ask for a new draft",
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
        f"{count} more of the roots must sign this version",
        rule="authority-signatures",
        hint="give the file that holds the dataset's key: --offline-key FILE",
    )
