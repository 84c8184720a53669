"""What a stranger says of a peer's address leads a node to the Internet, and not to a service of its own machine.

A whole driver over a real host; a peer that it is connected with tells of another, which is nowhere but where the
stranger wants a connection to go.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.statements.keys import SigningKey
from p2p.address import parse_address
from p2p.driver.network import open_network
from p2p.driver.replication import ReplicationDriver
from p2p.driver.settings import ReplicationSettings
from p2p.host.host import open_host
from p2p.host.limits import HostLimits
from p2p.identity import peer_of_did
from p2p.ports import Judgement
from p2p.wire import presence as wire
from p2p.wire.presence import Presence
from worlds.eventually import PATIENCE
from worlds.internet import Internet

WANTED = DatasetId.from_public_key(b"w" * 32)
ALICE, SEED = bytes(31) + b"a", bytes(31) + b"l"
LIAR = SigningKey(SEED)
WALL = 1_700_000_000_000
LAN = ("/ip4/10.1.2.3/tcp/4150",)
"""Where a node behind a router says that it is, having asked its interfaces."""


class Nothing:
    """Library and statements of a node that has none."""

    def datasets(self, limit: int) -> Sequence[DatasetId]:
        return []

    def size(self, dataset: DatasetId) -> int:
        return 0

    def interests(self) -> Sequence[DatasetId]:
        return []

    def to(self, _peer: Any) -> Nothing:
        return self

    def refs(self, datasets: Any = None) -> Sequence[Any]:
        return []


@asynccontextmanager
async def node(announce: Sequence[str], **settings: Any) -> AsyncIterator[ReplicationDriver]:
    nothing: Any = Nothing()
    async with (
        open_host(ALICE, ["/ip4/127.0.0.1/tcp/0"], HostLimits(dial_timeout=PATIENCE), announce) as host,
        open_network(host) as network,
        trio.open_nursery() as nursery,
    ):
        chosen = ReplicationSettings(network="test", degree=0, **settings)
        rng = Random(1)
        driver = ReplicationDriver(network, nothing, nothing, chosen, rng, lambda: WALL * 1_000_000, SigningKey(ALICE))
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


async def led(driver: ReplicationDriver, address: str) -> None:
    """A stranger told of one that serves what this node looks for; it is sought."""
    spelled, tag = str(parse_address(address)), wire.tag_of(WANTED)
    whole = Presence(key=LIAR.public, issued=WALL, lifetime=3600, addresses=(spelled,), tags=(tag,))
    sender = peer_of_did(LIAR.did)
    assert driver._discovery.directory.admit(wire.seal(whole, "test", LIAR), sender, WALL) is Judgement.ACCEPT
    assert await driver.seek(WANTED) == 0


class Service:
    """Of this machine, that no stranger may reach. It counts who calls, and then hangs up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._calls = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # it was shut down
            while True:
                called, _ = self._listener.accept()
                self._calls += 1
                called.close()

    def was_called(self) -> bool:
        """Who was let down after it called was counted."""
        return self._calls > 0

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    opened = Service()
    yield opened
    opened.close()


@pytest.fixture
def far() -> Iterator[Service]:
    """Elsewhere on the Internet."""
    opened = Service()
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "where",
    [
        "/dns4/localhost/tcp/{}",
        "/dns/inside.example/tcp/{}",
        "/dns6/mapped.example/tcp/{}",
        "/ip6/::ffff:127.0.0.1/tcp/{}",
        "/ip4/127.0.0.1/tcp/{}",
        "/ip4/0.0.0.0/tcp/{}",
        "/ip4/127.0.0.1/tcp/{}/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit",
        "/dns4/localhost/tcp/{}/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN/p2p-circuit",
    ],
)
@pytest.mark.parametrize("announce", [LAN, ("/ip4/8.8.8.8/tcp/4150",)], ids=["lan", "internet"])
async def test_no_address_that_others_tell_leads_to_this_machine(
    service: Service, where: str, announce: tuple[str, ...]
) -> None:
    internet = Internet()
    internet.names = {
        "localhost": [["127.0.0.1"]],
        "inside.example": [["127.0.0.1"]],
        "mapped.example": [["::ffff:127.0.0.1"]],
    }
    with trio.fail_after(PATIENCE), internet.open():
        async with node(announce) as driver:
            await led(driver, where.format(service.port))
    assert not service.was_called()
    assert internet.dialled == []


async def test_a_name_is_resolved_once_and_what_was_judged_is_dialled(service: Service, far: Service) -> None:
    """The second answer, and every later one, would be this machine."""
    internet = Internet()
    internet.names = {"rebinding.example": [["93.184.216.34"], ["127.0.0.1"]]}
    internet.servers["93.184.216.34"] = far.port
    with trio.fail_after(PATIENCE), internet.open():
        async with node(LAN) as driver:
            await led(driver, f"/dns4/rebinding.example/tcp/{service.port}")
    assert far.was_called()
    assert not service.was_called()
    assert internet.dialled == ["93.184.216.34"]
    assert internet.asked["rebinding.example"] == 1


@pytest.mark.parametrize(
    "announce, settings",
    [(LAN, {"inside": ("127.0.0.0/8",)}), ((), {})],
    ids=["a setting names it", "nothing else is named"],
)
async def test_the_owner_may_allow_it(service: Service, announce: tuple[str, ...], settings: Any) -> None:
    with trio.fail_after(PATIENCE):
        async with node(announce, **settings) as driver:
            await led(driver, f"/dns4/localhost/tcp/{service.port}")
            assert service.was_called()


async def test_what_the_owner_names_is_dialled_wherever_it_is() -> None:
    with trio.fail_after(PATIENCE):
        async with node(LAN) as driver, open_host(SEED, ["/ip4/127.0.0.1/tcp/0"]) as other:
            address = other.addresses()[0].replace("/ip4/127.0.0.1/", "/dns4/localhost/")
            assert await driver.connect(address) == other.peer_id
