"""Two real Kubos, two daemons that know nobody else: published through one, mirrored through the other."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.instant import SECOND
from chain.statements.keys import SigningKey
from odfd.cli.kinds import with_state
from odfd.runtime.clock import SystemClock
from p2p.ipfs import record
from p2p.ipfs.record import Pointer
from worlds import foreign
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
KEY = SigningKey(b"\x44" * 32)


def written(daemon: Any, number: int) -> None:
    rows = [f"2024-01-{number + 1:02}T00:00:00Z,c{row * 7919 % 10007},{row}" for row in range(3000)]
    (daemon.folder / f"{number}.csv").write_text("\n".join(["event_time,city,population", *rows, ""]))


async def meet(one: Any, other: Any) -> None:
    address = next(each for each in (await other.about())["Addresses"] if "/ip4/127.0.0.1/tcp" in each)
    await one.do("swarm", "connect", address)


async def published(daemon: Any, blocks: int) -> Any:
    """Until the standing publication has come so far."""
    with trio.fail_after(PATIENCE):
        while True:
            (view,) = await trio.to_thread.run_sync(daemon.ask, "ipfs", "list")
            if view["blocks"] >= blocks:
                return view
            await trio.sleep(0.2)


async def test_published_through_one_kubo_and_mirrored_through_another(
    make_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    in_thread = trio.to_thread.run_sync
    async with foreign.open_kubo(tmp_path / "ka") as hers, foreign.open_kubo(tmp_path / "kb") as his:
        await meet(his, hers)
        alice, bob = (
            make_daemon(name, ODFD_NODE_NAME=name, ODFD_IPFS_API=kubo.api) for name, kubo in (("a", hers), ("b", his))
        )
        alice.small = bob.small = True
        await in_thread(alice.start)
        await in_thread((alice.folder / "m.yaml").write_text, ROOT)
        await in_thread(written, alice, 0)
        await in_thread(partial(alice.ask, "apply", "-f", str(alice.folder / "m.yaml")))
        await in_thread(alice.ask, "pull", "cities")
        first = await in_thread(alice.ask, "ipfs", "publish", "cities")
        assert (first["name"], first["addedBlocks"]) == (first["home"], 4)
        await in_thread(alice.stop)

        await in_thread(bob.start)
        mirror = with_state(
            await in_thread(partial(bob.ask, "mirror", "add", first["datasetId"], "--via", "ipfs", "--as", "theirs"))
        )
        assert (mirror["state"], mirror["blocks"]["have"], mirror["serving"]) == ("current", 4, True)
        assert (await in_thread(bob.ask, "verify", "theirs", "--level", "data"))["ok"]

        await in_thread(alice.start)
        await in_thread(written, alice, 1)
        await in_thread(alice.ask, "pull", "cities")
        second = await published(alice, 5)
        assert second["root"] != first["root"]
        await meet(his, hers)
        assert [item["outcome"] for item in (await in_thread(bob.ask, "pull", "theirs"))["items"]] == ["updated"]
        assert (await in_thread(bob.dataset, "theirs"))["blocks"] == 5

        folder = tmp_path / "got"
        await his.do("get", "-o", str(folder), f"/ipns/{second['home']}")
        command = [sys.executable, "-m", "odfd.cli.main", "verify", str(folder), "--level", "data"]
        said = await trio.run_process(command, capture_stdout=True, env=bob.environ)
        assert said.stdout.decode().startswith("yes: 5 blocks"), said

        gateway = (await his.do("config", "Addresses.Gateway")).strip()
        assert gateway, "the test profile gives it a free port"
        taken = await in_thread(bob.ctl, "import", second["root"].replace("/ipfs/", "ipfs://"))
        assert taken.code == 0, taken
        await in_thread(mirrored_through_gateway, make_daemon("c"), tmp_path / "kb", second)


def mirrored_through_gateway(carol: Any, repo: Path, published: Any) -> None:
    """By a node without a Kubo, to which the gateway is a web server; one CID to import, the name to follow."""
    gateway = (repo / "gateway").read_text().strip()
    carol.small = True
    carol.start()
    taken = carol.ask("import", f"{gateway}{published['root']}", "--as", "once")
    assert (taken["blocks"], carol.dataset("once")["head"]) == (5, published["head"])
    carol.ask("delete", "dataset", "once", "--yes")
    mirror = with_state(carol.ask("mirror", "add", f"{gateway}/ipns/{published['home']}", "--as", "theirs"))
    assert (mirror["state"], mirror["blocks"]["have"], mirror["serving"]) == ("current", 5, False)
    carol.ask("publish", "theirs")
    assert [with_state(each)["serving"] for each in carol.ask("mirror", "list")] == [True]
    carol.stop()


async def test_the_name_of_a_repository_resolves_as_long_as_its_node_is_there(
    make_daemon: Callable[..., Any], tmp_path: Path
) -> None:
    """Another's Kubo is asked: behind the end of the first record, without a push; not behind that of the last record
    of a node that is gone; and again when the node is back.
    """
    in_thread = trio.to_thread.run_sync
    async with foreign.open_kubo(tmp_path / "ka") as hers, foreign.open_kubo(tmp_path / "kb") as his:
        await meet(his, hers)
        alice = make_daemon("a", ODFD_IPFS_API=hers.api, NAME_SECONDS="10", small=True)
        await in_thread(alice.start)
        await in_thread((alice.folder / "m.yaml").write_text, ROOT)
        await in_thread(written, alice, 0)
        await in_thread(partial(alice.ask, "apply", "-f", str(alice.folder / "m.yaml")))
        await in_thread(alice.ask, "pull", "cities")
        await in_thread(alice.ask, "repo", "add", "other", f"ipns://{record.name_of(KEY.dataset_id)}")
        refused = await in_thread(alice.said, "push", "cities", "--to", "other")
        name = re.search(r"its own name is ipns://(\w+)", refused.out + refused.err)[1]
        await in_thread(alice.ask, "repo", "add", "shelf", f"ipns://{name}")
        await in_thread(alice.ask, "push", "cities", "--to", "shelf")

        async def signed() -> Pointer:
            found = await in_thread(hers.fetch, "routing", "get", f"/ipns/{name}")
            return record.unseal(found, record.dataset_of(name))

        async def resolves(to: str | None) -> None:
            """Until it does; ``None``: until it does not."""
            with trio.fail_after(PATIENCE):
                while True:
                    try:
                        found = (await his.do("name", "resolve", "--nocache", f"/ipns/{name}")).strip()
                    except AssertionError as error:
                        found = None if "could not resolve name" in str(error) else str(error)
                    if found == to:
                        return
                    await trio.sleep(0.2)

        first = await signed()
        await trio.sleep(
            max(0, first.expires - SystemClock().now()) / SECOND + 0.1
        )  # Kubo's clock is that of the machine
        await resolves(first.value)
        assert (await signed()).expires > first.expires
        await in_thread(alice.kill)
        await resolves(None)
        await in_thread(alice.start)
        await resolves(first.value)


async def test_a_kubo_that_goes_away_and_comes_back(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    in_thread = trio.to_thread.run_sync
    async with foreign.open_kubo(tmp_path / "ka") as kubo:
        alice = make_daemon("a", ODFD_IPFS_API=kubo.api, small=True)
        await in_thread(alice.start)
        await in_thread((alice.folder / "m.yaml").write_text, ROOT)
        await in_thread(written, alice, 0)
        await in_thread(partial(alice.ask, "apply", "-f", str(alice.folder / "m.yaml")))
        await in_thread(alice.ask, "pull", "cities")
        await in_thread(alice.ask, "ipfs", "publish", "cities")
    said = await in_thread(alice.ctl, "ipfs", "publish", "cities")
    assert said.code == 6
    assert "cannot be reached" in said.err
    assert "[ipfs] api" in said.err
    assert (await in_thread(alice.ask, "ipfs", "list"))[0]["blocks"] == 4
