"""Reading datasets for people: their last rows, their schema, and what each block says in one line."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from chain import instant
from chain.codec.manifest import to_builtins
from chain.errors import Environment, Invalid
from chain.instant import Instant
from chain.model.block import Block, UnknownEvent
from chain.model.events import (
    AddData,
    AddPushSource,
    DataEvent,
    DataSlice,
    ExecuteTransform,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
)
from chain.store.base import ChainReader, ObjectStore

MAX_TAIL: Final = 10_000
"""Rows that ``tail`` gives at the most."""
DATA_KINDS: Final = ("AddData", "ExecuteTransform")
_SAFE_INTEGER: Final = 2**53


def slices_back(chain: ChainReader) -> Iterator[DataSlice]:
    """Slices of a chain, newest first; reads only data blocks."""
    before: int | None = None
    while (block := chain.last_of(DATA_KINDS, before)) is not None:
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            yield block.event.new_data


def tail(chain: ChainReader, objects: ObjectStore, limit: int) -> pa.Table | None:
    """The last ``limit`` rows in the order of their offsets; ``None`` when there are no rows."""
    parts: list[pa.Table] = []
    wanted = min(limit, MAX_TAIL)
    for each in slices_back(chain):
        if wanted <= 0:
            break
        table = _rows_of(objects, each, wanted)
        wanted -= table.num_rows
        parts.insert(0, table)
    return pa.concat_tables(parts, promote_options="default") if parts else None


def _rows_of(objects: ObjectStore, named: DataSlice, wanted: int) -> pa.Table:
    """The last rows of one slice. Raises NotFound, or Environment for a file that our disk has spoilt."""
    try:
        with objects.path(named.physical_hash).open("rb") as file:
            return _last_rows(pq.ParquetFile(file), wanted)
    except (pa.ArrowException, OSError) as error:
        raise Environment(
            f"object {named.physical_hash.short} is damaged on disk: {str(error).splitlines()[0][:200]}",
            rule="stored-object-damaged",
            hint="odfctl verify tells which are; odfctl pull REF --repair fetches them from peers",
        ) from error


def _last_rows(file: pq.ParquetFile, wanted: int) -> pa.Table:
    """Reads row groups from the end until there are enough."""
    groups: list[pa.Table] = []
    have = 0
    for group in reversed(range(file.num_row_groups)):
        table = file.read_row_group(group)
        groups.insert(0, table)
        have += table.num_rows
        if have >= wanted:
            break
    whole = pa.concat_tables(groups)
    return whole.slice(max(0, whole.num_rows - wanted))


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows as JSON values: times in RFC 3339, decimals and integers beyond 2^53 as text."""
    columns = [[plain_value(value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def plain_value(value: object) -> object:
    match value:
        case dt.datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
            micros = (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
            return instant.render(Instant(micros * 1000))
        case dt.date() | dt.time() | dt.timedelta() | decimal.Decimal():
            return str(value)
        case bytes():
            return value.hex()
        case bool():
            return value
        case int() if abs(value) > _SAFE_INTEGER:
            return str(value)
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case list():
            return [plain_value(item) for item in value]
        case dict():
            return {key: plain_value(item) for key, item in value.items()}
        case _:
            return value


def event_name(block: Block) -> str:
    if isinstance(block.event, UnknownEvent):
        return f"Unknown({block.event.variant})"
    return type(block.event).__name__


def summary(block: Block) -> str:
    """What a block says, in one line."""
    match block.event:
        case Seed(dataset_kind=kind):
            return kind.value.lower()
        case AddData() as event:
            return _data_summary(event)
        case ExecuteTransform() as event:
            return _data_summary(event)
        case SetDataSchema(schema=schema):
            return f"{len(schema.fields)} columns" if schema else "an Arrow schema"
        case SetPollingSource(fetch=fetch, merge=merge):
            return f"{_tag(fetch)}, {_tag(merge)}"
        case AddPushSource(source_name=name, merge=merge):
            return f"{name}, {_tag(merge)}"
        case SetTransform(inputs=inputs, transform=transform):
            return f"{transform.engine} over {', '.join(each.alias or each.dataset_ref for each in inputs)}"
        case SetInfo(description=description):
            return description or ""
        case _:
            return ""


def _tag(value: object) -> str:
    return type(value).__name__.removeprefix("Fetch").removeprefix("Merge")


def _data_summary(event: DataEvent) -> str:
    parts = []
    if event.new_data is not None:
        interval = event.new_data.offset_interval
        count = interval.end - interval.start + 1
        parts.append(f"{count:,} record{'s' if count != 1 else ''}")
    if event.new_watermark is not None:
        parts.append(f"watermark {instant.render(event.new_watermark)}")
    return ", ".join(parts) or "no data"


def columns_of(said: SetDataSchema) -> Sequence[tuple[str, str, bool]]:
    """Name, type as ODF spells it, and whether it may be null. Raises Invalid for a schema in the legacy form."""
    if said.schema is None:
        raise Invalid(
            "the schema is in the legacy Arrow form", rule="legacy-schema", hint="export the dataset to read it"
        )
    described = []
    for field in to_builtins(said.schema)["fields"]:
        kind: Mapping[str, Any] = field["type"]
        optional = kind["kind"] == "Option"
        described.append((str(field["name"]), _spell(kind["inner"] if optional else kind), optional))
    return described


def _spell(kind: Mapping[str, Any]) -> str:
    """``Decimal(18, 2)``, ``List(Int32)``, ``Timestamp(Millisecond, UTC)``."""
    inner = []
    for key, value in kind.items():
        if key == "kind":
            continue
        if isinstance(value, Mapping):
            inner.append(_spell(value))
        elif key == "fields":
            inner.append(", ".join(f"{field['name']}: {_spell(field['type'])}" for field in value))
        else:
            inner.append(str(value))
    return f"{kind['kind']}({', '.join(inner)})" if inner else str(kind["kind"])
