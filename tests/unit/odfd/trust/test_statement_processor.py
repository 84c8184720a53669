"""What it costs to hear of what is known: peers repeat old heads at will."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing

import pytest

from chain import instant
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.tree import GROUP, Frontier
from odfd.store.ledger.log import STEPS, CheckedChain, Ledger
from odfd.trust.admission.rules import AdmissionOutcome
from odfd.trust.admission.statement_processor import StatementProcessor

NOW = instant.parse("2026-11-20T08:00:00Z")
OWNER = SigningKey(b"o" * 32)
LENGTH = 50_000
LEAVES = [hashlib.sha3_256(str(at).encode()).digest() for at in range(LENGTH)]


def head_of(leaves: list[bytes]) -> tuple[HeadStatement, Signed]:
    tree = Frontier().extend(leaves)
    said = HeadStatement(
        dataset=OWNER.dataset_id,
        epoch=0,
        size=tree.size,
        root_hash=tree.root,
        authority=0,
        issued_at=statement.when(NOW),
        expires_at="2026-11-27T08:00:00Z",
        head=Multihash.from_digest(0x16, leaves[-1]),
    )
    return said, envelope.unseal(envelope.seal(statement.encode(said), OWNER), 4096)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, GROUP, 33_333, LENGTH - 1])
def test_an_old_head_is_compared_without_a_walk(size: int) -> None:
    read = 0

    def leaves_of(_: DatasetId, start: int, stop: int) -> list[bytes]:
        nonlocal read
        read += stop - start
        return LEAVES[start:stop]

    with closing(sqlite3.connect(":memory:")) as connection:
        for step in STEPS:
            connection.executescript(step)
        groups: list[bytes] = []
        tree = Frontier().extend(LEAVES, groups)
        Ledger(connection).grow(OWNER.dataset_id, Frontier(), CheckedChain(tree, tree.size), groups)
        hearing = StatementProcessor(connection, leaves_of, "", NOW)
        assert hearing.hear(*head_of(LEAVES)).outcome is AdmissionOutcome.ADVANCE
        assert hearing.hear(*head_of(LEAVES[:size])).outcome is AdmissionOutcome.OLDER
        assert read <= 2 * GROUP
        forged = hearing.hear(*head_of([*LEAVES[: size - 1], bytes(32)]))
        assert forged.outcome is AdmissionOutcome.FORK, "and yet by all that is here"
        assert forged.proof is not None
        assert forged.proof.index == size - 1
        assert read <= 12 * GROUP
