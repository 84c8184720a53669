"""Holds the drivers of replication in all networks that a node has joined.

A peer is asked within a network that both nodes are in. A dataset limited to some networks is requested in those only,
so that peers elsewhere do not learn of it. While no network is joined, each request raises Remote with the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec
import trio
from msgspec.structs import asdict

from chain.errors import Remote
from chain.ids import DatasetId
from p2p.driver.node_reach import NodeReach
from p2p.driver.replication import ReplicationDriver
from p2p.ports import (
    PeerId,
    PeerView,
    ReplicationFigures,
    Topic,
)
from p2p.wire.invite import Redemption

_SUMMED: Final = tuple(name for name in ReplicationFigures.__struct_fields__ if name != "connected")


class NetworkDrivers:
    """The drivers of one node, by network. ``Membership`` adds and removes them."""

    def __init__(self, scope: Callable[[DatasetId], Collection[str] | None]) -> None:
        """``scope``: returns the networks that a dataset is limited to; called in a worker thread."""
        self._scope = scope
        self._drivers: dict[str, ReplicationDriver] = {}
        """Drivers by network, in the order of joining."""
        self._reach: NodeReach | None = None
        """Reachability of the open host; ``None`` without one."""

    def _first_joined(self) -> ReplicationDriver:
        """Returns the driver of the network that was joined first. Raises Remote without any."""
        if not self._drivers:
            raise Remote(
                "this node has joined no network",
                rule="no-network",
                hint="odfctl network join NAME --bootstrap MULTIADDR",
            )
        return next(iter(self._drivers.values()))

    async def in_scope(self, dataset: DatasetId | None = None) -> list[ReplicationDriver]:
        """Returns the drivers of the networks in which a dataset may be mentioned; all drivers for ``None``."""
        if dataset is None or len(self._drivers) < 2:
            return list(self._drivers.values())
        scope = await trio.to_thread.run_sync(self._scope, dataset)
        return [driver for name, driver in self._drivers.items() if scope is None or name in scope]

    async def choose(self, peers: Collection[PeerId], dataset: DatasetId | None = None) -> ReplicationDriver:
        """Returns the driver in which most of these peers are. Raises Remote if none may hear of the dataset."""
        first = self._first_joined()
        if len(self._drivers) < 2:
            return first
        asked = set(peers)
        found = [(len(asked.intersection(each.list_connected())), each) for each in await self.in_scope(dataset)]
        most = max((count for count, _ in found), default=0)
        if not most and dataset is not None:
            raise Remote(
                f"{dataset.short} is limited to networks to which these peers do not belong",
                rule="other-network",
                hint="odfctl describe shows where it is; odfctl peer list who is connected",
            )
        return next((each for count, each in found if count == most), first)

    async def connect(self, *multiaddrs: str) -> PeerId:
        return await self._first_joined().connect(*multiaddrs)

    async def redeem_at(self, inviter: PeerId, token: bytes) -> Redemption:
        """Redeems an invitation's token at its issuer, which is connected. Raises Remote."""
        if self._reach is None:
            raise Remote("this node is in no network", rule="no-network", hint="odfctl network join NAME")
        return await self._reach.invites.ask(inviter, token)

    def views(self) -> list[PeerView]:
        """Lists the peers of all networks, each once."""
        found: dict[PeerId, PeerView] = {}
        for name, driver in self._drivers.items():
            for view in driver.peers():
                named = msgspec.structs.replace(view, networks=(name,) if view.connected else ())
                before = found.get(view.peer)
                found[view.peer] = named if before is None else _joint(before, named)
        return list(found.values())

    def figures(self) -> ReplicationFigures:
        """Returns the figures of all joined networks; a peer of two counts once among the connected ones."""
        each = [driver.figures() for driver in self._drivers.values()]
        connected = len({peer for driver in self._drivers.values() for peer in driver.list_connected()})
        figures = ReplicationFigures(
            connected=connected, **{name: sum(getattr(one, name) for one in each) for name in _SUMMED}
        )
        return figures if self._reach is None else msgspec.structs.replace(figures, **asdict(self._reach.figures()))

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Announces a statement in all networks; peers that join later request it."""
        for driver in list(self._drivers.values()):
            await driver.announce(topic, envelope)

    async def announce_in(self, networks: Collection[str], topic: Topic, envelope: bytes) -> None:
        for name, driver in list(self._drivers.items()):
            if name in networks:
                await driver.announce(topic, envelope)

    def look_again(self) -> None:
        """Announces a change of what is served."""
        for driver in self._drivers.values():
            driver.look_again()

    async def pull_statements(
        self, peer: PeerId, datasets: Sequence[DatasetId] | None = None, *, private: bool = False
    ) -> int:
        """Pulls statements on datasets, each in the networks where it may be mentioned; ``None``: on all, in all."""
        self._first_joined()
        if len(self._drivers) < 2:
            return await self._first_joined().pull_statements(peer, datasets, private=private)
        new = 0
        for driver in await self.in_scope():
            if peer not in driver.list_connected():
                continue
            # A dataset of other networks is not named in this one (test_each_way_out_is_open_in_one_network_alone).
            asked = None if datasets is None else [each for each in datasets if driver in await self.in_scope(each)]
            if asked is None or asked:
                new += await driver.pull_statements(peer, asked, private=private)
        return new

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int:
        return sum([await driver.seek(dataset, beyond) for driver in await self.in_scope(dataset)])

    def serving(self, datasets: Iterable[DatasetId]) -> dict[DatasetId, set[PeerId]]:
        """Returns the connected peers that claim to serve each of ``datasets``."""
        found: dict[DatasetId, set[PeerId]] = {}
        asked = tuple(datasets)
        for driver in self._drivers.values():
            for dataset, peers in driver.serving(asked).items():
                found.setdefault(dataset, set()).update(peers)
        return found

    def penalise(self, peer: PeerId, reason: str, weight: float) -> None:
        """Penalises a peer in each network that it is in, since it is the same peer everywhere."""
        self._first_joined()
        for driver in self._drivers.values():
            driver.penalise(peer, reason, weight)


def _joint(one: PeerView, other: PeerView) -> PeerView:
    """Merges the views of one peer in two networks."""
    seen = [at for at in (one.last_seen, other.last_seen) if at is not None]
    said = [count for count in (one.datasets, other.datasets) if count is not None]
    return msgspec.structs.replace(
        one,
        addresses=tuple(dict.fromkeys((*one.addresses, *other.addresses))),
        connected=one.connected or other.connected,
        score=min(one.score, other.score),
        last_seen=max(seen, default=None),
        proven=one.proven or other.proven,
        datasets=max(said, default=None),
        network=one.network or other.network,
        networks=(*one.networks, *other.networks),
    )
