"""Lays out the messages of our own stream protocols: each declares its fields once, and one codec writes and reads it.

A message begins with the byte of its kind; its fields follow in the order of the declaration, and nothing follows them.
Numbers are in network order. Whatever a field has no room for is refused before anything is made of it: a peer can send
any bytes, and two nodes must never read one message differently. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Any, Final, Generic, Protocol, TypeAlias, TypeVar, get_type_hints

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash

M = TypeVar("M")
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}


class LayoutFault(ValueError):
    """Bytes do not fit the layout."""


class MessageBytes:
    """The bytes of one message, read from the front; ``fields`` are those that were read."""

    __slots__ = ("at", "body", "fields")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0
        self.fields: dict[str, Any] = {}

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.body):
            raise LayoutFault(f"ends {self.at - len(self.body)} bytes early")
        return self.body[start : self.at]


class FieldForm(Protocol):
    """How a field is written and read. ``owner`` is the message, for a field whose size another one gives."""

    def write(self, value: Any, owner: Any, out: list[bytes]) -> None: ...

    def read(self, source: MessageBytes) -> Any: ...


class UInt:
    """An unsigned number of ``size`` bytes, from ``low`` to ``high``; ``load`` makes the value."""

    def __init__(self, size: int, high: int | None = None, low: int = 0, load: Callable[[int], Any] = int) -> None:
        self.size, self._low, self._load = size, low, load
        self._high = (1 << 8 * size) - 1 if high is None else high
        self.is_any = high is None and low == 0 and load is int

    def write(self, value: int, _owner: Any, out: list[bytes]) -> None:
        out.append(value.to_bytes(self.size, "big"))

    def read(self, source: MessageBytes) -> Any:
        value = int.from_bytes(source.take(self.size), "big")
        if not self._low <= value <= self._high:
            raise LayoutFault(f"{value}, but {self._low} to {self._high} are allowed")
        return self._load(value)


u8, u16, u32, u64 = (partial(UInt, size) for size in (1, 2, 4, 8))


class OctetString:
    """As many bytes as ``size`` says, or the number before them. ``load`` raises Invalid or ValueError."""

    def __init__(
        self, size: int | UInt, load: Callable[[bytes], Any] = bytes, dump: Callable[[Any], bytes] = bytes
    ) -> None:
        self._size, self._load, self._dump = size, load, dump

    def write(self, value: Any, owner: Any, out: list[bytes]) -> None:
        raw = self._dump(value)
        if isinstance(self._size, UInt):
            self._size.write(len(raw), owner, out)
        out.append(raw)

    def read(self, source: MessageBytes) -> Any:
        return self._load(source.take(self._size.read(source) if isinstance(self._size, UInt) else self._size))


DID: Final = OctetString(34, DatasetId.from_bytes)
HASH: Final = OctetString(34, Multihash.from_bytes)
U32: TypeAlias = Annotated[int, u32()]
U64: TypeAlias = Annotated[int, u64()]
Did: TypeAlias = Annotated[DatasetId, DID]
Name: TypeAlias = Annotated[Multihash, HASH]


class RestBytes:
    """The bytes up to the end of the message, ``low`` to ``high`` of them."""

    def __init__(
        self, high: int, low: int = 0, load: Callable[[Any], Any] = bytes, dump: Callable[[Any], bytes] = bytes
    ) -> None:
        self._low, self._high, self._load, self._dump = low, high, load, dump

    def write(self, value: Any, _owner: Any, out: list[bytes]) -> None:
        out.append(self._dump(value))

    def read(self, source: MessageBytes) -> Any:
        start, source.at = source.at, len(source.body)
        if not self._low <= source.at - start <= self._high:
            raise LayoutFault(f"{source.at - start} bytes, but {self._low} to {self._high} are allowed")
        return self._load(memoryview(source.body)[start:])


class Many:
    """As many items as the number before them says."""

    def __init__(self, count: UInt, item: FieldForm) -> None:
        self._count, self._item = count, item
        # A thousand tags of a presence are read at once: one by one they would cost more than the signature.
        self._code = _CODES[item.size] if isinstance(item, UInt) and item.is_any else None

    def write(self, value: Sequence[Any], owner: Any, out: list[bytes]) -> None:
        self._count.write(len(value), owner, out)
        for each in value:
            self._item.write(each, owner, out)

    def read(self, source: MessageBytes) -> tuple[Any, ...]:
        count = self._count.read(source)
        if self._code is not None:
            form = f">{count}{self._code}"
            return struct.unpack(form, source.take(struct.calcsize(form)))
        return tuple([self._item.read(source) for _ in range(count)])


class Blobs:
    """Byte strings end to end, after their number and all their lengths; ``low`` to ``high`` bytes each."""

    def __init__(self, count: UInt, high: int, low: int = 0, total: int | None = None) -> None:
        self._count, self._low, self._high, self._total = count, low, high, total

    def write(self, value: Sequence[bytes], owner: Any, out: list[bytes]) -> None:
        self._count.write(len(value), owner, out)
        out += [struct.pack(f">{len(value)}I", *map(len, value)), *value]

    def read(self, source: MessageBytes) -> tuple[bytes, ...]:
        count = self._count.read(source)
        lengths = struct.unpack(f">{count}I", source.take(4 * count))
        if count and not self._low <= min(lengths) <= max(lengths) <= self._high:
            raise LayoutFault(f"{min(lengths)} to {max(lengths)} bytes, but {self._low} to {self._high} are allowed")
        bounds = list(accumulate(lengths, initial=source.at))
        if self._total is not None and bounds[-1] - source.at > self._total:
            raise LayoutFault(f"{bounds[-1] - source.at} bytes together, but at most {self._total} are allowed")
        source.take(bounds[-1] - source.at)
        return tuple([source.body[start:end] for start, end in pairwise(bounds)])


class BitMap:
    """A map of ``count`` bits, the lowest bit of the first byte first; the field ``of`` gives ``count``."""

    def __init__(self, count: Callable[[int], int], of: str = "") -> None:
        self._count, self._of = count, of

    def write(self, value: int, owner: Any, out: list[bytes]) -> None:
        out.append(value.to_bytes(map_bytes(self._count(getattr(owner, self._of, 0))), "little"))

    def read(self, source: MessageBytes) -> int:
        count = self._count(source.fields.get(self._of, 0))
        bits = int.from_bytes(source.take(map_bytes(count)), "little")
        # Unused bits are zero: a map has one spelling (replication.md, swarms).
        if bits >> count:
            raise LayoutFault(f"a map with bits beyond the {count} it has")
        return bits


def map_bytes(count: int) -> int:
    """Bytes of a map of so many bits."""
    return (count + 7) // 8


class FieldGroup:
    """The fields of a value: ``fields``, or those of its class, each annotated with its form."""

    def __init__(self, make: Callable[..., Any], /, **fields: FieldForm) -> None:
        hints = {} if fields else get_type_hints(make, include_extras=True)
        self._make = make
        self._fields = tuple(fields.items()) or tuple((name, hint.__metadata__[0]) for name, hint in hints.items())

    def write(self, value: Any, _owner: Any, out: list[bytes]) -> None:
        for name, form in self._fields:
            form.write(getattr(value, name), value, out)

    def read(self, source: MessageBytes) -> Any:
        outer, source.fields = source.fields, {}
        for name, form in self._fields:
            try:
                source.fields[name] = form.read(source)
            except ValueError as error:
                raise LayoutFault(f"{name}: {error}") from error
        fields, source.fields = source.fields, outer
        return self._make(**fields)


class MessageLayout(Generic[M]):
    """One kind of message: its byte, its fields as in ``FieldGroup``, and a check that returns what is wrong."""

    def __init__(
        self,
        rule: str,
        kind: int,
        make: Callable[..., M],
        check: Callable[[M], str | None] = lambda _: None,
        /,
        **fields: FieldForm,
    ) -> None:
        self.rule, self.kind = rule, kind
        self._group, self._check = FieldGroup(make, **fields), check

    def encode(self, message: M) -> bytes:
        out = [bytes([self.kind])]
        self._group.write(message, None, out)
        return b"".join(out)  # once: an answer has a MiB

    def decode(self, body: bytes) -> M:
        """Decodes a message. Raises Invalid."""
        source = MessageBytes(body)
        try:
            if source.take(1)[0] != self.kind:
                raise LayoutFault("another kind of message")
            message: M = self._group.read(source)
            if source.at < len(body):
                raise LayoutFault(f"{len(body) - source.at} bytes too many")
            if (wrong := self._check(message)) is not None:
                raise LayoutFault(wrong)
        except LayoutFault as error:
            text = f"not a message of kind {self.kind:02x}: {error}, in {len(body)} bytes: {body[:8].hex()}…"
            raise Invalid(text, rule=self.rule) from error
        return message


class MessageKinds(Generic[M]):
    """Several kinds of messages, of which the first byte says which it is."""

    def __init__(self, *layouts: MessageLayout[Any]) -> None:
        self._layouts = {layout.kind: layout for layout in layouts}
        self._first = layouts[0]

    def decode(self, body: bytes) -> M:
        """Decodes a message of one of these kinds. Raises Invalid."""
        layout = self._layouts.get(body[0], self._first) if body else self._first
        message: M = layout.decode(body)
        return message
