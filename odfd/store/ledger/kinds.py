"""Lists in which table signed statements of each kind are kept and for how long, and finds any of them by its id.

Cosignatures and proofs are listed too: they are no statements of ``chain.statements.statement``, but nodes pass them on
as well. Calls are synchronous, on the connection they are given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.proof import DOUBLE_COSIGN, DOUBLE_VOTE
from chain.statements.statement import ATTESTATION, AUTHORITY, CARD, HEAD, NODE_CARD, OBSERVATION, POLICY
from chain.store.seals import Sealed
from odfd.store.ledger.tables import AUTHORITIES, CARDS, COSIGNATURES, LIVE, NODE_CARDS, OBSERVED, PROOFS, RULES

COSIGNATURE: Final = "cosignature"
PROOF: Final = "proof"
MAX_ACCUSING: Final = 64
"""Proofs against one key that are returned when it is asked for."""


class StatementTable(NamedTuple):
    """A table in which each row is a signed statement. Its first column names the subject."""

    sealed: Sealed
    kinds: tuple[str, ...]
    """The kinds of statements in it; if there are several, the row's column ``type`` says which."""
    passes: bool = False
    """Whether a log entry that is no longer in the table may be pruned some time after its signer's next statement."""
    of_dataset: bool = True
    """Whether the subject is a dataset. Its statements are passed on if it is public,
    and make the dataset a known one."""
    makes_room: bool = True
    """Whether rows about datasets that are not held here are deleted when others need the room."""
    id: str = "sid"
    body: str = "envelope"

    @property
    def name(self) -> str:
        return self.sealed.table

    @property
    def subject(self) -> str:
        return self.sealed.columns[0]


TABLES: Final = (
    StatementTable(LIVE, (HEAD, ATTESTATION), passes=True),
    StatementTable(AUTHORITIES, (AUTHORITY,)),
    StatementTable(PROOFS, (PROOF,), makes_room=False, id="id", body="body"),
    StatementTable(COSIGNATURES, (COSIGNATURE,), makes_room=False, id="id", body="body"),
    StatementTable(OBSERVED, (OBSERVATION,), passes=True),
    StatementTable(CARDS, (CARD,), passes=True),
    StatementTable(RULES, (POLICY,), passes=True, of_dataset=False, makes_room=False),
    StatementTable(NODE_CARDS, (NODE_CARD,), passes=True, of_dataset=False, makes_room=False),
)
SAID: Final = tuple(each.name for each in TABLES if each.makes_room)
"""Tables of statements about one dataset, held or not."""
_SUBJECT: Final = " UNION ALL ".join(
    f"SELECT dataset FROM {each.name} WHERE {each.id} = ?1"  # noqa: S608
    for each in TABLES
    if each.of_dataset
)


def refs(
    connection: sqlite3.Connection, *, of_dataset: bool, subjects: Iterable[DatasetId] | None = None
) -> list[tuple[DatasetId, Multihash]]:
    """Lists subjects and ids of kept statements: either those about datasets, or the others.

    ``subjects``: only of these, which costs nothing for statements about others; ``None``: of all.
    """
    wanted = None if subjects is None else [(subject,) for subject in dict.fromkeys(subjects)]
    found: list[tuple[DatasetId, Multihash]] = []
    for each in TABLES:
        if each.of_dataset is of_dataset:
            query = f"SELECT {each.subject}, {each.id} FROM {each.name}"  # noqa: S608
            one = f"{query} WHERE {each.subject} = ?"
            rows = (
                connection.execute(query)
                if wanted is None
                else chain.from_iterable(connection.execute(one, subject) for subject in wanted)
            )
            found += ((DatasetId(subject), Multihash(sid)) for subject, sid in rows)
    return found


def accusing(connection: sqlite3.Connection, keys: Iterable[DatasetId]) -> list[tuple[DatasetId, DatasetId, Multihash]]:
    """Lists proofs that validators or witnesses contradicted themselves: the key, the dataset, and the id of each.

    ``keys`` are written like ids of datasets, as in questions. At most ``MAX_ACCUSING`` for each key: one is enough to
    stop counting it, until a person pardons that very one.
    """
    query = (
        "SELECT DISTINCT dataset, proof FROM trust_accused JOIN trust_proofs ON trust_proofs.id = proof"
        " WHERE key = ? AND trust_accused.kind IN (?, ?) AND dataset != key ORDER BY proof LIMIT ?"
    )
    return [
        (key, DatasetId(dataset), Multihash(name))
        for key in dict.fromkeys(keys)
        for dataset, name in connection.execute(query, (key, DOUBLE_VOTE, DOUBLE_COSIGN, MAX_ACCUSING))
    ]


def find(connection: sqlite3.Connection, sid: Multihash) -> tuple[str, bytes] | None:
    """Returns the kind and bytes of the statement kept under an id. Raises Environment if its row is damaged."""
    for each in TABLES:
        row = each.sealed.one(connection, f"{each.id} = ?", (sid,))
        if row is not None:
            values = dict(zip(each.sealed.columns, row, strict=True))
            return values.get("type", each.kinds[0]), bytes(values[each.body])
    return None


def subject_of(connection: sqlite3.Connection, sid: Multihash) -> DatasetId | None:
    """Returns the dataset that a live statement, a cosignature or a proof is about; ``None``: it is not here."""
    row = connection.execute(_SUBJECT, (sid,)).fetchone()
    return None if row is None else DatasetId(row[0])
