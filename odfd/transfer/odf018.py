"""Reads, converts and compares datasets of ODF 0.18, as kamu kept them in 2021.

A repository had ``meta/blocks``, ``meta/refs/head`` and ``data`` for each dataset; a workspace had blocks and
references in one folder. Both are read. Files of blocks, and of the rows that they wrote, are named by the block's
hash.

Each block becomes one block of data, which contains the text of the former one: so the converted dataset still proves
the former chain, by its own hashes (``compare``). Sources and transforms are declared in that text alone. The result is
always a root, as inputs of ODF 0.18 have no identities. Rows get ``offset`` and ``op``; all else stays.

The former digest is SHA-256 of the rows as sorted lines of CSV, with columns in the order of their names and without
the system time, as the engine of the time wrote them (Spark, and ``sort``). The text is known for some types only. The
lines were ordered by ``sort`` in the unknown language of a machine, so a different digest proves nothing, and is only
counted. Blocking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Final

import msgspec

from chain.codec.blocks import encode_block
from chain.codec.former_blocks import MAX_BLOCK, RULE, FormerBlock, read_block
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import LogicalHasher
from chain.data.parquet import EVENT_TIME, OFFSET, OP, SYSTEM_TIME, SliceWriter, open_slice
from chain.errors import Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.libraries import np, pa, pc
from chain.model.block import Block, MetadataBlock
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
from chain.store.base import ChainReader, ObjectReader
from chain.store.files import disk
from chain.store.layout import DATA, DirectoryWriter
from chain.wording import plural
from odfd.transfer.former_chain import FORMER, find_former

MAX_BLOCKS: Final = 100_000
SOURCE: Final = "odf-0.18"
DATA_RULE: Final = "former-data"
MAX_DIGEST_ROWS: Final = 2_000_000
"""Most rows of one slice that are sorted in memory; the digest of a larger one is not computed."""
_SPECIAL: Final = r'[,"\\\n\r]|^\s|\s$|^#'
"""Matches texts that the CSV of that time wrote differently depending on its settings."""


def convert(folder: Path, target: Path, dataset: DatasetId) -> None:
    _Converter(FormerChain(folder), target, dataset).run()


def compare(chain: ChainReader, objects: ObjectReader) -> Compared:
    return _Comparison(objects).run(chain)


class FormerChain:
    """A chain of ODF 0.18 whose blocks, hashes and links were verified when it was made."""

    def __init__(self, folder: Path) -> None:
        """Walks and verifies the chain. Raises NotFound without one, or if a block is missing; Invalid. Blocking."""
        found = find_former(folder)
        if found is None:
            raise NotFound(f"{folder} holds no dataset of ODF 0.18", rule=RULE, hint="name the folder above refs/head")
        self._folder, (self._meta, self.head) = folder, found
        self.names: Sequence[str] = self._walk()

    def _walk(self) -> list[str]:
        """Returns the hashes of all blocks, the first one first, walking back from the head."""
        names: list[str] = []
        later: FormerBlock | None = None
        name: str | None = self.head
        while name is not None:
            block = self.block(name)
            if later is not None and later.system_time <= block.system_time:
                raise _to_broken(later, "is not later than the block before it")
            if len(names) == MAX_BLOCKS:
                raise Invalid(f"{self._folder} has more than {MAX_BLOCKS:,} blocks", rule=RULE)
            names.append(name)
            later, name = block, block.previous
        return names[::-1]

    def block(self, name: str) -> FormerBlock:
        """Reads and verifies a block. Raises NotFound, Invalid."""
        file = self._meta / "blocks" / name
        if not file.is_file():
            raise NotFound(
                f"block {name[:16]}… is missing in {self._folder}", rule=RULE, hint="check that it is complete"
            )
        with disk(file), file.open("rb") as opened:
            raw = opened.read(MAX_BLOCK + 1)
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise Invalid(f"{file} is no text", rule=RULE) from error
        block = read_block(text, str(file))
        if block.hash != name:
            raise Invalid(f"{file} holds block {block.hash[:16]}…", rule="former-hash", hint="it was renamed")
        return block

    def blocks(self) -> Iterator[FormerBlock]:
        """Yields all blocks, the first one first."""
        return map(self.block, self.names)

    def rows(self, block: FormerBlock) -> Path:
        """Returns the file of the rows that a block wrote. Raises NotFound."""
        file = self._folder / "data" / block.hash
        if not file.is_file():
            raise NotFound(
                f"the rows of block {block.hash[:16]}… are missing: {file}",
                rule="former-data",
                hint="put the folder `data` of the dataset beside its blocks",
            )
        return file


def _to_broken(block: FormerBlock, what: str) -> Invalid:
    return Invalid(f"block {block.hash[:16]}… {what}", rule="former-chain", hint="the chain was not written by kamu")


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
                    rule=DATA_RULE,
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
                rule=DATA_RULE,
                hint="check that it is the file that was written then",
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
                        rule=DATA_RULE,
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


def present_schema(former: pa.Schema, system_time: str, event_time: str) -> pa.Schema:
    """Returns the schema of rows in the present format. Raises Invalid for columns that it cannot have."""
    names = former.names
    for name in (system_time, event_time):
        if name not in names:
            raise Invalid(
                f"rows have no column {name!r}", rule=DATA_RULE, hint="check that it is a dataset of ODF 0.18"
            )
    for name in (OFFSET, OP):
        if name in names:
            raise Invalid(
                f"rows have a column {name!r}, which the present format keeps for itself",
                rule=DATA_RULE,
                hint="such a dataset is not converted",
            )
    fields = [
        pa.field(OFFSET, pa.int64(), nullable=False),
        pa.field(OP, pa.int32(), nullable=False),
        pa.field(system_time, _present_type(former.field(system_time).type), nullable=False),
        pa.field(event_time, _present_type(former.field(event_time).type), nullable=False),
    ]
    others = [name for name in names if name not in (system_time, event_time)]
    return pa.schema([*fields, *(pa.field(name, _present_type(former.field(name).type)) for name in others)])


def _present_type(former: pa.DataType) -> pa.DataType:
    """Returns the present type: times of that engine were instants, at most in microseconds, whatever its files say."""
    if pa.types.is_timestamp(former):
        return pa.timestamp("us" if former.unit == "ns" else former.unit, "UTC")
    return former


def present_rows(rows: pa.RecordBatch, schema: pa.Schema, start: int) -> pa.RecordBatch:
    """Returns rows under a schema, numbered from ``start``; columns that they lack are null. Raises Invalid."""
    columns, there = [], set(rows.schema.names)
    for field in schema:
        if field.name == OFFSET:
            columns.append(pa.array(np.arange(start, start + rows.num_rows, dtype=np.int64)))
        elif field.name == OP:
            columns.append(pa.array(np.zeros(rows.num_rows, dtype=np.int32)))
        elif field.name in there:
            columns.append(_present(rows.column(field.name), field))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
        if not field.nullable and columns[-1].null_count:
            raise Invalid(
                f"column {field.name!r} is empty in a row, which the present format does not take", rule=DATA_RULE
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _present(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            return pc.assume_timezone(column, "UTC").cast(field.type)
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"values of column {field.name!r} do not fit {field.type}: {str(error)[:200]}",
            rule=DATA_RULE,
            hint="such rows are not converted, since something of them would be lost",
        ) from error


def former_digest(rows: pa.Table, system_time: str = SYSTEM_TIME) -> str | None:
    """Computes the former digest of rows of the present format; ``None`` where their text is not known."""
    names = sorted(name for name in rows.column_names if name not in (OFFSET, OP, system_time))
    if rows.num_rows > MAX_DIGEST_ROWS or not names:
        return None
    texts = [text for name in names if (text := _text(rows.column(name))) is not None]
    if len(texts) < len(names):
        return None
    lines = reduce(lambda left, right: pc.binary_join_element_wise(left, right, ","), texts)
    if isinstance(lines, pa.ChunkedArray):
        lines = lines.combine_chunks()
    ordered = lines.cast(pa.large_binary()).take(pc.sort_indices(lines.cast(pa.large_binary())))
    digest = hashlib.sha256()
    ended = pc.binary_join_element_wise(ordered, pa.scalar(b"", pa.large_binary()), pa.scalar(b"\n", pa.large_binary()))
    digest.update(memoryview(ended.buffers()[2])[: _size(ended)])
    return digest.hexdigest()


def _size(values: pa.Array) -> int:
    """Returns the bytes of all values together."""
    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Returns a column as the CSV of that time had it; ``None`` if that is not known."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        text = column.cast(pa.string())
    elif pa.types.is_timestamp(kind):
        text = pc.strftime(column.cast(pa.timestamp("ms", "UTC"), safe=False), "%Y-%m-%dT%H:%M:%SZ")
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = column.cast(pa.string())
        doubtful = pc.or_kleene(pc.match_substring_regex(text, _SPECIAL), pc.equal(text, ""))
        if pc.any(doubtful).as_py():
            return None
    else:
        return None
    return text.fill_null("")


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The extent to which two chains hold the same."""

    head: str = ""
    """Hash of the last former block."""
    blocks: int = 0
    rows: int = 0
    equal: int = 0
    """Number of slices whose former digest was computed from the present rows, and is equal."""
    other: int = 0
    """Number of slices for which a different digest was computed."""
    unknown: int = 0
    """Number of slices with columns whose former text is not known."""
    derived: bool = False
    """Whether the former dataset was derived from others; the present one is a root."""

    def told(self) -> str:
        """Describes the result for people."""
        rest = [f"equal for {plural(self.equal, 'slice')}"]
        rest += [f"another one for {self.other} (another order of lines, or other rows)"] if self.other else []
        rest += [f"not known for {self.unknown}"] if self.unknown else []
        same = f"{plural(self.blocks, 'block')} of ODF 0.18 and {plural(self.rows, 'row')} say the same"
        root = "; it was derived, and is a source dataset now" if self.derived else ""
        return f"{same}; the former digest of rows is {', '.join(rest)}{root}"


class _Comparison:
    """The state of one comparison, block by block."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._previous: str | None = None
        self._watermark: Instant | None = None
        self._system_time = SYSTEM_TIME
        self._so_far = Compared()

    def run(self, chain: ChainReader) -> Compared:
        """Compares all blocks, and returns the result."""
        head = chain.head()
        for number in range(0 if head is None else head.size):
            block = chain.block_at(number)
            if isinstance(block.event, SetVocab):
                self._system_time = block.event.system_time_column or SYSTEM_TIME
            elif isinstance(block.event, AddData):
                self._compare(block, block.event)
        return self._so_far

    def _compare(self, block: Block, event: AddData) -> None:
        former = _former_of(block, event)
        if former.previous != self._previous:
            raise _differs(block, "the former block before it")
        if former.watermark is not None:
            self._watermark = former.watermark
        if block.system_time != present_time(former.system_time):
            raise _differs(block, "the system time")
        if event.new_watermark != self._watermark:
            raise _differs(block, "the watermark")
        data = event.new_data
        found = 0 if data is None else data.offset_interval.end - data.offset_interval.start + 1
        if found != (0 if former.output is None else former.output.records):
            raise _differs(block, "the number of rows")
        counted = self._so_far
        if data is not None and former.output is not None:
            counted = self._with_digest(self._objects.path(data.physical_hash), former.output.digest)
        self._previous = former.hash
        self._so_far = msgspec.structs.replace(
            counted,
            head=former.hash,
            blocks=counted.blocks + 1,
            rows=counted.rows + found,
            derived=counted.derived or former.is_derived,
        )

    def _with_digest(self, slice_: Path, digest: str) -> Compared:
        with open_slice(slice_) as source:
            rows = pa.Table.from_batches(list(source.batches()), source.schema)
        found, so_far = former_digest(rows, self._system_time), self._so_far
        if found is None:
            return msgspec.structs.replace(so_far, unknown=so_far.unknown + 1)
        if found != digest:
            return msgspec.structs.replace(so_far, other=so_far.other + 1)
        return msgspec.structs.replace(so_far, equal=so_far.equal + 1)


def _former_of(block: Block, event: AddData) -> FormerBlock:
    text = (event.extra or {}).get(FORMER)
    if not isinstance(text, str):
        raise Invalid(
            f"block #{block.sequence_number} has no former block in it",
            rule=DATA_RULE,
            hint="later rows have none: compare the history before them",
        )
    former = read_block(text, f"block #{block.sequence_number}")
    if event.new_source_state is None or event.new_source_state.value != former.hash:
        raise _differs(block, "the hash of the former block")
    return former


def _differs(block: Block, what: str) -> Invalid:
    return Invalid(
        f"{what} of block #{block.sequence_number} is not that of the former block",
        rule=DATA_RULE,
        hint="convert it again",
    )
