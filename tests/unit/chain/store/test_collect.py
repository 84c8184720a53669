"""What collection frees, and what it never does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chain.codec.blocks import encode_block
from chain.errors import Environment
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, Checkpoint, DatasetKind, Seed
from chain.multihash import Multihash
from chain.store.base import Append, Head, Rewrite
from chain.store.collect import STEP, Collected, collect
from chain.store.database import open_database
from chain.store.holds import Holds
from chain.store.objects import SMALL, DiskObjects
from chain.store.sqlite import SqliteChains
from worlds.counted import Questions, questions

__all__ = ["questions"]

OWNER = DatasetId.from_public_key(bytes(32))


class Store:
    def __init__(self, directory: Path) -> None:
        self.database = open_database(directory / "odfd.sqlite")
        self.objects = DiskObjects(directory / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        self.blocks: list[Block] = []

    def append(self, data: bytes) -> Multihash:
        """A block that names a new checkpoint."""
        name = self.objects.add_bytes(data)
        last = self.blocks[-1] if self.blocks else None
        event: Seed | AddData = AddData(new_checkpoint=Checkpoint(physical_hash=name, size=len(data)))
        if last is None:
            event = Seed(dataset_id=OWNER, dataset_kind=DatasetKind.ROOT)
        block = encode_block(
            MetadataBlock(
                system_time=Instant(0),
                prev_block_hash=last.hash if last else None,
                sequence_number=len(self.blocks),
                event=event,
            )
        )
        expected = Head(last.hash, last.sequence_number) if last else None
        self.chains.commit([Append(dataset=OWNER, expected=expected, blocks=[block], objects=[name])])
        self.blocks.append(block)
        return name

    def found(self, dataset: DatasetId) -> None:
        """One more chain, of a Seed alone."""
        event = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT)
        block = encode_block(
            MetadataBlock(system_time=Instant(0), prev_block_hash=None, sequence_number=0, event=event)
        )
        self.chains.commit([Append(dataset=dataset, expected=None, blocks=[block])])

    def rewind(self, keep: int) -> None:
        last = self.blocks[-1]
        self.chains.rewrite(Rewrite(dataset=OWNER, expected=Head(last.hash, last.sequence_number), keep=keep))
        del self.blocks[keep:]


def again(store: Store, tmp_path: Path) -> Store:
    """As after a restart: nothing is in flight, nothing lent."""
    store.objects.flush()
    store.database.close()
    return Store(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path)
    made.append(b"seed")
    return made


LARGE = b"x" * (SMALL + 1)


def test_small_and_large_objects_of_a_cut_chain_are_freed(store: Store, tmp_path: Path) -> None:
    kept = [store.append(b"a"), store.append(LARGE + b"a")]
    gone = [store.append(b"b"), store.append(LARGE + b"b")]
    store.rewind(3)
    store = again(store, tmp_path)
    told: list[Multihash] = []
    would = collect(store.chains, store.objects, dry_run=True, freed=lambda name, _: told.append(name))
    seed = Multihash.sha3_256(b"seed")
    assert set(told) == {*gone, seed}
    assert all(store.objects.has(name) for name in [*kept, *gone])
    store = again(store, tmp_path)
    assert collect(store.chains, store.objects) == would
    assert would == Collected(objects=3, bytes=1 + len(LARGE) + 1 + 4, kept=0)
    assert [store.objects.has(name) for name in [*kept, *gone]] == [True, True, False, False]
    store.database.close()


@pytest.mark.slow
def test_each_freed_object_costs_the_same_however_many_chains_and_objects_there_are(
    questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody who asks for an object waits for more than one step of them."""
    store = Store(tmp_path)
    for number in range(30):
        store.found(DatasetId.from_public_key(bytes([number]) * 32))
    steps: list[int] = []
    unless_held = Holds.unless_held

    def watched(self: Holds, names: Iterable[Multihash], foreseen: bool = False) -> Any:
        steps.append(len(list(names)))
        return unless_held(self, names, foreseen)

    monkeypatch.setattr(Holds, "unless_held", watched)

    def asked(count: int) -> int:
        nonlocal store
        for number in range(count):
            store.objects.add_bytes(b"%d" % number)
        store = again(store, tmp_path)
        with questions.during() as found:
            assert collect(store.chains, store.objects).objects == count
        return len(found)

    asked(1)
    few, many = asked(STEP), asked(4 * STEP)
    assert many - few <= 3 * STEP * 3, "a few questions for each object, whatever else is there"
    assert max(steps) == STEP
    store.database.close()


@pytest.mark.slow
def test_a_chain_costs_one_question_and_no_step_asks_more_for_it(questions: Questions, tmp_path: Path) -> None:
    """Its blocks are read once, whatever is freed: steps look at chains that changed alone."""
    asked = []
    for count in (10, 110):
        folder = tmp_path / str(count)
        folder.mkdir()
        store = Store(folder)
        for number in range(count):
            store.found(DatasetId.from_public_key(number.to_bytes(32, "big")))
        for number in range(4 * STEP):
            store.objects.add_bytes(b"%d" % number)
        store = again(store, folder)
        with questions.during() as found:
            assert collect(store.chains, store.objects).objects == 4 * STEP
        asked.append(len(found))
        store.database.close()
    assert asked[1] - asked[0] == 100


def test_a_damaged_block_among_short_chains_is_named(store: Store) -> None:
    for number in range(1, 5):
        store.found(DatasetId.from_public_key(number.to_bytes(32, "big")))
    broken = DatasetId.from_public_key((3).to_bytes(32, "big"))
    with store.database.write() as connection:
        connection.execute("UPDATE blocks SET raw = x'00' WHERE dataset = 4")  # the chains are numbered from 1
    with pytest.raises(Environment, match=f"block #0 of {broken.short} is damaged"):
        collect(store.chains, store.objects)
    store.database.close()


def test_what_waits_for_its_block_is_kept(store: Store) -> None:
    waiting = [store.objects.add_bytes(b"waiting"), store.objects.add_bytes(LARGE)]
    store.objects.flush()
    for _ in range(3):
        collect(store.chains, store.objects)
        assert all(store.objects.has(name) for name in waiting)
    store.database.close()


def test_a_path_is_good_until_the_collection_after_next(store: Store, tmp_path: Path) -> None:
    name = store.append(LARGE)
    store.append(b"other")
    store.rewind(1)
    store = again(store, tmp_path)
    file = store.objects.path(name)
    assert collect(store.chains, store.objects).kept == 1
    assert file.is_file()
    collect(store.chains, store.objects)
    assert not file.exists()
    store.database.close()


def test_a_hold_keeps_as_long_as_it_lasts(store: Store, tmp_path: Path) -> None:
    name = store.append(LARGE)
    store.append(b"other")
    store.rewind(1)
    store = again(store, tmp_path)
    with store.objects.holds.hold([name]), store.objects.holds.hold([name]):
        for _ in range(4):
            collect(store.chains, store.objects)
    assert store.objects._file(name).is_file()
    collect(store.chains, store.objects)
    assert not store.objects._file(name).is_file()
    store.database.close()


def test_what_the_caller_reaches_is_kept(store: Store, tmp_path: Path) -> None:
    name = store.objects.add_bytes(LARGE)
    store = again(store, tmp_path)
    assert collect(store.chains, store.objects, [name]).objects == 1  # the seed's, which no block names
    assert store.objects.has(name)
    store.database.close()


def test_a_commit_that_comes_meanwhile_wins(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that nobody named when the collection began is named by a block before its turn comes."""
    monkeypatch.setattr("chain.store.collect.STEP", 2)
    spare = [store.objects.add_bytes(LARGE + bytes([n])) for n in range(6)]
    seeds = store.blocks
    store = again(store, tmp_path)
    store.blocks = seeds
    named: list[Multihash] = []

    def meanwhile(name: Multihash, _: int) -> None:
        if not named:
            left = next(each for each in spare if each != name and store.objects._file(each).is_file())
            named.append(left)
            data = store.objects._file(left).read_bytes()
            store.append(data)

    collect(store.chains, store.objects, freed=meanwhile)
    assert store.objects.has(named[0])
    store.database.close()


def test_nothing_is_freed_while_a_block_is_damaged(store: Store, tmp_path: Path) -> None:
    name = store.append(LARGE)
    with store.database.write() as connection:
        connection.execute("UPDATE blocks SET raw = zeroblob(length(raw)) WHERE sequence = 1")
    store = again(store, tmp_path)
    with pytest.raises(Environment, match="nothing is freed"):
        collect(store.chains, store.objects)
    assert store.objects.has(name)
    store.database.close()


def test_when_too_much_was_lent_everything_stays() -> None:
    holds = Holds(max_lent=2)
    names = [Multihash.sha3_256(bytes([n])) for n in range(4)]
    for name in names[:3]:
        holds.lend(name)
    with holds.unless_held([names[3]]) as free:
        assert not free
    for _ in range(2):
        holds.next_collection()
    with holds.unless_held([names[3]]) as free:
        assert free
