"""Declares the port that commits a transaction (one compare-and-append, signed), and chooses the time of its block.

A clock that differs by days from the last block's time or the monotonic clock is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from chain import instant
from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant
from chain.model.events import MetadataEvent
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import Head
from chain.store.shards import SEALED
from chain.wording import plural
from engines.contract import RowCounts
from odfd.store.captures import Capture
from odfd.store.pushes import Push


class SideCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit to another chain in the same transaction."""

    dataset: DatasetId
    expected: Head | None
    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]
    rows: RowCounts
    time: Instant
    """The time of the blocks, if nothing else is appended."""


class CommitExtras(msgspec.Struct, frozen=True, kw_only=True):
    """Further things that are written in the transaction of some blocks."""

    upper: int | None = None
    """The dataset's frontier when they were planned, in whole milliseconds: if it moved since, nothing is written.

    ``None`` permits that it moved.
    """
    push: Push | None = None
    """The push that brought the blocks."""
    capture: Capture | None = None
    """The bytes that the blocks were made from."""
    beside: SideCommit | None = None


class Committer(Protocol):
    """Makes blocks of events, checks them by the rules for authors, and moves head and signature together."""

    async def commit(
        self,
        dataset: DatasetId,
        expected_head: Head | None,
        events: Sequence[MetadataEvent],
        objects: Sequence[Multihash],
        system_time: Instant,
        rows: RowCounts | None = None,
        along: CommitExtras = CommitExtras(),  # noqa: B008  it is frozen
    ) -> Head:
        """Commits all events, whose objects are stored already, or none, with row counts. Returns the new head.

        ``along``: further things that are written with them, or not at all. Raises Conflict if the head or the frontier
        moved since, Invalid if a rule is broken.
        """

    async def note_rows(
        self,
        dataset: DatasetId,
        head: Head,
        rows: RowCounts,
        along: CommitExtras = CommitExtras(),  # noqa: B008  it is frozen
    ) -> None:
        """Records the row counts of a transaction that left the chain unchanged, at ``head``.

        A commit to another chain, and the push, are written in the same transaction. Raises as ``commit``.
        """


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
        hint="set the clock; or, if it is right, give up the blocks of a wrong one: odfctl doctor says how",
    )


def check_jump(ahead: int, now: Instant) -> None:
    """Raises Refused if the clock was set ahead by too many nanoseconds while this process runs."""
    if ahead > TOLERANCE:
        raise Refused(
            f"the clock of this machine was set {plural(ahead // TOLERANCE, 'day')} ahead while odfd runs, to"
            f" {instant.render(_second(now))}: what is written now would be of that time for ever",
            rule=CLOCK_AHEAD,
            hint="set the clock; if it is right now, start odfd again",
        )


def _second(time: Instant) -> Instant:
    return Instant(time // instant.SECOND * instant.SECOND)
