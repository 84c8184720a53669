"""Keeps proven answers: rows, and the statement that a node signed about them."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from odfd_client.errors import Environment

MAX_CARRIED = 1 << 20
"""Bytes of rows that a file may hold beside the statement, by which a check can show the first row that differs."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A proven answer that others can check: ``odfctl trust recheck FILE``."""

    rows: pa.Table
    """The rows, in the order of the answer."""
    statement: dict[str, Any]
    """A signed statement (DSSE) of query, pins, engine and hash of the rows."""

    def document(self) -> dict[str, Any]:
        """Returns the document as ``odfctl sql --prove`` writes it.

        Rows over 1 MiB are left out: the checker computes them.
        """
        return {"rows": self._encode_rows(), "statement": self.statement}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document to a file. Raises Environment."""
        place = Path(path)
        part = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            part.write_text(json.dumps(self.document(), indent=1) + "\n")
            part.replace(place)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise Environment(f"cannot write {place}: {error.strerror}", rule="proof-file") from error

    def _encode_rows(self) -> str:
        if self.rows.nbytes > MAX_CARRIED:
            return ""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as stream:
            stream.write_table(self.rows)
        return base64.b64encode(sink.getvalue()).decode()
