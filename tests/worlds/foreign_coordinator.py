"""A coordinator that is not ours, made of the published contract alone: ODF's engine.proto and odf.fbs.

It shares no code with ``engines``: messages are FlatBuffers by slot number, inside a protobuf message by hand, over
TCP. Like the reference it mounts only new slices, under names that change with every transaction, states watermarks
with the times of their blocks in nanoseconds, and keeps one checkpoint file that it never looks into.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers
import flatbuffers.number_types as num
import flatbuffers.table
import grpc
import pyarrow as pa
import pyarrow.parquet as pq

TRANSFORM = "/engine.Engine/ExecuteTransform"
RAW_QUERY = "/engine.Engine/ExecuteRawQuery"
VOCABULARY = ("offset", "op", "system_time", "event_time")
PROGRESS, SUCCESS, INVALID_QUERY, INTERNAL_ERROR = 1, 2, 3, 4
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Build = Callable[[flatbuffers.Builder], int]


@dataclass(frozen=True)
class Answer:
    """The last message of a stream."""

    kind: int
    progress: int
    """Messages before it."""
    start: int | None = None
    end: int | None = None
    watermark: int | None = None
    """Nanoseconds."""
    records: int | None = None
    message: str = ""
    backtrace: str = ""


@dataclass(frozen=True)
class Query:
    """What stands in SetTransform."""

    steps: Sequence[tuple[str | None, str]]
    temporal: Sequence[tuple[str, Sequence[str]]] = ()


@dataclass(frozen=True)
class Input:
    """What the coordinator knows of one input for one transaction."""

    dataset: bytes
    alias: str
    slices: Sequence[Path]
    """Only new ones."""
    watermarks: Sequence[tuple[int, int]]
    """(system time, event time) of every new block, nanoseconds."""
    schema: pa.Schema
    interval: tuple[int, int] | None = None


@dataclass
class Coordinator:
    """Of one derived dataset. ``home`` is what it keeps, ``work`` where each transaction has its folder."""

    address: str
    home: Path
    work: Path
    query: Query
    dataset: bytes = b"o" * 32
    system_time: int = 0
    """Of the transactions, nanoseconds."""
    checkpoint: Path | None = None
    rows: list[pa.Table] = field(default_factory=list)
    watermark: int | None = None
    number: int = 0
    schema: pa.Schema | None = None
    timeout: float = 300.0
    seen: Callable[[Path], str] = str
    """How the engine names a path."""

    def transact(self, inputs: Sequence[Input], retry: bool = False) -> Answer:
        """One transaction; ``retry``: ask twice for it, and keep what came the second time."""
        folder = self.work / f"operation-{self.number}"
        self.number += 1
        (folder / "in").mkdir(parents=True)
        (folder / "out").mkdir()
        raw = self._request(inputs, folder)
        answer, *others = (call(self.address, TRANSFORM, raw, self.timeout) for _ in range(1 + retry))
        assert all(dataclasses.replace(other, progress=answer.progress) == answer for other in others)
        if answer.kind == SUCCESS:
            self._take(answer, folder)
        shutil.rmtree(folder)
        return answer

    def table(self) -> pa.Table:
        """All rows so far."""
        return pa.concat_tables(self.rows) if self.rows else pa.table({})

    def _take(self, answer: Answer, folder: Path) -> None:
        """As the reference does: the schema is read from the file, and the file forgotten if it holds no interval."""
        data, state = folder / "out" / "data", folder / "out" / "checkpoint"
        assert data.is_file(), "the reference reads the schema of an empty output from its file"
        made = pq.read_table(data)
        assert self.schema is None or made.schema.equals(self.schema), "the schema of the output moved"
        self.schema = made.schema
        if answer.start is not None:
            offsets = made["offset"].to_pylist()
            assert offsets == list(range(answer.start, (answer.end or 0) + 1))
            self.rows.append(made)
        else:
            assert made.num_rows == 0
        if state.exists():
            assert state.is_file()
            assert not state.is_symlink()
            self.checkpoint = self.home / f"kept-{self.number}"
            shutil.copyfile(state, self.checkpoint)
        if answer.watermark is not None:
            assert self.watermark is None or answer.watermark >= self.watermark
            self.watermark = answer.watermark

    def _mount(self, file: Path, folder: Path) -> str:
        """A copy under the hash of its content, as the reference names what it mounts."""
        name = hashlib.sha3_256(file.read_bytes()).hexdigest()
        target = folder / "in" / name
        if not target.exists():
            shutil.copyfile(file, target)
        return self.seen(target)

    def _request(self, inputs: Sequence[Input], folder: Path) -> bytes:
        builds = [self._input(each, folder) for each in inputs]
        previous = self._mount(self.checkpoint, folder) if self.checkpoint is not None else None
        return frame(
            table(
                vector_of_bytes(did(self.dataset)),
                text("derived"),
                time(self.system_time),
                vocabulary(),
                byte(1),
                transform(self.query),
                vector(builds),
                uint64(sum(one.num_rows for one in self.rows)),
                text(previous) if previous is not None else None,
                text(self.seen(folder / "out" / "checkpoint")),
                text(self.seen(folder / "out" / "data")),
            )
        )

    def _input(self, given: Input, folder: Path) -> Build:
        paths = [self._mount(path, folder) for path in given.slices]
        schema = folder / "in" / f"schema-{given.alias}.parquet"
        pq.write_table(given.schema.empty_table(), schema)
        return table(
            vector_of_bytes(did(given.dataset)),
            text(given.alias),
            text(given.alias),
            vocabulary(),
            table(uint64(given.interval[0]), uint64(given.interval[1])) if given.interval else None,
            vector([text(path) for path in paths]),
            text(self.seen(schema)),
            vector([table(time(made), time(mark)) for made, mark in given.watermarks]),
        )


def raw_query(address: str, inputs: Sequence[Path], query: Query, output: Path, timeout: float = 300.0) -> Answer:
    """ExecuteRawQuery."""
    paths = vector([text(str(path)) for path in inputs])
    return call(address, RAW_QUERY, frame(table(paths, byte(1), transform(query), text(str(output)))), timeout)


def call(address: str, method: str, raw: bytes, timeout: float = 300.0) -> Answer:
    """Send a message; the answers to their end. Raises RpcError."""
    with grpc.insecure_channel(address) as channel:
        heard = [unframe(answer) for answer in channel.unary_stream(method)(raw, timeout=timeout)]
    kinds = [read_root(method, each).kind for each in heard]
    assert kinds[:-1] == [PROGRESS] * (len(kinds) - 1), kinds
    last = read_root(method, heard[-1], progress=len(heard) - 1)
    assert last.kind != PROGRESS
    return last


def did(key: bytes) -> bytes:
    """Binary did:odf of an Ed25519 key: multicodec ed25519-pub, then the key."""
    return b"\xed\x01" + key


# Values by slot: each knows how to stand in a table.


@dataclass(frozen=True)
class Slot:
    make: Build | None
    """Makes a child before the table begins."""
    place: Callable[[flatbuffers.Builder, int, int], None]
    """(builder, slot, child)."""


def table(*slots: Any) -> Any:
    def make(b: flatbuffers.Builder) -> int:
        made = [_slot(each) for each in slots]
        children = [each.make(b) if each is not None and each.make is not None else 0 for each in made]
        b.StartObject(len(made))
        for number, (each, child) in enumerate(zip(made, children, strict=True)):
            if each is not None:
                each.place(b, number, child)
        return int(b.EndObject())

    return make


def _slot(value: Any) -> Slot | None:
    if value is None or isinstance(value, Slot):
        return value
    return Slot(value, lambda b, number, child: b.PrependUOffsetTRelativeSlot(number, child, 0))


def text(value: str) -> Any:
    return lambda b: int(b.CreateString(value))


def vector_of_bytes(value: bytes) -> Any:
    return lambda b: int(b.CreateByteVector(value))


def vector(items: Sequence[Any]) -> Any:
    def make(b: flatbuffers.Builder) -> int:
        made = [item(b) for item in items]
        b.StartVector(4, len(made), 4)
        for each in reversed(made):
            b.PrependUOffsetTRelative(each)
        return int(b.EndVector())

    return make


def byte(value: int) -> Slot:
    return Slot(None, lambda b, number, _: b.PrependUint8Slot(number, value, 0))


def uint64(value: int) -> Slot:
    return Slot(None, lambda b, number, _: b.PrependUint64Slot(number, value, 0))


def time(nanos: int) -> Slot:
    """Struct Timestamp: year, ordinal day from 1, seconds from midnight, nanoseconds."""

    def place(b: flatbuffers.Builder, number: int, _: int) -> None:
        seconds, rest = divmod(nanos, 1_000_000_000)
        day = EPOCH + dt.timedelta(days=seconds // 86_400)
        b.Prep(4, 16)
        b.PrependUint32(rest)
        b.PrependUint32(seconds % 86_400)
        b.Pad(2)
        b.PrependUint16(day.timetuple().tm_yday)
        b.PrependInt32(day.year)
        b.PrependStructSlot(number, b.Offset(), 0)

    return Slot(None, place)


def vocabulary() -> Any:
    return table(*(text(name) for name in VOCABULARY))


def transform(query: Query) -> Any:
    steps = [table(text(alias) if alias else None, text(sql)) for alias, sql in query.steps]
    tables = [table(text(name), vector([text(key) for key in keys])) for name, keys in query.temporal]
    return table(text("spark"), None, None, vector(steps), vector(tables) if tables else None)


def frame(root: Any) -> bytes:
    """The FlatBuffer as field 1 of a protobuf message."""
    b = flatbuffers.Builder(1024)
    b.Finish(root(b))
    payload, size, head = bytes(b.Output()), b"", 0
    head = len(payload)
    while head >= 0x80:
        size, head = size + bytes([head & 0x7F | 0x80]), head >> 7
    return b"\x0a" + size + bytes([head]) + payload


def unframe(raw: bytes) -> bytes:
    assert raw[0] == 0x0A
    at, size, shift = 1, 0, 0
    while True:
        size |= (raw[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if raw[at - 1] < 0x80:
            break
    assert at + size == len(raw)
    return raw[at:]


def read_root(method: str, raw: bytes, progress: int = 0) -> Answer:
    """An answer to either method: they differ in the body of success alone."""
    root = flatbuffers.table.Table(raw, int.from_bytes(raw[:4], "little"))
    kind = root.Get(num.Uint8Flags, root.Offset(4) + root.Pos)
    body = flatbuffers.table.Table(raw, 0)
    root.Union(body, root.Offset(6))
    if kind in (INVALID_QUERY, INTERNAL_ERROR):
        return Answer(kind, progress, message=_text(body, 4), backtrace=_text(body, 6))
    if kind == PROGRESS:
        return Answer(kind, progress)
    if method == RAW_QUERY:
        return Answer(kind, progress, records=_uint64(body, 4))
    first = body.Offset(4)
    interval = flatbuffers.table.Table(raw, body.Indirect(body.Pos + first)) if first else None
    mark = body.Offset(6)
    return Answer(
        kind,
        progress,
        start=_uint64(interval, 4) if interval else None,
        end=_uint64(interval, 6) if interval else None,
        watermark=_time(raw, body.Pos + mark) if mark else None,
    )


def _text(body: flatbuffers.table.Table, slot: int) -> str:
    place = body.Offset(slot)
    return body.String(body.Pos + place).decode() if place else ""


def _uint64(body: flatbuffers.table.Table, slot: int) -> int:
    place = body.Offset(slot)
    return int(body.Get(num.Uint64Flags, body.Pos + place)) if place else 0


def _time(raw: bytes, at: int) -> int:
    year = int.from_bytes(raw[at : at + 4], "little", signed=True)
    ordinal, seconds, nanos = (
        int.from_bytes(raw[at + start : at + end], "little") for start, end in ((4, 6), (8, 12), (12, 16))
    )
    days = (dt.date(year, 1, 1) - EPOCH.date()).days + ordinal - 1
    return (days * 86_400 + seconds) * 1_000_000_000 + nanos
