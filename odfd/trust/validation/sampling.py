"""Decides which steps a validator runs, whose come next, for how long, and when it retries what was too costly. Pure.

A validator that does not run all steps picks a share by a secret: a pick depends on the secret and the block alone, so
that restarts pick alike, waiting changes nothing, and the publisher cannot predict it.

Engine time is shared among publishers, not among datasets or steps: whoever used least of late comes first, and what
was used is forgotten by halves. A step has a budget of seconds. What exceeds it in the engine that everybody uses, in
which others' work may have slowed it, is run once more in a process of its own, and so are all steps of its publisher
from then on, until it was run: they hold nobody else's engine. What exceeds it there is too costly to verify, which is
no verdict on it: it is published as such, and tried again after pauses that double. Kept in memory: a restart costs two
more tries. Spec: docs/spec/trust.md#policy, #cost.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

import msgspec
from cachetools import LRUCache

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.base import ChainReader
from chain.walk import newest_first
from odfd.trust.transform_steps import STEP

FIRST_PAUSE: Final = 600 * instant.SECOND
MAX_PAUSE: Final = 7 * 86400 * instant.SECOND
HALF_LIFE: Final = 3600 * instant.SECOND
"""In which half of the engine time that a publisher used is forgotten."""
MAX_KNOWN: Final = 16_384
"""Publishers, and datasets that pause."""


class _Used(msgspec.Struct, frozen=True):
    seconds: float
    at: Instant

    def by(self, now: Instant) -> float:
        return self.seconds * float(0.5 ** (max(0, now - self.at) / HALF_LIFE))


class Pause(msgspec.Struct, frozen=True):
    """The pause of a dataset whose next step was too costly."""

    step: int
    until: Instant
    length: int
    tries: int


class CostBudget:
    """The engine time of one validator."""

    def __init__(self) -> None:
        self._used: LRUCache[KeyDid, _Used] = LRUCache(MAX_KNOWN)
        self._apart: LRUCache[DatasetId, KeyDid] = LRUCache(MAX_KNOWN)
        """Datasets whose next step exceeded the budget, and their publishers."""
        self._pauses: LRUCache[DatasetId, Pause] = LRUCache(MAX_KNOWN)

    def charge(self, publisher: KeyDid, seconds: float, now: Instant) -> None:
        """An engine worked so long for a publisher."""
        before = self._used.get(publisher)
        self._used[publisher] = _Used((before.by(now) if before else 0.0) + seconds, now)

    def used(self, publisher: KeyDid, now: Instant) -> float:
        """Engine seconds of late."""
        known = self._used.get(publisher)
        return known.by(now) if known else 0.0

    def next(self, waiting: Iterable[tuple[DatasetId, KeyDid]], now: Instant) -> DatasetId | None:
        """Picks the next dataset: the first of the publisher that used least, of those not paused."""
        due = [(self.used(publisher, now), dataset) for dataset, publisher in waiting if not self.wait(dataset, now)]
        return min(due)[1] if due else None

    def isolate(self, dataset: DatasetId, publisher: KeyDid) -> None:
        """Isolates a dataset's steps after one exceeded the budget in the shared engine."""
        self._apart[dataset] = publisher

    def exceeded(self, dataset: DatasetId, publisher: KeyDid, step: int, now: Instant) -> Pause:
        """A step was too costly."""
        self.isolate(dataset, publisher)
        before = self._pauses.get(dataset)
        again = before is not None and before.step == step
        length = min(2 * before.length, MAX_PAUSE) if before is not None and again else FIRST_PAUSE
        tries = before.tries + 1 if before is not None and again else 1
        pause = Pause(step, Instant(now + length), length, tries)
        self._pauses[dataset] = pause
        return pause

    def met(self, dataset: DatasetId) -> None:
        """Its next step was run within the budget."""
        self._pauses.pop(dataset, None)
        self._apart.pop(dataset, None)

    def paused(self, dataset: DatasetId) -> Pause | None:
        """Whether its next step was too costly when it was tried last."""
        return self._pauses.get(dataset)

    def wait(self, dataset: DatasetId, now: Instant) -> float:
        """Seconds until it may be tried; nothing for one that was not too costly."""
        pause = self._pauses.get(dataset)
        return max(0.0, (pause.until - now) / instant.SECOND) if pause else 0.0

    def is_isolated(self, publisher: KeyDid) -> bool:
        """Whether a publisher's steps run in an engine process of their own."""
        return publisher in self._apart.values()


MARK = b"odfd-spot-check\n"
"""The text signed to derive the secret; no statement, checkpoint or record begins so; the signature never leaves."""
_ALL = 1 << 64


class _Memo(msgspec.Struct, frozen=True):
    size: int
    last: Multihash
    """The block before ``size``."""
    share: float
    picked: int | None


class Sample:
    """The picks of one node; remembers how far it looked."""

    def __init__(self, key: SigningKey) -> None:
        self._secret = hashlib.sha3_256(key.sign(MARK)).digest()
        self._memos: dict[DatasetId, _Memo] = {}

    def is_picked(self, block: Multihash, share: float) -> bool:
        drawn = hmac.digest(self._secret, bytes(block), "sha3_256")
        return int.from_bytes(drawn[:8]) < share * _ALL

    def last(self, chain: ChainReader, dataset: DatasetId, size: int, share: float) -> int | None:
        """The last picked step of the first ``size`` blocks; costs the steps that came since it was asked before."""
        if size < 1:
            return None
        memo = self._memos.get(dataset)
        if memo is None or memo.share != share or memo.size > size or chain.block_at(memo.size - 1).hash != memo.last:
            memo = None
        start, picked = (0, None) if memo is None else (memo.size, memo.picked)
        for block in newest_first(chain, STEP, size):
            if block.sequence_number < start:
                break
            if self.is_picked(block.hash, share):
                picked = block.sequence_number
                break
        self._memos[dataset] = _Memo(size, chain.block_at(size - 1).hash, share, picked)
        return picked
