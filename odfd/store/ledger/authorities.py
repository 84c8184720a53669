"""Stores all known versions of each dataset's authority, so that others can be shown how they follow each other.

Versions were verified when they came, and are kept with the signers found then. Reading them back checks again that
they follow each other, but no signatures. Calls are synchronous, on the connection they are given; the table is the
ledger's. Spec: docs/spec/trust.md#authorities.
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
from odfd.store.ledger.tables import AUTHORITIES

_KEY_SIZE: Final = 34
MAX_VERSIONS_CACHED: Final = 4096
"""Versions of all datasets together whose rights are cached."""


class _Walks:
    """Caches the rights of versions by the id of the last version, which fixes all versions before it."""

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
    """Stores the versions of authorities, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def walk(self, dataset: DatasetId) -> list[Rights]:
        """Returns the rights of every known version, from version 0 on.

        Versions are read and followed once in the life of a process, since each statement on a dataset needs them.
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
        """Lists the statements of versions ``first``, ``first`` + 1, …"""
        found = []
        for _, _, _, signers, payload, envelope in AUTHORITIES.rows(
            self._db, "dataset = ? AND version >= ? ORDER BY version", (dataset, first)
        ):
            predicate = statement.decode_any(payload)
            assert isinstance(predicate, Authority)
            found.append((predicate, Signed(payload, _keys(signers), envelope)))
        return found

    def keep(self, made: Authority, signed: Signed) -> None:
        """Keeps a version that was admitted."""
        signers = b"".join(signed.signers)
        AUTHORITIES.put(self._db, made.dataset, made.version, signed.sid, signers, signed.payload, signed.envelope)

    def replace(self, made: Authority, signed: Signed) -> None:
        """Replaces a held version by another statement of it, and drops all later ones.
        That it follows was checked before."""
        self._db.execute(
            "DELETE FROM trust_authorities WHERE dataset = ? AND version >= ?", (made.dataset, made.version)
        )
        self.keep(made, signed)


def _keys(joined: bytes) -> tuple[KeyDid, ...]:
    return tuple(KeyDid(joined[at : at + _KEY_SIZE]) for at in range(0, len(joined), _KEY_SIZE))
