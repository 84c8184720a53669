"""Supervises a tree of long-lived children: starts them in order, each once the one before is ready; stops in reverse.

A child that fails is started again after a growing pause if it has a ``Restart``, and else ends the whole tree, in
order and with an error. A child that must stop is first asked (``Life.stopping``), and cancelled when its grace period
is over. The tree does not know what children do; it lives as long as the daemon.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from chain.backoff import Backoff
from chain.errors import Environment, Fault
from chain.wording import plural
from odfd.errors import Bug, sole_fault

STEADY_SECONDS: Final = 60.0
"""Seconds that a restarted child must run until its last fault is no longer held against it."""


@dataclass(slots=True)
class Health:
    """The health of one child: kept by its tree, read by whoever reports on the node. On the loop's clock."""

    fault: Fault | None = None
    """The last failure."""
    restarts: int = 0
    steady: float = STEADY_SECONDS
    up_since: float | None = None
    """When the present run became ready; ``None``: it did not yet."""

    def trouble(self) -> Fault | None:
        """Returns the last failure while the child is down, or has not run for ``steady`` seconds since."""
        is_up = self.up_since is not None and trio.current_time() - self.up_since >= self.steady
        return None if is_up else self.fault

    def __str__(self) -> str:
        """Tells the trouble, if there is one."""
        fault = self.trouble()
        if fault is None:
            return ""
        state = "is started again and again" if self.up_since is None else "runs again"
        return f"{state} ({plural(self.restarts, 'restart')}): {fault}"


@dataclass(slots=True)
class Readiness:
    """The readiness of one daemon, set by its tree of parts."""

    started: bool = False
    stopping: bool = False
    parts: dict[str, Health] = field(default_factory=dict)
    """The health of each part that was started, by name, in order."""
    dependencies: dict[str, str] = field(default_factory=dict)
    """What the node depends on beyond itself, by name, with what was wrong when it was tried last; empty: nothing."""

    @property
    def is_ready(self) -> bool:
        return self.started and not self.stopping

    def troubles(self) -> dict[str, Health]:
        """Returns the parts that failed and do not run steadily again."""
        return {name: health for name, health in self.parts.items() if health.trouble() is not None}

    def faults(self) -> dict[str, str]:
        """Tells what is wrong with parts and dependencies, by name."""
        return {name: str(health) for name, health in self.troubles().items()} | {
            name: f"does not answer: {text}" for name, text in self.dependencies.items() if text
        }


AGAIN: Final = Backoff(first=0.5, most=30.0)


@dataclass(frozen=True, slots=True)
class Restart:
    """Pauses between restarts of a failed child; a run of ``steady`` seconds resets them."""

    backoff: Backoff = AGAIN
    steady: float = STEADY_SECONDS
    from_start: bool = True
    """Whether a child that was never ready is restarted too; else its failure is raised at once."""


class Life:
    """The interface of a child to its tree: reports readiness, and receives the stop signal."""

    def __init__(self, health: Health | None = None) -> None:
        self.health = health or Health()
        self.stopping = trio.Event()
        self._ready = trio.Event()

    def ready(self) -> None:
        """Reports readiness, so that dependent children start. Idempotent."""
        self._ready.set()
        if self.health.up_since is None:
            self.health.up_since = trio.current_time()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    @property
    def was_ready(self) -> bool:
        return self._ready.is_set()


@dataclass(frozen=True, slots=True)
class Child:
    """A part; ``run`` must call ``Life.ready`` once, and return soon after ``Life.stopping``, or else is cancelled."""

    name: str
    run: Callable[[Life], Awaitable[None]]
    restart: Restart | None = None
    start_seconds: float = 60.0
    """Most seconds until the child is ready; longer counts as a failed start."""
    grace_seconds: float = 10.0
    """Seconds that the child has to end by itself when asked."""


class Logger(Protocol):
    """The log of a tree of children; a structlog logger fits."""

    def debug(self, event: str, **values: object) -> object: ...

    def info(self, event: str, **values: object) -> object: ...

    def error(self, event: str, **values: object) -> object: ...


@dataclass(slots=True)
class _Running:
    child: Child
    life: Life
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    finished: trio.Event = field(default_factory=trio.Event)
    failure: Exception | None = None


async def run_tree(
    children: Sequence[Child],
    stop: trio.Event,
    logger: Logger,
    jitter: Callable[[], float],
    on_ready: Callable[[], None] = lambda: None,
    readiness: Readiness | None = None,
) -> None:
    """Runs until ``stop`` is set or a child without ``Restart`` fails; raises that child's failure.

    The health of each child is in ``readiness`` from its start on.

    ``jitter()`` gives a number in [0, 1): pauses are scaled by 0.5 to 1.5, lest many nodes reconnect at one moment.
    Raises Environment when a child does not become ready in time.
    """
    started: list[_Running] = []
    try:
        async with trio.open_nursery() as nursery:
            try:
                for child in children:
                    running = _Running(child, Life(Health(steady=(child.restart or Restart()).steady)))
                    if readiness is not None:
                        readiness.parts[child.name] = running.life.health
                    started.append(running)
                    nursery.start_soon(_keep, running, stop, logger, jitter)
                    await _until_ready(running, stop)
                    if stop.is_set():
                        break
                    logger.info("started", child=child.name)
                else:
                    on_ready()
                    await stop.wait()
            finally:
                # Also when the whole tree is cancelled: parts end in reverse, each in the time that it has.
                with trio.CancelScope(shield=True):
                    for running in reversed(started):
                        await _end(running, logger)
    finally:
        failed = next((running.failure for running in started if running.failure), None)
    if failed is not None:
        raise failed


async def _until_ready(running: _Running, stop: trio.Event) -> None:
    """Returns when the child is ready, or has failed for good, or the tree must stop."""
    with trio.move_on_after(running.child.start_seconds) as waiting:
        async with trio.open_nursery() as race:

            async def first(wait: Callable[[], Awaitable[None]]) -> None:
                await wait()
                race.cancel_scope.cancel()

            for wait in (running.life.wait_ready, running.finished.wait, stop.wait):
                race.start_soon(first, wait)
    if waiting.cancelled_caught:
        running.failure = Environment(
            f"{running.child.name} was not ready after {running.child.start_seconds:g} s",
            rule="start-deadline",
            hint="odfctl doctor shows what it may be waiting for; the log says how far it came",
        )
        stop.set()


async def _end(running: _Running, logger: Logger) -> None:
    if running.finished.is_set():
        return
    running.life.stopping.set()
    with trio.move_on_after(running.child.grace_seconds):
        await running.finished.wait()
    if not running.finished.is_set():
        logger.error("cancelled", child=running.child.name, grace_seconds=running.child.grace_seconds)
        running.scope.cancel()
        await running.finished.wait()
    logger.info("stopped", child=running.child.name)


async def _keep(running: _Running, stop: trio.Event, logger: Logger, jitter: Callable[[], float]) -> None:
    """Runs the child, restarting it as allowed. Sets ``finished`` at the end, and ``stop`` if it failed for good."""
    child, life = running.child, running.life
    failures = 0
    try:
        with running.scope:
            while True:
                began = trio.current_time()
                failure = await _once(child, life)
                if failure is None or child.restart is None or not (child.restart.from_start or life.was_ready):
                    running.failure = running.failure or failure
                    break
                failures = 1 if trio.current_time() - began >= child.restart.steady else failures + 1
                life.health.fault, life.health.up_since = _fault(failure), None
                life.health.restarts += 1
                wait = child.restart.backoff.whole(failures) * (0.5 + jitter())
                logger.error("restarting", child=child.name, after_seconds=round(wait, 2), **_why(failure))
                with trio.move_on_after(wait):
                    await life.stopping.wait()
                    break
    finally:
        running.finished.set()
        if running.failure is not None:
            logger.error("failed", child=child.name, **_why(running.failure))
            stop.set()


def _fault(failure: Exception) -> Fault:
    """Returns a failure as people are told of it; the log has the trace of one that is a bug."""
    fault = sole_fault(failure)
    if fault is not None and not isinstance(fault, Bug):
        return fault
    return Bug(
        f"{type(failure).__name__}: {failure}", rule="supervision", hint="odfctl logs --level error has the trace"
    )


def _why(failure: Exception) -> dict[str, object]:
    """Returns what to log of a failure: message and rule of a fault, the traceback of any other error."""
    fault = sole_fault(failure)
    if fault is None or isinstance(fault, Bug):
        return {"exc_info": failure}
    return {"fault": str(fault), "rule": fault.rule}


async def _once(child: Child, life: Life) -> Exception | None:
    """Runs the child once; returns the failure, or ``None`` after a requested end. Other ends are failures."""
    try:
        await child.run(life)
    except Exception as error:  # noqa: BLE001  the supervisor is where a child's failure ends
        return error
    if life.stopping.is_set():
        return None
    return Bug(f"{child.name} ended unasked", rule="supervision")
