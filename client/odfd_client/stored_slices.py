"""Reads the rows of a cut from the slices of a repository; each is hashed before a row of it is given."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final

import pyarrow as pa

from odfd_client.chain_blocks import Slice, hasher
from odfd_client.errors import Bug, Invalid, NotFound
from odfd_client.slice_files import SliceFiles, given_schema
from odfd_client.stored_chains import Cut, StoredChain
from odfd_client.values import NodeMetadata

_PART: Final = 1 << 20
_KEPT_BYTES: Final = 1 << 30
_FORMAT_FAULTS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OSError)


class CheckedObjects:
    """Slices that were hashed, mapped; the least recently used are forgotten, and hashed again when they are read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, chain: StoredChain, wanted: Slice) -> mmap.mmap:
        """Returns the content of a slice. Raises NotFound if it is missing, Invalid if it has other bytes."""
        key = wanted.hash, wanted.size
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        file = chain.place.open(chain.path(f"data/{wanted.hash}"), wanted.size)
        if file is None:
            raise NotFound(
                f"{chain.shown} does not hold the rows of offsets {wanted.first} to {wanted.last}",
                rule="repository-object",
                hint="they were deleted, or never copied; read another copy, or mirror it on a node",
            )
        with file:
            content = _map(chain, file, wanted)
        with self._lock:
            self._kept[key] = content
            while sum(size for _, size in self._kept) > _KEPT_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return content


def _map(chain: StoredChain, file: IO[bytes], wanted: Slice) -> mmap.mmap:
    file.seek(0, 2)
    made = hasher(wanted.hash)
    content = None
    if file.tell() == wanted.size and wanted.size:
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for place in range(0, len(content), _PART):
            made.update(content[place : place + _PART])
    if content is None or made.hexdigest() != wanted.hash[5:]:
        raise Invalid(
            f"the rows of offsets {wanted.first} to {wanted.last} in {chain.shown} are not those of their block",
            rule="repository-object",
            hint="the file is damaged or was replaced; nothing of it was used. Read another copy",
        )
    return content


TOGETHER: Final = 4
"""Slices that are decoded at the same time for a table, which has them all in memory anyway."""


@dataclass(frozen=True)
class StoredFile:
    """A slice, read when it is needed."""

    objects: CheckedObjects
    chain: StoredChain
    slice: Slice

    @property
    def first(self) -> int:
        return self.slice.first

    @property
    def last(self) -> int:
        return self.slice.last

    def fragment(self) -> Any:
        """Returns the file for Arrow. Raises NotFound, Invalid, Bug."""
        import pyarrow.dataset as ds

        content = self.objects.of(self.chain, self.slice)
        try:
            found = ds.ParquetFileFormat().make_fragment(pa.py_buffer(content))
            rows = found.metadata.num_rows
        except _FORMAT_FAULTS as error:
            raise _unreadable(self.chain, error) from error
        if rows != self.last - self.first + 1:
            raise Bug(f"a slice of {self.chain.shown} has {rows} rows, not those of its offsets", rule="answer")
        return found


class StoredSlices(SliceFiles):
    """The slices of one cut, of which only those that are read are fetched."""

    def __init__(self, objects: CheckedObjects, cut: Cut, told: NodeMetadata, after: int = -1) -> None:
        """``after``: only slices with rows after this offset."""
        self._files_here = [StoredFile(objects, cut.chain, slice_) for slice_ in cut.slices(after)]
        rows = sum(each.last - each.first + 1 for each in self._files_here)
        super().__init__(told, _schema(cut, self._files_here), (), rows)
        self.spans = [(each.first, each.last) for each in self._files_here]
        self._chain, self.folder = cut.chain, cut.chain.folder

    def table(self, columns: Sequence[str]) -> pa.Table:
        return self._reader(columns, TOGETHER).read_all()

    def reader(self, columns: Sequence[str]) -> pa.RecordBatchReader:
        return self._reader(columns, 1)

    def _reader(self, columns: Sequence[str], together: int) -> pa.RecordBatchReader:
        schema = self.schema if not columns else pa.schema([self.schema.field(name) for name in columns])
        return pa.RecordBatchReader.from_batches(schema, self.scan(columns or self.schema.names, together=together))

    def between(self, columns: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.compute as pc

        among = (pc.field("offset") >= first) & (pc.field("offset") <= last)
        return self.scan(columns or self.schema.names, among, first, last)

    def scan(
        self,
        columns: Sequence[str] | dict[str, Any],
        among: Any = None,
        first: int = 0,
        last: int | None = None,
        *,
        together: int = 1,
    ) -> Iterator[pa.RecordBatch]:
        """Yields columns of the rows that satisfy an expression, in order, slice by slice. Raises as ``fragment``.

        ``first`` and ``last``: offsets; slices that have none of them are not read. ``together``: slices that are
        decoded at the same time, and are in memory then.
        """
        import pyarrow.dataset as ds

        wanted = columns if isinstance(columns, dict) else list(columns)
        files = iter([each for each in self._files_here if each.last >= first and (last is None or each.first <= last)])
        while some := [each.fragment() for each in islice(files, together)]:
            part = ds.FileSystemDataset(some, self.schema, ds.ParquetFileFormat())
            try:
                yield from part.scanner(columns=wanted, filter=among, fragment_readahead=together).to_reader()
            except _FORMAT_FAULTS as error:
                raise _unreadable(self._chain, error) from error


def _schema(cut: Cut, files: Sequence[StoredFile]) -> pa.Schema:
    """Returns the columns of a log: those of its newest slice. Raises NotFound if there is none."""
    if files:
        try:
            found = files[-1].fragment().physical_schema.remove_metadata()
        except _FORMAT_FAULTS as error:
            raise _unreadable(cut.chain, error) from error
        return given_schema(found) or found
    said = next((each.arrow_schema for each in cut.chain.back_to(0, cut.head) if each.arrow_schema is not None), None)
    if said is None:
        raise NotFound(f"{cut.chain.shown} has no rows yet, so its columns are not known here", rule="repository-empty",
                       hint="listen() waits for rows; a node knows the columns")  # fmt: skip
    try:
        found = pa.ipc.read_schema(pa.py_buffer(said)).remove_metadata()
    except _FORMAT_FAULTS as error:
        raise _unreadable(cut.chain, error) from error
    return given_schema(found) or found


def _unreadable(chain: StoredChain, error: Exception) -> Invalid:
    return Invalid(f"the rows of {chain.shown} cannot be read: {error}", rule="repository-slice",
                   hint="a dataset whose columns changed their types is read by a node")  # fmt: skip
