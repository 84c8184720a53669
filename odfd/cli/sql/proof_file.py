"""Writes a proven answer: its rows as usual, and a file with the statement and, if they are few, the rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from odfd.cli.new_file import NewFile
from odfd.cli.sql.formats import FILES, show, write
from odfd.cli.sql.query import Answered, Question, Row, query_batches, with_fields
from odfd.errors import Bug

if TYPE_CHECKING:
    import pyarrow as pa

    from odfd.control.client import ControlClient

MAX_CARRIED: Final = 1 << 20
"""Bytes of rows that the file may hold, by which a recheck can show the first row that differs."""


class _Kept(Answered):
    """An answer that keeps its rows as they pass, if they are few; it can be shown as values too."""

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self.head, self.schema, self.rows = answered.head, answered.schema, 0
        self.columns = [(field.name, str(field.type)) for field in answered.schema]
        self._kept: list[pa.RecordBatch] | None = []
        self._size = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._answered.batches():
            self.rows += batch.num_rows
            self._size += batch.nbytes
            if self._kept is not None:
                self._kept = [*self._kept, batch] if self._size <= MAX_CARRIED else None
            yield batch

    def pages(self) -> Iterator[Sequence[Row]]:
        from chain.data.json_values import plain_rows

        for batch in self.batches():
            for start in range(0, batch.num_rows, 1000):
                yield plain_rows(batch.slice(start, 1000))

    def to_base64(self) -> str:
        """Returns the rows as Arrow in base64; empty if they are too many."""
        import pyarrow as pa

        if self._kept is None:
            return ""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.schema) as stream:
            for batch in self._kept:
                stream.write_batch(batch)
        data: bytes = sink.getvalue().to_pybytes()
        return base64.b64encode(data).decode()


def prove(client: ControlClient, request: Question, form: str, file: NewFile) -> Answered:
    """Writes the rows to standard output, and the statement to a new file."""
    with query_batches(client, with_fields(request, prove=True)) as answered:
        kept = _Kept(answered)
        if form in FILES:
            write(kept, form)
        else:
            show(kept, form)  # type: ignore[arg-type]  # it has what is shown
        proof = answered.proof
    if proof is None:
        raise Bug("the answer came without its statement", rule="answer-type")
    file.write(json.dumps({"rows": kept.to_base64(), "statement": proof}, indent=1) + "\n")
    return kept
