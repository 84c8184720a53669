"""Writes an answer to a new file, which is there when its last row is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from odfd.cli.sql.formats import csv_text, ndjson_text
from odfd.cli.sql.query import Answered, Shown, asked, shown
from odfd.control import wire
from odfd.errors import Usage

if TYPE_CHECKING:
    from odfd.control.client import Client


def to_file(client: Client, request: wire.QueryRequest, form: str, path: Path) -> Answered | Shown:
    """Raises Usage where the file cannot be written; then nothing is."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("xb") as out:
            answered = _written(client, request, form, out)
        part.replace(path)
    except OSError as error:
        raise Usage(f"cannot write {path}: {error.strerror}", rule="export-file", hint="name another file") from error
    finally:
        part.unlink(missing_ok=True)
    return answered


def _written(client: Client, request: wire.QueryRequest, form: str, out: BinaryIO) -> Answered | Shown:
    if form in ("parquet", "arrow"):
        with asked(client, request) as answered:
            (_parquet if form == "parquet" else _arrow)(answered, out)
        return answered
    with shown(client, request) as found:
        _TEXTS[form](found, out)
    return found


def _csv(answered: Shown, out: BinaryIO) -> None:
    out.write(csv_text([[name for name, _ in answered.columns]]))
    for rows in answered.pages():
        out.write(csv_text(rows))


def _ndjson(answered: Shown, out: BinaryIO) -> None:
    names = [name for name, _ in answered.columns]
    for rows in answered.pages():
        out.write((ndjson_text(names, rows) + "\n").encode("utf-8", "surrogatepass"))


def _arrow(answered: Answered, out: BinaryIO) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(out, answered.schema) as stream:
        for batch in answered.batches():
            stream.write_batch(batch)


def _parquet(answered: Answered, out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(out, answered.schema, compression="zstd") as writer:
        for batch in answered.batches():
            writer.write_batch(batch)


_TEXTS: Final[dict[str, Callable[[Shown, BinaryIO], None]]] = {"csv": _csv, "ndjson": _ndjson}
