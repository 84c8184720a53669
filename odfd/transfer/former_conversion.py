"""Converts a dataset of ODF 0.18 to the present format, into a folder.

Each block becomes one block of data, which contains the text of the former one: so the converted dataset still proves
the former chain, by its own hashes (``former_comparison``). Sources and transforms are declared in that text alone. The
result is always a root, as inputs of ODF 0.18 have no identities. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chain.codec.blocks import encode_block
from chain.codec.former_blocks import FormerBlock
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import LogicalHasher
from chain.data.parquet import EVENT_TIME, SYSTEM_TIME, SliceWriter, open_slice
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.libraries import pa
from chain.model.block import MetadataBlock
from chain.model.events import (
    AddData,
    DatasetKind,
    DataSlice,
    MetadataEvent,
    OffsetInterval,
    Seed,
    SetDataSchema,
    SetInfo,
    SetVocab,
    SourceState,
)
from chain.multihash import Multihash
from chain.store.layout import DATA, DirectoryWriter
from chain.wording import plural
from odfd.transfer.former_chain import FormerChain
from odfd.transfer.former_rows import RULE, present_rows, present_schema

FORMER: Final = "w3id.org/odfd/former-block"
"""Field of a data block with the text of the former block; also the kind of the source state beside it."""
SOURCE: Final = "odf-0.18"


class _Converter:
    """Writes the blocks of one dataset, in their order."""

    def __init__(self, former: FormerChain, target: Path, dataset: DatasetId) -> None:
        self._former, self._target, self._dataset = former, target, dataset
        self._writer = DirectoryWriter(target)
        self._head: Multihash | None = None
        self._size = 0
        self._schema: pa.Schema | None = None
        self._offset: int | None = None
        self._watermark: Instant | None = None

    def run(self) -> None:
        """Converts all blocks. Raises Invalid, NotFound, Environment."""
        first = self._former.block(self._former.names[0])
        self._system_time = first.system_time_column or SYSTEM_TIME
        self._event_time = first.event_time_column or EVENT_TIME
        for event in self._founding():
            self._write(event, first.system_time)
        for block in self._former.blocks():
            self._convert(block)
        assert self._head is not None, "it has the blocks that it begins with"
        self._writer.set_head(self._head, None)

    def _founding(self) -> Iterator[MetadataEvent]:
        yield Seed(dataset_id=self._dataset, dataset_kind=DatasetKind.ROOT)
        yield SetInfo(description=f"Converted from a chain of ODF 0.18 whose last block is {self._former.head}.")
        if (self._system_time, self._event_time) != (SYSTEM_TIME, EVENT_TIME):
            yield SetVocab(
                system_time_column=None if self._system_time == SYSTEM_TIME else self._system_time,
                event_time_column=None if self._event_time == EVENT_TIME else self._event_time,
            )

    def _write(self, event: MetadataEvent, time: Instant) -> None:
        block = encode_block(
            MetadataBlock(
                system_time=present_time(time),
                prev_block_hash=self._head,
                sequence_number=self._size,
                event=event,
            )
        )
        self._writer.add_block(block.hash, block.raw)
        self._head, self._size = block.hash, self._size + 1

    def _convert(self, block: FormerBlock) -> None:
        for new, held in ((block.system_time_column, self._system_time), (block.event_time_column, self._event_time)):
            if new is not None and new != held:
                raise Invalid(
                    f"block {block.hash[:16]}… renames the column {held!r} to {new!r}",
                    rule=RULE,
                    hint="a vocabulary that changes has no counterpart in the present format",
                )
        new_data = self._rows(block) if block.output is not None and block.output.records else None
        self._watermark = block.watermark if block.watermark is not None else self._watermark
        event = AddData(
            prev_offset=self._offset,
            new_data=new_data,
            new_watermark=self._watermark,
            new_source_state=SourceState(source_name=SOURCE, kind=FORMER, value=block.hash),
            extra={FORMER: block.text},
        )
        self._write(event, block.system_time)
        self._offset = self._offset if new_data is None else new_data.offset_interval.end

    def _rows(self, block: FormerBlock) -> DataSlice:
        assert block.output is not None
        start = 0 if self._offset is None else self._offset + 1
        staged = self._target / ".rows"
        with open_slice(self._former.rows(block)) as source:
            schema = self._fitting(source.schema, block)
            hasher, rows = LogicalHasher(schema), 0
            with SliceWriter(staged, schema) as writer:
                for batch in source.batches():
                    present = present_rows(batch, schema, start + rows)
                    writer.write(present)
                    hasher.update(present)
                    rows += batch.num_rows
        if rows != block.output.records:
            raise Invalid(
                f"block {block.hash[:16]}… says {plural(block.output.records, 'row')}, and its file has {rows:,}",
                rule=RULE,
                hint="is it the file that was written then?",
            )
        with staged.open("rb") as file:
            name = Multihash.sha3_256_of(file)
        self._writer.add_object(DATA, name, staged)
        size = staged.stat().st_size
        staged.unlink()
        interval = OffsetInterval(start=start, end=start + rows - 1)
        return DataSlice(logical_hash=hasher.finish(), physical_hash=name, offset_interval=interval, size=size)

    def _fitting(self, former: pa.Schema, block: FormerBlock) -> pa.Schema:
        """Returns the dataset's schema with the columns of these rows; declares it in a block if it is new."""
        found, held = present_schema(former, self._system_time, self._event_time), self._schema
        if held is not None:
            there = set(held.names)
            for field in found:
                known = held.field(field.name) if field.name in there else None
                if known is not None and known.type != field.type:
                    raise Invalid(
                        f"column {field.name!r} was {known.type}, and is {field.type} in block {block.hash[:16]}…",
                        rule=RULE,
                        hint="a column keeps its type in the present format",
                    )
            found = pa.schema([*held, *(field for field in found if field.name not in there)])
        if held is None or not held.equals(found):
            self._write(SetDataSchema(schema=from_arrow(found)), block.system_time)
            self._schema = found
        return found


def present_time(former: Instant) -> Instant:
    """Returns a block's time rounded up to whole milliseconds, so that none of its rows is later."""
    return Instant(-(-former // MILLISECOND) * MILLISECOND)


def convert(former: FormerChain, target: Path, dataset: DatasetId) -> None:
    """Writes a dataset to an empty folder. Raises Invalid for parts without a counterpart, NotFound, Environment."""
    _Converter(former, target, dataset).run()
