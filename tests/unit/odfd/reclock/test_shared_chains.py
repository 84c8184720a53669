"""The copy of the chains of a commit point reads what is new once, and what it knows not at all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chain.ids import DatasetId
from chain.state import load_state
from odfd.reclock import shared_chains
from odfd.reclock.shared_chains import SharedChains
from odfd.repositories.folder import Folder
from odfd.repositories.port import StoredFile
from worlds.instances import House, ThreeInstances


class CountedFolder(Folder):
    """A folder that counts how often each file was read."""

    def __init__(self, root: Path) -> None:
        super().__init__("house", root)
        self.reads: Counter[str] = Counter()

    def get(self, path: str, limit: int) -> StoredFile | None:
        self.reads[path] += 1
        return super().get(path, limit)

    def blocks(self) -> Counter[str]:
        """How often each block was read since the last call."""
        found = Counter({path: count for path, count in self.reads.items() if "/blocks/" in path})
        self.reads.clear()
        return found


def collection(folder: Path, files: int) -> tuple[ThreeInstances, list[DatasetId]]:
    """A collection with a transaction for each file."""
    house = House(folder)
    made = ThreeInstances(house, house.begin(1))
    for _ in range(files):
        house.add("Graz")
        made.drain()
    return made, [made.chain, *made.instance(0)[0].layout.shards]


def copy(made: ThreeInstances) -> tuple[SharedChains, CountedFolder]:
    folder = made.house.folder / "counted"
    folder.mkdir()
    files = CountedFolder(made.house.folder / "house")
    return SharedChains(files, folder, "counted"), files


@pytest.mark.parametrize(("page", "most"), [(256, 1), (2, 2)])
def test_new_blocks_are_read_once_and_known_ones_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int, most: int
) -> None:
    """More than a page of them are walked from the newest back, and read again from the oldest on."""
    monkeypatch.setattr(shared_chains, "_PAGE", page)
    made, datasets = collection(tmp_path, 3)
    place, files = copy(made)
    place.read(datasets)
    written = made.house.chains(made.chain)
    heads = [place.chains.chain(each).head() for each in datasets]
    assert heads == [written[each][0].head for each in datasets]
    read = files.blocks()
    assert len(read) == sum(len(raws) for _, raws in written.values())
    assert max(read.values()) == most
    place.read(datasets)
    assert not files.blocks()
    made.house.add("Linz")
    made.drain()
    place.read(datasets)
    assert sorted(files.blocks().values()) == [1, 1], "a block of the reclocking chain, and one of the shard"
    place.close()
    made.close()


@pytest.mark.parametrize("page", [256, 1])
def test_a_state_that_was_brought_up_is_that_of_the_whole_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(shared_chains, "_PAGE", page)
    made, datasets = collection(tmp_path, 0)
    place, _ = copy(made)
    for new in (1, 3, 1):
        for _ in range(new):
            made.house.add("Graz")
            made.drain()
        place.read(datasets)
        for each in datasets:
            assert place.state(each) == load_state(place.chains.chain(each))
    place.close()
    made.close()
