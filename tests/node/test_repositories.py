"""Repositories by name: what is pushed is read by any node, private datasets stay, and of two who push one is told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from chain.codec.blocks import encode_block
from chain.errors import Invalid, NotFound, Refused
from chain.model.block import MetadataBlock
from chain.model.events import SetInfo
from chain.store.layout import DirectoryChain, DirectoryWriter
from odfd.control import wire
from odfd.published.signed import signed_state
from worlds.manifests import ROOT
from worlds.node_world import Node, World, until
from worlds.s3_server import new_bucket, s3_server
from worlds.web_site import Site

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
            with pytest.raises(Invalid, match=r"by the URL of its place: s3://a/b") as wrong:
                await bob.pull("s3://a/b")
            assert "odfctl repo add NAME URL" in (wrong.value.hint or "")
            told += repr(item) + repr(nothing) + repr(alice.logger.said) + repr(alice.events.list_kept())
            assert "s3cr3t-of-the-house" not in told
            assert "AKIAHOUSE" not in told


@pytest.mark.slow
async def test_a_bucket_that_lies_achieves_nothing(world: World) -> None:
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
        with pytest.raises(Invalid, match="place of one dataset"):
            await pushed(alice, to="archive/x")
        (missing,) = await alice.pull("archive/cities")
        assert missing.outcome == "failed"
