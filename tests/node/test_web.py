"""Datasets on the web: given and taken by any server of files, and a liar achieves nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.lowlevel

from chain.errors import Environment, Invalid, Refused, Remote
from chain.model.events import SetTransform, TransformInput
from chain.model.source import TransformSql
from chain.multihash import Multihash
from chain.state import load_state
from config import model
from odfd.control import wire
from odfd.mirrors import sync
from odfd.mirrors.mirror_state import SchedulerState
from odfd.published import packs, source, web
from odfd.published.packs import read_pack
from odfd.runtime.supervision import Life
from odfd.site import server
from odfd.site.server import SiteServer
from odfd.trust.signing import owner_commit
from p2p.pace import BURST
from worlds.commits import commit_events
from worlds.eventually import PATIENCE
from worlds.linked_world import FILES, linked
from worlds.manifests import ROOT
from worlds.node_world import Node, World
from worlds.web_site import Site, plain

# Datasets on the web: any server of files will do to import and to mirror from, and a liar achieves nothing.


GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "site").open() as opened:
        yield opened


async def exported(world: World, alice: Node, site: Site, files: int = 1) -> Any:
    """A dataset of Alice's on the site, under ``cities``."""
    for number in range(files):
        world.write("alice", f"{number}.csv", *(f"2024-01-{number + 1:02}T00:00:00Z,c{row},{row}" for row in range(3)))
    if not alice.home.chains.datasets():
        await alice.apply(ROOT)
    await alice.pull("cities")
    await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=str(site.folder / "cities"))))
    return alice.dataset("cities")


def blocks_of(node: Node, dataset: Any) -> list[bytes]:
    return list(node.home.chains.chain(dataset).raw_blocks(0, 10**6))


async def imported(node: Node, place: str, as_name: str | None = None) -> Any:
    return await node.done(node.api.flow.import_(wire.ImportRequest(source=place, as_name=as_name)))


async def settled(node: Node, dataset: Any, state: str) -> Any:
    mirror = node.parts.scheduler.get(dataset)
    with trio.fail_after(PATIENCE):
        while mirror.state.value != state:
            node.parts.scheduler.poke(dataset)
            await mirror.turned.wait()
    return mirror


@pytest.mark.slow
async def test_what_kamu_wrote_is_imported_from_any_web_server(world: World, site: Site) -> None:
    shutil.copytree(GOLDEN / "flights", site.folder / "nyc.flights")
    site.knows_ranges = site.knows_head = False
    async with world.running("bob") as bob:
        done = await imported(bob, f"{site.url}/nyc.flights/")
        assert (done.ref, done.blocks) == ("nyc.flights", bob.size("nyc.flights"))
        assert len(list((GOLDEN / "flights" / "blocks").iterdir())) == done.blocks
        assert (await bob.done(bob.api.verification.verify("nyc.flights", wire.VerifyRequest(level="data")))).ok
        assert not any((bob.home.directory / "staged" / "web").iterdir())


@pytest.mark.slow
async def test_an_import_that_was_cut_off_goes_on(world: World, site: Site, monkeypatch: Any) -> None:
    """In blocks and in objects; nothing of it counts until all is here."""
    monkeypatch.setattr(web, "TOGETHER", 2)
    shutil.copytree(GOLDEN / "flights", site.folder / "f")
    blocks = len(list((GOLDEN / "flights" / "blocks").iterdir()))
    asked = 0

    def down(request: Any) -> bool:
        nonlocal asked
        asked += "/blocks/" in request.path
        return asked >= 4 and request.wfile.close() is None

    site.answer = down
    async with world.running("bob") as bob:
        with pytest.raises(Remote):
            await imported(bob, f"{site.url}/f")
        assert bob.home.chains.datasets() == []
        site.answer = lambda _request: False
        site.asked.clear()
        slices = sorted((GOLDEN / "flights" / "data").iterdir(), key=lambda file: file.stat().st_size)
        site.breaks_off[slices[-1].name] = 100
        with pytest.raises(Remote):
            await imported(bob, f"{site.url}/f")
        assert len([each for each in site.asked if "/blocks/" in each]) < blocks
        site.asked.clear()
        assert (await imported(bob, f"{site.url}/f")).blocks == blocks
        assert not [each for each in site.asked if "/blocks/" in each]
        assert len([each for each in site.asked if "/data/" in each]) <= len(slices)


async def test_what_never_ends_is_not_kept_for_ever(world: World, site: Site, monkeypatch: Any) -> None:
    """Many imports that fail leave so much behind and no more."""
    monkeypatch.setattr(source, "STAGED", 3)
    for number in range(5):
        shutil.copytree(GOLDEN / "airlines", site.folder / str(number))
    site.lie = lambda path, raw: raw + b"!" if "/data/" in path else raw
    async with world.running("bob") as bob:
        for number in range(5):
            with pytest.raises(Remote):
                await imported(bob, f"{site.url}/{number}", "a")
        assert len(list((bob.home.directory / "staged" / "web").iterdir())) == 3
        site.lie = lambda _path, raw: raw
        site.asked.clear()
        assert (await imported(bob, f"{site.url}/4", "a")).blocks == 7
        assert not [each for each in site.asked if "/blocks/" in each]


@pytest.mark.parametrize("head", [True, False])
async def test_what_rows_link_to_comes_along(world: World, site: Site, head: bool) -> None:
    """No block says its size: the site does, and the hash decides."""
    shutil.copytree(linked(site.folder / "made"), site.folder / "songs")
    site.knows_head = site.knows_ranges = head
    names = [str(Multihash.sha3_256(each)) for each in FILES]
    site.lie = lambda path, raw: raw + b"!" if path.endswith(names[0]) else raw
    async with world.running("bob") as bob:
        with pytest.raises(Remote, match="which a row links to"):
            await imported(bob, f"{site.url}/songs")
        assert bob.home.chains.datasets() == []
        site.lie = lambda _path, raw: raw
        assert (await imported(bob, f"{site.url}/songs")).ref == "songs"
        assert [bob.home.objects.read(Multihash.parse(name)) for name in names] == list(FILES)
        assert (await bob.done(bob.api.verification.verify("songs", wire.VerifyRequest(level="data")))).ok


@pytest.mark.slow
async def test_importing_again_asks_for_what_is_new(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site, 2)
        async with world.running("bob") as bob:
            place = f"{site.url}/cities"
            assert (await imported(bob, place, "theirs")).blocks == alice.size("cities")
            await exported(world, alice, site, 3)
            site.asked.clear()
            done = await imported(bob, place)
            assert (done.ref, done.blocks) == ("theirs", 1)
            assert len([each for each in site.asked if "/blocks/" in each or "/data/" in each]) == 2
            assert blocks_of(bob, cities) == blocks_of(alice, cities)


@pytest.mark.slow
@pytest.mark.parametrize("few, step", [(256, 20_000), (2, 20_000), (2, 3)])
async def test_an_exported_folder_is_mirrored_from_any_web_server(
    world: World, site: Site, monkeypatch: Any, few: int, step: int
) -> None:
    """The publisher is away; later it exports more, and the mirror follows."""
    monkeypatch.setattr(web.WebTransport, "few", few)
    monkeypatch.setattr(sync, "STEP", step)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site, 6)
        blocks = blocks_of(alice, cities)
    async with world.running("bob") as bob:
        view = await bob.added(wire.MirrorRequest(source=f"{site.url}/cities/", as_name="theirs"))
        assert (view.id, view.state, view.serving, view.via) == (str(cities), "current", False, f"{site.url}/cities")
        assert (view.peers, blocks_of(bob, cities)) == (1, blocks)
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest(level="data")))).ok
    async with world.running("alice") as alice:
        await exported(world, alice, site, 7)
        blocks = blocks_of(alice, cities)
    async with world.running("bob") as bob:
        await bob.pull("theirs")
        assert blocks_of(bob, cities) == blocks
        site.asked.clear()
        await bob.pull("theirs")
        assert [each.rpartition("/")[2] for each in site.asked] == ["head"]


async def test_a_signed_block_that_breaks_a_rule_is_told_at_once(world: World, site: Site, monkeypatch: Any) -> None:
    """Its owner signed it, so it is no fault of the place, and nothing is tried again until a new head comes."""
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
        with monkeypatch.context() as lawless:
            lawless.setattr(owner_commit, "check_block", lambda *_, **__: [])
            chain = alice.home.chains.chain(cities)
            inputs = tuple(TransformInput(dataset_ref=str(cities), alias="a") for _ in range(2))
            event = SetTransform(inputs=inputs, transform=TransformSql(engine="spark"))
            commit_events(alice.parts.committer, cities, chain.head(), [event], load_state(chain).system_time)
        await exported(world, alice, site)
    async with world.running("bob") as bob:
        request = wire.MirrorRequest(source=f"{site.url}/cities/", as_name="theirs")
        with pytest.raises(Invalid) as caught:
            await bob.added(request)
        assert caught.value.rule == "event-of-kind"
        assert caught.value.place.startswith("block #")
        mirror = bob.parts.scheduler.get(cities)
        assert (mirror.state, mirror.message) == (SchedulerState.REFUSED, str(caught.value))


async def test_a_did_is_looked_for_where_it_is_said_to_be(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
    async with world.running("bob") as bob:
        view = await bob.mirror(cities, "theirs", via=f"{site.url}/cities")
        assert (view.state, view.via) == ("current", f"{site.url}/cities")
        with pytest.raises(Invalid, match="is no URL"):
            await bob.mirror(cities, "theirs", via="somewhere")


@pytest.mark.slow
async def test_a_long_chain_comes_in_packs(world: World, site: Site, monkeypatch: Any) -> None:
    """Each block of its own is one question to a site without them, and none with them."""
    for module in (packs, web):
        monkeypatch.setattr(module, "PACK", 12)
    monkeypatch.setattr(web, "WORTH_A_PACK", 3)
    monkeypatch.setattr(web.WebTransport, "few", 2)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site, 30)
        blocks = blocks_of(alice, cities)
    async with world.running("bob") as bob:
        assert (await bob.mirror(cities, "c", via=f"{site.url}/cities")).state == "current"
        assert blocks_of(bob, cities) == blocks
    asked = [each.rpartition("cities/")[2].partition("/")[0] for each in site.asked]
    assert asked.count("packs") == -(-len(blocks) // 12) == 3
    assert asked.count("blocks") == 1, "the head"


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["noise", "other", "cut", "none", "kept-back"])
async def test_packs_that_lie_achieve_nothing(world: World, site: Site, monkeypatch: Any, lie: str) -> None:
    """Attack T-REPO-01: packs of blocks that contain garbage, blocks of other chains, or end early.

    Defence: a block counts by its hash, on the walk from the head; missing ones are fetched by name; 8 MiB of each,
    once.

    Noise, blocks of another chain, a pack that is cut off, none at all, or none for us: each block comes by name.
    """
    monkeypatch.setattr(web, "WORTH_A_PACK", 3)
    monkeypatch.setattr(web.WebTransport, "few", 2)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site, 6)
        blocks = blocks_of(alice, cities)
    other = packs.pack([(file).read_bytes() for file in (GOLDEN / "flights" / "blocks").iterdir()])
    lies = {"noise": b"\xff" * 100, "other": other, "none": b""}
    if lie == "kept-back":
        site.answer = lambda request: "/packs/" in request.path and plain(request, 403) is None
    else:
        site.lie = lambda path, raw: lies.get(lie, raw[:-3]) if "/packs/" in path else raw
    async with world.running("bob") as bob:
        assert (await bob.mirror(cities, "c", via=f"{site.url}/cities")).state == "current"
        assert blocks_of(bob, cities) == blocks
        assert not any((bob.home.directory / "staged" / "web").iterdir())
    assert len([each for each in site.asked if "/packs/" in each]) == 1
    assert len([each for each in site.asked if "/blocks/" in each]) == len(blocks)


@pytest.mark.parametrize("part", ["/blocks/", "/data/", "/trust/head"])
@pytest.mark.parametrize("few", [256, 1])
async def test_a_web_server_that_lies_achieves_nothing(
    world: World, site: Site, monkeypatch: Any, part: str, few: int
) -> None:
    """Attack T-REPO-01: a web server that returns false data.

    Defence: its bytes are hashed, checked and proven by the signed tree like bytes from a peer; sizes and ranges that
    it states are hints.
    """
    monkeypatch.setattr(web.WebTransport, "few", few)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site, 2)
        blocks = blocks_of(alice, cities)
    site.lie = lambda path, raw: raw[:-1] + bytes([raw[-1] ^ 1]) if part in path else raw
    async with world.running("bob") as bob:
        await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="theirs", via=f"{site.url}/cities"))
        mirror = bob.parts.scheduler.get(cities)
        with trio.fail_after(PATIENCE):
            while not mirror.passes:
                await mirror.turned.wait()
        assert bob.home.chains.chain(cities).head() is None
        assert mirror.state.value in ("stalled", "refused")
        if part in ("/blocks/", "/data/"):
            with pytest.raises((Remote, Invalid)):
                await imported(bob, f"{site.url}/cities", "other")
        site.lie = lambda _path, raw: raw
        await settled(bob, cities, "current")
        assert blocks_of(bob, cities) == blocks


@pytest.mark.parametrize("few", [0, 100])
async def test_a_rate_of_its_own_counts_what_comes_from_the_web(
    world: World, site: Site, monkeypatch: Any, few: int
) -> None:
    monkeypatch.setattr(web.WebTransport, "few", few)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
        size = sum(len(raw) for raw in blocks_of(alice, cities))
    size += sum(each.stat().st_size for each in (site.folder / "cities" / "data").iterdir())
    async with world.running("bob") as bob:
        began, rate = trio.current_time(), int(size / 1.2)
        assert (await bob.mirror(cities, "c", via=f"{site.url}/cities", rate=f"{rate}B")).state == "current"
        pace = bob.parts.object_fetcher.paces.of(bob.parts.scheduler.get(cities).spec)
        assert pace.due(began) >= began - BURST + size / rate


async def test_another_dataset_under_the_same_place_is_refused(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
    async with world.running("carol") as carol:
        await carol.apply(ROOT)
        world.write("carol", "0.csv", "2024-01-01T00:00:00Z,Graz,1")
        await carol.pull("cities")
        shutil.rmtree(site.folder / "cities")
        await carol.done(carol.api.flow.export("cities", wire.ExportRequest(to=str(site.folder / "cities"))))
    async with world.running("bob") as bob:
        await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="c", via=f"{site.url}/cities"))
        mirror = await settled(bob, cities, "refused")
        assert "another dataset" in mirror.message


async def test_a_slice_that_breaks_off_is_gone_on_with(world: World, site: Site, monkeypatch: Any) -> None:
    """Within one pass, as long as each try brings much."""
    monkeypatch.setattr(source, "WRITE", 100)
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
        (object_file,) = (site.folder / "cities" / "data").iterdir()
    site.breaks_off[object_file.name] = 200
    async with world.running("bob") as bob:
        assert (await bob.mirror(cities, "c", via=f"{site.url}/cities")).state == "current"
        assert len([each for each in site.asked if object_file.name in each]) == 2


async def test_a_site_that_is_down_is_told_and_tried_again(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        cities = await exported(world, alice, site)
    shutil.move(site.folder / "cities", site.folder / "away")
    async with world.running("bob") as bob:
        with pytest.raises(Remote, match="has no signature") as told:
            await bob.added(wire.MirrorRequest(source=f"{site.url}/cities"))
        assert f"odfctl import {site.url}/cities" in told.value.hint
        with pytest.raises(Invalid, match="is not a dataset"):
            await imported(bob, f"{site.url}/cities")
        await bob.api.mirrors.add(wire.MirrorRequest(source=str(cities), as_name="c", via=f"{site.url}/cities"))
        shutil.move(site.folder / "away", site.folder / "cities")
        await settled(bob, cities, "current")


async def test_what_nobody_can_read_is_refused(world: World) -> None:
    async with world.running("bob") as bob:
        for place, family in (("s3://bucket/x", Refused), ("https://u:p@a.example/x", Invalid)):
            with pytest.raises(family):
                await bob.api.flow.import_(wire.ImportRequest(source=place))
            with pytest.raises(family):
                await bob.api.mirrors.add(wire.MirrorRequest(source=place))
        assert source.as_written("/ipfs/bafy") == "ipfs://bafy"


# A node that gives its datasets over HTTP: to a node that knows nothing else of it, and to whoever comes too often.


ANY_PORT = model.Http(listen=("127.0.0.1:0",))


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
        alice.member.wires.cut(alice.member.peer_id)
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
    """Attack T-PRIVATE-01: reading data that policy withholds, or files of the node, over HTTP.

    Defence: names are hashes, or do not exist; the same library answers as for peers.

    By default, what nobody signed.
    """
    async with world.running("alice", http=ANY_PORT) as alice, httpx.AsyncClient() as client:
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=str(GOLDEN / "flights"), as_name="flights")))
        assert (await client.get(f"{url_of(alice)}/flights/packs/0")).status_code == 404
        for folder in ("refs", "blocks", "data"):
            for file in (GOLDEN / "flights" / folder).iterdir():
                assert (await client.get(f"{url_of(alice)}/flights/{folder}/{file.name}")).status_code == 404
        assert (await client.get(url_of(alice))).json() == {"datasets": []}


async def test_no_spelling_of_a_path_leads_to_what_is_private_or_out_of_the_site(world: World) -> None:
    """Attack T-PRIVATE-01: other spellings of a path at the site (`..` in each encoding, absolute ones, other cases and
    look-alikes) that lead to a private dataset or to files of the node.

    Defence: a path is parts that are names, ids and hashes, each parsed; no part of it is ever joined to a folder.

    Beside a published dataset; by bytes, since a client of HTTP would write the path anew.
    """
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
    """Attack T-HTTP-01: a visitor of the site that takes all its connections.

    Defence: an eighth of them at most; headers, bodies and answers have time limits.
    """
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
