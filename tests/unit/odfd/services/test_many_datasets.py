"""What is done for all datasets at once costs next to nothing for each: counted in questions to the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worlds.counted import Questions, questions
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
