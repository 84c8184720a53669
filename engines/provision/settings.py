"""Declares the configuration of an engine that is kept ready: program, sandbox, identity, when
processes start and stop."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from chain.backoff import Backoff
from engines.contract import EngineIdentity
from engines.request_control import CallLimits
from engines.sandbox.base import Mount, Sandbox
from engines.sandbox.cgroups import Groups

Within = Callable[[], AbstractAsyncContextManager[object, bool | None]]
"""A context around the wait for an engine to start, in which its caller may do other work."""
OnEvent = Callable[[str, Mapping[str, object]], None]
"""Receives events: a name such as ``engine-started`` and its facts. Called in the event loop; must not block."""
ENGINE_FAILED: Final = "engine-failed"
"""Event: an engine reported a fault of its own. Its ``trace`` has lines."""
Program = Callable[[str, PurePosixPath], tuple[str, ...]]
"""Returns the engine's command line, given its address and a folder of its own, both as the engine sees them."""


class Isolation(enum.Enum):
    """States which requests may share an engine process."""

    SHARED = "shared"
    """One process for all requests."""
    DATASET = "dataset"
    """One process per dataset. Requests that concern none (is this query a transform?) share another."""


class StartStatus(Protocol):
    """The part of Trio's task status that is used here."""

    def started(self) -> None: ...


AGAIN: Final = Backoff(first=1.0, most=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmthLimits:
    """Limits on when engine processes start and stop; all in seconds."""

    start: float = 120.0
    """Time from fork to the ready line: a cold JVM on a busy laptop takes twenty seconds."""
    idle: float = 600.0
    """Time without a request after which the process is stopped; it holds half a gigabyte."""
    grace: float = 3.0
    """Time for the process to end by itself when it is stopped."""
    silence: float = 30.0
    """Time without a request after which the engine must first show that it still answers."""
    pulse: float = 10.0
    """Time for that answer."""
    cancelled: float = 10.0
    """Time for a request to end whose caller has gone; then its process ends, as a thread cannot be stopped."""
    backoff: Backoff = AGAIN
    """Pauses after failures to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    """The configuration of one engine that is kept ready."""

    name: str
    program: Program
    sandbox: Sandbox
    identity: EngineIdentity
    scratch: Path
    """A folder of our own, emptied at start; best on the file system of the objects, so that inputs are hard links."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    """Further mounts, beyond the runtime and the engine's own folders."""
    memory: int | None = None
    """Most bytes of private memory of each of its processes."""
    total: int | None = None
    """Most bytes of memory of all of them together."""
    processes: int | None = None
    """Most processes inside, threads included."""
    groups: Groups | None = None
    """Control groups that enforce the last two; ``None``: they cannot be made."""
    isolation: Isolation = Isolation.SHARED
    most: int = 1
    """Most engine processes at once; those that callers have for themselves are not counted."""
    limits: WarmthLimits = field(default_factory=WarmthLimits)
    calls: CallLimits = field(default_factory=CallLimits)
    while_starting: Within = nullcontext
