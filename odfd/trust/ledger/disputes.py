"""Tells whether the authority of a dataset is disputed. Calls are synchronous, on the connection they are given."""

from __future__ import annotations

import sqlite3

from chain.ids import DatasetId
from chain.statements.authority import Rights
from chain.statements.proof import AUTHORITY_FORK
from odfd.trust.ledger.proofs import Proofs
from odfd.trust.ledger.resolutions import Resolutions


def is_disputed(connection: sqlite3.Connection, dataset: DatasetId, rights: Rights) -> bool:
    """Whether another statement of this version is known, and no person said to follow this one."""
    if not Proofs(connection).has(dataset, AUTHORITY_FORK, rights.version):
        return False
    return Resolutions(connection).of(dataset).version(rights.version) != rights.sid
