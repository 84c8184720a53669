"""Golden chains hold; each way of breaking one is told by its rule, at its block, beside the others."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chain.codec.blocks import decode_block, encode_block
from chain.data.logical_hash import logical_hash
from chain.data.parquet import write_slice
from chain.errors import NotFound
from chain.model.block import Block, MetadataBlock
from chain.model.events import AddData, Checkpoint, DataSlice, OffsetInterval
from chain.multihash import Multihash
from chain.store.layout import DirectoryChain, DirectoryObjects, DirectoryWriter, read_head
from odfd.verify.report import Level, Progress, VerificationResult, VerifyFailure
from odfd.verify.verify import VerificationRequest, verify_chain

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
    content = MetadataBlock(
        system_time=last.system_time,
        prev_block_hash=last.hash,
        sequence_number=19,
        event=AddData(
            prev_offset=start - 1,
            new_data=msgspec.structs.replace(data, **claims),
            new_watermark=event.new_watermark,
            new_source_state=event.new_source_state,
        ),
    )
    block = encode_block(content)
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
    content = MetadataBlock(
        system_time=last.system_time,
        prev_block_hash=last.hash,
        sequence_number=19,
        event=AddData(
            prev_offset=event.new_data.offset_interval.end,
            new_checkpoint=checkpoint,
            new_watermark=event.new_watermark,
            new_source_state=event.new_source_state,
        ),
    )
    block = encode_block(content)
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
