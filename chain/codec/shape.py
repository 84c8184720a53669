"""Decodes many similar blocks of one writer together: the bytes that they share are parsed once for a thousand.

A shape is taken from a decoded block. It knows which of the block's bytes the bounded reader takes for structure
(offsets, vtables, lengths, tags, the rest of the buffer) and which for values (numbers, times, digests, texts). A block
of the same length whose bytes are equal outside of the values is walked by the reader in exactly the same way: it
decodes to the same event but for the values, which are lifted from many blocks at once with numpy. If a byte would be
both, there is no shape. A shape never judges values: a time may be out of range, a text not UTF-8; the columns mark
what they could not convert as doubtful. Made once per habit of a writer, kept as long as the verification that met it.
Spec: FlatBuffers internals; Reference / schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from chain.codec import timestamp
from chain.codec.blocks import decode_block
from chain.codec.layout import (
    Choice,
    Entries,
    Flag,
    JsonObject,
    Kind,
    Moment,
    Number,
    Octets,
    Table,
    Text,
    Union,
    Vector,
    fields_of,
    wrapper_of,
)
from chain.errors import Invalid
from chain.libraries import np
from chain.model.block import Block, MetadataBlock, UnknownEvent
from chain.multihash import Multihash

if TYPE_CHECKING:
    import numpy.typing as npt

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
"""A matrix of ``(blocks, bytes)``."""
MAX_SHAPED: Final = 16 << 10
"""Largest block with a shape, in bytes: larger ones carry schemas and texts, which hardly recur."""
_AT_ONCE: Final = 128
"""Blocks compared at once: few enough for the nearest cache, and for memory that need not come from the system."""
_DIGEST: Final = 32
_CONTENT_SLOT: Final = 2
_U32: Final = struct.Struct("<I").unpack_from
_I32: Final = struct.Struct("<i").unpack_from
_U16: Final = struct.Struct("<H").unpack_from


@dataclass(frozen=True, slots=True)
class ShapeLeaf:
    """The place of a value: bytes ``start <= i < stop`` of the block."""

    kind: Number | Moment | Octets | Text
    start: int
    stop: int


class Shape:
    """One shape. ``leaves`` are the places of values by their path: ``event.new_data.size``, ``event.query_inputs.0…``.

    Everything outside the leaves is the same in every block of the shape, and is that of ``template``.
    """

    def __init__(self, template: Block, leaves: Mapping[str, ShapeLeaf]) -> None:
        self.template = template
        self.leaves = leaves
        self.size = len(template.raw)
        self._skeleton = np.frombuffer(template.raw, np.uint8)
        self._values = np.zeros(self.size, np.bool_)
        for leaf in leaves.values():
            self._values[leaf.start : leaf.stop] = True

    def lift(self, raws: list[bytes]) -> tuple[Mapping[str, Bytes], npt.NDArray[np.bool_]]:
        """Returns the values of ``raws``, all of the shape's size, and a mask of those that have the shape.

        A value's matrix is ``(len(raws), its bytes)``, a view; rows of blocks that do not have the shape are
        meaningless.
        """
        matrix = np.frombuffer(b"".join(raws), np.uint8).reshape(len(raws), self.size)
        values = {path: matrix[:, leaf.start : leaf.stop] for path, leaf in self.leaves.items()}
        same = np.ones(len(raws), np.bool_)
        equal = np.empty((min(_AT_ONCE, len(raws)), self.size), np.bool_)
        for start in range(0, len(raws), _AT_ONCE):
            some = matrix[start : start + _AT_ONCE]
            part = equal[: len(some)]
            np.equal(some, self._skeleton, out=part)
            np.logical_or(part, self._values, out=part)
            if not part.all():
                same[start : start + _AT_ONCE] = part.all(axis=1)
        return values, same


def shape_of(raw: bytes) -> Shape | None:
    """Returns the shape of a block; ``None`` if too long, malformed, newer or overlapping. Costs a few decodings."""
    if len(raw) > MAX_SHAPED:
        return None
    try:
        block = decode_block(raw)
    except Invalid:
        return None
    if isinstance(block.event, UnknownEvent):
        return None
    trace = _Trace(raw)
    trace.manifest()
    return Shape(block, trace.leaves) if trace.is_plain() else None


class _Trace:
    """Walks a decoded block as the bounded reader does, and records for each byte whether it is structure or value."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._structure = np.zeros(len(raw), np.bool_)
        self.leaves: dict[str, ShapeLeaf] = {}

    def is_plain(self) -> bool:
        """Whether no byte is structure in one place and part of a value in another."""
        return not any(self._structure[leaf.start : leaf.stop].any() for leaf in self.leaves.values())

    def manifest(self) -> None:
        """Marks the envelope as structure, and walks the block inside of it."""
        start, stop = self._vector(self._content_slot(), 1)
        inside = _Trace(self._raw[start:stop])
        inside._table(MetadataBlock, 0, "")
        self._structure[start:stop] |= inside._structure
        for path, leaf in inside.leaves.items():
            self.leaves[path] = ShapeLeaf(leaf.kind, leaf.start + start, leaf.stop + start)

    def _content_slot(self) -> int:
        table = self._follow(0)
        slots = self._slots(table)
        for slot, place in slots.items():
            self._mark(table + place, 4 if slot else 8)
        return table + slots[_CONTENT_SLOT]

    def _table(self, cls: type[msgspec.Struct], position: int, path: str) -> None:
        table = self._follow(position)
        slots = self._slots(table)
        for field in fields_of(cls):
            place = slots.get(field.slot)
            if place is None:
                continue
            inner = f"{path}.{field.name}" if path else field.name
            if isinstance(field.kind, Union):
                self._union(field.kind, table + place, table + slots.get(field.slot + 1, 0), inner)
            else:
                self._value(field.kind, table + place, inner)

    def _union(self, kind: Union, tag: int, value: int, path: str) -> None:
        self._mark(tag, 1)
        if number := self._raw[tag]:
            self._table(kind.variants[number - 1], value, path)

    def _value(self, kind: Kind, position: int, path: str) -> None:
        match kind:
            case Number(size=size):
                self.leaves[path] = ShapeLeaf(kind, position, position + size)
            case Moment():
                self.leaves[path] = ShapeLeaf(kind, position, position + timestamp.SIZE)
            case Choice(number=number):
                self._mark(position, number.size)
            case Flag():
                self._mark(position, 1)
            case Text():
                start, stop = self._vector(position, 1)
                self._mark(stop, 1)
                self.leaves[path] = ShapeLeaf(kind, start, stop)
            case Octets(of):
                self._octets(of, position, path)
            case JsonObject():
                self._constant_json(position)
            case Table(of):
                self._table(of, position, path)
            case Vector(item):
                self._items(item, position, path)
            case Union():
                raise TypeError("a union is walked with its table")

    def _octets(self, of: type[bytes], position: int, path: str) -> None:
        """Takes the digest of a hash as a value; all other octets must be the same in all blocks."""
        start, stop = self._vector(position, 1)
        if of is Multihash:
            self._mark(start, stop - start - _DIGEST)
            self.leaves[path] = ShapeLeaf(Octets(of), stop - _DIGEST, stop)
        else:
            self._mark(start, stop - start)

    def _constant_json(self, position: int) -> None:
        inside = _Trace(self._raw)
        inside._table(Entries, position, "")
        self._structure |= inside._structure
        for leaf in inside.leaves.values():
            self._mark(leaf.start, leaf.stop - leaf.start)

    def _items(self, item: Text | Table | Union, position: int, path: str) -> None:
        start, stop = self._vector(position, 4)
        self._mark(start, stop - start)
        for number, slot in enumerate(range(start, stop, 4)):
            inner = f"{path}.{number}"
            if isinstance(item, Text):
                self._value(item, slot, inner)
            else:
                of: Any = item.of if isinstance(item, Table) else wrapper_of(item.variants)
                self._table(of, slot, inner)

    def _follow(self, position: int) -> int:
        self._mark(position, 4)
        return position + int(_U32(self._raw, position)[0])

    def _vector(self, position: int, width: int) -> tuple[int, int]:
        start = self._follow(position) + 4
        self._mark(start - 4, 4)
        return start, start + int(_U32(self._raw, start - 4)[0]) * width

    def _slots(self, table: int) -> dict[int, int]:
        """Returns each present slot's distance from the table."""
        self._mark(table, 4)
        vtable = table - int(_I32(self._raw, table)[0])
        size = int(_U16(self._raw, vtable)[0])
        self._mark(vtable, size)
        return dict(self._places(vtable, size))

    def _places(self, vtable: int, size: int) -> Iterator[tuple[int, int]]:
        for slot in range((size - 4) // 2):
            if place := int(_U16(self._raw, vtable + 4 + 2 * slot)[0]):
                yield slot, place

    def _mark(self, start: int, size: int) -> None:
        self._structure[start : start + size] = True
