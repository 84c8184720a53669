"""Checks many small slices together, because a check of each alone costs several times its read.

Most of that cost is the overhead of Arrow and NumPy for each column. So each slice is read by itself, and the rows of
all are checked as one table. Anything unusual or wrong is left to ``check_event``, which also describes it; the results
are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from chain.data import parquet
from chain.data.logical_hash import logical_hashes
from chain.errors import Invalid
from chain.libraries import np, pa
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform
from chain.store.base import ObjectReader
from odfd.verify.columns import OUTLINES, ExpectedColumns, Outline
from odfd.verify.objects import SliceClaim, check_event, small_content
from odfd.verify.terms import Bringing, ChainTerms

MOST_ROWS: Final = 4096
"""Most rows of a slice that is checked so; with more, the overhead is less than the work."""
MOST_BYTES: Final = 16 << 20
"""Most bytes in memory of the rows of all slices that are checked together."""


class _Sheet:
    """Slices with one outline, whose rows are joined."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.places: list[int] = []
        self._claims: list[SliceClaim] = []
        self._batches: list[pa.RecordBatch] = []
        self.bytes = 0

    def add(self, place: int, claim: SliceClaim, batch: pa.RecordBatch) -> None:
        self.places.append(place)
        self._claims.append(claim)
        self._batches.append(batch)
        self.bytes += batch.get_total_buffer_size()

    def sound(self) -> Iterator[int]:
        """Yields the places of the slices without a fault."""
        if not self.places:
            return
        rows, due = pa.concat_batches(self._batches), self._due()
        bounds = np.cumsum([0, *due.rows])
        is_wrong = np.zeros(len(self.places), np.bool_)
        for column in self.outline.columns:
            wrong = column.wrong(rows, due)
            is_wrong[np.searchsorted(bounds, wrong, "right") - 1] = True
        try:
            hashes = logical_hashes(rows, bounds.tolist())
        except Invalid:  # a type without logical hash: no slice is sound
            return
        for place, claim, actual, bad in zip(self.places, self._claims, hashes, is_wrong.tolist(), strict=True):
            if not bad and actual == claim.slice.logical_hash:
                yield place

    def _due(self) -> ExpectedColumns:
        starts = [claim.slice.offset_interval.start for claim in self._claims]
        made = [claim.system_time for claim in self._claims]
        return ExpectedColumns(np.array([batch.num_rows for batch in self._batches]), np.array(starts, np.uint64), made)


def sound_of(objects: ObjectReader, group: Sequence[Bringing]) -> set[int]:
    """Returns the places of those blocks in which ``check_event`` finds nothing. Raises Environment."""
    sound: set[int] = set()
    sheet = _Sheet(Outline(pa.schema([]), ChainTerms()))
    for place, (terms, block) in enumerate(group):
        read = _read(objects, terms, block)
        if read is None:
            if not check_event(objects, terms, block):
                sound.add(place)
            continue
        claim, outline, batch = read
        if outline is not sheet.outline or sheet.bytes > MOST_BYTES:
            sound.update(sheet.sound())
            sheet = _Sheet(outline)
        sheet.add(place, claim, batch)
    sound.update(sheet.sound())
    return sound


def _read(objects: ObjectReader, terms: ChainTerms, block: Block) -> tuple[SliceClaim, Outline, pa.RecordBatch] | None:
    """Returns the rows of a block with one small slice, if its bytes and schema are correct; ``None`` for any other."""
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None or event.new_checkpoint is not None:
        return None
    claim = SliceClaim(slice=event.new_data, terms=terms, system_time=block.system_time)
    content = small_content(objects, claim) if 0 < claim.rows <= MOST_ROWS else None
    if content is None:
        return None
    try:
        with parquet.open_slice(content) as source:
            if source.row_groups != [claim.rows]:
                return None
            outline = OUTLINES.of(source.schema, terms)
            batches = [] if outline.findings else list(source.batches())
    except Invalid:
        return None
    return (claim, outline, batches[0]) if len(batches) == 1 else None
