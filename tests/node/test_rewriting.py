"""Reset, compaction and metadata alone on whole nodes: what the owner has then, and what its mirrors make of it."""

from __future__ import annotations

import base64
import shutil
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Conflict, Invalid, NotFound, Refused
from chain.multihash import Multihash
from chain.statements import envelope, statement
from chain.statements.keys import SigningKey
from chain.statements.tree import Frontier
from chain.store.base import Rewrite
from config import model
from odfd.cli.offline import block as offline
from odfd.control import wire
from odfd.control.client import Answer
from odfd.errors import Bug
from odfd.store.damage import Damage
from odfd.store.ledger.history_rewrite import give_up, kept_tree
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.runs import Runs
from odfd.trust.signing import authority_versions, owner_commit
from p2p.identity import peer_of_seed
from p2p.ports import Topic
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World, until

FILES = ("a", "b", "c", "d")
FOLLOW = model.Policy(rewrite=model.Rewrite(follow="follow"))


def write_files(world: World, *names: str) -> None:
    for name in names:
        day = ord(name) - ord("a") + 1
        rows = [f"2024-01-{day:02}T00:00:00Z,{name}{number},{number}" for number in range(3)]
        world.write("alice", f"{name}.csv", *rows)


async def published(world: World, node: Node, *manifests: str) -> Any:
    """Cities of four files, one slice each."""
    write_files(world, *FILES)
    await node.apply(ROOT, *manifests)
    await node.pull()
    return node.dataset("cities")


async def rewrite(node: Node, ref: str, action: str, **more: Any) -> wire.RewriteResult:
    return await node.done(node.api.rewriting.rewrite(ref, wire.RewriteRequest(action=action, **more)))


async def records(node: Node, ref: str) -> list[Any]:
    return list((await node.api.datasets.tail(ref, 1000)).rows)


async def verified(node: Node, ref: str) -> bool:
    return (await node.done(node.api.verification.verify(ref, wire.VerifyRequest(level="data")))).ok


async def settled(node: Node, ref: str, epoch: int) -> None:
    """Everything that stands beside the blocks speaks of the blocks that are there."""
    dataset = node.dataset(ref)
    chain, size = node.home.chains.chain(dataset), node.size(ref)
    tree = Frontier().extend(Multihash.sha3_256(raw).digest for raw in chain.raw_blocks(0, size))
    with node.home.database.read() as connection:
        ledger = Ledger(connection)
        checked, newest = ledger.chain(dataset), ledger.newest_head(dataset)
        named = connection.execute(
            "SELECT object, sequence FROM object_references WHERE dataset = ?", (dataset,)
        ).fetchall()
    assert (checked.frontier, checked.data, checked.epoch) == (tree, size, epoch)
    assert newest is not None
    head = newest[0]
    assert (head.size, head.epoch, head.root_hash) == (size, epoch, tree.root)
    assert head.head == chain.block_at(size - 1).hash
    wanted = {}
    for number in range(size):
        event = chain.block_at(number).event
        for each in (getattr(event, "new_data", None), getattr(event, "new_checkpoint", None)):
            if each is not None:
                wanted.setdefault(bytes(each.physical_hash), number)
    assert dict(named) == wanted
    trust = await node.api.trust.show(ref)
    assert (trust.reach.use, trust.epoch) == (size, epoch)
    assert await verified(node, ref)


async def test_compaction_keeps_every_record(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        before, rows = alice.size("cities"), await records(alice, "cities")
        assert await verified(alice, "cities")
        plan = await rewrite(alice, "cities", "compact", dry_run=True)
        assert (plan.outcome, plan.merged, plan.into, plan.epoch) == ("planned", 4, 1, 1)
        assert alice.size("cities") == before
        done = await rewrite(alice, "cities", "compact")
        assert (done.outcome, done.before, done.blocks) == ("rewritten", before, before - 3)
        assert (done.kept, done.blocks) == (plan.kept, plan.blocks)
        assert await records(alice, "cities") == rows
        await settled(alice, "cities", 1)
        again = await rewrite(alice, "cities", "compact")
        assert (again.outcome, again.blocks, again.epoch) == ("unchanged", done.blocks, 1)
        write_files(world, "e")
        assert [item.outcome for item in await alice.pull("cities")] == ["updated"]
        assert len(await records(alice, "cities")) == 15
        await settled(alice, "cities", 1)
        (event,) = await alice.heard("dataset.rewritten")
        assert event.subject == "cities"


async def test_limits_of_a_merged_slice(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        rows = await records(alice, "cities")
        assert (await rewrite(alice, "cities", "compact", max_slice_rows=5)).outcome == "unchanged"
        assert (await rewrite(alice, "cities", "compact", max_slice_bytes=1)).outcome == "unchanged"
        done = await rewrite(alice, "cities", "compact", max_slice_rows=6)
        assert (done.merged, done.into) == (4, 2)
        assert await records(alice, "cities") == rows
        with pytest.raises(Invalid, match="at most 0"):
            await rewrite(alice, "cities", "compact", max_slice_rows=0)


async def test_after_a_reset_the_source_is_read_from_where_the_chain_ends(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        size, rows = alice.size("cities"), await records(alice, "cities")
        done = await rewrite(alice, "cities", "reset", to=f"#{size - 3}")
        assert (done.outcome, done.before, done.blocks, done.kept) == ("rewritten", size, size - 2, size - 2)
        assert await records(alice, "cities") == rows[:6]
        await settled(alice, "cities", 1)
        await alice.pull("cities")
        plain = [row[3:] for row in rows]
        assert [row[3:] for row in await records(alice, "cities")] == plain
        await settled(alice, "cities", 1)
        seed = str(alice.home.chains.chain(alice.dataset("cities")).block_at(0).hash)
        assert (await rewrite(alice, "cities", "reset", to=seed)).blocks == 1
        await settled(alice, "cities", 2)
        await alice.apply(ROOT)
        await alice.pull("cities")
        assert [row[3:] for row in await records(alice, "cities")] == plain


async def test_what_a_reset_refuses(world: World) -> None:
    async with world.running("alice") as alice, world.running("bob") as bob:
        cities = await published(world, alice)
        await world.spread(alice, "cities")
        last = alice.size("cities") - 1
        for to, fault, why in (
            (f"#{last}", Invalid, f"#{last} is the head"),
            (f"#{last + 1}", NotFound, f"no block #{last + 1}"),
            (str(Multihash.sha3_256(b"x")), NotFound, "no block"),
            ("latest", Invalid, "latest"),
            (None, Invalid, "needs a block"),
        ):
            with pytest.raises(fault, match=why):
                await rewrite(alice, "cities", "reset", to=to)
        with pytest.raises(NotFound, match="no dataset 'towns'"):
            await rewrite(alice, "towns", "reset", to="#0")
        await bob.mirror(cities, "theirs")
        for action in ("reset", "compact", "keep-metadata"):
            with pytest.raises(Refused, match="theirs is not published by this node"):
                await rewrite(bob, "theirs", action, to="#0")
        assert alice.size("cities") == bob.size("theirs") == last + 1


async def test_a_reset_waits_for_a_pull(world: World) -> None:
    """What was fetched after one block must not be committed after another: files between them would be lost."""
    async with world.running("alice") as alice:
        await published(world, alice)
        size = alice.size("cities")
        async with alice.home.turns.of(alice.dataset("cities")):
            ref = await alice.api.rewriting.rewrite("cities", wire.RewriteRequest(action="reset", to="#0"))
            task = alice.board.get(ref.id)
            await until(lambda: "waiting until no other task writes" in task.report.message)
            assert alice.size("cities") == size
        with trio.fail_after(PATIENCE):
            await task.finished.wait()
        assert alice.size("cities") == 1


async def test_metadata_alone_of_root_and_derivative(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice, DERIVED)
        rows = await records(alice, "towns")
        with pytest.raises(Invalid, match="is a derived dataset") as caught:
            await rewrite(alice, "towns", "compact")
        assert "--keep-metadata-only" in caught.value.hint
        done = await rewrite(alice, "towns", "keep-metadata")
        assert done.outcome == "rewritten"
        assert await records(alice, "towns") == []
        await settled(alice, "towns", 1)
        assert (await rewrite(alice, "towns", "keep-metadata")).outcome == "unchanged"
        await alice.pull("towns")
        plain = [row[3:] for row in rows]
        assert [row[3:] for row in await records(alice, "towns")] == plain
        await rewrite(alice, "cities", "keep-metadata")
        await settled(alice, "cities", 1)
        assert await records(alice, "cities") == []


async def test_what_derives_from_blocks_that_went_says_so_and_is_derived_anew(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice, DERIVED)
        rows, size = await records(alice, "towns"), alice.size("towns")
        await rewrite(alice, "cities", "compact")
        (item,) = await alice.pull("towns")
        assert item.outcome == "failed"
        assert item.fault is not None
        assert (item.fault.family, item.fault.rule) == ("Refused", "input-diverged")
        assert "odfctl compact towns --keep-metadata-only" in item.fault.hint
        assert alice.size("towns") == size
        await rewrite(alice, "towns", "keep-metadata")
        assert [one.outcome for one in await alice.pull("towns")] == ["updated"]
        assert [row[3:] for row in await records(alice, "towns")] == [row[3:] for row in rows]
        await settled(alice, "towns", 1)


async def test_what_derives_from_blocks_that_stay_goes_on(world: World) -> None:
    async with world.running("alice") as alice:
        write_files(world, "a", "b")
        await alice.apply(ROOT, DERIVED)
        await alice.pull()
        size = alice.size("cities")
        write_files(world, "c", "d")
        await alice.pull("cities")
        await rewrite(alice, "cities", "reset", to=f"#{size - 1}")
        write_files(world, "e")
        assert {item.outcome for item in await alice.pull("cities", "towns")} == {"updated"}
        assert len(await records(alice, "towns")) == 15


async def test_an_offline_key_signs_the_draft(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        seed = bytes.fromhex((await alice.api.authority.dataset_key("cities")).seed)
        draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
        await alice.api.authority.change_authority(
            "cities", signed_by(seed, draft, wire.AuthorityRequest, drop_key=True)
        )
        with pytest.raises(Refused, match="1 more of the root keys") as caught:
            await rewrite(alice, "cities", "reset", to="#2")
        assert "--offline-key" in caught.value.hint
        plan = await rewrite(alice, "cities", "reset", to="#2", dry_run=True)
        assert plan.draft is not None
        assert plan.draft.opens == wire.EpochView(number=2, reason="reset", kept=3, ended=plan.before)
        request = signed_by(seed, plan.draft, wire.RewriteRequest, action="reset", to="#2")
        write_files(world, "e")
        await alice.pull("cities")
        with pytest.raises(Conflict, match="another history"):
            await alice.done(alice.api.rewriting.rewrite("cities", request))
        plan = await rewrite(alice, "cities", "reset", to="#2", dry_run=True)
        request = signed_by(seed, plan.draft, wire.RewriteRequest, action="reset", to="#2")
        with pytest.raises(Conflict, match="another history"):
            await alice.done(
                alice.api.rewriting.rewrite(
                    "cities", signed_by(seed, plan.draft, wire.RewriteRequest, action="compact")
                )
            )
        done = await alice.done(alice.api.rewriting.rewrite("cities", request))
        assert (done.outcome, done.blocks, done.epoch) == ("rewritten", 3, 2)
        await settled(alice, "cities", 2)


@pytest.mark.parametrize("days", [100, 300, 500])
@pytest.mark.parametrize("offline", [False, True])
async def test_the_right_to_write_outlasts_its_year_while_the_root_is_here(
    world: World, days: int, offline: bool
) -> None:
    """Before its first rewrite a dataset's key writes for ever; no rewrite makes a dataset that nobody can write."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        seed = bytes.fromhex((await alice.api.authority.dataset_key("cities")).seed)
        await rewrite(alice, "cities", "compact")
        if offline:
            draft = await alice.api.authority.draft_authority("cities", wire.AuthorityDraftRequest(action="rotate"))
            change = signed_by(seed, draft, wire.AuthorityRequest, drop_key=True)
            await alice.api.authority.change_authority("cities", change)
        before = (await alice.api.authority.show_authority("cities")).version
        world.clock.instant += days * authority_versions.DAY
        expired = offline and days == 500
        if expired:
            with pytest.raises(Refused, match="no key on this node may write"):
                alice.parts.committer.sign_unsigned(cities)
        else:
            assert alice.parts.committer.sign_unsigned(cities)
            assert not alice.parts.committer.sign_unsigned(cities)
        view = await alice.api.authority.show_authority("cities")
        assert view.version == before + (not offline and days > 250)
        write_files(world, "e")
        (item,) = await alice.pull("cities")
        assert item.outcome == ("failed" if expired else "updated")


def signed_by(seed: bytes, draft: Any, kind: Any, **more: Any) -> Any:
    key = SigningKey(seed)
    made = base64.b64encode(key.sign(envelope.preauth(base64.b64decode(draft.payload)))).decode()
    signature = wire.SignatureText(key=str(key.did), signature=made)
    return kind(payload=draft.payload, signatures=(signature,), **more)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["reset", "compact", "keep-metadata"])
@pytest.mark.parametrize("follow", ["follow", "ask"])
async def test_mirrors_follow_by_policy(world: World, action: str, follow: str) -> None:
    policy = model.Policy(rewrite=model.Rewrite(follow=follow))
    async with world.running("alice") as alice, world.running("bob", policy) as bob:
        cities = await published(world, alice)
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        size, rows = bob.size("theirs"), await records(bob, "theirs")
        done = await rewrite(alice, "cities", action, to="#3")
        if follow == "follow":
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != done.head or bob.parts.scheduler.get(cities).message:
                    await bob.parts.scheduler.get(cities).turned.wait()
            await settled(bob, "theirs", 1)
            assert await records(bob, "theirs") == await records(alice, "cities")
            write_files(world, "e")
            await alice.pull("cities")
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != head_of(alice, cities):
                    await bob.parts.scheduler.get(cities).turned.wait()
            await settled(bob, "theirs", 1)
        else:
            await bob.heard("mirror.refused")
            assert bob.parts.scheduler.get(cities).fault.rule == "rewrite-waiting"
            assert (bob.size("theirs"), await records(bob, "theirs")) == (size, rows)
            follows = model.Policy(rewrite=model.Rewrite(follow="follow"))
            bob.assembly.reload(model.Settings(policy=follows))
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != done.head:
                    await bob.parts.scheduler.get(cities).turned.wait()
        assert "dataset.forked" not in bob.kinds()


def shown(detail: wire.BlockDetail) -> str:
    """As ``odfctl block show`` prints it."""
    sent = msgspec.to_builtins(detail, enc_hook=str)
    client = SimpleNamespace(do=lambda _: Answer.of(sent, wire.BlockDetail))
    session: Any = SimpleNamespace(client=client)
    return offline._text(offline._detail(session, f"cities@{detail.hash}"))


@pytest.mark.slow
async def test_blocks_and_slices_of_former_epochs_stay_as_policy_says(world: World) -> None:
    """Where they are rewritten and where a mirror follows; one epoch more than is kept, and the oldest goes."""
    keeps = model.Policy(rewrite=model.Rewrite(follow="follow", keep_epochs=2))
    async with world.running("alice", keeps) as alice, world.running("bob", keeps) as bob:
        cities = await published(world, alice)
        await world.spread(alice, "cities")
        await bob.mirror(cities, "theirs")
        counted = await alice.api.datasets.log("cities", [], 50, None)
        before = [msgspec.structs.replace(block, rows=None) for block in counted]  # counts go with the history
        first = [alice.home.chains.chain(cities).block_at(n).event.new_data.physical_hash for n in (4, 5)]
        for epoch, at in enumerate(("#3", "#2")):
            done = await rewrite(alice, "cities", "reset", to=at)
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != done.head:
                    await bob.parts.scheduler.get(cities).turned.wait()
            for node, ref in ((alice, "cities"), (bob, "theirs")):
                kept = await node.api.datasets.log(ref, [], 50, None, epoch)
                gone = [block for block in before if block.sequence_number > int(at[1:])]
                assert list(kept) == (gone if epoch == 0 else [block for block in gone if block.sequence_number == 3])
                assert len(await node.api.datasets.log(ref, ["AddData"], 1, None, epoch)) == 1
                for block in kept:
                    detail = await node.api.datasets.block(ref, block.hash)
                    assert (detail.hash, detail.former_epoch) == (block.hash, epoch)
                    assert f"history of epoch {epoch}, which" in shown(detail)
                detail = await node.api.datasets.block(ref, "#1")
                assert detail.former_epoch is None
                with pytest.raises(NotFound, match="no block") as caught:
                    await node.api.datasets.block(ref, str(Multihash.sha3_256(b"never")))
                assert caught.value.rule == "block-unknown"
                for _ in range(2):  # what was asked for lately outlives one
                    await node.done(node.api.collection.collect(wire.CollectRequest()))
                assert all(node.home.objects.has(name) for name in first) == (epoch == 0)
                await settled(node, ref, epoch + 1)
        with pytest.raises(NotFound, match="no blocks of epoch 0 of cities are kept") as caught:
            await alice.api.datasets.log("cities", [], 50, None, 0)
        assert caught.value.hint == "kept are those of 1"


@pytest.mark.slow
async def test_who_was_away_and_who_comes_late(world: World) -> None:
    """Two epochs are turned to at once, and a newcomer is shown that each was rightly opened."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        async with world.running("bob", FOLLOW) as bob:
            await bob.mirror(cities, "theirs")
            assert bob.size("theirs") == alice.size("cities")
        await rewrite(alice, "cities", "compact", max_slice_rows=6)
        write_files(world, "e")
        await alice.pull("cities")
        await rewrite(alice, "cities", "compact")
        async with world.running("bob", FOLLOW) as bob, world.running("carol") as carol:
            await carol.mirror(cities, "theirs")
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != head_of(alice, cities):
                    await bob.parts.scheduler.get(cities).turned.wait()
            for node in (bob, carol):
                await settled(node, "theirs", 2)
                assert await records(node, "theirs") == await records(alice, "cities")
                assert "dataset.forked" not in node.kinds()


async def test_who_imported_it_may_mirror_it(world: World) -> None:
    """A folder tells no epoch: its blocks are of the one whose signed tree they are."""
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        await rewrite(alice, "cities", "compact")
        folder = str(world.folder / "out")
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=folder)))
        async with world.running("bob") as bob:
            await bob.done(bob.api.flow.import_(wire.ImportRequest(source=folder, as_name="theirs")))
            mirror = await bob.mirror(cities, "theirs")
            assert (mirror.state, mirror.message) == ("current", "")
            write_files(world, "e")
            await alice.pull("cities")
            with trio.fail_after(PATIENCE):
                while head_of(bob, cities) != head_of(alice, cities):
                    await bob.parts.scheduler.get(cities).turned.wait()
            await settled(bob, "theirs", 1)


async def test_an_authority_version_is_announced_however_soon_its_head_is_signed(
    world: World, monkeypatch: Any
) -> None:
    """Only heads replace each other while they wait: peers refuse a head of an epoch that they were not told of."""
    async with world.running("alice") as alice:
        await published(world, alice)
        with monkeypatch.context() as patch:
            patch.setattr(alice.parts.outbox, "_poke", lambda: None)
            await rewrite(alice, "cities", "reset", to="#3")
        alice.parts.outbox._poke()

        def said() -> list[Any]:
            raws = [raw for _, raw in alice.member.announced]
            return [statement.decode_any(envelope.unseal(raw, len(raw)).payload) for raw in raws]

        await until(lambda: any(getattr(each, "epoch", 0) == 1 for each in said()))
        assert [each.KIND for each in said()[-2:]] == [statement.AUTHORITY, statement.HEAD]


def head_of(node: Node, dataset: Any) -> str | None:
    head = node.home.chains.chain(dataset).head()
    return str(head.hash) if head else None


@pytest.mark.slow
async def test_a_rewrite_without_an_epoch_is_a_fork(world: World) -> None:
    """Attack T-HEAD-03: history rewritten without a new epoch.

    Defence: it contradicts signed heads: these prove the fork, even if the signer lost its journal.

    As whoever has the dataset's key and not its journal can do it.
    """
    async with world.running("alice") as alice:
        cities = await published(world, alice)
    world.steal("alice", "mallory", b"m" * 32)
    mallory_peer = peer_of_seed(b"m" * 32)
    world.wires.cut(mallory_peer)
    async with (
        world.running("alice") as alice,
        world.running("bob", FOLLOW) as bob,
        world.running("mallory") as mallory,
    ):
        await bob.mirror(cities, "theirs")
        size = alice.size("cities")
        assert bob.size("theirs") == size
        rewrite_in_secret(mallory, cities, size - 2)
        await mallory.sign_again(alone=True)
        await mallory.pull("cities")
        assert mallory.size("cities") == size
        with mallory.home.database.read() as connection:
            newest = Ledger(connection).newest_head(cities)
        assert newest is not None
        world.wires.heal(mallory_peer)
        await mallory.member.announce(Topic.HEADS, newest[1].envelope)
        for node, name in ((bob, "theirs"), (alice, "cities")):
            await node.heard("dataset.forked")
            shown = await node.api.trust.show(name)
            assert shown.why is not None
            assert (shown.why.rule, shown.why.block) == ("fork", size - 2)
            assert node.size(name) == size


def rewrite_in_secret(node: Node, dataset: Any, keep: int) -> None:
    """Blocks go, and no epoch says so; her ledger forgets what she signed of them."""
    home, chain = node.home, node.home.chains.chain(dataset)
    checked = CheckedChain(kept_tree(chain, keep), keep, 0)

    def together(connection: Any) -> None:
        give_up(connection, dataset, keep, checked)
        connection.execute("DELETE FROM trust_live")
        connection.execute("DELETE FROM trust_ledger")

    home.chains.rewrite(Rewrite(dataset=dataset, expected=chain.head(), keep=keep), together)


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("action", ["reset", "compact", "keep-metadata"])
@pytest.mark.parametrize("moment", ["keep_version", "settle", "note_version", "_announce", "_sign"])
async def test_killed_at_any_moment(world: World, monkeypatch: Any, action: str, moment: str) -> None:
    """Before the transaction ends there is the old history, and it can be done again; after it the new one."""

    def die(*_: Any) -> None:
        raise Killed

    async with world.running("alice") as alice:
        cities = await published(world, alice)
        before, head = alice.size("cities"), head_of(alice, cities)
        places = (owner_commit, owner_commit.RewrittenHistory, alice.parts.committer)
        target = next(place for place in places if hasattr(place, moment))
        with monkeypatch.context() as patch:
            patch.setattr(target, moment, die)
            with pytest.raises(Bug):
                await rewrite(alice, "cities", action, to="#3")
    async with world.running("alice") as alice:
        await until(lambda: signed_head(alice, cities) == head_of(alice, cities))
        if moment in ("keep_version", "settle"):
            assert (alice.size("cities"), head_of(alice, cities)) == (before, head)
            await settled(alice, "cities", 0)
            assert (await rewrite(alice, "cities", action, to="#3")).outcome == "rewritten"
        assert alice.size("cities") < before
        await settled(alice, "cities", 1)
        root = alice.home.keys.dataset_key(cities).did
        noted = alice.home.keys.last_signed(root, "authority")
        assert noted is not None
        assert noted.order == (1,)
        await rewrite(alice, "cities", "reset", to="#0")
        await settled(alice, "cities", 2)


def signed_head(node: Node, dataset: Any) -> str | None:
    with node.home.database.read() as connection:
        found = Ledger(connection).newest_head(dataset)
    return None if found is None else str(found[0].head)


@pytest.mark.slow
async def test_a_step_that_was_running_when_its_chain_turned_is_forgotten(world: World) -> None:
    """Attack T-HEAD-03: a verdict on a block that a new epoch replaced.

    Defence: results of a step are discarded when its chain switched epochs meanwhile.

    Kept under its number, it would speak of another block, and the steps before it would never be run again.
    """
    policy = model.Policy(
        profile="validator", publish=model.Publish(attest=True), rewrite=model.Rewrite(follow="follow")
    )
    async with world.running("alice") as alice, world.running("bob", policy) as bob:
        for name in FILES[:3]:
            write_files(world, name)
            await alice.apply(ROOT, DERIVED)
            await alice.pull()
        await world.spread(alice, "cities", "towns")
        towns = alice.dataset("towns")
        late: list[Any] = []

        def turn(_: Any) -> None:
            """While bob runs the last step, alice gives it up, and bob's mirror follows."""
            if bob.engine.transforms == 3:
                bob.engine.wrong = None
                trio.from_thread.run(given_up)

        async def given_up() -> None:
            done = await rewrite(alice, "towns", "reset", to=f"#{alice.size('towns') - 2}")
            with trio.fail_after(PATIENCE):
                while head_of(bob, towns) != done.head:
                    await bob.parts.scheduler.get(towns).turned.wait()
            late.append(done.head)

        bob.engine.wrong = turn
        await bob.mirror(alice.dataset("cities"), "cities")
        await bob.mirror(towns, "towns")
        await until(lambda: late and runs_of(bob, towns) == {first_step(alice, towns): alice.size("towns") - 1})
        await alice.pull("towns")
        await until(lambda: runs_of(bob, towns) == {first_step(alice, towns): alice.size("towns") - 1})


def first_step(node: Node, dataset: Any) -> int:
    chain, number = node.home.chains.chain(dataset), 0
    while type(chain.block_at(number).event).__name__ != "ExecuteTransform":
        number += 1
    return number


def runs_of(node: Node, dataset: Any) -> dict[int, int]:
    """First step of each stretch that was reproduced, and its length; each of its last blocks is in the chain."""
    with node.home.database.read() as connection:
        runs = Runs(connection).of(dataset)
    chain = node.home.chains.chain(dataset)
    for number, run in runs.items():
        head = chain.head()
        assert head is not None
        assert number > head.sequence_number or chain.block_at(number).hash == run.block
    return {run.sequence_number if run.first is None else run.first: number for number, run in runs.items()}


async def test_damage_that_went_with_its_blocks_is_known_no_more(world: World) -> None:
    async with world.running("alice") as alice:
        cities = await published(world, alice)
        last = alice.size("cities") - 1
        name = alice.home.chains.chain(cities).block_at(last).event.new_data.physical_hash
        alice.home.objects.remove(name)
        assert not await verified(alice, "cities")
        assert (await alice.api.trust.show("cities")).reach.use == last
        with pytest.raises(NotFound):
            await rewrite(alice, "cities", "compact")
        await rewrite(alice, "cities", "reset", to=f"#{last - 1}")
        await settled(alice, "cities", 1)
        with alice.home.database.read() as connection:
            assert Damage(connection).of(cities) == []
        await alice.pull("cities")
        await settled(alice, "cities", 1)


async def test_a_restored_backup_rewrites_nothing(world: World) -> None:
    """Attack T-HEAD-03: an epoch with a false end of the former history.

    Defence: a node whose state is older than its signing journal opens no epoch.

    It would say that the history ended where the backup was made.
    """
    async with world.running("alice") as alice:
        cities = await published(world, alice)
    state = world.folder / "alice" / "state"
    shutil.copytree(state, world.folder / "backup")
    write_files(world, "e")
    async with world.running("alice") as alice:
        await alice.pull("cities")
    shutil.copytree(state / "keys", world.folder / "keys")
    shutil.rmtree(state)
    shutil.copytree(world.folder / "backup", state)
    shutil.rmtree(state / "keys")
    shutil.copytree(world.folder / "keys", state / "keys")
    async with world.running("alice") as alice:
        head = head_of(alice, cities)
        with pytest.raises(Refused) as caught:
            await rewrite(alice, "cities", "compact")
        assert caught.value.rule == "trust.behind"
        assert head_of(alice, cities) == head


async def test_an_imported_or_repaired_dataset_stays_in_its_epoch(world: World) -> None:
    async with world.running("alice") as alice:
        await published(world, alice)
        await rewrite(alice, "cities", "compact")
        folder = str(world.folder / "out")
        await alice.done(alice.api.flow.export("cities", wire.ExportRequest(to=folder)))
        await alice.done(alice.api.flow.import_(wire.ImportRequest(source=folder)))
        await settled(alice, "cities", 1)
        await alice.pull("cities", repair=True)
        await settled(alice, "cities", 1)
