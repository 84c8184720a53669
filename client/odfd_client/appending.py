"""Appends rows to datasets of a node: each append once, by its id, and after a block that the program names.

An append has an id. The node remembers it in the transaction of the rows, and adds nothing for a repeated one, so a
program that lost an answer, or died, appends the same again. The id of the last append is in the commit point: a
program whose ids are positions in its input goes on from there, and needs no storage of its own.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from odfd_client.errors import Bug, Environment, Invalid, from_problem
from odfd_client.transport import Transport, connection_lost, part

_MAX_VIEW: Final = 16 << 20
"""Bytes of one line about a task."""


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """The end of a dataset."""

    id: str
    """Id of the dataset; after a handover another chain goes on."""
    block: str
    """Hash of the last block."""
    sequence_number: int
    last_id: str | None
    """Id of the last append that added rows; ``None``: there is none, or it had no id."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> CommitPoint:
        """Decodes what a node says. Raises Bug."""
        try:
            last = fields.get("push")
            return cls(str(fields["id"]), str(fields["block"]), int(fields["sequenceNumber"]), last and str(last))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Bug(f"what the node says of a commit point is not understood: {error}", rule="answer") from error


@dataclass(frozen=True, slots=True)
class Appended:
    """The effect of an append."""

    id: str
    """The given id, or the one that was made for it."""
    block: str
    """Hash of the last block of its transaction; the next append may follow it."""
    records: int
    """Rows that were appended now: 0 for a repeated one, or if a merge found nothing new."""
    message: str
    """What the node remarks: that it was appended before, or where unreadable rows are."""


def commit_point(transport: Transport, ref: str) -> CommitPoint:
    return CommitPoint.of(transport.get(f"/dataset/v1alpha1/datasets/{part(ref)}/commit-point"))


def append(
    transport: Transport,
    ref: str,
    data: Any,
    id_: str | None,
    after: CommitPoint | Appended | None,
    source: str | None,
) -> Appended:
    """Appends rows in one transaction, as ``Client.append`` says."""
    named = id_ if id_ is not None else str(uuid.uuid4())
    with tempfile.TemporaryFile(prefix="odfd-client-") as file:
        _write(data, file)
        file.seek(0)
        upload = transport.post("/node/v1alpha1/uploads", file, {"name": "append.parquet"})
    body: dict[str, object] = {"uploads": [upload["id"]], "format": "parquet", "id": named}
    if after is not None:
        body["after"] = after.block
    if source is not None:
        body["source"] = source
    task = transport.post(f"/dataset/v1alpha1/datasets/{part(ref)}/ingest", body)
    item = _result(transport, str(task["id"]))
    return Appended(named, str(item["head"]), int(item.get("records", 0)), str(item.get("message", "")))


def _write(data: Any, file: IO[bytes]) -> None:
    """Writes rows as Parquet, a batch at a time. Raises Invalid, Environment."""
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if not hasattr(data, "__arrow_c_stream__"):
        hint = "a table, batch or reader of Arrow, or what exports one, as data frames of pandas and Polars do"
        raise Invalid(f"{type(data).__name__} is no table of Arrow", rule="append-rows", hint=hint)
    try:
        with pa.RecordBatchReader.from_stream(data) as reader, pq.ParquetWriter(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowInvalid as error:
        raise Invalid(f"the rows cannot be written as Parquet: {error}", rule="append-rows") from error
    except OSError as error:
        raise Environment(f"no space for the rows: {error}", rule="disk", hint="TMPDIR names another disk") from error


def _result(transport: Transport, task: str) -> Mapping[str, Any]:
    """Waits for the end of an ingest. Raises its fault; Unreachable if the node goes away, which may have appended."""
    exchange = transport.ask("GET", f"/node/v1alpha1/tasks/{part(task)}", {"follow": "true"}, patience=None)
    try:
        while True:
            view = json.loads(exchange.line(_MAX_VIEW))
            if view.get("fault"):
                raise from_problem(view["fault"])
            if view.get("state") == "done":
                item: Mapping[str, Any] = view["result"]["items"][0]
                return item
            if view.get("state") == "cancelled" or "state" not in view:
                raise from_problem(view) if "detail" in view else connection_lost(transport.path)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise Bug(f"what the node says of a task is not understood: {error}", rule="answer") from error
    finally:
        exchange.close()
