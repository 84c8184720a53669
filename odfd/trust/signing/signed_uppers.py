"""Decides which frontier a head signs, and keeps this node from contradicting one that it signed.

A head states the frontier (upper) of its chain if that was promised and is later than the last block. The frontier is
journalled before the signature leaves, under a topic of its own: it never gets smaller for a key, and no block of an
earlier time is signed, even by a state from an old backup. Spec: docs/spec/trust.md#uppers; ADR 68.
"""

from __future__ import annotations

from chain.errors import Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import from_millis, render
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.store import uppers
from chain.store.database import Database
from odfd.store import collections
from odfd.store.keys import journal_topics
from odfd.store.keys.keystore import KeyStore


class SignedUppers:
    """The frontiers that the heads of this node's datasets state. Called from worker threads."""

    def __init__(self, database: Database, keys: KeyStore) -> None:
        self._database = database
        self._keys = keys

    def read_upper(self, dataset: DatasetId) -> int | None:
        """Returns the frontier that a head of the chain states now; ``None`` for the time of the last block."""
        with self._database.read() as connection:
            return uppers.beyond_last(connection, dataset)

    def collection(self, dataset: DatasetId) -> DatasetId | None:
        """Returns the first shard, if a chain is one of several shards of a rendition."""
        with self._database.read() as connection:
            member = collections.member_of(connection, dataset)
        return None if member is None else member.dataset

    def is_stated(self, dataset: DatasetId, signed: HeadStatement) -> bool:
        """Whether a head states what one that is signed now would state beside the tree."""
        is_late = (self.read_upper(dataset) or 0) > (signed.upper or 0)
        return not is_late and signed.collection == self.collection(dataset)

    def check(self, dataset: DatasetId, time: int) -> None:
        """Checks that no frontier later than ``time`` was signed. Raises Refused (``trust.behind``)."""
        if self._keys.is_new(dataset):
            return
        keys = (KeyDid.from_public_key(dataset.public_key), self._keys.node_key().did)
        found = [self._keys.last_signed(key, journal_topics.upper(key, dataset)) for key in keys]
        last = max((each.order[0] for each in found if each is not None), default=time)
        if last > time:
            raise Refused(
                f"this node has signed that the times of {dataset.short} before {render(from_millis(last))} are"
                f" complete, and the state here says {render(from_millis(time))}",
                rule="trust.behind",
                hint="the state here is older than the signing journal: odfctl advance REF moves it past that",
            )

    def promise(self, key: SigningKey, dataset: DatasetId) -> int | None:
        """Journals the frontier that ``key`` is about to sign, and returns it. Raises Refused (``trust.behind``)."""
        with self._database.read() as connection:
            stated, reached = uppers.beyond_last(connection, dataset), uppers.upper_of(connection, dataset)
        self.check(dataset, reached)
        if stated is not None:
            self._keys.note(key.did, journal_topics.upper(key.did, dataset), (stated,), journal_topics.PROMISED)
        return stated
