"""Defines the interface between the daemon and the node it runs: the node's context, and its assembled parts.

``daemon.wiring`` makes the context, asks ``Build`` for an assembly, and runs its parts; services do not know the
daemon.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

from config.load import Loaded
from config.model import Settings
from odfd.obs.events import EventLog
from odfd.obs.log_lines import LogLines
from odfd.obs.meter import NodeMeter
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock
from odfd.runtime.http import Application
from odfd.runtime.http_server import HttpServer
from odfd.runtime.supervision import Child, Logger, Readiness
from odfd.runtime.tasks import TaskBoard


@dataclass(frozen=True, slots=True)
class Context:
    """The context that every service gets: clock, log, events, bus, task board, meters and settings."""

    clock: Clock
    logger: Logger
    events: EventLog
    board: TaskBoard
    version: str
    meter: NodeMeter = field(default_factory=NodeMeter)
    bus: Bus = field(default_factory=Bus)
    lines: LogLines = field(default_factory=LogLines)
    """The last lines of the log."""
    readiness: Readiness = field(default_factory=Readiness)
    servers: list[HttpServer] = field(default_factory=list)
    """All servers of this node; each is added by its maker."""
    settings: Callable[[], Loaded] = lambda: Loaded(Settings(), {})
    """Returns the settings in force, which a reload changes."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """A node that serves requests, and its long-lived parts in the order of their start."""

    api: Application
    """The application that the control socket serves."""
    foundations: tuple[Child, ...] = ()
    """Parts started before any task runs and stopped after the last: engines, the network host."""
    workers: tuple[Child, ...] = ()
    """Parts started when tasks can run, stopped before they are drained: mirrors, schedules, validators."""
    reload: Callable[[Settings], None] = lambda _: None
    """Adopts new settings, given with SIGHUP, as far as they can change while the node runs."""


Build: TypeAlias = Callable[[Settings, Context], AbstractContextManager[Assembly]]
"""Opens the node's stores and parts, and closes them when everything has stopped. Raises Faults."""
