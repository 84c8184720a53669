"""Registers damage: records damaged blocks and objects, stops relying on them, and reports them for mirrors to refetch.

Called from worker threads. A finding of a verification is recorded only if the dataset did not change meanwhile.
Appends do not matter, as a check ends at the head that it found (``verify_chain``). A reset, a compaction, a mirror
that turns, a repair, a deletion and a mirror that drops data do. So the conditions before the check are compared with
those after it, and damage is recorded only in a transaction in which they are still the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.store.sqlite import snapshot_of
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock
from odfd.services.node_events import DamageFound, SliceDamaged
from odfd.store import mirror_specs
from odfd.store.damage import Damage, DamagedBlock
from odfd.store.directory import StateDirectory
from odfd.store.holdings import Holdings
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.resume import Memory
from odfd.verify.report import OnProgress, VerificationRequest, VerificationResult
from odfd.verify.verify import verify_chain


class DamageRegistry:
    """The known damage to the datasets of one node."""

    def __init__(self, home: StateDirectory, clock: Clock, bus: Bus) -> None:
        """Publishes ``DamageFound`` once for each place, until the dataset is intact again."""
        self._home, self._clock, self._bus = home, clock, bus
        bus.subscribe(lambda each: self.record(each.dataset, [each.spot]), SliceDamaged)

    def record(self, dataset: DatasetId, spots: Sequence[DamagedBlock], seen: ReadConditions | None = None) -> bool:
        """Records damage: blocks from the first of ``spots`` on are not relied on until they are intact again.

        ``seen``: the conditions during the check; ``None``: each of ``spots`` is a block or an object whose own bytes
        were hashed. Returns whether the conditions still hold; if not, nothing is recorded.
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
            # The damaged data may have been given up, or dropped, since it was read.
            first, size = Holdings(connection).extent(dataset).first, checked.frontier.size
            there = spots if seen is not None else [spot for spot in spots if first <= spot.sequence < size]
            if not there:
                return False
            first = min(spot.sequence for spot in there)
            is_news = Damage(connection).note(dataset, there, self._clock.now())
            if checked.data > first:
                ledger.keep_chain(dataset, CheckedChain(checked.frontier, first, checked.epoch))
        if is_news:
            self._bus.publish(DamageFound(dataset, next(spot for spot in there if spot not in known)))
        return True

    def whole(self, dataset: DatasetId, blocks: int, seen: ReadConditions) -> None:
        """Records that a check found the first ``blocks`` and their data undamaged under the conditions ``seen``."""
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


ATTEMPTS: Final = 3
"""Checks of a dataset that changes during each; a later caller then keeps its writers waiting."""
_ALL: Final = 1 << 62
"""Number later than any block."""


class ReadConditions(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions during a check of a dataset that its findings depend on."""

    history: tuple[int, int]
    """History of the chain, as in ``chain.store.base.Snapshot``."""
    held_from: int
    """First block whose objects, and those of later blocks, must be here."""
    held_until: int
    """Block from which on objects are still on their way, as a mirror fetches data after blocks."""

    def hold(self, now: ReadConditions | None) -> bool:
        """Whether the conditions of the check still hold in ``now``."""
        return (
            now is not None
            and (now.history, now.held_from) == (self.history, self.held_from)
            and now.held_until >= self.held_until
        )


def conditions(connection: sqlite3.Connection, dataset: DatasetId) -> ReadConditions | None:
    """Reads the conditions in a connection's transaction; ``None`` without blocks. Raises BlockDamaged."""
    snapshot = snapshot_of(connection, dataset)
    if snapshot is None:
        return None
    first = Holdings(connection).extent(dataset).first
    checked = Ledger(connection).chain(dataset)
    is_mirror = mirror_specs.of(connection, dataset) is not None
    is_filled = is_mirror and checked.frontier.size == snapshot.head.size and not Damage(connection).of(dataset)
    return ReadConditions(history=snapshot.history, held_from=first, held_until=checked.data if is_filled else _ALL)


def look(
    home: StateDirectory,
    dataset: DatasetId,
    request: VerificationRequest,
    progress: OnProgress | None = None,
    memory: Memory | None = None,
) -> tuple[VerificationResult, ReadConditions] | None:
    """Checks a dataset as ``request`` says, but for the data that must be here; returns findings and conditions.

    Returns ``None`` when something was wrong and the conditions changed meanwhile: then check again. Raises NotFound
    when there is no chain or no block ``start``, Environment.
    """
    before = _now(home, dataset)
    if before is None:
        raise NotFound(f"{request.ref} has no blocks here", rule="chain-empty", hint=f"odfctl pull {request.ref}")
    request = msgspec.structs.replace(request, held_from=before.held_from, held_until=before.held_until)
    found = verify_chain(home.chains.chain(dataset), home.objects, request, progress, memory)
    if found.ok or before.hold(_now(home, dataset)):
        return found, before
    return None


def _now(home: StateDirectory, dataset: DatasetId) -> ReadConditions | None:
    with home.database.read() as connection:
        return conditions(connection, dataset)
