"""Whole replication layers at places of ``worlds.nat_world``: hosts of libp2p with drivers, and nothing above them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import trio

from chain.statements.keys import SigningKey
from p2p.driver.network import open_network
from p2p.driver.node_reach import NodeReach, ReachSettings
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import open_host
from p2p.machines.relay import RelayLimits
from worlds.eventually import PATIENCE
from worlds.nat_world import Place, Running

T = TypeVar("T")
PORT = 4150
WALL = 1_700_000_000_000_000_000


class Nothing:
    """Library and statements of a node that has none."""

    def to(self, _peer: Any) -> Nothing:
        return self

    def datasets(self, limit: int) -> Sequence[Any]:
        return []

    def interests(self) -> Sequence[Any]:
        return []

    def refs(self, datasets: Any = None) -> Sequence[Any]:
        return []

    def envelope(self, sid: Any) -> None:
        """Nobody asks for one."""


class NatNode:
    """A node at a place, in a thread of its own. ``close`` ends it."""

    def __init__(self, place: Place, name: str, relay: RelayLimits | None = None, **settings: Any) -> None:
        self.host: Any = None
        self.reach: Any = None
        self._relay = relay
        self.driver: Any = None
        self._settings = {"network": "test", "degree": 0, **settings}
        self._seed = name.encode().ljust(32, b".")
        self._ready = threading.Event()
        self._token: Any = None
        self._scope = trio.CancelScope()
        self.running: Running[None] = place.within(self._run)
        assert self._ready.wait(PATIENCE), self.running.result(PATIENCE)

    async def _run(self) -> None:
        nothing: Any = Nothing()
        with self._scope:
            async with (
                open_host(self._seed, [f"/ip4/0.0.0.0/tcp/{PORT}"]) as host,
                open_network(host) as network,
                trio.open_nursery() as nursery,
            ):
                settings = ReplicationSettings(**self._settings)
                key = SigningKey(self._seed)
                driver = ReplicationDriver(network, nothing, nothing, settings, Random(1), lambda: WALL, key)
                chosen = ReachSettings(relays=settings.relays, relay=self._relay)
                reach = NodeReach(network, chosen, Random(1), lambda: WALL, key, lambda: [driver])
                await nursery.start(driver.run)  # type: ignore[arg-type]  # trio cannot name what it passes
                nursery.start_soon(reach.run)
                self.host, self.driver, self.reach = host, driver, reach
                self._token = trio.lowlevel.current_trio_token()
                self._ready.set()
                await trio.sleep_forever()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs an async or a sync function in the node's loop."""
        if inspect.iscoroutinefunction(function):
            return trio.from_thread.run(function, *args, trio_token=self._token)
        return trio.from_thread.run_sync(function, *args, trio_token=self._token)

    def addresses(self) -> list[str]:
        return list(self.call(self.host.addresses))

    def circuit(self) -> str:
        return next((each for each in self.addresses() if "/p2p-circuit/" in each), "")

    def close(self) -> None:
        trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self.running.result()
