"""Stores which validator groups are suspended, since when and why, and which suspensions a person lifted.

``suspension_rules`` decides who is suspended; a suspension is stored, because only a person lifts it. Contradictions
over which a suspension was lifted never suspend again, others do. Calls are synchronous, on the connection they are
given. Spec: docs/spec/trust.md#suspension.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping

import msgspec

from chain.errors import Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.statements import canonical
from odfd.policy.policy import Policy
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.store.ledger.tables import PARDONS, STRIKES, SUSPENDED
from odfd.trust.judgement.suspension_rules import Strike


class Suspended(msgspec.Struct, frozen=True):
    """A suspended validator. ``at`` is ``None`` after a double vote, which counts from the proof on."""

    group: str
    reason: str
    at: Instant | None = None


class Suspensions:
    """Stores the suspensions of one node, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def since(self) -> dict[Strike, Instant]:
        """Returns when each present strike was first seen."""
        return {_strike(row): Instant(row[3]) for row in STRIKES.rows(self._db, "pardoned = 0")}

    def pardoned(self) -> frozenset[Strike]:
        return frozenset(map(_strike, STRIKES.rows(self._db, "pardoned = 1")))

    def remember(self, strikes: Mapping[Strike, Instant]) -> None:
        """Stores the present strikes; ended ones are dropped, and begin anew if they return."""
        known = self.since()
        for strike in known.keys() - strikes.keys():
            self._db.execute("DELETE FROM trust_strikes WHERE grp = ? AND dataset = ? AND block = ?", strike)
        for strike, at in strikes.items():
            if known.get(strike) != at:
                STRIKES.put(self._db, *strike, at, 0)

    def groups(self) -> frozenset[str]:
        """Returns the groups suspended for strikes."""
        return frozenset(row[0] for row in SUSPENDED.rows(self._db))

    def suspend(self, group: str, strikes: Collection[Strike], now: Instant) -> str:
        """Suspends a group; returns the reason, for people."""
        datasets = sorted({strike.dataset.short for strike in strikes})
        reason = f"contradicted by more than f others on equal machines, in {', '.join(datasets)}"
        SUSPENDED.put(self._db, group, now, reason)
        self._decide("suspend", group, reason, now)
        return reason

    def all(self, policy: Policy) -> list[Suspended]:
        """Lists all suspended groups with their reasons, leaving out keys of no listed group."""
        found = {row[0]: Suspended(row[0], row[2], Instant(row[1])) for row in SUSPENDED.rows(self._db)}
        for group, key, places in self._two_faced(policy):
            datasets = ", ".join(sorted({dataset.short for dataset, _ in places}))
            found[group] = Suspended(group, f"{key.short} signed two contradicting statements, of {datasets}")
        return [found[group] for group in sorted(found)]

    def lift(self, policy: Policy, group: str, now: Instant) -> Suspended:
        """Lifts a suspension by a person's decision. Raises Refused if the group is not suspended."""
        out = next((each for each in self.all(policy) if each.group == group), None)
        if out is None:
            raise Refused(
                f"the group {group!r} is not suspended", rule="validator-lift", hint="odfctl trust validator list"
            )
        self._db.execute("DELETE FROM trust_suspended WHERE grp = ?", (group,))
        for row in list(STRIKES.rows(self._db, "grp = ?", (group,))):
            STRIKES.put(self._db, *row[:4], 1)
        for whose, key, places in self._two_faced(policy):
            for dataset, epoch in places if whose == group else ():
                PARDONS.put(self._db, key, dataset, epoch, now)
        self._decide("lift", group, out.reason, now, policy)
        return out

    def _two_faced(self, policy: Policy) -> list[tuple[str, KeyDid, set[tuple[DatasetId, int]]]]:
        proofs = Proofs(self._db)
        keys = [(group.name, key) for group in policy.groups for key in sorted(group.keys)]
        found = [(group, key, proofs.double_votes(key)) for group, key in keys]
        return [each for each in found if each[2]]

    def _decide(self, what: str, group: str, reason: str, now: Instant, policy: Policy | None = None) -> None:
        decision: dict[str, canonical.Json] = {"decision": what, "group": group, "reason": reason}
        if policy is not None:
            decision["policy"] = str(policy.digest)
        Ledger(self._db).decide_on(canonical.encode(decision), now)


def _strike(row: tuple[object, ...]) -> Strike:
    group, dataset, block, *_ = row
    assert isinstance(group, str)
    assert isinstance(dataset, bytes)
    assert isinstance(block, int)
    return Strike(group, DatasetId(dataset), block)
