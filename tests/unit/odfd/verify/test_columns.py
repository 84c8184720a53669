"""Judging blocks as columns gives the answer that judging them one by one gives, whatever is wrong with them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chain.codec.blocks import decode_block, encode_block
from chain.codec.shape import shape_of
from chain.codec.timestamp import pack, unpack
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddData,
    Checkpoint,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    ExecuteTransformInput,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetTransform,
    SourceState,
    TransformInput,
)
from chain.model.schema import DataField, DataSchema, Int64
from chain.model.source import SqlQueryStep, TransformSql
from chain.multihash import ARROW0_SHA3_256, SHA2_256, Multihash
from chain.rules import RULES, Binds
from chain.rules.columns import unpack_many
from chain.rules.rule import Rule
from chain.store.base import Head, Snapshot, StoredBlock, StoredPage
from odfd.verify.report import Level
from odfd.verify.verify import VerificationRequest, verify_chain

INPUTS = [DatasetId.from_public_key(bytes([n]) * 32) for n in (8, 9)]


class Listed:
    """A stored chain of blocks as given: names and bytes need not agree."""

    def __init__(self, rows: Sequence[tuple[Multihash, bytes | None]], page: int) -> None:
        self._rows = rows
        self._page = page

    def snapshot(self) -> Snapshot:
        return Snapshot(Head(self._rows[-1][0], len(self._rows) - 1))

    def stored_blocks(self, start: int = 0, stop: int | None = None) -> Iterator[StoredBlock]:
        for number, (name, raw) in enumerate(self._rows[start:stop], start):
            yield StoredBlock(number, name, raw)

    def stored_pages(self, start: int = 0, stop: int | None = None) -> Iterator[StoredPage]:
        rows = self._rows[start:stop]
        for first in range(0, len(rows), self._page):
            page = rows[first : first + self._page]
            yield StoredPage(first, b"".join(name for name, _ in page), [raw for _, raw in page])


def digest(lot: random.Random) -> Multihash:
    return Multihash.sha3_256(lot.randbytes(8))


def root_events(lot: random.Random, count: int) -> Iterator[Any]:
    yield Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT)
    if lot.random() < 0.95:
        yield SetDataSchema(schema=DataSchema(fields=(DataField(name="offset", type=Int64()),)))
    offset, mark, checkpoint = None, None, None
    for number in range(count):
        if lot.random() < 0.03:
            yield SetInfo(description=f"{number}")
            continue
        rows = lot.choice([0, 5, 5, 5])
        start = 0 if offset is None else offset + 1
        new_data = slice_of(lot, start, rows) if rows else None
        if lot.random() < 0.7:
            mark = Instant((mark or 10**18) + lot.choice([0, 10**9]))
        saved = Checkpoint(physical_hash=digest(lot), size=7) if checkpoint or lot.random() < 0.02 else None
        text = lot.choice(["abcd", "efgh", "ef\u00e9x"])
        yield AddData(
            prev_offset=offset,
            prev_checkpoint=checkpoint,
            new_data=new_data,
            new_watermark=mark,
            new_checkpoint=saved,
            new_source_state=SourceState(source_name="default", kind="odf/etag", value=text) if number % 2 else None,
        )
        offset = new_data.offset_interval.end if new_data else offset
        checkpoint = saved.physical_hash if saved else None


def transform_events(lot: random.Random, count: int) -> Iterator[Any]:
    yield Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.DERIVATIVE)
    yield SetTransform(
        inputs=tuple(TransformInput(dataset_ref=str(each), alias=f"i{n}") for n, each in enumerate(INPUTS)),
        transform=TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"),)),
    )
    yield SetDataSchema(schema=DataSchema(fields=(DataField(name="offset", type=Int64()),)))
    offset, mark = None, 10**18
    at: list[tuple[Multihash | None, int | None]] = [(None, None), (None, None)]
    for _ in range(count):
        used = []
        for number, (block, row) in enumerate(at):
            new_block = digest(lot) if lot.random() < 0.9 else None
            new_row = (row or 0) + 3 if new_block and lot.random() < 0.8 else None
            used.append(
                ExecuteTransformInput(
                    dataset_id=INPUTS[number],
                    prev_block_hash=block,
                    new_block_hash=new_block,
                    prev_offset=row,
                    new_offset=new_row,
                )
            )
            at[number] = (new_block or block, row if new_row is None else new_row)
        new_data = slice_of(lot, 0 if offset is None else offset + 1, 4) if lot.random() < 0.8 else None
        mark += lot.choice([0, 10**6])
        yield ExecuteTransform(
            query_inputs=tuple(used), prev_offset=offset, new_data=new_data, new_watermark=Instant(mark)
        )
        offset = new_data.offset_interval.end if new_data else offset


def slice_of(lot: random.Random, start: int, rows: int) -> DataSlice:
    return DataSlice(
        logical_hash=Multihash.from_digest(ARROW0_SHA3_256, lot.randbytes(32)),
        physical_hash=digest(lot),
        offset_interval=OffsetInterval(start=start, end=start + rows - 1),
        size=lot.randrange(1 << 20),
    )


WRONG = [Multihash.sha3_256(b"other"), Multihash.from_digest(SHA2_256, bytes(32))]


def tampered(lot: random.Random, value: Any) -> Any:
    """The same struct with one field, at some depth, made another or left out."""
    fields = msgspec.structs.fields(value)
    if not fields:
        return value
    field = lot.choice(fields)
    old = getattr(value, field.name)
    if field.name in ("dataset_kind", "kind", "source_name"):
        return value
    new: Any = old
    if isinstance(old, msgspec.Struct) and lot.random() < 0.8:
        new = tampered(lot, old)
    elif isinstance(old, tuple) and old and isinstance(old[0], msgspec.Struct):
        at = lot.randrange(len(old))
        new = (*old[:at], tampered(lot, old[at]), *old[at + 1 :])
    elif not field.required and lot.random() < 0.4:
        new = None
    elif isinstance(old, Multihash):
        new = lot.choice(WRONG)
    elif isinstance(old, int) and not isinstance(old, bool):
        new = old + lot.choice([-1, 1, 10**9, -(10**10), 1 << 62])
    elif old is None and field.name in ("prev_checkpoint", "prev_block_hash", "new_block_hash"):
        new = lot.choice(WRONG)
    elif old is None and field.name in ("prev_offset", "new_offset"):
        new = lot.randrange(20)
    return msgspec.structs.replace(value, **{field.name: new})


def chain_of(seed: int) -> list[tuple[Multihash, bytes | None]]:
    lot = random.Random(seed)
    events = list((root_events if lot.random() < 0.6 else transform_events)(lot, lot.randrange(20, 90)))
    wrong = {lot.randrange(len(events)) for _ in range(lot.choice([0, 1, 1, 2, 5]))}
    rows: list[tuple[Multihash, bytes | None]] = []
    time = 1_700_000_000 * 10**9
    for number, event in enumerate(events):
        time += lot.choice([0, 10**6, 10**9])
        content = MetadataBlock(
            system_time=Instant(time),
            prev_block_hash=rows[-1][0] if rows else None,
            sequence_number=number,
            event=event,
        )
        block = encode_block(content, version=lot.choice([2, 3]) if seed % 5 == 0 else 3)
        raw, name = block.raw, block.hash
        if number in wrong:
            raw, name = spoiled(lot, content, raw)
        rows.append((name, raw))
    for number in wrong:
        if lot.random() < 0.15:
            rows[number] = (rows[number][0], None)
    return rows


def spoiled(lot: random.Random, content: MetadataBlock, raw: bytes) -> tuple[bytes, Multihash]:
    """Another block in its place: tampered with and hashed anew, or with a flipped bit, hashed anew or not."""
    way = lot.randrange(3)
    if way == 0:
        try:
            block = encode_block(tampered(lot, content))
        except Invalid:
            return raw, Multihash.sha3_256(raw)
        return block.raw, block.hash
    flipped = bytearray(raw)
    flipped[lot.randrange(len(raw))] ^= 1 << lot.randrange(8)
    return bytes(flipped), Multihash.sha3_256(bytes(flipped) if way == 1 else raw)


class NoObjects:
    def has(self, name: Multihash) -> bool:
        raise AssertionError(name)

    size = path = has  # type: ignore[assignment]


@pytest.mark.slow
@example(seed=332023128, page=64)  # a watermark of the year 4049, and then one of 2001
@given(seed=st.integers(0, 1 << 32), page=st.sampled_from([9, 30, 64, 1000]))
def test_columns_and_single_blocks_give_one_answer(seed: int, page: int) -> None:
    chain = Listed(chain_of(seed), page)
    quick, slow = (
        verify_chain(chain, NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN, columns=each))  # type: ignore[arg-type]
        for each in (True, False)
    )
    assert quick == slow


FAR = Instant(65_000_000_000 * 10**9)
"""The year 4029, whose nanoseconds no int64 holds."""


@pytest.mark.parametrize("rule", ["watermark-monotonic", "system-time-monotonic"])
@pytest.mark.parametrize("page", [4, 5, 6, 100])
def test_what_comes_after_a_value_beyond_columns_is_looked_at(rule: str, page: int) -> None:
    """Wherever the page ends. It is compared with a value that stands for anything."""
    rows: list[tuple[Multihash, bytes | None]] = []
    data = [AddData(new_watermark=Instant(10**18 + number)) for number in range(8)]
    events = [Seed(dataset_id=DatasetId.from_public_key(bytes(32)), dataset_kind=DatasetKind.ROOT), *data]
    for number, event in enumerate(events):
        time = Instant(17 * 10**17 + number)
        if number == 5 and rule.startswith("system"):
            time = FAR
        elif number == 5:
            event = AddData(new_watermark=FAR)
        before = rows[-1][0] if rows else None
        content = MetadataBlock(system_time=time, prev_block_hash=before, sequence_number=number, event=event)
        block = encode_block(content)
        rows.append((block.hash, block.raw))
    answers = [
        verify_chain(Listed(rows, page), NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN, columns=each))  # type: ignore[arg-type]
        for each in (True, False)
    ]
    assert answers[0] == answers[1]
    assert [failure.block.sequence_number for failure in answers[0].failures if failure.rule == rule] == [6]


@pytest.mark.slow
def test_the_generator_makes_chains_that_hold_and_many_that_do_not() -> None:
    """A property over chains that are all alike would prove little."""
    broken = set()
    held = 0
    for seed in range(250):
        answer = verify_chain(Listed(chain_of(seed), 64), NoObjects(), VerificationRequest(ref="x", level=Level.CHAIN))  # type: ignore[arg-type]
        held += answer.ok
        broken |= {failure.rule for failure in answer.failures}
    assert 20 < held < 230
    assert {
        "prev-block-link", "sequence-number", "system-time-monotonic", "watermark-monotonic", "offsets-sequential",
        "prev-offset", "prev-checkpoint", "input-prev-block", "input-prev-offset", "block-hash", "block-missing",
    } <= broken  # fmt: skip


def test_every_rule_that_binds_everyone_and_looks_at_data_has_columns() -> None:
    """A rule without them would be right, and make every chain a hundred times slower."""
    for rule in RULES:
        about = not rule.concerns or {AddData, ExecuteTransform} & set(rule.concerns)
        if rule.binds is Binds.EVERYONE and about:
            assert type(rule).doubts is not Rule.doubts, rule.name


@given(st.lists(st.integers(-62_000_000_000, 253_000_000_000), min_size=1), st.integers(0, 10**9 - 1))
def test_many_times_are_read_as_one_is(seconds: list[int], nanos: int) -> None:
    raws = [pack(Instant(each * 10**9 + nanos)) for each in seconds]
    times, sure = unpack_many(np.frombuffer(b"".join(raws), np.uint8).reshape(-1, 16))
    for raw, time, believed in zip(raws, times, sure, strict=True):
        assert not believed or unpack(raw, 0) == time


@given(st.binary(min_size=16, max_size=16))
def test_a_time_that_is_none_is_never_believed(raw: bytes) -> None:
    times, sure = unpack_many(np.frombuffer(raw, np.uint8).reshape(1, 16))
    if sure[0]:
        assert unpack(raw, 0) == times[0]


@pytest.mark.parametrize("name", ["flights", "airlines"])
def test_golden_blocks_have_shapes_that_read_them(name: str) -> None:
    """What a shape lifts from its own template is what the codec decodes."""
    folder = Path(__file__).parents[3] / "golden" / "kamu" / name / "blocks"
    for file in folder.iterdir():
        raw = file.read_bytes()
        shape = shape_of(raw)
        if shape is None:
            continue
        values, same = shape.lift([raw, raw])
        assert same.all()
        block = decode_block(raw)
        assert unpack(values["system_time"][0].tobytes(), 0) == block.system_time
        if block.prev_block_hash is not None:
            assert values["prev_block_hash"][1].tobytes() == block.prev_block_hash.digest
        other = bytearray(raw)
        other[4] ^= 1
        assert list(shape.lift([raw, bytes(other)])[1]) == [True, False]
