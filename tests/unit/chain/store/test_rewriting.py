"""Reset, compaction and metadata alone: the new history keeps the rules, the rows and what was the same before."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.blocks import encode_block
from chain.compaction import LINKED, Limits, merged, plan_compaction
from chain.data.parquet import open_slice
from chain.errors import Conflict, Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, Checkpoint, DatasetKind, DataSlice, OffsetInterval, Seed, SetInfo, SourceState
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import Append, Head, Rewrite
from chain.store.collect import STEP, Collected, collect
from chain.store.database import open_database
from chain.store.holds import Holds
from chain.store.objects import SMALL, DiskObjects
from chain.store.rewriting import RewritePlan, plan_merging, plan_metadata, plan_reset, prepare
from chain.store.sqlite import SqliteChains
from odfd.transfer.folders import import_dataset
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.chains import following, linked
from worlds.counted import Questions, questions

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"
LATER = Instant(4_000_000_000 * 10**9)


class Store:
    def __init__(self, directory: Path, name: str) -> None:
        self.database = open_database(directory / "odfd.sqlite")
        self.objects = DiskObjects(directory / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        self.dataset = import_dataset(GOLDEN / name, self.chains, self.objects).dataset
        self.chain = self.chains.chain(self.dataset)

    def rows(self) -> pa.Table:
        tables = []
        for number in range(self.chain.snapshot().head.size):
            event = self.chain.block_at(number).event
            if isinstance(event, AddData) and event.new_data:
                with open_slice(self.objects.path(event.new_data.physical_hash)) as source:
                    tables.append(source.read())
        return pa.concat_tables(tables)

    def raws(self) -> list[bytes]:
        return list(self.chain.raw_blocks(0, 10**6))

    def rewrite(self, plan: RewritePlan | None, at: Instant = LATER, also: Any = None) -> Head:
        assert plan is not None
        return self.chains.rewrite(prepare(self.chain, self.objects, plan, at), also)

    def merging(self, rows: int = 10**9) -> RewritePlan | None:
        return plan_merging(self.chain, self.dataset, Limits(rows=rows))

    def holds(self) -> bool:
        return verify_chain(self.chain, self.objects, VerificationRequest(ref="x", workers=1)).ok


@pytest.fixture(params=["flights", "orders", "airlines", "events"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path, request.param)
    yield made
    made.database.close()


@pytest.mark.slow
def test_compaction_keeps_every_row_and_every_rule(store: Store) -> None:
    rows, raws, state = store.rows(), store.raws(), load_state(store.chain)
    plan = store.merging()
    if plan is None:
        assert store.raws() == raws
        return
    head = store.rewrite(plan)
    now = load_state(store.chain)
    assert store.rows().equals(rows)
    assert store.holds()
    assert (now.watermark, now.last_offset, now.schema) == (state.watermark, state.last_offset, state.schema)
    assert now.size == plan.size < state.size
    assert store.raws()[: plan.base.size] == raws[: plan.base.size]
    assert plan.last == Head(state.head, state.sequence_number)  # type: ignore[arg-type]
    assert head == store.chain.head()
    assert store.merging() is None


@pytest.mark.slow
def test_metadata_alone(store: Store) -> None:
    raws = store.raws()
    before = load_state(store.chain)
    plan = plan_metadata(store.chain, store.dataset)
    assert plan is not None
    store.rewrite(plan)
    after = load_state(store.chain)
    assert after.size == plan.size
    assert (after.last_offset, after.watermark, after.last_data) == (None, None, None)
    for name in ("dataset", "kind", "schema", "set_polling_source", "push_sources", "set_info", "set_license"):
        assert getattr(after, name) == getattr(before, name)
    assert store.raws()[: plan.base.size] == raws[: plan.base.size]
    assert store.holds()
    assert plan_metadata(store.chain, store.dataset) is None


@pytest.mark.slow
def test_reset_to_an_ancestor(store: Store) -> None:
    raws = store.raws()
    target = store.chain.block_at(len(raws) - 3)
    last = store.chain.head()
    assert last is not None
    head = Head(target.hash, target.sequence_number)
    plan = plan_reset(store.chain, store.dataset, target.hash)
    assert plan == RewritePlan(dataset=store.dataset, after="nothing", base=head, last=last, size=head.size)
    assert store.rewrite(plan) == head
    assert store.raws() == raws[:-2]
    assert store.holds()
    with pytest.raises(Invalid, match="is the head"):
        plan_reset(store.chain, store.dataset, target.hash)
    with pytest.raises(NotFound):
        plan_reset(store.chain, store.dataset, last.hash)
    with pytest.raises(Conflict):
        store.chains.rewrite(Rewrite(dataset=store.dataset, expected=last, keep=1))


@pytest.mark.slow
def test_what_is_written_beside_a_rewrite_comes_or_goes_with_it(tmp_path: Path) -> None:
    store = Store(tmp_path, "flights")
    raws = store.raws()
    store.database.migrate("notes", ["CREATE TABLE notes (size INTEGER)"])

    def fail(connection: Any) -> None:
        connection.execute("INSERT INTO notes VALUES (1)")
        raise Invalid("no epoch for it", rule="epoch")

    with pytest.raises(Invalid, match="no epoch"):
        store.rewrite(plan_metadata(store.chain, store.dataset), also=fail)
    assert store.raws() == raws
    with store.database.read() as connection:
        assert connection.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    store.database.close()


@pytest.mark.slow
def test_a_rewrite_in_the_past_breaks_the_rules_and_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path, "flights")
    raws = store.raws()
    with pytest.raises(Invalid, match="systemTime goes back"):
        store.rewrite(store.merging(), Instant(0))
    assert store.raws() == raws
    store.database.close()


@pytest.mark.slow
def test_a_damaged_slice_is_not_merged(tmp_path: Path) -> None:
    """Attack T-HEAD-03: damage that a compaction would sign as new data.

    Defence: each slice is hashed before it is merged.

    Merged, its rows would be signed anew, and nobody could tell any more that they are not what was published.
    """
    store = Store(tmp_path, "flights")
    raws = store.raws()
    event = store.chain.last_of(("AddData",))
    assert event is not None
    assert isinstance(event.event, AddData)
    assert event.event.new_data is not None
    name = event.event.new_data.physical_hash
    rows = store.objects.read(name)
    damaged = tmp_path / "objects" / f"{name.digest[0]:02x}" / str(name)
    damaged.parent.mkdir(exist_ok=True)
    damaged.write_bytes(rows.replace(b"UA", b"AA"))
    assert damaged.read_bytes() != rows
    with pytest.raises(Environment, match="damaged on disk"):
        store.rewrite(store.merging())
    assert store.raws() == raws
    assert not list((tmp_path / "objects" / ".staging").iterdir())
    store.database.close()


def chain_of(seed: int) -> list[Block]:
    lot = random.Random(seed)
    events: list[AddData | SetInfo] = []
    offset = 0
    for number in range(lot.randrange(1, 40)):
        event: AddData | SetInfo = SetInfo(description=str(number))
        if lot.random() < 0.85:
            count = lot.randrange(4) * 3
            hash_ = Multihash.sha3_256(str(number).encode())
            interval = OffsetInterval(start=offset, end=offset + count - 1)
            data = DataSlice(logical_hash=hash_, physical_hash=hash_, offset_interval=interval, size=count * 10)
            event = AddData(new_data=data if count else None, new_watermark=Instant(number))
            offset += count
        events.append(event)
    return linked(events, Instant(0))


@given(st.integers(0, 1 << 32), st.integers(1, 60), st.integers(1, 400))
def test_batches_are_within_the_limits_and_as_long_as_they_can_be(seed: int, rows: int, size: int) -> None:
    blocks = chain_of(seed)
    batches = plan_compaction(blocks, Limits(bytes=size, rows=rows))

    def weight(part: range) -> tuple[int, int]:
        events = [blocks[n].event for n in part]
        slices = [each.new_data for each in events if isinstance(each, AddData) and each.new_data]
        return sum(each.size for each in slices), sum(
            each.offset_interval.end - each.offset_interval.start + 1 for each in slices
        )

    stop = len(blocks)
    for batch in reversed(batches):
        assert len(batch) > 1
        assert batch.stop <= stop
        assert all(isinstance(blocks[n].event, AddData) for n in batch)
        assert weight(batch) <= (size, weight(batch)[1])
        assert weight(batch)[1] <= rows
        if batch.start and isinstance(blocks[batch.start - 1].event, AddData):
            wider = weight(range(batch.start - 1, batch.stop))
            assert wider[0] > size or wider[1] > rows
        stop = batch.start


@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_where_rows_go(seed: int, rows: int) -> None:
    blocks = chain_of(seed)
    batches = plan_compaction(blocks, Limits(rows=rows))
    head = Head(blocks[-1].hash, blocks[-1].sequence_number)
    owner = DatasetId.from_public_key(bytes(32))
    plan = RewritePlan(dataset=owner, after="merged", base=head, last=head, size=0, batches=batches)
    number, expected = -1, []
    for old in range(len(blocks)):
        goes_on = any(old in batch and old != batch.start for batch in batches)
        number += not goes_on
        expected.append(number)
    moved = plan.moved()
    assert [moved(old) for old in range(len(blocks))] == expected


def test_a_merged_event_carries_the_newest_of_each() -> None:
    saved = [Checkpoint(physical_hash=Multihash.sha3_256(bytes([n])), size=n) for n in (1, 2)]
    state = SourceState(source_name="default", kind="odf/etag", value="1")
    linked = {LINKED: {"numObjectsNaive": 2, "sizeNaive": 30}, "a": 1}
    event = merged(
        [
            AddData(prev_offset=4, new_checkpoint=saved[0], new_watermark=Instant(1), extra=linked),
            AddData(prev_offset=4, new_checkpoint=saved[1], new_source_state=state, extra=linked | {"a": 2}),
            AddData(prev_offset=4, new_watermark=Instant(3)),
        ],
        None,
    )
    assert event == AddData(
        prev_offset=4,
        new_checkpoint=saved[1],
        new_watermark=Instant(3),
        new_source_state=state,
        extra={LINKED: {"numObjectsNaive": 4, "sizeNaive": 60}, "a": 2},
    )


@pytest.mark.slow
def test_a_damaged_slice_is_never_laundered(tmp_path: Path) -> None:
    """Attack T-DISK-01: a damaged slice, hidden by what is computed from it.

    Defence: it is hashed before it is merged or derived from.

    Merged into another, its rows would get hashes of their own, and nothing would tell any more.
    """
    store = Store(tmp_path, "flights")
    raws = store.raws()
    events = [store.chain.block_at(number).event for number in range(len(raws))]
    name = next(event.new_data.physical_hash for event in events if isinstance(event, AddData) and event.new_data)
    with store.database.write() as connection:
        data = connection.execute("SELECT data FROM small_objects WHERE name = ?", (name,)).fetchone()
        if data is not None:
            spoilt = data[0][:100] + bytes([data[0][100] ^ 1]) + data[0][101:]
            connection.execute("UPDATE small_objects SET data = ? WHERE name = ?", (spoilt, name))
    if data is None:
        path = store.objects.path(name)
        path.chmod(0o644)
        whole = path.read_bytes()
        path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(Environment, match="is damaged on disk"):
        store.rewrite(store.merging())
    assert store.raws() == raws
    assert list(store.objects.stage().parent.iterdir()) == []
    store.database.close()


# What collection frees, and what it never does.


__all__ = ["questions"]
OWNER = DatasetId.from_public_key(bytes(32))


class CollectedStore:
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
        block = following(last, event, 0)
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


def again(store: CollectedStore, tmp_path: Path) -> CollectedStore:
    """As after a restart: nothing is in flight, nothing lent."""
    store.objects.flush()
    store.database.close()
    return CollectedStore(tmp_path)


@pytest.fixture
def seeded(tmp_path: Path) -> CollectedStore:
    made = CollectedStore(tmp_path)
    made.append(b"seed")
    return made


LARGE = b"x" * (SMALL + 1)


def test_small_and_large_objects_of_a_cut_chain_are_freed(seeded: CollectedStore, tmp_path: Path) -> None:
    kept = [seeded.append(b"a"), seeded.append(LARGE + b"a")]
    gone = [seeded.append(b"b"), seeded.append(LARGE + b"b")]
    seeded.rewind(3)
    seeded = again(seeded, tmp_path)
    told: list[Multihash] = []
    would = collect(seeded.chains, seeded.objects, dry_run=True, freed=lambda name, _: told.append(name))
    seed = Multihash.sha3_256(b"seed")
    assert set(told) == {*gone, seed}
    assert all(seeded.objects.has(name) for name in [*kept, *gone])
    seeded = again(seeded, tmp_path)
    assert collect(seeded.chains, seeded.objects) == would
    assert would == Collected(objects=3, bytes=1 + len(LARGE) + 1 + 4, kept=0)
    assert [seeded.objects.has(name) for name in [*kept, *gone]] == [True, True, False, False]
    seeded.database.close()


@pytest.mark.slow
def test_each_freed_object_costs_the_same_however_many_chains_and_objects_there_are(
    questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody who asks for an object waits for more than one step of them."""
    seeded = CollectedStore(tmp_path)
    for number in range(30):
        seeded.found(DatasetId.from_public_key(bytes([number]) * 32))
    steps: list[int] = []
    unless_held = Holds.unless_held

    def watched(self: Holds, names: Iterable[Multihash], foreseen: bool = False) -> Any:
        steps.append(len(list(names)))
        return unless_held(self, names, foreseen)

    monkeypatch.setattr(Holds, "unless_held", watched)

    def asked(count: int) -> int:
        nonlocal seeded
        for number in range(count):
            seeded.objects.add_bytes(b"%d" % number)
        seeded = again(seeded, tmp_path)
        with questions.during() as found:
            assert collect(seeded.chains, seeded.objects).objects == count
        return len(found)

    asked(1)
    few, many = asked(STEP), asked(4 * STEP)
    assert many - few <= 3 * STEP * 3, "a few questions for each object, whatever else is there"
    assert max(steps) == STEP
    seeded.database.close()


@pytest.mark.slow
def test_a_chain_costs_one_question_and_no_step_asks_more_for_it(questions: Questions, tmp_path: Path) -> None:
    """Its blocks are read once, whatever is freed: steps look at chains that changed alone."""
    asked = []
    for count in (10, 110):
        folder = tmp_path / str(count)
        folder.mkdir()
        seeded = CollectedStore(folder)
        for number in range(count):
            seeded.found(DatasetId.from_public_key(number.to_bytes(32, "big")))
        for number in range(4 * STEP):
            seeded.objects.add_bytes(b"%d" % number)
        seeded = again(seeded, folder)
        with questions.during() as found:
            assert collect(seeded.chains, seeded.objects).objects == 4 * STEP
        asked.append(len(found))
        seeded.database.close()
    assert asked[1] - asked[0] == 100


def test_a_damaged_block_among_short_chains_is_named(seeded: CollectedStore) -> None:
    for number in range(1, 5):
        seeded.found(DatasetId.from_public_key(number.to_bytes(32, "big")))
    broken = DatasetId.from_public_key((3).to_bytes(32, "big"))
    with seeded.database.write() as connection:
        connection.execute("UPDATE blocks SET raw = x'00' WHERE dataset = 4")  # the chains are numbered from 1
    with pytest.raises(Environment, match=f"block #0 of {broken.short} is damaged"):
        collect(seeded.chains, seeded.objects)
    seeded.database.close()


def test_what_waits_for_its_block_is_kept(seeded: CollectedStore) -> None:
    waiting = [seeded.objects.add_bytes(b"waiting"), seeded.objects.add_bytes(LARGE)]
    seeded.objects.flush()
    for _ in range(3):
        collect(seeded.chains, seeded.objects)
        assert all(seeded.objects.has(name) for name in waiting)
    seeded.database.close()


def test_a_path_is_good_until_the_collection_after_next(seeded: CollectedStore, tmp_path: Path) -> None:
    name = seeded.append(LARGE)
    seeded.append(b"other")
    seeded.rewind(1)
    seeded = again(seeded, tmp_path)
    file = seeded.objects.path(name)
    assert collect(seeded.chains, seeded.objects).kept == 1
    assert file.is_file()
    collect(seeded.chains, seeded.objects)
    assert not file.exists()
    seeded.database.close()


def test_a_hold_keeps_as_long_as_it_lasts(seeded: CollectedStore, tmp_path: Path) -> None:
    name = seeded.append(LARGE)
    seeded.append(b"other")
    seeded.rewind(1)
    seeded = again(seeded, tmp_path)
    with seeded.objects.holds.hold([name]), seeded.objects.holds.hold([name]):
        for _ in range(4):
            collect(seeded.chains, seeded.objects)
    assert seeded.objects._file(name).is_file()
    collect(seeded.chains, seeded.objects)
    assert not seeded.objects._file(name).is_file()
    seeded.database.close()


def test_what_the_caller_reaches_is_kept(seeded: CollectedStore, tmp_path: Path) -> None:
    name = seeded.objects.add_bytes(LARGE)
    seeded = again(seeded, tmp_path)
    assert collect(seeded.chains, seeded.objects, [name]).objects == 1  # the seed's, which no block names
    assert seeded.objects.has(name)
    seeded.database.close()


def test_a_commit_that_comes_meanwhile_wins(
    seeded: CollectedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that nobody named when the collection began is named by a block before its turn comes."""
    monkeypatch.setattr("chain.store.collect.STEP", 2)
    spare = [seeded.objects.add_bytes(LARGE + bytes([n])) for n in range(6)]
    seeds = seeded.blocks
    seeded = again(seeded, tmp_path)
    seeded.blocks = seeds
    named: list[Multihash] = []

    def meanwhile(name: Multihash, _: int) -> None:
        if not named:
            left = next(each for each in spare if each != name and seeded.objects._file(each).is_file())
            named.append(left)
            data = seeded.objects._file(left).read_bytes()
            seeded.append(data)

    collect(seeded.chains, seeded.objects, freed=meanwhile)
    assert seeded.objects.has(named[0])
    seeded.database.close()


def test_nothing_is_freed_while_a_block_is_damaged(seeded: CollectedStore, tmp_path: Path) -> None:
    name = seeded.append(LARGE)
    with seeded.database.write() as connection:
        connection.execute("UPDATE blocks SET raw = zeroblob(length(raw)) WHERE sequence = 1")
    seeded = again(seeded, tmp_path)
    with pytest.raises(Environment, match="nothing is freed"):
        collect(seeded.chains, seeded.objects)
    assert seeded.objects.has(name)
    seeded.database.close()


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
