"""Who may write and sign, changed while nodes run, and after a node lost its journals."""

from __future__ import annotations

import base64
import shutil
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain import instant
from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.instant import Instant
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import ATTESTATION, Authority, Epoch, HeadStatement, Roots, TreeHead, Writer
from chain.statements.tree import Frontier
from chain.store import rewriting
from config import model
from odfd.control import wire
from odfd.mirrors.epoch_switch import RewriteWaiting
from odfd.services.trust import journal_recovery
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from p2p.ports import Judgement, PeerId, Topic
from worlds.eventually import PATIENCE
from worlds.faults import breaks
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

# Who may write, changed while nodes run: a key goes offline, a stolen one is shut out, a new node takes over.


ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
PEER = PeerId("12D3KooWPeer")


async def published(world: World, node: Node) -> Any:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.pull()
    return node.dataset("cities")


async def change(node: Node, ref: str, action: str, seed: bytes | None = None, **more: Any) -> wire.AuthorityView:
    """As ``odfctl trust authority`` does it."""
    drop = more.pop("drop_key", False)
    draft = await node.api.authority.draft_authority(ref, wire.AuthorityDraftRequest(action=action, **more))
    signatures = () if seed is None else (signature(seed, draft.payload),)
    request = wire.AuthorityRequest(payload=draft.payload, signatures=signatures, drop_key=drop)
    return await node.api.authority.change_authority(ref, request)


def signature(seed: bytes, payload: str) -> wire.SignatureText:
    key = SigningKey(seed)
    made = base64.b64encode(key.sign(envelope.preauth(base64.b64decode(payload)))).decode()
    return wire.SignatureText(key=str(key.did), signature=made)


async def go_offline(node: Node, ref: str) -> bytes:
    """Take the dataset's key off the node; the key."""
    seed = bytes.fromhex((await node.api.authority.dataset_key(ref)).seed)
    await change(node, ref, "rotate", seed, drop_key=True)
    return seed


def newest(node: Node, dataset: Any) -> HeadStatement:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(dataset)
    assert found is not None
    return found[0]


def stolen_head(key: SigningKey, head: HeadStatement, epoch: int, size: int, now: Instant) -> bytes:
    said = HeadStatement(
        dataset=head.dataset, epoch=epoch, size=size, root_hash=b"?" * 32, authority=head.authority,
        issued_at=statement.when(now), expires_at=statement.when(Instant(now + 80 * 86400 * instant.SECOND)),
        head=Multihash.sha3_256(b"forged"),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), key)


async def test_the_key_goes_offline_and_work_goes_on(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        seed = await go_offline(alice, "cities")
        view = await alice.api.authority.show_authority("cities")
        assert (view.version, view.epoch, view.dataset_key) == (1, 1, "offline")
        assert [(each.key, each.mine) for each in view.writers] == [(alice.key, True)]
        assert view.roots == (str(SigningKey(seed).did),)
        with pytest.raises(NotFound, match="taken offline"):
            await alice.api.authority.dataset_key("cities")
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        assert [item.outcome for item in await alice.pull("cities")] == ["updated"]
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") < alice.size("cities"):
                await bob.parts.scheduler.get(cities).turned.wait()
        assert newest(bob, cities) == newest(alice, cities)
        assert (newest(bob, cities).epoch, newest(bob, cities).authority) == (1, 1)
        trust = await bob.api.trust.show("theirs")
        assert (trust.reach.use, trust.epoch) == (alice.size("cities"), 1)


async def test_verdicts_outlive_an_epoch_without_a_run(world: World) -> None:
    """What an epoch keeps stays as true as it was: validators say it again of the new one."""
    attests = model.Policy(profile="validator", publish=model.Publish(attest=True))
    async with world.running("alice") as alice, world.running("bob", attests) as bob:
        await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS})
        await world.spread(alice, "cities", "towns")
        for name in ("cities", "towns"):
            await bob.mirror(alice.dataset(name), name)
        await bob.heard("attestation.signed")
        runs = bob.engine.transforms
        await go_offline(alice, "towns")
        world.clock.instant += 600 * instant.SECOND
        bob.parts.validator.loop.poke()
        await bob.heard("attestation.signed", 2)
        with bob.home.database.read() as connection:
            said = Ledger(connection).attestations(alice.dataset("towns"))
        (mine,) = said.values()
        assert mine.epoch == 1
        assert [(span.first, span.last, span.verdict) for span in mine.spans] == [(0, 3, "reproduced")]
        assert (runs, bob.engine.transforms) == (1, 1)


async def test_without_the_offline_key_nothing_changes(world: World) -> None:
    """Attack T-HEAD-05: a node that is broken into, without the offline key.

    Defence: only roots change the writers and the epoch.
    """
    async with world.running("alice") as alice:
        await published(world, alice)
        seed = await go_offline(alice, "cities")
        other = str(SigningKey(b"o" * 32).did)
        with pytest.raises(Refused, match="1 more of the root keys") as caught:
            await change(alice, "cities", "add-writer", key=other)
        assert "--offline-key" in caught.value.hint
        with pytest.raises(Refused, match="1 more of the root keys"):
            await change(alice, "cities", "add-writer", b"x" * 32, key=other)
        assert (await alice.api.authority.show_authority("cities")).version == 1
        view = await change(alice, "cities", "add-writer", seed, key=other)
        assert {each.key for each in view.writers} == {alice.key, other}
        assert (view.version, view.epoch) == (2, 1)
        view = await change(alice, "cities", "remove-writer", seed, key=other)
        assert ([each.key for each in view.writers], view.epoch) == ([alice.key], 2)
        assert newest(alice, alice.dataset("cities")).epoch == 2


async def test_stolen_writer_closed_out(world: World) -> None:
    """Attack T-HEAD-05: a stolen node key, and a fast-forward with it.

    Defence: one signature of the offline key removes the writer and opens an epoch, which outranks all that the stolen
    key signs.

    The node's key is stolen: a new node mirrors, and one command with the offline key shuts the thief out.
    """
    async with world.running("carol") as carol:
        async with world.running("alice") as alice:
            cities = await published(world, alice)
            seed = await go_offline(alice, "cities")
            thief, size = alice.home.keys.node_key(), alice.size("cities")
            await carol.heard_head(size)
            await carol.mirror(cities, "cities")
            head = newest(carol, cities)
        now = world.clock.now()
        assert (
            carol.parts.board.judge(Topic.HEADS, stolen_head(thief, head, 1, size + 5, now), PEER) is Judgement.ACCEPT
        )
        assert newest(carol, cities).size == size + 5
        view = await change(carol, "cities", "rotate", seed)
        assert ([each.key for each in view.writers], view.epoch, view.dataset_key) == ([carol.key], 2, "offline")
        assert (newest(carol, cities).size, newest(carol, cities).epoch) == (size, 2)
        for epoch in (1, 2):
            late = stolen_head(thief, head, epoch, size + 9, world.clock.now())
            assert carol.parts.board.judge(Topic.HEADS, late, PEER) is not Judgement.ACCEPT
        assert newest(carol, cities).epoch == 2
        assert (await carol.api.trust.show("cities")).reach.use == size


async def test_a_newcomer_learns_the_walk_in_any_order(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        seed = await go_offline(alice, "cities")
        for number in range(3):
            await change(alice, "cities", "add-writer", seed, key=str(SigningKey(bytes([number]) * 32).did))
        board = alice.parts.board
        heard = (board.envelope(ref.sid) for ref in board.refs([cities]))
        told = [(topic, raw) for topic, raw in heard if b"card/v1" not in envelope.payload_of(raw)]
        assert len([raw for topic, raw in told if topic is Topic.HEADS]) == 6, "four versions, the head before and now"
        for order in (told, told[::-1]):
            new = world.node(f"new{order is told}")
            for topic, raw in order:
                new.parts.board.judge(topic, raw, PEER)
            with new.parts.board.attend(cities), new.home.database.read() as connection:
                assert Authorities(connection).rights(cities).version == 4
            assert newest(new, cities) == newest(alice, cities)


async def test_mistakes_are_told(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        ask = alice.api.authority
        with pytest.raises(NotFound):
            await ask.show_authority("nothing")
        with pytest.raises(Invalid, match="not a key"):
            await change(alice, "cities", "add-writer", key="bob")
        with pytest.raises(Invalid, match="needs a key"):
            await change(alice, "cities", "remove-writer")
        with pytest.raises(NotFound, match="is no writer"):
            await change(alice, "cities", "remove-writer", key=alice.key)
        with pytest.raises(Invalid, match="500 days"):
            await change(alice, "cities", "add-writer", key=alice.key, days=500)
        with pytest.raises(Refused, match="nothing on this node could sign heads"):
            await change(alice, "cities", "add-writer", key=str(SigningKey(b"o" * 32).did), drop_key=True)
        with pytest.raises(Invalid, match="base64"):
            await ask.change_authority("cities", wire.AuthorityRequest(payload="?"))
        draft = await ask.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        await ask.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        with pytest.raises((Conflict, Refused)):
            await ask.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))


async def test_a_writer_that_is_removed_here_signs_no_more(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        seed = await go_offline(alice, "cities")
        await change(alice, "cities", "remove-writer", seed, key=alice.key)
        world.write("alice", "b.csv", "2024-01-03T00:00:00Z,Wels,60000")
        size = alice.size("cities")
        (item,) = await alice.pull("cities")
        assert item.outcome == "failed"
        assert "may write" in item.message
        assert (alice.size("cities"), newest(alice, cities).epoch) == (size, 1)


async def test_a_later_head_of_ours_seen_at_a_peer_stops_signing(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        key, head = alice.home.keys.dataset_key(cities), newest(alice, cities)
        later = stolen_head(key, head, 0, head.size + 3, world.clock.now())
        assert alice.parts.board.judge(Topic.HEADS, later, PEER) is Judgement.ACCEPT
        (item,) = await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        assert "signed already" in item.message
        assert alice.size("cities") == head.size


async def test_a_restored_backup_is_not_rotated_as_if_it_were_all(world: World) -> None:
    """Attack T-HEAD-03: a key rotation with a false end of the former history.

    Defence: a node whose state is older than its signing journal rotates no key; an owner that lost newer blocks for
    good declares `recovery`.

    The epoch would say that history ended where the backup was made; a recovery says that something is given up.
    """
    state = world.folder / "alice" / "state"
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        size = alice.size("cities")
    shutil.copytree(state, world.folder / "backup")
    async with world.running("alice") as alice:
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        assert alice.size("cities") > size
    shutil.rmtree(world.folder / "backup" / "keys")
    shutil.copytree(state / "keys", world.folder / "backup" / "keys")
    shutil.rmtree(state)
    (world.folder / "backup").rename(state)
    async with world.running("alice") as alice:
        with breaks("trust.behind", Refused):
            await change(alice, "cities", "rotate")
        await change(alice, "cities", "rotate", reason="recovery")
        assert (newest(alice, cities).epoch, newest(alice, cities).size) == (1, size)


async def test_an_authority_speaks_of_one_seed(world: World) -> None:
    """Attack T-HEAD-05: an authority grafted onto another chain of the same key.

    Defence: it names its Seed block, which must be that of the chain.

    Neither a draft that was altered nor another chain of the same key passes for the dataset.
    """
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        more = wire.AuthorityDraftRequest(action="add-writer", key=alice.key)
        draft = await alice.api.authority.draft_authority("cities", more)
        said = statement.decode_any(base64.b64decode(draft.payload))
        grafted = msgspec.structs.replace(said, head=Multihash.sha3_256(b"another seed"))
        payload = base64.b64encode(statement.encode(grafted)).decode()
        with breaks("authority-seed", Invalid):
            await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=payload))
        raw = envelope.seal(statement.encode(grafted), alice.home.keys.dataset_key(cities))
        assert alice.parts.board.judge(Topic.HEADS, raw, PEER) is Judgement.IGNORE
        async with world.running("bob") as bob:
            # He holds nothing to compare it with, until the chain comes.
            bob.parts.board.judge(Topic.HEADS, raw, PEER)
            with breaks("graft"):
                await bob.mirror(cities, "theirs")
            assert bob.home.chains.chain(cities).head() is None


def reset_to(node: Node, dataset: Any, size: int) -> bytes:
    """The owner gives up all but ``size`` blocks, as an epoch; the version that says so."""
    chain, home = node.home.chains.chain(dataset), node.home
    tree = Frontier().extend(Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, size))
    with home.database.read() as connection:
        last = Ledger(connection).chain(dataset).frontier
    ends = [TreeHead(size=each.size, root_hash=each.root) for each in (tree, last)]
    key, now = home.keys.dataset_key(dataset), node.clock.now()
    until = statement.when(Instant(now + 86400 * instant.SECOND))
    said = Authority(
        dataset=dataset, version=1, issued_at=statement.when(now), roots=Roots(threshold=1, keys=(key.did,)),
        writers=(Writer(key=key.did, expires_at=until),), head=chain.block_at(0).hash,
        epochs=(Epoch(number=1, reason="reset", base=ends[0], last=ends[1]),),
    )  # fmt: skip
    raw = envelope.seal(statement.encode(said), key)
    assert node.parts.board.judge(Topic.HEADS, raw, PEER) is Judgement.ACCEPT

    def together(connection: Any) -> None:
        Ledger(connection).keep_chain(dataset, CheckedChain(tree, tree.size, 1))

    plan = rewriting.plan_reset(chain, dataset, chain.block_at(size - 1).hash)
    home.chains.rewrite(rewriting.prepare(chain, home.objects, plan, now), together)
    node.parts.outbox.put(Topic.HEADS, dataset, raw)
    assert node.parts.committer.sign_unsigned(dataset)
    return raw


@pytest.mark.slow
@pytest.mark.parametrize("follow", ["follow", "ask"])
async def test_an_epoch_that_gives_up_blocks_is_followed_by_policy(world: World, follow: str) -> None:
    policy = model.Policy(rewrite=model.Rewrite(follow=follow))
    async with world.running("alice") as alice, world.running("bob", policy) as bob:
        cities = await published(world, alice)
        size = alice.size("cities")
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        await trio.to_thread.run_sync(reset_to, alice, cities, size - 1)
        await bob.heard_head(size - 1)
        with trio.fail_after(PATIENCE):
            mirror = bob.parts.scheduler.get(cities)
            while bob.size("theirs") != size - 1 and not isinstance(mirror.fault, RewriteWaiting):
                await mirror.turned.wait()
        if follow == "ask":
            assert (bob.size("theirs"), mirror.state.value) == (size, "refused")
            assert "reset" in str(mirror.fault)
            return
        await alice.take_in(files={"b.csv": ["2024-01-03T00:00:00Z,Wels,60000"]}, pulls=["cities"])
        with trio.fail_after(PATIENCE):
            while newest(bob, cities) != newest(alice, cities) or bob.size("theirs") < alice.size("cities"):
                await mirror.turned.wait()
        mine, theirs = (list(node.home.chains.chain(cities).raw_blocks(0, 99)) for node in (alice, bob))
        assert mine == theirs
        assert (await bob.api.trust.show("theirs")).reach.use == alice.size("cities")
        assert (await bob.done(bob.api.verification.verify("theirs", wire.VerifyRequest()))).ok


# Nodes whose signing journals are gone: they ask, or a person answers for them, before anything is signed.


MORE = ("2024-01-03T00:00:00Z,Wels,61000", "2024-01-04T00:00:00Z,Enns,12000", "2024-01-05T00:00:00Z,Traun,24000")
VALIDATES = model.Policy(publish=model.Publish(attest=True))


def lists(*nodes: Any, f: int = 0, **publish: bool) -> model.Policy:
    groups = tuple(model.Group(name=f"g{number}", keys=(node.key,)) for number, node in enumerate(nodes))
    validators = model.Validators(f=f, groups=groups, recheck=False, spot_check=0.0)
    return model.Policy(validators=validators, publish=model.Publish(**publish))


def lose_journals(folder: Path) -> None:
    for journal in (folder / "state" / "keys").glob("*.journal"):
        journal.unlink()


async def publish(world: World, node: Node) -> Any:
    world.write("alice", "a.csv", *ROWS)
    await node.apply(ROOT)
    await node.pull()
    return node.dataset("cities")


async def add_rows(world: World, node: Node) -> list[wire.PullItem]:
    """Each file is a block of its own."""
    for number, row in enumerate(MORE):
        world.write("alice", f"b{number}.csv", row)
    return list(await node.pull("cities"))


async def restored(world: World, mirrors: tuple[str, ...]) -> tuple[Any, int, int]:
    """Alice's state is that of an old backup, without journals, and others know more: of what, before, and now."""
    state = world.folder / "alice" / "state"
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(world.running(name)) for name in mirrors]
        async with world.running("alice") as alice:
            cities = await publish(world, alice)
            before = alice.size("cities")
            for other in others:
                await other.mirror(cities, "theirs")
        shutil.copytree(state, world.folder / "backup")
        async with world.running("alice") as alice:
            await add_rows(world, alice)
            after = alice.size("cities")
            for other in others:
                with trio.fail_after(PATIENCE):
                    while other.size("theirs") != after:
                        await other.parts.scheduler.get(cities).turned.wait()
    assert after > before + 1
    shutil.rmtree(state)
    shutil.copytree(world.folder / "backup", state)
    lose_journals(world.folder / "alice")
    return cities, before, after


async def quick(node: Node) -> dict[str, wire.Probe]:
    return {probe.name: probe for probe in await node.api.about.doctor()}


@pytest.mark.slow
async def test_a_lost_journal_asks_first(world: World) -> None:
    """Attack T-KEY-01: rollback of the own state with the signing journal lost too.

    Defence: a key without its journal signs nothing until listed groups report its earlier signatures, or the operator
    runs `odfctl trust sign`, with `--alone` if no group answers. Not prevented: a copy of the whole state directory
    with its journals, restored while no group can be asked.

    Three that are listed are enough; then what they know keeps the key from contradicting itself.
    """
    mirrors = ("bob", "carol", "dave")
    cities, before, after = await restored(world, mirrors)
    async with AsyncExitStack() as stack:
        others = [await stack.enter_async_context(world.running(name)) for name in mirrors]
        bob = others[0]
        alice = await stack.enter_async_context(world.running("alice", lists(*others, f=1)))
        (event,) = await alice.heard("journal.begun")
        assert event.data["peers"] == 3
        assert (await alice.api.about.status()).lost_journals == 0
        assert alice.size("cities") == before
        (item,) = await add_rows(world, alice)
        assert item.fault is not None
        assert item.fault.rule == "trust.behind"
        assert "--repair" in item.fault.hint
        assert alice.size("cities") == before
        (item,) = await alice.pull("cities", repair=True)
        assert (item.outcome, item.blocks) == ("updated", after - before)
        assert alice.size("cities") == after
        (item,) = await alice.take_in(files={"c.csv": ["2024-01-06T00:00:00Z,Steyr,38000"]}, pulls=["cities"])
        assert item.outcome == "updated"
        with trio.fail_after(PATIENCE):
            while bob.size("theirs") != alice.size("cities"):
                await bob.parts.scheduler.get(cities).turned.wait()
        assert {"dataset.forked", "head.refused"}.isdisjoint([*bob.kinds(), *alice.kinds()])


@pytest.mark.slow
async def test_fewer_than_three_will_do_for_a_person(world: World) -> None:
    cities, before, after = await restored(world, ("bob",))
    async with world.running("bob") as bob, world.running("alice", lists(bob)) as alice:
        await alice.heard("journal.lost")
        assert "journal.begun" not in alice.kinds(), "one group may know little, and more may come"
        done = await alice.sign_again()
        assert done.peers == 1
        assert {each.dataset for each in done.begun} == {None, "cities"}
        assert {each.said for each in done.begun if each.dataset} == {1}
        assert newest(alice, cities).size == after
        (item,) = await alice.pull("cities", repair=True)
        assert item.blocks == after - before


async def test_with_nobody_to_ask_a_person_decides(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await publish(world, alice)
        size = alice.size("cities")
    lose_journals(world.folder / "alice")
    async with world.running("alice") as alice:
        (event,) = await alice.heard("journal.lost")
        assert "2 keys" in event.message
        assert (await alice.api.about.status()).lost_journals == 2
        found = await quick(alice)
        assert (found["keys"].result, "--alone" in found["keys"].hint) == ("failed", True)
        assert "the node's key; the key of cities" in found["keys"].message
        await alice.heard("head.unsigned")
        shown = await alice.api.trust.show("cities")
        assert "is lost" in shown.unsigned
        (item,) = await add_rows(world, alice)
        assert item.fault is not None
        assert item.fault.rule == "trust.journal"
        assert alice.size("cities") == size
        draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        with pytest.raises(Refused, match="is lost"):
            await alice.api.authority.change_authority("cities", wire.AuthorityRequest(payload=draft.payload))
        with breaks("trust.journal", Refused, match="no listed validator or witness could be asked"):
            await alice.sign_again()
        done = await alice.sign_again(alone=True)
        assert (done.peers, len(done.begun)) == (0, 2)
        assert (await alice.sign_again()).begun == ()
        with alice.home.database.read() as connection:
            rows = connection.execute("SELECT body FROM trust_ledger WHERE type = 'decision'").fetchall()
        assert [msgspec.json.decode(row[0])["how"] for row in rows] == ["alone"] * 2
    async with world.running("alice") as alice:
        assert (await quick(alice))["keys"].result == "ok"
        (item,) = await alice.pull("cities")
        assert (item.outcome, newest(alice, cities).size) == ("updated", alice.size("cities"))
        assert (await alice.api.trust.show("cities")).unsigned == ""
        assert "journal.lost" not in alice.kinds()


async def test_new_datasets_need_nothing(world: World) -> None:
    """Nobody can have said anything of what did not exist."""
    async with world.running("alice"):
        pass
    lose_journals(world.folder / "alice")
    async with world.running("alice") as alice:
        await alice.heard("journal.lost")
        cities = await publish(world, alice)
        assert newest(alice, cities).size == alice.size("cities")


async def test_a_validator_goes_on_after_its_last_word(world: World) -> None:
    """Its verdicts count from where others heard them last: a second one of a serial would suspend it."""
    async with world.running("alice") as alice:
        async with world.running("bob", VALIDATES) as bob:
            await alice.take_in(ROOT, DERIVED, files={"a.csv": ROWS})
            for name in ("cities", "towns"):
                await bob.mirror(alice.dataset(name), name)
            await bob.heard("attestation.signed")
            towns, key = alice.dataset("towns"), bob.home.keys.node_key().did
            await alice.heard("attestation.heard")
        lose_journals(world.folder / "bob")
        # As in a backup from before it spoke.
        with closing(sqlite3.connect(world.folder / "bob" / "state" / "odfd.sqlite")) as connection, connection:
            connection.execute("DELETE FROM trust_live WHERE type = ?", (ATTESTATION,))
            connection.execute("DELETE FROM trust_ledger")
        async with world.running("bob", lists(alice, attest=True)) as bob:
            done = await bob.sign_again()
            assert [each.said for each in done.begun] == [1]
            assert bob.home.keys.last_signed(key, f"attestation:{towns}:0").order == (1,)


@pytest.mark.slow
async def test_peers_that_do_not_answer_do_not_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, before, _ = await restored(world, ("bob", "carol"))
    async with world.running("carol") as carol:
        listed = lists(carol)
    async with world.running("alice", listed) as alice:
        await alice.heard("journal.lost")

        async def gone(*_: object) -> int:
            raise journal_recovery.Remote("it went away", rule="unreachable")

        with monkeypatch.context() as patch:
            patch.setattr(alice.member, "pull_statements", gone)
            async with world.running("bob"), world.running("carol"):
                with pytest.raises(Refused, match="could be asked"):
                    await alice.sign_again()
        assert alice.size("cities") == before
        async with world.running("carol"):
            assert (await alice.sign_again()).peers == 1


async def test_who_knows_more_than_a_round_brings_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await restored(world, ("bob", "carol"))
    async with world.running("carol") as carol:
        listed = lists(carol)
    async with world.running("alice", listed) as alice:
        await alice.heard("journal.lost")
        rounds, pull = [1, 1, 0], alice.member.pull_statements

        async def some(*given: Any) -> int:
            await pull(*given)
            return rounds.pop(0) if rounds else 0

        monkeypatch.setattr(alice.member, "pull_statements", some)
        async with world.running("carol"):
            assert (await alice.sign_again()).peers == 1
        assert rounds == []


async def test_three_strangers_who_know_nothing_do_not_count(world: World) -> None:
    """By default settings: their keys are free, and a key that believed them would sign another history."""
    async with world.running("alice") as alice:
        await publish(world, alice)
    lose_journals(world.folder / "alice")
    async with AsyncExitStack() as stack:
        for name in ("bob", "carol", "dave"):
            await stack.enter_async_context(world.running(name))
        alice = await stack.enter_async_context(world.running("alice"))
        await alice.heard("journal.lost")
        with pytest.raises(Refused, match="3 peers that you did not list may say anything"):
            await alice.sign_again()
        assert (await alice.api.about.status()).lost_journals == 2
        assert "journal.begun" not in alice.kinds()
        assert (await alice.sign_again(alone=True)).peers == 0
