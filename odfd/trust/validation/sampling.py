"""Decides which steps a validator runs, in which order, for how long, and when it retries those too costly. Pure.

A validator that does not run all steps picks a share of them by a secret: a pick depends only on the secret and the
block, so that restarts pick alike, waiting changes nothing, and the publisher cannot predict it.

Engine time is shared among publishers, not among datasets or steps: the publisher that used least lately comes first,
and half of the use is forgotten every ``HALF_LIFE``. A step has a budget of seconds. A step that exceeds it in the
shared engine, where the work of others may have slowed it, is run once more in a process of its own; so are all steps
of its publisher until it was run, so that they delay nobody else. A step that exceeds the budget there too is too
costly to verify, which is no verdict on it: this is published, and the step is tried again after pauses that double.
Kept in memory: a restart costs two more tries. Spec: docs/spec/trust.md#policy, #cost.
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
"""Time in which half of the engine time that a publisher used is forgotten."""
MAX_KNOWN: Final = 16_384
"""Publishers, and paused datasets, that are remembered."""


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
    """Tracks the engine time that one validator spends on each publisher."""

    def __init__(self) -> None:
        self._used: LRUCache[KeyDid, _Used] = LRUCache(MAX_KNOWN)
        self._apart: LRUCache[DatasetId, KeyDid] = LRUCache(MAX_KNOWN)
        """Datasets whose next step exceeded the budget in the shared engine, with their publishers."""
        self._pauses: LRUCache[DatasetId, Pause] = LRUCache(MAX_KNOWN)

    def charge(self, publisher: KeyDid, seconds: float, now: Instant) -> None:
        """Records that an engine worked ``seconds`` for a publisher."""
        before = self._used.get(publisher)
        self._used[publisher] = _Used((before.by(now) if before else 0.0) + seconds, now)

    def used(self, publisher: KeyDid, now: Instant) -> float:
        """Returns the engine seconds that a publisher used lately."""
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
        """Records that a step was too costly; returns the pause before it is tried again."""
        self.isolate(dataset, publisher)
        before = self._pauses.get(dataset)
        again = before is not None and before.step == step
        length = min(2 * before.length, MAX_PAUSE) if before is not None and again else FIRST_PAUSE
        tries = before.tries + 1 if before is not None and again else 1
        pause = Pause(step, Instant(now + length), length, tries)
        self._pauses[dataset] = pause
        return pause

    def met(self, dataset: DatasetId) -> None:
        """Records that the dataset's next step was run within the budget."""
        self._pauses.pop(dataset, None)
        self._apart.pop(dataset, None)

    def paused(self, dataset: DatasetId) -> Pause | None:
        """Returns the dataset's pause, if its next step was too costly at the last try."""
        return self._pauses.get(dataset)

    def wait(self, dataset: DatasetId, now: Instant) -> float:
        """Returns the seconds until the dataset may be tried again; 0 if it does not pause."""
        pause = self._pauses.get(dataset)
        return max(0.0, (pause.until - now) / instant.SECOND) if pause else 0.0

    def is_isolated(self, publisher: KeyDid) -> bool:
        """Whether a publisher's steps run in an engine process of their own."""
        return publisher in self._apart.values()


MARK = b"odfd-spot-check\n"
"""The text signed to derive the secret. No statement, checkpoint or record begins like it; the signature stays here."""
_ALL = 1 << 64


class _Memo(msgspec.Struct, frozen=True):
    size: int
    last: Multihash
    """The last block of the first ``size`` blocks."""
    share: float
    picked: int | None


class Sample:
    """Picks the steps that one node runs; remembers how far each chain was searched."""

    def __init__(self, key: SigningKey) -> None:
        self._secret = hashlib.sha3_256(key.sign(MARK)).digest()
        self._memos: dict[DatasetId, _Memo] = {}

    def is_picked(self, block: Multihash, share: float) -> bool:
        drawn = hmac.digest(self._secret, bytes(block), "sha3_256")
        return int.from_bytes(drawn[:8]) < share * _ALL

    def last(self, chain: ChainReader, dataset: DatasetId, size: int, share: float) -> int | None:
        """Returns the last picked step of the first ``size`` blocks; costs only the steps added since the last call."""
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
