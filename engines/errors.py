"""What can go wrong between a coordinator and its engine; a query's own faults are answers, never one of these."""

from __future__ import annotations

from typing import Final

from chain.errors import Environment, Invalid, Refused

JVM_LOST: Final = "engine-jvm"
"""Rule of an EngineLost whose process lives on: only its JVM ended, and the next request gets another."""
DEADLINE: Final = "engine-deadline"
MEMORY: Final = "engine-memory"
DISK: Final = "engine-disk"
"""Rules of LimitExceeded: what a request had too much of."""


class EngineLost(Environment):
    """The engine cannot be started, died, or does not answer. Another try may find it warm again."""


class EngineFault(Environment):
    """The engine answered, and its answer breaks the contract: a fault of its program, not of the query."""


class LimitExceeded(Refused):
    """A request went over its deadline, its memory or its size. The same request meets the same limit."""


class BadFrame(Invalid):
    """Bytes that are not a message of the engine contract."""
