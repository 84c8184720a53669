"""Derived datasets by their inputs: what all chains say, after whatever was applied, altered and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chain.errors import Environment
from chain.ids import DatasetId
from odfd.services.views.derivative_index import DerivativeIndex
from worlds.counted import Questions, questions
from worlds.manifests import DERIVED, ROOT
from worlds.node_world import World

__all__ = ["questions"]


def root(name: str) -> str:
    return ROOT.replace("name: cities", f"name: {name}")


def derived(name: str, source: str) -> str:
    return DERIVED.replace("name: towns", f"name: {name}").replace("datasetRef: cities", f"datasetRef: {source}")


def agrees(index: DerivativeIndex, home: Any) -> dict[str, list[str]]:
    """What the index says of each dataset, which is what a fresh one reads from all chains."""
    said = {entry.name: [each.name for each in index.of(entry.id)] for entry in home.entries()}
    fresh = DerivativeIndex(home)
    assert said == {entry.name: [each.name for each in fresh.of(entry.id)] for entry in home.entries()}
    assert all(index.has_any(entry.id) == bool(said[entry.name]) for entry in home.entries())
    assert index.inputs(frozenset) == {entry.id for entry in home.entries() if said[entry.name]}
    return {name: found for name, found in said.items() if found}


async def test_the_index_follows_what_is_applied_altered_and_deleted(world: World) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), root("rivers"), derived("towns", "cities"))
        index = DerivativeIndex(node.home)
        assert agrees(index, node.home) == {"cities": ["towns"]}
        await node.apply(derived("villages", "cities"), derived("streets", "towns"))
        assert agrees(index, node.home) == {"cities": ["towns", "villages"], "towns": ["streets"]}
        await node.api.declarations.delete("Dataset", "villages")
        assert agrees(index, node.home) == {"cities": ["towns"], "towns": ["streets"]}
        await node.api.declarations.delete("Dataset", "streets", purge=True)
        assert agrees(index, node.home) == {"cities": ["towns"]}


async def test_a_question_reads_no_chain_that_was_not_written(
    world: World, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), root("rivers"), *(derived(f"d{each}", "cities") for each in range(9)))
    node = world.node("alice")
    index, cities, rivers = DerivativeIndex(node.home), node.dataset("cities"), node.dataset("rivers")
    assert index.has_any(cities)
    with questions.during() as asked:
        assert not index.has_any(rivers)
    assert not asked
    reads: list[DatasetId] = []
    read = DerivativeIndex._read
    monkeypatch.setattr(DerivativeIndex, "_read", lambda self, each: reads.append(each) or read(self, each))
    with node.home.database.write() as connection:
        connection.execute("UPDATE datasets SET id = id WHERE id = ?", (rivers,))
    assert index.has_any(cities)
    assert reads == [rivers]


async def test_a_damaged_transform_is_told_by_each_question_until_it_is_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running("alice") as node:
        await node.apply(root("cities"), derived("towns", "cities"))
        index, cities, towns = DerivativeIndex(node.home), node.dataset("cities"), node.dataset("towns")

        def damaged(self: DerivativeIndex, dataset: DatasetId) -> frozenset[str]:
            if dataset == towns:
                raise Environment("block 1 is damaged", rule="block-damaged")
            return read(self, dataset)

        read = DerivativeIndex._read
        monkeypatch.setattr(DerivativeIndex, "_read", damaged)
        for _ in range(2):
            with pytest.raises(Environment, match="damaged"):
                index.has_any(cities)
        monkeypatch.undo()
        assert index.has_any(cities)
