"""Packs blocks into one message of the protocol, and unpacks them while it arrives:
tar, in gzip, as a JSON list of numbers.

Entries are named by the hash of the block, oldest first. Neither side holds a whole message: the packer yields its text
in pieces, and the unpacker takes any pieces and returns the blocks that are complete. Both are bounded by ``MAX_TEXT``,
the most that kamu's libraries accept, and no block is larger than the format allows. Pure.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, TypeAlias

import msgspec

from chain.codec.blocks import MAX_BLOCK
from chain.errors import Invalid
from chain.multihash import Multihash
from chain.wording import plural
from odfd.smart.messages import MAX_SMALL, RULE

MEDIA_TYPE: Final = "application/tar+gzip"
ENCODING: Final = "raw"
MAX_TEXT: Final = 64 << 20
"""Characters of the message: the most that kamu's web sockets accept."""
MAX_UNPACKED: Final = 256 << 20
"""Bytes of the archive; unpacking stops with an error when there are more."""
PULLED: Final = "blocks"
PUSHED: Final = "new_blocks"
"""The JSON member that holds the blocks, in both directions."""
PIECE: Final = 64 << 10
_TAR: Final = 512
_GZIP: Final = 16 + zlib.MAX_WBITS
_START: Final = re.compile(r'"payload"\s*:\s*\[')
_FOREIGN: Final = re.compile(r"[^0-9, \t\r\n]")
_DECIMALS: Final = tuple(str(number) for number in range(256))

NamedBlock: TypeAlias = tuple[Multihash, bytes]


class _Batch(msgspec.Struct, frozen=True):
    num_blocks: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
    media_type: str
    encoding: str
    payload: Annotated[list[int], msgspec.Meta(max_length=0)]


class BatchTooLarge(Invalid):
    """The blocks do not fit into one message."""

    def __init__(self) -> None:
        super().__init__(
            f"the blocks fill more than a message of {MAX_TEXT >> 20} MiB",
            rule="smart-batch-size",
            hint="the simple transfer protocol has no such limit: leave odf+ out of the URL",
        )


def pack(member: str, count: int, blocks: Iterable[NamedBlock]) -> Iterator[str]:
    """Yields the text of a message with ``count`` blocks. Raises BatchTooLarge as soon as they do not fit."""
    head = {"num_blocks": count, "media_type": MEDIA_TYPE, "encoding": ENCODING}
    text = f'{{"{member}":{msgspec.json.encode(head).decode()[:-1]},"payload":['
    size, waiting, first = len(text), bytearray(), True
    yield text
    for part in _compress(blocks):
        waiting += part
        while len(waiting) >= PIECE // 4:
            text = ("" if first else ",") + ",".join(map(_DECIMALS.__getitem__, waiting[: PIECE // 4]))
            del waiting[: PIECE // 4]
            first, size = False, size + len(text)
            if size > MAX_TEXT - PIECE:
                raise BatchTooLarge
            yield text
    yield ("" if first or not waiting else ",") + ",".join(map(_DECIMALS.__getitem__, waiting)) + "]}}"


def _compress(blocks: Iterable[NamedBlock]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for name, raw in blocks:
        entry = tarfile.TarInfo(str(name))
        entry.size = len(raw)
        yield packer.compress(entry.tobuf(tarfile.GNU_FORMAT) + raw + bytes(-len(raw) % _TAR))
    yield packer.compress(bytes(2 * _TAR)) + packer.flush()


class Unpacker:
    """Unpacks one message. ``feed`` returns blocks whose bytes hash to their name; all faults are Invalid."""

    def __init__(self, member: str) -> None:
        self._member = member
        self._head, self._tail = "", ""
        self._is_inside, self._is_over = False, False
        self._cut = ""
        """The beginning of a number whose end has not come."""
        self._last = ""
        """The last character of the list so far, to tell a number from an empty place."""
        self._gzip = zlib.decompressobj(_GZIP)
        self._tar = _TarReader()
        self._count = 0

    def feed(self, text: str) -> list[NamedBlock]:
        """Takes the next part of the text. Raises Invalid."""
        if self._is_over:
            return self._rest(text)
        if self._is_inside:
            return self._numbers(text)
        self._head += text
        if (found := _START.search(self._head)) is None:
            if len(self._head) > MAX_SMALL:
                raise _bad("it has no payload")
            return []
        rest = self._head[found.end() :]
        self._head = self._head[: found.end()]
        self._is_inside = True
        return self._numbers(rest)

    def finish(self) -> int:
        """Checks that the message is complete and agrees with its own numbers. Returns its number of blocks.

        Raises Invalid.
        """
        if not self._is_over:
            raise _bad("it ends in its payload")
        try:
            found = msgspec.json.decode(f"{self._head}{self._tail}", type=dict[str, _Batch])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise _bad(str(error)[:200]) from None
        batch = found.get(self._member)
        if batch is None:
            raise _bad(f"it has no {self._member}")
        if (batch.media_type, batch.encoding) != (MEDIA_TYPE, ENCODING):
            raise _bad(f"blocks come as {batch.media_type[:40]} in {batch.encoding[:40]}, which is not known here")
        if not self._gzip.eof or self._gzip.unused_data:
            raise _bad("its gzip does not end where the payload does")
        self._tar.finish()
        if batch.num_blocks != self._count:
            raise _bad(f"it has {plural(self._count, 'block')}, and says {batch.num_blocks:,}")
        return self._count

    def _rest(self, text: str) -> list[NamedBlock]:
        self._tail += text
        if len(self._tail) > MAX_SMALL:
            raise _bad("too much follows its payload")
        return []

    def _numbers(self, text: str) -> list[NamedBlock]:
        inside, over, rest = text.partition("]")
        whole = self._cut + inside
        self._cut = ""
        if not over:
            edge = whole.rfind(",") + 1
            if len(whole) - edge > PIECE:
                raise _bad("its payload is no list of bytes")
            whole, self._cut = whole[:edge], whole[edge:]
        found = self._bytes(whole, is_last=bool(over))
        if over:
            self._is_over = True
            self._rest(over + rest)
        return found

    def _bytes(self, text: str, *, is_last: bool) -> list[NamedBlock]:
        """Unpacks a part of the list: numbers, each but the last followed by a comma."""
        if not text.strip():
            if is_last and self._last == ",":
                raise _bad("its payload ends with a comma")
            return []
        self._last = text[-1]
        try:
            parts = text.split(",")
            if not is_last:
                parts.pop()
            if _FOREIGN.search(text):
                raise ValueError
            data = bytes(map(int, parts))
        except ValueError:
            raise _bad("its payload is no list of bytes") from None
        return self._unpack(data)

    def _unpack(self, data: bytes) -> list[NamedBlock]:
        found: list[NamedBlock] = []
        while data and not self._gzip.eof:
            try:
                raw = self._gzip.decompress(data, PIECE)
            except zlib.error as error:
                raise _bad(f"its payload is no gzip: {error}") from None
            found += self._tar.feed(raw)
            data = self._gzip.unconsumed_tail
            if not raw and not data:
                break
        if self._gzip.eof and (self._gzip.unused_data or data):
            raise _bad("its gzip does not end where the payload does")
        self._count += len(found)
        return found


class _TarReader:
    """Reads plain files from an archive. Memory: one block."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._entry: tuple[Multihash, int] | None = None
        self._is_over = False
        self._size = 0

    def feed(self, data: bytes) -> list[NamedBlock]:
        self._size += len(data)
        if self._size > MAX_UNPACKED:
            raise _bad(f"its blocks have more than {MAX_UNPACKED >> 20} MiB")
        if self._is_over:
            return []  # what follows an archive fills its last record
        self._waiting += data
        found: list[NamedBlock] = []
        while (block := self._next()) is not None:
            found.append(block)
        return found

    def finish(self) -> None:
        if not self._is_over and (self._entry is not None or self._waiting):
            raise _bad("its archive ends in the middle")

    def _next(self) -> NamedBlock | None:
        if self._entry is None and not self._begin():
            return None
        assert self._entry is not None
        name, size = self._entry
        padded = size + -size % _TAR
        if len(self._waiting) < padded:
            return None
        raw = bytes(self._waiting[:size])
        del self._waiting[:padded]
        self._entry = None
        if Multihash.sha3_256(raw) != name:
            raise Invalid(f"what was given for block {name.short} is another", rule="block-hash")
        return name, raw

    def _begin(self) -> bool:
        if self._is_over or len(self._waiting) < _TAR:
            return False
        head = bytes(self._waiting[:_TAR])
        del self._waiting[:_TAR]
        if not any(head):
            self._is_over = True
            self._waiting.clear()
            return False
        try:
            entry = tarfile.TarInfo.frombuf(head, "ascii", "strict")
        except (tarfile.HeaderError, UnicodeError, ValueError) as error:
            raise _bad(f"its archive cannot be read: {str(error)[:100]}") from None
        if not entry.isreg() or not 0 <= entry.size <= MAX_BLOCK:
            raise _bad(f"its archive has {entry.name[:80]!r}, which is no block")
        self._entry = Multihash.parse(entry.name), entry.size
        return True


def _bad(why: str) -> Invalid:
    return Invalid(f"not a batch of blocks: {why}", rule=RULE)
