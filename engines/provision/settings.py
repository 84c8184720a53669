"""Declares the configuration of a warm engine: program, sandbox, identity, and when processes start and stop."""

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
"""Told what happens: a name such as ``engine-started`` and its facts. Called in the event loop; must not block."""
ENGINE_FAILED: Final = "engine-failed"
"""Event: an engine told of a fault of its own. Its ``trace`` are lines."""
Program = Callable[[str, PurePosixPath], tuple[str, ...]]
"""The engine's command line for an address to listen at and a folder of its own, both as it sees them."""


class Isolation(enum.Enum):
    SHARED = "shared"
    """Shared by all tenants."""
    DATASET = "dataset"
    """Those about one dataset. What concerns none (is this query a transform?) has a process of its own."""


class Started(Protocol):
    """The used part of Trio's task status."""

    def started(self) -> None: ...


AGAIN: Final = Backoff(first=1.0, most=60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmthLimits:
    """Limits on when engine processes start and stop; all in seconds."""

    start: float = 120.0
    """From fork to the ready line: a cold JVM on a busy laptop takes twenty."""
    idle: float = 600.0
    """Without a request before the process is stopped; it holds half a gigabyte."""
    grace: float = 3.0
    """For leaving by itself at the end."""
    silence: float = 30.0
    """Without a request before the next one asks first whether the engine still answers."""
    pulse: float = 10.0
    """For that answer."""
    backoff: Backoff = AGAIN
    """After failures to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSettings:
    name: str
    program: Program
    sandbox: Sandbox
    identity: EngineIdentity
    scratch: Path
    """A folder of our own, emptied at start; best on the file system of the objects: inputs are then hard links."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    """Beyond the runtime and the engine's own folders."""
    memory: int | None = None
    """Bytes of private memory for each of its processes."""
    total: int | None = None
    """Bytes of memory for all of them together."""
    processes: int | None = None
    """How many there may be, threads included."""
    groups: Groups | None = None
    """Control groups that enforce the last two, if they can be made."""
    isolation: Isolation = Isolation.SHARED
    most: int = 1
    """Processes at once; those of a caller's own come on top."""
    limits: WarmthLimits = field(default_factory=WarmthLimits)
    calls: CallLimits = field(default_factory=CallLimits)
    while_starting: Within = nullcontext
