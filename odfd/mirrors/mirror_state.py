"""Holds the state of one mirror at work, and decides whether a new one is passed on."""

from __future__ import annotations

import enum
from typing import Final

import msgspec
import trio

from chain.errors import Fault
from odfd.datasets.visibility import Mark
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.mirrors.progress import MirrorProgress


class SchedulerState(enum.Enum):
    SYNCING = "syncing"
    CURRENT = "current"
    WAITING = "waiting"
    STALLED = "stalled"
    """Peers failed; it is tried again."""
    REFUSED = "refused"
    """Blocks that the network offers break a rule."""
    FAILED = "failed"
    """Our own disk or engine."""
    PAUSED = "paused"
    """Until a person resumes it."""


_SETTLED: Final = frozenset({SchedulerState.CURRENT, SchedulerState.REFUSED, SchedulerState.FAILED})


class Mirror(msgspec.Struct):
    """The state of one mirror, for the scheduler and for views."""

    spec: MirrorSpec
    state: SchedulerState = SchedulerState.WAITING
    message: str = ""
    fault: Fault | None = None
    """Why it is REFUSED or FAILED."""
    tally: MirrorProgress = msgspec.field(default_factory=MirrorProgress)
    asked: int = 0
    """Peers that served it when it was found to be current."""
    passes: int = 0
    """That have ended."""
    passing: bool = False
    """Whether one is under way; most find nothing to do and change no state."""
    wanting: bool = False
    """Whether blocks were lacking after the last pass."""
    withheld: bool = False
    """Whether no peer gave them for a day."""
    fresh: int = 1
    """The pass that looked at the spec as it is now."""
    rests: bool = False
    """Whether it waits for news alone, without a time."""
    is_for_newcomers: bool = False
    """Whether it was poked for nothing else."""
    poked: trio.Event = msgspec.field(default_factory=trio.Event)
    turned: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set when the pass under way, or the next one, has ended; then there is another."""
    ended: trio.Event = msgspec.field(default_factory=trio.Event)
    """Set when its worker has ended."""
    scope: trio.CancelScope = msgspec.field(default_factory=trio.CancelScope)

    @property
    def is_unasked(self) -> bool:
        """Whether all that is known is here, but no peer was connected that could know more."""
        return self.state is SchedulerState.CURRENT and not self.asked

    @property
    def lacks_peers(self) -> bool:
        """Whether a newly connected peer may have what no peer gave so far."""
        return self.is_unasked or self.state not in _SETTLED

    @property
    def is_settled(self) -> bool:
        """Whether longer waiting brings nothing but news of others."""
        return self.ended.is_set() or (self.passes >= self.fresh and self.state in _SETTLED)


class MirrorVisibility(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a mirror is passed on."""

    private: bool | None = None
    """A person's decision; ``None``: there is none."""
    held: bool = False
    """Whether the dataset was here before."""

    def mark(self, spec: MirrorSpec) -> Mark:
        """Returns a new mirror's visibility: what a network offers is public there.

        A web server may be within reach of few, and what is here already came from a folder or was made here.
        """
        private = (self.held or spec.is_from_web) if self.private is None else self.private
        private = private or bool(spec.peers)
        return Mark.PRIVATE if private else Mark.MIRRORED


FOUND: Final = MirrorVisibility()
"""A new dataset without a decision."""
