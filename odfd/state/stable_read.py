"""Detects that a dataset changed while it was verified, so that damage is recorded only if it is still there.

Appends change nothing of what is looked at, which ends at the head that there was (``verify_chain``). A reset, a
compaction, a mirror that turns, mending, deletion and a mirror that lets data go do: blocks of two histories do not fit
together, and objects of the old one are collected. So the conditions under which it looked are compared with those
afterwards, and damage is recorded only in a transaction in which they are still the same. Functions; synchronous.
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from chain.errors import NotFound
from chain.ids import DatasetId
from chain.store.sqlite import snapshot_of
from odfd.datasets.holdings import Holdings
from odfd.mirrors import mirror_spec as mirror_specs
from odfd.resources.store import Resources
from odfd.state.directory import StateDirectory
from odfd.trust.ledger.log import Ledger
from odfd.verify.damage import Damage
from odfd.verify.report import OnProgress, VerificationRequest, VerificationResult
from odfd.verify.resume import Memory
from odfd.verify.verify import verify_chain

ATTEMPTS: Final = 3
"""Looks at a dataset that changes under each of them; who looks again then keeps its writers waiting."""
_ALL: Final = 1 << 62
"""Later than any block."""


class ReadConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be so, during a look at a dataset, for what it finds to be true of it."""

    history: tuple[int, int]
    """As in ``chain.store.base.Snapshot``."""
    held_from: int
    """Objects of blocks from here on are to be here."""
    held_until: int
    """Those of later ones are on their way: a mirror was asked for its data after its blocks had come."""

    def hold(self, now: ReadConditions | None) -> bool:
        """Whether they held from the look that began under them until ``now``."""
        return (
            now is not None
            and (now.history, now.held_from) == (self.history, self.held_from)
            and now.held_until >= self.held_until
        )


def conditions(connection: sqlite3.Connection, dataset: DatasetId) -> ReadConditions | None:
    """As of a connection's transaction; ``None`` without blocks. Raises BlockDamaged."""
    snapshot = snapshot_of(connection, dataset)
    if snapshot is None:
        return None
    first = Holdings(connection).extent(dataset).first
    checked = Ledger(connection).chain(dataset)
    is_mirror = mirror_specs.of(Resources(connection), dataset) is not None
    is_filled = is_mirror and checked.frontier.size == snapshot.head.size and not Damage(connection).of(dataset)
    return ReadConditions(history=snapshot.history, held_from=first, held_until=checked.data if is_filled else _ALL)


def look(
    home: StateDirectory,
    dataset: DatasetId,
    request: VerificationRequest,
    progress: OnProgress | None = None,
    memory: Memory | None = None,
) -> tuple[VerificationResult, ReadConditions] | None:
    """What ``request`` finds, with how much of the data is to be here, and under which conditions.

    ``None`` when something was found wrong and they changed meanwhile: it may be looked at again. Raises NotFound when
    there is no chain or no block ``start``, Environment.
    """
    before = _now(home, dataset)
    if before is None:
        raise NotFound(f"{request.ref} has no blocks", rule="chain-empty")
    request = msgspec.structs.replace(request, held_from=before.held_from, held_until=before.held_until)
    found = verify_chain(home.chains.chain(dataset), home.objects, request, progress, memory)
    if found.ok or before.hold(_now(home, dataset)):
        return found, before
    return None


def _now(home: StateDirectory, dataset: DatasetId) -> ReadConditions | None:
    with home.database.read() as connection:
        return conditions(connection, dataset)
