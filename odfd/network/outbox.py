"""Announces statements that worker threads signed, in order and from the event loop.

A statement on a dataset is sent if the dataset is public when its turn comes. The queue is bounded: if nothing can be
announced, the oldest statements are dropped, and peers get them by anti-entropy. Heads of a dataset are sent no faster
than peers accept them: a newer head replaces a waiting one, so that the last head of a burst is sent, and not one too
many, which all peers would refuse.
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
from chain.statements.statement import HeadStatement, decode_any
from chain.store.base import BlockDamaged
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.supervision import Life, Logger
from odfd.store.visibility import PublicOf
from odfd.trust.admission.statement_kinds import HEAD_PACE
from p2p.budget.buckets import Budget
from p2p.ports import Topic

WAITING: Final = 1024


class Announcer(Protocol):
    """Announces statements in the networks that this node has joined."""

    async def announce(self, topic: Topic, envelope: bytes) -> None: ...

    async def announce_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        """Announces in those of ``networks`` that are joined."""


class Outbox:
    """Queues statements to announce. ``put`` may be called from any thread, also before ``run``."""

    def __init__(
        self,
        networks: Announcer,
        public_of: PublicOf,
        logger: Logger,
        scope: Callable[[DatasetId], Collection[str] | None],
    ) -> None:
        """``public_of``: which datasets are public anywhere; ``scope``: the networks to which a dataset is limited."""
        self._networks = networks
        self._public_of, self._scope = public_of, scope
        self._logger = logger
        self._waiting: deque[tuple[Topic, DatasetId | Collection[str] | None, bytes]] = deque(maxlen=WAITING)
        self._signed: dict[DatasetId, bytes] = {}
        """The newest head of each dataset that was not scheduled yet; written by any thread."""
        self._paced: dict[DatasetId, bytes] = {}
        """The newest head of each scheduled dataset."""
        self._due: list[tuple[float, DatasetId]] = []
        """A heap of the times at which scheduled heads are sent."""
        self._pace = Budget[DatasetId](HEAD_PACE.within_limit())
        self._token: trio.lowlevel.TrioToken | None = None
        self._loop = ReconcileLoop(self._send)

    def __len__(self) -> int:
        """Returns the number of items that wait to be sent."""
        return len(self._waiting) + len(self._signed) + len(self._paced)

    def put(self, topic: Topic, dataset: DatasetId | None, envelope: bytes) -> None:
        """Queues a statement. ``dataset``: its subject; ``None``: without a dataset, for all networks."""
        self._waiting.append((topic, dataset, envelope))
        self._poke()

    def put_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        """Queues a statement for some networks, whatever its subject is."""
        self._waiting.append((topic, frozenset(networks), envelope))
        self._poke()

    def put_signed(self, dataset: DatasetId, signed: Signed) -> None:
        """Queues a head or an authority version. Heads never replace the latter: peers need it to accept heads."""
        if isinstance(decode_any(signed.payload), HeadStatement):
            self.put_head(dataset, signed.envelope)
        else:
            self.put(Topic.HEADS, dataset, signed.envelope)

    def put_card(self, signed: Signed) -> None:
        """Queues a card even if its dataset is private, because a card may withdraw it.

        From a worker thread.
        """
        networks = self._scope(decode_any(signed.payload).dataset)
        if networks is None:
            self.put(Topic.HEADS, None, signed.envelope)
        else:
            self.put_in(networks, Topic.HEADS, signed.envelope)

    def put_head(self, dataset: DatasetId, envelope: bytes) -> None:
        """Queues a head that was signed here, in place of an older one of the dataset that still waits."""
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
        """Schedules each new head, at the time of the waiting head that it replaces, if any."""
        now = trio.current_time()
        while self._signed:
            dataset, envelope = self._signed.popitem()
            if dataset not in self._paced:
                heapq.heappush(self._due, (now + (self._pace.reserve(dataset, now, math.inf) or 0.0), dataset))
            self._paced[dataset] = envelope

    async def _announce(self, topic: Topic, about: DatasetId | Collection[str] | None, envelope: bytes) -> None:
        """Announces a statement, except a head of a chain that is damaged on disk, which could not be served."""
        try:
            networks = None if isinstance(about, DatasetId) else about
            if isinstance(about, DatasetId):
                if not await trio.to_thread.run_sync(self._public_of, [about]):
                    return
                networks = await trio.to_thread.run_sync(self._scope, about)
            if networks is None:
                await self._networks.announce(topic, envelope)
            else:
                await self._networks.announce_in(networks, topic, envelope)
        except (Remote, BlockDamaged) as fault:
            self._logger.info("not announced", topic=topic.value, fault=str(fault))
