"""Holds what is replaced as a whole while a node runs: its settings, and the networks that it is in."""

from __future__ import annotations

from config.model import Settings
from odfd.network.joined_networks import Network
from odfd.runtime.bus import Bus
from odfd.runtime.clock import Clock
from odfd.runtime.replaceable import Replaceable
from odfd.services.node_events import DatabaseWritten, SliceDamaged
from odfd.store.directory import HomeTerms


class InForce:
    """Made before the state directory is opened, so that all parts can be given it."""

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
