"""Checks objects against their blocks: a slice's bytes, rows, order, system columns and types; a checkpoint's bytes.

Functions from a file and an expectation to findings, each independent of the others; memory is one window of rows. A
file is read twice, once as bytes and once as rows, because both of its hashes are always checked: a wrong logical hash
under a right physical one would otherwise pass. Spec: section Data Slice; RFC-016 for types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from chain.data import parquet
from chain.data.logical_hash import LogicalHasher
from chain.data.object_links import links_of
from chain.errors import Invalid, NotFound
from chain.instant import Instant
from chain.libraries import np, pa
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.store.base import ObjectReader
from chain.store.files import disk
from chain.wording import plural
from odfd.verify.columns import OUTLINES, ExpectedColumns, SystemColumn
from odfd.verify.report import VerifyFinding
from odfd.verify.terms import ChainTerms

LINKED: Final = "linked-object"
"""Kind of the objects that rows link to; begins the names of the rules that they break."""
_AT_ONCE: Final = 4 << 20
"""Bytes of rows that are read at once. Slices are checked in several threads, each of which takes memory of its own; a
window of tens of megabytes is new pages each time, and clearing them took the kernel half as long as all hashing."""
_LEAST_ROWS: Final = 64
"""So that very wide rows are not read one by one."""
_SPARE_ROWS: Final = 1_000_000
"""Rows beyond the stated number that are still read, to find more than the wrong number."""


class SliceClaim(msgspec.Struct, frozen=True, kw_only=True):
    """All claims of a chain about one slice."""

    slice: DataSlice
    terms: ChainTerms
    """Terms in force at the block."""
    system_time: Instant
    """System time of the block."""

    @property
    def rows(self) -> int:
        return self.slice.offset_interval.end - self.slice.offset_interval.start + 1

    def due(self, start: int, count: int) -> ExpectedColumns:
        """Returns the claims about ``count`` rows from ``start`` on."""
        first = (self.slice.offset_interval.start + start) % (1 << 64)
        return ExpectedColumns(np.array([count]), np.array([first], np.uint64), (self.system_time,))


def check_event(
    objects: ObjectReader, terms: ChainTerms, block: Block, hashed: Collection[Multihash] = ()
) -> list[VerifyFinding]:
    """Checks every object of a block against its claims under ``terms``, without links of its rows.

    ``hashed``: objects whose bytes were hashed just now, as they arrived; of these only size and rows are checked.

    Empty for blocks without data. Raises Environment when our own disk fails.
    """
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return []
    findings: list[VerifyFinding] = []
    if (slice_ := event.new_data) is not None:
        claim = SliceClaim(slice=slice_, terms=terms, system_time=block.system_time)
        findings += check_slice(objects, claim, links=False, is_hashed=slice_.physical_hash in hashed)
    if (checkpoint := event.new_checkpoint) is not None:
        name, size = checkpoint.physical_hash, checkpoint.size
        findings += _check_bytes(objects, "checkpoint", name, size, is_hashed=name in hashed)[1]
    return findings


def check_slice(
    objects: ObjectReader, claim: SliceClaim, *, links: bool = True, is_hashed: bool = False
) -> list[VerifyFinding]:
    """Lists all differences of a slice from its claims. Raises Environment when our own disk fails.

    ``links``: also checks that the objects its rows link to are here and have their hashes. ``is_hashed``: the bytes
    were hashed just now, as they arrived.
    """
    name, size = claim.slice.physical_hash, claim.slice.size
    content, findings = _check_bytes(objects, "slice", name, size, is_hashed=is_hashed)
    if content is None:
        return findings
    try:
        with parquet.open_slice(content) as source:
            findings += _check_rows(source, claim)
            findings += _check_links(objects, source, claim) if links else ()
    except NotFound:
        findings.append(_missing("slice", claim.slice.physical_hash))
    except Invalid as error:
        findings.append(VerifyFinding(rule=error.rule, message=str(error)))
    return findings


def small_content(objects: ObjectReader, claim: SliceClaim) -> bytes | None:
    """Returns the bytes of a slice that is kept in memory, if they match the claim. Raises Environment."""
    content, findings = _check_bytes(objects, "slice", claim.slice.physical_hash, claim.slice.size)
    return content if isinstance(content, bytes) and not findings else None


def check_checkpoint(objects: ObjectReader, name: Multihash, size: int) -> list[VerifyFinding]:
    """Lists all differences of a checkpoint from its claims; the engine checks its content."""
    return check_object(objects, "checkpoint", name, size)


def check_object(objects: ObjectReader, kind: str, name: Multihash, size: int) -> list[VerifyFinding]:
    """Lists all differences of an object's bytes from its claims; ``kind`` names it, and begins the rules."""
    return _check_bytes(objects, kind, name, size)[1]


def _check_bytes(
    objects: ObjectReader, kind: str, name: Multihash, size: int, *, is_hashed: bool = False
) -> tuple[Path | bytes | None, list[VerifyFinding]]:
    try:
        content = objects.content(name)
    except NotFound:
        return None, [_missing(kind, name)]
    findings = []
    try:
        actual, length = (name, _length(content)) if is_hashed else _hash(content)
    except NotFound:  # it was removed meanwhile
        return None, [_missing(kind, name)]
    if length != size:
        message = f"{kind} {name.short} has {length:,} bytes, its block says {size:,}"
        findings.append(VerifyFinding(rule=f"{kind}-size", message=message, expected=str(size), actual=str(length)))
    if actual != name:
        message = f"the bytes of {kind} {name.short} hash to {actual.short}"
        rule = f"{kind}-physical-hash"
        findings.append(VerifyFinding(rule=rule, message=message, expected=str(name), actual=str(actual)))
    return content, findings


def _missing(kind: str, name: Multihash) -> VerifyFinding:
    return VerifyFinding(rule=f"{kind}-missing", message=f"{kind} {name.short} is not here", expected=str(name))


def _length(content: Path | bytes) -> int:
    if isinstance(content, bytes):
        return len(content)
    with disk(content):
        return content.stat().st_size


def _hash(content: Path | bytes) -> tuple[Multihash, int]:
    """Returns hash and size of the content."""
    if isinstance(content, bytes):
        return Multihash.sha3_256(content), len(content)
    with disk(content), content.open("rb") as file:
        return Multihash.sha3_256_of(file), file.tell()


def _check_rows(source: parquet.SliceFile, claim: SliceClaim) -> Iterator[VerifyFinding]:
    if source.rows != claim.rows:
        message = f"the slice holds {plural(source.rows, 'row')}, its offsets say {claim.rows:,}"
        yield VerifyFinding(rule="slice-rows", message=message, expected=str(claim.rows), actual=str(source.rows))
    outline = OUTLINES.of(source.schema, claim.terms)
    yield from outline.findings
    if source.rows > claim.rows + _SPARE_ROWS:
        return
    hasher: LogicalHasher | None = None
    try:
        hasher = LogicalHasher(source.schema, row_groups=source.row_groups)
    except Invalid as error:
        yield VerifyFinding(rule=error.rule, message=str(error))
    watches = [_Watch(column) for column in outline.columns]
    rows = 0
    for batch in source.batches(_rows_at_once(source), encoded=True):
        if hasher is not None:
            hasher.update(batch)
        due = claim.due(rows, batch.num_rows)
        for watch in watches:
            watch.look(batch, due)
        rows += batch.num_rows
    yield from (watch.finding for watch in watches if watch.finding is not None)
    actual = hasher.finish() if hasher is not None else claim.slice.logical_hash
    if actual != claim.slice.logical_hash:
        expected = claim.slice.logical_hash
        message = f"the rows hash to {actual.short}, the block says {expected.short}"
        yield VerifyFinding(rule="slice-logical-hash", message=message, expected=str(expected), actual=str(actual))


def _rows_at_once(source: parquet.SliceFile) -> int:
    """Returns how many rows to read at once, by the sizes that the footer states; a false one costs time alone."""
    size = sum(chunk.opened_size for group in source.footer.groups for chunk in group.chunks)
    return max(_LEAST_ROWS, min(parquet.READ_ROWS, _AT_ONCE * source.rows // max(1, size)))


def _check_links(objects: ObjectReader, source: parquet.SliceFile, claim: SliceClaim) -> Iterator[VerifyFinding]:
    """Checks that the objects that rows link to are here, and have their hashes."""
    columns = claim.terms.links
    for name in links_of(source, columns) if columns else ():
        try:
            size = objects.size(name)
        except NotFound:
            message = f"object {name.short}, which a row links to, is not here"
            yield VerifyFinding(rule=f"{LINKED}-missing", message=message, expected=str(name))
            continue
        yield from check_object(objects, LINKED, name, size)


class _Watch:
    """Checks one column batch by batch and keeps its first finding."""

    def __init__(self, column: SystemColumn) -> None:
        self._column = column
        self.finding: VerifyFinding | None = None

    def look(self, batch: pa.RecordBatch, due: ExpectedColumns) -> None:
        if self.finding is None and len(wrong := self._column.wrong(batch, due)):
            self.finding = self._column.tell(batch, due, int(wrong[0]))
