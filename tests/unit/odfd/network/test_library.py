"""How often it is computed what of a dataset is given: seldom for whoever only tells of it, and never too late."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.store.base import Head
from odfd.network.library import REACH_AGE, TOLD_AGE, ServingLibrary, ServingTerms

MANY = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(5)]
ONE = MANY[0]


class World:
    """Chains of which only heads are asked, and a reach that counts how often it is computed."""

    def __init__(self) -> None:
        self.now = Instant(10**18)
        self.blocks = dict.fromkeys(MANY, 7)
        self.within = dict.fromkeys(MANY, 5)
        self.computed: list[DatasetId] = []
        nothing: Any = None
        self.library = ServingLibrary(
            nothing,
            self,
            nothing,
            ServingTerms(frozenset, self.reach),
            lambda: self.now,  # type: ignore[arg-type]
        )

    def datasets(self) -> Sequence[DatasetId]:
        return MANY

    def chain(self, dataset: DatasetId) -> Any:
        blocks = self.blocks[dataset]

        class Chain:
            def head(self) -> Head:
                return Head(Multihash.sha3_256(bytes(blocks)), blocks - 1)

        return Chain()

    def reach(self, dataset: DatasetId) -> int:
        self.computed.append(dataset)
        return self.within[dataset]

    def later(self, nanoseconds: int) -> None:
        self.now = Instant(self.now + nanoseconds)


def test_telling_of_many_costs_little_while_nothing_moves() -> None:
    world = World()
    for _ in range(30):
        assert world.library.datasets(10) == MANY
        world.later(15 * SECOND)
    assert world.computed == MANY
    world.later(TOLD_AGE)
    world.library.datasets(10)
    assert world.computed == MANY * 2, "in the end all is looked at again"


@pytest.mark.parametrize("moved", ["head", "signed", "policy"])
def test_what_moved_is_looked_at_at_once(moved: str) -> None:
    world = World()
    world.library.datasets(10)
    world.within[ONE] = 0
    if moved == "head":
        world.blocks[ONE] += 1
    elif moved == "signed":
        world.library.note_change(ONE)
    else:
        world.library.policy_changed()
    world.computed.clear()
    assert world.library.datasets(10) == MANY[1:]
    assert world.computed == (MANY if moved == "policy" else [ONE])


def test_what_was_not_given_is_told_of_as_soon_as_it_is() -> None:
    world = World()
    world.within[ONE] = 0
    assert world.library.datasets(10) == MANY[1:]
    world.within[ONE] = 1
    world.later(REACH_AGE)
    assert world.library.datasets(10) == MANY


def test_whoever_asks_is_answered_by_the_reach_of_now() -> None:
    world = World()
    world.library.datasets(10)
    world.within[ONE] = 0
    world.later(REACH_AGE)
    assert world.library.size(ONE) == 0
    assert world.library.datasets(10) == MANY[1:]


def test_no_more_are_looked_at_than_are_told() -> None:
    world = World()
    assert world.library.datasets(2) == MANY[:2]
    assert world.computed == MANY[:2]


class Swarm:
    """Answers whatever it is asked, and counts it."""

    asked = 0

    def parts(self, *_: Any) -> str:
        self.asked += 1
        return "parts"

    pieces = piece_list = parts


def test_which_parts_of_a_private_dataset_are_here_is_told_to_nobody() -> None:
    """Nor of an object that is none of the dataset by which it is asked for: the answer is that of what is absent."""
    world, swarm, name = World(), Swarm(), Multihash.sha3_256(b"object")
    terms: Any = ServingTerms(lambda asked, _=None: {*asked} - {ONE}, world.reach, swarm=swarm)  # type: ignore[arg-type]
    library: Any = ServingLibrary(None, world, None, terms, lambda: world.now)  # type: ignore[arg-type]
    library._find_naming = lambda _: [(ONE, 3), (MANY[1], 3)]

    def told(dataset: DatasetId) -> list[Any]:
        ask: Any = SimpleNamespace(dataset=dataset, name=name)
        return [library.parts(ask), library.pieces(ask), library.piece_list(dataset, name, 1)]

    assert told(ONE) == [None] * 3
    assert swarm.asked == 0
    assert told(MANY[1]) == ["parts"] * 3
    assert told(MANY[2])[1:] == [None] * 2, "it is no object of this one"
