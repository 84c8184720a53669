"""Declares blocks and logs as a node sends them, and writes logs as a Parquet file, in a process of its own.

The process decodes the data of contracts by the ABI, from the signature of an event as Solidity writes it.

Columns are those of kamu: numbers, hashes and addresses as bytes, topics and data as they are; with a signature also
``event``, a struct of the parameters, in which whole numbers of more than 64 bits are texts.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from chain.errors import Invalid, Refused
from chain.libraries import pa, pq
from odfd.ingest.source_process import SourceJob, SourceResult, run_job, serve

RULE: Final = "source-evm"
POSITION_RULE: Final = "evm-position"
_POSITION: Final = re.compile(r"(\d{1,18})@(?:0x)?([0-9a-f]{64})\Z")
Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{1,16}$")]
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{64}$")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}$")]
Data = Annotated[str, msgspec.Meta(pattern=r"^0x(?:[0-9a-fA-F]{2})*$")]


class EvmBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a block that are used."""

    number: Quantity
    hash: Hash
    timestamp: Quantity


class EvmLog(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A log, as ``eth_getLogs`` returns it."""

    block_number: Quantity
    block_hash: Hash
    transaction_index: Quantity
    transaction_hash: Hash
    log_index: Quantity
    address: Address
    topics: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=4)]
    data: Data
    removed: bool = False


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A log with the time of its block, in seconds since 1970."""

    log: EvmLog
    time: int


class DecodeJob(SourceJob, frozen=True, kw_only=True):
    """The request to write a Parquet file of the rows in the file ``rows``, a JSON list of ``LogRow``."""

    rows: str
    signature: str | None


class DecodeResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the decoding process."""

    rule: str = RULE


class BlockPosition(NamedTuple):
    """The last block whose logs were taken."""

    number: int
    hash: str

    def encode(self) -> str:
        return f"{self.number}@{self.hash}"


def decode_position(text: str) -> BlockPosition:
    """Decodes the position in a source state. Raises Invalid."""
    found = _POSITION.match(text)
    if found is None:
        raise Invalid("the chain's position in the blocks cannot be read", rule=POSITION_RULE)
    return BlockPosition(int(found[1]), f"0x{found[2]}")


SIGNATURE_RULE: Final = "evm-signature"
MAX_INDEXED: Final = 3
_MAX_PARAMETERS: Final = 64
_EVENT: Final = re.compile(r"\s*(?:event\s+)?([A-Za-z_$][\w$]*)\s*\((.*)\)\s*;?\s*\Z", re.DOTALL)
_PARAMETER: Final = re.compile(
    r"\s*((?:uint|int)\d*|address|bool|string|bytes(?:[1-9]|[12]\d|3[0-2])?)((?:\[\d{0,4}\]){0,4})"
    r"(\s+indexed)?(?:\s+([A-Za-z_$][\w$]*))?\s*\Z"
)


class EventParameter(NamedTuple):
    """One parameter of an event, with its type."""

    name: str
    kind: str
    """The full name of the type: ``uint256`` for ``uint``."""
    is_indexed: bool

    @property
    def is_hashed(self) -> bool:
        """Whether a topic holds only the hash of the value."""
        return self.kind in ("string", "bytes") or self.kind.endswith("]")


class EventSignature(NamedTuple):
    """The name and the parameters of an event."""

    name: str
    parameters: tuple[EventParameter, ...]

    @property
    def canonical(self) -> str:
        """The text whose hash is the first topic of the event's logs."""
        return f"{self.name}({','.join(parameter.kind for parameter in self.parameters)})"


def parse_event(text: str) -> EventSignature:
    """Parses a signature. Raises Invalid."""
    found = _EVENT.match(text)
    if found is None:
        raise _bad(f"no signature of an event: {text.strip()[:200]!r}")
    parts = found[2].split(",") if found[2].strip() else []
    if len(parts) > _MAX_PARAMETERS:
        raise _bad(f"an event has at most {_MAX_PARAMETERS} parameters")
    parameters = tuple(_parameter(part, number) for number, part in enumerate(parts))
    if sum(parameter.is_indexed for parameter in parameters) > MAX_INDEXED:
        raise _bad(f"an event has at most {MAX_INDEXED} indexed parameters")
    names = [parameter.name.casefold() for parameter in parameters]
    if len(set(names)) < len(names):
        raise _bad("two parameters of the event have one name")
    return EventSignature(found[1], parameters)


def _parameter(text: str, number: int) -> EventParameter:
    found = _PARAMETER.match(text)
    if found is None:
        raise _bad(f"no parameter of an event that is read: {text.strip()[:100]!r}")
    kind = {"uint": "uint256", "int": "int256"}.get(found[1], found[1])
    bits = kind.lstrip("uint") if "int" in kind else "256"
    if bits.startswith("0") or not 8 <= int(bits) <= 256 or int(bits) % 8:
        raise _bad(f"there is no type {found[1]}")
    return EventParameter(found[4] or f"arg{number}", kind + found[2], found[3] is not None)


def _bad(why: str) -> Invalid:
    hint = (
        "write it as Solidity does, without structs: Transfer(address indexed from, address indexed to, uint256 value)"
    )
    return Invalid(why, rule=SIGNATURE_RULE, hint=hint)


def selector(event: EventSignature) -> str:
    """Returns the first topic of an event, as hexadecimal digits after ``0x``."""
    from Crypto.Hash import keccak

    return "0x" + keccak.new(digest_bits=256, data=event.canonical.encode()).hexdigest()


_SMALL_BITS = 64


def answer(job: DecodeJob) -> DecodeResult:
    """Decodes the logs and writes their rows; a fault becomes an answer."""
    return run_job(job, _rows, DecodeResult, "narrow the filter")


def _rows(job: DecodeJob) -> DecodeResult:
    logs = msgspec.json.decode(Path(job.rows).read_bytes(), type=list[LogRow])
    event = None if job.signature is None else parse_event(job.signature)
    schema = _columns()
    rows = [_plain(log) for log in logs]
    if event is not None:
        schema = schema.append(
            pa.field("event", pa.struct([(parameter.name, _type(parameter)) for parameter in event.parameters]))
        )
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
    topics = [_bytes(topic) for topic in log.topics] + [None] * (4 - len(log.topics))
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
    indexed = [parameter for parameter in event.parameters if parameter.is_indexed]
    inside = [parameter for parameter in event.parameters if not parameter.is_indexed]
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
    return {
        parameter.name: _render(found[parameter.name], parameter.kind, _type(parameter))
        for parameter in event.parameters
    }


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
