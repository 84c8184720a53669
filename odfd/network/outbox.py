"""Announces statements that worker threads signed, in order and from the event loop.

Those that speak of a dataset leave if it is public when their turn comes. Bounded: when nothing can be announced the
oldest are dropped, since peers that missed one get it by anti-entropy.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from chain.errors import Remote
from chain.ids import DatasetId
from odfd.datasets.visibility import PublicOf
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.supervision import Life, Logger
from p2p.ports import Replication, Topic

WAITING: Final = 1024


class Outbox:
    """``put`` may be called from any thread once ``run`` runs; before that, what is put waits."""

    def __init__(self, replication: Replication, public_of: PublicOf, logger: Logger) -> None:
        self._replication = replication
        self._public_of = public_of
        self._logger = logger
        self._waiting: deque[tuple[Topic, DatasetId | None, bytes]] = deque(maxlen=WAITING)
        self._token: trio.lowlevel.TrioToken | None = None
        self._loop = ReconcileLoop(self._send)

    def put(self, topic: Topic, dataset: DatasetId | None, envelope: bytes) -> None:
        """``dataset``: which one it speaks of; ``None``: it speaks of none."""
        self._waiting.append((topic, dataset, envelope))
        if self._token is not None:
            self._token.run_sync_soon(self._loop.poke)

    async def run(self, life: Life) -> None:
        self._token = trio.lowlevel.current_trio_token()
        await self._loop.run(life)

    async def _send(self) -> float:
        while self._waiting:
            topic, dataset, envelope = self._waiting.popleft()
            if dataset is not None and not await trio.to_thread.run_sync(self._public_of, [dataset]):
                continue
            try:
                await self._replication.announce(topic, envelope)
            except Remote as fault:
                self._logger.info("not announced", topic=topic.value, fault=str(fault))
        return UNTIL_POKED
