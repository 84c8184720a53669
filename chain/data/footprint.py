"""Estimates the memory that rows of a Parquet file may take from its page headers, before a page is opened.

A few bytes of a file can stand for gigabytes of rows: pages that inflate, one long text of a dictionary that a million
rows refer to, a list of a billion nulls. Headers say how large a page becomes and how many values it holds, and are
what the reader goes by, so a walk along them bounds what any rows in a row can take. From that bound follows how many
rows to read at once, and which columns to read as references into their dictionary (``compact``); a file of which even
one row may be too much is Invalid. Pages are read only for the longest text of a dictionary, and only where that
decides. Spec: Apache Parquet, file format and encodings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from chain.data.footer import UNREADABLE, ColumnChunk, ParquetFooter, RowGroup
from chain.data.thrift import STRUCT, Compact, ThriftError
from chain.errors import Invalid
from chain.libraries import np, pa

if TYPE_CHECKING:
    import numpy.typing as npt

BATCH_BYTES: Final = 32 << 20
"""Bytes of memory that the rows read at once may take."""
MAX_ROW: Final = 256 << 20
"""Bytes of memory that a single row may take."""
MAX_PAGES: Final = 256 << 20
"""Bytes that the pages open at a time, one of each column and its dictionary, may take."""
FREE_VALUES: Final = 1 << 24
VALUES_PER_BYTE: Final = 4096
"""Most values of a column: FREE_VALUES, and VALUES_PER_BYTE for each byte of the file; more would only cost time."""
GROWTH: Final = 1024
"""Bytes that lists beyond MAX_ROW may take for each byte of theirs in the file.

No header says where rows begin and end in lists, so one row might hold all of them; this bound makes such a row long in
the file, too.
"""
_STEPS: Final = (65_536, 16_384, 4_096, 1_024, 256, 64, 16, 4, 1)
_HEADER: Final = 512
_MAX_HEADER: Final = 1 << 20
"""Bytes of a page header that are read first, and at most: its statistics may hold long texts."""
_INDEX_PAGE, _DICTIONARY_PAGE = 1, 2
_DICTIONARY_CODES: Final = (2, 8)
_PREFIX_CODE: Final = 7
"""Encodings that refer to earlier values: PLAIN_DICTIONARY, RLE_DICTIONARY; DELTA_BYTE_ARRAY."""
_PER_VALUE: Final = 8
"""Bytes for levels and offsets of a value, in addition to the value itself."""
_MODEST_CODECS: Final = ("uncompressed", "snappy")
_MODEST_GROWTH: Final = 22
"""Most bytes that a stored byte becomes: three bytes of Snappy stand for sixty-four at most."""
_SHORT: Final = 64
"""Longest text, in bytes, that is written out however many rows refer to it."""
_LENGTH: Final = 4

Pages: TypeAlias = "npt.NDArray[np.float64]"
"""Numbers of pages as floats: they are untrusted and get multiplied, and floats do not overflow."""
_MAX_NUMBER: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class FootprintPlan:
    rows: int
    """Number of rows to read at once."""
    compact: Mapping[int, tuple[str, ...]]
    """By row group, paths of leaf columns to read as references: their texts repeat too much to expand at once."""


@dataclass(slots=True)
class Chunk:
    """One leaf column of one row group, with its data pages as their headers describe them."""

    column: ColumnChunk
    dictionary: tuple[int, int, int] = (0, 0, 0)
    """The dictionary's position in the file, its size there, and its decompressed size, in bytes."""
    entries: int = 0
    """Number of values in the dictionary, by its header."""
    pages: Pages = field(default_factory=lambda: np.zeros((0, 3)))
    """For each page: number of values, decompressed size in bytes, encoding."""
    longest: int = 0
    """Bytes of the longest text in the dictionary; until that is looked up, the size of the whole dictionary."""
    compact: bool = False
    """Whether the column is read as references; texts of the dictionary then take no memory per row."""

    @property
    def path(self) -> str:
        return self.column.leaf.path

    @property
    def width(self) -> int:
        return self.column.leaf.width

    @property
    def repeated(self) -> bool:
        return self.column.leaf.repeated

    @property
    def is_encoded(self) -> bool:
        """Whether all values are references to the dictionary."""
        return bool(np.isin(self.pages[:, 2], _DICTIONARY_CODES).all())

    @property
    def can_be_compact(self) -> bool:
        """Whether Arrow can read the column as references: below a struct or list, all pages must be references."""
        return "." not in self.path or self.is_encoded

    def taken(self, rows: int, of_group: int) -> int:
        """Returns a bound in bytes for ``rows`` consecutive rows of a group of ``of_group`` rows."""
        if not len(self.pages):
            return 0
        if self.repeated:
            whole = int(self._costs(of_group).sum())
            return whole if rows >= of_group else min(whole, 4 * (whole * rows // of_group + 1))
        if self.width:
            return min(rows, of_group) * (self.width + _PER_VALUE)
        counts = self.pages[:, 0]
        ends = np.cumsum(counts)
        total = np.concatenate(([0], np.cumsum(self._costs(rows))))
        last = np.searchsorted(ends - counts, ends - 1 + rows)
        return int((total[last] - total[:-1]).max())

    def _costs(self, rows: int) -> Pages:
        """Returns the bytes that each page's values take; at most ``rows`` values, unless a row holds several."""
        counts, sizes, codes = self.pages.T
        read = counts if self.repeated else np.minimum(counts, rows)
        if self.width:
            fixed: Pages = read * (self.width + _PER_VALUE)
            return fixed
        each = np.where(np.isin(codes, _DICTIONARY_CODES), self.longest, np.where(codes == _PREFIX_CODE, sizes, 0))
        costs: Pages = np.where(each > 0, read * each, sizes) + read * _PER_VALUE
        return costs


def plan(raw: BinaryIO, size: int, footer: ParquetFooter, groups: range | None = None) -> FootprintPlan:
    """Plans how to read ``raw``, a file of ``size`` bytes, or some of its row ``groups``.

    Raises Invalid if even one row may take too much memory.
    """
    most = FREE_VALUES + VALUES_PER_BYTE * size
    if footer.rows > most:
        raise _refusal(f"{footer.rows:,} rows in {size:,} bytes")
    rows, compact = _STEPS[0], dict[int, tuple[str, ...]]()
    for number in range(len(footer.groups)) if groups is None else groups:
        group = footer.groups[number]
        chunks = list(_large(raw, size, group))
        if not chunks:
            continue
        _check(chunks, most)
        rows = min(rows, _fitting(raw, chunks, group.rows))
        if paths := tuple(chunk.path for chunk in chunks if chunk.compact):
            compact[number] = paths
    return FootprintPlan(rows, compact)


def _large(raw: BinaryIO, size: int, group: RowGroup) -> Iterator[Chunk]:
    """Yields the chunks that might exceed their share of BATCH_BYTES, with headers read; few slices have any."""
    share = BATCH_BYTES // max(len(group.chunks), 1)
    for column in group.chunks:
        if not column.leaf.repeated and column.codec in _MODEST_CODECS:
            opened = _MODEST_GROWTH * max(column.stored_size, 0)
            if opened + group.rows * (_PER_VALUE + (column.leaf.width or opened)) <= share:
                continue
        yield walked(raw, size, column)


def walked(raw: BinaryIO, size: int, column: ColumnChunk) -> Chunk:
    """Reads the page headers of a chunk of ``raw``, a file of ``size`` bytes. Raises Invalid."""
    chunk = Chunk(column)
    chunk.pages = np.array(list(_pages(raw, size, chunk)), np.float64).reshape(-1, 3)
    return chunk


def _check(chunks: list[Chunk], most: int) -> None:
    opened = 0
    for chunk in chunks:
        if (values := int(chunk.pages[:, 0].sum())) > most:
            raise _refusal(f"{values:,} values of column {chunk.path!r} in so small a file")
        opened += chunk.dictionary[2] + int(chunk.pages[:, 1].max(initial=0))
        if opened > MAX_PAGES:
            raise _refusal(f"pages of {opened:,} bytes, open at a time,")


def _fitting(raw: BinaryIO, chunks: list[Chunk], of_group: int) -> int:
    """Returns the largest step of rows that fits; opens dictionaries only if it would otherwise be a small one."""
    if of_group <= 0:
        return _STEPS[0]
    enough = min(_STEPS[0], of_group)
    texts = [chunk for chunk in chunks if chunk.dictionary[2] and not chunk.width]
    if _step(chunks, of_group, BATCH_BYTES) < enough:
        for chunk in texts:
            chunk.longest = _longest(raw, chunk)
    if _step(chunks, of_group, BATCH_BYTES) < enough:
        for chunk in texts:
            if chunk.longest > _SHORT and chunk.can_be_compact:
                chunk.longest, chunk.compact = 0, True
    for chunk in chunks:
        taken = chunk.taken(of_group, of_group) if chunk.repeated else 0
        if taken > max(MAX_ROW, GROWTH * chunk.column.stored_size):
            raise _refusal(f"lists of column {chunk.path!r}, which may take {taken:,} bytes,")
    if (least := _taken(chunks, 1, of_group)) > MAX_ROW:
        raise _refusal(f"a row that may take {least:,} bytes")
    return _step(chunks, of_group, max(BATCH_BYTES, 2 * least))


def _step(chunks: list[Chunk], of_group: int, limit: int) -> int:
    return next((rows for rows in _STEPS if _taken(chunks, rows, of_group) <= limit), 0)


def _taken(chunks: list[Chunk], rows: int, of_group: int) -> int:
    return sum(chunk.taken(rows, of_group) for chunk in chunks)


def _pages(raw: BinaryIO, size: int, chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Follows the headers of a chunk's pages as the reader will, and records where the dictionary is."""
    column = chunk.column
    at = column.data_page
    if column.dictionary_page is not None and 0 < column.dictionary_page < at:
        at = column.dictionary_page
    end = at + column.stored_size
    if not 0 <= at <= end <= size:
        raise _malformed(chunk, "lies outside of the file")
    seen = 0
    while seen < column.values and at < end:
        kind, opened, stored, fields, start = _header(raw, at, end, chunk)
        if not (0 <= opened < _MAX_NUMBER and 0 <= stored <= end - start):
            raise _malformed(chunk, "has a page of no size")
        if kind == _DICTIONARY_PAGE:
            chunk.dictionary, chunk.longest = (start, stored, opened), opened
            chunk.entries = fields.get(1, 0)
        elif kind != _INDEX_PAGE:
            count = fields.get(1, 0)
            if not 0 <= count < _MAX_NUMBER:
                raise _malformed(chunk, "has a page of no number of values")
            seen += count
            yield count, opened, fields.get(4 if kind else 2, 0)
        at = start + stored


def _header(raw: BinaryIO, at: int, end: int, chunk: Chunk) -> tuple[int, int, int, dict[int, int], int]:
    """Reads a page header: kind, decompressed and stored size, the fields of its kind, and where its content begins."""
    room = _HEADER
    while True:
        raw.seek(at)
        data = raw.read(min(room, end - at))
        reader = Compact(data)
        numbers: dict[int, int] = {}
        inner: dict[int, int] = {}
        try:
            for number, kind in reader.fields():
                if number in (1, 2, 3) and kind != STRUCT:
                    numbers[number] = reader.number()
                elif number in (5, 7, 8) and kind == STRUCT:
                    inner = reader.numbers()
                else:
                    reader.skip(kind)
        except ThriftError:
            if len(data) < room or room >= _MAX_HEADER:
                raise _malformed(chunk, "has a page without a header") from None
            room *= 8
            continue
        return numbers.get(1, -1), numbers.get(2, -1), numbers.get(3, -1), inner, at + reader.at


def _longest(raw: BinaryIO, chunk: Chunk) -> int:
    """Returns the longest text of a dictionary in bytes, or the dictionary's size where it cannot be opened."""
    start, stored, opened = chunk.dictionary
    raw.seek(start)
    data: bytes = raw.read(stored)
    codec = chunk.column.codec
    if codec != "uncompressed":
        try:
            data = pa.decompress(data, opened, codec=codec, asbytes=True)
        except (pa.ArrowException, ValueError, OSError):
            return opened
    longest = at = 0
    while at + _LENGTH <= len(data):
        length = int.from_bytes(data[at : at + _LENGTH], "little")
        longest = max(longest, length)
        at += _LENGTH + length
    return min(longest, opened)


def _malformed(chunk: Chunk, what: str) -> Invalid:
    return Invalid(f"not a readable Parquet file: column {chunk.path!r} {what}", rule=UNREADABLE, hint="fetch it again")


def _refusal(what: str) -> Invalid:
    return Invalid(
        f"{what} would take more memory than reading a slice may",
        rule="slice-footprint",
        hint="write the rows again, in smaller pages and without values of hundreds of megabytes",
    )
