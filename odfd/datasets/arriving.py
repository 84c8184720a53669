"""Knows the objects of blocks that a mirror has proven and not committed, so that they can be passed on meanwhile.

A mirror commits blocks when all their objects are here, which takes hours where the line is slow. Until then no stored
reference says which dataset an object belongs to; this does, in memory, for the steps that are under way (ADR 61), and
has the large objects whose pieces come in any order (ADR 65). Called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.multihash import Multihash
from odfd.datasets.pieces import PieceFile, PieceLists
from p2p.ports import Tip


class ArrivingStep(msgspec.Struct):
    """Proven blocks of a signed history, in a row."""

    dataset: DatasetId
    tip: Tip
    start: int
    numbers: dict[Multihash, int]
    """The block that names each object."""
    have: int = 0
    """Bit ``i`` is set where all objects of block ``start + i`` are here."""
    is_allowed: bool = False
    """Whether policy passes them on before they are judged."""

    def note(self, number: int) -> None:
        """The objects of a block are here and checked."""
        self.have |= 1 << (number - self.start)


class SwarmCounts(msgspec.Struct):
    """Counts what was exchanged with those who fetch the same, since the node started."""

    from_publisher: int = 0
    """Pieces that the publisher gave here,"""
    from_mirrors: int = 0
    """and others;"""
    refused: int = 0
    """those that a peer offered and did not give, or gave false;"""
    offered: int = 0
    """and those that this node offered, as publisher, to one peer at a time."""
    bytes_from_publisher: int = 0
    bytes_from_mirrors: int = 0
    bytes_given: int = 0
    """To those who fetch what this node publishes."""


class Arriving:
    """The steps of one node."""

    def __init__(self, allows: Callable[[DatasetId], bool] = lambda _: True) -> None:
        """``allows``: whether policy passes on blocks of a dataset of which no more is known than their signature."""
        self._allows = allows
        self._steps: dict[DatasetId, ArrivingStep] = {}
        self._files: dict[Multihash, PieceFile] = {}
        self._lock = threading.Lock()
        self.lists = PieceLists()
        self.counts = SwarmCounts()

    @contextmanager
    def step(self, dataset: DatasetId, tip: Tip, blocks: Sequence[SealedBlock]) -> Iterator[ArrivingStep]:
        """Passes on objects of these blocks for as long as it lasts."""
        numbers = {name: block.sequence_number for block in blocks for name, _ in block.objects}
        made = ArrivingStep(dataset, tip, blocks[0].sequence_number, numbers)
        with self._lock:
            self._steps[dataset] = made
        try:
            yield made
        finally:
            with self._lock:
                if self._steps.get(dataset) is made:
                    del self._steps[dataset]

    @contextmanager
    def pieces(self, file: PieceFile) -> Iterator[None]:
        """Passes on pieces of a large object for as long as it lasts."""
        with self._lock:
            self._files[file.list.name] = file
        try:
            yield
        finally:
            with self._lock:
                del self._files[file.list.name]

    def file(self, name: Multihash) -> PieceFile | None:
        """The pieces of an object that is on its way."""
        with self._lock:
            return self._files.get(name)

    def of(self, dataset: DatasetId) -> ArrivingStep | None:
        """The step of a dataset that policy passes on now."""
        with self._lock:
            step = self._steps.get(dataset)
        if step is None:
            return None
        step.is_allowed = self._allows(dataset)
        return step if step.is_allowed else None

    def named(self, name: Multihash) -> list[tuple[DatasetId, int]]:
        """The blocks under way that name an object, where policy passed them on when it was asked last."""
        with self._lock:
            steps = [step for step in self._steps.values() if step.is_allowed]
        return [(step.dataset, step.numbers[name]) for step in steps if name in step.numbers]
