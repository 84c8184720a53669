"""Chains whose truth is known: inputs, what was claimed of them, and what a re-run gives.

A step reads one input and the state before it; its rows and the state after it follow. Block 0 is the seed, all others
are steps. The Merkle trees are the real ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

from chain.ids import DatasetId
from chain.multihash import ARROW0_SHA3_256, Multihash
from chain.statements.keys import SigningKey
from chain.statements.statement import Actual
from chain.statements.tree import Frontier

GENESIS = b"nothing yet"
STRICT = "strict"


def digest(*parts: object) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


@cache
def key_of(name: str) -> SigningKey:
    return SigningKey(digest("key", name))


class Machine(NamedTuple):
    """What a step runs on. ``flaw``: the share of runs that come out wrong, each time in another way."""

    name: str
    platform: str
    rng: Random
    flaw: float = 0.0


class Block(NamedTuple):
    reads: bytes
    rows: bytes
    state: bytes
    leaf: bytes


@dataclass
class Branch:
    """One history of one dataset.

    ``recipe``: what else rows depend on: nothing (``strict``), the platform, the machine, or chance: how many outcomes.
    """

    dataset: DatasetId
    recipe: str = STRICT
    blocks: list[Block] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    """The true ones."""
    frontiers: list[Frontier] = field(default_factory=lambda: [Frontier()])
    first_lie: int | None = None
    roots: dict[int, bytes] = field(default_factory=dict)
    """By size, once asked for: whoever compares a statement with a branch asks for one of a few."""

    def __post_init__(self) -> None:
        if not self.blocks:
            self._add(b"seed", b"", GENESIS, GENESIS)

    def __len__(self) -> int:
        return len(self.blocks)

    def prefix(self, size: int) -> Branch:
        kept = self.first_lie if self.first_lie is not None and self.first_lie < size else None
        return Branch(
            self.dataset, self.recipe, self.blocks[:size], self.states[:size], self.frontiers[: size + 1], kept
        )

    def append(self, reads: bytes, machine: Machine, lie: str = "") -> None:
        """``lie``: ``rows`` or ``state`` are not what the step gives."""
        true = self._rows(self.states[-1], reads, machine)
        rows = self._rows(self.blocks[-1].state, reads, machine)
        state = digest("state", self.blocks[-1].state, reads)
        if lie == "rows":
            rows = digest("lie", reads)
        if lie == "state":
            state = digest("lie", reads)
        if rows != true and self.recipe == STRICT and self.first_lie is None:
            self.first_lie = len(self.blocks)
        self._add(reads, rows, state, digest("state", self.states[-1], reads))

    def _add(self, reads: bytes, rows: bytes, state: bytes, true: bytes) -> None:
        before = self.blocks[-1].leaf if self.blocks else b""
        leaf = digest(self.dataset, before, reads, rows, state)
        self.blocks.append(Block(reads, rows, state, leaf))
        self.states.append(true)
        self.frontiers.append(self.frontiers[-1].append(leaf))

    def _rows(self, state: bytes, reads: bytes, machine: Machine) -> bytes:
        if self.recipe == STRICT:
            return digest("rows", state, reads)
        if self.recipe in ("platform", "machine"):
            return digest("rows", state, reads, machine.platform if self.recipe == "platform" else machine.name)
        return digest("rows", state, reads, machine.rng.randrange(int(self.recipe)))

    def rerun(self, step: int, machine: Machine, *, opaque: bool) -> bytes:
        """Rows of a step: from the machine's own state, or (``opaque``) from the one that was published."""
        if machine.flaw and machine.rng.random() < machine.flaw:
            return digest("flaw", machine.rng.random())
        before = self.blocks[step - 1].state if opaque else self.states[step - 1]
        return self._rows(before, self.blocks[step].reads, machine)

    def root(self, size: int) -> bytes:
        if size not in self.roots:
            self.roots[size] = self.frontiers[size].root
        return self.roots[size]

    def leaves(self, start: int, stop: int) -> list[bytes]:
        return [block.leaf for block in self.blocks[start:stop]]

    def head(self, size: int) -> Multihash:
        return Multihash.from_digest(0x16, self.blocks[size - 1].leaf)

    def steps(self, size: int) -> range:
        return range(1, size)


def actual(rows: bytes) -> Actual:
    """What a run gave, as statements say it."""
    return Actual(logical_hash=Multihash.from_digest(ARROW0_SHA3_256, rows), records=1)
