"""Defines the faults between a coordinator and its engine; a query's own faults are answers, never one of these."""

from __future__ import annotations

import importlib.util
from typing import Final

from chain.errors import Environment, Invalid, Refused

JVM_LOST: Final = "engine-jvm"
"""Rule of an EngineLost whose process lives on: only its JVM ended, and the next request gets another."""
ALIVE: Final = "engine-alive"
"""Rule of an EngineLost whose process ended, or cannot be reached any more."""
NOT_INSTALLED: Final = "engine-missing"
"""Rule of an EngineLost where odfd was installed without what the engine is made of: a choice, and no failure."""
DEADLINE: Final = "engine-deadline"
MEMORY: Final = "engine-memory"
DISK: Final = "engine-disk"
"""Rules of LimitExceeded: what a request had too much of."""
TRACE: Final = "-- backtrace:"
"""Line between what an engine says of a fault of its own and the backtrace, in the status of a call."""
MAX_BACKTRACE: Final = 16_384
"""Characters of a backtrace that travel."""
MAX_LINE: Final = 500
"""Characters that a person is shown of what an engine says of a fault of its own."""


class EngineLost(Environment):
    """The engine cannot be started, died, or does not answer. A retry may find it warm."""

    @property
    def at_work(self) -> bool:
        """Whether it had the request when it was lost, so that the request may be the cause; else it never got it."""
        return self.rule in (JVM_LOST, ALIVE)


def need_spark() -> None:
    """Raises EngineLost where odfd was installed without Spark."""
    if importlib.util.find_spec("pyspark") is None:
        raise EngineLost(
            "Spark is not installed with this odfd",
            rule=NOT_INSTALLED,
            hint="without it a node derives nothing and runs nothing again; docs/install.md says how to add it",
        )


class EngineFault(Environment):
    """The engine's response breaks the contract: a fault of its program, not of the query."""

    def __init__(self, message: str, *, rule: str = "", hint: str = "", place: str = "", backtrace: str = "") -> None:
        super().__init__(message, rule=rule, hint=hint, place=place)
        self.backtrace = backtrace
        """What the engine told of it, for the log; empty: nothing."""


class LimitExceeded(Refused):
    """A request exceeded its deadline, its memory or its size. The same request meets the same limit."""


def engine_failed(message: str, backtrace: str = "") -> EngineFault:
    """Makes the error for a fault that an engine reports of itself: one line for people, and where the log is."""
    return EngineFault(
        f"the engine failed: {' '.join(message.split())[:MAX_LINE]}", rule="engine",
        hint="the daemon's log has the whole trace; please report it", backtrace=backtrace,
    )  # fmt: skip


class BadFrame(Invalid):
    """Bytes that are not a message of the engine contract."""
