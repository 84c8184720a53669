"""Verification: golden chains hold, each way of breaking one is told, and what was verified is remembered."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.codec.blocks import decode_block
from chain.data.logical_hash import logical_hash
from chain.data.parquet import READ_ROWS, open_slice, write_slice
from chain.errors import NotFound
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, Checkpoint, DataSlice, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.store.base import Append
from chain.store.collect import collect, linked_objects
from chain.store.database import Database, open_database
from chain.store.layout import DirectoryChain, DirectoryObjects, DirectoryWriter, read_head
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChain, SqliteChains
from odfd.runtime.tasks import Report
from odfd.services.datasets.verification import show_progress
from odfd.store import resume
from odfd.store.resume import Remembered, StoredMemory
from odfd.transfer.folders import export_dataset, import_dataset
from odfd.verify import objects
from odfd.verify import verify as verify_module
from odfd.verify.objects import _rows_at_once
from odfd.verify.report import Level, Progress, VerificationResult, VerifyFailure
from odfd.verify.verify import VerificationRequest, verify_chain
from worlds.chains import following
from worlds.linked_world import FILES, linked, made, rows
from worlds.schemas import legacy

# Golden chains hold; each way of breaking one is told by its rule, at its block, beside the others.

GOLDEN = Path(__file__).parents[3] / "golden" / "kamu"
NAMES = sorted(folder.name for folder in GOLDEN.iterdir() if folder.is_dir())


def verify(folder: Path, level: Level = Level.DATA, start: int = 0) -> VerificationResult:
    return verify_chain(
        DirectoryChain(folder),
        DirectoryObjects(folder),
        VerificationRequest(ref="x", level=level, start=start, workers=2),
    )


def told(report: VerificationResult) -> list[tuple[int, str]]:
    assert report.ok == (not report.failures)
    return [(failure.block.sequence_number, failure.rule) for failure in report.failures]


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    copy = tmp_path / "flights"
    shutil.copytree(GOLDEN / "flights", copy)
    return copy


def blocks(folder: Path) -> list[Block]:
    return [decode_block(raw) for raw in DirectoryChain(folder).raw_blocks(0, 10**6)]


def slice_file(folder: Path, number: int) -> Path:
    event = blocks(folder)[number].event
    assert isinstance(event, AddData)
    assert event.new_data is not None
    return folder / "data" / str(event.new_data.physical_hash)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", list(Level))
def test_chains_of_the_reference_hold(name: str, level: Level) -> None:
    report = verify(GOLDEN / name, level)
    assert told(report) == []
    assert report.blocks == report.checked.blocks
    assert report.dataset_id.startswith("did:odf:f")
    assert (report.checked.slices > 0) == (level is Level.DATA)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(bytes(raw))


def test_a_flipped_byte_in_a_slice(flights: Path) -> None:
    flip(slice_file(flights, 9), 5000)
    report = verify(flights)
    assert (9, "slice-physical-hash") in told(report)
    assert {number for number, _ in told(report)} == {9}
    assert told(verify(flights, Level.CHAIN)) == []


def test_all_failures_are_told_not_only_the_first(flights: Path) -> None:
    slice_file(flights, 8).unlink()
    slice_file(flights, 10).write_bytes(b"nothing")
    flip(slice_file(flights, 12), 100)
    report = verify(flights)
    assert [number for number, rule in told(report) if rule == "slice-missing"] == [8]
    assert {rule for number, rule in told(report) if number == 10} == {
        "slice-size", "slice-physical-hash", "slice-parquet",
    }  # fmt: skip
    assert (12, "slice-physical-hash") in told(report)
    assert {number for number, _ in told(report)} == {8, 10, 12}
    assert [number for number, _ in told(report)] == sorted(number for number, _ in told(report))


def test_from_a_block_on(flights: Path) -> None:
    slice_file(flights, 8).unlink()
    slice_file(flights, 12).unlink()
    report = verify(flights, start=9)
    assert told(report) == [(12, "slice-missing")]
    assert report.checked.blocks == 19 - 9
    with pytest.raises(NotFound, match="no block #19"):
        verify(flights, start=19)


def block_file(folder: Path, number: int) -> Path:
    return folder / "blocks" / str(blocks(folder)[number].hash)


@pytest.mark.parametrize("number", [0, 4, 9, 17, 18])
def test_a_flipped_byte_in_a_block_is_one_failure(flights: Path, number: int) -> None:
    file = block_file(flights, number)
    flip(file, len(file.read_bytes()) - 1)
    assert told(verify(flights)) == [(number, "block-hash")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 4, 17])
def test_a_missing_block_is_one_failure(flights: Path, number: int) -> None:
    block_file(flights, number).unlink()
    assert told(verify(flights)) == [(number, "block-missing")]


def test_a_missing_head_is_told_and_the_rest_still_checked(flights: Path) -> None:
    damaged = slice_file(flights, 8)
    damaged.unlink()
    block_file(flights, 18).unlink()
    assert told(verify(flights)) == [(8, "slice-missing"), (18, "block-missing")]


def test_a_gap_that_cannot_be_bridged(flights: Path) -> None:
    block_file(flights, 5).unlink()
    block_file_4 = flights / "blocks" / str(blocks(GOLDEN / "flights")[4].hash)
    block_file_4.unlink()
    report = verify(flights)
    assert (5, "block-missing") in told(report)
    assert {number for number, _ in told(report)} == {5}
    assert any("#0 to #4 cannot be reached" in failure.message for failure in report.failures)


def extended(folder: Path, change: Callable[[pa.Table], pa.Table], **claims: Any) -> list[VerifyFailure]:
    """Appends a block with a slice made of the last one's rows, and says what is wrong with it."""
    kept = blocks(folder)
    last, event = kept[-1], kept[-1].event
    assert isinstance(event, AddData)
    assert event.new_data is not None
    start = event.new_data.offset_interval.end + 1
    table = pq.read_table(slice_file(folder, 18))
    offsets = pa.array(range(start, start + table.num_rows), pa.int64())
    table = change(table.set_column(0, table.schema.field(0), offsets))
    file = folder / "data" / ".new"
    write_slice(table, file)
    physical = Multihash.sha3_256(file.read_bytes())
    data = DataSlice(
        logical_hash=claims.get("logical_hash") or logical_hash(table),
        physical_hash=physical,
        offset_interval=type(event.new_data.offset_interval)(start=start, end=start + table.num_rows - 1),
        size=file.stat().st_size,
    )
    file.rename(folder / "data" / str(physical))
    added = AddData(
        prev_offset=start - 1,
        new_data=msgspec.structs.replace(data, **claims),
        new_watermark=event.new_watermark,
        new_source_state=event.new_source_state,
    )
    block = following(last, added, last.system_time)
    writer = DirectoryWriter(folder)
    writer.add_block(block.hash, block.raw)
    writer.set_head(block.hash, read_head(folder))
    return list(verify(folder).failures)


def column(name: str, values: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        field = table.schema.field(place).with_nullable(True)
        return table.set_column(place, field, pa.array(values(table[name].to_pylist()), field.type))

    return change


@pytest.mark.slow
def test_a_slice_as_it_should_be(flights: Path) -> None:
    assert extended(flights, lambda table: table) == []


def late(old: list[Any]) -> list[Any]:
    return [old[0].replace(year=2030), *old[1:]]


def _interval(start: int, end: int) -> OffsetInterval:
    return OffsetInterval(start=start, end=end)


HASH = logical_hash(pa.table({"a": [1]}))
TYPES = "slice-schema"
"""``column`` also lets nulls in, which the schema forbids."""
COLUMNS = {"slice-system-columns", TYPES}
CASES: list[tuple[Callable[[pa.Table], pa.Table], dict[str, Any], set[str]]] = [
    (lambda table: table, {"logical_hash": logical_hash(pa.table({"a": [1]}))}, {"slice-logical-hash"}),
    (lambda table: table, {"size": 5}, {"slice-size"}),
    (column("offset", lambda old: [old[1], old[0], *old[2:]]), {}, {"slice-offsets", TYPES}),
    (column("op", lambda old: [4, *old[1:]]), {}, {"slice-op", TYPES}),
    (column("op", lambda old: [-1, *old[1:]]), {}, {"slice-op", TYPES}),
    (column("op", lambda old: [None, *old[1:]]), {}, {"slice-op", TYPES}),
    (column("system_time", late), {}, {"slice-system-time", TYPES}),
    (lambda table: table.rename_columns(["off", *table.column_names[1:]]), {}, COLUMNS),
    (lambda table: table.drop_columns(["distance"]), {}, {TYPES}),
    (lambda table: table.set_column(1, "op", table["op"].cast(pa.int64())), {}, COLUMNS),
    (lambda table: table.append_column("offset", table["offset"]), {}, COLUMNS),
    (
        lambda table: table.set_column(3, table.column_names[3], table.column(3).cast(pa.timestamp("ms"))),
        {},
        {TYPES},
    ),
    (
        lambda table: table.append_column("odd", pa.array([None] * table.num_rows, pa.duration("ms"))),
        {"logical_hash": HASH, "offset_interval": _interval(9000, 9000)},
        {TYPES, "logical-hash-type", "slice-offsets", "slice-rows", "offsets-sequential"},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("change, claims, expected", CASES)
def test_each_way_a_slice_can_lie(
    flights: Path, change: Callable[[pa.Table], pa.Table], claims: dict[str, Any], expected: set[str]
) -> None:
    failures = extended(flights, change, **claims)
    assert {failure.rule for failure in failures} == expected
    assert {failure.block.sequence_number for failure in failures} == {19}


@pytest.mark.slow
def test_fewer_rows_than_said(flights: Path) -> None:
    failures = extended(flights, lambda table: table.slice(0, 10), offset_interval=_interval(8400, 8410))
    assert [(failure.rule, failure.expected, failure.actual) for failure in failures] == [("slice-rows", "11", "10")]


@pytest.mark.slow
def test_a_broken_append_rule_is_told_by_its_name(flights: Path) -> None:
    failures = extended(flights, lambda table: table.slice(0, 10), offset_interval=_interval(9000, 9009))
    assert "slice-offsets" in {failure.rule for failure in failures}
    assert len({failure.rule for failure in failures}) >= 2


@pytest.mark.slow
def test_checkpoints_are_checked_wherever_they_are(flights: Path) -> None:
    kept = blocks(flights)
    last, event = kept[-1], kept[-1].event
    assert isinstance(event, AddData)
    assert event.new_data is not None
    state = b"state of an engine"
    checkpoint = Checkpoint(physical_hash=Multihash.sha3_256(state), size=len(state))
    added = AddData(
        prev_offset=event.new_data.offset_interval.end,
        new_checkpoint=checkpoint,
        new_watermark=event.new_watermark,
        new_source_state=event.new_source_state,
    )
    block = following(last, added, last.system_time)
    writer = DirectoryWriter(flights)
    writer.add_block(block.hash, block.raw)
    writer.set_head(block.hash, last.hash)
    assert told(verify(flights)) == [(19, "checkpoint-missing")]
    file = flights / "checkpoints" / str(checkpoint.physical_hash)
    file.write_bytes(state)
    assert told(verify(flights)) == []
    file.write_bytes(state[:-1])
    assert told(verify(flights)) == [(19, "checkpoint-size"), (19, "checkpoint-physical-hash")]


@pytest.mark.slow
def test_progress_grows_to_the_end_and_can_stop_the_work(flights: Path) -> None:
    seen: list[Progress] = []
    chain, objects = DirectoryChain(flights), DirectoryObjects(flights)
    verify_chain(chain, objects, VerificationRequest(ref="x"), seen.append)
    assert (seen[-1].blocks, seen[-1].blocks_total) == (19, 19)
    assert seen[-1].objects == seen[-1].objects_known == 12
    assert seen[-1].bytes == seen[-1].bytes_known
    assert all(one.blocks <= other.blocks for one, other in itertools.pairwise(seen))

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_chain(chain, objects, VerificationRequest(ref="x"), stop)


# Objects that rows link to are verified, exported and imported with their slices; the legacy schema is checked too.


def verify_links(folder: Path) -> VerificationResult:
    return verify_chain(DirectoryChain(folder), DirectoryObjects(folder), VerificationRequest(ref="x", workers=1))


def rules_told(folder: Path) -> list[str]:
    return [failure.rule for failure in verify_links(folder).failures]


def test_links_that_hold(tmp_path: Path) -> None:
    assert rules_told(linked(tmp_path / "d")) == []


def test_a_linked_object_that_is_missing_or_damaged(tmp_path: Path) -> None:
    folder = linked(tmp_path / "d")
    files = [folder / "data" / str(Multihash.sha3_256(each)) for each in FILES]
    files[0].unlink()
    assert rules_told(folder) == ["linked-object-missing"]
    files[1].write_bytes(b"another film")
    assert rules_told(folder) == ["linked-object-missing", "linked-object-physical-hash"]


def test_a_link_that_is_no_hash(tmp_path: Path) -> None:
    assert rules_told(linked(tmp_path / "d", ["nonsense"])) == ["link-value"]


def test_links_go_out_and_in_with_their_slices(tmp_path: Path) -> None:
    folder = linked(tmp_path / "d")
    database = open_database(tmp_path / "odfd.sqlite")
    objects = DiskObjects(tmp_path / "objects", database)
    chains = SqliteChains(database, objects)
    done = import_dataset(folder, chains, objects)
    assert done.objects == 3
    assert all(objects.read(Multihash.sha3_256(each)) == each for each in FILES)
    assert collect(chains, objects, dry_run=True).objects == 0
    assert set(linked_objects(chains, objects)) == {Multihash.sha3_256(each) for each in FILES}
    export_dataset(chains, objects, done.dataset, tmp_path / "out")
    tree = {each.relative_to(folder): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    out = tmp_path / "out"
    assert {each.relative_to(out): each.read_bytes() for each in out.rglob("*") if each.is_file()} == tree
    database.close()


@pytest.mark.parametrize("held", [True, False])
def test_types_are_checked_against_a_schema_in_the_legacy_form(tmp_path: Path, held: bool) -> None:
    arrow = rows(["a"]).schema
    if not held:
        arrow = arrow.set(4, pa.field("file", pa.int64(), nullable=False))
    folder = made(tmp_path / "d", ["a"], SetDataSchema(raw_arrow_schema=legacy(arrow)))
    assert rules_told(folder) == ([] if held else ["slice-schema"])


# What a verification tells of itself while it runs.

AT = Progress(blocks=3, blocks_total=15, objects=2, objects_known=9, bytes=20, bytes_known=90, failures=1)


@pytest.mark.slow
def test_bytes_are_counted_where_slices_are_read() -> None:
    report = Report()
    report.begin("verifying flights", 15, "blocks")
    show_progress(
        report, Progress(blocks=1, blocks_total=15, objects=0, objects_known=0, bytes=0, bytes_known=0, failures=0)
    )
    assert (report.done, report.total, report.unit) == (1, 15, "blocks")
    show_progress(report, AT)
    assert (report.done, report.total, report.unit) == (20, 90, "bytes")
    assert report.message == "blocks 3/15, slices 2/9, 1 failure"


# How many rows of a slice are read at once: few where they are wide, as each thread that checks takes new memory.


@pytest.mark.parametrize(("width", "least", "most"), [(20_000, 180, 220), (8, READ_ROWS, READ_ROWS)])
def test_wide_rows_are_read_in_small_windows(tmp_path: Path, width: int, least: int, most: int) -> None:
    rows = random.Random(1)
    texts = [rows.randbytes(width // 2).hex() for _ in range(300)]
    write_slice(pa.table({"offset": pa.array(range(300), pa.int64()), "text": texts}), tmp_path / "slice")
    with open_slice(tmp_path / "slice") as source:
        assert least <= _rows_at_once(source) <= most


# What was verified is remembered: for the chain it was, under the rules there were, and never instead of hashing.

FLIGHTS = Path(__file__).parents[3] / "golden" / "kamu" / "flights"


class Node:
    """A store with the golden flights in it."""

    def __init__(self, directory: Path) -> None:
        self.database: Database = open_database(directory / "odfd.sqlite")
        self.objects = DiskObjects(directory / "objects", self.database)
        self.chains = SqliteChains(self.database, self.objects)
        self.dataset: DatasetId = import_dataset(FLIGHTS, self.chains, self.objects).dataset
        self.read: list[str] = []
        self.cut = threading.Event()
        """Set where a verification is stopped: the last slice is not read ahead of that."""

    @property
    def chain(self) -> SqliteChain:
        return self.chains.chain(self.dataset)

    def verify(self, forget: bool = False, stop_after: int | None = None) -> VerificationResult:
        def show(progress: Progress) -> None:
            if stop_after is not None and progress.objects >= stop_after:
                self.cut.set()
                raise KeyboardInterrupt

        kept = StoredMemory(self.database, self.dataset, forget)
        return verify_chain(self.chain, self.objects, VerificationRequest(ref="x", workers=1), show, kept)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    made = Node(tmp_path)
    rows, bytes_ = objects.check_slice, objects.check_object
    monkeypatch.setattr(verify_module, "check_slice", lambda *args: (made.read.append("rows"), rows(*args))[1])
    monkeypatch.setattr(verify_module, "check_object", lambda *args: (made.read.append("bytes"), bytes_(*args))[1])
    yield made
    made.database.close()


def slices() -> int:
    blocks = [decode_block(raw) for raw in DirectoryChain(FLIGHTS).raw_blocks(0, 10**6)]
    return sum(isinstance(each.event, AddData) and each.event.new_data is not None for each in blocks)


@pytest.mark.slow
def test_rows_are_read_once_and_bytes_always(node: Node) -> None:
    first = node.verify()
    assert (first.ok, first.checked.remembered, node.read) == (True, 0, ["rows"] * slices())
    node.read.clear()
    again = node.verify()
    assert (again.ok, again.checked.slices) == (True, first.checked.slices)
    assert node.read == ["bytes"] * slices()
    assert again.checked.remembered == slices()
    node.read.clear()
    assert node.verify(forget=True).checked.remembered == 0
    assert node.read == ["rows"] * slices()


@pytest.mark.slow
def test_a_bit_that_flips_after_a_verification_is_found(node: Node) -> None:
    assert node.verify().ok
    event = next(
        each.event
        for n in range(19)
        if isinstance((each := node.chain.block_at(n)).event, AddData) and each.event.new_data
    )
    name = event.new_data.physical_hash
    file = node.objects._file(name)
    if file.is_file():
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(raw)
        assert {failure.rule for failure in node.verify().failures} == {"slice-physical-hash"}
    else:
        with node.database.write() as connection:
            connection.execute("UPDATE small_objects SET data = zeroblob(length(data)) WHERE name = ?", (name,))
        assert not node.verify().ok


@pytest.mark.slow
def test_a_verification_cut_short_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "_KEEP_EVERY", 1)
    check = verify_module.check_slice

    def ahead(*args: Any) -> Any:
        if node.read.count("rows") == slices() - 1:
            node.cut.wait()
        return check(*args)

    with monkeypatch.context() as patch:
        patch.setattr(verify_module, "check_slice", ahead)
        with pytest.raises(KeyboardInterrupt):
            node.verify(stop_after=4)
    done = StoredMemory(node.database, node.dataset).recall(node.chain)
    assert 0 < done.done < 19
    node.read.clear()
    answer = node.verify()
    assert answer.ok
    assert 0 < node.read.count("rows") < slices()
    assert "bytes" not in node.read
    assert StoredMemory(node.database, node.dataset).recall(node.chain) == Remembered(rows=19, done=0)


@pytest.mark.slow
def test_other_rules_or_another_chain_forget(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.verify()
    kept = StoredMemory(node.database, node.dataset)
    assert kept.recall(node.chain).rows == 19
    with monkeypatch.context() as patch:
        patch.setattr(resume, "EDITION", resume.EDITION + 1)
        assert kept.recall(node.chain) == Remembered()
    with node.database.write() as connection:
        connection.execute("UPDATE verified SET name = zeroblob(34)")
    assert kept.recall(node.chain) == Remembered()


@pytest.mark.slow
def test_more_blocks_are_read_on_top_of_what_is_known(node: Node, tmp_path: Path) -> None:
    blocks = [decode_block(raw) for raw in DirectoryChain(FLIGHTS).raw_blocks(0, 10**6)]
    files = DirectoryObjects(FLIGHTS)
    assert isinstance(blocks[0].event, Seed)
    node.chains.drop(node.dataset)
    node.chains.commit([Append(dataset=node.dataset, expected=None, blocks=blocks[:12])])
    assert node.verify().ok
    node.read.clear()
    head = node.chain.head()
    node.chains.commit([Append(dataset=node.dataset, expected=head, blocks=blocks[12:])])
    assert node.verify().ok
    late = [each for each in blocks[12:] if isinstance(each.event, AddData) and each.event.new_data]
    assert node.read.count("rows") == len(late)
    assert all(files.has(each.event.new_data.physical_hash) for each in late)  # type: ignore[union-attr]
