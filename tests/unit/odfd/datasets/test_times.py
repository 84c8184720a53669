"""Clocks that are wrong by days write nothing; those that differ by less do no harm."""

from __future__ import annotations

import msgspec
import pytest

from chain import instant
from chain.errors import Refused
from chain.instant import MILLISECOND, Instant
from chain.state import ChainState
from odfd.datasets.commit import TOLERANCE, block_time, check_jump
from odfd.runtime.clock import JumpWatch

YEAR = 365 * 86400 * instant.SECOND
NOW = instant.parse("2024-05-01T00:00:00Z")


def after(time: int) -> ChainState:
    return msgspec.structs.replace(ChainState.EMPTY, system_time=Instant(time))


def test_block_times_are_whole_milliseconds_and_never_go_back() -> None:
    assert block_time(ChainState.EMPTY, Instant(1_999_999), 0) == 1_000_000
    assert block_time(after(5 * MILLISECOND), Instant(1), 0) == 5 * MILLISECOND
    assert block_time(after(NOW + TOLERANCE), NOW, 0) == NOW + TOLERANCE


def test_a_clock_days_behind_the_last_block_writes_nothing() -> None:
    with pytest.raises(Refused, match="2024-05-01T00:00:00Z, and the last block is of 2025-05-01") as raised:
        block_time(after(NOW + YEAR), NOW, 0)
    assert raised.value.rule == "clock-behind"
    assert "odfctl doctor" in raised.value.hint


class Clocks:
    def __init__(self, wall: int) -> None:
        self.wall, self.steady = wall, 1000

    def now(self) -> Instant:
        return Instant(self.wall)

    def monotonic(self) -> int:
        return self.steady

    def passes(self, span: int) -> None:
        self.wall += span
        self.steady += span


def test_a_clock_that_is_set_ahead_is_told_by_the_monotonic_one() -> None:
    clocks = Clocks(NOW)
    watch = JumpWatch(clocks)
    clocks.passes(3 * YEAR)
    assert watch.ahead(NOW) == 0, "time that passes is no jump"
    clocks.wall += YEAR
    assert watch.ahead(NOW) == watch.ahead(None) == YEAR
    clocks.wall -= 3 * YEAR
    assert watch.ahead(NOW) == 0


def test_a_clock_that_began_wrong_may_be_set_right() -> None:
    clocks = Clocks(0)
    watch = JumpWatch(clocks)
    clocks.wall = NOW
    assert watch.ahead(Instant(NOW - YEAR)) == 0


def test_a_jump_of_days_is_refused_and_less_is_not() -> None:
    check_jump(TOLERANCE, NOW)
    with pytest.raises(Refused, match="366 days ahead") as raised:
        check_jump(366 * 86400 * instant.SECOND, NOW)
    assert raised.value.rule == "clock-ahead"
