"""Nodes whose signing journals are gone: they ask, or a person answers for them, before anything is signed."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Refused
from chain.statements.statement import ATTESTATION
from config import model
from odfd.control import wire
from odfd.services.trust import journal_recovery
from odfd.store.ledger.log import Ledger
from worlds.eventually import PATIENCE
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import Node, World

ROWS = ("2024-01-01T00:00:00Z,Graz,300000", "2024-01-02T00:00:00Z,Linz,210000")
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


def newest(node: Node, dataset: Any) -> Any:
    with node.home.database.read() as connection:
        return Ledger(connection).newest_head(dataset)[0]


@pytest.mark.slow
async def test_a_lost_journal_asks_first(world: World) -> None:
    """Three that are listed are enough; then what they know keeps the key from contradicting itself."""
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
        world.write("alice", "c.csv", "2024-01-06T00:00:00Z,Steyr,38000")
        (item,) = await alice.pull("cities")
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
        with pytest.raises(Refused, match="no listed validator or witness could be asked") as caught:
            await alice.sign_again()
        assert caught.value.rule == "trust.journal"
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
            world.write("alice", "a.csv", *ROWS)
            await alice.apply(ROOT, DERIVED)
            await alice.pull()
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
