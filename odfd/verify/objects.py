"""Objects against what their blocks say: a slice's bytes, rows, order, system columns and types; a checkpoint's bytes.

Functions from a file and an expectation to findings, none of them fatal to the others; memory is one window of rows.
A file is read twice, once as bytes and once as rows, because both of its hashes are always checked: a wrong logical
hash under a right physical one would otherwise pass. Spec: section Data Slice; RFC-016 for types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chain import instant
from chain.data import parquet
from chain.data.arrow_schema import differences
from chain.data.buffers import numbers
from chain.data.links import links_of
from chain.data.logical_hash import LogicalHasher
from chain.errors import Invalid, NotFound
from chain.instant import Instant
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.state import Vocab
from chain.store.base import ObjectReader
from chain.store.objects import disk
from odfd.verify.report import Finding
from odfd.verify.terms import Terms

_OFFSET_TYPES: Final = (pa.int64(), pa.uint64())
_OP_TYPES: Final = (pa.int32(), pa.uint8())
"""As the reference writes them, and as the specification says."""
LINKED: Final = "linked-object"
"""The kind of what rows link to; begins the rules that it breaks, whose findings name it in ``expected``."""
_LAST_OP: Final = 3
"""0 append, 1 retract, 2 correct from, 3 correct to."""
_SPARE_ROWS: Final = 1_000_000
"""Rows beyond what a block says that are still worth reading, to tell more than their number."""


class SliceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """All that a chain says of one slice."""

    slice: DataSlice
    terms: Terms
    """In force at the block."""
    system_time: Instant
    """Of the block."""

    @property
    def rows(self) -> int:
        return self.slice.offset_interval.end - self.slice.offset_interval.start + 1


def check_event(objects: ObjectReader, terms: Terms, block: Block) -> list[Finding]:
    """Every object that a block brings, against what it says under ``terms``; not what its rows link to.

    Empty for blocks without data. Raises Environment when our own disk fails.
    """
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return []
    findings: list[Finding] = []
    if (slice_ := event.new_data) is not None:
        claim = SliceClaim(slice=slice_, terms=terms, system_time=block.system_time)
        findings += check_slice(objects, claim, links=False)
    if (checkpoint := event.new_checkpoint) is not None:
        findings += check_checkpoint(objects, checkpoint.physical_hash, checkpoint.size)
    return findings


def check_slice(objects: ObjectReader, claim: SliceClaim, *, links: bool = True) -> list[Finding]:
    """Everything about a slice that is not as claimed. Raises Environment when our own disk fails.

    ``links``: what its rows link to is to be here too, and what it is named.
    """
    content, findings = _check_bytes(objects, "slice", claim.slice.physical_hash, claim.slice.size)
    if content is None:
        return findings
    try:
        with parquet.open_slice(content) as source:
            findings += _check_rows(source, claim)
            findings += _check_links(objects, source, claim) if links else ()
    except Invalid as error:
        findings.append(Finding(rule=error.rule, message=str(error)))
    return findings


def check_checkpoint(objects: ObjectReader, name: Multihash, size: int) -> list[Finding]:
    """Everything about a checkpoint that is not as claimed; its content is the engine's own affair."""
    return check_object(objects, "checkpoint", name, size)


def check_object(objects: ObjectReader, kind: str, name: Multihash, size: int) -> list[Finding]:
    """Everything about an object's bytes that is not as claimed; ``kind`` is a word for it, and begins the rules."""
    return _check_bytes(objects, kind, name, size)[1]


def _check_bytes(
    objects: ObjectReader, kind: str, name: Multihash, size: int
) -> tuple[Path | bytes | None, list[Finding]]:
    try:
        content = objects.content(name)
    except NotFound:
        message = f"{kind} {name.short} is not here"
        return None, [Finding(rule=f"{kind}-missing", message=message, expected=str(name))]
    findings = []
    actual, length = _hashed(content)
    if length != size:
        message = f"{kind} {name.short} has {length:,} bytes, its block says {size:,}"
        findings.append(Finding(rule=f"{kind}-size", message=message, expected=str(size), actual=str(length)))
    if actual != name:
        message = f"the bytes of {kind} {name.short} hash to {actual.short}"
        rule = f"{kind}-physical-hash"
        findings.append(Finding(rule=rule, message=message, expected=str(name), actual=str(actual)))
    return content, findings


def _hashed(content: Path | bytes) -> tuple[Multihash, int]:
    """Name and size of what is there."""
    if isinstance(content, bytes):
        return Multihash.sha3_256(content), len(content)
    with disk(content), content.open("rb") as file:
        return Multihash.sha3_256_of(file), file.tell()


def _check_rows(source: parquet.SliceFile, claim: SliceClaim) -> Iterator[Finding]:
    if source.rows != claim.rows:
        message = f"the slice holds {source.rows:,} rows, its offsets say {claim.rows:,}"
        yield Finding(rule="slice-rows", message=message, expected=str(claim.rows), actual=str(source.rows))
    yield from _TYPES.check(source.schema, claim.terms)
    if source.rows > claim.rows + _SPARE_ROWS:
        return
    hasher: LogicalHasher | None = None
    try:
        hasher = LogicalHasher(source.schema, row_groups=source.row_groups)
    except Invalid as error:
        yield Finding(rule=error.rule, message=str(error))
    checks = _column_checks(source.schema, claim)
    for batch in source.batches(encoded=True):
        if hasher is not None:
            hasher.update(batch)
        for check in checks:
            check.look(batch)
    for check in checks:
        if check.finding is not None:
            yield check.finding
    actual = hasher.finish() if hasher is not None else claim.slice.logical_hash
    if actual != claim.slice.logical_hash:
        expected = claim.slice.logical_hash
        message = f"the rows hash to {actual.short}, the block says {expected.short}"
        yield Finding(rule="slice-logical-hash", message=message, expected=str(expected), actual=str(actual))


def _check_links(objects: ObjectReader, source: parquet.SliceFile, claim: SliceClaim) -> Iterator[Finding]:
    """Objects that rows name are here, and are what they are named."""
    columns = claim.terms.links
    for name in links_of(source, columns) if columns else ():
        try:
            size = objects.size(name)
        except NotFound:
            message = f"object {name.short}, which a row links to, is not here"
            yield Finding(rule=f"{LINKED}-missing", message=message, expected=str(name))
            continue
        yield from check_object(objects, LINKED, name, size)


class _Types:
    """The last slice's types and what was found of them: those of one chain are alike, and to compare costs a tenth of
    what it costs to look at a small slice."""

    def __init__(self) -> None:
        self._last: tuple[pa.Schema, Terms, list[Finding]] = (pa.schema([]), Terms(), [])

    def check(self, schema: pa.Schema, terms: Terms) -> list[Finding]:
        known, of, findings = self._last
        if terms is not of or not schema.equals(known, check_metadata=True):
            findings = list(_check_types(schema, terms))
            self._last = schema, terms, findings
        return findings


_TYPES: Final = _Types()


def _check_types(schema: pa.Schema, terms: Terms) -> Iterator[Finding]:
    if terms.vocab is not None:
        yield from _check_system_columns(schema, terms.vocab)
    if terms.schema is not None:
        for one in differences(terms.schema, schema):
            message = f"{one.place}: the schema says {one.expected}, the slice has {one.actual}"
            yield Finding(rule="slice-schema", message=message, expected=one.expected, actual=one.actual)


def _check_system_columns(schema: pa.Schema, vocab: Vocab) -> Iterator[Finding]:
    wanted = {vocab.offset: _OFFSET_TYPES, vocab.operation_type: _OP_TYPES, vocab.system_time: None}
    for name in (vocab.offset, vocab.operation_type, vocab.system_time, vocab.event_time):
        if (count := schema.names.count(name)) != 1:
            message = f"column {name!r} is missing" if count == 0 else f"column {name!r} stands {count} times"
            yield Finding(rule="slice-system-columns", message=message, expected=name)
            continue
        actual, types = schema.field(name).type, wanted.get(name)
        fits = actual in types if types else pa.types.is_timestamp(actual)
        if name == vocab.event_time:
            fits = fits or pa.types.is_date(actual)
        if not fits:
            expected = str(types[0]) if types else "timestamp"
            message = f"column {name!r} is {actual}, and should be {expected}"
            yield Finding(rule="slice-system-columns", message=message, expected=expected, actual=str(actual))


class _ColumnCheck(ABC):
    """Looks at one column batch by batch and keeps its first finding."""

    rule: ClassVar[str]

    def __init__(self, column: str) -> None:
        self.column = column
        self.finding: Finding | None = None
        self.row = 0
        """Rows seen."""

    def look(self, batch: pa.RecordBatch) -> None:
        if self.finding is None:
            values = batch.column(self.column)
            self.finding = self._nulls(values) or self.judge(values)
        self.row += batch.num_rows

    @abstractmethod
    def judge(self, values: pa.Array) -> Finding | None:
        """What is wrong with some values, none of them null."""

    def _nulls(self, values: pa.Array) -> Finding | None:
        if not values.null_count:
            return None
        return Finding(rule=self.rule, message=f"column {self.column!r} has nulls", actual="null")


class _Offsets(_ColumnCheck):
    rule = "slice-offsets"

    def __init__(self, column: str, start: int) -> None:
        super().__init__(column)
        self._start = start

    def judge(self, values: pa.Array) -> Finding | None:
        first = self._start + self.row
        wrong = np.flatnonzero(numbers(values) != np.arange(first, first + len(values), dtype=np.int64))
        if not len(wrong):
            return None
        row = int(wrong[0])
        expected, actual = str(first + row), str(values[row].as_py())
        message = f"row {self.row + row:,} of the slice has offset {actual}, not {expected}"
        return Finding(rule=self.rule, message=message, expected=expected, actual=actual)


class _Operations(_ColumnCheck):
    rule = "slice-op"

    def judge(self, values: pa.Array) -> Finding | None:
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if low >= 0 and high <= _LAST_OP:
            return None
        actual = str(low if low < 0 else high)
        message = f"column {self.column!r} holds {actual}, which is no operation"
        return Finding(rule=self.rule, message=message, expected=f"0 to {_LAST_OP}", actual=actual)


class _SystemTimes(_ColumnCheck):
    rule = "slice-system-time"

    def __init__(self, column: str, latest: Instant) -> None:
        super().__init__(column)
        self._latest = latest

    def judge(self, values: pa.Array) -> Finding | None:
        greatest = parquet.to_instant(pc.max(values).value, values.type)
        if greatest <= self._latest:
            return None
        expected, actual = instant.render(self._latest), instant.render(greatest)
        message = f"a row's {self.column} is {actual}, after its block was made at {expected}"
        return Finding(rule=self.rule, message=message, expected=f"at most {expected}", actual=actual)


def _column_checks(schema: pa.Schema, claim: SliceClaim) -> list[_ColumnCheck]:
    """One for each system column that is there with a type that can be looked at."""
    vocab = claim.terms.vocab
    if vocab is None:
        return []
    checks: list[tuple[bool, _ColumnCheck]] = [
        (_is(schema, vocab.offset, _OFFSET_TYPES), _Offsets(vocab.offset, claim.slice.offset_interval.start)),
        (_is(schema, vocab.operation_type, _OP_TYPES), _Operations(vocab.operation_type)),
        (
            schema.names.count(vocab.system_time) == 1 and pa.types.is_timestamp(schema.field(vocab.system_time).type),
            _SystemTimes(vocab.system_time, claim.system_time),
        ),
    ]
    return [check for possible, check in checks if possible]


def _is(schema: pa.Schema, name: str, types: tuple[pa.DataType, ...]) -> bool:
    return schema.names.count(name) == 1 and schema.field(name).type in types
