"""Watches the event loop: which task held it longest between two waits, in time of this thread's processor."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

MOST: Final = 0.020
"""Seconds of the processor that one step of a task may take. Of the wall it may take more: others share the machine."""


class Watchdog(trio.abc.Instrument):
    """The longest steps, but those of the tasks in ``ours``, which mount the attack."""

    def __init__(self, ours: set[trio.lowlevel.Task]) -> None:
        self._ours = ours
        self._began = time.thread_time()
        self.steps = 0
        self.held: list[tuple[float, str]] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        self.steps += 1
        if took > MOST and task not in self._ours:
            self.held.append((round(took, 3), task.name))


@contextmanager
def watched() -> Iterator[Watchdog]:
    """Raises AssertionError when a task held the loop for longer than ``MOST``. Garbage collection is no task's."""
    dog = Watchdog({trio.lowlevel.current_task()})
    gc.collect()
    gc.disable()
    trio.lowlevel.add_instrument(dog)
    try:
        yield dog
    finally:
        trio.lowlevel.remove_instrument(dog)
        gc.enable()
    assert dog.steps
    assert not dog.held, dog.held


class Turns:
    """Parts of a piece of work that runs outside of a loop; each may take as much as a step."""

    def __init__(self) -> None:
        self.longest, self._began = 0.0, time.thread_time()

    def turn(self) -> None:
        now = time.thread_time()
        self.longest, self._began = max(self.longest, now - self._began), now


@contextmanager
def held(most: float) -> Iterator[Turns]:
    """Raises AssertionError when the block, or a turn of it, took more than ``most`` seconds of the processor."""
    gc.collect()
    gc.disable()
    turns = Turns()
    try:
        yield turns
    finally:
        gc.enable()
    turns.turn()
    assert turns.longest <= most, turns.longest
