"""Cosigns what this node mirrors, whenever a mirror moves and now and then, as long as the policy says to cosign.

A dataset that may not be cosigned is told once and keeps no other from being cosigned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from chain.errors import Fault
from chain.ids import DatasetId
from chain.statements.cosignature import Cosignature
from chain.store.base import ChainStore
from odfd.kit.rounds import Rounds
from odfd.kit.supervision import Journal
from odfd.trust.witness import Witness

ROUND_SECONDS: Final = 3600.0
"""Even when nothing moves: cosignatures are renewed after days."""


class Witnessing:
    """Poke its ``rounds`` when a head or a chain moved."""

    def __init__(
        self,
        chains: ChainStore,
        witness: Witness,
        is_asked: Callable[[], bool],
        announce: Callable[[Cosignature], None],
        journal: Journal,
    ) -> None:
        """``is_asked``: whether the policy in force says to cosign."""
        self._is_asked = is_asked
        self._chains = chains
        self._witness = witness
        self._announce = announce
        self._journal = journal
        self.rounds = Rounds(self._round)
        self._refused: dict[DatasetId, str] = {}

    async def _round(self) -> float:
        for dataset in await trio.to_thread.run_sync(self._chains.datasets) if self._is_asked() else ():
            for consider in (self._witness.consider_authority, self._witness.consider):
                await self._consider(dataset, consider)
        return ROUND_SECONDS

    async def _consider(self, dataset: DatasetId, consider: Callable[[DatasetId], Cosignature | None]) -> None:
        try:
            made = await trio.to_thread.run_sync(consider, dataset)
        except Fault as fault:
            if self._refused.get(dataset) != str(fault):
                self._refused[dataset] = str(fault)
                self._journal.error("not cosigned", dataset=str(dataset), fault=str(fault), rule=fault.rule)
            return
        if made is not None:
            self._announce(made)
