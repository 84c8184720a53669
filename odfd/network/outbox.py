"""Announces statements that worker threads signed, in order and from the event loop.

Those that speak of a dataset leave if it is public when their turn comes. Bounded: when nothing can be announced the
oldest are dropped, since peers that missed one get it by anti-entropy. Heads of a dataset leave no faster than peers
take them: the newest replaces one that waits, so that the last of a burst is announced, and not the one that everybody
refuses.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, Protocol

import trio

from chain.errors import Remote
from chain.ids import DatasetId
from chain.statements.envelope import Signed
from chain.statements.statement import HEAD, HeadStatement, decode_any
from chain.store.base import BlockDamaged
from odfd.datasets.visibility import PublicOf
from odfd.network.statement_quota import PACES
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.supervision import Life, Logger
from p2p.budget.buckets import Budget
from p2p.ports import Replication, Topic

WAITING: Final = 1024


class ScopedReplication(Replication, Protocol):
    """Replication in several networks."""

    async def announce_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        """Announces in those of ``networks`` that are joined."""


def _everywhere(_dataset: DatasetId) -> Collection[str] | None:
    return None


class Outbox:
    """Queues statements to announce: ``put`` may be called from any thread, also before ``run`` runs."""

    def __init__(
        self,
        replication: ScopedReplication,
        public_of: PublicOf,
        logger: Logger,
        scope: Callable[[DatasetId], Collection[str] | None] = _everywhere,
    ) -> None:
        """``public_of``: which datasets are public somewhere; ``scope``: in which networks alone one is."""
        self._replication = replication
        self._public_of, self._scope = public_of, scope
        self._logger = logger
        self._waiting: deque[tuple[Topic, DatasetId | Collection[str] | None, bytes]] = deque(maxlen=WAITING)
        self._signed: dict[DatasetId, bytes] = {}
        """The newest head of each dataset that has no time to leave yet; written by any thread."""
        self._paced: dict[DatasetId, bytes] = {}
        """The newest of each that has."""
        self._due: list[tuple[float, DatasetId]] = []
        """A heap: when each of them leaves."""
        self._pace = Budget[DatasetId](PACES[HEAD].kept())
        self._token: trio.lowlevel.TrioToken | None = None
        self._loop = ReconcileLoop(self._send)

    def __len__(self) -> int:
        """Returns the number of items that wait to be sent."""
        return len(self._waiting) + len(self._signed) + len(self._paced)

    def put(self, topic: Topic, dataset: DatasetId | None, envelope: bytes) -> None:
        """``dataset``: which one it speaks of; ``None``: it speaks of none, and is for all networks."""
        self._waiting.append((topic, dataset, envelope))
        self._poke()

    def put_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        """For some networks, whatever it speaks of."""
        self._waiting.append((topic, frozenset(networks), envelope))
        self._poke()

    def put_signed(self, dataset: DatasetId, signed: Signed) -> None:
        """A head, or an authority version, which no head may replace: peers refuse heads of an unknown version."""
        if isinstance(decode_any(signed.payload), HeadStatement):
            self.put_head(dataset, signed.envelope)
        else:
            self.put(Topic.HEADS, dataset, signed.envelope)

    def put_card(self, signed: Signed) -> None:
        """Announces a card whether its dataset is public or not, because a withdrawal concerns a private one.

        From a worker thread.
        """
        networks = self._scope(decode_any(signed.payload).dataset)
        if networks is None:
            self.put(Topic.HEADS, None, signed.envelope)
        else:
            self.put_in(networks, Topic.HEADS, signed.envelope)

    def put_head(self, dataset: DatasetId, envelope: bytes) -> None:
        """A head that was signed here, in place of an older one of the dataset that still waits."""
        self._signed[dataset] = envelope
        self._poke()

    def _poke(self) -> None:
        if self._token is not None:
            self._token.run_sync_soon(self._loop.poke)

    async def run(self, life: Life) -> None:
        self._token = trio.lowlevel.current_trio_token()
        await self._loop.run(life)

    async def _send(self) -> float:
        while self._waiting:
            await self._announce(*self._waiting.popleft())
        self._schedule()
        while self._due and self._due[0][0] <= trio.current_time():
            _, dataset = heapq.heappop(self._due)
            await self._announce(Topic.HEADS, dataset, self._paced.pop(dataset))
        return self._due[0][0] - trio.current_time() if self._due else UNTIL_POKED

    def _schedule(self) -> None:
        """Give each head that was signed meanwhile its time, or the time of the one that it replaces."""
        now = trio.current_time()
        while self._signed:
            dataset, envelope = self._signed.popitem()
            if dataset not in self._paced:
                heapq.heappush(self._due, (now + (self._pace.reserve(dataset, now, math.inf) or 0.0), dataset))
            self._paced[dataset] = envelope

    async def _announce(self, topic: Topic, about: DatasetId | Collection[str] | None, envelope: bytes) -> None:
        """A head of a chain that is damaged on disk is not announced, as it would not be given."""
        try:
            networks = None if isinstance(about, DatasetId) else about
            if isinstance(about, DatasetId):
                if not await trio.to_thread.run_sync(self._public_of, [about]):
                    return
                networks = await trio.to_thread.run_sync(self._scope, about)
            if networks is None:
                await self._replication.announce(topic, envelope)
            else:
                await self._replication.announce_in(networks, topic, envelope)
        except (Remote, BlockDamaged) as fault:
            self._logger.info("not announced", topic=topic.value, fault=str(fault))
