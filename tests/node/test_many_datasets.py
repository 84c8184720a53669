"""What is done for all datasets at once costs next to nothing for each: counted in questions to the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from chain.errors import NotFound, Refused
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from config import model
from odfd.control import wire
from odfd.services.resources.views import manifest_of
from odfd.services.views import views
from odfd.services.views.views import DatasetViews
from worlds.accounts_world import ACCOUNT, ALICE, DATASET
from worlds.counted import Questions, questions
from worlds.manifests import BOTH
from worlds.node_world import ROOT, Node, World

__all__ = ["questions"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


async def fill(node: Node, count: int, start: int = 0) -> None:
    await node.apply("---\n".join(ROOT.replace("name: cities", f"name: c{each}") for each in range(start, count)))


async def started(world: World, name: str, count: int, questions: Questions) -> int:
    """Questions of a start over so many datasets, until all parts are made."""
    async with world.running(name) as node:
        await fill(node, count)
    with questions.during() as asked:
        world.node(name)
    return len(asked)


@pytest.mark.slow
async def test_a_start_asks_as_much_whatever_is_there(world: World, questions: Questions) -> None:
    few, many = await started(world, "few", 3, questions), await started(world, "many", 30, questions)
    assert many == few


async def test_a_dataset_is_found_by_its_did_without_reading_all_names(world: World, questions: Questions) -> None:
    async with world.running("alice") as node:
        await fill(node, 3)
    node = world.node("alice")
    wanted = node.dataset("c1")
    with node.home.catalog() as catalog, questions.during() as asked:
        assert catalog.name_of(wanted) == "c1"
        assert catalog.resolve(str(wanted)).name == "c1"
    assert asked, asked
    assert not any("WHERE kind = 'dataset' ORDER BY" in each for each in asked), asked


async def test_the_first_list_after_a_start_finds_what_was_looked_at_behind_it(
    world: World, questions: Questions
) -> None:
    async with world.running("alice") as node:
        await fill(node, 10)
    node = world.node("alice")
    assert "views" in {child.name for child in node.assembly.workers}
    node.parts.views.refresher.refresh()
    with questions.during() as asked:
        assert len(node.parts.views.all()) == 10
    assert asked == []


@pytest.mark.slow
async def test_listing_again_asks_nothing_and_looks_anew_at_what_moved(world: World, questions: Questions) -> None:
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as node:
        await fill(node, 30)
    node = world.node("alice")
    views = node.parts.views
    first = views.all()
    with questions.during() as again:
        assert views.all() == first
    assert again == []
    entry = node.dataset("c7")
    with node.home.database.write() as connection:
        connection.execute("UPDATE trust_chains SET data = 0, seal = NULL WHERE dataset = ?", (entry,))
    with questions.during() as one:
        views.all()
    assert 0 < len(one) < 100, "one dataset, and not thirty"


@pytest.mark.slow
async def test_views_that_are_kept_are_those_that_a_new_look_gives(world: World) -> None:
    """Whatever happens in between: data, names, intents, policy, deletion, and days that pass."""
    world.write("alice", "1.csv", "2024-01-01T00:00:00Z,Graz,1")
    async with world.running("alice") as node:
        await node.apply(BOTH)
        await fill(node, 4)
        views = node.parts.views

        def agree() -> None:
            for _ in range(2):
                writes = -1
                while writes != node.home.database.writes:  # the node's own rounds write in between
                    writes = node.home.database.writes
                    kept, new = views.all(), [views.cache.look(entry) for entry in views.cache.entries()]
                    views.cache.save()
                    restarted = DatasetViews(node.home, node.parts.evaluator, lambda _: "", lambda: None).all()
                assert kept == new == restarted

        agree()
        await node.pull()
        agree()
        await node.api.declarations.delete("Dataset", "c1")
        agree()
        node.clock.instant += 30 * 86400 * 10**9
        agree()
        assert {view.state for view in views.all()} == {"stale"}
        node.parts.heads.loop.touch_all()
        await node.heard("dataset.deleted")
        world.write("alice", "2.csv", "2024-01-02T00:00:00Z,Wien,2")
        await node.pull("cities")
        agree()
        await node.pull("towns")
        agree()
        node.parts.reload(model.Settings(policy=model.Policy(use="reproduced")))
        agree()


async def test_a_page_asks_as_much_whatever_is_on_it_and_nothing_until_something_is_written(
    world: World, questions: Questions
) -> None:
    """Resources, accounts that have them, and their states; sizes are summed before."""
    asked = []
    for name, count in (("few", 33), ("many", 42)):  # sizes of fewer are asked for one by one
        async with world.running(name) as node:
            await node.apply(ACCOUNT.format(name="alice", uid=ALICE))
            await node.apply(*(DATASET.format(name=f"c{number}", more=", account: alice") for number in range(count)))
        node = world.node(name)
        declarations = node.api.declarations

        async def listed(declarations: Any = declarations) -> Sequence[wire.ResourceManifest]:
            page = await declarations.page("Dataset", None, 100, None)
            return tuple(map(manifest_of, await declarations.stated(page.views)))

        node.parts.views.refresher.refresh()
        await listed()
        with node.home.database.write() as connection:
            connection.execute("UPDATE trust_chains SET seal = NULL WHERE FALSE")
        with questions.during() as again:
            shown = await listed()
        assert {each.headers["account"]["name"] for each in shown} == {"alice"}
        assert len({each.state(wire.DatasetState).head for each in shown}) == count
        with questions.during() as idle:
            assert await listed() == shown
        assert len(idle) < len(again)
        asked.append((len(again), len(idle)))
    assert asked[1] == asked[0]


async def test_who_derives_from_a_dataset_is_found_without_a_look_at_all(world: World, questions: Questions) -> None:
    """By what describes one, deletes one, and lets go of data that a dataset of one's own is derived from."""
    asked = []
    for name, count in (("few", 3), ("many", 30)):
        async with world.running(name) as node:
            await node.apply(BOTH)
            await fill(node, count)
            with pytest.raises(Refused, match="towns derives from cities"):
                await node.api.declarations.delete("Dataset", "cities")
        node = world.node(name)
        with node.home.catalog() as catalog:
            entry = catalog.resolve("cities")
        with questions.during() as during:
            assert node.parts.views.detail(entry).outputs == ("towns",)
            assert node.parts.views.readers.own(entry.id) == "towns"
            assert node.parts.views.readers.own(node.dataset("c1")) is None
        asked.append(len(during))
    assert asked[1] == asked[0]


async def test_a_chain_that_lost_blocks_while_it_was_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite may come between reading the head and the block that it names."""
    async with world.running("alice") as node:
        await fill(node, 1)
    node = world.node("alice")
    (entry,) = node.parts.views.cache.entries()
    lacking = 1

    def load(chain: ChainReader) -> ChainState:
        nonlocal lacking
        lacking -= 1
        if lacking >= 0:
            raise NotFound("no block #2", rule="block-unknown")
        return load_state(chain)

    monkeypatch.setattr(views, "load_state", load)
    assert node.parts.views.cache.look(entry).blocks > 0
    lacking = 99
    with pytest.raises(NotFound):
        node.parts.views.cache.look(entry)
