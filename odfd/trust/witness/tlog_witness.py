"""Answers ``add-checkpoint`` requests, which makes this node a public witness of the logs that it attends.

The authority of a dataset identifies its log: present writers may sign its checkpoints, in the present epoch. All other
rules are those of tlog-witness. Called from any thread. Spec: c2sp.org/tlog-witness; docs/spec/trust.md#witnesses; ADR
16.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.statements import submission
from chain.statements.cosignature import Cosignature
from chain.statements.submission import Submission
from chain.store.database import Database
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.proofs import is_disputed
from odfd.trust.witness.witness import ConsistencyResult, CosignDeclined, Witness
from p2p.budget.buckets import Budget, Rate
from p2p.web.client import HttpAnswer

RATE: Final = Rate(per_second=10.0, burst=100.0)
"""Requests of all logs together; each that advances a log is a write to disk."""
_STATUS: Final = {ConsistencyResult.SMALLER: 400, ConsistencyResult.UNPROVEN: 422}


class TlogWitness:
    """The public witness of one node. ``attended``: returns the datasets to cosign;
    ``cosigned`` is called with cosignatures."""

    def __init__(
        self,
        database: Database,
        keys: KeyStore,
        witness: Witness,
        attended: Callable[[], Collection[DatasetId]],
        clock: Callable[[], Instant],
        cosigned: Callable[[Cosignature], None],
    ) -> None:
        self._database, self._keys, self._witness = database, keys, witness
        self._attended = attended
        self._clock = clock
        self._cosigned = cosigned
        self._budget = Budget[None](RATE)
        self._turn = threading.Lock()

    def add_checkpoint(self, body: bytes) -> HttpAnswer:
        """Answers a request. Raises Environment."""
        with self._turn:
            granted = self._budget.spend(None, self._clock() / SECOND)
        if not granted:
            return _answer(429, "too many requests: later")
        try:
            read = submission.decode(body)
        except Invalid as fault:
            # Checkpoints of logs that are no datasets have other names and formats.
            return _answer(404 if fault.rule == "checkpoint-origin" else 400, fault.message)
        denied = self._check_signers(read)
        if denied is not None:
            return denied
        try:
            made = self._witness.submitted(read, body)
        except Refused as fault:
            return _answer(403, fault.message)
        if isinstance(made, CosignDeclined):
            if made.ruling is ConsistencyResult.CONFLICT:
                # tlog-witness: the body is the size cosigned last, from which the log proves anew.
                return HttpAnswer(409, f"{made.last}\n".encode())
            return _answer(_STATUS[made.ruling], "the proof does not join this tree to the last one cosigned")
        if made.is_new:
            self._cosigned(made.made)
        return HttpAnswer(200, made.made.line.encode())

    def _check_signers(self, read: Submission) -> HttpAnswer | None:
        """Returns a refusal if the log is not known or no present writer signed, before anything is compared."""
        tree, now = read.tree, self._clock()
        if tree.dataset not in self._attended() or self._keys.has_dataset_key(tree.dataset):
            return _answer(404, "unknown log")
        with self._database.read() as connection:
            rights = Authorities(connection).rights(tree.dataset)
            disputed = is_disputed(connection, tree.dataset, rights)
        # A writer that was removed still signs in its closed epoch (test_only_who_may_write_is_heard).
        if tree.epoch != rights.epoch:
            return _answer(404, f"unknown log: the epoch is {rights.epoch}")
        if disputed:
            return _answer(403, "who may write is disputed")
        writers = [submission.log_key(tree, key.public_key) for key in rights.writers if rights.may_write(key, now)]
        claims = [(line, key) for line in read.lines for key in writers if submission.is_by(line, key)]
        if not claims or not all(submission.is_signed_by(tree, line, key) for line, key in claims):
            return _answer(403, "not signed by a writer of this dataset")
        return None


def _answer(status: int, why: str) -> HttpAnswer:
    return HttpAnswer(status, f"{why}\n".encode())
