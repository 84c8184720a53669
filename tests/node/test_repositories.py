"""Repositories in folders, buckets, on SFTP servers and IPFS: pushed, pulled, read by the client, or refused."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chain import instant
from chain.codec.blocks import encode_block
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import SetInfo
from chain.store.layout import DirectoryChain, DirectoryWriter
from odfd.control import wire
from odfd.ipfs.publishing import LIFETIME, RENEW, repository_folder
from odfd.published.signed import signed_state
from odfd.resources.controller import ObservedState
from odfd.resources.store import ResourceStore
from odfd.services.transfer.repository_controller import RepositoryController
from odfd.verify import objects
from odfd_client import HandedOver, Switched, Update, connect, open_repository
from p2p.ipfs import record
from worlds.manifests import ROOT
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World, until
from worlds.s3_server import new_bucket, s3_server
from worlds.served_node import away, served
from worlds.sftp import PASSWORD, Served, sftp_served
from worlds.web_site import Site

# Repositories by name: what is pushed is read by any node, private datasets stay, and of two who push one is told.


GOLDEN = Path(__file__).parents[1] / "golden" / "kamu"
ARCHIVE = "$schema: Repository\nheaders: {name: archive}\nspec: {url: %s}\n"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site").mkdir()
    with Site(tmp_path / "site").open() as opened:
        yield opened


async def grown(world: World, node: Node, files: int = 1) -> Any:
    """A dataset ``cities`` with so many slices."""
    for number in range(files):
        world.write("alice", f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}")
    if not node.home.chains.datasets():
        await node.apply(ROOT)
    await node.pull("cities")
    return node.dataset("cities")


async def pushed(node: Node, *refs: str, **more: Any) -> tuple[wire.PushItem, ...]:
    done = await node.done(node.api.pushing.push(wire.PushRequest(refs=refs, all=not refs, **more)))
    assert isinstance(done, wire.PushResult)
    return done.items


async def test_what_is_pushed_is_pulled_elsewhere_and_read_from_the_web(world: World, site: Site) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        dataset = await grown(world, alice, 2)
        await alice.apply(ARCHIVE % site.folder.as_uri())
        (item,) = await pushed(alice, "cities")
        assert (item.outcome, item.place, item.blocks) == ("pushed", "archive/cities", alice.size("cities"))
        assert (await pushed(alice, "cities"))[0].outcome == "up-to-date"
        await bob.apply(ARCHIVE % site.url)
        (come,) = await bob.pull("archive/cities", as_name="towns")
        assert (come.ref, come.outcome, come.blocks) == ("towns", "updated", item.blocks)
        assert bob.dataset("towns") == dataset
        (same,) = await bob.pull("archive/cities")
        assert (same.ref, same.outcome) == ("towns", "up-to-date")
        await grown(world, alice, 3)
        (more,) = await pushed(alice, "cities", to="archive")
        assert (more.outcome, more.objects) == ("pushed", 1)
        assert (await bob.pull("archive/cities"))[0].blocks == more.blocks
        assert (await bob.done(bob.api.verification.verify("towns", wire.VerifyRequest(level="data")))).ok


async def test_kamu_s_dataset_comes_out_of_a_folder_as_it_went_in(world: World, site: Site) -> None:
    shutil.copytree(GOLDEN / "flights", site.folder / "nyc.flights")
    async with world.running("alice") as alice:
        await alice.apply(
            ARCHIVE % site.folder.as_uri(), ARCHIVE.replace("archive", "other") % (site.folder / "o").as_uri()
        )
        (come,) = await alice.pull("archive/nyc.flights")
        assert come.blocks == len(list((GOLDEN / "flights" / "blocks").iterdir()))
        (gone,) = await pushed(alice, "nyc.flights", to="other/flights", private=True)
        assert gone.blocks == come.blocks
    names = [each.name for each in (GOLDEN / "flights" / "blocks").iterdir()]
    assert all((site.folder / "o/flights/blocks" / name).is_file() for name in names)


BUCKET = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {accessKeyId: AKIAHOUSE, secretAccessKey: s3cr3t-of-the-house}}
---
$schema: Repository
headers: {name: archive}
spec: {url: "%s/odf", credentials: house-key}
"""


@pytest.mark.slow
async def test_a_bucket_is_pushed_to_pulled_from_and_mirrored_over_http(world: World) -> None:
    with s3_server() as server:
        url = new_bucket(server, "house")
        async with world.running("alice") as alice, world.running("bob") as bob, world.running("carol") as carol:
            dataset = await grown(world, alice, 2)
            await until(lambda: signed_state(alice.home.database, alice.home.chains, dataset).files)
            told = repr(await alice.apply(BUCKET % url))
            (item,) = await pushed(alice, "cities")
            assert (item.outcome, item.blocks, item.fault) == ("pushed", alice.size("cities"), None)
            await bob.apply(ARCHIVE % (url + "/odf"))
            (come,) = await bob.pull("archive/cities")
            assert (come.ref, come.outcome, come.blocks) == ("cities", "updated", item.blocks), come
            await grown(world, alice, 3)
            (more,) = await pushed(alice, "cities")
            assert (await bob.pull("archive/cities"))[0].blocks == more.blocks
            assert (await bob.done(bob.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok
            at = f"{url.removeprefix('s3+')}/odf/cities"
            await carol.added(wire.MirrorRequest(source=at, as_name="towns"))
            assert carol.dataset("towns") == dataset
            (nothing,) = await bob.pull("archive/nothing")
            assert nothing.fault is not None
            assert nothing.message.startswith("archive has no dataset nothing")
            with pytest.raises(Invalid, match=r"by its URL: s3://a/b") as wrong:
                await bob.pull("s3://a/b")
            assert "odfctl repo add NAME URL" in (wrong.value.hint or "")
            told += repr(item) + repr(nothing) + repr(alice.logger.said) + repr(alice.events.list_kept())
            assert "s3cr3t-of-the-house" not in told
            assert "AKIAHOUSE" not in told


@pytest.mark.slow
async def test_a_bucket_that_lies_achieves_nothing(world: World) -> None:
    """Attack T-REPO-01: a bucket with false data.

    Defence: its bytes are hashed and verified before they count.
    """
    with s3_server() as server:
        url = new_bucket(server, "house")
        async with world.running("alice") as alice, world.running("bob") as bob:
            await grown(world, alice)
            await alice.apply(BUCKET % url)
            await pushed(alice, "cities")
            data = alice.home.chains.chain(alice.dataset("cities")).last_of(["AddData"]).event.new_data.physical_hash
            place = f"{server}/house/odf/cities/data/{data}"
            await bob.apply(ARCHIVE % (url + "/odf"))
            async with httpx.AsyncClient(
                headers={"authorization": "AWS4-HMAC-SHA256 Credential=k/x/us-east-1/s3/x"}
            ) as anybody:
                content = (await anybody.get(place)).content
                for lie in (content[:-1], content[:-1] + b"?"):
                    assert (await anybody.put(place, content=lie)).status_code == 200
                    (item,) = await bob.pull("archive/cities")
                    assert item.fault is not None
                    assert item.fault.rule != "repository-credentials"
                    assert bob.home.chains.datasets() == []
                assert (await anybody.put(place, content=content)).status_code == 200
            assert (await bob.pull("archive/cities"))[0].outcome == "updated"


async def test_what_is_private_goes_nowhere_unless_it_is_said_of_this_push(world: World, site: Site) -> None:
    """Attack T-PRIVATE-06: a private dataset pushed by mistake.

    Defence: a push counts as publication: it is refused unless the command says that this push may include private
    data.
    """
    async with world.running("alice", private=True) as alice:
        await grown(world, alice)
        await alice.apply(ARCHIVE % site.folder.as_uri())
        (named,) = await pushed(alice, "cities")
        assert named.fault is not None
        assert (named.outcome, named.fault.rule) == ("failed", "push-private")
        assert [each.outcome for each in await pushed(alice)] == ["private"]
        assert list(site.folder.iterdir()) == []
        assert (await pushed(alice, "cities", private=True))[0].outcome == "pushed"
        shutil.rmtree(site.folder / "cities")
        await alice.publish("cities")
        assert [each.outcome for each in await pushed(alice)] == ["pushed"]


async def test_of_two_histories_the_second_is_told_where_they_part(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        await grown(world, alice)
        await alice.apply(ARCHIVE % site.folder.as_uri())
        await pushed(alice, "cities")
        folder = site.folder / "cities"
        last = DirectoryChain(folder).block_at(alice.size("cities") - 1)
        block = MetadataBlock(
            system_time=last.system_time,
            prev_block_hash=last.hash,
            sequence_number=last.sequence_number + 1,
            event=SetInfo(description="another"),
        )
        other = encode_block(block)
        writer = DirectoryWriter(folder)
        writer.add_block(other.hash, other.raw)
        writer.set_head(other.hash, last.hash)
        (behind,) = await pushed(alice, "cities")
        assert behind.fault is not None
        assert behind.fault.rule == "push-behind"
        assert (await alice.pull("archive/cities"))[0].outcome != "failed"
        await grown(world, alice, 2)
        assert (await pushed(alice, "cities"))[0].outcome == "pushed"


async def test_what_cannot_be_is_refused_by_name(world: World, site: Site) -> None:
    async with world.running("alice") as alice:
        await grown(world, alice)
        for url, why in (
            ("https://user:s3cr3t@data.example/odf", "neither a password"),
            ("ftp://data.example/odf", "nothing is known of ftp"),
            ("file:odf", "by its whole path"),
            ("odf", "nothing is known of its kind"),
            ("s3://BIG/x", "it names no bucket"),
            ("s3+http://data.example", "it names no bucket"),
            ("s3://house/a//b", "plain names between single slashes"),
            ("s3://key:s3cr3t@house/a", "neither a password"),
        ):
            with pytest.raises(Invalid, match=why) as caught:
                await alice.apply(ARCHIVE % url)
            assert caught.value.rule == "repository-url"
            assert "s3cr3t" not in repr(caught.value)
        with pytest.raises(Invalid, match="there is no repository: say which"):
            await pushed(alice, "cities")
        with pytest.raises(NotFound, match="no repository 'archive'"):
            await alice.pull("archive/cities")
        await alice.apply(ARCHIVE % site.url)
        with pytest.raises(Refused, match="read over HTTP"):
            await pushed(alice, "cities")
        with pytest.raises(Invalid, match="a local name is for one dataset"):
            await alice.pull("archive/cities", "cities", as_name="x")
        with pytest.raises(Invalid, match="folder of one dataset"):
            await pushed(alice, to="archive/x")
        (missing,) = await alice.pull("archive/cities")
        assert missing.outcome == "failed"


# Repositories on SFTP servers and on IPFS: pushed to by one node, pulled from by another, refused by name.


SFTP = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {password: "%s"}}
---
$schema: Repository
headers: {name: archive}
spec: {url: "%s", credentials: house-key, hostKey: "%s"}
"""
HOUR = 3600 * instant.SECOND
SHELF = "$schema: Repository\nheaders: {name: shelf}\nspec: {url: '%s'}\n"


@pytest.fixture
def sftp(tmp_path: Path) -> Iterator[Served]:
    with sftp_served(tmp_path / "there") as running:
        running.folder.mkdir()
        yield running


async def push_one(node: Node, ref: str = "cities", **more: Any) -> wire.PushItem:
    (item,) = (await node.done(node.api.pushing.push(wire.PushRequest(refs=(ref,), **more)))).items
    return item


@pytest.mark.slow
async def test_an_sftp_server_is_pushed_to_and_pulled_from(world: World, sftp: Served) -> None:
    manifest = SFTP % (PASSWORD, sftp.url("/odf", "reader"), sftp.host_key)
    async with world.running("alice") as alice, world.running("bob") as bob:
        dataset = await grown(world, alice, 2)
        told = repr(await alice.apply(manifest))
        item = await push_one(alice)
        assert (item.outcome, item.blocks, item.fault) == ("pushed", alice.size("cities"), None)
        assert (await push_one(alice)).outcome == "up-to-date"
        await bob.apply(manifest)
        (come,) = await bob.pull("archive/cities")
        assert (come.ref, come.outcome, come.blocks) == ("cities", "updated", item.blocks), come
        assert bob.dataset("cities") == dataset
        await grown(world, alice, 3)
        more = await push_one(alice)
        assert (more.outcome, more.objects) == ("pushed", 1)
        assert (await bob.pull("archive/cities"))[0].blocks == more.blocks
        assert (await bob.done(bob.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok
        (nothing,) = await bob.pull("archive/nothing")
        assert nothing.fault is not None
        told += repr(item) + repr(nothing) + repr(alice.logger.said) + repr(alice.events.list_kept())
        assert PASSWORD not in told


async def test_an_ipns_name_is_pushed_to_and_pulled_from(world: World) -> None:
    swarm = Swarm()
    async with (
        world.running("alice", ipfs=MemoryIpfs(swarm)) as alice,
        world.running("bob", ipfs=MemoryIpfs(swarm)) as bob,
    ):
        dataset = await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        item = await push_one(alice)
        assert (item.outcome, item.blocks, item.fault) == ("pushed", alice.size("cities"), None)
        other = await push_one(alice, to="shelf/towns")
        assert other.outcome == "pushed"
        assert (await push_one(alice, to="shelf")).outcome == "up-to-date"
        await bob.apply(SHELF % f"ipns://{name}")
        (come,) = await bob.pull("shelf/cities")
        assert (come.ref, come.outcome, come.blocks) == ("cities", "updated", item.blocks), come
        assert bob.dataset("cities") == dataset
        await grown(world, alice, 3)
        more = await push_one(alice, to="shelf")
        assert (more.outcome, more.objects) == ("pushed", 1)
        assert (await bob.pull("shelf/cities"))[0].blocks == more.blocks
        root = await alice.parts.remotes._ipfs.root_of(repository_folder(name))
        await bob.apply((SHELF % f"ipfs://{root}").replace("shelf", "still"))
        assert (await bob.pull("still/cities"))[0].outcome == "up-to-date"
        refused = await push_one(bob, to="shelf", private=True)
        assert refused.fault is not None
        assert (refused.fault.rule, "its own name is ipns://" in (refused.fault.hint or "")) == ("ipns-key", True)
        with pytest.raises(Exception, match="never changes"):
            await push_one(bob, to="still", private=True)


async def test_rows_that_come_are_read_once_and_those_that_are_here_not_at_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes are hashed as they come, and the rows checked then: not again when the chain is taken in."""
    swarm, checked, hashed = Swarm(), [], []
    rows, bytes_ = objects._check_rows, objects._hash
    monkeypatch.setattr(objects, "_check_rows", lambda *given: (checked.append(given[1].slice), rows(*given))[1])
    monkeypatch.setattr(objects, "_hash", lambda *given: (hashed.append(1), bytes_(*given))[1])
    async with (
        world.running("alice", ipfs=MemoryIpfs(swarm)) as alice,
        world.running("bob", ipfs=MemoryIpfs(swarm)) as bob,
    ):
        await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        for node in (alice, bob):
            await node.apply(SHELF % f"ipns://{name}")
        await push_one(alice)
        checked.clear()
        hashed.clear()
        await bob.pull("shelf/cities")
        assert (len(checked), len(set(checked)), hashed) == (2, 2, [])
        await grown(world, alice, 3)
        await push_one(alice)
        checked.clear()
        hashed.clear()
        await bob.pull("shelf/cities")
        assert (len(checked), hashed) == (1, [])


async def test_the_record_of_a_repositorys_name_is_signed_again_without_a_push(world: World) -> None:
    ipfs = MemoryIpfs()
    async with world.running("alice", ipfs=ipfs) as alice:
        await grown(world, alice, 2)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        time = [int(alice.clock.now())]
        keeping = RepositoryController(lambda: alice.parts.remotes.own_shelves, lambda: Instant(time[0]))
        with alice.home.database.read() as connection:
            resource = ResourceStore(connection).find_named("Repository", "shelf", None)
        assert await keeping.observe(resource) == ObservedState(), "nothing was pushed"
        assert (await push_one(alice, to="shelf")).outcome == "pushed"

        def pointer() -> Any:
            return record.unseal(ipfs.swarm.records[name], record.dataset_of(name))

        first = pointer()
        ipfs.files[f"{repository_folder(name)}/begun"] = b"by a push that was interrupted"
        time[0] += RENEW - HOUR
        seen = await keeping.observe(resource)
        assert (seen.steps, instant.render(first.expires) in seen.told["NameRecord"].message) == ((), True)
        time[0] += 2 * HOUR
        (step,) = (await keeping.observe(resource)).steps
        await keeping.perform(resource, step)
        second = pointer()
        assert (second.value, second.sequence >= first.sequence) == (first.value, True)
        assert second.expires == time[0] + LIFETIME
        await keeping.perform(resource, step)
        assert pointer() == second, "what is not due is not signed"
        ipfs.swarm.records.clear()
        (step,) = (await keeping.observe(resource)).steps
        await keeping.perform(resource, step)
        assert pointer().expires == second.expires
        ipfs.away = True
        with pytest.raises(Remote):
            await keeping.observe(resource)
        alone = RepositoryController(lambda: None, lambda: Instant(0))
        assert await alone.observe(resource) == ObservedState()


async def test_another_history_under_an_ipns_name_is_told(world: World) -> None:
    ipfs = MemoryIpfs()
    async with world.running("alice", ipfs=ipfs) as alice:
        await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        await push_one(alice)
        head = f"{repository_folder(name)}/cities/refs/head"
        before, ipfs.files[head] = ipfs.files[head], b"f1620" + b"0" * 64
        told = await push_one(alice)
        assert told.fault is not None
        assert told.fault.rule == "published-tree"
        ipfs.files[head] = before
        assert (await push_one(alice)).outcome == "up-to-date"


async def test_a_name_points_to_one_place(world: World) -> None:
    """Attack T-REPO-02: a push to an IPNS name that takes it away from what it pointed to.

    Defence: a node signs its own name alone, and refuses where it points to a dataset whose key is offline.

    A dataset whose key is offline has the node's own name; a repository would take it away, and the reverse.
    """
    async with world.running("alice", ipfs=MemoryIpfs()) as alice:
        dataset = await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        alice.home.keys.take_offline(dataset)
        await alice.done(alice.api.publications.publish(wire.PublishRequest(ref="cities")))
        told = await push_one(alice)
        assert told.fault is not None
        assert told.fault.rule == "ipns-name-taken"


async def test_without_kubo_and_with_odd_urls_it_is_refused(world: World) -> None:
    async with world.running("alice") as alice:
        await grown(world, alice)
        name = record.name_of(alice.home.keys.node_key().dataset_id)
        await alice.apply(SHELF % f"ipns://{name}")
        told = await push_one(alice)
        assert told.fault is not None
        assert told.fault.rule == "ipfs-none"
        for url, why in (
            ("ipns://nobody", "names no key"),
            ("ipfs://nothing", "is no CID"),
            (f"ipns://{name}/below", "a whole repository"),
            ("sftp://reader:s3cr3t@house.example/odf", "neither a password"),
            ("sftp://house.example/odf", "no host, no user, or no path"),
            ("sftp://reader@house.example/odf", "the key of the server is not known"),
        ):
            with pytest.raises(Invalid, match=why) as caught:
                await alice.apply(SHELF.replace("shelf", "odd") % url)
            assert "s3cr3t" not in repr(caught.value)


# The client over what a node wrote: the same rows, pins and positions as at the node, and the same handovers.


async def push_whole(node: Node, ref: str, to: str) -> None:
    done = await node.done(node.api.pushing.push(wire.PushRequest(refs=(ref,), to=to)))
    assert done.items[0].fault is None, done.items


async def test_a_repository_is_followed_as_its_node(
    world: World, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows, then a handover to other rows, by a position that either gave; then rows of the next rendition."""
    ledger = ROOT.replace("{kind: Append}", "{kind: Ledger, primaryKey: [city]}")
    store = tmp_path / "archive"
    store.mkdir()
    async with world.running("alice") as alice:
        await alice.apply(ledger)
        await alice.apply(ARCHIVE % store.as_uri())
        await alice.keep_raw("cities")
        await brought(world, alice, 1, "Graz,1", "Linz,2")
        await push_whole(alice, "cities", "archive/cities")
        async with served(alice, tmp_path_factory.mktemp("c")) as path:
            at_node = await away(lambda: connect(path).open("cities"))
            saved = await away(lambda: compared(at_node, store))
            await brought(world, alice, 2, "Graz,3", "Wels,4")
            await alice.apply(ROOT)
            await alice.done(alice.api.renditions.create("cities", wire.RenditionRequest()))
            await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest()))
            await brought(world, alice, 3, "Steyr,5")
            await push_whole(alice, "cities.r0", "archive/cities")
            await push_whole(alice, "cities", "archive/cities.r1")
            await away(lambda: crossed(at_node, store, saved))
            with Site(store).open() as site:
                await away(lambda: at_a_web_server(site.url, str(alice.dataset("cities"))))


async def brought(world: World, node: Node, day: int, *rows: str) -> None:
    world.write("alice", f"d{day}.csv", *(f"2024-01-0{day}T00:00:00Z,{row}" for row in rows))
    await node.pull("cities")


def compared(at_node: Any, store: Path) -> str:
    here = open_repository(store).open("cities")
    assert here.to_arrow().equals(at_node.to_arrow())
    assert here.pin == at_node.pin
    assert here.current().to_arrow().equals(at_node.current().to_arrow())
    (update,) = at_node.listen(follow=False)
    (same,) = here.listen(follow=False)
    assert (same.position, same.batch, same.complete) == (update.position, update.batch, True)
    return str(update.position)


def crossed(at_node: Any, store: Path, saved: str) -> None:
    """Each item is that of the node; nothing is lost or comes twice."""
    repository = open_repository(store)
    cities = repository.open("cities")
    with pytest.raises(HandedOver):
        list(cities.listen(saved, follow=False))
    ours, theirs = (list(each.cross(saved, follow=False)) for each in (cities, at_node))
    assert [(type(each), each.position) for each in ours] == [(type(each), each.position) for each in theirs]
    told = [each for each in (*ours, *theirs) if isinstance(each, Switched)]
    assert len(told) == 2
    assert told[0].time == told[1].time
    assert [content(each) for each in ours] == [content(each) for each in theirs]
    state = Counter({("Graz", 1): 1, ("Linz", 2): 1})
    for each in ours:
        for (op, *row), count in content(each).items():
            state[tuple(row)] += count if op in (0, 3) else -count
    now = connect_again(at_node).current().select("city", "population").to_arrow().to_pylist()
    assert +state == Counter(tuple(each.values()) for each in now)
    assert cities.current().to_arrow().num_rows == len(now), "the name means the active rendition"


def connect_again(dataset: Any) -> Any:
    return connect(dataset._transport.path).open("cities")


def content(item: Any) -> Counter[Any]:
    rows = item.batch if isinstance(item, Update) else item.changes.to_arrow()
    return Counter((row["op"], row["city"], row["population"]) for row in rows.to_pylist())


def at_a_web_server(url: str, active: str) -> None:
    """A static server lists nothing: a successor is found once its folder was opened."""
    repository = open_repository(url)
    assert repository.open("cities.r1").pin.id == active
    assert repository.open("cities").pin.id == active
