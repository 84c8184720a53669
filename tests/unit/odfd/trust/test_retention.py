"""Retention: what leaves the log, what stays, links over gaps, and views that are the same whatever went."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, EngineUsed, HeadStatement, Span
from chain.statements.tree import Frontier
from chain.store.database import Database, open_database
from odfd.store.ledger import retention
from odfd.store.ledger.hash_links import GAP
from odfd.store.ledger.live_set import live_of, restore_live
from odfd.store.ledger.log import ROOM, STEPS, CheckedChain, Ledger
from odfd.store.ledger.retention import AFTERLIFE, SUPERSEDED, prune

ALICE, BOB = (SigningKey(bytes([number]) * 32) for number in (1, 2))
DATASET = ALICE.dataset_id
NOW = instant.parse("2026-11-20T08:00:00Z")
DAY = 24 * 3600 * instant.SECOND


def after(days: float) -> Instant:
    return Instant(NOW + int(days * DAY))


def head(size: int, key: SigningKey = ALICE, at: Instant = NOW) -> Signed:
    said = HeadStatement(
        dataset=DATASET,
        epoch=0,
        size=size,
        root_hash=b"r" * 32,
        authority=0,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + 7 * DAY)),
        head=Multihash.sha3_256(b"block %d" % size),
    )
    return envelope.unseal(envelope.seal(statement.encode(said), key), statement.MAX_ANY)


def attested(serial: int) -> Signed:
    said = Attestation(
        validator=BOB.did,
        dataset=DATASET,
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        serial=serial,
        previous=None,
        determinism="strict",
        finished_at=statement.when(NOW),
        engines=(EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64"),),
        spans=(Span(first=0, last=3, verdict="reproduced", state="genesis", engine=0),),
        head=Multihash.sha3_256(b"head"),
    )
    return envelope.unseal(envelope.seal(statement.encode(said), BOB), statement.MAX_ANY)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(ROOM, STEPS)
        yield opened


def say(database: Database, signed: Signed, at: Instant = NOW, outcome: str = "advance", *, live: bool = True) -> None:
    with database.write() as connection:
        Ledger(connection).record(signed, signed.signers[0], outcome, "peer", at, live=live)


def forget(database: Database, table: str = "trust_live") -> None:
    with database.write() as connection:
        connection.execute(f"DELETE FROM {table}")


def log(database: Database) -> list[tuple[str, bytes]]:
    """Types and ids, gaps without theirs; the links hold."""
    with database.read() as connection:
        Ledger(connection).check()
        rows = connection.execute("SELECT type, sid FROM trust_ledger ORDER BY seq").fetchall()
    return [(kind, b"" if kind == GAP else sid) for kind, sid in rows]


def kept(database: Database) -> list[bytes]:
    return [sid for kind, sid in log(database) if kind != GAP]


def test_superseded_heads_go_a_month_after_the_next_one(database: Database) -> None:
    heads = [head(size) for size in (1, 2, 3)]
    for day, each in zip((0, 50, 60), heads, strict=True):
        say(database, each, after(day))
    assert prune(database, after(80)) == 0
    assert prune(database, after(85), dry_run=True) == 1
    assert len(kept(database)) == 3
    assert prune(database, after(85)) == 1
    assert prune(database, after(85)) == 0
    assert log(database)[0] == (GAP, b"")
    assert kept(database) == [each.sid for each in heads[1:]]


def test_a_silent_signer_keeps_its_last_word(database: Database) -> None:
    say(database, head(2))
    say(database, head(3, BOB), after(1))
    say(database, attested(1), after(2))
    assert prune(database, after(3000)) == 0


def test_the_last_three_attestations_stay(database: Database) -> None:
    said = [attested(serial) for serial in range(1, 7)]
    for each in said:
        say(database, each, outcome="new")
    assert prune(database, NOW) == 3
    assert kept(database) == [each.sid for each in said[3:]]


def test_evidence_and_decisions_stay_with_what_they_rest_on(database: Database) -> None:
    rested, rival, newest = head(1), head(2), head(3)
    say(database, rested)
    say(database, rival, outcome="fork", live=False)
    with database.write() as connection:
        said = canonical.encode({"decision": "follow", "rests": [str(rested.sid)]})
        Ledger(connection).decide(DATASET, said, NOW)
    say(database, newest, after(1))
    say(database, head(4), after(2))
    assert prune(database, after(3000)) == 1
    assert newest.sid not in kept(database)
    assert {rested.sid, rival.sid} < set(kept(database))


def test_a_head_of_the_blocks_that_are_here_stays(database: Database) -> None:
    """Only larger ones came since, of a history that is not ours, maybe: a proof of that needs this one."""
    ours = head(4)
    for size in (3, 4, 5, 6, 7):
        say(database, head(size), after(size))
    with database.write() as connection:
        Ledger(connection).keep_chain(DATASET, CheckedChain(Frontier().extend([b"x" * 32] * 4)))
    assert prune(database, after(1000)) == 3
    assert kept(database) == [ours.sid, head(7).sid]


def test_a_dataset_that_nobody_speaks_of_is_forgotten_after_a_year(database: Database) -> None:
    say(database, head(1), outcome="fork", live=False)
    say(database, attested(1), after(1))
    forget(database)
    with database.write() as connection:
        other = DatasetId(SigningKey(b"o" * 32).dataset_id)
        Ledger(connection).decide(other, b"{}", after(500))
    assert prune(database, Instant(after(1) + AFTERLIFE)) == 0
    assert prune(database, Instant(after(1) + AFTERLIFE + 1)) == 2


def test_gaps_that_meet_are_one(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGE", 3)
    for size in range(1, 20):
        say(database, head(size), after(size))
    dropped = [prune(database, Instant(after(day) + SUPERSEDED)) for day in (4.5, 9.5, 100)]
    assert dropped == [3, 5, 10]
    assert log(database) == [(GAP, b""), (statement.HEAD, head(19).sid)]
    with database.read() as connection:
        (body,) = connection.execute("SELECT body FROM trust_ledger WHERE type = ?", (GAP,)).fetchone()
    assert b'"entries":18' in body
    say(database, head(20), after(200))
    assert len(log(database)) == 3


@pytest.mark.parametrize(
    "change",
    [
        *("body = CAST('{}' AS BLOB)", "hash = zeroblob(32)", "prev_hash = zeroblob(32)", "at = at + 1"),
        *("outcome = 'x'", "seq = seq - 1", "sid = zeroblob(32)", "type = 'head'"),
    ],
)
def test_a_flipped_bit_of_a_gap_is_told(database: Database, change: str) -> None:
    for size in (1, 2, 3, 4):
        say(database, head(size, BOB if size == 1 else ALICE), after(size))
    assert prune(database, after(100)) == 2
    with database.write() as connection:
        connection.execute(f"UPDATE trust_ledger SET {change} WHERE type = ?", (GAP,))
    with database.read() as connection, pytest.raises(Environment, match="was altered"):
        Ledger(connection).check()


def test_damage_is_not_dropped(database: Database) -> None:
    for size in (1, 2, 3):
        say(database, head(size))
    with database.write() as connection:
        connection.execute("UPDATE trust_ledger SET from_peer = 'x' WHERE seq = 2")
    with pytest.raises(Environment, match="entry 2"):
        prune(database, after(100))
    with database.read() as connection:
        assert connection.execute("SELECT COUNT(*) FROM trust_ledger").fetchone() == (3,)


@pytest.mark.parametrize("where", ["prune-cut", "prune-durable"])
def test_a_node_killed_while_it_prunes_loses_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(retention, "PAGE", 4)
    for size in range(1, 20):
        say(database, head(size), after(size))
    seen: list[str] = []

    def killed(name: str) -> None:
        seen.append(name)
        if seen.count(where) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(database, after(100), step=killed)
    assert len(kept(database)) == {"prune-cut": 15, "prune-durable": 11}[where]
    prune(database, after(100))
    assert kept(database) == [head(19).sid]


def test_a_live_row_that_was_lost_comes_back(database: Database) -> None:
    for size in (1, 2, 3):
        say(database, head(size))
    say(database, attested(1))
    with database.write() as connection:
        ledger = Ledger(connection)
        ledger.keep_chain(DATASET, CheckedChain(Frontier().extend([b"x" * 32])))
        before = sorted(ledger.live(DATASET))
        connection.execute("DELETE FROM trust_live")
        assert restore_live(connection) == 2
        assert sorted(ledger.live(DATASET)) == before
        assert restore_live(connection) == 0
        connection.execute("UPDATE trust_ledger SET body = zeroblob(9) WHERE seq = 1")
        with pytest.raises(Environment, match="entry 1"):
            restore_live(connection)


WORDS = st.tuples(
    st.sampled_from(["head", "attest", "follow", "fork", "candidate", "prune"]),
    st.integers(1, 6),
    st.sampled_from([ALICE, BOB]),
    st.integers(0, 40),
)


@pytest.mark.slow
@settings(max_examples=30)
@example(words=[("head", 2, ALICE, 0), ("follow", 2, BOB, 0), ("head", 1, BOB, 0)])
@given(words=st.lists(WORDS, max_size=25))
def test_what_is_live_does_not_depend_on_pruning(tmp_path_factory: Any, words: list[Any]) -> None:
    """Two logs of the same words, one of which is pruned again and again, tell the same, whatever comes later."""
    folder = tmp_path_factory.mktemp("logs")
    with closing(open_database(folder / "a")) as pruned, closing(open_database(folder / "b")) as whole:
        told, now = [], NOW
        for database in (pruned, whole):
            database.migrate(ROOM, STEPS)
        for kind, size, key, days in words:
            now = Instant(now + days * DAY)
            if kind == "prune":
                prune(pruned, now)
            for database in (pruned, whole):
                _take(database, kind, size, key, now)
        prune(pruned, Instant(now + 2 * AFTERLIFE))
        for database in (pruned, whole):
            with database.read() as connection:
                Ledger(connection).check()
                again = {place: signed.sid for place, signed in live_of(connection, DATASET).items()}
                told.append((again, sorted(Ledger(connection).live(DATASET)), Ledger(connection).newest_head(DATASET)))
        assert told[0] == told[1]
        assert sorted(told[0][0].values()) == told[0][1]


def _take(database: Database, kind: str, size: int, key: SigningKey, now: Instant) -> None:
    if kind == "head":
        _hear(database, head(size, key, now), now)
    elif kind == "attest":
        say(database, attested(size), now, "new")
    elif kind == "follow":
        with database.write() as connection:
            Ledger(connection).follow(DATASET, head(size, key, now), now)
    elif kind != "prune":
        say(database, head(size, key, now), now, kind, live=False)


def _hear(database: Database, signed: Signed, now: Instant) -> None:
    """As ``hearing`` does: a live statement is not recorded again, whoever signed this copy of it."""
    with database.read() as connection:
        settled = Ledger(connection).is_settled(signed.sid)
    if not settled:
        say(database, signed, now)


def test_every_step_of_the_ledger_names_a_table_that_pruning_knows() -> None:
    """A table of a later step that makes a dataset known must be said, or its log would go too early."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in STEPS:
            connection.executescript(script)
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        with_dataset = {
            name
            for name in tables
            if any(column[1] == "dataset" for column in connection.execute(f"PRAGMA table_info({name})"))
        }
    own = {"trust_ledger", "trust_replays", "trust_runs", "trust_strikes", "trust_pardons", "trust_again"}
    own |= {"trust_rechecked", "trust_subtrees"}
    assert with_dataset - own == set(retention._KNOWN)
