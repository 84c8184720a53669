"""Registers damage: notes damaged blocks and objects, stops relying on them, and reports them so that mirrors refetch.

Called from worker threads. The node's wiring reports damage, because that needs the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chain.ids import DatasetId
from odfd.datasets.holdings import Holdings
from odfd.runtime.clock import Clock
from odfd.state.directory import StateDirectory
from odfd.state.stable_read import ReadConditions, conditions
from odfd.trust.ledger.log import CheckedChain, Ledger
from odfd.verify.damage import Damage, DamagedBlock


class DamageRegistry:
    """The known damage to the datasets of one node."""

    def __init__(self, home: StateDirectory, clock: Clock, told: Callable[[DatasetId, DamagedBlock], None]) -> None:
        """``told`` hears of each place once, until the dataset was whole again."""
        self._home = home
        self._clock = clock
        self._told = told

    def found(self, dataset: DatasetId, spots: Sequence[DamagedBlock], seen: ReadConditions | None = None) -> bool:
        """Blocks from the first of ``spots`` on are not relied on until they are whole again.

        ``seen``: the conditions under which somebody looked; ``None``: each of ``spots`` is a block or an object whose
        own bytes were hashed. Whether they still hold: else nothing is noted.
        """
        with self._home.database.read() as connection:
            known = set(Damage(connection).of(dataset))
        if known.issuperset(spots):
            return True
        with self._home.database.write() as connection:
            if seen is not None and not seen.hold(conditions(connection, dataset)):
                return False
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            # What is given away may have been given up, or let go, since it was read.
            first, size = Holdings(connection).extent(dataset).first, checked.frontier.size
            there = spots if seen is not None else [spot for spot in spots if first <= spot.sequence < size]
            if not there:
                return False
            first = min(spot.sequence for spot in there)
            is_news = Damage(connection).note(dataset, there, self._clock.now())
            if checked.data > first:
                ledger.keep_chain(dataset, CheckedChain(checked.frontier, first, checked.epoch))
        if is_news:
            self._told(dataset, next(spot for spot in there if spot not in known))
        return True

    def whole(self, dataset: DatasetId, blocks: int, seen: ReadConditions) -> None:
        """Everything about the first ``blocks`` that is to be here was found in order under the conditions ``seen``."""
        with self._home.database.read() as connection:
            if not Damage(connection).of(dataset):
                return
        with self._home.database.write() as connection:
            if not seen.hold(conditions(connection, dataset)):
                return
            Damage(connection).forget_earlier(dataset, blocks)
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            left = min((spot.sequence for spot in Damage(connection).of(dataset)), default=checked.frontier.size)
            data = max(checked.data, min(blocks, checked.frontier.size, left))
            ledger.keep_chain(dataset, CheckedChain(checked.frontier, data, checked.epoch))
