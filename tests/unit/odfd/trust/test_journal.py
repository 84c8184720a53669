"""Journals that are gone: what a key may not sign then, and how its journal is begun anew."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Refused
from chain.ids import KeyDid
from chain.multihash import Multihash
from chain.statements import cosignature, envelope, statement
from chain.statements import proof as proofs
from chain.statements.checkpoint import TreeCheckpoint
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, EngineUsed, HeadStatement, Span
from chain.statements.tree import Tree
from odfd.policy.policy import KeyGroup, Policy
from odfd.policy.witness_quorum import Witnesses
from odfd.services.trust.journal_recovery import ENOUGH, PATIENCE, choose, may_go_on, recall, told_by
from odfd.store.keys import journal_topics
from odfd.store.keys.journal import JournalEntry, SigningJournal
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger.cosignatures import Cosignatures
from odfd.store.ledger.log import STEPS, Ledger
from p2p.ports import PeerId, PeerView
from worlds.full_disk import room_for
from worlds.statements import head_statement

ALICE, BOB = (SigningKey(seed * 32) for seed in (b"a", b"b"))
NOW = instant.parse("2026-11-20T08:00:00Z")
SIZES = st.lists(st.integers(1, 9), max_size=8)


def keys_in(folder: Path) -> KeyStore:
    """Opened again, with a node's key from its first time on."""
    numbers = iter(range(1, 100))
    keys = KeyStore(folder / "keys", lambda size: bytes([next(numbers)]) * size)
    keys.node_key()
    return keys


def journals(folder: Path) -> list[Path]:
    return sorted((folder / "keys").glob("*.journal"))


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def tear(path: Path) -> None:
    """As a disk that was full leaves it."""
    path.write_bytes(path.read_bytes()[:9])


def test_a_new_key_needs_nothing(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    node, dataset = keys.node_key(), keys.new_dataset_key()
    assert [path.read_text().split()[:3] for path in journals(tmp_path)] == [["journal", "0", "new"]] * 2
    for store in (keys, KeyStore(tmp_path / "keys", bytes)):
        assert store.list_lost() == []
        assert store.is_new(dataset.dataset_id)
    keys.sign(dataset, "head", (0, 1), "aa", b"{}")
    keys.sign(node, journal_topics.head(node.did, dataset.dataset_id), (0, 1), "aa", b"{}")
    assert not keys.is_new(dataset.dataset_id)


@pytest.mark.parametrize("damage", [lose, empty, tear])
def test_a_lost_journal_signs_nothing(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    keys = keys_in(tmp_path)
    node, dataset = keys.node_key(), keys.new_dataset_key()
    for path in journals(tmp_path):
        damage(path)
    keys = keys_in(tmp_path)
    assert keys.list_lost() == [node.did, dataset.did]
    assert keys.check() == 2
    for key in (node, dataset):
        for ask in (
            lambda key=key: keys.sign(key, "head", (0, 1), "aa", b"{}"),
            lambda key=key: keys.note(key.did, "head", (0, 1), "aa"),
            lambda key=key: keys.may_note(key.did, "head", (0, 1), "aa"),
            lambda key=key: keys.last_signed(key.did, "head"),
        ):
            with pytest.raises(Refused, match="is lost") as caught:
                ask()
            assert caught.value.rule == "trust.journal"
            assert "--alone" in caught.value.hint
    assert [path.stat().st_size for path in journals(tmp_path)] == [0] * len(journals(tmp_path))


def test_the_journal_of_a_key_that_is_offline_is_missed_too(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    dataset = keys.new_dataset_key()
    keys.take_offline(dataset.dataset_id)
    for path in journals(tmp_path):
        path.unlink()
    assert dataset.did in keys_in(tmp_path).list_lost()


def test_what_the_keys_of_others_sign_here_is_noted_from_nothing(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    keys.may_note(BOB.did, "authority", (1,), "aa")
    assert len(journals(tmp_path)) == 1
    keys.note(BOB.did, "authority", (1,), "aa")
    with pytest.raises(Refused) as caught:
        keys_in(tmp_path).note(BOB.did, "authority", (1,), "bb")
    assert caught.value.rule == "trust.behind"


def test_a_key_that_came_to_nothing_leaves_no_journal(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    one, other = keys.new_dataset_key(), keys.new_dataset_key()
    keys.sign(other, "head", (0, 1), "aa", b"{}")
    for key in (one, other):
        keys.discard_dataset_key(key.dataset_id)
    node = keys.node_key()
    assert {path.stem for path in journals(tmp_path)} == {other.dataset_id.multibase, node.dataset_id.multibase}


def test_a_journal_begun_anew_knows_the_last_words(tmp_path: Path) -> None:
    dataset = keys_in(tmp_path).new_dataset_key()
    for path in journals(tmp_path):
        path.unlink()
    keys = keys_in(tmp_path)
    assert keys.renew(dataset.did, {"head": JournalEntry((0, 8), "aa")}, "peers", NOW)
    assert not keys.renew(dataset.did, {}, "alone", NOW), "it is not lost any more"
    for store in (keys, keys_in(tmp_path)):
        assert not store.is_new(dataset.dataset_id)
        with pytest.raises(Refused) as caught:
            store.sign(dataset, "head", (0, 8), "bb", b"{}")
        assert caught.value.rule == "trust.behind"
    keys.sign(dataset, "head", (0, 9), "bb", b"{}")
    path = tmp_path / "keys" / f"{dataset.dataset_id.multibase}.journal"
    lines = [line.split() for line in path.read_text().splitlines()]
    assert [line[:3] for line in lines] == [
        ["journal", str(NOW // instant.SECOND), "peers"],
        ["head", "0,8", "aa"],
        ["head", "0,9", "bb"],
    ]


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace", "chain.store.durable.sync_folder"])
def test_a_journal_is_begun_whole_or_not_at_all(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = keys_in(tmp_path).new_dataset_key()
    for path in journals(tmp_path):
        path.unlink()

    def fail(*_: object) -> None:
        raise OSError(5, "the disk fails")

    keys = keys_in(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(step, fail)
        with pytest.raises(Environment, match="cannot write"):
            keys.renew(dataset.did, {"head": JournalEntry((0, 8), "aa")}, "peers", NOW)
    assert keys.list_lost() != [], "what was not said to be durable does not count"
    again = keys_in(tmp_path)
    again.renew(dataset.did, {"head": JournalEntry((0, 8), "aa")}, "peers", NOW)
    assert again.last_signed(dataset.did, "head") == JournalEntry((0, 8), "aa")


def test_a_journal_that_is_deleted_under_a_node_comes_back_whole(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    dataset = keys.new_dataset_key()
    keys.sign(dataset, "head", (0, 8), "aa", b"{}")
    keys.sign(dataset, "authority", (1,), "cc", b"{}")
    for path in journals(tmp_path):
        path.unlink()
    assert keys.list_lost() == []
    keys.sign(dataset, "head", (0, 9), "bb", b"{}")
    again = keys_in(tmp_path)
    assert again.list_lost() == [keys.node_key().did], "which said nothing meanwhile"
    assert again.last_signed(dataset.did, "authority") == JournalEntry((1,), "cc")
    assert again.last_signed(dataset.did, "head") == JournalEntry((0, 9), "bb")


# What is known of a key's words


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = ledger()
    yield connection
    connection.close()


def ledger() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    for step in STEPS:
        connection.executescript(step)
    return connection


def head(size: int, epoch: int = 0) -> HeadStatement:
    return head_statement(
        ALICE.dataset_id,
        size,
        bytes([size]) * 32,
        lasts=86400 * instant.SECOND,
        epoch=epoch,
        head=Multihash.sha3_256(b"block %d" % size),
    )


def verdict(serial: int, key: SigningKey) -> Attestation:
    return Attestation(
        dataset=ALICE.dataset_id,
        epoch=0,
        size=3,
        root_hash=bytes(32),
        serial=serial,
        previous=None,
        determinism="strict",
        finished_at=statement.when(NOW),
        engines=[EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="host", platform="linux/amd64")],
        inputs=[],
        spans=[Span(first=0, last=2, verdict="reproduced", state="genesis", engine=0)],
        mismatch=[],
        head=Multihash.sha3_256(b"block"),
        validator=key.did,
    )


def record(db: sqlite3.Connection, said: statement.Predicate, key: SigningKey, outcome: str = "advance") -> None:
    signed = envelope.unseal(envelope.seal(statement.encode(said), key), statement.MAX_ANY)
    Ledger(db).record(signed, key.did, outcome, "", NOW, live=False)


@pytest.mark.slow
@given(sizes=SIZES, serials=SIZES, others=SIZES, outcome=st.sampled_from(["advance", "fork", "signed", "candidate"]))
def test_the_last_word_counts_in_whatever_order_it_came(
    sizes: list[int], serials: list[int], others: list[int], outcome: str
) -> None:
    db = ledger()
    for size in sizes:
        record(db, head(size), ALICE, outcome)
    for serial in serials:
        record(db, verdict(serial, BOB), BOB, outcome)
    for size in others:
        record(db, head(size, epoch=1), BOB)
    found = recall(db, [ALICE.did, BOB.did])
    db.close()
    mine = {"head": JournalEntry((0, max(sizes)), (bytes([max(sizes)]) * 32).hex())} if sizes else {}
    assert found[ALICE.did] == mine
    assert {topic: entry.order for topic, entry in found[BOB.did].items()} == {
        **({journal_topics.attestation(ALICE.dataset_id, 0): (max(serials),)} if serials else {}),
        **({journal_topics.head(BOB.did, ALICE.dataset_id): (1, max(others))} if others else {}),
    }


def test_cosignatures_and_what_a_proof_shows_are_words_too(db: sqlite3.Connection) -> None:
    leaves = [[bytes([number]) * 32 for number in branch] for branch in ((1, 2, 3), (1, 9))]
    trees = [Tree(lambda start, stop, branch=branch: branch[start:stop]) for branch in leaves]
    made = [
        cosignature.cosign(BOB, TreeCheckpoint(ALICE.dataset_id, 0, len(branch), tree.root(len(branch))), NOW)
        for branch, tree in zip(leaves, trees, strict=True)
    ]
    topic = journal_topics.cosignature(made[0].checkpoint)
    Cosignatures(db).keep(made[1])
    assert recall(db, [BOB.did])[BOB.did][topic].order == (2,)
    ours, theirs = ((lambda start, stop, branch=branch: branch[start:stop]) for branch in leaves)
    Ledger(db).record_proof(proofs.double_cosign(made[0].encode(), made[1].encode(), ours, theirs), "", NOW)
    assert recall(db, [BOB.did])[BOB.did][topic] == JournalEntry((3,), trees[0].root(3).hex())
    votes = [envelope.seal(statement.encode(verdict(serial, BOB)), BOB) for serial in (4, 5)]
    Ledger(db).record_proof(proofs.double_vote(*votes), "", NOW)
    said = recall(db, [BOB.did, ALICE.did])
    assert said[BOB.did][journal_topics.attestation(ALICE.dataset_id, 0)].order == (5,)
    assert said[ALICE.did] == {}


def test_a_ledger_with_a_flipped_bit_tells_nothing(db: sqlite3.Connection) -> None:
    record(db, head(3), ALICE)
    db.execute("UPDATE trust_ledger SET outcome = 'advanbe'")
    with pytest.raises(Environment, match="altered"):
        recall(db, [ALICE.did])


# Who is asked


GROUPS = tuple(KeyGroup(f"g{number}", frozenset({SigningKey(bytes([number]) * 32).did})) for number in range(1, 5))
LISTED = [min(group.keys) for group in GROUPS]


def test_three_are_asked_and_fewer_only_after_a_while() -> None:
    policy = Policy(groups=GROUPS, tolerated=1)
    assert may_go_on(policy, told_by(policy, LISTED[:ENOUGH], BOB.did), 0.0)
    two = told_by(policy, LISTED[: ENOUGH - 1], BOB.did)
    assert not may_go_on(policy, two, PATIENCE - 1)
    assert may_go_on(policy, two, PATIENCE)
    assert not may_go_on(policy, told_by(policy, LISTED[:1], BOB.did), 100 * PATIENCE), "it may be the faulty one"
    witness = Policy(witnesses=Witnesses(groups={ALICE.did: "w"}))
    assert may_go_on(witness, told_by(witness, [ALICE.did], BOB.did), PATIENCE)


@given(st.sets(st.integers(100, 200)), st.integers(0, 2), st.sampled_from([(), GROUPS]))
def test_strangers_make_no_journal_good(strangers: set[int], faulty: int, groups: tuple[KeyGroup, ...]) -> None:
    """Attack T-KEY-01: unlisted peers around a node that lost its journal, who report that its key signed nothing.

    Defence: signatures that they show are used; only more listed groups than may be faulty, or the operator, restore
    the journal.

    However many, and however long they say nothing, also beside as many liars as there may be; nor oneself.
    """
    policy = Policy(groups=groups, tolerated=faulty)
    answered = [SigningKey(bytes([number]) * 32).did for number in strangers]
    liars = LISTED[:faulty] if groups else []
    me = LISTED[-1]
    assert not may_go_on(policy, told_by(policy, [*answered, *liars, me], me), 100 * PATIENCE)


NAMES = st.sampled_from([PeerId(f"p{number}") for number in range(8)])
VIEWS = st.lists(
    st.builds(
        PeerView,
        peer=NAMES,
        connected=st.booleans(),
        blocked=st.booleans(),
        network=st.sampled_from(["", "10.0.0.0/16", "10.1.0.0/16"]),
    ),
    unique_by=lambda view: view.peer,
)


@given(
    views=VIEWS, asked=st.sets(st.sampled_from([PeerId(f"p{number}") for number in range(8)])), count=st.integers(1, 3)
)
def test_peers_of_different_networks_are_asked_first(views: list[PeerView], asked: set[PeerId], count: int) -> None:
    free = [view for view in views if view.connected and not view.blocked and view.peer not in asked]
    chosen = choose(views, asked, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(free))
    assert set(chosen) <= {view.peer for view in free}
    places = {view.peer: view.network or view.peer for view in free}
    assert len({places[peer] for peer in chosen}) == min(count, len(set(places.values())))


def test_keys_are_known_by_their_bytes() -> None:
    assert journal_topics.head(ALICE.did, ALICE.dataset_id) == "head"
    assert journal_topics.head(KeyDid.from_public_key(ALICE.public), ALICE.dataset_id) == "head"
    assert journal_topics.head(BOB.did, ALICE.dataset_id) == f"head/{ALICE.dataset_id.multibase}"


def said(journal: SigningJournal) -> list[tuple[str, JournalEntry]]:
    return sorted((topic, entry) for topic in ("a", "b") if (entry := journal.last(topic)) is not None)


def test_a_full_disk_leaves_a_journal_that_is_read(tmp_path: Path) -> None:
    """At every byte of a line: nothing of it counts, and the journal goes on, in this life and in the next."""
    for reopened in (False, True):
        for written in range(200):
            path = tmp_path / f"{reopened}{written}.journal"
            journal = SigningJournal(path)
            journal.promise("a", (0, 1), "aa" * 32)
            size = path.stat().st_size
            with room_for(size + written):
                try:
                    journal.promise("b", (0, 7), "bb" * 32)
                except Environment:
                    assert written < len("b 0,7  12345678\n") + 64
                else:
                    break
                if reopened:
                    journal = SigningJournal(path, begun=True)
                assert said(journal) == [("a", JournalEntry((0, 1), "aa" * 32))]
            journal.promise("b", (0, 9), "cc" * 32)
            wanted = [("a", JournalEntry((0, 1), "aa" * 32)), ("b", JournalEntry((0, 9), "cc" * 32))]
            assert said(journal) == said(SigningJournal(path, begun=True)) == wanted
        else:
            pytest.fail("no line is so long")


@pytest.mark.parametrize("call", ["write", "fsync", "ftruncate", "close", "open", "replace", "truncate"])
def test_whatever_fails_the_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """At every byte, also where a file cannot even be cut back: then it is written anew."""
    real = getattr(os, call)

    def fails(*args: Any) -> Any:
        if call == "close":
            real(*args)
        raise OSError(errno.EIO, "no")

    line = len("b 0,2 bb 12345678\n")
    for room in (*range(line + 1), 10**6):
        path = tmp_path / f"{room}.journal"
        journal = SigningJournal(path)
        journal.promise("a", (0, 1), "aa")
        with monkeypatch.context() as patch, room_for(path.stat().st_size + room):
            patch.setattr(os, call, fails)
            if call == "ftruncate":
                patch.setattr(os, "fsync", fails)
            with suppress(Environment):
                journal.promise("b", (0, 2), "bb")
        for one in (journal, SigningJournal(path, begun=True)):
            assert one.last("a") == JournalEntry((0, 1), "aa")
            one.promise("b", (0, 3), "cc")
            assert SigningJournal(path, begun=True).last("b") == JournalEntry((0, 3), "cc")


def test_a_part_that_an_earlier_version_left_in_a_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    journal = SigningJournal(path)
    for topic, number in (("a", 1), ("b", 2), ("a", 3)):
        journal.promise(topic, (0, number), "ab" * 32)
    lines = path.read_text().splitlines()
    for size in range(1, len(lines[2]) + 1):
        path.write_text("\n".join([*lines[:2], lines[2][:size] + lines[3], ""]))
        found = SigningJournal(path, begun=True)
        assert found.last("a") == JournalEntry((0, 3), "ab" * 32)
        # A line of which only the end is missing may as well have been said.
        assert found.last("b") == (JournalEntry((0, 2), "ab" * 32) if size == len(lines[2]) else None)
        found.promise("b", (0, 3), "cd")


@pytest.mark.slow
def test_a_bit_that_flips_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one.journal"
    journal = SigningJournal(path)
    for topic, number in (("a", 1), ("b", 2), ("a", 3)):
        journal.promise(topic, (0, number), "ab" * 32)
    raw, wanted = path.read_bytes(), said(journal)
    for place in range(len(raw)):
        for bit in range(8):
            path.write_bytes(raw[:place] + bytes([raw[place] ^ 1 << bit]) + raw[place + 1 :])
            try:
                found = SigningJournal(path, begun=True)
            except Environment:
                continue
            assert said(found) == wanted


def test_a_key_for_verdicts_has_its_own_journal(tmp_path: Path) -> None:
    numbers = iter(range(1, 9))
    keys = KeyStore(tmp_path / "keys", lambda size: bytes([next(numbers)]) * size)
    node, verdicts = keys.node_key(), keys.validator_key()
    assert verdicts.did != node.did
    assert keys.validator_key().did == verdicts.did, "made once"
    assert (tmp_path / "keys" / "validator.key").stat().st_mode & 0o777 == 0o600
    assert (keys.check(), keys.list_lost()) == (2, [])
    keys.sign(verdicts, "attestation:x:0", (1,), "a", b"{}")
    (tmp_path / "keys" / f"{verdicts.dataset_id.multibase}.journal").unlink()
    again = KeyStore(tmp_path / "keys", bytes)
    assert again.list_lost() == [verdicts.did]
    with pytest.raises(Refused):
        again.sign(again.validator_key(), "attestation:x:0", (1,), "b", b"{}")


def test_no_group_of_this_node_tells_it_what_it_said() -> None:
    """By neither of its keys, if its verdicts have one of their own."""
    node, group = SigningKey(b"n" * 32).did, KeyGroup("us", frozenset({ALICE.did, BOB.did}))
    policy = Policy(groups=(group,), tolerated=0)
    assert len(told_by(policy, [ALICE.did], node)) == 1
    assert len(told_by(policy, [ALICE.did], node, BOB.did)) == 0
