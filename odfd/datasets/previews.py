"""Reads datasets for people: last rows, schema, and a line about each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from chain import instant
from chain.codec.arrow_schema import schema_of
from chain.data.ddl import spell_field
from chain.data.evolution import as_in_force
from chain.data.parquet import open_slice
from chain.errors import Environment, Invalid
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
    Vocab,
)
from chain.model.schema import DataField, Option
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader
from chain.wording import plural

MAX_TAIL: Final = 10_000
"""Most rows that ``tail`` returns."""
DATA_KINDS: Final = ("AddData", "ExecuteTransform")
_SHARD: Final = "odfd shard"
_DESCRIPTION: Final = "opendatafabric.org/description"
"""ODF's extra attribute with the description of a field (spec: ExtraAttributes)."""


class SoundFiles(Protocol):
    """The port of a dataset's files whose bytes match their hashes (``odfd.store.slice_files``)."""

    def path(self, name: Multihash, sequence: int) -> Path: ...

    def check_again(self, name: Multihash, sequence: int) -> None:
        """Raises a fault if the file is damaged by now."""


def way_to_data(name: str, state: ChainState, *, own: bool) -> str:
    """Returns the command that brings rows into a dataset. ``own``: whether this node writes it."""
    is_pushed = own and state.kind is DatasetKind.ROOT and state.polling_source is None
    return f"odfctl ingest {name} FILE" if is_pushed else f"odfctl pull {name}"


def numbered_slices(
    chain: ChainReader, first: int = 0, before: int | None = None
) -> Iterator[tuple[int, DataSlice, Instant]]:
    """Yields slices of blocks from ``first`` to below ``before``, newest first, with numbers and times of their blocks.

    Reads only data blocks.
    """
    while (block := chain.last_of(DATA_KINDS, before)) is not None and block.sequence_number >= first:
        before = block.sequence_number
        if isinstance(block.event, AddData | ExecuteTransform) and block.event.new_data is not None:
            yield block.sequence_number, block.event.new_data, block.system_time


def tail(
    chain: ChainReader,
    files: SoundFiles,
    limit: int,
    schema: pa.Schema,
    first: int = 0,
    before: int | None = None,
) -> pa.Table | None:
    """Returns the last ``limit`` rows in the order of their offsets, all in the schema in force.

    Blocks before ``first``, whose data need not be here, are left out, and those from ``before`` on. Returns ``None``
    if there are no rows. Raises as ``files`` does, and Invalid for rows that match no schema of the dataset.
    """
    parts: list[pa.Table] = []
    wanted = min(limit, MAX_TAIL)
    for sequence, each, _ in numbered_slices(chain, first, before):
        if wanted <= 0:
            break
        table = as_in_force(_rows_of(files, sequence, each, wanted), schema)
        wanted -= table.num_rows
        parts.insert(0, table)
    return pa.concat_tables(parts) if parts else None


def tail_of_shards(
    chains: Sequence[tuple[ChainReader, SoundFiles, int | None]], limit: int, schema: pa.Schema, vocab: Vocab
) -> pa.Table | None:
    """Returns the last rows of all shards, in the order of their times, then shards, then offsets. Raises Invalid.

    Of each chain its blocks below a number are read, or all for ``None``.
    """
    found = [tail(chain, files, limit, schema, before=before) for chain, files, before in chains]
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


def _rows_of(files: SoundFiles, block: int, named: DataSlice, wanted: int) -> pa.Table:
    """Returns the last rows of one slice. Raises Environment for a file that matches its hash and is no slice."""
    try:
        with open_slice(files.path(named.physical_hash, block)) as file:
            return file.tail(wanted)
    except Invalid as error:
        files.check_again(named.physical_hash, block)
        raise Environment(
            f"object {named.physical_hash.short} cannot be read: {error.message}",
            rule="slice-unreadable",
            hint="its bytes match its hash, so its author published it so; odfctl verify shows more",
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
            return f"{transform.engine} over {', '.join(input_.alias or input_.dataset_ref for input_ in inputs)}"
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
        (field.name, spell_field(field).removesuffix("?"), isinstance(field.type, Option), _comment(field))
        for field in schema_of(schema).fields
    ]


def _comment(field: DataField) -> str:
    comment = (field.extra or {}).get(_DESCRIPTION)
    return comment if isinstance(comment, str) else ""
