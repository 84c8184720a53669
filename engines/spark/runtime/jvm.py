"""Keeps Spark running in an engine process: a query can end a JVM, and the next request starts another.

Made when the process starts and stopped with it. Whoever was at work when a JVM ended is told how it ended, never that
the query is wrong; nothing is tried again here.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from chain.visible import visible
from engines.errors import JVM_LOST, EngineLost
from engines.spark.runtime.session import SessionOptions, start_session, stop_session

_OUT_OF_MEMORY: Final = 3
"""Exit code by ``-XX:+ExitOnOutOfMemoryError``."""
REAPED_SECONDS: Final = 2.0
"""Between a connection that breaks and a process that is seen to have ended."""
_POLL_SECONDS: Final = 0.02
_QUIET_SECONDS: Final = 0.5
"""That no task of a cancelled request is seen before it counts as ended: Spark tells of one a little after it began."""


@dataclass(frozen=True, slots=True)
class _Life:
    """One JVM, and the root session in it."""

    spark: SparkSession
    gateway: Any
    process: subprocess.Popen[bytes]

    @property
    def code(self) -> int | None:
        """Exit code; ``None``: it lives."""
        return self.process.poll()


class Jvm:
    """The JVM of a process. Safe to use from several threads."""

    def __init__(self, options: SessionOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._settled = threading.Condition()
        self._doubts = 0
        """Cancelled requests of which it is not known yet whether their tasks end."""
        self._life: _Life | None = None
        self._is_stopped = False
        self._ended: tuple[_Life, str] | None = None
        """One that was ended on purpose, and why."""

    def session(self) -> SparkSession:
        """Returns the root session; starts a JVM if there is none, or only a dead one. Raises EngineLost.

        After a cancelled request it is first seen whether the JVM is to stay: nobody is given one about to end.
        """
        with self._settled:
            self._settled.wait_for(lambda: not self._doubts)
        with self._lock:
            if self._is_stopped:
                raise EngineLost("the engine is stopping", rule=JVM_LOST)
            if self._life is not None and self._life.code is not None:
                self._bury(self._life)
                self._life = None
            if self._life is None:
                spark = start_session(self._options)
                gateway = spark.sparkContext._gateway
                self._life = _Life(spark, gateway, gateway.proc)
            return self._life.spark

    def why_lost(self, patience: float) -> EngineLost | None:
        """Returns how the JVM ended, if it has; a broken connection may show a moment before the process has exited."""
        life = self._life
        end = time.monotonic() + patience
        while life is not None:
            code = life.code
            if code is not None:
                return self._lost(life, code)
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL_SECONDS)
        return None

    def end_if_busy(self, group: str, patience: float) -> None:
        """Ends the JVM if tasks of a cancelled job group run on after so many seconds, as nothing else stops them.

        Spark asks a task to stop where it takes its next row, and a row can be made into billions inside of one. Every
        core would be lost for as long. Whoever else is at work loses the JVM too. Returns at once.
        """
        with self._settled:
            self._doubts += 1
        threading.Thread(target=self._end_if_busy, args=(group, patience), name="engine-stop", daemon=True).start()

    def _end_if_busy(self, group: str, patience: float) -> None:
        try:
            self._watch(group, patience)
        finally:
            with self._settled:
                self._doubts -= 1
                self._settled.notify_all()

    def _watch(self, group: str, patience: float) -> None:
        life = self._life
        if life is None:
            return
        busy_since = quiet_since = time.monotonic()
        with contextlib.suppress(Py4JError, OSError):  # it is gone already
            tracker = life.spark.sparkContext.statusTracker()
            while (now := time.monotonic()) < quiet_since + _QUIET_SECONDS:
                if not _is_busy(tracker, group):
                    busy_since = now
                elif now < busy_since + patience:
                    quiet_since = now
                else:
                    self._ended = life, "a cancelled query could not be stopped otherwise"
                    life.process.kill()
                    life.process.wait()
                    return
                time.sleep(_POLL_SECONDS)

    def _lost(self, life: _Life, code: int) -> EngineLost:
        if self._ended is not None and self._ended[0] is life:
            return EngineLost(
                f"the JVM was ended, because {self._ended[1]}; the next request gets a new one",
                rule=JVM_LOST,
                hint="ask again",
            )
        return _lost(code)

    def stop(self) -> None:
        """Stops the JVM. Idempotent."""
        with self._lock:
            self._is_stopped = True
            life, self._life = self._life, None
        if life is None:
            return
        if life.code is None:
            stop_session(life.spark)
        else:
            self._bury(life)

    def _bury(self, life: _Life) -> None:
        """Forget a dead JVM: PySpark keeps it in places of its own, and its files stay where it fell."""
        sys.stderr.write(visible(f"{self._lost(life, life.code or 0)}\n"))
        with contextlib.suppress(OSError):
            life.gateway.shutdown()
        if life.process.stdin is not None:
            with contextlib.suppress(OSError):
                life.process.stdin.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        for part in ("spark", "tmp"):
            shutil.rmtree(self._options.scratch / part, ignore_errors=True)


def _is_busy(tracker: Any, group: str) -> bool:
    """Whether tasks of a job group are at work; a job may have failed before they have let go."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
    return any(stage is not None and stage.numActiveTasks for stage in stages)


def _lost(code: int) -> EngineLost:
    if code == _OUT_OF_MEMORY:
        return EngineLost(
            "the JVM ran out of memory and ended; the next request gets a new one",
            rule=JVM_LOST,
            hint="give the engine more heap, or ask for less at once: join on more columns, filter earlier",
        )
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return EngineLost(
        f"the JVM ended ({how}); the next request gets a new one",
        rule=JVM_LOST,
        hint="signal 9 is mostly a lack of memory of the machine; else see the engine's lines in the log",
    )
