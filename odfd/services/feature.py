"""Defines what a feature is to the node: what it answers, runs, controls and measures; and the ground of all features.

A feature is made in ``feature.py`` of its package, from the ground and from features before it in the list of
``odfd.node.features``. What it tells those after it goes over the bus (``odfd.services.node_events``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from config.model import Settings
from odfd.control.assembly import Context
from odfd.network.joined_networks import Network
from odfd.resources.controller import Controller
from odfd.resources.resource import Resource
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock
from odfd.runtime.replaceable import Replaceable
from odfd.runtime.supervision import Child, Life, Restart
from odfd.services.node_events import DatabaseWritten, SliceDamaged
from odfd.store.directory import HomeTerms, StateDirectory

Reading: TypeAlias = tuple[str, float, Mapping[str, str]]
"""The name of a metric, its value, and its labels."""
UNLABELLED: Final[Mapping[str, str]] = {}
ListResources: TypeAlias = Callable[[], Awaitable[Sequence[Resource]]]


class InForce:
    """Holds what is replaced as a whole while a node runs: its settings, and the networks that it is in.

    Made before the state directory is opened, so that all parts can be given it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = Replaceable(settings)
        self.networks: Replaceable[tuple[Network, ...]] = Replaceable(())

    def home_terms(self, clock: Clock, bus: Bus) -> HomeTerms:
        return HomeTerms(
            clock=clock,
            spool_bytes=lambda: self.settings().limits.spool_bytes,
            publishes_all=lambda: self.settings().policy.publish.datasets,
            is_divided=lambda: len(self.networks()) > 1,
            written=lambda: bus.publish(DatabaseWritten()),
            found_damaged=lambda dataset, spot: bus.publish(SliceDamaged(dataset, spot)),
        )


class Ground:
    """Holds what all features are made of: the state directory, the context of the process, and settings in force."""

    def __init__(self, home: StateDirectory, in_force: InForce, context: Context) -> None:
        self.home, self.in_force, self.context = home, in_force, context
        self.bus = context.bus

    @property
    def settings(self) -> Settings:
        """The settings in force; at another time there may be others."""
        return self.in_force.settings()


class Feature:
    """One feature of a node. All of it is there when it is made, and nothing of it runs yet."""

    operations: Sequence[Any] = ()
    """Services with operations, by which ``odfd.api`` finds them."""
    children: Sequence[Child] = ()
    """What runs in the background; ``odfd.node.assembly`` says in which order."""
    controllers: Sequence[Controller] = ()
    undeclared: Mapping[str, ListResources] = {}
    """By type: lists resources that nobody declared."""

    def gauges(self) -> Iterable[Reading]:
        """Reads what it measures, in the event loop; the cost does not grow with what is stored."""
        return ()


def worker(name: str, run: Callable[[Life], Awaitable[None]]) -> Child:
    """Returns a child that is started again when it fails."""
    return Child(name, run, Restart())


def listener(name: str, run: Callable[[Life], Awaitable[None]]) -> Child:
    """Returns one that listens: a port that is taken at the start is a mistake of the settings, and ends the node."""
    return Child(name, run, Restart(from_start=False))


def queue(name: str, length: int, capacity: int | None = None) -> Iterator[Reading]:
    yield "odfd_queue_length", length, {"queue": name}
    if capacity is not None:
        yield "odfd_queue_capacity", capacity, {"queue": name}


def cache(name: str, count: int, capacity: int | None = None) -> Iterator[Reading]:
    yield "odfd_cache_entries", count, {"cache": name}
    if capacity is not None:
        yield "odfd_cache_capacity", capacity, {"cache": name}
