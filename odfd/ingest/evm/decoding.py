"""Writes logs as a Parquet file, in a separate process that decodes the data of contracts by the ABI.

Columns are those of kamu: numbers, hashes and addresses as bytes, topics and data as they are; with a signature also
``event``, a struct of the parameters, in which whole numbers of more than 64 bits are texts.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from chain.errors import Invalid, Refused
from chain.libraries import pa, pq
from odfd.ingest.evm.job import RULE, DecodeJob, DecodeResult, LogRow
from odfd.ingest.evm.signature import EventParameter, EventSignature, parse_event, selector
from odfd.ingest.source_process import run_job, serve

_SMALL_BITS = 64


def answer(job: DecodeJob) -> DecodeResult:
    """Decodes the logs and writes their rows; a fault becomes an answer."""
    return run_job(job, _rows, DecodeResult, "narrow the filter")


def _rows(job: DecodeJob) -> DecodeResult:
    logs = msgspec.json.decode(Path(job.rows).read_bytes(), type=list[LogRow])
    event = None if job.signature is None else parse_event(job.signature)
    schema = _columns()
    rows = [_plain(each) for each in logs]
    if event is not None:
        schema = schema.append(pa.field("event", pa.struct([(each.name, _type(each)) for each in event.parameters])))
        for row, each in zip(rows, logs, strict=True):
            row["event"] = _event(event, each)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), job.target, use_dictionary=False)
    content = Path(job.target).read_bytes()
    if len(content) > job.limit:
        raise Refused(
            f"its logs are larger than {job.limit:,} bytes", rule="max-source-bytes", hint="narrow the filter"
        )
    return DecodeResult(digest=hashlib.sha3_256(Path(job.rows).read_bytes()).hexdigest())


def _plain(row: LogRow) -> dict[str, Any]:
    log = row.log
    topics = [_bytes(each) for each in log.topics] + [None] * (4 - len(log.topics))
    return {
        "block_number": int(log.block_number, 16),
        "block_hash": _bytes(log.block_hash),
        "block_timestamp": row.time * 1000,
        "transaction_index": int(log.transaction_index, 16),
        "transaction_hash": _bytes(log.transaction_hash),
        "log_index": int(log.log_index, 16),
        "address": _bytes(log.address),
        **{f"topic{number}": each for number, each in enumerate(topics)},
        "data": _bytes(log.data),
    }


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _columns() -> pa.Schema:
    return pa.schema(
        [
            pa.field("block_number", pa.int64(), nullable=False),
            pa.field("block_hash", pa.binary(), nullable=False),
            pa.field("block_timestamp", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("transaction_index", pa.int64(), nullable=False),
            pa.field("transaction_hash", pa.binary(), nullable=False),
            pa.field("log_index", pa.int64(), nullable=False),
            pa.field("address", pa.binary(), nullable=False),
            *(pa.field(f"topic{number}", pa.binary()) for number in range(4)),
            pa.field("data", pa.binary(), nullable=False),
        ]
    )


def _type(parameter: EventParameter) -> pa.DataType:
    if parameter.is_indexed and parameter.is_hashed:
        return pa.binary()
    base, *dimensions = parameter.kind.split("[")
    found: pa.DataType = {"bool": pa.bool_(), "string": pa.string()}.get(base, pa.binary())
    if "int" in base:
        bits = int(base.lstrip("uint")) + (base[0] == "u")
        found = pa.int64() if bits <= _SMALL_BITS else pa.string()
    for _ in dimensions:
        found = pa.list_(found)
    return found


def _event(event: EventSignature, row: LogRow) -> dict[str, Any]:
    """Returns the event's parameters of one log. Raises Invalid."""
    from eth_abi.abi import decode
    from eth_abi.exceptions import DecodingError

    log = row.log
    indexed = [each for each in event.parameters if each.is_indexed]
    inside = [each for each in event.parameters if not each.is_indexed]
    if log.topics[:1] != (selector(event),) or len(log.topics) != 1 + len(indexed):
        raise _other(event, row)
    found: dict[str, Any] = {}
    try:
        for each, topic in zip(indexed, log.topics[1:], strict=True):
            found[each.name] = _bytes(topic) if each.is_hashed else decode([each.kind], _bytes(topic))[0]
        found |= zip(
            [each.name for each in inside], decode([each.kind for each in inside], _bytes(log.data)), strict=True
        )
    except (DecodingError, OverflowError, UnicodeDecodeError):
        raise _other(event, row) from None
    return {each.name: _render(found[each.name], each.kind, _type(each)) for each in event.parameters}


def _render(value: Any, kind: str, type_: pa.DataType) -> Any:
    if pa.types.is_list(type_):
        return [_render(each, kind.rpartition("[")[0], type_.value_type) for each in value]
    if kind == "address":
        return _bytes(value)
    return str(value) if pa.types.is_string(type_) else value


def _other(event: EventSignature, row: LogRow) -> Invalid:
    place = f"log {int(row.log.log_index, 16)} of block {int(row.log.block_number, 16)}"
    return Invalid(
        f"{place} is no {event.canonical} with these indexed parameters",
        rule=RULE,
        hint="narrow the filter by address, or leave the signature out: topics and data are columns",
    )


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(DecodeJob, answer)


if __name__ == "__main__":
    sys.exit(main())
