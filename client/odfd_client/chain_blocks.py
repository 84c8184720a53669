"""Decodes the parts of a block that readers of rows need, from bytes that are not trusted.

A block is a FlatBuffers table inside of another. This is a second reader of that format beside ``chain`` of the node,
since this package imports nothing of it; it is compared with ``chain`` by property tests. It reads no more than
``Block`` has, follows no offset unchecked, and writes nothing.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any, Final

from odfd_client.errors import Invalid

MAX_BLOCK: Final = 16 << 20
_KIND: Final = 0x400000
_VERSIONS: Final = (2, 3)
_U16, _I32, _U32, _I64, _U64 = (struct.Struct("<" + each) for each in "HiIqQ")
_TIME: Final = struct.Struct("<iHxxII")
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
ADD_DATA, EXECUTE_TRANSFORM, SEED, SET_POLLING, SET_TRANSFORM, SET_VOCAB, SET_INFO, SET_SCHEMA, ADD_PUSH = (
    1, 2, 3, 4, 5, 6, 8, 10, 11,
)  # fmt: skip
"""Numbers of events."""
_DATA_SLOTS: Final = {ADD_DATA: (2, 4), EXECUTE_TRANSFORM: (3, 5)}
"""Slots of the slice and the watermark."""
_MERGE_SLOTS: Final = {SET_POLLING: 7, ADD_PUSH: 5}
_HASHES: Final = {0x16: hashlib.sha3_256, 0x12: hashlib.sha256}
_NOTICE: Final = re.compile(
    r"odfd/handover:(did:odf:[0-9a-z]{1,128})@(\d{1,15}):([0-9a-z]{1,128})(?::([1-9]\d?)-([1-9]\d?))?\Z"
)


@dataclass(frozen=True, slots=True)
class Slice:
    """A file of rows, and the offsets of the first and the last."""

    hash: str
    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Says that the collection is ``to`` from ``time`` (milliseconds) on, and that ``block`` was its head then."""

    to: str
    time: int
    block: str
    ended: int = 1
    """The number of shards of the rendition that ended."""
    shards: int = 1
    """The number of shards of the collection from then on; ``to`` is the first."""

    @property
    def is_plain(self) -> bool:
        """Whether both are one chain each."""
        return self.ended == self.shards == 1


@dataclass(frozen=True, slots=True)
class Merge:
    """The merge strategy of a source: its number in the format, and its primary key."""

    source: str
    strategy: int
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    hash: str
    prev: str | None
    number: int
    time: int
    """System time in nanoseconds since 1970."""
    event: int
    """Number of the event."""
    slice: Slice | None = None
    watermark: int | None = None
    seed: tuple[str, str] | None = None
    """Id and kind of the dataset."""
    vocabulary: tuple[str, str, str, str] | None = None
    """Columns of offset, operation, system time and event time."""
    merge: Merge | None = None
    notice: Notice | None = None
    arrow_schema: bytes | None = None
    """An Arrow schema message, in chains of old writers."""


def name_of(content: bytes) -> str:
    """Returns the name of a block by its bytes."""
    return "f1620" + hashlib.sha3_256(content).hexdigest()


def hasher(name: str) -> hashlib._Hash:
    """Returns a new hash of the kind that ``name`` was made by. Raises Invalid."""
    kind = _HASHES.get(int(name[1:3], 16)) if re.fullmatch(r"f(16|12)20[0-9a-f]{64}", name) else None
    if kind is None:
        raise Invalid(f"not the name of an object: {name[:80]!r}", rule="repository-block")
    return kind()


def decode_block(raw: bytes) -> Block:
    """Decodes a block. Raises Invalid."""
    if len(raw) > MAX_BLOCK:
        raise Invalid(f"a block of {len(raw)} bytes", rule="repository-block", hint=f"at most {MAX_BLOCK} bytes")
    try:
        manifest = _Table.root(raw)
        if manifest.number(0, _I64) != _KIND or manifest.number(1, _I32) not in _VERSIONS:
            raise Invalid("not a block of a version that is read", rule="repository-block", hint="versions 2 and 3 are")
        body = _Table.root(manifest.octets(2))
        kind = body.byte(3)
        event = body.table(4)
        return Block(
            hash=name_of(raw), prev=_hash(body.octets(1)) if body.has(1) else None,
            number=body.number(2, _U64), time=body.time(0), event=kind, **_parts(kind, event),
        )  # fmt: skip
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise Invalid(f"what should be a block is none: {error}", rule="repository-block") from error


def _parts(kind: int, event: _Table) -> dict[str, Any]:
    if kind in _DATA_SLOTS:
        data, watermark = _DATA_SLOTS[kind]
        return {
            "slice": _slice(event.table(data)) if event.has(data) else None,
            "watermark": event.time(watermark) if event.has(watermark) else None,
        }
    if kind == SEED:
        return {"seed": ("did:odf:f" + event.octets(0).hex(), "derivative" if event.number(1, _I32) else "root")}
    if kind == SET_VOCAB:
        given = ("offset", "op", "system_time", "event_time")
        return {"vocabulary": tuple(event.text(slot) if event.has(slot) else name for slot, name in enumerate(given))}
    if kind in _MERGE_SLOTS:
        slot = _MERGE_SLOTS[kind]
        merge = event.table(slot + 1)
        name = event.text(0) if kind == ADD_PUSH else ""
        return {"merge": Merge(name, event.byte(slot), merge.texts(0) if merge.has(0) else ())}
    if kind == SET_INFO:
        return {"notice": _notice(event.texts(1)) if event.has(1) else None}
    if kind == SET_SCHEMA and event.has(0):
        return {"arrow_schema": event.octets(0)}
    return {}


def _slice(table: _Table) -> Slice:
    interval = table.table(2)
    found = Slice(_hash(table.octets(1)), table.number(3, _U64), interval.number(0, _U64), interval.number(1, _U64))
    if found.last < found.first:
        raise ValueError("offsets end before they begin")
    return found


def _hash(raw: bytes) -> str:
    name = "f" + raw.hex()
    hasher(name)
    return name


def _notice(words: tuple[str, ...]) -> Notice | None:
    found = next((match for word in reversed(words) if (match := _NOTICE.match(word))), None)
    if found is None:
        return None
    return Notice(found[1], int(found[2]), found[3], int(found[4] or 1), int(found[5] or 1))


class _Table:
    """A table in a buffer. All methods raise ValueError or struct.error for bytes that are none."""

    __slots__ = ("_at", "_raw", "_slots")

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw, self._at = raw, at
        vtable = at - _I32.unpack_from(raw, _inside(raw, at, 4))[0]
        size = _U16.unpack_from(raw, _inside(raw, vtable, 4))[0]
        _inside(raw, vtable, size)
        self._slots = memoryview(raw)[vtable + 4 : vtable + max(size, 4)]

    @classmethod
    def root(cls, raw: bytes) -> _Table:
        return cls(raw, _target(raw, 0))

    def has(self, slot: int) -> bool:
        return self._place(slot) is not None

    def byte(self, slot: int) -> int:
        place = self._place(slot)
        return 0 if place is None else self._raw[place]

    def number(self, slot: int, kind: struct.Struct) -> int:
        place = self._place(slot)
        return 0 if place is None else int(kind.unpack_from(self._raw, place)[0])

    def time(self, slot: int) -> int:
        year, day, second, nanos = _TIME.unpack_from(self._raw, self._require(slot))
        if not (1 <= day <= 366 and second < 86_400 and nanos < 2_000_000_000):
            raise ValueError("no such time")
        days = datetime.date(year, 1, 1).toordinal() - _EPOCH + day - 1
        return int((days * 86_400 + second) * 1_000_000_000 + nanos)

    def table(self, slot: int) -> _Table:
        return _Table(self._raw, _target(self._raw, self._require(slot)))

    def octets(self, slot: int) -> bytes:
        return _octets(self._raw, self._require(slot))

    def text(self, slot: int) -> str:
        return self.octets(slot).decode()

    def texts(self, slot: int) -> tuple[str, ...]:
        start = _target(self._raw, self._require(slot))
        (count,) = _U32.unpack_from(self._raw, start)
        _inside(self._raw, start + 4, 4 * count)
        found, size = [], 0
        for place in range(start + 4, start + 4 + 4 * count, 4):
            found.append(_octets(self._raw, place))
            size += len(found[-1])
            if size > len(self._raw):
                raise ValueError("texts overlap")
        return tuple(each.decode() for each in found)

    def _require(self, slot: int) -> int:
        place = self._place(slot)
        if place is None:
            raise ValueError("a field is missing")
        return place

    def _place(self, slot: int) -> int | None:
        if 2 * slot + 2 > len(self._slots):
            return None
        offset: int = _U16.unpack_from(self._slots, 2 * slot)[0]
        return _inside(self._raw, self._at + offset, 1) if offset else None


def _target(raw: bytes, place: int) -> int:
    offset: int = _U32.unpack_from(raw, _inside(raw, place, 4))[0]
    return _inside(raw, place + offset, 4)


def _octets(raw: bytes, place: int) -> bytes:
    start = _target(raw, place)
    (length,) = _U32.unpack_from(raw, start)
    return raw[_inside(raw, start + 4, length) : start + 4 + length]


def _inside(raw: bytes, place: int, size: int) -> int:
    """Returns ``place``, if so many bytes there are in the buffer. Raises ValueError."""
    if place < 0 or place + size > len(raw):
        raise ValueError("an offset points outside")
    return place
