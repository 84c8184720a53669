"""Reads datasets for people: last rows, schema, and a line about each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.ddl import spell
from chain.data.evolution import as_in_force
from chain.data.parquet import open_slice
from chain.errors import Environment, Fault, Invalid
from chain.instant import Instant
from chain.libraries import pa
from chain.model.block import Block, UnknownEvent
from chain.model.changelog import says_changelog
from chain.model.events import (
    AddData,
    AddPushSource,
    DataEvent,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    Seed,
    SetDataSchema,
    SetInfo,
    SetPollingSource,
    SetTransform,
)
from chain.model.schema import DataField, Option
from chain.state import ChainState, Vocab
from chain.store.base import ChainReader, ObjectStore
from chain.store.files import DAMAGED
from chain.wording import plural

MAX_TAIL: Final = 10_000
"""Most rows that ``tail`` returns."""
DATA_KINDS: Final = ("AddData", "ExecuteTransform")
_SHARD: Final = "odfd shard"
_DESCRIPTION: Final = "opendatafabric.org/description"
"""ODF's extra attribute with the description of a field (spec: ExtraAttributes)."""


def way_to_data(name: str, state: ChainState, *, own: bool) -> str:
    """Returns the command that brings rows into a dataset. ``own``: whether this node writes it."""
    is_pushed = own and state.kind is DatasetKind.ROOT and state.polling_source is None
    return f"odfctl ingest {name} FILE" if is_pushed else f"odfctl pull {name}"


def slices_back(chain: ChainReader, first: int = 0, before: int | None = None) -> Iterator[tuple[DataSlice, Instant]]:
    """Yields slices of blocks from ``first`` to below ``before``, newest first, with their blocks' times.

    Reads only data blocks.
    """
    while (block := chain.last_of(DATA_KINDS, before)) is not None and block.sequence_number >= first:
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            yield block.event.new_data, block.system_time


def tail(
    chain: ChainReader,
    objects: ObjectStore,
    limit: int,
    schema: pa.Schema,
    first: int = 0,
    before: int | None = None,
) -> pa.Table | None:
    """Returns the last ``limit`` rows in the order of their offsets, all in the schema in force.

    Blocks before ``first``, whose data need not be here, are left out, and those from ``before`` on. Returns ``None``
    if there are no rows. Raises Invalid for rows that match no schema of the dataset.
    """
    parts: list[pa.Table] = []
    wanted = min(limit, MAX_TAIL)
    for each, _ in slices_back(chain, first, before):
        if wanted <= 0:
            break
        table = as_in_force(_rows_of(objects, each, wanted), schema)
        wanted -= table.num_rows
        parts.insert(0, table)
    return pa.concat_tables(parts) if parts else None


def tail_of_shards(
    chains: Sequence[tuple[ChainReader, int | None]], objects: ObjectStore, limit: int, schema: pa.Schema, vocab: Vocab
) -> pa.Table | None:
    """Returns the last rows of all shards, in the order of their times, then shards, then offsets. Raises Invalid.

    Of each chain its blocks below a number are read, or all for ``None``.
    """
    found = [tail(chain, objects, limit, schema, before=before) for chain, before in chains]
    parts = [
        part.append_column(_SHARD, pa.repeat(place, part.num_rows))
        for place, part in enumerate(found)
        if part is not None
    ]
    if not parts:
        return None
    order = [(vocab.system_time, "ascending"), (_SHARD, "ascending"), (vocab.offset, "ascending")]
    rows = pa.concat_tables(parts).sort_by(order).drop_columns([_SHARD])
    return rows.slice(max(0, rows.num_rows - limit))


def name_damaged(fault: Fault, dataset: str, block: int | None = None) -> None:
    """Adds to a fault of a damaged object which dataset is affected, and the command that mends it."""
    if fault.rule == DAMAGED:
        fault.place = dataset if block is None else f"{dataset} block #{block}"
        fault.hint = f"odfctl pull {dataset} --repair fetches it anew from a peer that has it"


def _rows_of(objects: ObjectStore, named: DataSlice, wanted: int) -> pa.Table:
    """Returns the last rows of one slice. Raises NotFound, or Environment for a file that our disk damaged."""
    try:
        with open_slice(objects.path(named.physical_hash)) as file:
            return file.tail(wanted)
    except Invalid as error:
        raise Environment(
            f"object {named.physical_hash.short} is damaged on disk: {error.message}",
            rule=DAMAGED,
            hint="odfctl verify tells which are; odfctl pull REF --repair fetches them from peers",
        ) from error


def event_name(block: Block) -> str:
    if isinstance(block.event, UnknownEvent):
        return f"Unknown({block.event.variant})"
    return type(block.event).__name__


def summary(block: Block) -> str:
    """Summarises a block in one line."""
    match block.event:
        case Seed(dataset_kind=kind):
            return kind.value.lower()
        case AddData() as event:
            return _data_summary(event)
        case ExecuteTransform() as event:
            return _data_summary(event)
        case SetDataSchema(schema=schema):
            changes = ", rows can be corrected" if says_changelog(schema) else ""
            return f"{plural(len(schema.fields), 'column')}{changes}" if schema else "an Arrow schema"
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


def columns_of(schema: SetDataSchema) -> Sequence[tuple[str, str, bool, str]]:
    """Lists name, type as ODF spells it, nullability and comment of each column. Raises Invalid for a bad schema."""
    return [
        (field.name, spell(field.type).removesuffix("?"), isinstance(field.type, Option), _comment(field))
        for field in schema_of(schema).fields
    ]


def _comment(field: DataField) -> str:
    comment = (field.extra or {}).get(_DESCRIPTION)
    return comment if isinstance(comment, str) else ""
