"""Declares the port that commits a transaction (one compare-and-append, signed), and chooses the time of its block.

A clock that differs by days from the last block's time or the monotonic clock is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from chain import instant
from chain.errors import Conflict, Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import Head, UpperMove
from chain.store.shards import SEALED
from chain.wording import plural
from engines.contract import RowCounts
from odfd.store.captures import Capture
from odfd.store.pushes import Push

Record: TypeAlias = RowCounts | Push | Capture
"""What is stored beside blocks: what became of the rows read for them, the push that brought them, their bytes."""


class CommitPart(msgspec.Struct, frozen=True, kw_only=True):
    """One chain's part of a commit. Without events the chain stays, and the records are of its head ``expected``."""

    dataset: DatasetId
    expected: Head | None
    """The head that the events follow; ``None``: they begin the chain."""
    events: Sequence[MetadataEvent] = ()
    objects: Sequence[Multihash] = ()
    """Objects that the events name, stored already, and those that their rows link to, if they are passed on."""
    time: Instant
    """The system time of the blocks."""
    upper: UpperMove | None = None
    """The frontier for which it was planned, and the one after it; ``None`` permits that it moved."""
    records: Sequence[Record] = ()

    @classmethod
    def after(
        cls,
        state: ChainState,
        time: Instant,
        events: Sequence[MetadataEvent] = (),
        objects: Sequence[Multihash] = (),
        upper: UpperMove | None = None,
        records: Sequence[Record] = (),
    ) -> CommitPart:
        """Returns a part that follows a chain in this state."""
        assert state.dataset is not None
        assert state.head is not None
        return cls(
            dataset=state.dataset,
            expected=Head(state.head, state.sequence_number),
            events=events,
            objects=objects,
            time=time,
            upper=upper,
            records=records,
        )


def _nothing(_: sqlite3.Connection) -> None:
    """Writes nothing."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction: blocks of several chains, their records, and rows of services; all is written, or nothing."""

    parts: Sequence[CommitPart]
    also: Callable[[sqlite3.Connection], None] = _nothing
    """Writes names, declarations and collections that come to be with the blocks."""


class Committer(Protocol):
    """Makes blocks of events, checks them by the rules for authors, and moves heads and signatures together."""

    async def commit(self, commit: Commit) -> Sequence[Head]:
        """Commits all parts or none. Returns the last block of each.

        Raises Conflict if a head or a frontier moved since, Invalid if a rule is broken, NotFound for a chain of
        others.
        """

    def commit_now(self, commit: Commit) -> Sequence[Head]:
        """Commits from a worker thread."""


def check_head(dataset: DatasetId, expected: Head | None, head: Multihash | None, number: int) -> None:
    """Raises Conflict if the head is not the expected one."""
    if head == (expected.hash if expected else None):
        return
    first = "nothing is there" if head is None else f"block #{number} {head.short} is"
    raise Conflict(f"the head of {dataset.short} moved: {first} its end now", rule="head-moved", hint="plan again")


TOLERANCE: Final = 86_400 * instant.SECOND
"""Nanoseconds that a clock may be behind the last block, more than the clocks of maintained machines differ.

Until then, blocks get the time of the last one.
"""
CLOCK_BEHIND: Final = "clock-behind"
CLOCK_AHEAD: Final = "clock-ahead"


def block_time(state: ChainState, now: Instant, upper: int, *, alone: bool = False) -> Instant:
    """Returns the next block's time: whole milliseconds, not before the head's, nor in a time that is complete.

    ``upper``: the chain's frontier in milliseconds. ``alone``: no earlier block has it, so that captured bytes can be
    decoded into shards, whose times grow strictly. Raises Refused (``clock-behind``, ``shard-sealed``).
    """
    check_clock(state, now)
    check_upper(upper, now)
    whole = max(Instant(now // MILLISECOND * MILLISECOND), instant.from_millis(upper))
    if state.system_time is None:
        return whole
    next_time = Instant((state.system_time // MILLISECOND + 1) * MILLISECOND)
    return max(whole, next_time if alone else state.system_time)


def check_upper(upper: int, now: Instant) -> None:
    """Raises Refused if a block would need a time long after ``now``, or if the chain is sealed."""
    if upper == SEALED:
        raise Refused("the dataset is sealed: it takes no block more", rule="shard-sealed")
    if instant.from_millis(upper) - now <= TOLERANCE:
        return
    raise Refused(
        f"the clock of this machine says {instant.render(_second(now))}, and all times before"
        f" {instant.render(instant.from_millis(upper))} were promised to be complete: one of them is wrong",
        rule=CLOCK_BEHIND,
        hint="set the clock; a promise is not taken back, so if it was made by a wrong clock, export to a new dataset",
    )


def check_clock(state: ChainState, now: Instant) -> None:
    """Raises Refused if the last block's time is long after ``now``, so that one of the two is wrong."""
    if state.system_time is None or state.system_time - now <= TOLERANCE:
        return
    raise Refused(
        f"the clock of this machine says {instant.render(_second(now))}, and the last block is of"
        f" {instant.render(state.system_time)}: one of them is wrong",
        rule=CLOCK_BEHIND,
        hint="set the clock; or, if it is right, drop the blocks of a wrong one: odfctl doctor says how",
    )


def check_jump(ahead: int, now: Instant) -> None:
    """Raises Refused if the clock was set ahead by too many nanoseconds while this process runs."""
    if ahead > TOLERANCE:
        raise Refused(
            f"the clock of this machine was set {plural(ahead // TOLERANCE, 'day')} ahead while odfd runs, to"
            f" {instant.render(_second(now))}: blocks written now would keep that time for ever",
            rule=CLOCK_AHEAD,
            hint="set the clock; if it is right now, start odfd again",
        )


def _second(time: Instant) -> Instant:
    return Instant(time // instant.SECOND * instant.SECOND)
