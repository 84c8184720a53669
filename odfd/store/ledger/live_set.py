"""Rebuilds the live set of a dataset from the log, by applying each entry again in order.

The log may have been pruned: the last statement that counted of each signer is still there, and earlier ones change
nothing. If a version of an authority is replaced by another statement of the same version, everything that depends on
it is replaced too. Calls are synchronous, on the connection they are given.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Final, TypeAlias

import msgspec

from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import ATTESTATION, AUTHORITY, HEAD, Authority
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.hash_links import LinkedEntry, entries, whole
from odfd.store.ledger.log import STEPS, Ledger
from odfd.store.ledger.tables import LIVE

Live: TypeAlias = dict[tuple[str, KeyDid], Signed]
"""Live statements by type and signer."""
_NEVER_LIVE: Final = frozenset({"fork", "candidate"})


class _Choice(msgspec.Struct, frozen=True):
    """The part of a decision that changes the live set."""

    follow: str = ""


def live_of(connection: sqlite3.Connection, dataset: DatasetId) -> Live:
    """Computes a dataset's live statements from the log. Raises Environment if an entry is damaged."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as scratch:
        for script in STEPS:
            scratch.executescript(script)
        again = _Again(scratch)
        for entry in whole(entries(connection, "dataset = ?", (dataset,))):
            again.take(entry)
        rows = LIVE.rows(scratch, "dataset = ?", (dataset,))
        return {(row[1], KeyDid(row[2])): Signed(row[5], (KeyDid(row[2]),), row[4]) for row in rows}


def restore_live(connection: sqlite3.Connection) -> int:
    """Adds missing statements to the live set of held datasets; returns their number. Raises Environment."""
    count = 0
    for (held,) in connection.execute("SELECT dataset FROM trust_chains").fetchall():
        dataset = DatasetId(held)
        known = set(Ledger(connection).live(dataset))
        for (kind, signer), signed in live_of(connection, dataset).items():
            if signed.sid not in known:
                LIVE.put(connection, dataset, kind, signer, signed.sid, signed.envelope, signed.payload)
                count += 1
    return count


class _Again:
    """Applies log entries to empty tables as they were applied to those of the ledger."""

    def __init__(self, scratch: sqlite3.Connection) -> None:
        self._db = scratch
        self._ledger = Ledger(scratch)
        self._authorities = Authorities(scratch)
        self._rivals: dict[Multihash, tuple[Authority, Signed]] = {}

    def take(self, entry: LinkedEntry) -> None:
        if entry.type == AUTHORITY:
            self._take_authority(entry)
        elif entry.type in (HEAD, ATTESTATION) and entry.outcome not in _NEVER_LIVE:
            self._add_statement(entry)
        elif entry.type == "decision":
            self._take_decision(entry)

    def _add_statement(self, entry: LinkedEntry) -> None:
        dataset, most = DatasetId(entry.dataset), statement.KINDS[entry.type].MAX_ENVELOPE
        signed = envelope.unseal(entry.body, most)
        if entry.outcome == "followed":
            self._ledger.follow(dataset, signed, Instant(entry.at))
        LIVE.put(self._db, dataset, entry.type, entry.signer, signed.sid, signed.envelope, signed.payload)

    def _take_authority(self, entry: LinkedEntry) -> None:
        signed = envelope.unseal(entry.body, Authority.MAX_ENVELOPE)
        version = statement.decode_any(signed.payload)
        assert isinstance(version, Authority)
        if entry.outcome in _NEVER_LIVE:
            self._rivals[signed.sid] = version, signed
            return
        self._authorities.keep(version, signed)
        self._ledger.close_epochs(self._authorities.rights(version.dataset))

    def _take_decision(self, entry: LinkedEntry) -> None:
        """Applies a decision, of a person or of witnesses, to follow another statement of a version."""
        chosen = msgspec.json.decode(entry.body, type=_Choice).follow
        rival = self._rivals.get(Multihash.parse(chosen)) if chosen else None
        if rival is not None:
            hold_instead(self._db, *rival)


def hold_instead(connection: sqlite3.Connection, authority: Authority, signed: Signed) -> None:
    """Replaces a held version by another statement of it; drops the heads that rest on the replaced one."""
    authorities, ledger = Authorities(connection), Ledger(connection)
    authorities.replace(authority, signed)
    ledger.drop_heads_under(authority.dataset, authority.version)
    ledger.close_epochs(authorities.rights(authority.dataset))
