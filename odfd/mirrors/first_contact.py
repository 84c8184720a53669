"""Decides which first head of a dataset to take: by a known hash, witnesses, peers of three networks, or as it comes.

In the first two cases an eclipse attack delays and cannot deceive: the chain must hold the block, or the head that is
taken first must be one that the quorum cosigned. Else what is seen first is taken; where peers of three networks show
the same, an attacker must hold addresses in each, and else it is shown as unwitnessed. Calls are synchronous, on the
connection they are given. Spec: docs/spec/trust.md#first-contact.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from chain.ids import DatasetId
from chain.instant import Instant
from chain.statements.statement import HeadStatement
from chain.wording import plural
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.trust.ledger.cosignatures import Cosignatures
from odfd.trust.ledger.signed_heads import signed_heads
from odfd.trust.ledger.tables import MET
from odfd.trust.policy.witness_quorum import Witnesses, behind

EXPECTED: Final = "expected"
WITNESSED: Final = "witnessed"
NETWORKS: Final = "networks"
FIRST_SIGHT: Final = "first-sight"
ENOUGH: Final = 3
"""Networks, blocks of addresses that one operator may hold all of (``p2p.address.network_of``)."""


class FirstContact:
    """The rules of first contact, over the database of one node.

    ``witnesses`` are asked for each time, so that a reload counts at once.
    """

    def __init__(self, witnesses: Callable[[], Witnesses], clock: Callable[[], Instant]) -> None:
        self._witnesses = witnesses
        self._clock = clock

    def rung(self, spec: MirrorSpec) -> str:
        """The one on which it will be met, or a higher one than ``FIRST_SIGHT`` if enough networks show the same."""
        if spec.expect is not None:
            return EXPECTED
        return WITNESSED if self._witnesses().quorum else FIRST_SIGHT

    def head(self, connection: sqlite3.Connection, dataset: DatasetId, epoch: int) -> HeadStatement | str:
        """The newest head of an epoch with a quorum behind it; in words what is lacking when there is none."""
        witnesses, now = self._witnesses(), self._clock()
        made, most = Cosignatures(connection).of(dataset), 0
        for head, _ in signed_heads(connection, dataset):
            count = behind(witnesses, head, made, now) if head.epoch == epoch else 0
            if count >= witnesses.quorum:
                return head
            most = max(most, count)
        return f"{plural(witnesses.quorum, 'witness', 'witnesses')} must have cosigned a head of it, and {most} did"

    def keep(self, connection: sqlite3.Connection, spec: MirrorSpec, networks: int) -> None:
        """It was met, and peers of so many networks showed the same chain."""
        rung = self.rung(spec)
        met = NETWORKS if rung == FIRST_SIGHT and networks >= ENOUGH else rung
        MET.put(connection, spec.id, met, self._clock())


def rung_of(connection: sqlite3.Connection, dataset: DatasetId) -> str | None:
    """On which rung it was met; ``None`` for one's own and for those that came in a folder."""
    row = MET.one(connection, "dataset = ?", (dataset,))
    return None if row is None else str(row[1])
