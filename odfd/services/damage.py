"""What becomes known to be damaged here: noted, relied on no longer, told, and mended where a mirror mends itself.

Called from worker threads by whoever finds it. Telling is the wiring's, which knows the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chain.ids import DatasetId
from odfd.kit.clock import Clock
from odfd.services.home import Home
from odfd.trust.ledger import Checked, Ledger
from odfd.verify.damage import Damage, Spot


class DamageDesk:
    """See the module."""

    def __init__(self, home: Home, clock: Clock, told: Callable[[DatasetId, Spot], None]) -> None:
        """``told`` hears of each place once, until the dataset was whole again."""
        self._home = home
        self._clock = clock
        self._told = told

    def found(self, dataset: DatasetId, spots: Sequence[Spot]) -> None:
        """Blocks from the first of ``spots`` on are not relied on until they are whole again."""
        with self._home.database.read() as connection:
            known = set(Damage(connection).of(dataset))
        if known.issuperset(spots):
            return
        first = min(spot.sequence for spot in spots)
        with self._home.database.write() as connection:
            is_news = Damage(connection).note(dataset, spots, self._clock.now())
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            if checked.data > first:
                ledger.keep_chain(dataset, Checked(checked.frontier, first, checked.epoch))
        if is_news:
            self._told(dataset, next(spot for spot in spots if spot not in known))

    def whole(self, dataset: DatasetId, blocks: int) -> None:
        """Everything about the first ``blocks`` was found in order just now."""
        with self._home.database.read() as connection:
            if not Damage(connection).of(dataset):
                return
        with self._home.database.write() as connection:
            Damage(connection).forget(dataset)
            ledger = Ledger(connection)
            checked = ledger.chain(dataset)
            data = max(checked.data, min(blocks, checked.frontier.size))
            ledger.keep_chain(dataset, Checked(checked.frontier, data, checked.epoch))
