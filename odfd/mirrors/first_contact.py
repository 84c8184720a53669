"""Decides which first head of a dataset to accept: by a known hash, witnesses, peers of three networks, or as it comes.

In the first two cases an eclipse attack can delay but not deceive: the chain must contain the block, or the head
accepted first must be one that the quorum cosigned. Otherwise the first head seen is accepted. If peers of three
networks show the same, an attacker needs addresses in each of them; if not, the dataset is shown as unwitnessed. Calls
are synchronous, on the connection they are given. Spec: docs/spec/trust.md#first-contact.

Signed heads that broke a rule are remembered in memory, so that their blocks are not fetched again and again. The same
tree would break the same rule, so it is not checked again. A later head in the same epoch probably contains the wrong
block too: the first such head is checked, and then others after pauses that double, however fast the publisher signs.
Another epoch, or other terms of the mirror, are checked at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import FIFOCache

from chain.backoff import Backoff
from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.statement import HeadStatement
from chain.wording import plural
from odfd.policy.witness_quorum import Witnesses, behind
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.signed_heads import signed_heads
from odfd.store.ledger.tables import MET
from odfd.store.mirror_specs import MirrorSpec

EXPECTED: Final = "expected"
WITNESSED: Final = "witnessed"
NETWORKS: Final = "networks"
FIRST_SIGHT: Final = "first-sight"
ENOUGH: Final = 3
"""Networks that must show the same: blocks of addresses that one operator may hold entirely
(``p2p.address.network_of``)."""


class FirstContact:
    """The rules of first contact of one node. ``witnesses`` is called each time, so a reload applies at once."""

    def __init__(self, witnesses: Callable[[], Witnesses], clock: Callable[[], Instant]) -> None:
        self._witnesses = witnesses
        self.clock = clock

    def rung(self, spec: MirrorSpec) -> str:
        """Returns how the dataset will be met; ``FIRST_SIGHT`` becomes a higher rung if enough networks show the
        same."""
        if spec.expect is not None:
            return EXPECTED
        return WITNESSED if self._witnesses().quorum else FIRST_SIGHT

    def head(self, connection: sqlite3.Connection, dataset: DatasetId, epoch: int) -> HeadStatement | str:
        """Returns the newest head of an epoch with a quorum behind it, or a text about what is missing."""
        witnesses, now = self._witnesses(), self.clock()
        made, most = Cosignatures(connection).of(dataset), 0
        for head, _ in signed_heads(connection, dataset):
            count = behind(witnesses, head, made, now) if head.epoch == epoch else 0
            if count >= witnesses.quorum:
                return head
            most = max(most, count)
        return f"{plural(witnesses.quorum, 'witness', 'witnesses')} must have cosigned a head of it, and {most} did"

    def keep(self, connection: sqlite3.Connection, spec: MirrorSpec, networks: int) -> None:
        """Records first contact, and in how many networks peers showed the same chain."""
        rung = self.rung(spec)
        met = NETWORKS if rung == FIRST_SIGHT and networks >= ENOUGH else rung
        MET.put(connection, spec.id, met, self.clock())


def rung_of(connection: sqlite3.Connection, dataset: DatasetId) -> str | None:
    """Returns how a dataset was first verified; ``None`` for own and imported ones."""
    row = MET.one(connection, "dataset = ?", (dataset,))
    return None if row is None else str(row[1])


PAUSES: Final = Backoff(first=60.0, most=86400.0)
"""Pauses before another head of an epoch is checked, from the second refusal on."""
MOST: Final = 4096


class _Refusal(msgspec.Struct, frozen=True):
    spec: MirrorSpec
    epoch: int
    root: bytes
    fault: Fault
    until: float
    times: int


class DeclinedHeads:
    """Remembers the declined heads of one node. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._of: FIFOCache[DatasetId, _Refusal] = FIFOCache(MOST)

    def note(self, spec: MirrorSpec, head: HeadStatement, fault: Fault, now: float) -> None:
        """Notes that a signed head breaks a rule, or a limit of this mirror."""
        before = self._refuse_known(spec, head)
        times = 1 if before is None else before.times + 1
        until = now + (PAUSES.whole(times - 1) if times > 1 else 0.0)
        self._of[spec.id] = _Refusal(spec, head.epoch, head.root_hash, fault, until, times)

    def why(self, spec: MirrorSpec, head: HeadStatement, now: float) -> Fault | None:
        """Returns why a head is not to be checked now; ``None`` if it is."""
        known = self._refuse_known(spec, head)
        rests = known is not None and (head.root_hash == known.root or now < known.until)
        return known.fault if known is not None and rests else None

    def forget(self, dataset: DatasetId) -> None:
        """Drops the note, because the signed head is here and broke no rule."""
        self._of.pop(dataset, None)

    def _refuse_known(self, spec: MirrorSpec, head: HeadStatement) -> _Refusal | None:
        known = self._of.get(spec.id)
        return known if known is not None and (known.spec, known.epoch) == (spec, head.epoch) else None
