"""Keeps the board of long operations: each has an id, a kind, progress, a way to cancel it, and a result or a fault.

Work goes on whether or not anyone watches. The board lives as long as the daemon and remembers a bounded number of
finished tasks; results that must survive a restart are stored by the work itself. When the daemon stops, computations
may end by themselves; tasks that wait for their turn, or for another party (``outside``), are cancelled at once.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
import structlog
import trio
from cachetools import FIFOCache

from chain.errors import Environment, Fault, NotFound, Refused
from chain.instant import Instant
from odfd.errors import Bug, sole_fault
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock
from odfd.runtime.hanging_calls import in_loop, invoke
from odfd.runtime.slots import Slots, waiting
from odfd.runtime.subjects import NODE, Subjects
from odfd.runtime.supervision import Life, Logger

TICK_SECONDS: Final = 0.2
"""Least seconds between two progress updates of a follower; work may report as often as it likes."""
STILL_SECONDS: Final = 2.0
"""Seconds after which a follower gets an unchanged state again: it lasts, and the connection may be closed."""


class TaskPhase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Report:
    """The progress of work. Plain attributes: safe and cheap to set from any thread, thousands a second."""

    __slots__ = ("_parts", "done", "message", "total", "unit")

    def __init__(self) -> None:
        self.done = 0
        self.total: int | None = None
        self.unit = ""
        self.message = ""
        self._parts: dict[Report, None] = {}

    def begin(self, message: str, total: int | None = None, unit: str = "") -> None:
        """Begins a new stage, whose count starts from zero."""
        self.message, self.total, self.unit, self.done = message, total, unit, 0

    def waits_to_write(self, name: str) -> Callable[[], None]:
        """Returns a function that reports that the work waits for other writers of a dataset; for ``KeyedLocks.of``."""

        def say() -> None:
            self.message = f"waiting until no other task writes {name}"

        return say

    def advance(self, count: int = 1) -> None:
        """Adds to the count. From one thread at a time."""
        self.done += count

    @contextmanager
    def part(self) -> Iterator[Report]:
        """Makes a report for concurrent work, shown while the block lasts. In the event loop.

        Its count is kept afterwards, if it is in the unit of this report.
        """
        part = Report()
        self._parts[part] = None
        try:
            yield part
        finally:
            del self._parts[part]
            if part.done and self._counts_as(part):
                self.done += part.done
                self.unit = part.unit or self.unit

    def summary(self) -> tuple[int, int | None, str, str]:
        """Returns done, total, unit and message of all parts together: shows the oldest part, and counts the others."""
        parts = list(self._parts)
        if not parts:
            return self.done, self.total, self.unit, self.message
        first, more = parts[0], f" (and {len(parts) - 1} more)" if len(parts) > 1 else ""
        done = sum(each.done for each in (self, *parts) if each is first or each._counts_as(first))
        return done, first.total if not more else None, first.unit or self.unit, first.message + more

    def _counts_as(self, other: Report) -> bool:
        """Whether the counts of two reports can be added: bytes are not added to rows."""
        return not self.unit or not other.unit or self.unit == other.unit


Work: TypeAlias = Callable[[Report], object]
"""Plain where it waits for nothing but the disk: a worker thread runs it."""


@dataclass(slots=True)
class Task:
    """A long operation. ``result`` is a wire value once ``state`` is DONE, ``fault`` the reason once FAILED."""

    id: str
    kind: str
    target: str
    state: TaskPhase = TaskPhase.WAITING
    report: Report = field(default_factory=Report)
    started_at: Instant | None = None
    finished_at: Instant | None = None
    result: object = None
    fault: Fault | None = None
    finished: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    about: Subjects = NODE
    submitted_at: Instant | None = None
    is_declared: bool = False
    """Whether a resource of the same id declares the task."""
    is_routine: bool = False
    """Whether it is one of many that are logged at level debug."""

    def progress(self) -> tuple[object, ...]:
        """Returns a value that differs whenever there is something new to show."""
        return self.state, *self.report.summary()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits: ``running`` at once, ``waiting`` in the queue, ``kept`` after the end. Long waits free their slot."""

    running: int = 16
    waiting: int = 256
    kept: int = 500


class _Outside:
    """The waits of tasks for other parties, which are cancelled when the daemon stops."""

    def __init__(self) -> None:
        self.scopes: set[trio.CancelScope] = set()
        self.is_over = False

    def end(self) -> None:
        self.is_over = True
        for scope in self.scopes:
            scope.cancel()


_NAMED: Final[ContextVar[str | None]] = ContextVar("named", default=None)


@contextmanager
def name_next(task_id: str) -> Iterator[None]:
    """Gives the task that is submitted in the block this id: that of the resource that declares it."""
    token = _NAMED.set(task_id)
    try:
        yield
    finally:
        _NAMED.reset(token)


_ROUTINE: Final = ContextVar("routine", default=False)


@contextmanager
def routine() -> Iterator[None]:
    """Logs the tasks that are submitted in the block at level debug: they are many, and another part tells of them."""
    token = _ROUTINE.set(True)
    try:
        yield
    finally:
        _ROUTINE.reset(token)


_OUTSIDE: Final[ContextVar[_Outside | None]] = ContextVar("outside", default=None)


@asynccontextmanager
async def outside(what: str) -> AsyncIterator[None]:
    """Marks the block as waiting for another party.

    It is cancelled as soon as the daemon stops, and a long wait frees the task's slot (``odfd.runtime.slots``).
    ``what`` describes the wait for people. Raises Environment when it was cancelled.
    """
    waits = _OUTSIDE.get()
    if waits is None:
        async with waiting():
            yield
        return
    scope = trio.CancelScope()
    waits.scopes.add(scope)
    if waits.is_over:
        scope.cancel()
    try:
        with scope:
            async with waiting():
                yield
    finally:
        waits.scopes.discard(scope)
    if scope.cancelled_caught:
        raise Environment(f"{what}: the daemon is stopping", rule="draining", hint="try again later")


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """A task was added, begins or ended."""


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A declared task ended."""

    task: Task


class TaskBoard:
    """Runs long operations. Start it as a child (``run``); then ``submit`` work from any trio task of the daemon."""

    def __init__(
        self,
        clock: Clock,
        new_id: Callable[[], str],
        logger: Logger,
        bounds: Bounds | None = None,
        on_finish: Callable[[Task], None] = lambda _: None,
        bus: Bus | None = None,
    ) -> None:
        """``bus``: where it publishes ``TasksChanged`` and ``TaskEnded``."""
        self._clock, self._new_id, self._logger, self._on_finish = clock, new_id, logger, on_finish
        self._bounds = self.bounds = bounds or Bounds()
        self._slots = Slots(self._bounds.running)
        self._live: dict[str, Task] = {}
        self._shown: dict[str, Task] = {}
        """Background work that is shown as tasks."""
        self._kept: FIFOCache[str, Task] = FIFOCache(self._bounds.kept)
        self._nursery: trio.Nursery | None = None
        self._outside = _Outside()
        self._bus = bus or Bus()

    async def run(self, life: Life) -> None:
        """Runs until stopped; then accepts no more work, and lets computations end."""
        self._outside = _Outside()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                life.ready()
                await life.stopping.wait()
            finally:
                self._nursery = None
            self._outside.end()
            for task in self._live.values():
                if task.state is TaskPhase.WAITING:
                    task.scope.cancel()

    @in_loop
    def submit(self, kind: str, target: str, work: Work, about: Subjects = NODE) -> Task:
        """Begins work. ``about`` decides who sees the task, in addition to the one who began it.

        Raises Environment while the daemon stops, Refused when too many tasks wait already.
        """
        if self._nursery is None:
            raise Environment(f"no new {kind} now: the daemon is stopping", rule="draining", hint="try again later")
        if len(self._live) >= self._bounds.running + self._bounds.waiting:
            raise Refused(
                f"no new {kind} now: {len(self._live)} tasks are running or waiting",
                rule="task-queue",
                hint="wait for some of them (odfctl get tasks), or cancel one (odfctl delete task ID)",
            )
        task = self._make(kind, target)
        task.about = msgspec.structs.replace(about, task=task.id)
        self._live[task.id] = task
        self._nursery.start_soon(self._perform, task, work)
        self._bus.publish(TasksChanged())
        return task

    @contextmanager
    def showing(self, kind: str, target: str, about: Subjects = NODE) -> Iterator[Report]:
        """Shows background work while the block lasts. It takes no slot, cannot be cancelled here, and is not kept."""
        task = Task(self._new_id(), kind, target, TaskPhase.RUNNING, started_at=self._clock.now())
        task.about = msgspec.structs.replace(about, task=task.id)
        task.submitted_at = task.started_at
        self._shown[task.id] = task
        self._bus.publish(TasksChanged())
        ended = TaskPhase.CANCELLED
        try:
            yield task.report
            ended = TaskPhase.DONE
        finally:
            del self._shown[task.id]
            task.state, task.finished_at = ended, self._clock.now()
            task.finished.set()
            self._bus.publish(TasksChanged())

    def _make(self, kind: str, target: str) -> Task:
        """Makes a task. Raises Environment for an id whose former task has not ended yet."""
        given = _NAMED.get()
        if given in self._live:
            text = f"the task {given} that was cancelled is still ending"
            raise Environment(text, rule="task-ending", hint="it is begun when that is over")
        made = Task(given or self._new_id(), kind, target, is_declared=given is not None, is_routine=_ROUTINE.get())
        made.submitted_at = self._clock.now()
        return made

    @property
    def is_stopping(self) -> bool:
        """Whether the daemon takes no more tasks, and cancels those that wait."""
        return self._nursery is None

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and of running tasks."""
        running = sum(task.state is TaskPhase.RUNNING for task in self._live.values())
        return len(self._live) - running, running

    @in_loop
    def list(self) -> list[Task]:
        """Lists finished tasks, oldest first; then live ones, and those that the node does by itself."""
        return [*self._kept.values(), *self._live.values(), *self._shown.values()]

    def get(self, task_id: str) -> Task:
        """Returns a task. Raises NotFound."""
        task = self._live.get(task_id) or self._kept.get(task_id) or self._shown.get(task_id)
        if task is None:
            raise NotFound(
                f"there is no task {task_id[:60]!r}",
                rule="task",
                hint=f"odfctl get tasks lists them; the last {self._bounds.kept} finished ones are kept",
            )
        return task

    def cancel(self, task_id: str) -> Task:
        """Cancels a task, which ends at a point that leaves nothing half-done. No effect once finished.

        Raises NotFound, Refused for work that the node does by itself.
        """
        task = self.get(task_id)
        if task_id in self._shown:
            raise Refused(
                f"task {task_id} is {task.kind} of {task.target}, which the node does by itself",
                rule="task-background",
                hint="its policy says what it validates: odfctl trust policy show",
            )
        task.scope.cancel()
        return task

    async def follow(self, task_id: str) -> AsyncGenerator[Task, None]:
        """Yields the task now, on each change, and periodically without one, until it is finished. Raises NotFound."""
        task = self.get(task_id)
        seen: tuple[object, ...] | None = None
        shown = trio.current_time()
        while True:
            finished, now = task.finished.is_set(), trio.current_time()
            if finished or task.progress() != seen or now - shown >= STILL_SECONDS:
                seen, shown = task.progress(), now
                yield task
            if finished:
                return
            with trio.move_on_after(TICK_SECONDS):
                await task.finished.wait()

    async def _perform(self, task: Task, work: Work) -> None:
        _OUTSIDE.set(self._outside)
        # A task inherits the context of who submitted it; what it submits itself has ids of its own.
        _NAMED.set(None)
        _ROUTINE.set(False)
        log = self._logger.debug if task.is_routine else self._logger.info
        structlog.contextvars.bind_contextvars(task=task.id)  # each log line of the task has its id
        try:
            with task.scope:
                async with self._slots.one():
                    task.state, task.started_at = TaskPhase.RUNNING, self._clock.now()
                    self._bus.publish(TasksChanged())
                    log("task begun", kind=task.kind, target=task.target)
                    await self._attempt(task, work)
        finally:
            if task.state in (TaskPhase.WAITING, TaskPhase.RUNNING):
                task.state = TaskPhase.CANCELLED
            log("task ended", kind=task.kind, target=task.target, state=task.state.value)
            self._finish(task)

    async def _attempt(self, task: Task, work: Work) -> None:
        try:
            task.result = await invoke(work, task.report)
            task.state = TaskPhase.DONE
        except BaseExceptionGroup as group:
            # A part of the work may fail while the rest is cancelled: the failure is the task's, and not its board's.
            cancelled, others = group.split(trio.Cancelled)
            failures, beyond = others.split(Exception) if others is not None else (None, None)
            if failures is not None:
                self._fail(task, failures)
            if beyond is not None:
                raise
            if cancelled is not None:
                raise cancelled from None
        except Exception as error:  # noqa: BLE001  whatever it is, the task failed by it, and the log says so
            self._fail(task, error)

    def _fail(self, task: Task, error: Exception) -> None:
        task.fault = sole_fault(error) or _as_bug(task, error)
        task.state = TaskPhase.FAILED
        bug = isinstance(task.fault, Bug)
        self._logger.error(
            "task failed", kind=task.kind, target=task.target, fault=str(task.fault), exc_info=error if bug else None
        )

    def _finish(self, task: Task) -> None:
        task.finished_at = self._clock.now()
        del self._live[task.id]
        self._kept[task.id] = task
        task.finished.set()
        self._on_finish(task)
        self._bus.publish(TasksChanged())
        if task.is_declared:
            self._bus.publish(TaskEnded(task))


def _as_bug(task: Task, error: Exception) -> Bug:
    bug = Bug(
        f"{task.kind} of {task.target or 'the node'} failed unexpectedly: {type(error).__name__}: {error}"[:500],
        rule="bug",
        hint="the daemon's log has the whole trace; please report it",
    )
    bug.__cause__ = error
    return bug
