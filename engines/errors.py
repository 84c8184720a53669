"""Defines the faults between a coordinator and its engine. Faults of a query are answers, never one of these."""

from __future__ import annotations

import importlib.util
from typing import Final

from chain.errors import Environment, Invalid, Refused

JVM_LOST: Final = "engine-jvm"
"""Rule of an EngineLost where only the JVM ended and its process lives on; the next request gets another JVM."""
SESSION: Final = "engine-session"
"""Rule of an EngineLost where Java did not start for a request; the process lives on, and most ingests run."""
ALIVE: Final = "engine-alive"
"""Rule of an EngineLost where the process ended or became unreachable after it had the request."""
NOT_INSTALLED: Final = "engine-missing"
"""Rule of an EngineLost where odfd was installed without Spark: a choice of the operator, and no failure."""
DEADLINE: Final = "engine-deadline"
MEMORY: Final = "engine-memory"
DISK: Final = "engine-disk"
"""Rules of LimitExceeded: which limit the request exceeded."""
TRACE: Final = "-- backtrace:"
"""Line in the status of a call that separates an engine's message about its own fault from the backtrace."""
MAX_BACKTRACE: Final = 16_384
"""Most characters of a backtrace in a message."""
MAX_LINE: Final = 500
"""Most characters shown to a person of an engine's message about its own fault."""


class EngineLost(Environment):
    """The engine cannot be started, died, or does not answer. A retry may find an engine that is already started."""

    @property
    def at_work(self) -> bool:
        """Whether the engine had received the request when it was lost, so that the request may be the cause."""
        return self.rule in (JVM_LOST, ALIVE)


def need_spark() -> None:
    """Raises EngineLost where odfd was installed without Spark."""
    if importlib.util.find_spec("pyspark") is None:
        raise EngineLost(
            "Spark is not installed with this odfd",
            rule=NOT_INSTALLED,
            hint="without it a node ingests, derives and re-executes nothing: apt install "
            "./odfd-engine_VERSION_amd64.deb, of the version of the node, adds it (odfctl docs install has other ways)",
        )


class EngineFault(Environment):
    """The engine's response breaks the contract: a fault of its program, not of the query."""

    def __init__(self, message: str, *, rule: str = "", hint: str = "", place: str = "", backtrace: str = "") -> None:
        super().__init__(message, rule=rule, hint=hint, place=place)
        self.backtrace = backtrace
        """Backtrace that the engine sent, for the log; empty: none."""


class LimitExceeded(Refused):
    """A request exceeded its deadline, memory or size. The same request would meet the same limit again."""


def engine_failed(message: str, backtrace: str = "") -> EngineFault:
    """Makes the error for a fault that an engine reports of itself: one line for people, with a hint at the log."""
    return EngineFault(
        f"the engine failed: {' '.join(message.split())[:MAX_LINE]}",
        rule="engine",
        hint="the daemon's log has the whole trace; please report it",
        backtrace=backtrace,
    )


class BadFrame(Invalid):
    """The bytes are not a message of the engine contract."""
