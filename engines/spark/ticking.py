"""Plans a transaction of a table that changes for ever: which ticks are reached, which blocks are new. Pure.

Ticks are the values of all inputs' watermarks up to the slowest: they are in the chains, so they are the same however
blocks are grouped. Engine semantics, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from engines.spark.analysis.monotone import MILLISECOND
from engines.spark.checkpoint import Checkpoint, OpenInput
from engines.spark.incremental import BlockFacts, InputFacts, Progress, Step, progress


@dataclass(frozen=True, slots=True)
class TableStep:
    """Times are microseconds."""

    since: int | None
    """The tick reached before."""
    until: int | None
    """The tick reached now; rows that count from it on wait."""
    ticks: tuple[int, ...]
    """Those after ``since``, up to ``until``."""
    blocks: Mapping[str, tuple[BlockFacts, ...]]
    """New ones by alias."""
    lateness: Mapping[str, int]


def plan_table(inputs: Sequence[InputFacts], previous: Checkpoint | None) -> tuple[Step, TableStep, tuple[int, ...]]:
    """The step, and the ticks that wait for slower inputs. Raises Invalid when blocks and checkpoint contradict."""
    at: Progress = progress(inputs, previous)
    marks = [] if previous is None or previous.ticks is msgspec.UNSET else list(previous.ticks)
    known = {mark * MILLISECOND for mark in marks}
    for given in inputs:
        known.update(block.after - given.lateness for block in given.blocks if block.after is not None)
    later = sorted(mark for mark in known if at.done is None or mark > at.done)
    until = at.slowest if at.done is None or at.slowest is None else max(at.done, at.slowest)
    reached = tuple(mark for mark in later if until is not None and mark <= until)
    waiting = tuple(mark for mark in later if until is None or mark > until)
    kept: tuple[OpenInput, ...] = at.inputs
    step = Step({}, (), None, None, until, kept, at.untimed)
    blocks = {given.alias: tuple(block for block in given.blocks if not block.reopened) for given in inputs}
    table = TableStep(at.done, until, reached, blocks, {given.alias: given.lateness for given in inputs})
    return step, table, waiting
