"""Connects the parts of the daemon: settings, log, events, tasks, the node, and the control server.

The tree of parts starts them in order, handles signals, notifies systemd, and stops them in order. SIGTERM and SIGINT
stop and drain; a second one stops at once. SIGHUP reloads."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from chain.errors import Fault
from config.load import Loaded
from config.model import Settings
from config.schema import ConfigError, changed
from engines.sandbox.cgroups import limit_node
from odfd import __version__
from odfd.control import endpoint
from odfd.control.assembly import Assembly, Build, Context
from odfd.control.endpoint import ControlServer, Gate, group_id
from odfd.obs import log
from odfd.obs.events import Event, EventLog
from odfd.obs.meter import NodeMeter, counted_by
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock, SystemClock
from odfd.runtime.loop_guard import LoopGuard
from odfd.runtime.spans import Tracer, trace_by
from odfd.runtime.supervision import Child, Logger, Readiness, Restart, run_tree
from odfd.runtime.systemd import Notifier, take_sockets
from odfd.runtime.tasks import Bounds, Task, TaskBoard

if TYPE_CHECKING:
    from odfd.obs.span_exporter import SpanExporter


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """The services of the process that the tree uses."""

    notifier: Notifier
    clock: Clock
    logger: Logger
    jitter: Callable[[], float]
    reload: Callable[[], str]
    """Applies new settings; returns the outcome in a few words. Raises nothing for bad settings."""
    readiness: Readiness = field(default_factory=Readiness)


async def run_daemon(children: Sequence[Child], around: DaemonContext, ready: Callable[[], str]) -> None:
    """Runs until a stop signal, or raises the final failure of a part. ``ready()`` is called when all parts run."""
    stop = trio.Event()

    def on_ready() -> None:
        text = ready()
        around.readiness.started = True
        around.notifier.ready(text)
        around.logger.info("ready", status=text)

    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, stop, around, nursery.cancel_scope)
            nursery.start_soon(LoopGuard(around.logger).run)
            if around.notifier.watchdog_seconds:
                nursery.start_soon(_stay_alive, around.notifier)
            await run_tree(children, stop, around.logger, around.jitter, on_ready, around.readiness)
            nursery.cancel_scope.cancel()
    around.logger.info("ended")


async def _obey(
    signals: AsyncIterator[int], stop: trio.Event, around: DaemonContext, everything: trio.CancelScope
) -> None:
    async for number in signals:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            around.notifier.reloading(around.clock.monotonic())
            text = around.reload()
            around.logger.info("reloaded", outcome=text)
            around.notifier.ready(text)
        elif not stop.is_set():
            around.readiness.stopping = True
            around.logger.info("stopping", signal=name)
            around.notifier.stopping(f"draining after {name}")
            stop.set()
        else:
            around.logger.error("stopping at once", signal=name)
            everything.cancel()


async def _stay_alive(notifier: Notifier) -> None:
    """Notifies from the event loop itself, so that the service manager acts when the loop is stuck."""
    while True:
        notifier.alive()
        await trio.sleep(notifier.watchdog_seconds / 2)


CONTROL_FD = "control"
"""FileDescriptorName of the socket unit."""


@dataclass(slots=True)
class SettingsInForce:
    """Holds the current settings, which a reload replaces."""

    loaded: Loaded


async def run(
    loaded: Loaded, load_again: Callable[[], Loaded], build: Build, environ: MutableMapping[str, str]
) -> None:
    """Runs the daemon, from settings to its end. Raises the Fault that prevents the start, or that ended it."""
    settings = loaded.settings
    logger: Logger = structlog.get_logger()
    logger.info("starting", version=__version__, pid=os.getpid(), settings=str(loaded.file or "defaults"))
    if settings.node.memory_mib and (unbound := limit_node(settings.node.memory_mib << 20)):
        logger.info("memory is not bounded by the system", why=unbound)
    clock = SystemClock()
    meter = NodeMeter()
    log.count_by(lambda level: meter.count("odfd_log_lines_total", level=level))
    events = EventLog(clock, settings.limits.events_kept, _event_hearer(meter))
    bus = Bus()
    board = _board(settings, clock, logger, (events, meter), bus)
    in_force = SettingsInForce(loaded)
    context = Context(clock, logger, events, board, __version__, meter, bus, settings=lambda: in_force.loaded)
    log.keep_in(context.lines)
    exporter = _exporter(settings, clock, meter, logger)
    with _listening(settings, environ) as listener, build(settings, context) as assembly:
        gate = Gate(os.geteuid(), group_id(settings.control.group))
        server = ControlServer(listener, assembly.api, gate, logger)
        context.servers.append(server.server)
        children = [
            *([] if exporter is None else [Child("traces", exporter.run, Restart())]),
            *assembly.foundations,
            Child("tasks", board.run, grace_seconds=settings.node.drain_seconds),
            *assembly.workers,
            Child("control", server.run),
        ]
        around = DaemonContext(
            notifier=Notifier(environ),
            clock=clock,
            logger=logger,
            jitter=random.SystemRandom().random,
            reload=lambda: _reload(load_again, in_force, assembly, logger),
            readiness=context.readiness,
        )
        await run_daemon(children, around, lambda: f"listening on {settings.control.socket}")


def _event_hearer(meter: NodeMeter) -> Callable[[Event], None]:
    """Returns a callback that counts events, and logs them at level debug as the part ``events``."""
    count, logger = counted_by(meter), structlog.get_logger(part="events")

    def note(event: Event) -> None:
        count(event)
        logger.debug(
            event.kind, subject=event.subject, message=event.message, **{"data": event.data} if event.data else {}
        )

    return note


def _exporter(settings: Settings, clock: SystemClock, meter: NodeMeter, logger: Logger) -> SpanExporter | None:
    """Makes the tracer and its exporter; ``None`` without an endpoint, for which nothing is imported then."""
    if not settings.traces.endpoint:
        return None
    from odfd.obs.span_exporter import SpanExporter

    exporter = SpanExporter(settings.traces.endpoint, __version__, meter, logger)
    trace_by(Tracer(clock, exporter.take))
    return exporter


def _board(
    settings: Settings, clock: SystemClock, logger: Logger, hearers: tuple[EventLog, NodeMeter], bus: Bus
) -> TaskBoard:
    events, meter = hearers

    def note_end(task: Task) -> None:
        message = str(task.fault) if task.fault else ""
        meter.count_end(task)
        events.emit(
            f"task.{task.state.value}", task.target or task.id, message, about=task.about, id=task.id, kind=task.kind
        )

    bounds = Bounds(running=settings.limits.tasks_running, kept=settings.limits.tasks_kept)
    return TaskBoard(clock, lambda: secrets.token_hex(4), logger, bounds, note_end, bus)


@contextmanager
def _listening(settings: Settings, environ: MutableMapping[str, str]) -> Iterator[socket.socket]:
    """Yields the socket that the service manager passes, or one of our own, bound before anything slow begins."""
    given = take_sockets(environ)
    if given:
        inherited = given.pop(CONTROL_FD, None) or given.pop(next(iter(given)))
        for unexpected in given.values():
            unexpected.close()
        with inherited:
            yield inherited
        return
    path = Path(settings.control.socket)
    listener = endpoint.bind(path, group_id(settings.control.group))
    try:
        yield listener
    finally:
        endpoint.release(listener, path)


def _reload(load_again: Callable[[], Loaded], in_force: SettingsInForce, assembly: Assembly, logger: Logger) -> str:
    try:
        loaded = load_again()
    except ConfigError as error:
        for problem in error.problems:
            logger.error("settings not taken over", problem=str(problem))
        return f"settings not taken over: {error.problems[0]}"
    try:
        assembly.reload(loaded.settings)
    except Fault as fault:
        logger.error("settings not taken over", problem=str(fault), rule=fault.rule)
        return f"settings not taken over: {fault}"
    names = changed(in_force.loaded.settings, loaded.settings)
    logger.info("settings changed", names=", ".join(names) or "none")
    in_force.loaded = loaded
    log.configure_by(loaded.settings.node)
    return "settings taken over"
