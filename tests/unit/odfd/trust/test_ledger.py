"""The ledger: order, links, what leaves it, and where branches part."""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, NotFound, Refused, Remote
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block
from chain.multihash import Multihash
from chain.statements import canonical, envelope, proof, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, HeadStatement, Span
from chain.statements.tree import GROUP, Frontier
from chain.store.base import Append
from chain.store.database import Database, open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.network.forks import Contradiction, ForkFinder
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import hash_links, kinds, retention
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.hash_links import GAP, LinkedEntry
from odfd.store.ledger.live_set import live_of, restore_live
from odfd.store.ledger.log import ROOM, STEPS, CheckedChain, Ledger
from odfd.store.ledger.retention import AFTERLIFE, SUPERSEDED, prune
from odfd.store.ledger.runs import RecordedRun, Runs
from odfd.trust.admission.rules import AdmissionOutcome, admit_attestation, admit_head
from odfd.trust.admission.statement_processor import StatementProcessor
from p2p.ports import PeerId, PeerView
from worlds.chains import noted
from worlds.statements import attestation_statement, head_statement

# Ledger, admission, key store: order of statements, links of the log, a signer that never contradicts itself.

ALICE = SigningKey(b"a" * 32)
BOB = SigningKey(b"b" * 32)
NOW = instant.parse("2026-11-20T08:00:00Z")
ENGINE = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")


def head(
    size: int,
    *,
    root: bytes = b"r",
    at: Instant = NOW,
    days: int = 7,
    authority: int = 0,
    upper: int | None = None,
) -> HeadStatement:
    return head_statement(
        ALICE.dataset_id,
        size,
        root * 32,
        at=at,
        lasts=days * 86400 * instant.SECOND,
        authority=authority,
        upper=upper,
        head=Multihash.sha3_256(b"block %d" % size),
    )


def signed(predicate: statement.Predicate, key: SigningKey = ALICE) -> envelope.Signed:
    return envelope.unseal(envelope.seal(statement.encode(predicate), key), statement.MAX_ANY)


def admitted(
    new: HeadStatement, held: HeadStatement | None = None, *, key: SigningKey = ALICE, mine: bytes | None = None
) -> AdmissionOutcome:
    return admit_head(new, signed(new, key), held, lambda _: mine, NOW).outcome


def later(seconds: int) -> Instant:
    return Instant(NOW + seconds * instant.SECOND)


def test_admission_table() -> None:
    assert admitted(head(8)) is AdmissionOutcome.ADVANCE
    assert admitted(head(9), head(8)) is AdmissionOutcome.ADVANCE
    assert admitted(head(7), head(8)) is AdmissionOutcome.OLDER
    assert admitted(head(8), head(8)) is AdmissionOutcome.OLDER
    assert admitted(head(8, at=later(60)), head(8)) is AdmissionOutcome.RENEWED
    assert admitted(head(8, root=b"x"), head(8)) is AdmissionOutcome.FORK
    assert admitted(head(8, root=b"x"), mine=b"r" * 32) is AdmissionOutcome.FORK
    assert admitted(head(8, authority=3)) is AdmissionOutcome.UNKNOWN_AUTHORITY


def test_frontiers_of_one_history_only_grow() -> None:
    """The frontier comes before the time of issue: two of one second are told apart, and none goes back."""
    assert admitted(head(8, upper=5), head(8)) is AdmissionOutcome.RENEWED
    assert admitted(head(8, upper=6), head(8, upper=5)) is AdmissionOutcome.RENEWED
    assert admitted(head(8, upper=5), head(8, upper=5)) is AdmissionOutcome.OLDER
    assert admitted(head(8, upper=5, at=later(60)), head(8, upper=5)) is AdmissionOutcome.RENEWED
    assert admitted(head(8, upper=4, at=later(60)), head(8, upper=5)) is AdmissionOutcome.OLDER
    assert admitted(head(8, at=later(60)), head(8, upper=5)) is AdmissionOutcome.OLDER
    assert admitted(head(9), head(8, upper=5)) is AdmissionOutcome.ADVANCE
    assert admitted(head(8, upper=6, root=b"x"), head(8, upper=5)) is AdmissionOutcome.FORK


@given(st.permutations([head(8, upper=upper, at=later(at)) for upper in (None, 4, 5) for at in (0, 60)]))
def test_the_newest_of_many_frontiers_does_not_depend_on_their_order(heads: list[HeadStatement]) -> None:
    newest = None
    for each in heads:
        if newest is None or admitted(each, newest) is AdmissionOutcome.RENEWED:
            newest = each
    assert newest == head(8, upper=5, at=later(60))


def test_forged_head_refused() -> None:
    assert admitted(head(8), key=BOB) is AdmissionOutcome.REJECTED


def test_replay_is_older_whatever_its_date() -> None:
    assert admitted(head(7, at=later(300)), head(8)) is AdmissionOutcome.OLDER


def test_far_date_locks_nobody_out() -> None:
    assert admitted(head(8, at=later(3600))) is AdmissionOutcome.EARLY
    assert admitted(head(8, days=91)) is AdmissionOutcome.REJECTED


def attested(serial: int, *spans: Span, previous: Multihash | None = None) -> Attestation:
    return attestation_statement(
        BOB.did,
        ALICE.dataset_id,
        4,
        serial=serial,
        previous=previous,
        spans=spans or (Span(first=0, last=3, verdict="reproduced", state="genesis", engine=0),),
    )


def test_attestations_are_ordered_by_serial() -> None:
    def outcome(new: Attestation, held: Attestation | None = None, key: SigningKey = BOB) -> AdmissionOutcome:
        return admit_attestation(new, signed(new, key), held, NOW).outcome

    assert outcome(attested(1)) is AdmissionOutcome.NEW
    first = envelope.sid(statement.encode(attested(1)))
    assert outcome(attested(2, previous=first), attested(1)) is AdmissionOutcome.NEW
    assert outcome(attested(2), attested(1)) is AdmissionOutcome.FORK
    assert outcome(attested(3), attested(1)) is AdmissionOutcome.NEW
    assert outcome(attested(1), attested(2)) is AdmissionOutcome.OLDER
    assert outcome(attested(1), attested(1)) is AdmissionOutcome.OLDER
    other = Span(first=0, last=3, verdict="not-attempted", reason="engine-missing")
    assert outcome(attested(1, other), attested(1)) is AdmissionOutcome.FORK
    assert outcome(attested(1), key=ALICE) is AdmissionOutcome.REJECTED
    gap = Span(first=1, last=3, verdict="reproduced", state="genesis", engine=0)
    assert outcome(attested(1, gap)) is AdmissionOutcome.REJECTED


@pytest.fixture
def db() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        connection.executescript(step)
    yield connection
    connection.close()


def test_the_live_set_is_the_newest_of_each_signer(db: sqlite3.Connection) -> None:
    ledger = Ledger(db)
    for size in (7, 8):
        item = signed(head(size))
        ledger.record(item, ALICE.did, "advance", "peer", NOW, live=True)
    old = signed(head(3))
    ledger.record(old, ALICE.did, "older", "peer", NOW, live=False)
    ledger.record(signed(attested(1), BOB), BOB.did, "new", "peer", NOW, live=True)
    newest = ledger.newest_head(ALICE.dataset_id)
    assert newest is not None
    assert newest[0].size == 8
    assert list(ledger.attestations(ALICE.dataset_id)) == [BOB.did]
    assert len(ledger.live(ALICE.dataset_id)) == 2
    assert ledger.has(old.sid)
    assert kinds.find(db, newest[1].sid) == (statement.HEAD, newest[1].envelope)
    assert ledger.check() == 4


def test_an_altered_log_is_noticed(db: sqlite3.Connection) -> None:
    ledger = Ledger(db)
    for size in range(1, 5):
        ledger.record(signed(head(size)), ALICE.did, "advance", "peer", NOW, live=True)
    db.execute("UPDATE trust_ledger SET outcome = 'older' WHERE seq = 2")
    with pytest.raises(Environment, match="entry 2"):
        ledger.check()


def test_a_row_whose_columns_were_lost_is_noticed() -> None:
    lost: Any = (7, *[None] * 10)
    with pytest.raises(Environment, match="entry 7"):
        list(hash_links.whole(iter([LinkedEntry._make(lost)])))


def test_runs_and_frontiers_come_back(db: sqlite3.Connection) -> None:
    ledger = Ledger(db)
    run = RecordedRun(
        sequence_number=7,
        block=Multihash.sha3_256(b"block"),
        at=NOW,
        verdict="mismatch",
        runs=3,
        engine=ENGINE,
        actual=Actual(records=5, logical_hash=Multihash.sha3_256(b"rows"), watermark="2026-01-01T00:00:00Z"),
        evidence=b"{}",
    )
    Runs(db).keep(ALICE.dataset_id, run)
    assert Runs(db).of(ALICE.dataset_id) == {7: run}
    assert ledger.chain(ALICE.dataset_id) == CheckedChain()
    checked = CheckedChain(Frontier().extend([b"x" * 32] * 5), data=3)
    ledger.keep_chain(ALICE.dataset_id, checked)
    assert ledger.chain(ALICE.dataset_id) == checked
    ledger.forget(ALICE.dataset_id)
    assert ledger.chain(ALICE.dataset_id) == CheckedChain()
    assert Runs(db).of(ALICE.dataset_id) == {}


def store(directory: Path) -> KeyStore:
    numbers = iter(range(1, 100))
    return KeyStore(directory, lambda size: bytes([next(numbers)]) * size)


def test_keys_are_made_once_and_are_private(tmp_path: Path) -> None:
    keys = store(tmp_path / "keys")
    node = keys.node_key()
    assert store(tmp_path / "keys").node_key().public == node.public
    dataset = keys.new_dataset_key().dataset_id
    assert keys.has_dataset_key(dataset)
    assert keys.dataset_key(dataset).dataset_id == dataset
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "keys").iterdir())
    with pytest.raises(NotFound):
        keys.dataset_key(BOB.dataset_id)


def sign(keys: KeyStore, size: int, root: bytes = b"r", at: Instant = NOW) -> bytes:
    return keys.sign(ALICE, "head", (0, size), root.hex(), statement.encode(head(size, root=root, at=at)))


def test_restored_signer_refuses(tmp_path: Path) -> None:
    """State restored from a backup lies behind the journal: signing would make a fork."""
    sign(store(tmp_path / "keys"), 8)
    keys = store(tmp_path / "keys")
    sign(keys, 8)
    sign(keys, 8, at=later(60))
    with pytest.raises(Refused) as caught:
        sign(keys, 8, root=b"x")
    assert caught.value.rule == "trust.behind"
    with pytest.raises(Refused):
        sign(keys, 7)
    sign(keys, 9)
    keys.sign(ALICE, "attestation", (1,), "sid", statement.encode(attested(1)))


def test_a_torn_line_of_the_journal_is_cut_off(tmp_path: Path) -> None:
    sign(store(tmp_path / "keys"), 8)
    (journal,) = (tmp_path / "keys").glob("*.journal")
    with journal.open("ab") as file:
        file.write(b"head 0,9 f1620")
    sign(store(tmp_path / "keys"), 9)
    assert [line.split()[1] for line in journal.read_text().splitlines()] == ["0", "0,8", "0,9"]
    with pytest.raises(Refused):
        sign(store(tmp_path / "keys"), 8)


def test_a_damaged_journal_stops_the_signer(tmp_path: Path) -> None:
    sign(store(tmp_path / "keys"), 8)
    (journal,) = (tmp_path / "keys").glob("*.journal")
    journal.write_text("nonsense\n")
    with pytest.raises(Environment, match="cannot be read"):
        sign(store(tmp_path / "keys"), 9)


def test_a_long_journal_keeps_the_last_word_of_each_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfd.store.keys.journal.COMPACT_AT", 200)
    keys = store(tmp_path / "keys")
    for size in range(1, 20):
        sign(keys, size)
    (journal,) = (tmp_path / "keys").glob("*.journal")
    with pytest.raises(Refused):
        sign(store(tmp_path / "keys"), 18)
    assert [line.split()[:2] for line in journal.read_text().splitlines()] == [["journal", "0"], ["head", "0,19"]]


# Retention: what leaves the log, what stays, links over gaps, and views that are the same whatever went.

ANNA, BEN = (SigningKey(bytes([number]) * 32) for number in (1, 2))
DATASET = ANNA.dataset_id
DAY = 24 * 3600 * instant.SECOND


def after(days: float) -> Instant:
    return Instant(NOW + int(days * DAY))


def retained_head(size: int, key: SigningKey = ANNA, at: Instant = NOW) -> Signed:
    said = head_statement(DATASET, size, at=at, head=Multihash.sha3_256(b"block %d" % size))
    return envelope.unseal(envelope.seal(statement.encode(said), key), statement.MAX_ANY)


def retained_attestation(serial: int) -> Signed:
    said = attestation_statement(BEN.did, DATASET, 4, serial=serial)
    return envelope.unseal(envelope.seal(statement.encode(said), BEN), statement.MAX_ANY)


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
    heads = [retained_head(size) for size in (1, 2, 3)]
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
    say(database, retained_head(2))
    say(database, retained_head(3, BEN), after(1))
    say(database, retained_attestation(1), after(2))
    assert prune(database, after(3000)) == 0


def test_the_last_three_attestations_stay(database: Database) -> None:
    said = [retained_attestation(serial) for serial in range(1, 7)]
    for each in said:
        say(database, each, outcome="new")
    assert prune(database, NOW) == 3
    assert kept(database) == [each.sid for each in said[3:]]


def test_evidence_and_decisions_stay_with_what_they_rest_on(database: Database) -> None:
    rested, rival, newest = retained_head(1), retained_head(2), retained_head(3)
    say(database, rested)
    say(database, rival, outcome="fork", live=False)
    with database.write() as connection:
        said = canonical.encode({"decision": "follow", "rests": [str(rested.sid)]})
        Ledger(connection).decide(DATASET, said, NOW)
    say(database, newest, after(1))
    say(database, retained_head(4), after(2))
    assert prune(database, after(3000)) == 1
    assert newest.sid not in kept(database)
    assert {rested.sid, rival.sid} < set(kept(database))


def test_a_head_of_the_blocks_that_are_here_stays(database: Database) -> None:
    """Only larger ones came since, of a history that is not ours, maybe: a proof of that needs this one."""
    ours = retained_head(4)
    for size in (3, 4, 5, 6, 7):
        say(database, retained_head(size), after(size))
    with database.write() as connection:
        Ledger(connection).keep_chain(DATASET, CheckedChain(Frontier().extend([b"x" * 32] * 4)))
    assert prune(database, after(1000)) == 3
    assert kept(database) == [ours.sid, retained_head(7).sid]


def test_a_dataset_that_nobody_speaks_of_is_forgotten_after_a_year(database: Database) -> None:
    say(database, retained_head(1), outcome="fork", live=False)
    say(database, retained_attestation(1), after(1))
    forget(database)
    with database.write() as connection:
        other = DatasetId(SigningKey(b"o" * 32).dataset_id)
        Ledger(connection).decide(other, b"{}", after(500))
    assert prune(database, Instant(after(1) + AFTERLIFE)) == 0
    assert prune(database, Instant(after(1) + AFTERLIFE + 1)) == 2


def test_gaps_that_meet_are_one(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PAGE", 3)
    for size in range(1, 20):
        say(database, retained_head(size), after(size))
    dropped = [prune(database, Instant(after(day) + SUPERSEDED)) for day in (4.5, 9.5, 100)]
    assert dropped == [3, 5, 10]
    assert log(database) == [(GAP, b""), (statement.HEAD, retained_head(19).sid)]
    with database.read() as connection:
        (body,) = connection.execute("SELECT body FROM trust_ledger WHERE type = ?", (GAP,)).fetchone()
    assert b'"entries":18' in body
    say(database, retained_head(20), after(200))
    assert len(log(database)) == 3


@pytest.mark.parametrize(
    "change",
    [
        *("body = CAST('{}' AS BLOB)", "hash = zeroblob(32)", "prev_hash = zeroblob(32)", "at = at + 1"),
        *("outcome = 'x'", "seq = seq - 1", "sid = zeroblob(32)", "type = 'head'"),
    ],
)
def test_a_flipped_bit_of_a_gap_is_told(database: Database, change: str) -> None:
    """Attack T-DISK-01: a flipped bit in the trust ledger, at dropped entries too.

    Defence: each entry is linked to the one before, a gap has the hashes of both sides, and only whole entries are
    dropped.
    """
    for size in (1, 2, 3, 4):
        say(database, retained_head(size, BEN if size == 1 else ANNA), after(size))
    assert prune(database, after(100)) == 2
    with database.write() as connection:
        connection.execute(f"UPDATE trust_ledger SET {change} WHERE type = ?", (GAP,))
    with database.read() as connection, pytest.raises(Environment, match="was altered"):
        Ledger(connection).check()


def test_damage_is_not_dropped(database: Database) -> None:
    for size in (1, 2, 3):
        say(database, retained_head(size))
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
        say(database, retained_head(size), after(size))
    seen: list[str] = []

    def killed(name: str) -> None:
        seen.append(name)
        if seen.count(where) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(database, after(100), step=killed)
    assert len(kept(database)) == {"prune-cut": 15, "prune-durable": 11}[where]
    prune(database, after(100))
    assert kept(database) == [retained_head(19).sid]


def test_a_live_row_that_was_lost_comes_back(database: Database) -> None:
    for size in (1, 2, 3):
        say(database, retained_head(size))
    say(database, retained_attestation(1))
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
    st.sampled_from([ANNA, BEN]),
    st.integers(0, 40),
)


@pytest.mark.slow
@settings(max_examples=30)
@example(words=[("head", 2, ANNA, 0), ("follow", 2, BEN, 0), ("head", 1, BEN, 0)])
@given(words=st.lists(WORDS, max_size=25))
def test_what_is_live_does_not_depend_on_pruning(tmp_path_factory: Any, words: list[Any]) -> None:
    """Attack T-HEAD-08: a log that grows by superseded statements.

    Defence: heads are pruned after 30 days, attestations beyond the last three, a dataset without statements after a
    year; evidence, decisions and their dependencies stay.

    Two logs of the same words, one of which is pruned again and again, tell the same, whatever comes later.
    """
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
        _hear(database, retained_head(size, key, now), now)
    elif kind == "attest":
        say(database, retained_attestation(size), now, "new")
    elif kind == "follow":
        with database.write() as connection:
            Ledger(connection).follow(DATASET, retained_head(size, key, now), now)
    elif kind != "prune":
        say(database, retained_head(size, key, now), now, kind, live=False)


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


# What it costs to hear of what is known: peers repeat old heads at will.

OWNER = SigningKey(b"o" * 32)
LENGTH = 50_000
LEAVES = [hashlib.sha3_256(str(at).encode()).digest() for at in range(LENGTH)]


def head_of(leaves: list[bytes]) -> tuple[HeadStatement, Signed]:
    tree = Frontier().extend(leaves)
    said = head_statement(OWNER.dataset_id, tree.size, tree.root, head=Multihash.from_digest(0x16, leaves[-1]))
    return said, envelope.unseal(envelope.seal(statement.encode(said), OWNER), 4096)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, GROUP, 33_333, LENGTH - 1])
def test_an_old_head_is_compared_without_a_walk(size: int) -> None:
    """Attack T-PEER-04: an old head, or one that its owner forges, repeated for a long chain.

    Defence: it is compared with a tree whose subtrees are kept: two thousand blocks at most are read.
    """
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


# Where another branch leaves ours is found by asking few blocks, from peers of whom none is believed.

SENDER, OTHER = PeerId("sender"), PeerId("other")


def chain_of(notes: list[str]) -> list[Block]:
    return noted(OWNER.dataset_id, notes, NOW)


def head_of_blocks(blocks: list[Block]) -> tuple[HeadStatement, bytes]:
    tree = Frontier().extend(block.hash.digest for block in blocks)
    said = head_statement(OWNER.dataset_id, tree.size, tree.root, head=blocks[-1].hash)
    return said, envelope.seal(statement.encode(said), OWNER)


class Shown:
    """Peers that show a chain each, or fail."""

    def __init__(self, chains: dict[PeerId, list[Block] | None]) -> None:
        self.chains = chains
        self.asked: list[PeerId] = []

    def peers(self) -> Sequence[PeerView]:
        return [PeerView(peer=peer, connected=True) for peer in self.chains]

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        self.asked.append(peer)
        chain = self.chains[peer]
        if chain is None:
            raise Remote("gone", rule="refused")
        return [block.raw for block in chain[start : start + (1 if max_bytes == 1 else 10)]]


class Silence:
    def info(self, _message: str, **_facts: object) -> None: ...
    def error(self, _message: str, **_facts: object) -> None: ...


@pytest.fixture
def looked(tmp_path: Path) -> Any:
    """Runs the finder of a node that holds ``ours``, against peers that show what they show."""
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        chains = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
        database.migrate(ledger_room.ROOM, ledger_room.STEPS)

        async def look(
            ours: list[Block], theirs: list[Block], peers: Shown, times: int = 1
        ) -> tuple[proof.Proof | None, list[Any]]:
            chains.commit([Append(dataset=OWNER.dataset_id, expected=None, blocks=ours)])
            with database.write() as connection:
                _, sealed = head_of_blocks(ours)
                signed = envelope.unseal(sealed, 4096)
                Ledger(connection).record(signed, OWNER.did, "advance", "", NOW, live=True)
            kept: list[proof.Proof] = []
            keep: Callable[[proof.Proof], bool] = lambda made: kept.append(made) is None  # noqa: E731
            finder = ForkFinder(database, chains, peers, keep, Silence())
            head, sealed = head_of_blocks(theirs)
            for _ in range(times - 1):
                await finder.look(Contradiction(head, sealed, SENDER))
            return await finder.look(Contradiction(head, sealed, SENDER)), kept

        yield look


LONG = [f"note {number}" for number in range(200)]


@pytest.mark.parametrize(("at", "length"), [(1, 201), (100, 150), (200, 201), (150, 400)])
async def test_the_first_difference_is_proven(looked: Any, at: int, length: int) -> None:
    """Attack T-HEAD-03: a branch shown to some nodes only.

    Defence: a node asks the sender of its head for blocks, finds the first difference by bisection, and gossips the
    proof.
    """
    ours = chain_of(LONG)
    theirs = chain_of([*LONG[: at - 1], *(f"other {number}" for number in range(length - at))])
    peers = Shown({SENDER: theirs})
    found, kept = await looked(ours, theirs, peers)
    assert found is not None
    assert kept == [found]
    assert (found.index, found.accused) == (at, (OWNER.did,))
    assert proof.decode(found.raw) == found
    assert len(peers.asked) <= math.ceil(math.log2(len(ours))) + 1 + math.ceil((length - at) / 10)


async def test_who_shows_something_else_is_passed_over(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], "other", "more"])
    third = chain_of([*LONG[:5], "a third history", *LONG[:30]])
    peers = Shown({SENDER: None, PeerId("honest"): ours, PeerId("third"): third, OTHER: theirs})
    found, _ = await looked(ours, theirs, peers)
    assert found is not None
    assert found.index == 11
    assert set(peers.asked) == set(peers.chains)


async def test_without_the_branch_there_is_no_proof(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], "other", "more"])
    found, kept = await looked(ours, theirs, Shown({SENDER: theirs[:-1], OTHER: ours}))
    assert (found, kept) == (None, [])


async def test_a_longer_history_is_no_fork(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of(LONG[:30])
    found, kept = await looked(ours, theirs, Shown({SENDER: theirs}))
    assert (found, kept) == (None, [])


async def test_a_branch_that_is_another_is_not_fetched_again(looked: Any, autojump_clock: Any) -> None:
    """Attack T-HEAD-02: a neighbour that serves another branch than the signed one, each time.

    Defence: the branch is requested from that peer again after pauses that double.

    A neighbour that shows long branches other than the one that was signed, each time that it is repeated.
    """
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], *(f"other {n}" for n in range(150))])
    peers = Shown({SENDER: chain_of([*LONG[:10], *(f"third {n}" for n in range(160))])})
    once = math.ceil(math.log2(len(ours))) + 1 + math.ceil(150 / 10)
    found, _ = await looked(ours, theirs, peers, times=20)
    assert found is None
    assert 0 < len(peers.asked) <= once
