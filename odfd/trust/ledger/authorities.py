"""Stores all known versions of each dataset's authority, so that others can be shown how they follow each other.

What is kept was verified when it came, with the signers that were found then; reading it back checks the walk again but
no signature. Calls are synchronous, on the connection they are given; the table is the ledger's.
Spec: docs/spec/trust.md#authorities.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Final

from cachetools import LRUCache

from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements import authority, statement
from chain.statements.authority import Rights
from chain.statements.envelope import Signed
from chain.statements.statement import Authority
from odfd.trust.ledger.tables import AUTHORITIES

_KEY_SIZE: Final = 34
MAX_VERSIONS_CACHED: Final = 4096
"""Of all datasets together."""


class _Walks:
    """Rights that were walked to, by the id of the last version: it names the one before, and so the whole walk."""

    def __init__(self) -> None:
        self._known: LRUCache[Multihash, tuple[Rights, ...]] = LRUCache(MAX_VERSIONS_CACHED, getsizeof=len)
        self._lock = threading.Lock()

    def get(self, last: Multihash) -> tuple[Rights, ...] | None:
        with self._lock:
            return self._known.get(last)

    def put(self, walk: tuple[Rights, ...]) -> None:
        last = walk[-1].sid
        if last is not None and len(walk) <= MAX_VERSIONS_CACHED:
            with self._lock:
                self._known[last] = walk


_WALKS: Final = _Walks()


class Authorities:
    """The kept versions, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def walk(self, dataset: DatasetId) -> list[Rights]:
        """The rights of every version known, from version 0 on.

        Versions are read and followed once in the life of a process: each statement on a dataset asks for them.
        """
        rows = self._db.execute(
            "SELECT sid FROM trust_authorities WHERE dataset = ? ORDER BY version DESC", (dataset,)
        ).fetchall()
        if not rows:
            return [authority.implicit(dataset)]
        known: tuple[Rights, ...] = (authority.implicit(dataset),)
        for (sid,) in rows:
            if (found := _WALKS.get(Multihash(sid))) is not None and found[-1].dataset == dataset:
                known = found
                break
        walk = list(known)
        for version, signed in self.versions(dataset, len(walk)):
            walk.append(authority.follow(walk[-1], version, signed))
        if len(walk) > len(known):
            _WALKS.put(tuple(walk))
        return walk

    def rights(self, dataset: DatasetId) -> Rights:
        """Returns the rights of the newest known version."""
        return self.walk(dataset)[-1]

    def rights_at(self, dataset: DatasetId, version: int) -> Rights | None:
        """Returns the rights of a version, as ``chain.statements.proof`` requires."""
        known = self.walk(dataset)
        return known[version] if version < len(known) else None

    def versions(self, dataset: DatasetId, first: int = 1) -> list[tuple[Authority, Signed]]:
        """The statements of versions ``first``, ``first`` + 1, …"""
        found = []
        for _, _, _, signers, payload, envelope in AUTHORITIES.rows(
            self._db, "dataset = ? AND version >= ? ORDER BY version", (dataset, first)
        ):
            predicate = statement.decode_any(payload)
            assert isinstance(predicate, Authority)
            found.append((predicate, Signed(payload, _keys(signers), envelope)))
        return found

    def keep(self, made: Authority, signed: Signed) -> None:
        """Keep a version that was admitted."""
        signers = b"".join(signed.signers)
        AUTHORITIES.put(self._db, made.dataset, made.version, signed.sid, signers, signed.payload, signed.envelope)

    def replace(self, made: Authority, signed: Signed) -> None:
        """Hold another statement of a version that is held, and of none after it. It was shown to follow."""
        self._db.execute(
            "DELETE FROM trust_authorities WHERE dataset = ? AND version >= ?", (made.dataset, made.version)
        )
        self.keep(made, signed)


def _keys(joined: bytes) -> tuple[KeyDid, ...]:
    return tuple(KeyDid(joined[at : at + _KEY_SIZE]) for at in range(0, len(joined), _KEY_SIZE))
