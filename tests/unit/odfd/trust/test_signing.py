"""The owner's hand: heads in order, keys that publish, and roots of trees."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Conflict, Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import DatasetKind, Seed, SetInfo, SetTransform
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import Multihash
from chain.statements import canonical, envelope, statement
from chain.statements.envelope import Signed
from chain.statements.keys import SigningKey
from chain.statements.statement import Authority, Epoch, HeadStatement, Roots, TreeHead, Writer
from chain.statements.tree import GROUP, Frontier
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.store import collections, references
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import STEPS, Ledger
from odfd.store.ledger.signed_heads import publishing_keys
from odfd.store.ledger.subtree_roots import Subtrees
from odfd.trust.signing.owner_commit import LIFETIME, OwnerCommitter
from worlds import statements
from worlds.commits import commit_events

# The owner's hand: heads in order, one transaction, a journal that nothing gets past.

NOW = instant.parse("2026-01-01T00:00:00Z")


class Owner:
    """A committer over real stores in a folder, which may be opened again."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW
        self.database = open_database(folder / "odfd.sqlite")
        self.objects = DiskObjects(folder / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        for room in (references, log, collections):
            self.database.migrate(room.ROOM, room.STEPS)
        self.keys = KeyStore(folder / "keys", lambda count: bytes(range(count)))
        self.told: list[Signed] = []
        self.committer = OwnerCommitter(
            self.database,
            self.chains,
            self.keys,
            lambda: Instant(self.now),
            lambda _, signed: self.told.append(signed),
            ShardedWrites(self.database, self.chains, self.objects),
            lambda _: False,
            lambda _: 0,
        )

    def found(self) -> DatasetId:
        dataset = self.keys.new_dataset_key().dataset_id
        commit_events(self.committer, dataset, None, [Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)], NOW)
        return dataset

    def note(self, dataset: DatasetId, text: str) -> Head:
        head = self.chains.chain(dataset).head()
        return commit_events(self.committer, dataset, head, [SetInfo(description=text)], NOW)

    def head(self, dataset: DatasetId) -> tuple[int, int]:
        """Blocks, and blocks that the newest signed head speaks of."""
        with self.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
        here = self.chains.chain(dataset).head()
        return here.size if here else 0, newest[0].size if newest else 0


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    made.database.close()


def test_a_commit_is_signed_and_told(owner: Owner) -> None:
    dataset = owner.found()
    owner.note(dataset, "one")
    assert owner.head(dataset) == (2, 2)
    assert len(owner.told) == 2
    assert not owner.committer.sign_unsigned(dataset)


def test_rules_bind_and_a_moved_head_is_a_conflict(owner: Owner) -> None:
    dataset = owner.found()
    before = owner.chains.chain(dataset).head()
    with pytest.raises(Invalid):
        commit_events(owner.committer, dataset, before, [Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)], NOW)
    owner.note(dataset, "one")
    with pytest.raises(Conflict):
        commit_events(owner.committer, dataset, before, [SetInfo(description="two")], NOW)
    with pytest.raises(NotFound):
        commit_events(owner.committer, DatasetId.from_public_key(bytes(32)), None, [SetInfo()], NOW)
    assert owner.head(dataset) == (2, 2)


def test_what_else_belongs_to_a_commit_goes_with_it_or_not_at_all(owner: Owner) -> None:
    dataset = owner.found()

    def fail(_: sqlite3.Connection) -> None:
        raise Environment("the disk is full")

    head = owner.chains.chain(dataset).head()
    with pytest.raises(Environment):
        commit_events(owner.committer, dataset, head, [SetInfo(description="x")], NOW, also=fail)
    assert owner.head(dataset) == (1, 1)
    assert owner.note(dataset, "again").size == 2


@pytest.mark.parametrize("step", ["promise", "seal", "record"])
def test_a_crash_after_the_commit_is_mended(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the journal line, after it, and after the signature but before it was kept."""

    class Crash(BaseException):
        pass

    def crash(*_: object, **__: object) -> None:
        raise Crash

    owner = Owner(tmp_path)
    dataset = owner.found()
    target = {
        "promise": "odfd.store.keys.journal.SigningJournal.promise",
        "seal": "chain.statements.envelope.seal",
        "record": "odfd.store.ledger.log.Ledger.record",
    }[step]
    with monkeypatch.context() as patch:
        patch.setattr(target, crash)
        with pytest.raises(Crash):
            owner.note(dataset, "one")
    owner.database.close()
    again = Owner(tmp_path)
    assert again.head(dataset) == (2, 1)
    assert again.committer.sign_unsigned(dataset)
    assert again.head(dataset) == (2, 2)
    assert again.note(dataset, "two").size == 3
    again.database.close()


def test_restored_signer_refuses(tmp_path: Path) -> None:
    """From an older backup of the database nothing is committed that could not be signed, and nothing is signed."""
    owner = Owner(tmp_path)
    dataset = owner.found()
    owner.database.close()
    backup = (tmp_path / "odfd.sqlite").read_bytes()
    owner = Owner(tmp_path)
    owner.note(dataset, "one")
    owner.note(dataset, "two")
    owner.database.close()
    (tmp_path / "odfd.sqlite").write_bytes(backup)
    restored = Owner(tmp_path)
    assert restored.head(dataset) == (1, 1)
    with pytest.raises(Refused) as caught:
        restored.note(dataset, "another one")
    assert caught.value.rule == "trust.behind"
    assert restored.head(dataset) == (1, 1)
    restored.now = Instant(NOW + LIFETIME)
    with pytest.raises(Refused):
        restored.committer.sign_unsigned(dataset)
    restored.database.close()


def test_several_blocks_do_not_jump_over_what_was_signed(tmp_path: Path) -> None:
    """Attack T-KEY-01: several blocks at once that skip a signed state.

    Defence: the chain must extend the last tree in the journal.

    Three blocks at once would be later than what was signed of two, and another history all the same.
    """
    owner = Owner(tmp_path)
    dataset = owner.found()
    owner.database.close()
    backup = (tmp_path / "odfd.sqlite").read_bytes()
    owner = Owner(tmp_path)
    owner.note(dataset, "one")
    owner.database.close()
    (tmp_path / "odfd.sqlite").write_bytes(backup)
    restored = Owner(tmp_path)
    head = restored.chains.chain(dataset).head()
    events = [SetInfo(description=text) for text in ("another", "and one", "and one more")]
    with pytest.raises(Refused) as caught:
        commit_events(restored.committer, dataset, head, events, NOW)
    assert caught.value.rule == "trust.behind"
    assert restored.head(dataset) == (1, 1)
    with pytest.raises(Refused, match="not the beginning"):
        restored.committer.sign_unsigned(dataset)
    restored.database.close()


def test_another_history_of_the_same_length_is_not_gone_on_with(tmp_path: Path) -> None:
    """Whoever put other blocks in the place of those that were signed does not get them signed by adding one."""
    owner = Owner(tmp_path)
    dataset = owner.found()
    owner.note(dataset, "one")
    owner.keys.note(KeyDid.from_public_key(dataset.public_key), "head", (0, 3), "00" * 32)
    owner.keys.note(KeyDid.from_public_key(dataset.public_key), "head", (1, 1), "00" * 32)
    for refused in (lambda: owner.note(dataset, "two"), lambda: owner.committer.sign_unsigned(dataset)):
        with pytest.raises(Refused) as caught:
            refused()
        assert caught.value.rule == "trust.behind"
    owner.database.close()


def test_a_head_that_ages_is_signed_anew(owner: Owner) -> None:
    dataset = owner.found()
    owner.now = Instant(NOW + LIFETIME // 3 - 1)
    assert not owner.committer.sign_unsigned(dataset)
    owner.now = Instant(NOW + LIFETIME // 3)
    assert owner.committer.sign_unsigned(dataset)
    with owner.database.read() as connection:
        newest = Ledger(connection).newest_head(dataset)
    assert newest is not None
    assert newest[0].issued == owner.now // instant.SECOND * instant.SECOND


@pytest.mark.slow
async def test_many_hands_at_once_sign_in_the_order_of_the_chain(owner: Owner) -> None:
    dataset = owner.found()
    committed = 0

    async def write(number: int) -> None:
        nonlocal committed
        while True:
            head = await trio.to_thread.run_sync(owner.chains.chain(dataset).head)
            try:
                await trio.to_thread.run_sync(
                    commit_events, owner.committer, dataset, head, [SetInfo(description=str(number))], NOW
                )
            except Conflict:
                continue
            committed += 1
            return

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(write, number)
            nursery.start_soon(trio.to_thread.run_sync, owner.committer.sign_unsigned, dataset)
    assert committed == 8
    assert owner.head(dataset) == (9, 9)
    with owner.database.read() as connection:
        assert Ledger(connection).check() == len(owner.told)


def test_rules_for_derivatives_bind_too(owner: Owner) -> None:
    dataset = owner.found()
    transform = SetTransform(inputs=(), transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="x"),)))
    with pytest.raises(Invalid):
        commit_events(owner.committer, dataset, owner.chains.chain(dataset).head(), [transform], NOW)
    assert owner.head(dataset) == (1, 1)


# Whose nodes publish a dataset: its writers, and the node that the newest head names.

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
    """Attack T-PEER-03: a head that names a node after its signer lost the right to write.

    Defence: the head has no effect.
    """
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


# Trees made with what is kept of a chain are those of its blocks, whatever happened to it, and read few of them.

DATASET = DatasetId.from_public_key(b"p" * 32)
OTHER = DatasetId.from_public_key(b"o" * 32)


@contextmanager
def subtrees() -> Iterator[Subtrees]:
    connection = sqlite3.connect(":memory:")
    try:
        for step in STEPS:
            connection.executescript(step)
        yield Subtrees(connection)
    finally:
        connection.close()


class Chain:
    """Leaves, and how many of them were read."""

    def __init__(self) -> None:
        self.leaves: list[bytes] = []
        self.tree = Frontier()
        self.read = 0

    def grow(self, kept: Subtrees | None, seed: str, count: int) -> None:
        leaves = [hashlib.sha3_256(f"{seed} {at}".encode()).digest() for at in range(count)]
        before, groups = self.tree, list[bytes]()
        self.leaves += leaves
        self.tree = before.extend(leaves, groups)
        if kept is not None:
            kept.keep(DATASET, before, groups)

    def cut(self, size: int) -> None:
        del self.leaves[size:]
        self.tree = Frontier().extend(self.leaves)

    def some(self, start: int, stop: int) -> list[bytes]:
        self.read += stop - start
        return self.leaves[start:stop]


STEP = st.tuples(st.sampled_from(["grow", "grow", "grow unseen", "cut"]), st.integers(1, 3 * GROUP))


@pytest.mark.slow
@settings(max_examples=40)
@given(steps=st.lists(STEP, max_size=6), size=st.integers(0, 20 * GROUP))
def test_right_whatever_happened(steps: list[tuple[str, int]], size: int) -> None:
    chain = Chain()
    with subtrees() as kept:
        for number, (step, count) in enumerate(steps):
            if step == "cut":
                chain.cut(count)
            else:
                chain.grow(None if step == "grow unseen" else kept, str(number), count)
        size %= len(chain.leaves) + 1
        for _ in range(2):
            chain.read = 0
            assert kept.tree(DATASET, chain.tree, chain.some).root(size) == Frontier().extend(chain.leaves[:size]).root
        assert chain.read <= 2 * GROUP, "what lacked was learnt"


@pytest.mark.slow
@settings(max_examples=20)
@given(st.lists(st.integers(1, 2 * GROUP), min_size=1, max_size=8))
def test_what_is_kept_as_it_grows_is_enough(counts: list[int]) -> None:
    chain = Chain()
    with subtrees() as kept:
        for number, count in enumerate(counts):
            chain.grow(kept, str(number), count)
        assert kept.load(DATASET, chain.tree, chain.some) is not None
        assert chain.read < GROUP


def test_of_a_chain_that_is_not_as_it_was_checked_nothing_is_kept() -> None:
    chain = Chain()
    chain.grow(None, "", 3 * GROUP)
    chain.leaves[5] = bytes(32)
    with subtrees() as kept:
        for _ in range(2):
            chain.read = 0
            kept.tree(DATASET, chain.tree, chain.some)
            assert chain.read == 3 * GROUP


def test_each_dataset_has_its_own() -> None:
    chain = Chain()
    with subtrees() as kept:
        chain.grow(kept, "", 3 * GROUP)
        assert kept.load(OTHER, chain.tree, chain.some) is None
