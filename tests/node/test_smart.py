"""The smart protocol between nodes, over loopback, and with kamu as recorded: pull, push, what is cut or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from chain.errors import Fault, Remote
from chain.instant import Instant
from chain.multihash import Multihash
from chain.store.layout import HEAD
from config import model
from odfd.access.relations import Role
from odfd.control import wire
from odfd.runtime.websocket import SocketClosed
from odfd.site.server import VISITOR
from odfd.smart import transport, upload
from odfd.smart.batches import PUSHED, pack
from odfd.smart.messages import (
    ObjectFile,
    OpenPull,
    OpenPush,
    PushObjects,
    PushObjectsAnswer,
    TransferPlan,
    UploadProgress,
    decode,
    encode,
)
from odfd.smart.plans import Counter
from odfd.smart.transport import conversation, object_files
from p2p.identity import peer_of_seed
from p2p.web.transfer import WebTransfers
from worlds.kamu_sessions import (
    ACCOUNT,
    EVENTS,
    FOREVER,
    ORDERS,
    TAKES,
    TRANSCRIPTS,
    bring,
    half,
    head_of,
    host_of,
    know,
    pull,
    push,
    token_of,
)
from worlds.manifests import ROOT
from worlds.node_world import Node, World, until
from worlds.replaying import as_client, kamu_server
from worlds.siege_doors import SMART, headers_of_others
from worlds.transcripts import Mask, read

SITE = model.Http(listen=("127.0.0.1:0",))
REPOSITORY = """$schema: SecretSet
headers: {name: house-key}
spec: {secrets: {token: %s}}
---
$schema: Repository
headers: {name: house}
spec: {url: "odf+%s", credentials: house-key}
"""
SEED = bytes([9]) * 32


def url_of(node: Node) -> str:
    (url,) = node.parts.site.urls
    return str(url)


async def grown(world: World, node: Node, files: int = 1, name: str = "alice") -> Any:
    """A dataset ``cities`` with so many slices."""
    for number in range(files):
        world.write(name, f"{number}.csv", f"2024-01-{number + 1:02}T00:00:00Z,c{number},{number}")
    if not node.home.chains.datasets():
        await node.apply(ROOT)
    await node.pull("cities")
    return node.dataset("cities")


async def pushed(node: Node, **more: Any) -> wire.PushItem:
    (item,) = (await node.done(node.api.pushing.push(wire.PushRequest(refs=("cities",), **more)))).items
    return item  # type: ignore[no-any-return]


def raws(node: Node, name: str = "cities") -> list[bytes]:
    chain = node.home.chains.chain(node.dataset(name))
    return list(chain.raw_blocks(0, chain.head().size))


@asynccontextmanager
async def spoken(node: Node, path: str, token: str | None = None) -> AsyncIterator[Any]:
    headers = SMART | ({} if token is None else {"Authorization": f"Bearer {token}"})
    async with WebTransfers() as web, conversation(web, f"{url_of(node)}/{path}", headers) as (socket, _):
        yield socket


class Watched:
    """Requests that came to a node, by their paths."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        served = node.parts.site._application

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            self.paths.append(f"{scope['method']} {scope['path']}")
            await served(scope, receive, send)

        monkeypatch.setattr(node.parts.site, "_application", answer)

    def of(self, part: str) -> list[str]:
        return [each for each in self.paths if part in each]


async def test_all_blocks_come_in_one_conversation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice", http=SITE) as alice, world.running("bob") as bob:
        await grown(world, alice, 3)
        watched = Watched(alice, monkeypatch)
        place = f"odf+{url_of(alice)}/cities".replace("odf+http", "odf+ws")
        (item,) = await bob.pull(place)
        assert (item.outcome, item.blocks, item.fault) == ("updated", alice.size("cities"), None)
        assert raws(bob) == raws(alice)
        assert watched.of("/pull") == ["GET /cities/pull"]
        assert not watched.of("/blocks/"), "no block was asked for by itself"
        assert len(watched.of("/data/")) == 3
        await grown(world, alice, 4)
        watched.paths.clear()
        (more,) = await bob.pull(place)
        assert (more.blocks, raws(bob)) == (1, raws(alice))
        assert (len(watched.of("/pull")), len(watched.of("/blocks/")), len(watched.of("/data/"))) == (1, 0, 1)
        (same,) = await bob.pull(place)
        assert same.outcome == "up-to-date"
        assert (await bob.done(bob.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok


async def test_who_does_not_speak_it_is_read_block_by_block(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice", http=SITE) as alice, world.running("bob") as bob:
        await grown(world, alice, 2)
        site = alice.parts.smart._site
        monkeypatch.setattr(alice.parts.site, "_application", site)
        (item,) = await bob.pull(f"odf+{url_of(alice)}/cities", as_name="towns")
        assert (item.ref, item.blocks) == ("towns", alice.size("cities"))
        assert "blocks come one by one" in [event for event, _ in bob.logger.said]


async def test_a_pull_that_is_cut_off_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice", http=SITE) as alice, world.running("bob") as bob:
        await grown(world, alice, 3)
        place, bring = f"odf+{url_of(alice)}/cities", transport.SmartTransport.bring_blocks

        async def cut(self: Any, *args: Any) -> None:
            await bring(self, *args)
            raise Remote("the line is cut", rule="cut")

        monkeypatch.setattr(transport.SmartTransport, "bring_blocks", cut)
        (item,) = await bob.pull(place)
        assert item.fault.rule == "cut"
        assert not bob.home.chains.datasets()
        monkeypatch.undo()
        watched = Watched(alice, monkeypatch)
        monkeypatch.setattr(transport._Pull, "run", _no_pull)
        (item,) = await bob.pull(place)
        assert (item.outcome, raws(bob)) == ("updated", raws(alice))
        assert not watched.of("/blocks/"), "they were kept"


async def _no_pull(_: object, *__: object) -> None:
    return None


async def test_nothing_unpublished_and_no_garbage(world: World) -> None:
    """Attack T-REPO-03: a pull by web socket of what is not published, garbage in place of messages.

    Defence: the library of the site answers; messages are parsed under limits, and end the conversation.
    """
    async with world.running("alice", private=True, http=SITE) as alice:
        await grown(world, alice, 1)
        for path in ("cities/pull", "nothing/pull"):
            with pytest.raises(Fault, match="404"):
                async with spoken(alice, path):
                    raise AssertionError
        await alice.publish("cities")
        other = str(Multihash.sha3_256(b"another"))
        async with spoken(alice, "cities/pull") as socket:
            await socket.send(encode(OpenPull(begin_after=other)))
            assert "InvalidInterval" in await socket.receive(4096)
        for garbage in (
            "{",
            '{"begin_after": 3}',
            "null",
            "[" * 100_000,
            '{"begin_after":"f1620' + "0" * 60_000 + '"}',
        ):
            async with spoken(alice, "cities/pull") as socket:
                await socket.send(garbage)
                with pytest.raises(Fault) as caught:
                    await socket.receive(4096)
                assert isinstance(caught.value, SocketClosed)
                assert caught.value.code in (1009, 1011)
        async with httpx.AsyncClient() as client:
            url = f"{url_of(alice)}/cities"
            upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "A" * 22 + "=="}
            plain = await client.get(f"{url}/pull")
            old = await client.get(f"{url}/pull", headers=upgrade | {"Sec-WebSocket-Version": "13"})
            assert (plain.status_code, plain.json()["rule"]) == (426, "smart-upgrade")
            assert (old.status_code, old.json()["rule"]) == (400, "smart-version")
            assert (await client.get(f"{url}/push")).status_code == 501
            assert (await client.get(f"{url}/refs/head")).status_code == 200
            assert (await client.get(f"{url}/refs/head", headers={"Authorization": "Basic eDp5"})).status_code == 200
            assert (await client.get(f"{url}/refs/head", headers={"Authorization": "Bearer x"})).status_code == 401


async def test_a_push_lands_privately_and_again(world: World) -> None:
    async with world.running("alice") as alice, world.running("house", private=True, http=TAKES) as house:
        await grown(world, alice, 3)
        token = await token_of(house)
        told = repr(await alice.apply(REPOSITORY % (token, url_of(house))))
        item = await pushed(alice)
        assert (item.fault, item.outcome, item.blocks, item.objects) == (None, "pushed", alice.size("cities"), 3)
        assert raws(house) == raws(alice)
        view = await house.api.declarations.get("Dataset", "cities")
        assert view.headers["account"]["name"] == "carol"
        assert not house.parts.visibility.is_public(house.dataset("cities"))
        assert (await pushed(alice)).outcome == "up-to-date"
        await grown(world, alice, 4)
        more = await pushed(alice)
        assert (more.blocks, more.objects, raws(house)) == (1, 1, raws(alice))
        assert (await house.done(house.api.verification.verify("cities", wire.VerifyRequest(level="data")))).ok
        async with world.running("bob") as bob:
            await bob.apply(REPOSITORY % (token, url_of(house)))
            (come,) = await bob.pull("house/cities")
            assert come.blocks == alice.size("cities")
            (hidden,) = await bob.pull(f"odf+{url_of(house)}/cities", as_name="again")
            assert hidden.fault is not None, "without the token it is not there"
        told += repr(item) + repr(alice.logger.said) + repr(house.logger.said)
        assert token not in told


async def test_objects_that_are_there_are_not_sent_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.running("alice") as alice, world.running("house", private=True, http=TAKES) as house:
        await grown(world, alice, 3)
        await alice.apply(REPOSITORY % (await token_of(house), url_of(house)))
        send, sent = upload._Upload._upload, 0

        async def some(self: Any, strategy: Any) -> None:
            nonlocal sent
            if sent == 2:
                raise Remote("the line is cut", rule="cut")
            sent += 1
            await send(self, strategy)

        monkeypatch.setattr(upload, "TOGETHER", 1)
        monkeypatch.setattr(upload._Upload, "_upload", some)
        assert (await pushed(alice)).fault.rule == "cut"
        assert not house.home.chains.datasets()
        monkeypatch.undo()
        await until(lambda: not house.parts.smart.backend.sessions)
        item = await pushed(alice)
        assert (item.outcome, item.objects, raws(house)) == ("pushed", 1, raws(alice))


async def test_of_two_who_push_one_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-REPO-02: two pushes from one head.

    Defence: the head moves once, by comparison; the other push gets an error.

    Both go on from the same head, of which the second finds another when all of its parts are there.
    """
    async with world.running("alice") as alice:
        await grown(world, alice, 1)
    world.steal("alice", "mallory", SEED)
    world.wires.cut(peer_of_seed(SEED))
    async with (
        world.running("alice") as alice,
        world.running("mallory") as mallory,
        world.running("house", private=True, http=TAKES) as house,
    ):
        await mallory.sign_again(alone=True)
        token = await token_of(house)
        for number, node in enumerate((alice, mallory)):
            await node.apply(REPOSITORY % (token, url_of(house)))
            if not number:
                await pushed(node)
            world.write("alice", f"b{number}.csv", f"2024-02-03T00:00:00Z,Wels,{number}")
            await node.pull("cities")
        taken, waits, go = house.parts.import_export.take_pushed, trio.Event(), trio.Event()

        async def late(*said: Any) -> Any:
            if not waits.is_set():
                waits.set()
                await go.wait()
            return await taken(*said)

        monkeypatch.setattr(house.parts.import_export, "take_pushed", late)
        items: list[wire.PushItem] = []

        async def push() -> None:
            items.append(await pushed(alice))
            waits.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(push)
            await waits.wait()
            assert not items, items
            assert (await pushed(mallory)).outcome == "pushed"
            go.set()
        assert items[0].fault is not None
        assert items[0].fault.rule == "push-raced"
        assert raws(house) == raws(mallory)
        again = await pushed(alice)
        assert again.fault is not None
        assert again.fault.rule == "push-diverged"
        assert raws(house) == raws(mallory)


async def test_other_names_roles_and_datasets_are_refused(world: World) -> None:
    """Attack T-REPO-03: a push without a token, by a reader, or of another dataset's name.

    Defence: it is refused before the web socket is opened, or before an object is taken.
    """
    async with world.running("alice") as alice, world.running("house", private=True, http=TAKES) as house:
        await grown(world, alice, 2)
        token = await token_of(house)
        await alice.apply(REPOSITORY % (token, url_of(house)))
        reader = await token_of(house, Role.READER)
        for bad, status in ((None, "401"), ("odf_wrong", "401"), (reader, "403")):
            with pytest.raises(Fault, match=status):
                async with spoken(house, "cities/push", bad):
                    raise AssertionError
        async with httpx.AsyncClient() as client:
            name = Multihash.sha3_256(b"x")
            url = f"{url_of(house)}/cities/data/{name}"
            for headers, code in (({}, 401), ({"Authorization": f"Bearer {token}"}, 404)):
                assert (await client.put(url, content=b"x", headers=headers)).status_code == code
        await pushed(alice)
        (item,) = (await alice.done(alice.api.pushing.push(wire.PushRequest(refs=("cities",), to="house/towns")))).items
        assert item.fault is not None
        assert "dataset-exists" in item.fault.detail
    async with world.running("alice", http=TAKES) as alice:
        with pytest.raises(Fault, match="is its"):  # a reader of what is published, who is no maintainer of it
            async with spoken(alice, "cities/push", await token_of(alice)):
                raise AssertionError


async def test_a_push_with_no_token_that_may_opens_nothing(world: World) -> None:
    """Attack T-REPO-03: a push with a token of another node, an expired or a revoked one, or one in a cookie, a query
    or another scheme.

    Defence: only a bearer token that this node issued and that is good opens anything.

    Whatever a caller writes instead of one, in the greeting of a web socket and beside an upload.
    """
    async with world.running("alice", http=TAKES) as alice, world.running("house", private=True, http=TAKES) as house:
        good, elsewhere, reader = await token_of(house), await token_of(alice), await token_of(house, Role.READER)
        account = (await house.api.declarations.get("Account", "carol")).headers["id"]
        late, _ = house.parts.tokens.make(account, Role.MAINTAINER, "", Instant(1))
        gone, grant = house.parts.tokens.make(account, Role.MAINTAINER, "", FOREVER)
        house.parts.tokens.revoke(grant.id)
        name = Multihash.sha3_256(b"x")
        given = headers_of_others(("odf_wrong", elsewhere, reader, late, gone), good)
        async with WebTransfers() as web, httpx.AsyncClient() as client:
            for headers in given:
                for path in ("cities/push", f"cities/push?token={good}"):
                    with pytest.raises(Fault, match=r"40[13]"):
                        async with conversation(web, f"{url_of(house)}/{path}", SMART | headers):
                            raise AssertionError
                url = f"{url_of(house)}/cities/data/{name}?token={good}"
                assert (await client.put(url, content=b"x", headers=headers)).status_code in (401, 404), headers
        assert not house.parts.smart.backend.sessions
        assert not house.home.chains.datasets()


async def test_a_token_that_is_revoked_in_the_middle_of_a_push_commits_nothing(world: World) -> None:
    """Attack T-REPO-03: a token that is revoked in the middle of a push.

    Defence: rights are looked at again before the head moves.
    """
    async with world.running("alice") as alice, world.running("house", private=True, http=TAKES) as house:
        await grown(world, alice, 1)
        blocks = raws(alice)
        await house.apply(ACCOUNT)
        account = (await house.api.declarations.get("Account", "carol")).headers["id"]
        token, grant = house.parts.tokens.make(account, Role.MAINTAINER, "", FOREVER)
        batch = list(pack(PUSHED, len(blocks), [(Multihash.sha3_256(raw), raw) for raw in blocks]))
        files = tuple(each for raw in blocks for each in object_files(raw))
        async with spoken(house, "cities/push", token) as socket, httpx.AsyncClient() as client:
            texts = [[encode(OpenPush(transfer_plan=plan_of(blocks)))], batch]
            for text in (*texts, [encode(PushObjects(object_files=files, is_truncated=False))]):
                await socket.send_pieces(text)
                answer = await socket.receive(1 << 20)
            wanted = decode(answer, PushObjectsAnswer).ok.object_transfer_strategies
            assert wanted
            for each in wanted:
                data = alice.home.objects.read(Multihash.parse(each.object_file.physical_hash))
                headers = {one.name: one.value for one in each.upload_to.headers}
                assert (await client.put(each.upload_to.url, content=data, headers=headers)).status_code == 200
            house.parts.tokens.revoke(grant.id)
            assert (await client.put(each.upload_to.url, content=data, headers=headers)).status_code == 401
            await socket.send(encode(UploadProgress(details="Complete")))
            await socket.send("{}")
            with pytest.raises(SocketClosed):
                await socket.receive(1 << 20)
        assert not house.home.chains.datasets()


def plan_of(blocks: list[bytes]) -> TransferPlan:
    counter = Counter()
    for raw in blocks:
        counter.add(raw)
    return counter.plan


async def test_a_push_that_lies_achieves_nothing(world: World) -> None:
    """Attack T-REPO-03: a push with a false head, missing or other blocks, objects that no block names, or bytes of
    another hash.

    Defence: each is refused by its rule; nothing counts before all is verified, and its folder is removed.

    By hand: a head that is none, blocks that are missing, others than promised, objects of nothing, garbage.
    """
    async with world.running("alice") as alice, world.running("house", private=True, http=TAKES) as house:
        await grown(world, alice, 2)
        token, blocks = await token_of(house), raws(alice)
        named = [(Multihash.sha3_256(raw), raw) for raw in blocks]
        plan = plan_of(blocks)
        stranger = ObjectFile(object_type="DataSlice", physical_hash=str(Multihash.sha3_256(b"x")), size=1)

        async def told(*texts: str | list[str]) -> str:
            async with spoken(house, "cities/push", token) as socket:
                said = ""
                for text in texts:
                    await socket.send_pieces([text] if isinstance(text, str) else text)
                    try:
                        said = await socket.receive(1 << 20)
                    except SocketClosed as end:
                        return f"{end.code} {end.reason}"
                return str(said)

        def asked(plan: TransferPlan, **more: Any) -> str:
            return encode(OpenPush(transfer_plan=plan, **more))

        batch = list(pack(PUSHED, len(named), named))
        assert "InvalidHead" in await told(asked(plan, current_head=str(named[0][0])))
        assert "smart-force" in await told(asked(plan, force_update_if_diverged=True))
        assert "smart-plan" in await told(asked(plan), list(pack(PUSHED, 1, named[:1])))
        late = named[1:]
        objects = encode(PushObjects(object_files=(), is_truncated=False))
        few = plan_of(blocks[1:])
        assert "prev-block" in await told(asked(few), list(pack(PUSHED, len(late), late)), objects)
        strange = encode(PushObjects(object_files=(stranger,), is_truncated=False))
        assert "smart-objects" in await told(asked(plan), batch, strange)
        lied = [(named[0][0], blocks[1]), *named[1:]]
        assert "block-hash" in await told(asked(plan), list(pack(PUSHED, len(lied), lied)))
        assert "smart-message" in await told(asked(plan), '{"new_blocks":{"payload":[1,2,300]}}')
        assert "1011" in await told("{}")
        # All is said to be there, and nothing is: what is lacking is found before anything counts.
        named_files = tuple(each for raw in blocks for each in object_files(raw))
        files = encode(PushObjects(object_files=named_files, is_truncated=False))
        end = encode(UploadProgress(details="Complete"))
        async with spoken(house, "cities/push", token) as socket:
            for text in ([asked(plan)], batch, [files]):
                await socket.send_pieces(text)
                answer = await socket.receive(1 << 20)
            found = decode(answer, PushObjectsAnswer).ok.object_transfer_strategies
            assert {each.push_strategy for each in found} == {"HttpUpload"}
            place = found[0].upload_to
            headers = {each.name: each.value for each in place.headers}
            async with httpx.AsyncClient() as client:
                size = found[0].object_file.size
                assert (await client.put(place.url, content=bytes(size), headers=headers)).status_code == 422
                assert (await client.put(place.url, content=b"short", headers=headers)).status_code == 422
            await socket.send(end)
            await socket.send("{}")
            with pytest.raises(SocketClosed) as caught:
                await socket.receive(1 << 20)
            assert caught.value.code == 1008, "kamu takes 1011 for a confirmation there"
        assert not house.home.chains.datasets()
        staged = house.home.directory / "staged" / "pushed"
        await until(lambda: not (house.parts.smart.backend.sessions or list(staged.iterdir())))


async def test_an_unencrypted_token_is_refused(world: World) -> None:
    """Attack T-REPO-03: a token sent unencrypted over the network to the site.

    Defence: it is refused, and the answer asks its owner to revoke it.
    """
    async with world.running("alice", http=TAKES) as alice:
        await grown(world, alice)
        told: list[Any] = []

        async def send(message: Any) -> None:
            told.append(message)

        async def receive() -> Any:
            raise AssertionError("nothing of it is read")

        scope = {"method": "GET", "path": "/cities/refs/head", "headers": [(b"authorization", b"Bearer x")]}
        await alice.parts.smart({**scope, VISITOR: "192.0.2.7"}, receive, send)
        assert (told[0]["status"], b"smart-clear" in told[1]["body"]) == (403, True)


# Replays what a real kamu-cli said, without it: a node answers and asks as it did when kamu was there.
# The transcripts (``tests/golden/kamu-smart``) are of all that passed between the two, in both roles of each;
# ``worlds. transcripts`` says what is masked. ``tests/e2e/node/test_kamu.py`` makes them anew.

WHOLE = (EVENTS / HEAD).read_text().strip()


async def test_kamu_gets_the_answers_that_it_pulled_by(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-pulls.json")
    async with world.running("alice", http=TAKES) as node:
        mask = Mask(host_of(node), await token_of(node))
        await bring(node, half(tmp_path / "half"))
        await as_client(sessions["first"], mask)
        await bring(node, EVENTS)
        await as_client(sessions["later"], mask)
        await as_client(sessions["same"], mask)


async def test_kamu_pushes_once_more(world: World) -> None:
    sessions = read(TRANSCRIPTS / "kamu-pushes.json")
    async with world.running("alice", http=TAKES) as node:
        mask = Mask(host_of(node), await token_of(node))
        await as_client(sessions["first"], mask)
        assert head_of(node) != WHOLE
        await as_client(sessions["later"], mask)
        assert head_of(node) == WHOLE
        await as_client(sessions["same"], mask)


async def test_a_node_pulls_from_kamu_as_before(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-is-pulled-from.json")
    async with kamu_server() as kamu, world.running("alice") as node, world.running("bob") as other:
        await know(node, kamu.host, "of-kamu")
        async with kamu.session(sessions["first"]):
            await pull(node)
        assert head_of(node) == (half(tmp_path / "half") / HEAD).read_text()
        async with kamu.session(sessions["later"]):
            await pull(node)
        assert head_of(node) == WHOLE
        async with kamu.session(sessions["same"]):
            await pull(node)
        await know(other, kamu.host, "of-kamu")
        await bring(other, ORDERS)
        async with kamu.session(sessions["another by that name"]):
            await pull(other, as_name="more")
        assert head_of(other, "more") == WHOLE


async def test_a_node_pushes_to_kamu_as_before(world: World, tmp_path: Path) -> None:
    sessions = read(TRANSCRIPTS / "kamu-is-pushed-to.json")
    async with kamu_server() as kamu, world.running("alice") as node:
        await know(node, kamu.host, "of-kamu")
        await bring(node, half(tmp_path / "half"))
        async with kamu.session(sessions["first"]):
            await push(node)
        await bring(node, EVENTS)
        async with kamu.session(sessions["later"]):
            await push(node)
        async with kamu.session(sessions["same"]):
            await push(node)
