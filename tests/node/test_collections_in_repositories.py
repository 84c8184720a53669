"""Collections of several shards in repositories: pushed, pulled, mirrored and read as one, and refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from node.test_repositories import ARCHIVE, BUCKET, SFTP, SHELF, push_whole
from node.test_shards import shard, standing
from node.test_shards_of_peers import CITIES, brought, known, over, sharded, signed
from node.test_smart import REPOSITORY, url_of

from chain import errors, instant
from chain.errors import Conflict
from chain.statements import envelope, statement
from chain.store.layout import DirectoryChain, DirectoryObjects
from odfd.control import wire
from odfd.published.signed import COLLECTION, collection_in, collection_state
from odfd.services.network.site_library import NodeSiteLibrary
from odfd.smart.server import SmartApplication
from odfd.verify.verify import VerificationRequest, verify_chain
from odfd_client import Invalid, NotFound, Progress, Refused, Repository, Snapshot, Update, open_repository
from odfd_client.places import StorePlace
from p2p.ipfs import record
from p2p.wire.frames import frame
from worlds.depth import share
from worlds.kamu_sessions import TAKES, token_of
from worlds.memory_ipfs import MemoryIpfs, Swarm
from worlds.node_world import Node, World, run_apart, until
from worlds.s3_server import new_bucket, s3_server
from worlds.served_node import away
from worlds.sftp import PASSWORD, sftp_served
from worlds.web_site import Site


class Kept(NamedTuple):
    """A repository of one kind."""

    manifest: str
    """For whoever pushes."""
    opened: Callable[[], Repository]
    """Opens it with the client."""
    reading: str = ""
    """For whoever pulls, if that is another manifest."""
    folder: Path | None = None
    """Where its files lie."""


@pytest.fixture(
    params=[
        "folder",
        "web",
        pytest.param("bucket", marks=pytest.mark.nightly),  # ``test_repositories`` pushes to one each time
        pytest.param("sftp", marks=pytest.mark.slow),
    ]
)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    store = tmp_path / "archive"
    store.mkdir()
    if request.param == "folder":
        yield Kept(ARCHIVE % store.as_uri(), lambda: Repository(StorePlace(store.as_uri())), folder=store)
    elif request.param == "web":
        with Site(store).open() as site:
            yield Kept(ARCHIVE % store.as_uri(), lambda: open_repository(site.url), ARCHIVE % site.url, store)
    elif request.param == "bucket":
        with s3_server() as server:
            url = new_bucket(server, "house")
            yield Kept(BUCKET % url, lambda: open_repository(f"{server}/house/odf"))
    else:
        with sftp_served(tmp_path) as served:
            manifest = SFTP % (PASSWORD, served.url("/archive", "reader"), served.host_key)
            yield Kept(manifest, lambda: open_repository(store), folder=store)


async def test_a_collection_is_pushed_pulled_and_read_as_one(world: World, kept: Kept) -> None:
    """The same at each kind of repository; no transaction is read in part, and each shard is a dataset by itself."""
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(kept.manifest)
        await bob.apply(kept.reading or kept.manifest)
        await sharded(world, alice)
        await push_whole(alice, "cities", "archive")
        shards = alice.home.shards_of(alice.dataset("cities"))
        (item,) = await bob.pull("archive/cities")
        assert (item.ref, item.outcome, item.fault) == ("cities", "updated", None), item
        assert bob.home.shards_of(bob.dataset("cities")) == shards
        assert await standing(bob, "cities") == await standing(alice, "cities")
        assert (await bob.pull("archive/cities"))[0].outcome == "up-to-date"
        saved = await away(lambda: begun(kept.opened()))
        await brought(world, alice, 2, "Krems")
        for each in shards:  # pushed by themselves, by their ids: nothing says yet that the transaction is whole
            await push_whole(alice, str(each), f"archive/{each.multibase}")
        assert len(await away(lambda: current(kept.opened()))) == 5
        await push_whole(alice, "cities", "archive")
        await away(lambda: continued(kept.opened(), saved))
        assert (await bob.pull("archive/cities"))[0].outcome == "updated"
        assert await standing(bob, "cities") == await standing(alice, "cities")
        theirs, ours = [(await node.dataset_view("cities")).frontiers for node in (bob, alice)]
        assert (theirs.upper, theirs.sealed, theirs.held_by) == (ours.upper, ours.sealed, ours.held_by)
        if kept.folder is not None:
            assert sorted(each.name for each in kept.folder.iterdir() if not each.name.startswith(".")) == sorted(
                ["cities", *(each.multibase for each in shards)]
            )
            for each in shards:
                path = kept.folder / each.multibase
                chain, objects = DirectoryChain(path), DirectoryObjects(path)
                assert verify_chain(chain, objects, VerificationRequest(ref=str(path), start=0)).ok


def current(repository: Repository) -> list[str]:
    found: list[str] = repository.open("cities").current().to_arrow()["city"].to_pylist()
    return found


def begun(repository: Repository) -> str:
    cities = repository.open("cities")
    assert len(cities.pins) == 3
    assert cities.to_arrow().num_rows == 5
    assert cities.select("city").limit(2).to_arrow().num_rows == 2
    assert sum(each.last_offset() + 1 for each in cities.chains()) == 5
    pinned = repository.open("cities").pinned(*cities.pins)
    assert pinned.to_arrow().equals(cities.to_arrow())
    assert cities.at_block(cities.pins[1].block).to_arrow().num_rows == 5
    with repository.at(None, "cities") as read:
        assert read["cities"].to_arrow().num_rows == 5
    *items, last = cities.listen(follow=False)
    assert [each.complete for each in (*items, last)] == [*[False] * len(items), True]
    assert sum(each.batch.num_rows for each in (*items, last)) == 5
    *rows, passed = cities.cross(follow=False, progress=True)
    assert ([type(each) for each in rows], isinstance(passed, Progress)) == ([Update] * len(rows), True)
    assert passed.position == last.position
    with repository.at(None, "cities") as read:
        assert instant.parse(passed.upper) > instant.parse(read.time), "the last complete time is before it"
    snapshot, *later = cities.subscribe(follow=False)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.rows.to_arrow().num_rows, later, len(snapshot.position.parts)) == (5, [], 3)
    assert snapshot.position == last.position
    with pytest.raises(Exception, match="each with offsets of its own"):
        cities.last_offset()
    return str(last.position)


def continued(repository: Repository, saved: str) -> None:
    (update,) = repository.open("cities").listen(saved, follow=False)
    assert (update.batch.column("city").to_pylist(), update.complete) == (["Krems"], True)
    assert len(current(repository)) == 6
    assert [type(each) for each in repository.open("cities").cross(saved, follow=False)] == [Update]


def is_signed(node: Node, ids: Any) -> bool:
    with suppress(errors.Refused):
        collection_state(node.home.database, node.home.chains, ids)
        return True
    return False


async def test_an_export_of_all_shards_is_what_a_repository_has(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"

    async def exported(node: Node, to: Path, table: Any = None) -> wire.TransferResult:
        request = wire.ExportRequest(to=str(to), table=table)
        done: wire.TransferResult = await node.done(node.api.flow.export("cities", request))
        return done

    async with world.running("alice") as alice, world.running("bob") as bob:
        await sharded(world, alice)
        ids = alice.home.shards_of(alice.dataset("cities"))
        done = await exported(alice, out, "delta")
        heads = [alice.home.chains.chain(each).head() for each in ids]
        assert (done.ref, done.place, done.blocks) == ("cities", str(out), sum(each.size for each in heads))
        assert done.table_version == 0
        assert sorted(each.name for each in out.iterdir() if not each.name.startswith(".")) == sorted(
            ["cities", *(each.multibase for each in ids)]
        )
        assert len(await away(lambda: current(open_repository(out)))) == 5
        await brought(world, alice, 2, "Krems")
        assert (await exported(alice, out)).blocks > 0
        assert (await exported(alice, out)).blocks == 0
        assert len(await away(lambda: current(open_repository(out)))) == 6
        await bob.apply(ARCHIVE % out.as_uri())
        (item,) = await bob.pull("archive/cities")
        assert item.fault is None
        assert await standing(bob, "cities") == await standing(alice, "cities")
        single = tmp_path / "single"
        await alice.done(alice.api.flow.export(str(ids[0]), wire.ExportRequest(to=str(single))))
        with pytest.raises(Conflict, match="one chain"):
            await exported(alice, single)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        mine = tmp_path / "mine"
        await until(lambda: not is_signed(alice, ids))  # the card is withdrawn
        await exported(alice, mine)
        assert {each.name for each in mine.iterdir()} == {each.multibase for each in ids}
        for each in ids:
            chain, objects = DirectoryChain(mine / each.multibase), DirectoryObjects(mine / each.multibase)
            assert verify_chain(chain, objects, VerificationRequest(ref="mine", start=0)).ok
            assert chain.head() == alice.home.chains.chain(each).head()


async def test_a_shard_that_is_missing_stale_or_foreign_is_refused_by_name(world: World, tmp_path: Path) -> None:
    """Attack T-HEAD-04: a repository that lacks a shard, keeps an old one, or puts in one of another collection.

    Defence: the signed card and heads in one file say which shards belong together and how far; a shard that does not
    fit is refused by its id before anything is read or taken in.
    """
    store = tmp_path / "archive"
    store.mkdir()
    async with world.running("alice") as alice, world.running("bob") as bob:
        await alice.apply(ARCHIVE % store.as_uri())
        await bob.apply(ARCHIVE % store.as_uri())
        await sharded(world, alice)
        await push_whole(alice, "cities", "archive")
        first, _, last = alice.home.shards_of(alice.dataset("cities"))
        facts, shard = store / "cities" / COLLECTION, store / last.multibase
        good = facts.read_bytes()

        async def refused(kind: type[Exception], why: str) -> None:
            with pytest.raises(kind, match=f"{last}.*{why}"):
                await away(lambda: open_repository(store).open("cities"))
            (item,) = await bob.pull("archive/cities")
            assert item.fault is not None
            assert (item.fault.rule, str(last) in item.message) == ("shard-missing", True), item
            assert bob.home.chains.chain(first).head() is None, "nothing was taken"

        shard.rename(store / "away")
        await refused(NotFound, "is missing")
        (store / "away").rename(shard)
        head = collection_in(good, "here").heads[2]
        block = shard / "blocks" / str(head.head)
        block.rename(store / "block")
        await refused(NotFound, "is stale")
        (store / "block").rename(block)
        card, one, two, _ = collection_in(good, "here").raws
        alone = statement.encode(head.__class__(**{
            name: getattr(head, name) for name in head.__struct_fields__ if name != "collection"
        }))  # fmt: skip
        foreign = envelope.seal(alone, alice.home.keys.dataset_key(last))
        facts.write_bytes(b"".join(map(frame, (card, one, two, foreign))))
        await refused(Invalid, "does not say that it is a shard")
        facts.write_bytes(b"".join(map(frame, (card, one, two))))
        with pytest.raises(NotFound, match=f"no head of its shard {last}"):
            await away(lambda: open_repository(store).open("cities"))
        facts.write_bytes(good)
        assert (await bob.pull("archive/cities"))[0].outcome == "updated"


async def test_a_late_push_takes_no_frontier_back(world: World, tmp_path: Path) -> None:
    """What an older push says meanwhile is joined with what is there; another collection is left alone."""
    store = tmp_path / "archive"
    async with world.running("alice") as alice:
        await alice.apply(ARCHIVE % store.as_uri())
        await sharded(world, alice)
        await push_whole(alice, "cities", "archive")
        facts = store / "cities" / COLLECTION
        older = collection_in(facts.read_bytes(), "older")
        await brought(world, alice, 2, "Krems")
        await push_whole(alice, "cities", "archive")
        newer = collection_in(facts.read_bytes(), "newer")
        assert [each.upper for each in newer.heads] > [each.upper for each in older.heads]
        assert older.newer(newer).content == newer.content == newer.newer(older).content
        at = alice.api.pushing._repositories.to_push("archive", "cities")
        await alice.parts.import_export._name_there(at, older)
        assert facts.read_bytes() == newer.content
        site = NodeSiteLibrary(alice.home, alice.parts.library, alice.parts.visibility.is_public)
        assert collection_in(site.statement(newer.ids[0], COLLECTION) or b"", "the site").heads == newer.heads
        assert site.statement(newer.ids[1], COLLECTION) is None
        name = alice.home.name_of(newer.ids[1])
        done = await alice.done(alice.api.pushing.push(wire.PushRequest(all=True, to="archive")))
        assert [(each.ref, each.outcome) for each in done.items] == [("cities", "up-to-date")]
        assert alice.api.pushing._whole(name) == "cities"
        request = wire.PushRequest(refs=(str(newer.ids[0]),), to="archive")
        (one,) = (await alice.done(alice.api.pushing.push(request))).items
        assert one.fault is not None
        assert one.fault.rule == "push-diverged"


async def test_a_private_collection_has_nothing_that_says_so(world: World, tmp_path: Path) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ARCHIVE % (tmp_path / "archive").as_uri())
        await sharded(world, alice)
        await alice.unpublish("cities")
        await signed(alice)
        request = wire.PushRequest(refs=("cities",), to="archive", private=True)
        (item,) = (await alice.done(alice.api.pushing.push(request))).items
        assert item.fault is not None
        assert item.fault.rule == "shard-card"


async def test_a_collection_on_a_web_server_is_mirrored_as_one(world: World, tmp_path: Path) -> None:
    """By a node that never meets the publisher, also when a shard got no block of a transaction."""
    store = tmp_path / "archive"
    rows = []
    with Site(store).open() as site:
        for day in (2, 3):
            async with world.running("alice") as alice:
                if day == 2:
                    await alice.apply(ARCHIVE % store.as_uri())
                    await sharded(world, alice)
                await brought(world, alice, day, "Krems")
                await push_whole(alice, "cities", "archive")
                rows = await standing(alice, "cities")
            async with world.running("bob") as bob:
                if day == 2:
                    request = wire.MirrorRequest(source=f"{site.url}/cities", as_name="cities")
                    await bob.added(request)
                (item,) = await bob.pull("cities")
                assert item.fault is None
                assert await standing(bob, "cities") == rows


@pytest.mark.parametrize("has_card", [True, False])
async def test_a_mirror_from_the_web_goes_on_to_the_shards_of_a_handover(
    world: World, tmp_path: Path, has_card: bool
) -> None:
    """The folder of the first shard has the card that lists all. Where it is missing, as earlier versions leave it, the
    mirror goes on with the chain that ended, and crosses with the collection's own folder."""
    store = tmp_path / "archive"
    with Site(store).open() as site:
        async with world.running("alice") as alice:
            await alice.apply(ARCHIVE % store.as_uri())
            await known(world, alice)
            await push_whole(alice, "cities", "archive")
        async with world.running("bob") as bob:
            await bob.added(wire.MirrorRequest(source=f"{site.url}/cities", as_name="theirs"))
            before = await standing(bob, "theirs")
        async with world.running("alice") as alice:
            await shard(alice, 3, "city")
            await over(alice, 1)
            await brought(world, alice, 2, "Krems")
            await push_whole(alice, "cities.r0", "archive/cities")
            await push_whole(alice, "cities", "archive/cities.r1")
            rows = await standing(alice, "cities")
        (card,) = store.glob("*/trust/card")
        if not has_card:
            card.unlink()
        async with world.running("bob") as bob:
            await bob.pull("theirs")
            if has_card:
                await bob.heard("rendition.followed")
                assert await standing(bob, "theirs") == rows
                return
            (held,) = await bob.heard("mirror.held")
            assert "continues as 3 shards" in held.message
            assert f"{site.url}/NAME" in held.message
            assert await standing(bob, "theirs") == before
            await bob.added(wire.MirrorRequest(source=f"{site.url}/cities.r1", as_name="theirs.r1"))
            await bob.heard("rendition.followed")
            assert await standing(bob, "theirs") == rows


@pytest.mark.slow
async def test_a_collection_that_went_on_elsewhere_is_never_read_in_part(world: World, tmp_path: Path) -> None:
    """By other shards, it is what it was; by one chain, that chain; at times before it, refused."""
    store = tmp_path / "archive"
    async with world.running("alice") as alice:
        await alice.apply(ARCHIVE % store.as_uri())
        await sharded(world, alice)
        await push_whole(alice, "cities", "archive")
        before = instant.render(world.clock.now())
        for number, shards in ((2, 2), (3, 1)):
            by = ("city",) if shards > 1 else ()
            request = wire.RenditionRequest(origin="snapshot", shards=shards, by=by)
            await alice.done(alice.api.renditions.create("cities", request))
            await alice.done(alice.api.renditions.hand_over("cities", number, wire.HandoverRequest()))
            await push_whole(alice, f"cities.r{number - 1}", f"archive/cities{'.r2' * (number == 3)}")
            await push_whole(alice, "cities", f"archive/cities.r{number}")
            assert len(await away(lambda: current(open_repository(store)))) == 5
            assert await away(lambda: open_repository(store).open("cities").at(before).to_arrow().num_rows) == 5
        assert await away(lambda: open_repository(store).open("cities.r2").to_arrow().num_rows) == 5
        with pytest.raises(Refused, match="when it was 2 shards"):
            await away(lambda: open_repository(store).open("cities.r2").at(before).to_arrow())


DOORS = ("ipfs", "node")


class Party(NamedTuple):
    """Who pushes to ``repository``, and who pulls from there."""

    alice: Node
    bob: Node
    house: Node
    """The node that takes pushes; ``None`` on IPFS."""


@asynccontextmanager
async def party(world: World, door: str) -> AsyncIterator[Party]:
    swarm = Swarm()
    async with (
        world.running("alice", ipfs=MemoryIpfs(swarm)) as alice,
        world.running("bob", private=True, ipfs=MemoryIpfs(swarm)) as bob,
    ):
        if door == "ipfs":
            name = record.name_of(alice.home.keys.node_key().dataset_id)
            for each in (alice, bob):
                await each.apply(SHELF % f"ipns://{name}")
            yield Party(alice, bob, None)
            return
        async with world.running("house", private=True, http=TAKES) as house:
            manifest = REPOSITORY % (await token_of(house), url_of(house))
            for each in (alice, bob):
                await each.apply(manifest.replace("headers: {name: house}", "headers: {name: shelf}"))
            yield Party(alice, bob, house)


@pytest.mark.parametrize("door", DOORS)
async def test_all_shards_go_to_a_node_and_to_ipfs(world: World, door: str) -> None:
    async with party(world, door) as (alice, bob, house):
        await sharded(world, alice)
        shards = alice.home.shards_of(alice.dataset("cities"))
        (item,) = (await alice.done(alice.api.pushing.push(wire.PushRequest(refs=("cities",), to="shelf")))).items
        assert (item.fault, item.outcome, item.blocks) == (None, "pushed", sum(map(alice.size, map(str, shards))))
        await push_whole(alice, "cities", "shelf")
        (come,) = await bob.pull("shelf/cities")
        assert (come.ref, come.outcome, come.fault) == ("cities", "updated", None), come
        for each in (bob, house) if house is not None else (bob,):
            assert each.home.shards_of(each.dataset("cities")) == shards
            assert await standing(each, "cities") == await standing(alice, "cities")
            assert [view.name for view in await each.dataset_views()] == ["cities"]
            assert not each.parts.visibility.is_public(each.dataset("cities"))
        if house is not None:
            view = await house.api.declarations.get("Dataset", "cities")
            assert view.headers["account"]["name"] == "carol"
            (hidden,) = await bob.pull(f"odf+{url_of(house)}/cities", as_name="again")
            assert hidden.fault is not None, "without the token it is not there"
        await over(alice, (await shard(alice, 2, "city")).number)
        late = (await alice.done(alice.api.pushing.push(wire.PushRequest(refs=("cities",), to="shelf")))).items[0]
        assert late.fault is not None, "another rendition has other shards"
        await push_whole(alice, "cities", "shelf/later")
        (come,) = await bob.pull("shelf/later")
        assert (come.ref, come.fault) == ("later", None)
        assert await standing(bob, "later") == await standing(alice, "cities")


STEPS = st.one_of(
    st.tuples(st.just("bring"), st.integers(1, 5)),
    st.tuples(st.just("one"), st.integers(0, 2)),
    st.tuples(st.just("push"), st.just(0)),
    st.tuples(st.just("pull"), st.just(0)),
)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
@settings(max_examples=share(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=2, max_size=8))
@example([("bring", 3), ("one", 1), ("pull", 0), ("bring", 1), ("one", 0), ("one", 2), ("pull", 0), ("push", 0)])
def test_what_is_pulled_there_was_pushed_whole(tmp_path: Path, door: str, steps: list[tuple[str, int]]) -> None:
    """It is a state of the publisher, that of the last push or a later one, whatever shards were pushed alone."""
    run_apart(tmp_path, play, door, steps)


async def play(world: World, door: str, steps: list[tuple[str, int]]) -> None:
    async with party(world, door) as (alice, bob, _):
        await sharded(world, alice)
        shards, day, least = alice.home.shards_of(alice.dataset("cities")), 1, 0
        states = [await standing(alice, "cities")]
        for kind, value in (("push", 0), *steps, ("push", 0), ("pull", 0)):
            match kind:
                case "bring":
                    day += 1
                    await brought(world, alice, day, *CITIES[day % 3 : day % 3 + value])
                    states.append(await standing(alice, "cities"))
                case "one":
                    await push_whole(alice, str(shards[value]), f"shelf/{shards[value].multibase}")
                case "push":
                    await push_whole(alice, "cities", "shelf")
                    least = len(states) - 1
                case "pull":
                    (item,) = await bob.pull("shelf/cities")
                    if item.fault is not None:  # the node has heard of heads whose blocks are not all there yet
                        assert (door, item.fault.rule) == ("node", "repository-dataset"), item
                    else:
                        assert await standing(bob, "cities") in states[least:]


async def test_a_name_on_ipfs_is_of_all_shards(world: World) -> None:
    async with party(world, "ipfs") as (alice, bob, _):
        await sharded(world, alice)
        shards = alice.home.shards_of(alice.dataset("cities"))
        view = await alice.done(alice.api.publications.publish(wire.PublishRequest(ref="cities")))
        assert view.dataset_id == str(shards[0])
        assert {each.dataset_id for each in await alice.api.publications.list()} == set(map(str, shards))
        with pytest.raises(errors.Refused) as refused:
            await alice.api.publications.publish(wire.PublishRequest(ref="cities", delegation="x"))
        assert refused.value.rule == "shard-whole"
        for each in shards:
            request = wire.ImportRequest(source=f"/ipns/{record.name_of(each)}", as_name=f"one-{each.multibase[-4:]}")
            assert (await bob.done(bob.api.flow.import_(request))).blocks == alice.size(str(each))
        await alice.api.publications.withdraw("cities")
        assert await alice.api.publications.list() == []


async def test_a_node_that_takes_single_chains_alone_gets_no_shard(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with party(world, "node") as (alice, _, house):
        await sharded(world, alice)
        monkeypatch.setattr(SmartApplication, "_unite", SmartApplication._upload)  # as in earlier versions
        (item,) = (await alice.done(alice.api.pushing.push(wire.PushRequest(refs=("cities",), to="shelf")))).items
        assert item.fault is not None
        assert (item.fault.rule, "each shard by its id" in (item.fault.hint or "")) == ("shard-whole", True)
        assert not house.home.chains.datasets()
