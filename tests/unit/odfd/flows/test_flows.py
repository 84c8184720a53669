"""When flows run."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.flows.manifest import schedule_of
from odfd.flows.plan import (
    MOST_OWED,
    TIMES,
    CatchUp,
    FlowPlan,
    FlowPolicy,
    Follows,
    Outcome,
    Record,
    Retry,
    Selection,
    Step,
)
from odfd.flows.schedule import (
    MISSED_COUNTED,
    SPANS,
    Covered,
    Cron,
    Every,
    Schedule,
    Several,
    latest_time,
    next_time,
    parse_cron,
    parse_duration,
    parse_every,
    parse_zone,
    passed_over,
)
from odfd.flows.scheduler import PARALLEL, SETTLE, Scheduler
from odfd.flows.spec import VerifyTask
from odfd.resources.resource import Resource

# When a schedule is due, what is refused, and what a dataset declares for itself.


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
    """Attack T-QUERY-04: an account whose dataset is pulled every second, to take turns of the engine and fill the log.

    Defence: a dataset is pulled once a minute at most; a dataset that only receives pushes has no schedule.
    """
    with pytest.raises(Invalid, match="every 1min at the most often") if refused else contextlib.nullcontext():
        assert made(every, account=account) == ["Flow"]


# Runs begin when they are due, once for each nominal time, in order, with pauses: in virtual time.


TEN = Every(10 * SECOND)
START = Instant(1_000_005 * SECOND)


def dataset(number: int) -> DatasetId:
    return DatasetId.from_public_key(bytes([number]) * 32)


def plan(number: int = 0, *inputs: int, **more: Any) -> FlowPlan:
    return FlowPlan(
        name=f"d{number}",
        target=dataset(number),
        schedule=None if inputs else TEN,
        inputs=frozenset(map(dataset, inputs)),
        policy=FlowPolicy(**more),
    )


class Life:
    """A scheduler, the records that are kept of it, and a clock; each run is one line of ``ran``."""

    def __init__(self) -> None:
        self.now = START
        self.kept: dict[str, Record] = {}
        self.plans: dict[str, FlowPlan] = {}
        self.running: list[str] = []
        self.ran: list[tuple[str, Instant]] = []
        self.fired: Counter[tuple[str, Instant]] = Counter()
        self.begin()

    def begin(self) -> None:
        """A start of the node: what was in memory is gone."""
        self.running.clear()
        self.scheduler = Scheduler(random.Random(1))
        for key, each in self.plans.items():
            self.kept[key] = self.scheduler.put(key, each, self.kept.get(key), self.now)

    def put(self, each: FlowPlan, key: str = "") -> None:
        key = key or each.name
        self.plans[key] = each
        self.kept[key] = self.scheduler.put(key, each, self.kept.get(key), self.now)

    def step(self, *, keeps: bool = True, most: int = 10) -> list[str]:
        """Begin what is due. ``keeps``: whether the node lives to note it."""
        firings = self.scheduler.due(self.now, most)
        for each in firings if keeps else ():
            pending = each.record.pending
            assert pending is not None
            if self.kept[each.key].pending != pending and each.record.covered.end_over(pending) is not None:
                self.fired[each.key, pending] += 1
            self.kept[each.key] = each.record
            self.ran.append((each.key, self.now))
            self.running.append(each.key)
        return [each.key for each in firings]

    def backfill(self, first: int, last: int) -> tuple[int, Instant | None]:
        """Seconds from now, of d0."""
        ends = [Instant(self.now + each * SECOND) for each in (first, last)]
        self.kept["d0"], count, left = self.scheduler.backfill("d0", *ends, self.now)
        return count, left

    def touch(self, number: int) -> None:
        """New data, which has settled."""
        self.scheduler.touch(dataset(number), self.now)
        self.now = Instant(self.now + SETTLE)

    def finish(self, key: str, outcome: Outcome = Outcome.UPDATED) -> None:
        self.running.remove(key)
        record = self.scheduler.finish(key, outcome, "", self.now)
        assert record is not None
        self.kept[key] = record
        if outcome is Outcome.UPDATED:
            self.scheduler.touch(self.plans[key].target, self.now)

    def until(self, seconds: float, outcome: Outcome = Outcome.UPDATED) -> None:
        """Let time pass from one due time to the next; each run takes a second."""
        end = self.now + int(seconds * SECOND)
        while (due := self.scheduler.next_time()) is not None and due <= end:
            self.now = max(self.now, due)
            self.step()
            if self.running:
                self.now = Instant(self.now + SECOND)
            for key in list(self.running):
                self.finish(key, outcome)
        self.now = Instant(max(end, self.now))


def test_a_new_flow_owes_nothing_and_runs_at_each_time() -> None:
    life = Life()
    life.put(plan())
    assert life.step() == []
    life.until(30)
    assert [time // SECOND for _, time in life.ran] == [1_000_010, 1_000_020, 1_000_030]


@pytest.mark.parametrize("catch_up, times, missed", [(CatchUp.ONE, [1_003_600], 359), (CatchUp.NONE, [1_003_600], 359),
                                                     (CatchUp.ALL, [1_000_010, 1_000_020], 0)])  # fmt: skip
def test_of_missed_times_so_many_are_caught_up_as_was_said(catch_up: CatchUp, times: list[int], missed: int) -> None:
    life = Life()
    life.put(plan(catch_up=catch_up))
    life.now = Instant(life.now + 3600 * SECOND)
    life.begin()
    for _ in times:
        life.step()
        life.finish("d0")
    assert [time // SECOND for _, time in life.fired] == times
    assert life.kept["d0"].missed == missed
    if catch_up is not CatchUp.ALL:
        assert life.step() == []


def test_past_times_are_made_up_for_once_each_the_oldest_first_over_a_start() -> None:
    life = Life()
    life.put(plan())
    assert life.backfill(-50, 600) == (5, None), "what is to come comes by itself"
    assert life.backfill(-30, 0) == (0, None), "they are owed already"
    life.step()
    life.finish("d0")
    life.begin()
    life.until(4)
    assert [time // SECOND for _, time in life.fired] == [999_960 + 10 * number for number in range(5)]
    life.until(10)
    assert life.kept["d0"].owed == ()
    assert life.backfill(-80, 0) == (2, None), "those before"
    assert life.kept["d0"].missed == 0


def test_no_more_is_owed_than_there_is_room_for_and_what_is_due_goes_first() -> None:
    life = Life()
    life.put(plan())
    count, left = life.backfill(-20_000, 0)
    assert (count, left) == (MOST_OWED, Instant(990_010 * SECOND))
    assert life.backfill(-20_000, 0) == (0, left)
    life.now = Instant(START + 10 * SECOND)
    life.step()
    assert [time // SECOND for _, time in life.fired] == [1_000_010]


def test_without_catching_up_a_time_that_passed_a_while_ago_is_given_up_and_counted() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(catch_up=CatchUp.NONE), schedule=Every(3600 * SECOND)))
    life.now = Instant(1_004_400 * SECOND + 120 * SECOND)
    life.begin()
    assert life.step() == []
    entry = life.scheduler.find("d0")
    assert entry is not None
    assert entry.record.missed == 2
    assert entry.due == 1_008_000 * SECOND


def test_what_is_older_than_the_window_is_not_caught_up() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(window=60 * SECOND), schedule=Every(3600 * SECOND)))
    life.now = Instant(1_004_400 * SECOND + 120 * SECOND)
    life.begin()
    assert life.step() == []


def test_a_run_that_was_cut_off_begins_again_for_the_same_time() -> None:
    life = Life()
    life.put(plan())
    life.now = Instant(1_000_010 * SECOND)
    assert life.step() == ["d0"]
    life.now = Instant(life.now + SECOND)
    life.begin()
    assert life.step() == ["d0"]
    assert list(life.fired.values()) == [1]
    assert life.kept["d0"].failures == 0


def test_a_failure_that_may_pass_is_tried_again_with_growing_pauses_then_given_up() -> None:
    life = Life()
    retry = Retry(attempts=3, least=100 * SECOND, most=1000 * SECOND)
    life.put(msgspec.structs.replace(plan(retry=retry), schedule=Every(10_000 * SECOND)))
    life.until(12_000, Outcome.FAILED)
    gaps = [(later - earlier) / SECOND for (_, earlier), (_, later) in zip(life.ran, life.ran[1:], strict=False)]
    assert len(life.ran) == 3
    assert 51 <= gaps[0] <= 101
    assert 101 <= gaps[1] <= 201
    assert life.kept["d0"].failures == 3
    assert life.kept["d0"].pending is None
    life.until(10_000)
    assert life.kept["d0"].failures == 0


def test_what_stays_wrong_is_not_tried_again_until_something_changes() -> None:
    life = Life()
    life.put(plan(1, 0))
    life.touch(0)
    life.until(100_000, Outcome.REFUSED)
    assert len(life.ran) == 1
    life.touch(0)
    life.until(100)
    assert len(life.ran) == 2


def test_a_paused_flow_rests_and_owes_nothing_of_its_rest() -> None:
    life = Life()
    life.put(plan())
    life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=True)
    life.until(100)
    life.begin()
    life.until(100)
    life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=False)
    assert life.step() == []
    life.until(10)
    assert len(life.ran) == 1


def test_what_is_paused_while_it_waits_for_an_input_begins_nothing() -> None:
    life = Life()
    life.put(plan(0))
    life.put(msgspec.structs.replace(plan(1, 0), schedule=TEN))
    life.now = Instant(1_000_010 * SECOND)
    assert life.step() == ["d0"]
    life.kept["d1"] = life.scheduler.pause("d1", life.now, paused=True)
    life.now = Instant(life.now + 70 * SECOND)
    life.finish("d0", Outcome.UP_TO_DATE)
    life.step()
    entry = life.scheduler.find("d1")
    assert entry is not None
    assert entry.record.pending is None


def test_another_schedule_owes_nothing_of_its_past() -> None:
    life = Life()
    life.put(plan())
    life.now = Instant(life.now + 3600 * SECOND)
    life.put(msgspec.structs.replace(plan(), schedule=Every(60 * SECOND)))
    assert life.step() == []


def test_a_flow_that_is_gone_runs_no_more() -> None:
    life = Life()
    life.put(plan())
    life.now = Instant(1_000_010 * SECOND)
    life.step()
    life.scheduler.drop("d0")
    assert life.scheduler.finish("d0", Outcome.UPDATED, "", life.now) is None
    assert life.scheduler.next_time() is None


def test_a_chain_of_ten_settles_in_order_with_one_run_each() -> None:
    life = Life()
    for number in range(1, 11):
        life.put(plan(number, number - 1))
    life.touch(0)
    life.until(59)
    assert [key for key, _ in life.ran] == [f"d{number}" for number in range(1, 11)]


def test_news_in_quick_succession_join_one_run_a_cooldown() -> None:
    life = Life()
    life.put(plan(1, 0))
    for _ in range(100):
        life.scheduler.touch(dataset(0), life.now)
        life.until(1)
    assert [(time - START) // SECOND for _, time in life.ran] == [1, 62]


def test_news_during_a_run_bring_one_more_after_the_cooldown() -> None:
    life = Life()
    life.put(plan(1, 0))
    life.touch(0)
    assert life.step() == ["d1"]
    life.touch(0)
    life.finish("d1", Outcome.UP_TO_DATE)
    assert life.step() == []
    life.until(61)
    assert len(life.ran) == 2


def test_what_joins_two_ways_runs_once_after_both() -> None:
    life = Life()
    life.put(plan(3, 1, 2))
    life.put(plan(1, 0))
    life.put(plan(2, 0))
    life.touch(0)
    life.step()
    assert life.running == ["d1", "d2"]
    life.finish("d1")
    life.now = Instant(life.now + SETTLE)
    assert life.step() == []
    life.finish("d2")
    assert life.step() == ["d3"]


def test_what_waits_for_an_input_that_never_rests_waits_one_cooldown() -> None:
    life = Life()
    life.put(plan(0))
    life.put(plan(1, 0))
    life.now = Instant(1_000_010 * SECOND)
    assert life.step() == ["d0"]
    life.touch(0)
    assert life.step() == []
    life.now = Instant(life.now + 60 * SECOND)
    assert life.step() == ["d1"]


def test_no_more_runs_begin_than_there_is_room_for_those_due_first_before() -> None:
    life = Life()
    for number in range(5):
        life.put(msgspec.structs.replace(plan(number), schedule=Every((10 + number) * SECOND)))
    life.now = Instant(life.now + 100 * SECOND)
    first = life.step(most=2)
    assert len(first) == 2
    assert len(life.step(most=10)) == 3


def test_of_a_flow_of_many_datasets_so_many_run_at_once_and_each_end_lets_another_in() -> None:
    life, selection = Life(), Selection(name="%")
    for number in range(10):
        life.put(msgspec.structs.replace(plan(number), name="all", selection=selection), f"all d{number}")
    life.put(plan(20))
    life.now = Instant(life.now + 10 * SECOND)
    begun = life.step(most=100)
    assert (len(begun), "d20" in begun) == (PARALLEL + 1, True)
    assert life.step(most=100) == []
    done: list[str] = []
    running = [each for each in begun if each != "d20"]
    while running:
        life.scheduler.finish(running[0], Outcome.UP_TO_DATE, "", life.now)
        done.append(running.pop(0))
        running += life.step(most=100)
        assert len(running) <= PARALLEL
    assert sorted(done) == [f"all d{number}" for number in range(10)]


def test_looking_for_what_is_next_costs_nothing_however_often_it_moved() -> None:
    life = Life()
    life.put(plan(1, 0))
    for _ in range(1000):
        life.scheduler.pause("d1", life.now, paused=False)
        life.scheduler.touch(dataset(0), life.now)
    assert len(life.scheduler._heap) < 100


EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.integers(0, 40)),
    st.tuples(st.just("jump"), st.integers(-500, 500)),
    st.tuples(st.just("backfill"), st.integers(-300, 100)),
    st.tuples(st.sampled_from(["begin", "step", "crash before it is noted", "fail", "pause", "resume"]), st.just(0)),
)


@pytest.mark.slow
@given(st.lists(EVENTS, max_size=60), st.sampled_from(CatchUp))
def test_each_nominal_time_fires_once_whatever_crashes_and_however_the_clock_jumps(
    events: list[tuple[str, int]], catch_up: CatchUp
) -> None:
    life = Life()
    life.put(plan(catch_up=catch_up, retry=Retry(attempts=2)))
    for kind, amount in events:
        if kind == "pass":
            life.until(amount)
        elif kind == "jump":
            life.now = Instant(life.now + amount * SECOND)
        elif kind == "backfill":
            life.backfill(amount - 50, amount + 50)
        elif kind == "crash before it is noted":
            life.step(keeps=False)
            life.begin()
        elif kind == "begin":
            life.begin()
        elif kind == "step":
            life.step()
        elif kind == "fail" and life.running:
            life.finish("d0", Outcome.FAILED)
        elif kind in ("pause", "resume") and not life.running:
            life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=kind == "pause")
    assert all(count == 1 for count in life.fired.values())
    life.begin()
    life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=False)
    ran = len(life.ran)
    life.until(3600)
    assert len(life.ran) > ran, "however far the clock was set back, it goes on soon"
    assert all(count == 1 for count in life.fired.values())


@pytest.mark.slow
@given(st.lists(st.integers(1, 300), max_size=20))
def test_where_all_are_caught_up_none_is_left_out(downtimes: list[int]) -> None:
    life = Life()
    life.put(plan(catch_up=CatchUp.ALL))
    for seconds in downtimes:
        life.now = Instant(life.now + seconds * SECOND)
        life.begin()
        for _ in range(seconds // 10 + 2):
            if life.step():
                life.finish("d0")
    due = range(START // SECOND // 10 + 1, life.now // SECOND // 10 + 1)
    assert [time // SECOND // 10 for _, time in life.fired] == list(due)


def test_news_during_a_run_that_it_did_not_write_run_it_again() -> None:
    scheduler, now = Scheduler(random.Random(1)), START
    watching = msgspec.structs.replace(
        plan(1, cooldown=0), schedule=None, on_update=True, tasks=(Step(said=VerifyTask()),)
    )
    scheduler.put("d1", watching, Record(since=now, seen="a"), now)
    assert scheduler.next_time() is None
    scheduler.touch(dataset(1), now)
    assert [each.key for each in scheduler.due(Instant(now + SETTLE), 10)] == ["d1"]
    scheduler.touch(dataset(1), now)
    scheduler.untouch("d1")
    record = scheduler.finish("d1", Outcome.UP_TO_DATE, "", now, "b", touched=True)
    assert record is not None
    assert record.seen == "b"
    assert [each.key for each in scheduler.due(Instant(now + SETTLE), 10)] == ["d1"]
    scheduler.touch(dataset(1), now)
    scheduler.untouch("d1")
    record = scheduler.finish("d1", Outcome.REFUSED, "", now, "c")
    assert record is not None
    assert record.seen == "b", "what did not end well saw nothing"
    assert scheduler.next_time() is None


def test_times_of_several_schedules_run_once_each_and_one_that_two_have_once() -> None:
    life = Life()
    every = Several((Every(10 * SECOND), Every(15 * SECOND)))
    life.put(msgspec.structs.replace(plan(), schedule=every))
    life.until(32)
    assert [time // SECOND - 1_000_000 for _, time in life.fired] == [10, 20, 30, 35]


def test_a_cooldown_of_times_puts_several_of_them_into_one_run() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(), cooldowns={TIMES: 25 * SECOND}))
    life.until(70)
    assert [time // SECOND - 1_000_000 for _, time in life.ran] == [10, 35, 60]
    assert life.fired.total() == 3


def test_each_dataset_whose_news_make_it_run_has_its_own_cooldown() -> None:
    life = Life()
    often, seldom = str(dataset(1)), str(dataset(2))
    life.put(msgspec.structs.replace(plan(0, 1, 2), cooldowns={often: 5 * SECOND, seldom: 60 * SECOND}))
    life.touch(1)
    life.until(2)
    first = len(life.ran)
    life.touch(2)
    life.until(30)
    assert len(life.ran) == first, "the cooldown of the other is not over"
    life.touch(1)
    life.until(5)
    assert len(life.ran) == first + 1
    life.until(120)
    assert len(life.ran) == first + 1, "one run looked at the news of both"


def test_news_whose_records_are_awaited_in_number_wait_for_that() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(0, 1, 2), batched=frozenset({dataset(1)}), follows=Follows(least=5)))
    life.touch(1)
    life.until(60)
    assert life.ran == []
    assert list(life.scheduler.awaiting(dataset(1))) == ["d0"]
    life.scheduler.await_until("d0", life.now, life.now)
    life.until(1)
    assert len(life.ran) == 1


def test_a_run_that_a_person_asks_for_is_made_once_over_a_start() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(), schedule=None))
    life.kept["d0"] = life.scheduler.request("d0", life.now)
    life.begin()
    life.until(100)
    assert len(life.ran) == 1
    life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=True)
    life.kept["d0"] = life.scheduler.request("d0", life.now)
    life.until(100)
    assert len(life.ran) == 1
    life.kept["d0"] = life.scheduler.pause("d0", life.now, paused=False)
    life.until(1)
    assert len(life.ran) == 2


def test_a_request_does_not_wait_until_a_failed_run_is_tried_again() -> None:
    life = Life()
    life.put(msgspec.structs.replace(plan(), schedule=None, policy=FlowPolicy(retry=Retry(least=3600 * SECOND))))
    life.kept["d0"] = life.scheduler.request("d0", life.now)
    life.until(10, Outcome.FAILED)
    assert (len(life.ran), life.kept["d0"].retry_at is None) == (1, False)
    life.kept["d0"] = life.scheduler.request("d0", life.now)
    life.until(10)
    assert len(life.ran) == 3, "that one, and the one that was asked for"
    assert life.scheduler.next_time() is None


@pytest.mark.parametrize(
    ("backoff", "pauses"), [("None", [10, 10, 10]), ("Linear", [10, 20, 25]), ("Exponential", None)]
)
def test_a_declared_retry_policy_bounds_the_attempts_for_news_too(backoff: Any, pauses: list[int] | None) -> None:
    life = Life()
    retry = Retry(attempts=4, least=10 * SECOND, most=25 * SECOND, backoff=backoff, is_declared=True)
    life.put(msgspec.structs.replace(plan(0, 1), policy=FlowPolicy(retry=retry)))
    life.touch(1)
    life.until(1_000, Outcome.FAILED)
    times = [time for _, time in life.ran]
    assert len(times) == 4
    found = [(later - time) // SECOND - 1 for time, later in itertools.pairwise(times)]
    assert pauses is None or found == pauses
    assert life.kept["d0"].retry_at is None


def test_the_retries_of_a_task_go_before_those_of_its_flow() -> None:
    life = Life()
    life.put(plan())
    life.until(6)
    life.now = Instant(life.now + 10 * SECOND)
    life.step()
    record = life.scheduler.finish("d0", Outcome.FAILED, "", life.now, retry=Retry(attempts=1))
    assert record is not None
    assert (record.pending, record.retry_at) == (None, None)
