"""A node that gives its datasets over HTTP: to a node that knows nothing else of it, and to whoever comes too often."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import trio
import trio.lowlevel

from chain.errors import Environment, Invalid
from config import model
from odfd.control import wire
from odfd.published.packs import read_pack
from odfd.runtime.supervision import Life
from odfd.site import server
from odfd.site.server import SiteServer
from worlds.eventually import PATIENCE
from worlds.manifests import ROOT
from worlds.node_world import Node, World

ANY_PORT = model.Http(listen=("127.0.0.1:0",))
GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"


def url_of(node: Node) -> str:
    (url,) = node.parts.site.urls
    return str(url)


async def grown(world: World, node: Node, number: int) -> None:
    world.write("alice", f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,Graz,{number}")
    await node.pull("cities")


async def test_a_node_is_mirrored_over_http_alone(world: World) -> None:
    async with world.running("alice", http=ANY_PORT) as alice:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        cities = alice.dataset("cities")
        alice.member._wires.cut.add(alice.member.peer_id)
        assert (await alice.api.about.status()).http == (url_of(alice),)
        async with world.running("bob") as bob:
            for source, name in ((f"{url_of(alice)}/cities", "a"), (f"{url_of(alice)}/{cities.multibase}", "a")):
                view = await bob.added(wire.MirrorRequest(source=source, as_name=name))
                assert (view.id, view.state, view.serving) == (str(cities), "current", False)
            await bob.publish("a")
            (view,) = await bob.mirrors()
            assert view.serving
            await grown(world, alice, 1)
            await bob.pull("a")
            ours, theirs = (list(node.home.chains.chain(cities).raw_blocks(0, 100)) for node in (alice, bob))
            assert ours == theirs


async def test_packs_hold_what_is_served(world: World) -> None:
    async with world.running("alice", http=ANY_PORT) as alice, httpx.AsyncClient() as client:
        await alice.apply(ROOT)
        await grown(world, alice, 0)
        url = f"{url_of(alice)}/cities"
        ours = list(alice.home.chains.chain(alice.dataset("cities")).raw_blocks(0, 100))
        assert read_pack((await client.get(f"{url}/packs/0")).content) == ours
        for nothing in ("packs/1", "packs/x", "packs"):
            assert (await client.get(f"{url}/{nothing}")).status_code == 404


async def test_what_kamu_wrote_leaves_byte_for_byte(world: World) -> None:
    """Blocks of an older version of the format too: kamu's own server writes them anew."""
    policy = model.Policy(serve="data")
    async with world.running("alice", policy, http=ANY_PORT) as alice, httpx.AsyncClient() as client:
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "flights"), as_name="flights")))
        for folder in ("refs", "blocks", "data"):
            for file in (GOLDEN / "flights" / folder).iterdir():
                given = await client.get(f"{url_of(alice)}/flights/{folder}/{file.name}")
                assert given.content == file.read_bytes(), file
        assert (await client.get(f"{url_of(alice)}/flights/trust/head")).status_code == 404
        (listed,) = (await client.get(url_of(alice))).json()["datasets"]
        assert (listed["name"], listed["blocks"]) == ("flights", alice.size("flights"))


async def test_what_policy_keeps_back_is_not_there(world: World) -> None:
    """By default, what nobody signed."""
    async with world.running("alice", http=ANY_PORT) as alice, httpx.AsyncClient() as client:
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "flights"), as_name="flights")))
        assert (await client.get(f"{url_of(alice)}/flights/packs/0")).status_code == 404
        for folder in ("refs", "blocks", "data"):
            for file in (GOLDEN / "flights" / folder).iterdir():
                assert (await client.get(f"{url_of(alice)}/flights/{folder}/{file.name}")).status_code == 404
        assert (await client.get(url_of(alice))).json() == {"datasets": []}


async def test_no_spelling_of_a_path_leads_to_what_is_private_or_out_of_the_site(world: World) -> None:
    """Beside a published dataset; by bytes, since a client of HTTP would write the path anew."""
    async with world.running("alice", private=True, http=ANY_PORT) as alice:
        await alice.apply(ROOT.replace("cities", "secret"), ROOT)
        await grown(world, alice, 0)
        await alice.publish("cities")
        await alice.pull("secret")
        host, _, port = url_of(alice).removeprefix("http://").rpartition(":")

        async def status(target: str) -> int:
            stream = await trio.open_tcp_stream(host, int(port))
            async with stream:
                await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                return int((await stream.receive_some(4096)).split()[1])

        state = str(alice.home.directory)
        ups = ("..", "%2e%2e", ".%2e", "%2E.", "%252e%252e", "..%00", "%ef%bc%8e%ef%bc%8e", "%c0%ae%c0%ae", "..;")
        wanted = [f"/cities/{up}/secret/refs/head" for up in ups]
        wanted += [
            f"/cities/refs{slash}..{slash}..{slash}secret/refs/head" for slash in ("/", "%2f", "%5c", "\\", "%252f")
        ]
        wanted += [f"/cities/data/{up}/{up}/{up}/{up}/{up}/{up}{state}/odfd.sqlite" for up in ups]
        wanted += [f"{state}/odfd.sqlite", f"/{state}/odfd.sqlite", f"file://{state}/odfd.sqlite", "/..", "/cities/.."]
        for name in (
            "secret",
            "SECRET",
            "s%65cret",
            "secret%00",
            "secret%20",
            "secret.",
            "./secret",
            "%73ecret",
            "ѕecret",
        ):
            wanted += [f"/{name}/refs/head", f"//{name}/refs/head", f"http://{host}:{port}/{name}/refs/head"]
        secret = alice.dataset("secret")
        wanted += [f"/{each}/refs/head" for each in (secret.multibase, str(secret), secret.multibase.upper())]
        found = {target: await status(target) for target in wanted}
        assert {target: code for target, code in found.items() if not 400 <= code < 500} == {}
        assert await status("/cities/refs/head") == 200, "what is published is there"


async def test_a_row_that_was_spoilt_gives_nothing_away(world: World) -> None:
    """One bit makes the number of a block negative, which is below the end of nothing."""
    async with world.running("alice", http=ANY_PORT) as alice, httpx.AsyncClient() as client:
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "airlines"), as_name="a")))
        with alice.home.database.write() as connection:
            assert connection.execute("UPDATE object_references SET sequence = sequence - 128").rowcount
        for file in (GOLDEN / "airlines" / "data").iterdir():
            assert (await client.get(f"{url_of(alice)}/a/data/{file.name}")).status_code == 404


async def test_one_visitor_leaves_room_for_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "OF_ONE", 2)
    async with world.running("alice", http=ANY_PORT) as alice:
        port = int(url_of(alice).rpartition(":")[2])
        held = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        for stream in held:  # which is then known to be served
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        async with httpx.AsyncClient() as client:
            assert (await client.get(url_of(alice))).status_code == 503
            for stream in held:
                await stream.aclose()
            with trio.fail_after(PATIENCE):
                while (await client.get(url_of(alice))).status_code != 200:
                    await trio.lowlevel.checkpoint()


async def test_a_port_that_is_taken_and_an_address_that_is_none(world: World) -> None:
    async with world.running("alice", http=ANY_PORT) as alice:
        taken = SiteServer([url_of(alice).removeprefix("http://")], alice.parts.site._application, alice.logger)
        with pytest.raises(Environment, match="cannot serve HTTP") as told:
            await taken.run(Life())
        assert told.value.rule == "http-listen"
    for address in ("localhost:80", "127.0.0.1", "127.0.0.1:70000", ":80", "http://127.0.0.1:80"):
        with pytest.raises(Invalid, match="no address"):
            SiteServer([address], alice.parts.site._application, alice.logger)
