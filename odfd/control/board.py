"""Converts the task board, the event log and the last log lines of the daemon to values of the API.

A task that found something wrong is ``done``: it did its work, and its result tells all. Lists of tasks leave results
out, and a person who reads only the state would take a failed verification for a good one: so ``finding`` says in one
line what it found, or could not do for some of what it was asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import singledispatch
from typing import Any, Final

import msgspec
import trio

from chain import instant
from chain.errors import Invalid
from chain.instant import Instant
from chain.wording import plural
from config.log_levels import LEVELS
from odfd.control import wire
from odfd.control.operations import Permission, operation
from odfd.errors import Usage
from odfd.obs.events import EVENT_KINDS, Event, EventLog, News
from odfd.obs.log_lines import LineFilter, LogLine, LogLines, LogNews
from odfd.runtime.ring import Lagged
from odfd.runtime.subjects import Sees, Subjects
from odfd.runtime.tasks import Task, TaskBoard, TaskPhase


def task_state(task: Task) -> wire.TaskState:
    done, total, unit, message = task.report.summary()
    return wire.TaskState(
        kind=task.kind,
        target=task.target,
        state=task.state.value,
        done=done,
        total=total,
        unit=unit,
        message=message,
        started_at=_text(task.started_at),
        finished_at=_text(task.finished_at),
        result=task.result if task.state is TaskPhase.DONE else None,
        finding=finding(task.result) if task.state is TaskPhase.DONE else "",
        fault=wire.Problem.of(task.fault) if task.fault else None,
    )


def task_ref(task: Task) -> wire.TaskRef:
    """Returns a service's response for submitted work."""
    return wire.TaskRef(id=task.id, kind=task.kind, target=task.target)


def event_view(news: News) -> wire.EventView:
    match news:
        case Event():
            return wire.EventView(
                sequence=news.sequence,
                time=instant.render(news.time),
                kind=news.kind,
                subject=news.subject,
                message=news.message,
                data=dict(news.data),
            )
        case Lagged():
            lost = "events" if news.missed is None else plural(news.missed, "event")
            why = "the daemon started again" if news.missed is None else "they are no longer kept"
            return wire.EventView(
                sequence=news.resume - 1,
                time="",
                kind="lagged",
                message=f"{lost} before number {news.resume} are not available: {why}",
                data={"missed": news.missed},
            )


class BoardTasks:
    """The API service for long operations."""

    def __init__(self, board: TaskBoard) -> None:
        self._board = board

    @operation(needs=Permission.BY_RULE)
    async def get(self, task_id: str) -> wire.TaskState:
        return task_state(self._board.get(task_id))

    def about(self, task_id: str) -> Subjects:
        """Returns what a task is about. Raises NotFound."""
        return self._board.get(task_id).about

    @operation(needs=Permission.BY_RULE)
    async def cancel(self, task_id: str) -> wire.TaskState:
        task = self._board.cancel(task_id)
        await task.finished.wait()
        return task_state(task)

    @operation(needs=Permission.BY_RULE)
    async def follow(self, task_id: str) -> AsyncIterator[wire.TaskState]:
        """Yields snapshots, a few a second at most, the last one finished. Raises NotFound at the first step."""
        async with aclosing(self._board.follow(task_id)) as snapshots:
            async for task in snapshots:
                yield task_state(task)


BOOKMARK: Final = "bookmark"
ELSEWHERE: Final = 2**63 - 1
"""A number after those of all events: readers of another log begin anew, and are told that events may be lost."""


class LogEvents:
    """The API service for events."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    @operation(needs=Permission.BY_RULE)
    async def kept(self, kinds: Sequence[str] = (), sees: Sees | None = None) -> list[wire.EventView]:
        """Lists all kept events, oldest first, of these kinds or families of kinds.

        ``sees``: the rights of an account, which gets the events that it may see, numbered without counting others.
        """
        found = [event for event in self._log.list_kept() if is_of(event.kind, kinds)]
        if sees is None:
            return list(map(event_view, found))
        told = await trio.to_thread.run_sync(sees, [event.about for event in found])
        return [account_event(event) for event, is_told in zip(found, told, strict=True) if is_told]

    def batches(self, since: int | None) -> AsyncGenerator[list[Event] | Lagged, None]:
        """Yields lists of all events after number ``since`` of ``account_event``; empty ones when rights may change."""
        return self._log.batches(since)

    def bookmark(self, since: int | None, log: str, *, is_tick: bool = False) -> wire.EventView:
        """Returns the line that begins a stream after ``since``, a number of the log named ``log``; empty: of this one.

        ``is_tick``: the number is one of ``account_event``.
        """
        if since is not None and log not in ("", self._log.name):
            since = 0
        elif since is None:
            since = self._log.mark() if is_tick else self._log.last
        return wire.EventView(sequence=since, time="", kind=BOOKMARK, data={"log": self._log.name})

    def begin(self, since: int | None, log: str) -> int | None:
        """Returns the number to follow events after: a number of another log is none of any event here."""
        return since if since is None or log in ("", self._log.name) else ELSEWHERE

    @operation(needs=Permission.BY_RULE)
    async def follow(
        self, since: int | None, kinds: Sequence[str], log: str | None = None
    ) -> AsyncIterator[wire.EventView]:
        """Yields events after number ``since``, by default only new ones, of these kinds or families of kinds.

        ``log``: the name of the log that ``since`` is of, or empty; a bookmark is yielded first then.
        """
        if log is not None:
            first = self.bookmark(since, log)
            yield first
            since = first.sequence if since is None else self.begin(since, log)
        async with aclosing(self._log.follow(since)) as all_news:
            async for news in all_news:
                if isinstance(news, Lagged) or is_of(news.kind, kinds):
                    yield event_view(news)


def account_event(news: News) -> wire.EventView:
    """Converts an event for an account: its number is a time, so that numbers reveal nothing of other events."""
    if isinstance(news, Event):
        return msgspec.structs.replace(event_view(news), sequence=news.tick)
    text = "some events cannot be shown: they are no longer kept, or the daemon started again"
    return wire.EventView(sequence=0, time="", kind="lagged", message=text)


def known_kinds(wanted: Sequence[str]) -> Sequence[str]:
    """Returns ``wanted``. Raises Invalid for a kind or family without any event, which would never match."""
    for one in wanted:
        if not any(is_of(kind, (one,)) for kind in EVENT_KINDS):
            families = {kind.partition(".")[0] for kind in EVENT_KINDS}
            near = difflib.get_close_matches(one, [*EVENT_KINDS, *families], 1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise Invalid(
                f"no event is of the kind {one[:60]!r}",
                rule="event-kind",
                hint=f"{guess}a kind is a family or one of it, like mirror or mirror.synced; "
                "odfctl docs metrics lists all",
            )
    return wanted


def is_of(kind: str, wanted: Sequence[str]) -> bool:
    """Whether a kind is one of ``wanted``, or in a family of them; always if ``wanted`` is empty."""
    return not wanted or any(kind == one or kind.startswith(one + ".") for one in wanted)


def _text(time: Instant | None) -> str | None:
    return None if time is None else instant.render(time)


@singledispatch
def finding(_: object) -> str:
    """Returns an empty text where nothing is wrong."""
    return ""


@finding.register(wire.VerifyReport)
@finding.register(wire.ProofReport)
def _of_report(report: wire.VerifyReport | wire.ProofReport) -> str:
    if report.ok:
        return ""
    first = next(iter(report.failures), None)
    if first is None:
        return f"{report.ref} does not hold"
    number = first.block.sequence_number
    place = "" if number is None else f"block #{number}: "
    return _count_text("failure", len(report.failures), f"{place}{first.message}  (rule {first.rule})")


@finding.register
def _of_replay(report: wire.RawReplayResult) -> str:
    if report.ok:
        return ""
    told = [f"block #{difference.sequence_number}: {difference.message}" for difference in report.differences]
    return _count_text("difference", report.differs, next(iter(told), report.ref))


@finding.register
def _of_audit(report: wire.AuditResult) -> str:
    told = [f"block #{difference.block}: {difference.why}" for difference in report.differences]
    return _count_text("difference", report.blocks - report.same, next(iter(told), report.ref)) if told else ""


@finding.register(wire.PullResult)
@finding.register(wire.PushResult)
def _of_transfers(result: wire.PullResult | wire.PushResult) -> str:
    return _failure_text(
        [
            f"{item.ref}: {item.fault.detail if item.fault else getattr(item, 'message', '')}"
            for item in result.items
            if item.outcome == "failed"
        ]
    )


@finding.register
def _of_apply(result: wire.ApplyResult) -> str:
    return _failure_text([f"{item.name}: {item.fault.detail}" for item in result.items if item.fault is not None])


def _failure_text(told: Sequence[str]) -> str:
    return _count_text("failure", len(told), told[0]) if told else ""


def _count_text(what: str, count: int, first: str) -> str:
    return first if count == 1 else f"{plural(count, what)}; the first: {first}"


class LogService:
    """The API service for lines of the log."""

    def __init__(self, lines: LogLines) -> None:
        self._lines = lines

    @operation(needs=Permission.BY_RULE)
    async def last(self, filter_: LineFilter, limit: int) -> Sequence[wire.LogLineView]:
        """Lists the last lines that pass a filter. Raises Usage for an unknown level."""
        _check(filter_)
        return [line_view((number, line)) for number, line in self._lines.last(filter_, limit)]

    @operation(needs=Permission.BY_RULE)
    async def follow(self, filter_: LineFilter, limit: int) -> AsyncIterator[wire.LogLineView]:
        """Yields the last lines that pass a filter, and then each new one. Raises Usage at the first step."""
        _check(filter_)
        async with aclosing(self._lines.follow(filter_, limit)) as all_news:
            async for news in all_news:
                yield line_view(news)


def _check(filter_: LineFilter) -> None:
    if filter_.level and filter_.level not in LEVELS:
        raise Usage(f"there is no level {filter_.level[:40]!r}", rule="query", hint="one of " + ", ".join(LEVELS))


def line_view(news: LogNews) -> wire.LogLineView:
    if isinstance(news, Lagged):
        lost = "lines" if news.missed is None else plural(news.missed, "line")
        return wire.LogLineView(
            sequence=news.resume - 1,
            event=f"{lost} of the log are no longer kept: they were written faster than they were read",
            values={"missed": news.missed},
        )
    number, line = news
    return _decode(number, line)


def _decode(number: int, line: LogLine) -> wire.LogLineView:
    values: dict[str, Any] = msgspec.json.decode(line.text)
    for name in ("level", "part", "task"):
        values.pop(name, None)
    event, time = str(values.pop("event", "")), str(values.pop("timestamp", ""))
    return wire.LogLineView(
        sequence=number, time=time, level=line.level, part=line.part, task=line.task, event=event, values=values
    )
