"""Tells the features of a node of what happened in another one that does not know them.

What happened is a value, and its class is its topic. Nothing is kept or repeated: who subscribes later is told of what
comes later. A feature that needs an answer gets the other one as an argument in its constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class Bus:
    """The bus of one node. Features subscribe while they are made, and anything is published afterwards."""

    def __init__(self) -> None:
        self._calls: dict[type, list[Callable[[Any], object]]] = {}
        self._token: trio.lowlevel.TrioToken | None = None

    def subscribe(self, call: Callable[[T], object], *topics: type[T], soon: bool = False) -> None:
        """Lets a function be called with each value of these classes, not of classes derived from them.

        ``soon``: in the event loop, whatever thread publishes, after the publisher has gone on.
        """
        for topic in topics:
            self._calls.setdefault(topic, []).append(partial(self.call_soon, call) if soon else call)

    def publish(self, value: object) -> None:
        """Calls the subscribers one after the other, in the order in which they subscribed, in this thread.

        A fault of one is raised here, and those after it are not called: it is a bug, as a subscriber that may fail has
        a loop of its own, which it wakes.
        """
        for call in self._calls.get(type(value), ()):
            call(value)

    def open(self) -> None:
        """Begins calls in the event loop in which this is called. What was to be called there before is forgotten."""
        self._token = trio.lowlevel.current_trio_token()

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Calls a function in the event loop, from any thread, and does not wait for it.

        Does nothing before the node runs, since each loop looks at everything when it begins.
        """
        if self._token is not None:
            self._token.run_sync_soon(call, *args)
