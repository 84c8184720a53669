"""What the commit point of a node promises to those who write shards there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chain.codec.blocks import encode_block
from chain.errors import Conflict, Invalid
from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, OffsetInterval, Seed, SetInfo
from chain.multihash import Multihash
from chain.store import shards
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.shards import (
    SEALED,
    CommitPoint,
    Committed,
    Conflicting,
    Equivalent,
    Proposal,
    Reading,
    Same,
    Shard,
    ShardSealed,
    ShardStore,
    Stale,
)
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards

D, K = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))
KEYS = {"accessKeyId": "key", "secretAccessKey": "secret"}


class Place:
    """Where shards lie; ``opened`` is another process there."""

    def __init__(self, opened: Callable[[], ShardStore], add: Callable[[bytes], Multihash]) -> None:
        self.opened, self.add = opened, add

    def point(self) -> CommitPoint:
        return CommitPoint(self.opened())


def in_sqlite(folder: Path) -> Iterator[Place]:
    database = open_database(folder / "odfd.sqlite")
    objects = DiskObjects(folder / "objects", database)
    chains = SqliteChains(database, objects)
    yield Place(lambda: SqliteShards(database, chains), objects.add_bytes)
    database.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield from in_sqlite(tmp_path)


def block(time: int, after: Block | None, event: SetInfo | AddData | None = None, owner: DatasetId = D) -> Block:
    return encode_block(
        MetadataBlock(
            system_time=from_millis(time),
            prev_block_hash=after.hash if after else None,
            sequence_number=after.sequence_number + 1 if after else 0,
            event=event or Seed(dataset_id=owner, dataset_kind=DatasetKind.ROOT),
        )
    )


def note(time: int, after: Block, text: str) -> Block:
    return block(time, after, SetInfo(description=text))


def of(*blocks: Block, upper: int, owner: DatasetId = D) -> Proposal:
    return Proposal(dataset=owner, blocks=blocks, new_upper=upper)


SEED = block(10, None)
FIRST = note(20, SEED, "first")


def test_a_transaction_is_taken_once_and_then_known(place: Place) -> None:
    one, other = place.point(), place.point()
    (begun,) = one.append([of(SEED, upper=11)])
    assert isinstance(begun, Committed)
    assert one.shard(D) == other.shard(D) == begun.shard
    assert other.append([of(SEED, upper=11)]) == [Same(begun.shard)]
    pair = (FIRST, note(20, FIRST, "of the same time"))
    (taken,) = other.append([of(*pair, upper=30)])
    assert taken == Committed(shards.Shard(taken.shard.head, 30))
    assert one.append([of(*pair, upper=21)]) == [Same(taken.shard)]
    assert one.append([of(SEED, upper=11)]) == [Same(taken.shard)], "an old one too, however far the shard is"


def test_another_transaction_of_a_complete_time_is_a_conflict_with_its_evidence(place: Place) -> None:
    point = place.point()
    point.append([of(SEED, upper=11)])
    (taken,) = point.append([of(FIRST, upper=30)])
    mine = note(20, SEED, "mine")
    assert point.append([of(mine, upper=21)]) == [Conflicting(taken.shard, 20, (FIRST.hash,), (mine.hash,))]
    late = note(25, FIRST, "late")
    assert point.append([of(late, upper=26)]) == [Conflicting(taken.shard, 25, (), (late.hash,))]
    part = (FIRST, note(20, FIRST, "one block more"))
    assert isinstance(point.append([of(*part, upper=21)])[0], Conflicting)
    assert point.shard(D) == taken.shard


def test_a_plan_on_another_head_is_stale(place: Place) -> None:
    point = place.point()
    point.append([of(SEED, upper=11)])
    (taken,) = point.append([of(FIRST, upper=21)])
    assert point.append([of(note(40, SEED, "planned before"), upper=41)]) == [Stale(taken.shard)]
    assert point.append([of(note(40, FIRST, "planned again"), upper=41)])[0] != Stale(taken.shard)


def test_progress_needs_no_blocks_and_does_not_go_back(place: Place) -> None:
    point = place.point()
    with pytest.raises(Invalid, match="without blocks"):
        point.append([of(upper=5)])
    point.append([of(SEED, upper=11)])
    (on,) = point.append([of(upper=100)])
    assert on == Committed(shards.Shard(on.shard.head, 100))
    assert place.point().append([of(upper=50)]) == [Same(on.shard)]
    assert isinstance(point.append([of(FIRST, upper=21)])[0], Conflicting), "20 was promised to be complete"


def test_a_sealed_shard_takes_nothing_more(place: Place) -> None:
    point = place.point()
    point.append([of(SEED, upper=11)])
    (sealed,) = point.append([of(upper=SEALED)])
    assert isinstance(sealed, Committed)
    assert point.append([of(FIRST, upper=21)]) == [ShardSealed(sealed.shard)]
    assert point.append([of(SEED, upper=11)]) == [Same(sealed.shard)], "what is stored is still known"
    assert point.append([of(upper=SEALED)]) == [Same(sealed.shard)]


def test_several_shards_are_taken_together_or_not_at_all(place: Place) -> None:
    point = place.point()
    seed_k = block(10, None, owner=K)
    together = [of(seed_k, upper=11, owner=K), of(SEED, upper=11)]
    assert [type(each) for each in point.append(together)] == [Committed, Committed]
    bound = block(20, seed_k, AddData(new_watermark=from_millis(1)))
    before = point.shard(K)
    lost = [of(bound, upper=21, owner=K), of(note(20, FIRST, "on another head"), upper=21)]
    assert point.append(lost) == [Stale(before), Stale(point.shard(D))]
    assert point.shard(K) == before
    fused = [of(bound, upper=21, owner=K), of(FIRST, upper=21)]
    assert [type(each) for each in point.append(fused)] == [Committed, Committed]
    assert [type(each) for each in place.point().append(fused)] == [Same, Same]


def sliced(physical: Multihash, size: int, logical: bytes = b"rows") -> AddData:
    return AddData(
        new_data=DataSlice(
            logical_hash=Multihash.sha3_256(logical),
            physical_hash=physical,
            offset_interval=OffsetInterval(start=0, end=1),
            size=size,
        )
    )


def test_other_bytes_of_the_same_rows_are_equivalent_and_the_stored_ones_stay(place: Place) -> None:
    point = place.point()
    point.append([of(SEED, upper=11)])
    ours, theirs = place.add(b"ours"), place.add(b"theirs")
    mine, other = (block(20, SEED, sliced(name, size)) for name, size in ((ours, 4), (theirs, 6)))
    (taken,) = point.append([of(mine, upper=21)])
    assert point.append([of(other, upper=21)]) == [Equivalent(taken.shard)]
    assert point.shard(D) == taken.shard
    wrong = block(20, SEED, sliced(theirs, 6, logical=b"other rows"))
    assert isinstance(point.append([of(wrong, upper=21)])[0], Conflicting)


def test_objects_come_before_the_blocks_that_name_them(place: Place) -> None:
    point = place.point()
    point.append([of(SEED, upper=11)])
    with pytest.raises(Invalid, match="object"):
        point.append([of(block(20, SEED, sliced(Multihash.sha3_256(b"nowhere"), 7)), upper=21)])
    assert point.shard(D).upper == 11


def test_who_is_overtaken_between_reading_and_writing_begins_anew(place: Place) -> None:
    other = place.point()
    other.append([of(SEED, upper=11)])

    def overtaken(by: Proposal) -> CommitPoint:
        slow, waiting = place.opened(), [by]
        read = slow.read

        def read_late(datasets: Sequence[DatasetId]) -> Reading:
            found = read(datasets)
            if waiting:
                assert isinstance(other.append([waiting.pop()])[0], Committed)
            return found

        slow.read = read_late  # type: ignore[method-assign]
        return CommitPoint(slow)

    assert isinstance(overtaken(of(FIRST, upper=21)).append([of(FIRST, upper=21)])[0], Same)
    theirs, mine = note(30, FIRST, "theirs"), note(30, FIRST, "mine")
    assert isinstance(overtaken(of(theirs, upper=31)).append([of(mine, upper=31)])[0], Conflicting)
    assert isinstance(overtaken(of(upper=50)).append([of(note(40, theirs, "mine"), upper=41)])[0], Conflicting)
    assert isinstance(overtaken(of(upper=60)).append([of(note(70, theirs, "mine"), upper=71)])[0], Committed)


def test_many_writers_of_one_step_take_it_once(place: Place) -> None:
    place.point().append([of(SEED, upper=11)])
    ready = threading.Barrier(4)

    def write(_: int) -> list[type]:
        point, last = place.point(), SEED
        seen: list[type] = []
        ready.wait(60)
        for time in range(20, 26):
            last = note(time, last, str(time))
            seen += map(type, point.append([of(last, upper=time + 1)]))
        return seen

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(write, range(4)))
    assert {each for one in outcomes for each in one} <= {Committed, Same}
    assert [sum(one[step] is Committed for one in outcomes) for step in range(6)] == [1] * 6
    assert place.point().shard(D).upper == 26


@pytest.mark.parametrize(
    "bad",
    [
        of(SEED, upper=10),
        of(SEED, note(11, SEED, "of another time"), upper=20),
        of(SEED, note(10, FIRST, "not linked"), upper=20),
        of(SEED, upper=SEALED + 1),
    ],
)
def test_what_no_shard_could_take_is_refused(bad: Proposal, tmp_path: Path) -> None:
    for place in in_sqlite(tmp_path):
        point = place.point()
        with pytest.raises(Invalid):
            point.append([bad])
        with pytest.raises(Invalid, match="twice"):
            point.append([of(SEED, upper=11), of(SEED, upper=11)])
        assert point.shard(D) == Shard()


def test_plain_commits_keep_what_was_promised(tmp_path: Path) -> None:
    database = open_database(tmp_path / "odfd.sqlite")
    objects = DiskObjects(tmp_path / "objects", database)
    chains = SqliteChains(database, objects)
    point = CommitPoint(SqliteShards(database, chains))
    chains.commit([Append(dataset=D, expected=None, blocks=[SEED])])
    assert point.shard(D).upper == 10, "without a promise another block may have the last one's time"
    point.append([of(upper=30)])
    head = point.shard(D).head
    with pytest.raises(Conflict, match="complete"):
        chains.commit([Append(dataset=D, expected=head, blocks=[FIRST])])
    chains.commit([Append(dataset=D, expected=head, blocks=[note(35, SEED, "later")])])
    assert point.shard(D).upper == 35
    database.close()
