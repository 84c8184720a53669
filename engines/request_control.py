"""Carries a caller's deadline to the engine, and signals the work on a request when the caller has gone.

Does not import gRPC, which takes a tenth of a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from chain.errors import Fault
from engines.contract import EngineProgress


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long a caller waits, and the number of callers that wait at once."""

    work: float = 3600.0
    """Seconds for a transform, an ingest or a raw query."""
    question: float = 120.0
    """Seconds for identity and validation: a cold Spark needs ten of them."""
    calls: int = 32
    """Most calls in flight, each of which holds a thread; as many as the service lets wait."""


class RequestCancelled(Fault):
    """Raised inside a handler by ``RequestControl.check`` once the caller no longer waits for the response."""


class RequestControl:
    """Lets a handler report progress of one request and notice its cancellation. Safe to use from any thread."""

    def __init__(self, on_progress: Callable[[], None] = lambda: None) -> None:
        self.cancelled = threading.Event()
        self._on_progress = on_progress
        self._measure: Callable[[], EngineProgress] | None = None
        self._tasks: Callable[[], EngineProgress] = EngineProgress
        self._stage: str | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def progress(self) -> None:
        """Reports real progress to the caller; heartbeats are sent independently of it."""
        self._on_progress()

    @contextmanager
    def measuring(self, measure: Callable[[], EngineProgress]) -> Iterator[None]:
        """Calls ``measure``, in other threads, to report progress while the block lasts."""
        self._measure = measure
        try:
            yield
        finally:
            self._measure = None

    def stage(self, name: str) -> None:
        """Sets the stage (``engines.contract.STAGES``) for the next progress report. Costs nothing."""
        self._stage = name

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Sets the stage while the block lasts, then the one before."""
        before, self._stage = self._stage, name
        try:
            yield
        finally:
            self._stage = before

    def count_tasks(self, counts: Callable[[], EngineProgress]) -> None:
        """Sets ``counts`` as the source of task counts in progress reports, unless ``measured`` gives a better one."""
        self._tasks = counts

    def how_far(self) -> EngineProgress:
        """Returns the current progress, as far as it is known."""
        found = (self._measure or self._tasks)()
        return found if self._stage is None else msgspec.structs.replace(found, stage=self._stage)

    def check(self) -> None:
        """Raises RequestCancelled if the caller no longer waits."""
        if self.cancelled.is_set():
            raise RequestCancelled("the request was cancelled")

    def register_cancel(self, callback: Callable[[], None]) -> None:
        """Registers ``callback``, called once in another thread on cancellation; at once if already cancelled."""
        with self._lock:
            if not self.cancelled.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def finish(self) -> None:
        """Marks the work as done, so that a cancellation has no effect: gRPC reports the end of every call as one."""
        with self._lock:
            self._callbacks = []

    def cancel(self) -> None:
        """Cancels the request. Idempotent."""
        with self._lock:
            self.cancelled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
