"""Ledger, admission, key store: order of statements, links of the log, a signer that never contradicts itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, NotFound, Refused
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual, Attestation, EngineUsed, HeadStatement, Span
from chain.statements.tree import Frontier
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import hash_links, kinds
from odfd.store.ledger.hash_links import LinkedEntry
from odfd.store.ledger.log import STEPS, CheckedChain, Ledger
from odfd.store.ledger.runs import RecordedRun, Runs
from odfd.trust.admission.rules import AdmissionOutcome, admit_attestation, admit_head

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
    return HeadStatement(
        dataset=ALICE.dataset_id,
        epoch=0,
        size=size,
        root_hash=root * 32,
        authority=authority,
        issued_at=statement.when(at),
        expires_at=statement.when(Instant(at + days * 86400 * instant.SECOND)),
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
    return Attestation(
        validator=BOB.did,
        dataset=ALICE.dataset_id,
        epoch=0,
        size=4,
        root_hash=b"r" * 32,
        serial=serial,
        previous=previous,
        determinism="strict",
        finished_at=statement.when(NOW),
        engines=(ENGINE,),
        spans=spans or (Span(first=0, last=3, verdict="reproduced", state="genesis", engine=0),),
        head=Multihash.sha3_256(b"head"),
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
