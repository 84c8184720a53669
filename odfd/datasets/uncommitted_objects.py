"""Tracks the objects of blocks that a mirror has verified but not committed, so that they can already be passed on.

A mirror commits blocks when all their objects are here, which takes hours on a slow line. Until then no stored
reference says which dataset an object belongs to; this module does, in memory, for the steps under way (ADR 61). It
also has the large objects whose pieces come in any order (ADR 65). Called from any thread.
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


class UncommittedStep(msgspec.Struct):
    """Consecutive verified blocks of a signed history, whose objects a mirror is fetching."""

    dataset: DatasetId
    tip: Tip
    start: int
    numbers: dict[Multihash, int]
    """The number of the block that names each object."""
    have: int = 0
    """A bit field: bit ``i`` is set if all objects of block ``start + i`` are here."""
    is_allowed: bool = False
    """Whether policy lets others have them before they are judged."""

    def note(self, number: int) -> None:
        """Notes that the objects of a block are here and checked."""
        self.have |= 1 << (number - self.start)


class SwarmCounts(msgspec.Struct):
    """Counts what was exchanged with peers that fetch the same objects, since the node started."""

    from_publisher: int = 0
    """Pieces that the publisher gave to this node."""
    from_mirrors: int = 0
    """Pieces that other mirrors gave to this node."""
    refused: int = 0
    """Pieces that a peer offered, and then did not give or gave wrongly."""
    offered: int = 0
    """Pieces that this node, as publisher, offered to one peer at a time."""
    bytes_from_publisher: int = 0
    bytes_from_mirrors: int = 0
    bytes_given: int = 0
    """Bytes given to peers that fetch what this node publishes."""


class UncommittedObjects:
    """Keeps the steps of one node that are under way, and its large objects that are arriving."""

    def __init__(self, allows: Callable[[DatasetId], bool] = lambda _: True) -> None:
        """``allows``: whether policy passes on blocks of a dataset of which only the signature is known."""
        self._allows = allows
        self._steps: dict[DatasetId, UncommittedStep] = {}
        self._files: dict[Multihash, PieceFile] = {}
        self._lock = threading.Lock()
        self.lists = PieceLists()
        self.counts = SwarmCounts()

    @contextmanager
    def step(self, dataset: DatasetId, tip: Tip, blocks: Sequence[SealedBlock]) -> Iterator[UncommittedStep]:
        """Lets objects of these blocks be passed on until the context ends."""
        numbers = {name: block.sequence_number for block in blocks for name, _ in block.objects}
        made = UncommittedStep(dataset, tip, blocks[0].sequence_number, numbers)
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
        """Lets pieces of a large object be passed on until the context ends."""
        with self._lock:
            self._files[file.list.name] = file
        try:
            yield
        finally:
            with self._lock:
                del self._files[file.list.name]

    def file(self, name: Multihash) -> PieceFile | None:
        """Returns the pieces of an object that is arriving, or ``None``."""
        with self._lock:
            return self._files.get(name)

    def of(self, dataset: DatasetId) -> UncommittedStep | None:
        """Returns the step of a dataset under way, if policy passes it on now."""
        with self._lock:
            step = self._steps.get(dataset)
        if step is None:
            return None
        step.is_allowed = self._allows(dataset)
        return step if step.is_allowed else None

    def find(self, name: Multihash) -> list[tuple[DatasetId, int]]:
        """Returns datasets and block numbers under way that name an object, if policy allowed it when last asked."""
        with self._lock:
            steps = [step for step in self._steps.values() if step.is_allowed]
        return [(step.dataset, step.numbers[name]) for step in steps if name in step.numbers]
