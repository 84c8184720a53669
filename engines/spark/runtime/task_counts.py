"""Counts the tasks that Spark has done for a request, and the rows that they read, to report progress to its caller.

Spark keeps these counts for its web page, which is off; they are read by round trips to the JVM. Nothing that an answer
depends on is read here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext

from engines.contract import EngineProgress

_RUNNING: Final = "RUNNING"


class TaskCounts:
    """Counts over the jobs of one job group; ended jobs are read only once. Blocks; use from one thread at a time."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context = context
        self._group = group
        self._ended: dict[int, tuple[int, int, int]] = {}
        """By job id: tasks done, all tasks, rows read."""

    def __call__(self) -> EngineProgress:
        """Returns the current counts. Raises Py4JError and OSError if the JVM, or such a job in it, no
        longer exists."""
        spark: Any = self._context._jsc.sc()
        store, live = spark.statusStore(), []
        for job in self._context.statusTracker().getJobIdsForGroup(self._group):
            # To read a job takes several calls into the JVM, and one that ended changes no more.
            if job not in self._ended:
                counts, is_over = _counts_of(store, job)
                if is_over:
                    self._ended[job] = counts
                else:
                    live.append(counts)
        found = [*self._ended.values(), *live]
        if not found:
            return EngineProgress()
        done, total, rows = map(sum, zip(*found, strict=True))
        return EngineProgress(tasks_done=done, tasks_total=total, rows_read=rows)


def _counts_of(store: Any, job: int) -> tuple[tuple[int, int, int], bool]:
    data = store.job(job)
    stages = [int(each) for each in data.stageIds().mkString(",").split(",") if each]
    rows = sum(store.lastStageAttempt(stage).inputRecords() for stage in stages)
    total = data.numTasks() - data.numSkippedTasks()
    return (data.numCompletedTasks(), total, rows), data.status().toString() != _RUNNING


class LastSample:
    """Returns the newest sample of counts that are slow to read. A call starts the next sample and
    never waits for it."""

    def __init__(self, take: Callable[[], EngineProgress], threads: ThreadPoolExecutor) -> None:
        self._take = take
        self._threads = threads
        self._taking: Future[EngineProgress] | None = None
        self._last = EngineProgress()

    def __call__(self) -> EngineProgress:
        taking = self._taking
        if taking is not None and not taking.done():
            return self._last
        if taking is not None and not taking.cancelled():
            self._last = self._result_of(taking)
        try:
            self._taking = self._threads.submit(self._take)
        except RuntimeError:  # the process is ending, so progress is not reported any more
            self._taking = None
        return self._last

    def _result_of(self, taking: Future[EngineProgress]) -> EngineProgress:
        fault = taking.exception()
        if fault is None:
            return taking.result()
        if not isinstance(fault, Py4JError | OSError):
            raise fault
        # A JVM that is gone ends the request itself, with the reason.
        return self._last
