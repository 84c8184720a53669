"""Compares a converted dataset with the chain of ODF 0.18 inside of it: proves that both hold the same.

The former chain is verified by its own hashes and links. Times, watermarks and numbers of rows have to be equal; the
former digest of rows is computed from the present ones, if their former text is known. The lines of that digest were
ordered by ``sort`` in the unknown language of a machine, so a different digest proves nothing, and is only counted.
Blocking.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from chain.codec.former_blocks import FormerBlock, read_block
from chain.data.parquet import SYSTEM_TIME, open_slice
from chain.errors import Invalid
from chain.instant import Instant
from chain.libraries import pa
from chain.model.block import Block
from chain.model.events import AddData, SetVocab
from chain.store.base import ChainReader, ObjectReader
from chain.wording import plural
from odfd.transfer.former_conversion import FORMER, present_time
from odfd.transfer.former_rows import RULE, former_digest


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
        root = "; it was derived, and is a root now" if self.derived else ""
        return f"{same}; the former digest of rows is {', '.join(rest)}{root}"


def is_converted(chain: ChainReader) -> bool:
    """Whether a chain has former blocks inside, judged by its last block of data."""
    last = chain.last_of(("AddData",))
    return last is not None and isinstance(last.event, AddData) and FORMER in (last.event.extra or {})


def compare_former(chain: ChainReader, objects: ObjectReader) -> Compared:
    """Compares all blocks. Raises Invalid with the first block that differs, NotFound for a missing slice."""
    return _Comparison(objects).run(chain)


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
            rule=RULE,
            hint="rows that came later have none: compare the history before them",
        )
    former = read_block(text, f"block #{block.sequence_number}")
    if event.new_source_state is None or event.new_source_state.value != former.hash:
        raise _differs(block, "the hash of the former block")
    return former


def _differs(block: Block, what: str) -> Invalid:
    return Invalid(
        f"{what} of block #{block.sequence_number} is not that of the former block", rule=RULE, hint="convert it again"
    )
