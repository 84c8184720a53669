"""Reads the answer to a query as it arrives: frames with one Arrow IPC stream, and the metadata before and after it.

A frame is one byte for its kind, four for its length, and so many bytes of content. An answer without its last frame
was cut off, and raises; it never looks like one with fewer rows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from odfd_client.errors import Bug, OdfdError, from_problem
from odfd_client.transport import Exchange, parse_json
from odfd_client.values import NodeMetadata

_HEAD, _SCHEMA, _ROWS, _END, FAULT = b"H", b"S", b"A", b"E", b"P"
HEADER = struct.Struct(">cI")
_MAX_FRAME = 1 << 24


class Frames:
    """Reads the frames of one answer."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def next(self) -> tuple[bytes, bytes]:
        """Returns the next frame. Raises the reported error, Unreachable, Bug."""
        kind, length = HEADER.unpack(self._exchange.exactly(HEADER.size))
        if kind not in (_HEAD, _SCHEMA, _ROWS, _END, FAULT) or length > _MAX_FRAME:
            raise Bug("the bytes are no frame of an answer", rule="query-frame")
        content = self._exchange.exactly(length)
        if kind == FAULT:
            problem = parse_json(content)
            raise from_problem(problem if isinstance(problem, dict) else {})
        return kind, content

    def one(self, wanted: bytes) -> bytes:
        """Returns the next frame, which must be of this kind. Raises as ``next`` does."""
        kind, content = self.next()
        if kind != wanted:
            raise Bug("what came is not the frame that comes next", rule="query-frame")
        return content


class _Rows(io.RawIOBase):
    """The Arrow stream in the frames, as a file. ``end``: the content of the last frame, once it was read."""

    def __init__(self, frames: Frames) -> None:
        self._frames, self._rest = frames, memoryview(b"")
        self.end: dict[str, Any] | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._rest and self.end is None:
            kind, content = self._frames.next()
            if kind == _ROWS:
                self._rest = memoryview(content)
            elif kind == _END:
                end = parse_json(content)
                self.end = end if isinstance(end, dict) else {}
            else:
                raise Bug("what came is no frame of rows", rule="query-frame")
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class Answer:
    """The rows of an answer, read once as they arrive, with their sources. Use it with ``with``, or read all of it."""

    more = False
    """Whether the cut has rows after these, in other files."""
    is_checked = False
    """Whether the node looked for the block of the reader's position, and found it."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        frames = Frames(exchange)
        try:
            kind, content = frames.next()
            if kind != _HEAD:
                raise Bug("an answer begins with what it was made of", rule="query-frame")
            self.told = NodeMetadata.of(parse_json(content))
            self._rows = _Rows(frames)
            self._buffered = io.BufferedReader(self._rows, 1 << 18)
            self._stream = pa.ipc.open_stream(self._buffered)
        except BaseException as error:
            exchange.close()
            if isinstance(error, pa.ArrowInvalid):
                raise Bug(f"the rows are no Arrow stream: {error}", rule="answer") from error
            raise
        self.schema: pa.Schema = self._stream.schema

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the answer; the node stops computing."""
        self._exchange.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields batches to the last row. Raises the error that the answer ends with."""
        count = 0
        try:
            for batch in self._stream:
                count += batch.num_rows
                yield batch
            while self._rows.end is None:
                if self._buffered.read(1):
                    raise Bug("more comes after the last row", rule="answer")
            if self._rows.end.get("rows") != count:
                raise Bug(f"{count} rows came, and not all that were announced", rule="answer")
        except pa.ArrowInvalid as error:
            raise Bug(f"the rows are no Arrow stream: {error}", rule="answer") from error
        finally:
            self.close()

    @property
    def proof(self) -> dict[str, Any] | None:
        """The node's signed statement, after the last row, if it was requested."""
        found = (self._rows.end or {}).get("proof")
        return found if isinstance(found, dict) else None

    def reader(self) -> Reader:
        return Reader(self)

    def to_arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), self.schema)


class Reader:
    """The batches of an answer for any library that takes an Arrow stream: it has the interface of Arrow's C streams.

    ``error``: the error that ended the stream, for libraries that report it in their own words.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer, self.schema = answer, answer.schema
        self.error: OdfdError | None = None
        self._batches = self._keep_error()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.arrow().__arrow_c_stream__(requested_schema)

    def arrow(self) -> pa.RecordBatchReader:
        """Returns pyarrow's own reader."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def close(self) -> None:
        self.answer.close()

    def _keep_error(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.answer.batches()
        except OdfdError as error:
            self.error = error
            raise
