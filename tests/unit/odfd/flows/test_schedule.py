"""When a schedule is due, what is refused, and what a dataset declares for itself."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.instant import SECOND, Instant
from odfd.flows.manifest import schedule_of
from odfd.flows.schedule import (
    MISSED_COUNTED,
    SPANS,
    Covered,
    Cron,
    Every,
    Schedule,
    latest_time,
    next_time,
    parse_cron,
    parse_duration,
    parse_every,
    parse_zone,
    passed_over,
)
from odfd.resources.resource import Resource

# When a schedule is due, where clocks are changed too; what is refused; which times count as fired.

TORONTO = "America/Toronto"


def at(text: str) -> Instant:
    return instant.parse(text)


def times(schedule: Schedule, start: str, count: int) -> list[str]:
    found, now = [], at(start)
    for _ in range(count):
        following = schedule.after(now)
        assert following is not None
        assert following > now
        now = following
        found.append(instant.render(now))
    return found


def test_working_days_at_a_time_of_a_zone() -> None:
    weekdays = parse_cron("30 17 * * 1-5", TORONTO)
    assert times(weekdays, "2024-03-07T00:00:00Z", 3) == [
        "2024-03-07T22:30:00Z", "2024-03-08T22:30:00Z", "2024-03-11T21:30:00Z"]  # fmt: skip


def test_a_time_that_the_change_of_clocks_leaves_out_is_due_right_after_it() -> None:
    assert times(Cron("30 2 * * *", TORONTO), "2024-03-09T12:00:00Z", 2) == [
        "2024-03-10T07:00:00Z", "2024-03-11T06:30:00Z"]  # fmt: skip


def test_a_time_that_comes_twice_is_due_once_and_hours_written_as_a_star_go_on() -> None:
    assert times(Cron("30 1 * * *", TORONTO), "2024-11-03T00:00:00Z", 2) == [
        "2024-11-03T05:30:00Z", "2024-11-04T06:30:00Z"]  # fmt: skip
    assert times(Cron("*/30 * * * *", TORONTO), "2024-11-03T05:00:00Z", 4) == [
        "2024-11-03T05:30:00Z", "2024-11-03T06:00:00Z", "2024-11-03T06:30:00Z", "2024-11-03T07:00:00Z"]  # fmt: skip


def test_names_and_even_intervals() -> None:
    assert times(parse_cron("@daily", "UTC"), "2024-01-01T00:00:00Z", 1) == ["2024-01-02T00:00:00Z"]
    assert times(parse_every("10min"), "2024-01-01T00:00:01Z", 2) == ["2024-01-01T00:10:00Z", "2024-01-01T00:20:00Z"]
    assert str(parse_every("3600s")) == "every 1h"
    assert parse_duration("90s") == 90 * SECOND


@pytest.mark.parametrize("text", ["", "30 17 * *", "61 * * * *", "0 0 31 2 *", "@often", "* * * * * *", "x y z a b"])
def test_what_is_no_cron_expression_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_cron(text, "UTC")
    assert refused.value.rule == "flow-cron"
    assert refused.value.hint


@pytest.mark.parametrize("read, text", [(parse_zone, "Mars/Base"), (parse_zone, "../etc/passwd"), (parse_zone, ""),
                                        (parse_duration, "5"), (parse_duration, "-5s"), (parse_every, "0s"),
                                        (parse_every, "999d")])  # fmt: skip
def test_what_is_no_zone_or_length_is_refused(read: object, text: str) -> None:
    with pytest.raises(Invalid):
        read(text)  # type: ignore[operator]


def test_the_latest_of_many_missed_times() -> None:
    yearly, minutely = parse_cron("@yearly", "UTC"), parse_cron("* * * * *", "UTC")
    start, now = at("2020-06-01T00:00:00Z"), at("2024-06-01T00:00:30Z")
    assert latest_time(yearly, start, now) == at("2024-01-01T00:00:00Z")
    assert latest_time(minutely, start, now) == at("2024-06-01T00:00:00Z")
    assert latest_time(Every(3600 * SECOND), start, now) == at("2024-06-01T00:00:00Z")
    assert latest_time(yearly, at("2024-01-01T00:00:00Z"), now) is None
    assert passed_over(yearly, start, at("2024-01-01T00:00:00Z")) == 3
    assert passed_over(minutely, start, now) == MISSED_COUNTED
    assert passed_over(Every(3600 * SECOND), at("2024-05-31T20:00:00Z"), now) == 4


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(0, 210))
def test_what_fired_stays_covered_in_bounded_room(fired: list[int], look: int) -> None:
    schedule, covered = Every(10 * SECOND), Covered()
    for each in fired:
        covered = covered.with_(Instant(each * 10 * SECOND), schedule)
        assert len(covered.spans) <= SPANS
        assert list(covered.spans) == sorted(covered.spans)
    assert all(covered.end_over(Instant(each * 10 * SECOND)) is not None for each in fired)
    newest = covered.newest(Instant(look * 10 * SECOND))
    assert (newest is None) == (min(fired) > look)
    found = next_time(schedule, covered, Instant(look * 10 * SECOND))
    assert found is not None
    assert found // (10 * SECOND) not in fired
    assert found > look * 10 * SECOND


# The schedule that a dataset declares for itself: for what can be pulled, and as often as its owner may.


def made(every: str, spec: Any = None, account: str | None = None) -> list[str]:
    owner = Resource(
        id="1",
        type="Dataset",
        name="one",
        account=account,
        annotations={"schedule": {"every": every}},
        spec=spec,
        created_at=Instant(0),
        updated_at=Instant(0),
    )
    return [each.type for each in schedule_of(owner)]


@pytest.mark.parametrize(
    "kinds,refused",
    [
        (["AddPushSource"], True),
        (["SetInfo", "AddPushSource", "AddPushSource"], True),
        (["SetPollingSource"], False),
        (["AddPushSource", "SetPollingSource"], False),
        (["SetTransform"], False),
        ([], False),
    ],
)
def test_what_is_only_pushed_to_is_not_pulled_on_a_schedule(kinds: list[str], refused: bool) -> None:
    """Its flow would fail each time, and each time say so, for ever."""
    spec = {"kind": "Root", "metadata": [{"kind": kind} for kind in kinds]}
    with pytest.raises(Invalid, match="nothing to pull from") if refused else contextlib.nullcontext() as caught:
        assert made("1h", spec) == ["Flow"]
    assert caught is None or caught.value.rule == "flow-trigger"


@pytest.mark.parametrize(
    "account,every,refused", [("bob", "59s", True), ("bob", "1s", True), ("bob", "1min", False), (None, "1s", False)]
)
def test_an_account_has_a_dataset_pulled_once_a_minute_at_the_most_often(
    account: str | None, every: str, refused: bool
) -> None:
    with pytest.raises(Invalid, match="every 1min at the most often") if refused else contextlib.nullcontext():
        assert made(every, account=account) == ["Flow"]
