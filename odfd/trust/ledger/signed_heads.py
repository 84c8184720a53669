"""Reads the heads of a dataset that this node has admitted, newest first, from the log.

The live set keeps only the newest head, which may be of another history than ours; a proof of that needs one of ours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Final

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.statement import HEAD, HeadStatement

MAX_HEADS: Final = 1024
"""Heads looked at: years of one that is signed anew every other day."""


def signed_heads(connection: sqlite3.Connection, dataset: DatasetId) -> Iterator[tuple[HeadStatement, bytes]]:
    """Each head and its envelope."""
    rows = connection.execute(
        "SELECT body FROM trust_ledger WHERE dataset = ? AND type = ? ORDER BY seq DESC LIMIT ?",
        (dataset, HEAD, MAX_HEADS),
    )
    for (body,) in rows:
        said = statement.decode(envelope.unseal(body, HeadStatement.MAX_ENVELOPE).payload)
        if isinstance(said, HeadStatement):
            yield said, body


def newest_within(connection: sqlite3.Connection, dataset: DatasetId, epoch: int, size: int) -> Multihash | None:
    """Id of the newest head of an epoch that was admitted and says nothing beyond so many blocks."""
    rows = connection.execute(
        "SELECT body FROM trust_ledger WHERE dataset = ? AND type = ? AND outcome NOT IN ('fork', 'candidate')"
        " ORDER BY seq DESC LIMIT ?",
        (dataset, HEAD, MAX_HEADS),
    )
    for (body,) in rows:
        signed = envelope.unseal(body, HeadStatement.MAX_ENVELOPE)
        said = statement.decode(signed.payload)
        if isinstance(said, HeadStatement) and said.epoch == epoch and said.size <= size:
            return signed.sid
    return None
