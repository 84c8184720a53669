"""Whose nodes publish a dataset: its writers, and the node that the newest head names."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, Epoch, HeadStatement, Roots, TreeHead, Writer
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import STEPS, Ledger
from odfd.store.ledger.signed_heads import publishing_keys
from worlds import statements

OWNER, WRITER, HOME, AWAY = (statements.key(number) for number in range(1, 5))


@pytest.fixture
def ledger() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for step in STEPS:
            connection.executescript(step)
        yield connection


def say(connection: sqlite3.Connection, late: int, node: KeyDid | None) -> None:
    raw = statements.head(OWNER, late=late, node=node)
    signed = envelope.unseal(raw, HeadStatement.MAX_ENVELOPE)
    Ledger(connection).record(signed, OWNER.did, "renewed", "", statements.NOW, live=True)


def known(connection: sqlite3.Connection) -> frozenset[KeyDid]:
    return publishing_keys(connection, OWNER.dataset_id)


def test_the_newest_head_names_the_node_and_takes_the_name_back(ledger: sqlite3.Connection) -> None:
    assert known(ledger) == frozenset()
    for late, node in enumerate([HOME.did, AWAY.did, None]):
        say(ledger, late, node)
        assert known(ledger) == {*([node] if node else [])}


def test_a_key_that_may_write_no_more_names_nobody(ledger: sqlite3.Connection) -> None:
    say(ledger, 0, HOME.did)
    tree = TreeHead(size=8, root_hash=b"r" * 32)
    said = Authority(
        dataset=OWNER.dataset_id, version=1, issued_at=statement.when(statements.NOW),
        roots=Roots(threshold=1, keys=(OWNER.did,)), head=Multihash.sha3_256(b"seed"),
        writers=(Writer(key=WRITER.did, expires_at=statements.UNTIL),),
        epochs=(Epoch(number=1, reason="rotation", base=tree, last=tree),),
    )  # fmt: skip
    sealed = envelope.seal(statement.encode(said), OWNER)
    Authorities(ledger).keep(said, envelope.unseal(sealed, Authority.MAX_ENVELOPE))
    assert known(ledger) == {WRITER.did}


def test_a_head_that_names_no_key_is_refused() -> None:
    """Whatever stands there: a name is a key, in one of its spellings, or there is none."""
    said = statement.decode(envelope.unseal(statements.head(OWNER, node=HOME.did), 4096).payload)
    payload = canonical.decode(statement.encode(said))
    for wrong in ("", "did:web:example.org", 7, [str(HOME.did)], "did:key:z6Mk"):
        payload["predicate"]["node"] = wrong  # type: ignore[index]
        with pytest.raises(Invalid):
            statement.decode(canonical.encode(payload))


@given(st.none() | st.binary(min_size=32, max_size=32).map(lambda seed: SigningKey(seed).did), st.integers(1, 1 << 50))
def test_heads_come_back_with_the_node_that_they_name(node: KeyDid | None, size: int) -> None:
    raw = statements.head(OWNER, size, node=node)
    signed = envelope.unseal(raw, HeadStatement.MAX_ENVELOPE)
    said = statement.decode(signed.payload)
    assert isinstance(said, HeadStatement)
    assert (said.node, said.size, statement.encode(said)) == (node, size, signed.payload)
