"""One query: from its text to an Arrow reader, with what the daemon says beside the rows."""

from __future__ import annotations

import importlib
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engines.query.frames import END, HEAD, ROWS
from odfd.control import wire
from odfd.errors import Bug

if TYPE_CHECKING:
    import pyarrow as pa

    from odfd.control.client import Client

_NO_SCHEMA: Final = "the answer has no columns"


class _Source(io.RawIOBase):
    """Bytes of rows, as a file that Arrow reads; notes the head before them and the end behind them."""

    def __init__(self, frames: Iterator[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._frames = frames
        self._rest = memoryview(b"")
        self.head: wire.QueryHead | None = None
        self.end: wire.QueryEnd | None = None

    def readable(self) -> bool:
        return True

    def begin(self) -> None:
        """Up to the first rows."""
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
        """To the end, after which nothing was cut off."""
        while self._more():
            pass

    def _more(self) -> bool:
        for kind, content in self._frames:
            if kind == HEAD:
                self.head = msgspec.json.decode(content, type=wire.QueryHead)
            elif kind == END:
                self.end = msgspec.json.decode(content, type=wire.QueryEnd)
                return False
            elif kind == ROWS:
                self._rest = memoryview(content)
                return True
        return False


class Answered:
    """An answer under way."""

    def __init__(self, source: _Source, reader: pa.RecordBatchReader) -> None:
        assert source.head is not None
        self.head = source.head
        self.schema: pa.Schema = reader.schema
        self._source, self._reader = source, reader
        self.rows = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """To the end. Raises the fault that it ends with."""
        for batch in self._reader:
            self.rows += batch.num_rows
            yield batch
        self._source.drain()


@contextmanager
def asked(client: Client, request: wire.QueryRequest) -> Iterator[Answered]:
    """Leaving the block before the end cancels the query."""
    # It takes a fifth of a second, and so does the daemon.
    loading = threading.Thread(target=importlib.import_module, args=("chain.data.plain",), daemon=True)
    loading.start()
    with client.frames("/query", request) as frames:
        source = _Source(frames)
        source.begin()
        loading.join()
        import pyarrow as pa

        yield Answered(source, pa.ipc.open_stream(io.BufferedReader(source, 1 << 18)))
