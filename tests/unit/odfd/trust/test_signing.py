"""The owner's hand: heads in order, one transaction, a journal that nothing gets past."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from chain import instant
from chain.errors import Conflict, Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import DatasetKind, Seed, SetInfo, SetTransform
from chain.model.source import SqlQueryStep, TransformSql
from chain.statements.envelope import Signed
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.ingest.sharded_writes import ShardedWrites
from odfd.store import collections, references
from odfd.store.keys.keystore import KeyStore
from odfd.store.ledger import log
from odfd.store.ledger.log import Ledger
from odfd.trust.signing.owner_commit import LIFETIME, OwnerCommitter
from worlds.commits import commit_events

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
    """Three blocks at once would be later than what was signed of two, and another history all the same."""
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
