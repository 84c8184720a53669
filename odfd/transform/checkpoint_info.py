"""Reads the parts of a checkpoint that planning needs: blocks to read again, and the output's progress.

The rest of a checkpoint is the engine's. A value; read under limits, as it may come from a stranger. Spec:
docs/spec/engine-semantics.md#state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.instant import Instant, from_millis
from chain.multihash import Multihash
from engines.spark.state.checkpoint import decode_checkpoint, open_blocks

Runs: TypeAlias = Sequence[tuple[Multihash, Multihash]]
"""First and last block of ranges of a chain, both included."""


@dataclass(frozen=True, slots=True)
class TransformProgress:
    """The progress of all transactions so far."""

    reopen: Mapping[DatasetId, Runs] = field(default_factory=dict)
    emitted: Instant | None = None
    """Event time before which output was emitted."""
    settled: Instant | None = None
    """Event time before which output is settled, and could be emitted."""
    slowest: Instant | None = None
    """The least of the inputs' watermarks; ``None`` if an input has none."""
    due: tuple[Instant, ...] = ()
    """Ticks of a changing table that were held back."""
    held: int = 0
    """Number of rows that the checkpoint itself holds."""

    @property
    def waits(self) -> bool:
        """Whether settled output waits for an emission limit."""
        return self.settled != self.emitted


NOTHING: Final = TransformProgress()


def read_past(checkpoint: bytes | None) -> TransformProgress:
    """Reads the progress in a checkpoint; ``NOTHING`` without one. Raises Invalid for bytes that are no checkpoint."""
    if checkpoint is None:
        return NOTHING
    known = decode_checkpoint(checkpoint)
    marks = [input_.w for input_ in known.inputs]
    emitted = None if known.g is None else from_millis(known.g)
    settled = emitted if known.settled is msgspec.UNSET else from_millis(known.settled)
    ticks = () if known.ticks is msgspec.UNSET else known.ticks
    arranged = () if known.arranged is msgspec.UNSET else known.arranged
    return TransformProgress(
        reopen=open_blocks(checkpoint),
        emitted=emitted,
        settled=settled,
        slowest=None if None in marks else from_millis(min((mark for mark in marks if mark is not None), default=0)),
        due=tuple(from_millis(tick) for tick in ticks if settled is not None and from_millis(tick) <= settled),
        held=sum(each.rows for each in arranged),
    )
