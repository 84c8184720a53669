"""The network of a node that fails while the node lives: it begins anew, with the same key and in the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from chain.store.database import open_database
from odfd.kit.clock import SystemClock
from odfd.kit.supervision import Child, Restart, run_tree
from odfd.network.membership import HostOptions, Membership, Network
from odfd.resources import store as resources
from p2p.host.limits import HostLimits

DEADLINE = 20


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.more = trio.Event()

    def info(self, event: str, **_: Any) -> None:
        self.said.append(event)
        self.more.set()

    error = info

    async def until(self, event: str, count: int) -> None:
        with trio.fail_after(DEADLINE):
            while self.said.count(event) < count:
                self.more = trio.Event()
                await self.more.wait()


class Empty:
    """A library and a noticeboard with nothing in them."""

    def datasets(self, _limit: int) -> list[Any]:
        return []

    refs = datasets


async def test_a_network_that_fails_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, fails = Membership._watch, iter([True, False, False])

    async def watched(self: Membership, driver: Any) -> None:
        if next(fails):
            raise RuntimeError("a fault of ours")
        await watch(self, driver)

    monkeypatch.setattr(Membership, "_watch", watched)
    database = open_database(tmp_path / "db")
    database.migrate(resources.ROOM, resources.STEPS)
    options = HostOptions(
        seed=b"m" * 32,
        listen=("/ip4/127.0.0.1/tcp/0",),
        limits=HostLimits(),
        folder=tmp_path,
        network=Network(name="demo"),
    )
    empty: Any = Empty()
    lines = Lines()
    member = Membership(options, (empty, empty), database, SystemClock(), lines, lambda: None)
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            child = Child("network", member.run, Restart(first=0.01, from_start=False))
            nursery.start_soon(run_tree, [child], stop, lines, lambda: 0.5)
            await lines.until("network joined", 2)
            assert lines.said.count("restarting") == 1
            assert len(member.addresses()) == 1
            assert member.network == Network(name="demo")
            await member.leave("demo")
            await member.join(Network(name="other"))
            assert member.network == Network(name="other")
            stop.set()
    finally:
        database.close()
