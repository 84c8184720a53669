"""Runs one query: from its text to rows, with the daemon's metadata on them.

Rows to show are requested as JSON values, those for a file as Arrow; loading Arrow takes longer than most queries.
``msgspec`` and the types of the answer are loaded while the daemon works.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, ROWS
from odfd.control import calls, wire
from odfd.errors import Bug

if TYPE_CHECKING:
    import pyarrow as pa

    from odfd.control.client import ApiCall, ControlClient

PAGE: Final = 1000
"""Rows that are shown together."""
_NO_SCHEMA: Final = "the answer has no columns"
Row = Sequence[Any]
"""Values of one row, as in JSON."""
Question: TypeAlias = "wire.QueryRequest | Mapping[str, object]"
"""A query, or its JSON."""


class _Source(io.RawIOBase):
    """A file of the rows' bytes that Arrow can read; keeps the head that comes before them and the end after them."""

    def __init__(self, frames: Iterator[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._frames = frames
        self._rest = memoryview(b"")
        self.head: wire.QueryHead | None = None
        self.end: wire.QueryEnd | None = None

    def readable(self) -> bool:
        return True

    def begin(self) -> None:
        """Reads until the first rows. Raises Bug if there are none."""
        if not self._more():
            raise Bug(_NO_SCHEMA, rule="answer-type")

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        if not self._rest and not self._more():
            return 0
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def drain(self) -> None:
        """Reads to the end, and so makes sure that the answer was not cut off."""
        while self._more():
            pass

    def _more(self) -> bool:
        for kind, content in self._frames:
            if kind == HEAD:
                self.head = _decode(content, wire.QueryHead)
            elif kind == END:
                self.end = _decode(content, wire.QueryEnd)
                return False
            elif kind == ROWS:
                self._rest = memoryview(content)
                return True
        return False


class Answered:
    """An answer in progress, as batches of Arrow."""

    def __init__(self, source: _Source, reader: pa.RecordBatchReader) -> None:
        assert source.head is not None
        self.head = source.head
        self.schema: pa.Schema = reader.schema
        self._source, self._reader = source, reader
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields batches to the end. Raises the fault that the answer ends with."""
        for batch in self._reader:
            self.rows += batch.num_rows
            yield batch
        self._source.drain()

    @property
    def proof(self) -> dict[str, Any] | None:
        """The signed statement, once the last row has arrived."""
        return None if self._source.end is None else self._source.end.proof


class Shown:
    """An answer in progress whose rows are values of JSON."""

    def __init__(self, frames: Iterator[tuple[bytes, bytes]]) -> None:
        self._frames = frames
        self.head, self.columns = _read_head(frames)
        """Names of the columns, and types as Arrow spells them."""
        self.rows = 0

    def pages(self) -> Iterator[Sequence[Row]]:
        """Yields pages to the end. Raises the fault that the answer ends with."""
        page: list[Row] = []
        for kind, content in self._frames:
            if kind != PLAIN:
                continue
            page += _decode(content, list[list[Any]])
            while len(page) >= PAGE:
                self.rows += PAGE
                yield page[:PAGE]
                del page[:PAGE]
        if page:
            self.rows += len(page)
            yield page


class Printed:
    """An answer in progress whose rows are lines of text."""

    def __init__(self, frames: Iterator[tuple[bytes, bytes]]) -> None:
        self._frames = frames
        self.head, self.columns = _read_head(frames)
        self.rows = 0

    def texts(self) -> Iterator[memoryview]:
        """Yields pieces of the text to the end. Raises the fault that the answer ends with."""
        for kind, content in self._frames:
            if kind == LINES:
                self.rows += int.from_bytes(content[:4], "big")
                yield memoryview(content)[4:]


def _read_head(frames: Iterator[tuple[bytes, bytes]]) -> tuple[wire.QueryHead, Sequence[tuple[str, str]]]:
    """Reads what comes before rows: the head, and names and types of the columns."""
    head: wire.QueryHead | None = None
    for kind, content in frames:
        if kind == HEAD:
            head = _decode(content, wire.QueryHead)
        elif kind == COLUMNS and head is not None:
            columns: list[tuple[str, str]] = _decode(content, list[tuple[str, str]])
            return head, columns
    raise Bug(_NO_SCHEMA, rule="answer-type")


@contextmanager
def query_lines(client: ControlClient, request: Question, lines: str) -> Iterator[Printed]:
    """Runs a query for lines of text, ``csv`` or ``ndjson``. Leaving the block before the end cancels it."""
    with client.frames(_call(with_fields(request, lines=lines)), _load_types) as frames:
        yield Printed(frames)


@contextmanager
def query_values(client: ControlClient, request: Question) -> Iterator[Shown]:
    """Runs a query for values of JSON. Leaving the block before the end cancels it."""
    with client.frames(_call(with_fields(request, plain=True)), _load_types) as frames:
        yield Shown(frames)


@contextmanager
def query_batches(client: ControlClient, request: Question) -> Iterator[Answered]:
    """Runs a query for batches of Arrow. Leaving the block before the end cancels it."""
    loading = threading.Thread(target=_load, daemon=True)  # meanwhile, the daemon works
    loading.start()
    with client.frames(_call(request)) as frames:
        source = _Source(frames)
        source.begin()
        loading.join()
        import pyarrow as pa

        yield Answered(source, pa.ipc.open_stream(io.BufferedReader(source, 1 << 18)))


def _call(request: Question) -> ApiCall[bytes]:
    return calls.queries_answer(cast("wire.QueryRequest", request))


def with_fields(request: Question, **fields: Any) -> Question:
    """Returns a query with some fields set."""
    if isinstance(request, Mapping):
        return {**request, **fields}
    import msgspec

    return msgspec.structs.replace(request, **fields)


def _load_types() -> None:
    _ = wire.QueryHead


def _load() -> None:
    import pyarrow  # noqa: F401


def _decode(content: bytes, kind: Any) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Bug(f"the answer is not of its type: {error}", rule="answer-type") from error
