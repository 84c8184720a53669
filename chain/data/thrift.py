"""Parses Thrift's compact protocol as far as Parquet headers need it: numbers are read, the rest is skipped.

A ``Compact`` reads one buffer from the front and never beyond it; nesting is bounded. Malformed and incomplete bytes
both raise ``ThriftError``: the caller knows which of the two it has. Spec: Thrift compact protocol encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
MAX_DEPTH: Final = 16
"""Deepest nesting of structs and lists; Parquet's own is six deep."""
MAX_FIELDS: Final = 64
"""Bound of field numbers, above those of all structs of Parquet."""
_MAX_SHIFT: Final = 63
_NUMBERS: Final = (I16, I32, I64)


class ThriftError(Exception):
    """Raised for bytes that end too early, or are not Thrift."""


class ThriftKindError(ThriftError):
    """Raised for a field of another type than the reader knows it by."""


Wanted: TypeAlias = Mapping[int, "int | Wanted"]
"""The fields of a struct that are read, by number: the type of each, and for a struct the fields of it."""


class Compact:
    """A reader of one buffer in Thrift's compact protocol, from its front. Raises ThriftError for malformed bytes."""

    __slots__ = ("_depth", "_end", "at", "raw")

    def __init__(self, raw: bytes, at: int = 0) -> None:
        self.raw = raw
        self.at = at
        """Position of the next byte."""
        self._depth = 0
        self._end = len(raw)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yields number and type of a struct's fields. The caller reads or skips each before taking the next.

        Raises ThriftError for a field that occurs twice, for a number of more than 16 bits and for a stop that has a
        number: readers differ in how they take these, and all must see the same struct.
        """
        number = seen = 0
        while head := self._byte():
            kind, step = head & 0xF, head >> 4
            number = number + step if step else self.number()
            if not STOP < kind <= STRUCT or not 0 < number < MAX_FIELDS or seen >> number & 1:
                raise ThriftError
            seen |= 1 << number
            yield number, kind

    def struct(self, wanted: Wanted) -> dict[int, Any]:
        """Reads a struct under the rules of ``fields``; returns what is wanted of it: int, bytes, or such a dict.

        All others are skipped. Raises ThriftKindError too. Makes no call for each field: the chunks of columns are most
        of a footer, and so of the work on a small slice.
        """
        raw, end, at = self.raw, self._end, self.at
        found: dict[int, Any] = {}
        number = seen = 0
        while at < end:
            head = raw[at]
            at += 1
            if not head:
                self.at = at
                return found
            kind, step = head & 0xF, head >> 4
            if step:
                number += step
            else:
                self.at = at
                number = self.number()
                at = self.at
            if not STOP < kind <= STRUCT or not 0 < number < MAX_FIELDS or seen >> number & 1:
                raise ThriftError
            seen |= 1 << number
            want = wanted.get(number)
            if want is not None and kind != (want if isinstance(want, int) else STRUCT):
                raise ThriftKindError
            if kind in _NUMBERS and at < end and raw[at] < 0x80:
                if want is not None:
                    found[number] = raw[at] >> 1 ^ -(raw[at] & 1)
                at += 1
                continue
            self.at = at
            if want is None:
                self.skip(kind)
            elif kind in _NUMBERS:
                found[number] = self.number()
            elif kind == BINARY:
                length = self.length()
                found[number] = raw[self.at - length : self.at]
            else:
                assert isinstance(want, Mapping)
                found[number] = self.struct(want)
            at = self.at
        raise ThriftError

    def number(self) -> int:
        """Reads a signed number of any width."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def length(self) -> int:
        """Returns the bytes of the next binary value, and skips it."""
        length = self._varint()
        self._pass(length)
        return length

    def items(self) -> tuple[int, int]:
        """Returns the number of a list's items and their type; the caller then reads them one by one."""
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == 0xF else count), head & 0xF

    def numbers(self) -> dict[int, int]:
        """Reads a struct, and returns its fields that are numbers; all others are skipped."""
        found: dict[int, int] = {}
        for number, kind in self.fields():
            if kind in _NUMBERS:
                found[number] = self.number()
            else:
                self.skip(kind)
        return found

    def skip(self, kind: int) -> None:
        if kind in _NUMBERS:
            self._varint()
        elif kind == BINARY:
            self.length()
        elif kind == BYTE:
            self._pass(1)
        elif kind == DOUBLE:
            self._pass(8)
        elif kind >= LIST:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise ThriftError
            self._skip_struct() if kind == STRUCT else self._skip_items(kind)
            self._depth -= 1

    def _skip_struct(self) -> None:
        """Does as ``fields`` and ``skip``, without a call per number: most of a footer is numbers to skip."""
        raw, end, at = self.raw, self._end, self.at
        while at < end:
            head = raw[at]
            at += 1
            if not head:
                self.at = at
                return
            kind = head & 0xF
            if not head & 0xF0 or kind not in _NUMBERS:
                self.at = at
                if not head & 0xF0:
                    self._varint()
                if not STOP < kind <= STRUCT:
                    raise ThriftError
                self.skip(kind)
                at = self.at
            else:
                while at < end and raw[at] & 0x80:
                    at += 1
                at += 1
        raise ThriftError

    def _skip_items(self, kind: int) -> None:
        if kind == MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4)
                self._skip_item(kinds & 0xF)
        else:
            count, item = self.items()
            if item in _NUMBERS:
                self._skip_numbers(count)
            else:
                for _ in range(count):
                    self._skip_item(item)

    def _skip_numbers(self, count: int) -> None:
        raw, end, at = self.raw, self._end, self.at
        for _ in range(count):
            while at < end and raw[at] & 0x80:
                at += 1
            if at >= end:
                raise ThriftError
            at += 1
        self.at = at

    def _skip_item(self, kind: int) -> None:
        """Skips an item of a list, where a flag takes a byte of its own; types without bytes cannot be items."""
        if kind in (TRUE, FALSE):
            self._pass(1)
        elif STOP < kind <= STRUCT:
            self.skip(kind)
        else:
            raise ThriftError

    def _byte(self) -> int:
        at = self.at
        if at >= self._end:
            raise ThriftError
        self.at = at + 1
        return self.raw[at]

    def _pass(self, size: int) -> None:
        if size > self._end - self.at:
            raise ThriftError
        self.at += size

    def _varint(self) -> int:
        byte = self._byte()
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > _MAX_SHIFT:
                raise ThriftError
        return value | byte << shift
