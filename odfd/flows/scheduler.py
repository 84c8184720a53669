"""Decides which dataset is pulled next, and when: sans-IO, with time and chance as arguments.

Due times are in a heap, so the costs of looking for the next run and of a run do not grow with the number of plans. A
nominal time is noted as fired before its run begins; a run that was cut off begins again for the same time. A derived
dataset whose input is itself about to run waits for that, so that data that arrives by several ways makes one
transaction. The worker makes the scheduler, performs the runs and stores the records.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from chain.backoff import Chance
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from odfd.flows.plan import (
    BAD,
    MINUTE,
    MOST_OWED,
    RECORDS,
    REQUEST,
    TIMES,
    CatchUp,
    Cause,
    FlowPlan,
    Outcome,
    Record,
    Retry,
)
from odfd.flows.schedule import latest_time, next_time, passed_over
from odfd.resources.resource import derived_id

SETTLE: Final = SECOND
"""Nanoseconds between new data and a run, so that a user's pull of inputs and outputs runs first."""
PARALLEL: Final = 4
"""Most runs of one flow of many datasets at the same time; further ones wait for the end of one."""
ON_TIME: Final = MINUTE
"""Nanoseconds after a time in which it does not count as missed."""


@dataclass(frozen=True, slots=True)
class Firing:
    """A run to begin, with the record to store first."""

    key: str
    plan: FlowPlan
    record: Record
    causes: tuple[Cause, ...]
    """What caused it; empty for one that goes on with, or repeats, a run that has them."""


@dataclass(slots=True)
class Entry:
    """The state of one active plan."""

    plan: FlowPlan
    record: Record
    running: bool = False
    touched: dict[DatasetId, Instant] = field(default_factory=dict)
    """The datasets with news that no run has looked at, each with when they first came."""
    awaited: Instant | None = None
    """When records that were pushed to a Source make it run; ``None`` if none wait."""
    due: Instant | None = None
    held_since: Instant | None = None
    """Since when it waits for an input that is itself about to run; ``None`` if it does not wait."""
    logged_at: Instant | None = None
    """When the log was last told that it failed; ``None``: not since it is known."""
    ticket: int = 0
    """Number of its valid place in the heap; places with other numbers are out of date."""

    @property
    def is_paused(self) -> bool:
        return self.record.paused or self.plan.policy.suspend


class Scheduler:
    """Schedules the plans of a node."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance
        self._entries: dict[str, Entry] = {}
        self._heap: list[tuple[Instant, int, str]] = []
        self._tickets = itertools.count(1)
        self._readers: dict[DatasetId, dict[str, None]] = {}
        """Keys of the plans that watch a dataset, in the order in which they came."""
        self._targets: dict[DatasetId, dict[str, None]] = {}
        self._of_flows: dict[str, dict[str, None]] = {}
        """Keys of the plans of a flow, by its id."""
        self._busy: dict[str, set[str]] = {}
        """Keys of the running plans of a selection, by the name of its flow."""
        self._queued: dict[str, dict[str, None]] = {}
        """Keys of the due plans of a selection that wait for one of its runs to end, by the name of its flow."""
        self._latest = Instant(-(1 << 63))
        """The latest time that was seen since the clock was set back."""

    def entries(self) -> Iterator[tuple[str, Entry]]:
        return iter(self._entries.items())

    def keys_of(self, dataset: DatasetId) -> Sequence[str]:
        """Returns the keys of the plans whose target is a dataset."""
        return tuple(self._targets.get(dataset, ()))

    def of_flow(self, id_: str) -> list[tuple[str, Entry]]:
        """Returns the plans of a flow by the id of that: one, or one for each of its datasets."""
        return [(key, self._entries[key]) for key in self._of_flows.get(id_, ())]

    def find(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def put(self, key: str, plan: FlowPlan, record: Record | None, now: Instant, *, touched: bool = False) -> Record:
        """Adds or replaces a plan, which continues the former record. Returns the record to store.

        A new or resumed plan, or a new schedule, has no missed times. ``touched``: whether an input may have data that
        the plan has not looked at.
        """
        before = self._entries.get(key)
        if before is not None:
            self._forget(key, before)
            record = before.record
            resumed = before.plan.policy.suspend and not plan.policy.suspend
            if resumed or before.plan.schedule != plan.schedule:
                record = msgspec.structs.replace(record, since=now)
        entry = Entry(plan, _not_ahead(record, now) if record is not None else Record(since=now))
        if before is not None:
            entry.running, entry.touched, entry.awaited = before.running, before.touched, before.awaited
            entry.logged_at = before.logged_at
        if touched:
            entry.touched = dict.fromkeys(plan.watched - plan.batched, now) | entry.touched
        self._entries[key] = entry
        self._targets.setdefault(plan.target, {})[key] = None
        if plan.id:
            self._of_flows.setdefault(plan.id, {})[key] = None
        for each in plan.watched:
            self._readers.setdefault(each, {})[key] = None
        self._arm(key, entry, now)
        return entry.record

    def drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._forget(key, entry)

    def touch(self, dataset: DatasetId, now: Instant) -> None:
        """Marks a dataset as possibly having new data, or a declaration with which its own blocked runs can go on."""
        for key in (*self._readers.get(dataset, ()), *filter(self._is_blocked, self.keys_of(dataset))):
            if dataset not in self._entries[key].plan.batched:
                self._touch(key, dataset, now)

    def awaiting(self, dataset: DatasetId) -> Sequence[str]:
        """Returns the keys of the plans that await a number of records of a dataset."""
        return [key for key in self._readers.get(dataset, ()) if dataset in self._entries[key].plan.batched]

    def _is_blocked(self, key: str) -> bool:
        entry = self._entries[key]
        return entry.record.outcome is Outcome.BLOCKED and bool(entry.plan.inputs) and not entry.running

    def _touch(self, key: str, dataset: DatasetId, now: Instant) -> None:
        entry = self._entries[key]
        if dataset not in entry.touched:
            entry.touched[dataset] = now
            self._arm(key, entry, now)

    def await_until(self, key: str, at: Instant | None, now: Instant) -> None:
        """Sets when pushed records make a plan run, if it exists; ``None`` if no records wait."""
        entry = self._entries.get(key)
        if entry is not None and entry.awaited != at:
            entry.awaited = at
            self._arm(key, entry, now)

    def untouch(self, key: str) -> None:
        """Ignores the news that came during a run; ``finish`` says whether there was other news."""
        if (entry := self._entries.get(key)) is not None:
            entry.touched = {}

    def request(self, key: str, now: Instant, by: str = "") -> Record:
        """Adds a run of the plan ``key``, which exists, because an account asks for it. Returns the record to store.

        A failed run that waits to be tried again is tried now: who asks may have mended what it failed by.
        ``by``: the id of the account, empty for the node's owner.
        """
        entry = self._entries[key]
        record = entry.record = msgspec.structs.replace(entry.record, retry_at=None)
        if len(record.owed) < MOST_OWED:
            asked = {**record.asked, now: by}
            entry.record = msgspec.structs.replace(record, owed=(*record.owed, now), asked=asked)
        self._arm(key, entry, now)
        return entry.record

    def pause(self, key: str, now: Instant, *, paused: bool) -> Record:
        """Pauses or resumes the plan ``key``, which exists. Times during a pause are not missed."""
        entry = self._entries[key]
        entry.record = msgspec.structs.replace(entry.record, paused=paused, since=now)
        self._arm(key, entry, now)
        return entry.record

    def backfill(
        self, key: str, first: Instant, last: Instant, now: Instant, by: str = ""
    ) -> tuple[Record, int, Instant | None]:
        """Adds a run for each nominal time of a range that did not fire. The plan ``key`` has a schedule.

        ``by``: as of ``request``. Returns the record to store, the number of such times, and the first that has no
        room, or ``None``.
        """
        entry = self._entries[key]
        record, schedule, last = entry.record, entry.plan.schedule, min(last, now)
        assert schedule is not None
        times, covered = list(record.owed), record.covered
        at = next_time(schedule, covered, Instant(first - 1))
        while at is not None and at <= last and len(times) < MOST_OWED:
            times.append(at)
            covered = covered.with_(at, schedule)
            at = next_time(schedule, covered, at)
        count = len(times) - len(record.owed)
        asked = {**record.asked, **dict.fromkeys(times[len(record.owed) :], by)}
        entry.record = msgspec.structs.replace(record, owed=tuple(sorted(times)), asked=asked, covered=covered)
        self._arm(key, entry, now)
        return entry.record, count, at if at is not None and at <= last else None

    def next_time(self) -> Instant | None:
        """Returns when ``due`` may next return a run; ``None`` if nothing is scheduled."""
        while self._heap and not self._is_current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: Instant, most: int) -> Sequence[Firing]:
        """Returns at most ``most`` runs to begin now, those due first."""
        self._notice_clock(now)
        found: list[Firing] = []
        while len(found) < most and (first := self.next_time()) is not None and first <= now:
            _, _, key = heapq.heappop(self._heap)
            entry = self._entries[key]
            if self._waits(key, entry) or self._is_held(key, entry, now):
                continue
            causes = self._claim(key, entry, now)
            if causes is not None:
                found.append(Firing(key, entry.plan, entry.record, causes))
                if entry.plan.selection is not None:
                    self._busy.setdefault(entry.plan.id, set()).add(key)
            else:
                self._arm(key, entry, now)
        return found

    def finish(
        self, key: str, outcome: Outcome, message: str, now: Instant, seen: str | None = None, *,
        touched: bool = False, retry: Retry | None = None,
    ) -> Record | None:  # fmt: skip
        """Ends a run; returns the record to store, ``None`` if the plan is gone.

        ``seen``: the head that the run saw or wrote. ``touched``: whether the target has blocks that it neither saw nor
        wrote. ``retry``: retries of the task that failed; ``None`` for those of the plan.
        """
        self._let_in(key, now)
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.running = False
        entry.record = self._end(entry, outcome, message, now, retry or entry.plan.policy.retry)
        if seen is not None and outcome not in (*BAD, Outcome.CANCELLED):
            entry.record = msgspec.structs.replace(entry.record, seen=seen)
        self._arm(key, entry, now)
        if touched:
            self._touch(key, entry.plan.target, now)
        self._release_readers(entry.plan.target, now)
        return entry.record

    def interrupt(self, now: Instant) -> None:
        """Interrupts all runs, which begin again later; this is no failure."""
        queued = {key for keys in self._queued.values() for key in keys}
        self._busy, self._queued = {}, {}
        for key, entry in self._entries.items():
            if entry.running or key in queued:
                entry.running = False
                self._arm(key, entry, now)

    def _waits(self, key: str, entry: Entry) -> bool:
        """Whether a run has to wait, because its selection has as many as it may; if so, queues it."""
        name = entry.plan.id
        if entry.plan.selection is None or len(self._busy.get(name, ())) < PARALLEL:
            return False
        self._queued.setdefault(name, {})[key] = None
        return True

    def _let_in(self, ended: str, now: Instant) -> None:
        """Makes the next queued run of a selection due, after a run of it ended."""
        for name, keys in self._busy.items():
            if ended in keys:
                keys.remove(ended)
                queued = self._queued.get(name, {})
                while queued:
                    key = next(iter(queued))
                    del queued[key]
                    if (entry := self._entries.get(key)) is not None and not entry.running:
                        self._arm(key, entry, now)
                        break

    def _end(self, entry: Entry, outcome: Outcome, message: str, now: Instant, retry: Retry) -> Record:
        was = entry.record
        record = msgspec.structs.replace(
            was,
            runs=was.runs + 1,
            ended_at=now,
            outcome=outcome,
            message=message,
            failures=was.failures + 1 if outcome in BAD else 0 if outcome is not Outcome.CANCELLED else was.failures,
        )
        attempts = was.attempts + 1
        # A scheduled time is given up after so many attempts; new data is tried for as long as it takes, unless said.
        is_bounded = entry.plan.schedule is not None or retry.is_declared
        if outcome is Outcome.FAILED and was.pending is not None and not (is_bounded and attempts >= retry.attempts):
            wait = retry.wait(attempts, self._chance)
            again = Instant(now + wait)
            return msgspec.structs.replace(record, attempts=attempts, retry_at=again, run="", retried=was.run)
        return msgspec.structs.replace(record, pending=None, attempts=0, retry_at=None, run="", retried="")

    def _claim(self, key: str, entry: Entry, now: Instant) -> tuple[Cause, ...] | None:
        """Begins a run if one is due; returns what newly caused it, or ``None`` if none begins."""
        record, plan = entry.record, entry.plan
        causes: tuple[Cause, ...] = ()
        if entry.running or entry.is_paused:
            return None
        if record.pending is None:
            record = self._fire(entry, now)
            causes = () if record.pending is None else (Cause(at=record.pending, what=TIMES),)
            if entry.touched and _cooled_at(entry, now) <= now:
                causes += tuple(Cause(at=at, what=str(each)) for each, at in sorted(entry.touched.items()))
            if entry.awaited is not None and _awaited_at(entry, now) <= now:
                causes += (Cause(at=entry.awaited, what=RECORDS),)
            if record.pending is None and causes:
                record = msgspec.structs.replace(record, pending=now)
            if record.pending is None and record.owed:
                at, *owed = record.owed
                causes = (Cause(at=at, what=REQUEST, by=record.asked.get(at)),)
                asked = {each: by for each, by in record.asked.items() if each != at}
                record = msgspec.structs.replace(record, pending=at, owed=tuple(owed), asked=asked)
        entry.record = record
        if record.pending is None:
            return None
        entry.running, entry.due = True, None
        if plan.watched:
            entry.touched = {}
        entry.awaited = None
        run = record.run or derived_id("FlowRun", key, str(now))
        entry.record = msgspec.structs.replace(record, began_at=now, retry_at=None, run=run)
        return causes

    def _fire(self, entry: Entry, now: Instant) -> Record:
        """Returns the record with the nominal time that is due now, if any, noted as fired."""
        record, schedule, policy = entry.record, entry.plan.schedule, entry.plan.policy
        if schedule is None or _rested_at(entry, now) > now:
            return record
        base = _due_since(record, now)
        first = next_time(schedule, record.covered, base)
        if first is None or first > now:
            return record
        oldest = now - (ON_TIME if policy.catch_up is CatchUp.NONE else max(policy.window, ON_TIME))
        if policy.catch_up is CatchUp.ALL:
            chosen = next_time(schedule, record.covered, Instant(max(base, oldest - 1)))
        else:
            chosen = latest_time(schedule, Instant(max(base, oldest - 1)), now)
        if chosen is None or chosen > now:
            missed = passed_over(schedule, base, Instant(now + 1))
            return msgspec.structs.replace(record, since=now, missed=record.missed + missed)
        missed = passed_over(schedule, base, chosen)
        return msgspec.structs.replace(
            record, covered=record.covered.with_(chosen, schedule), pending=chosen, missed=record.missed + missed
        )

    def _arm(self, key: str, entry: Entry, now: Instant) -> None:
        entry.due = _due(entry, now)
        if entry.due is not None:
            self._push(key, entry, entry.due)
        else:
            entry.ticket = 0

    def _push(self, key: str, entry: Entry, time: Instant) -> None:
        entry.ticket = next(self._tickets)
        heapq.heappush(self._heap, (time, entry.ticket, key))
        # Places that are out of date leave the heap only when their time comes, and each news adds one.
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [each for each in self._heap if self._is_current(each)]
            heapq.heapify(self._heap)

    def _is_current(self, place: tuple[Instant, int, str]) -> bool:
        entry = self._entries.get(place[2])
        return entry is not None and entry.ticket == place[1]

    def _is_held(self, key: str, entry: Entry, now: Instant) -> bool:
        """Whether a plan waits for an input's pending pull: at most a cooldown, as pulls may take hours or repeat."""
        since = now if entry.held_since is None else min(entry.held_since, now)
        until = Instant(since + max(entry.plan.policy.cooldown, SECOND))
        others = (self._entries[other] for each in entry.plan.watched for other in self._targets.get(each, ()))
        pulls = (other for other in others if other.plan.pulls and other is not entry)
        if now < until and any(_is_about_to_run(pull, now) for pull in pulls):
            entry.held_since = since
            self._push(key, entry, until)
            return True
        entry.held_since = None
        return False

    def _release_readers(self, dataset: DatasetId, now: Instant) -> None:
        for key in self._readers.get(dataset, ()):
            entry = self._entries[key]
            if entry.held_since is not None:
                self._push(key, entry, now)

    def _notice_clock(self, now: Instant) -> None:
        """Computes due times anew if the clock was set back, since they came from a time that was wrong."""
        if now < self._latest:
            for key, entry in self._entries.items():
                entry.record = _not_ahead(entry.record, now)
                if not entry.running:
                    self._arm(key, entry, now)
        self._latest = now

    def _forget(self, key: str, entry: Entry) -> None:
        for index, datasets in ((self._targets, {entry.plan.target}), (self._readers, entry.plan.watched)):
            for dataset in datasets:
                index[dataset].pop(key, None)
                if not index[dataset]:
                    del index[dataset]
        if entry.plan.id:
            self._of_flows[entry.plan.id].pop(key)
            if not self._of_flows[entry.plan.id]:
                del self._of_flows[entry.plan.id]


def _is_about_to_run(entry: Entry, now: Instant) -> bool:
    return entry.running or (entry.due is not None and entry.due <= now)


def _due(entry: Entry, now: Instant) -> Instant | None:
    record, schedule = entry.record, entry.plan.schedule
    if entry.running or entry.is_paused:
        return None
    if record.pending is not None:
        # A clock that was ahead when the run failed would let it wait until that time.
        latest = now + entry.plan.policy.retry.most
        return now if record.retry_at is None else Instant(min(record.retry_at, latest))
    times = [_cooled_at(entry, now)] if entry.touched else []
    if record.owed:
        times.append(now)
    if entry.awaited is not None:
        times.append(_awaited_at(entry, now))
    if schedule is not None and (next_one := next_time(schedule, record.covered, _due_since(record, now))) is not None:
        times.append(max(next_one, _rested_at(entry, now)) if entry.plan.cooldown(TIMES) else next_one)
    return min(times, default=None)


def _due_since(record: Record, now: Instant) -> Instant:
    """Returns the time after which nominal times, up to ``now``, are owed."""
    newest = record.covered.newest(now)
    return record.since if newest is None else max(record.since, newest)


def _not_ahead(record: Record, now: Instant) -> Record:
    """Returns a record whose ``since`` is at most now, as after a clock was ahead."""
    return record if record.since <= now else msgspec.structs.replace(record, since=now)


def _rested_at(entry: Entry, now: Instant) -> Instant:
    """Returns when a time of the schedule may cause a run again."""
    cooldown, began = entry.plan.cooldown(TIMES), entry.record.began_at
    return now if not cooldown or began is None else Instant(min(began, now) + cooldown)


def _cooled_at(entry: Entry, now: Instant) -> Instant:
    """Returns when news may cause a run; there are some."""
    ended = entry.record.ended_at

    def of(dataset: DatasetId, came: Instant) -> Instant:
        cooldown = entry.plan.cooldown(str(dataset))
        begun = Instant(min(came, now) + min(SETTLE, cooldown))
        return begun if ended is None else Instant(max(begun, min(ended, now) + cooldown))

    return min(of(*each) for each in entry.touched.items())


def _awaited_at(entry: Entry, now: Instant) -> Instant:
    """Returns when pushed records may cause a run; after a failed run a cooldown passes first."""
    plan = entry.plan
    causes = [*plan.arrivals, *(() if plan.follows is None else (plan.follows,))]
    longest = max((cause.longest for cause in causes), default=0)
    at = min(entry.awaited if entry.awaited is not None else now, Instant(now + longest))
    record = entry.record
    if record.ended_at is None or record.outcome not in BAD:
        return at
    return Instant(max(at, min(record.ended_at, now) + plan.policy.cooldown))
