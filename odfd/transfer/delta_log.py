"""Writes the log of a Delta Lake table beside an exported dataset, so that warehouses read its slices in place.

The table has the columns and rows of the dataset's log. Each export that adds rows is one version, and the same export
gives the same bytes: times are those of blocks, ids are derived from the dataset's. The log names the last block that
it covers, from which the next export continues. Slices are never removed, so the table is append-only. Synchronous.
Spec: Delta Transaction Log Protocol (reader version 1, writer version 2).
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import decode_block
from chain.errors import Conflict, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.model import schema as odf
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform, SetDataSchema
from chain.multihash import Multihash
from chain.state import load_state
from chain.store import durable
from chain.store.base import ChainReader, Head
from chain.store.files import disk
from chain.store.layout import DATA

LOG: Final = "_delta_log"
_RULE: Final = "delta-table"
_VERSION: Final = re.compile(r"(\d{20})\.json\Z")
_TAIL: Final = 64 << 10
"""Bytes at the end of a version's file in which its last line, the commit's own, must begin."""
_PLAIN: Final[Mapping[type[odf.DataType], str]] = {
    odf.Bool: "boolean",
    odf.Date: "date",
    odf.Int8: "byte",
    odf.Int16: "short",
    odf.Int32: "integer",
    odf.Int64: "long",
    odf.Float32: "float",
    odf.Float64: "double",
    odf.String: "string",
    odf.Binary: "binary",
}
_PROTOCOL: Final = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
"""Version 2 of writers is the first with append-only tables."""


def table_schema(schema: odf.DataSchema) -> dict[str, Any]:
    """Translates a schema to Delta's. Raises Invalid for a column whose type Delta lacks."""
    return {"type": "struct", "fields": [_field(field) for field in schema.fields]}


def check_types(chain: ChainReader) -> None:
    """Raises Invalid, before anything is written, if Delta lacks the type of a column in the newest schema."""
    head = chain.head()
    if head is not None and (declared := load_state(chain, head.size).schema) is not None:
        table_schema(schema_of(declared))


def write_log(directory: Path, dataset: DatasetId, name: str, chain: ChainReader, head: Head) -> int | None:
    """Adds a version for the slices up to ``head`` that the log lacks. Returns the newest; ``None`` without rows.

    Raises Invalid for types that Delta lacks and columns that changed their type, Conflict when the folder's log is of
    another history or program, Environment when the disk refuses.
    """
    log = directory / LOG
    version, covered = _find_covered(log, chain)
    actions = _actions(dataset, name, chain, covered, head)
    if actions is None:
        return version
    following = 0 if version is None else version + 1
    with disk(log):
        durable.make_folder(log)
        _write(log, f"{following:020}.json", actions)
    return following


def _find_covered(log: Path, chain: ChainReader) -> tuple[int | None, int]:
    """Returns the newest version, and the number of blocks that the log covers. Raises Conflict."""
    with disk(log):
        found = (_VERSION.match(file.name) for file in log.iterdir()) if log.is_dir() else ()
        version = max((int(each[1]) for each in found if each), default=None)
    if version is None:
        return None, 0
    file = log / f"{version:020}.json"
    try:
        said = _last_line(file)["commitInfo"]["odf"]
        number, block = int(said["sequenceNumber"]), Multihash.parse(said["block"])
        known = chain.block_at(number).hash
    except (KeyError, TypeError, ValueError, Invalid, NotFound) as error:
        raise Conflict(
            f"{file} is not a version that odfd wrote for this dataset", rule=_RULE, hint="export to a new folder"
        ) from error
    if known != block:
        raise Conflict(
            f"{log} is of another history: it covers block #{number} {block.short}",
            rule=_RULE,
            hint="export to a new folder",
        )
    return version, number + 1


def _last_line(file: Path) -> Any:
    """Decodes the last line of a file. Raises ValueError when that is not JSON."""
    with disk(file), file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - _TAIL))
        return json.loads(opened.read().rstrip(b"\n").rpartition(b"\n")[2])


def _actions(
    dataset: DatasetId, name: str, chain: ChainReader, start: int, head: Head
) -> Iterator[Mapping[str, Any]] | None:
    """Returns the actions of the next version; ``None`` if it would be empty. Raises Invalid before the first."""
    before, after = load_state(chain, start), load_state(chain, head.size)
    old = None if before.schema is None else table_schema(schema_of(before.schema))
    new, created = _newest_schema(chain, start, head, old)
    if new is None or next(_adds(chain, start, head), None) is None:
        return None

    def actions() -> Iterator[Mapping[str, Any]]:
        if start == 0:
            yield _PROTOCOL
        if start == 0 or new != old:
            yield _metadata(dataset, name, new, created)
        for block, data in _adds(chain, start, head):
            yield _add(block.system_time, data, after.vocab.offset)
        yield _commit_info(chain.block_at(head.sequence_number))

    return actions()


def _blocks(chain: ChainReader, start: int, head: Head) -> Iterator[Block]:
    return map(decode_block, chain.raw_blocks(start, head.size))


def _newest_schema(
    chain: ChainReader, start: int, head: Head, old: dict[str, Any] | None
) -> tuple[dict[str, Any] | None, Instant | None]:
    """Returns the schema at the head, and the time at which a block first declared one. Raises Invalid."""
    created = None
    for block in _blocks(chain, start, head):
        if isinstance(block.event, SetDataSchema):
            new = table_schema(schema_of(block.event))
            _check_evolution(old, new)
            old, created = new, created or block.system_time
    return old, created


def _check_evolution(old: dict[str, Any] | None, new: dict[str, Any]) -> None:
    """Raises Invalid if slices under the old schema could not be read under the new one."""
    types = {each["name"]: each["type"] for each in new["fields"]}
    for each in () if old is None else old["fields"]:
        if types.get(each["name"]) != each["type"]:
            raise Invalid(
                f"the column {each['name']!r} was {json.dumps(each['type'])} in earlier slices",
                rule=_RULE,
                hint="a Delta table has one type for a column: --format parquet writes rows of one type",
            )


def _adds(chain: ChainReader, start: int, head: Head) -> Iterator[tuple[Block, DataSlice]]:
    for block in _blocks(chain, start, head):
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            yield block, block.event.new_data


def _add(at: Instant, data: DataSlice, offset: str) -> Mapping[str, Any]:
    """Makes the action that adds a slice, with bounds of the column ``offset``, by which readers skip slices."""
    first, last = data.offset_interval.start, data.offset_interval.end
    stats = {
        "numRecords": last - first + 1,
        "minValues": {offset: first},
        "maxValues": {offset: last},
        "nullCount": {offset: 0},
    }
    return {
        "add": {
            "path": f"{DATA}/{data.physical_hash}",
            "partitionValues": {},
            "size": data.size,
            "modificationTime": to_millis(at),
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _metadata(dataset: DatasetId, name: str, schema: dict[str, Any], created: Instant | None) -> Mapping[str, Any]:
    return {
        "metaData": {
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, str(dataset))),
            "name": name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "configuration": {"delta.appendOnly": "true"},
            **({} if created is None else {"createdTime": to_millis(created)}),
        }
    }


def _commit_info(block: Block) -> Mapping[str, Any]:
    said = {"block": str(block.hash), "sequenceNumber": block.sequence_number}
    return {"commitInfo": {"timestamp": to_millis(block.system_time), "operation": "WRITE", "odf": said}}


def _write(log: Path, name: str, actions: Iterable[Mapping[str, Any]]) -> None:
    """Writes a version whole or not at all."""
    with durable.writing(log / name, mode=None) as file:
        file.writelines(json.dumps(action).encode() + b"\n" for action in actions)


def _field(field: odf.DataField) -> dict[str, Any]:
    try:
        type_, nullable = _type(field.type)
    except _NoType as missing:
        raise Invalid(
            f"the column {field.name!r} is {missing}, which Delta has no type for",
            rule=_RULE,
            hint="--format parquet writes such rows; a derived dataset can cast the column",
        ) from None
    return {"name": field.name, "type": type_, "nullable": nullable, "metadata": {}}


class _NoType(Exception):
    """Raised for a type that Delta lacks; the message describes it."""


def _type(type_: odf.DataType) -> tuple[Any, bool]:
    """Returns Delta's type, and whether it may be null. Raises _NoType."""
    if isinstance(type_, odf.Option):
        return _type(type_.inner)[0], True
    if (plain := _PLAIN.get(type(type_))) is not None:
        return plain, False
    match type_:
        case odf.Decimal(precision=precision, scale=scale) if 0 <= scale <= precision <= 38:
            return f"decimal({precision},{scale})", False
        case odf.Timestamp(unit=odf.TimeUnit.NANOSECOND):
            raise _NoType("a timestamp in nanoseconds")
        case odf.Timestamp(timezone=""):
            raise _NoType("a timestamp without a zone")
        case odf.Timestamp():
            return "timestamp", False
        case odf.List(item_type=item):
            inner, nullable = _type(item)
            return {"type": "array", "elementType": inner, "containsNull": nullable}, False
        case odf.Map(key_type=key, value_type=value):
            inner, nullable = _type(value)
            key_type = _type(key)[0]
            return {"type": "map", "keyType": key_type, "valueType": inner, "valueContainsNull": nullable}, False
        case odf.Struct(fields=fields):
            return {"type": "struct", "fields": [_field(field) for field in fields]}, False
        case _:
            raise _NoType(f"of type {type(type_).__name__}")
