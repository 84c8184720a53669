"""Shows the task board and the event log of the daemon in values of the API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import msgspec

from chain import instant
from chain.instant import Instant
from chain.wording import plural
from odfd.control import wire
from odfd.obs.events import Event, EventLog, News
from odfd.runtime.ring import Lagged
from odfd.runtime.tasks import Task, TaskBoard, TaskState


def task_view(task: Task) -> wire.TaskView:
    done, total, unit, message = task.report.shown()
    return wire.TaskView(
        id=task.id,
        kind=task.kind,
        target=task.target,
        state=task.state.value,
        done=done,
        total=total,
        unit=unit,
        message=message,
        started_at=_text(task.started_at),
        finished_at=_text(task.finished_at),
        result=task.result if task.state is TaskState.DONE else None,
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
            why = "the daemon started anew" if news.missed is None else "they are no longer kept"
            return wire.EventView(
                sequence=news.resume - 1,
                time="",
                kind="lagged",
                message=f"{lost} before number {news.resume} cannot be told: {why}",
                data={"missed": news.missed},
            )


class BoardTasks:
    """The API service for long operations."""

    def __init__(self, board: TaskBoard) -> None:
        self._board = board

    async def list(self, *, brief: bool = False) -> Sequence[wire.TaskView]:
        """Lists tasks; ``brief``: without the results of finished ones, which may be large."""
        views = [task_view(task) for task in self._board.list()]
        return [msgspec.structs.replace(view, result=None) for view in views] if brief else views

    async def get(self, task_id: str) -> wire.TaskView:
        return task_view(self._board.get(task_id))

    async def cancel(self, task_id: str) -> wire.TaskView:
        task = self._board.cancel(task_id)
        await task.finished.wait()
        return task_view(task)

    async def follow(self, task_id: str) -> AsyncIterator[wire.TaskView]:
        """Snapshots, a few a second at most, the last one finished. Raises NotFound at the first step."""
        async with aclosing(self._board.follow(task_id)) as snapshots:
            async for task in snapshots:
                yield task_view(task)


class LogEvents:
    """The API service for events."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def kept(self, kinds: Sequence[str] = ()) -> list[wire.EventView]:
        """Lists all kept events, oldest first; of these kinds, or of kinds beginning with them."""
        return [event_view(event) for event in self._log.kept() if not kinds or _is_of(event.kind, kinds)]

    async def follow(self, since: int | None, kinds: Sequence[str]) -> AsyncIterator[wire.EventView]:
        """Yields events after number ``since``, or only new ones; of these kinds, or of kinds beginning with them."""
        async with aclosing(self._log.follow(since)) as all_news:
            async for news in all_news:
                if isinstance(news, Lagged) or not kinds or _is_of(news.kind, kinds):
                    yield event_view(news)


def _is_of(kind: str, wanted: Sequence[str]) -> bool:
    return any(kind == one or kind.startswith(one + ".") for one in wanted)


def _text(time: Instant | None) -> str | None:
    return None if time is None else instant.render(time)
