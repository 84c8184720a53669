"""Holds the state of one mirror at work, and decides whether a new mirror is passed on."""

from __future__ import annotations

import enum
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from chain.wording import plural
from odfd.store.mirror_specs import MirrorSpec
from odfd.store.visibility import VisibilityMark


class MirrorProgress(msgspec.Struct):
    """The progress of one mirror's pass."""

    blocks: int = 0
    blocks_wanted: int = 0
    slices: int = 0
    slices_wanted: int = 0
    slices_uncounted: int = 0
    """Those of ``slices`` that are not yet counted among the held ones."""
    bytes: int = 0
    bytes_wanted: int = 0
    ahead: int = 0
    """Bytes that came out of order, from mirrors that fetch the same, and are not yet counted."""

    @property
    def bytes_here(self) -> int:
        return max(self.bytes, self.ahead)

    def progress(self) -> tuple[int, int, int]:
        return self.blocks, self.slices, self.bytes_here


class SchedulerState(enum.Enum):
    SYNCING = "syncing"
    CURRENT = "current"
    WAITING = "waiting"
    STALLED = "stalled"
    """Peers failed; it is tried again."""
    REFUSED = "refused"
    """The offered blocks break a rule."""
    FAILED = "failed"
    """Our own disk or engine failed."""
    PAUSED = "paused"
    """Stopped until a person resumes it."""


_SETTLED: Final = frozenset({SchedulerState.CURRENT, SchedulerState.REFUSED, SchedulerState.FAILED})


class Mirror(msgspec.Struct):
    """The state of one mirror, for the scheduler and for views."""

    spec: MirrorSpec
    state: SchedulerState = SchedulerState.WAITING
    message: str = ""
    fault: Fault | None = None
    """Why the state is REFUSED or FAILED; else ``None``."""
    tally: MirrorProgress = msgspec.field(default_factory=MirrorProgress)
    asked: int = 0
    """Number of peers that served it when it was last found to be current."""
    silent: int = 0
    """Number of its connected holders when a pull last asked for news and none of them answered; else 0."""
    passes: int = 0
    """Number of passes that have ended."""
    passing: bool = False
    """Whether a pass is under way; most find nothing to do and change no state."""
    wanting: bool = False
    """Whether blocks were missing after the last pass."""
    withheld: bool = False
    """Whether no peer gave the missing blocks for a day."""
    fresh: int = 1
    """Number of the first pass that uses the spec as it is now."""
    rests: bool = False
    """Whether it waits only for news, with no next time set."""
    is_for_newcomers: bool = False
    """Whether it was woken only because peers connected."""
    poked: trio.Event = msgspec.field(default_factory=trio.Event)
    turned: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set when the present or the next pass has ended, and then replaced."""
    ended: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set when its worker has ended."""
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)

    @property
    def is_unasked(self) -> bool:
        """Whether all known blocks are here, but no peer was connected that could know of more."""
        return self.state is SchedulerState.CURRENT and not self.asked

    @property
    def doubt(self) -> str:
        """Why a peer may have more than the last pull brought; empty: one that serves it answered, and has no more."""
        if self.state is SchedulerState.WAITING or self.is_unasked:
            return self.message
        return f"no answer from {plural(self.silent, 'connected peer')} that served it" if self.silent else ""

    @property
    def lacks_peers(self) -> bool:
        """Whether a newly connected peer may have what no peer gave so far."""
        return self.is_unasked or self.state not in _SETTLED

    @property
    def is_settled(self) -> bool:
        """Whether waiting longer brings nothing unless others publish something."""
        return self.ended.is_set() or (self.passes >= self.fresh and self.state in _SETTLED)


class MirrorVisibility(msgspec.Struct, frozen=True, kw_only=True):
    """Decides whether a mirror is passed on."""

    private: bool | None = None
    """A person's decision; ``None``: there is none."""
    held: bool = False
    """Whether the dataset was here before it became a mirror."""

    def mark(self, spec: MirrorSpec) -> VisibilityMark:
        """Returns a new mirror's visibility: what a network offers is public there.

        A mirror from a web server may be private, since few may reach it; so may data that was here, from a folder or
        own work.
        """
        private = (self.held or spec.is_from_web) if self.private is None else self.private
        # Shared with this node alone (test_a_shared_dataset_comes_to_whom_it_is_shared_with_and_goes_no_further).
        private = private or bool(spec.peers)
        return VisibilityMark.PRIVATE if private else VisibilityMark.MIRRORED


FOUND: Final = MirrorVisibility()
"""A new dataset without a decision."""
