"""Chooses the time of the next block, and refuses one that is days away from the last block or the monotonic clock.

Pure.
"""

from __future__ import annotations

from typing import Final

from chain import instant
from chain.errors import Refused
from chain.instant import MILLISECOND, Instant
from chain.state import ChainState
from chain.wording import plural

TOLERANCE: Final = 86_400 * instant.SECOND
"""Nanoseconds that a clock may be behind the last block: what clocks of machines that are looked after differ by, and
more. Blocks of that long have the time of the last one."""
CLOCK_BEHIND: Final = "clock-behind"
CLOCK_AHEAD: Final = "clock-ahead"


def block_time(state: ChainState, now: Instant) -> Instant:
    """Time of the next block: whole milliseconds, never before the head's. Raises Refused (``clock-behind``)."""
    check_clock(state, now)
    whole = Instant(now // MILLISECOND * MILLISECOND)
    return whole if state.system_time is None else max(whole, state.system_time)


def check_clock(state: ChainState, now: Instant) -> None:
    """Raises Refused where the last block is of a time long after ``now``: one of the two is wrong."""
    if state.system_time is None or state.system_time - now <= TOLERANCE:
        return
    raise Refused(
        f"the clock of this machine says {instant.render(_second(now))}, and the last block is of"
        f" {instant.render(state.system_time)}: one of them is wrong",
        rule=CLOCK_BEHIND,
        hint="set the clock; or, if it is right, give up the blocks of a wrong one: odfctl doctor says how",
    )


def check_jump(ahead: int, now: Instant) -> None:
    """Raises Refused for a clock that was set ``ahead`` while this process runs."""
    if ahead > TOLERANCE:
        raise Refused(
            f"the clock of this machine was set {plural(ahead // TOLERANCE, 'day')} ahead while odfd runs, to"
            f" {instant.render(_second(now))}: what is written now would be of that time for ever",
            rule=CLOCK_AHEAD,
            hint="set the clock; if it is right now, start odfd again",
        )


def _second(time: Instant) -> Instant:
    return Instant(time // instant.SECOND * instant.SECOND)
