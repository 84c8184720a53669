"""Runs the daemon's tree of parts: starts them in order, handles signals, notifies systemd, and stops them in order.

SIGTERM and SIGINT stop and drain; a second one stops at once. SIGHUP reloads. This module does not know the parts.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import trio

from odfd.runtime.clock import Clock
from odfd.runtime.loop_guard import LoopGuard
from odfd.runtime.supervision import Child, Logger, Readiness, run_tree
from odfd.runtime.systemd import Notifier

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
