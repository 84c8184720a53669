"""Stores the known policies of a network, and which one a person accepted last.

All statements of the network's key from the accepted one on are kept, even two of one version: each tightens rules, so
the order and repetition of arrival change nothing. Calls are synchronous, on the connection they are given; the table
is the ledger's. Spec: docs/spec/trust.md#network-policy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from chain.errors import NotFound
from chain.ids import KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import statement
from chain.statements.envelope import Signed
from chain.statements.statement import POLICY, PolicyStatement, Rules
from odfd.policy.policy import Policy
from odfd.policy.policy_merge import accept_rules, in_force
from odfd.resources import records
from odfd.store.ledger.log import Ledger
from odfd.store.ledger.tables import RULES

KIND: Final = "accepted-policy"
"""Kind of the record that stores the network's key, and its statement that a person accepted."""
MAX_WAITING: Final = 64
"""Statements kept that came after a person accepted one."""


class AcceptedPolicy(msgspec.Struct, frozen=True):
    """One policy statement of a network."""

    said: PolicyStatement
    sid: Multihash


class NetworkPolicies:
    """Stores the network policies known to one node, over one SQLite connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def of(self, key: KeyDid) -> list[AcceptedPolicy]:
        """Lists policies by version, then by id."""
        found = []
        for _, _, sid, payload, _ in RULES.rows(self._db, "key = ? ORDER BY version, sid", (key,)):
            predicate = statement.decode_any(payload)
            assert isinstance(predicate, PolicyStatement)
            found.append(AcceptedPolicy(predicate, Multihash(sid)))
        return found

    def find_accepted(self, key: KeyDid) -> AcceptedPolicy | None:
        """Returns the policy that a person accepted last."""
        record = records.get(self._db, KIND, str(key))
        sid = None if record is None else Multihash.parse(msgspec.json.decode(record.body)["sid"])
        return next((each for each in self.of(key) if each.sid == sid), None)

    def later(self, key: KeyDid) -> list[AcceptedPolicy]:
        """Lists policies newer than the accepted one."""
        settled = self.find_accepted(key)
        least = 0 if settled is None else settled.said.version
        return [each for each in self.of(key) if each.said.version > least]

    def is_news(self, predicate: PolicyStatement, sid: Multihash) -> bool:
        settled, waiting = self.find_accepted(predicate.key), self.later(predicate.key)
        is_later = settled is None or predicate.version > settled.said.version
        return is_later and len(waiting) < MAX_WAITING and all(each.sid != sid for each in waiting)

    def keep(self, rules: PolicyStatement, signed: Signed, outcome: str, peer: str, now: Instant) -> None:
        """Keeps a policy that is news, and appends it to the log."""
        RULES.put(self._db, rules.key, rules.version, signed.sid, signed.payload, signed.envelope)
        Ledger(self._db).append((now, rules.dataset, rules.key, POLICY, signed.sid, signed.envelope, peer, outcome))

    def accept(self, policy: Policy, key: KeyDid, sid: Multihash, now: Instant) -> AcceptedPolicy:
        """Records that a person accepts a policy, which then applies to the node's own ``policy``.
        Raises NotFound, Invalid."""
        known = next((each for each in self.later(key) if each.sid == sid), None)
        if known is None:
            raise NotFound(
                f"no policy {sid.short} of the network waits", rule="network-policy", hint="odfctl trust policy show"
            )
        accept_rules(policy, known.said.policy)
        records.put(self._db, KIND, str(key), msgspec.json.encode({"sid": str(sid)}), now)
        self._db.execute(
            "DELETE FROM trust_rules WHERE key = ? AND sid != ? AND version <= ?", (key, sid, known.said.version)
        )
        return known

    def policy(self, own: Policy, key: KeyDid | None) -> Policy:
        """The policy in force: the node's own, tightened by the network's."""
        return own if key is None else in_force(own, *self.rules(key))

    def rules(self, key: KeyDid) -> tuple[Rules | None, Sequence[Rules]]:
        """Returns what a person accepted last, and later versions."""
        settled = self.find_accepted(key)
        return None if settled is None else settled.said.policy, [each.said.policy for each in self.later(key)]
