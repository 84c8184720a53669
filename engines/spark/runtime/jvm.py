"""Runs Spark in an engine process from the first request that needs it. A query can end a JVM; the next starts another.

Made when the process starts, without a JVM, and stopped with it. A failed start is an error of the requests that need
one; for a growing pause they get the same error at once, since the cause mostly lasts longer than a request. Requests
that were in work when a JVM ended are told how it ended, never that the query is wrong; nothing is retried here.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from chain.backoff import Backoff
from chain.terminal_text import visible
from engines.contract import SessionState
from engines.errors import JVM_LOST, SESSION, EngineLost
from engines.spark.runtime.session import SessionOptions, start_session, stop_session

_OUT_OF_MEMORY: Final = 3
"""Exit code of a JVM that ran out of memory, with ``-XX:+ExitOnOutOfMemoryError``."""
REAPED_SECONDS: Final = 2.0
"""Most seconds from a broken connection until the process is seen to have ended."""
_POLL_SECONDS: Final = 0.02
AGAIN: Final = Backoff(first=1.0, most=60.0)
"""Pauses after failed starts."""
_QUIET_SECONDS: Final = 0.5
"""Seconds without a task of a cancelled request after which it counts as ended: Spark reports a task
with some delay."""


@dataclass(frozen=True, slots=True)
class _Life:
    """One JVM, and the root session in it."""

    spark: SparkSession
    gateway: Any
    process: subprocess.Popen[bytes]

    @property
    def code(self) -> int | None:
        """Exit code of the process; ``None``: it runs."""
        return self.process.poll()


class Jvm:
    """Owns the JVM of this process, starts it when it is needed, and another if it ended. Safe to use from several
    threads."""

    def __init__(
        self,
        options: SessionOptions,
        on_state: Callable[[str], None] = lambda _: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_state`` is called with each new state (``engines.contract.SESSION_STATES``), in the thread that caused
        it."""
        self._options = options
        self._on_state = on_state
        self._now = now
        self._state = SessionState(state="stopped")
        self._failures = 0
        self._not_before = 0.0
        self._why_not: EngineLost | None = None
        self._lock = threading.Lock()
        self._settled = threading.Condition()
        self._doubts = 0
        """Number of cancelled requests whose tasks may still run."""
        self._life: _Life | None = None
        self._is_stopped = False
        self._ended: tuple[_Life, str] | None = None
        """A JVM that was ended on purpose, and the reason; ``None``: none was."""

    @property
    def on_cluster(self) -> bool:
        """Whether tasks run on other machines."""
        return self._options.cluster is not None

    def session(self) -> SparkSession:
        """Returns the root session; starts a JVM if there is none, or only a dead one. Raises EngineLost.

        After a cancelled request it first waits until it is clear whether the JVM stays: one about to end is not handed
        out.
        """
        with self._settled:
            self._settled.wait_for(lambda: not self._doubts)
        with self._lock:
            if self._is_stopped:
                raise EngineLost("the engine is stopping", rule=JVM_LOST)
            if self._life is not None and self._life.code is not None:
                self._bury(self._life)
                self._life = None
                self._tell("stopped")
            if self._life is None:
                self._life = self._start()
            return self._life.spark

    @property
    def is_started(self) -> bool:
        """Whether a request finds a JVM."""
        life = self._life
        return life is not None and life.code is None

    @property
    def state(self) -> SessionState:
        """The present state; does not wait for a start."""
        found = self._state
        return SessionState(state="stopped") if found.state == "ready" and not self.is_started else found

    def _start(self) -> _Life:
        """Starts a JVM. Raises EngineLost; at once in the pause after a failure."""
        wait = self._not_before - self._now()
        if self._why_not is not None and wait > 0:
            raise EngineLost(self._why_not.message, rule=SESSION, hint=f"next attempt in {wait:.0f} s")
        self._tell("starting")
        try:
            spark = start_session(self._options)
        except BaseException as fault:
            _forget()
            told = fault if isinstance(fault, EngineLost) else EngineLost(f"Java did not start: {fault}")
            self._failures += 1
            self._not_before = self._now() + AGAIN.whole(self._failures)
            self._why_not = EngineLost(told.message, rule=SESSION, hint=told.hint)
            self._tell("failed", str(self._why_not))
            raise self._why_not from fault
        self._failures, self._why_not = 0, None
        self._tell("ready")
        gateway = spark.sparkContext._gateway
        return _Life(spark, gateway, gateway.proc)

    def _tell(self, state: str, message: str = "") -> None:
        self._state = SessionState(state=state, message=message)
        self._on_state(state)

    def why_lost(self, patience: float) -> EngineLost | None:
        """Returns how the JVM ended; ``None`` if it still runs after ``patience`` seconds, as its
        exit may show with a delay."""
        life = self._life
        end = time.monotonic() + patience
        while life is not None:
            code = life.code
            if code is not None:
                return self._loss(life, code)
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL_SECONDS)
        return None

    def end_if_busy(self, group: str, patience: float) -> None:
        """Ends the JVM if tasks of a cancelled job group still run after ``patience`` seconds, as nothing else stops
        them.

        Spark stops a task only when it takes its next row, and a single row can be expanded to billions, which would
        occupy all cores for as long. Other requests in work lose the JVM too. Returns at once.
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

    def _loss(self, life: _Life, code: int) -> EngineLost:
        if self._ended is not None and self._ended[0] is life:
            return EngineLost(
                f"the JVM was ended, because {self._ended[1]}; the next request gets a new one",
                rule=JVM_LOST,
                hint="ask again",
            )
        return _loss_by_code(code)

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
        """Forgets a dead JVM, which PySpark keeps in places of its own, and removes its files."""
        sys.stderr.write(visible(f"{self._loss(life, life.code or 0)}\n"))
        with contextlib.suppress(OSError):
            life.gateway.shutdown()
        if life.process.stdin is not None:
            with contextlib.suppress(OSError):
                life.process.stdin.close()
        _forget()
        for part in ("spark", "tmp"):
            shutil.rmtree(self._options.scratch / part, ignore_errors=True)


def _forget() -> None:
    """Makes PySpark forget its JVM, which it would use again; ends it if it runs, as after a start that failed late."""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _is_busy(tracker: Any, group: str) -> bool:
    """Whether tasks of a job group still run; a job may have failed before its tasks have ended."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
    return any(stage is not None and stage.numActiveTasks for stage in stages)


def _loss_by_code(code: int) -> EngineLost:
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
