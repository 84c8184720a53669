"""Chooses the bytes that prove a step wrong, after this node's own re-runs gave another answer.

A bundle holds complete ranges of blocks, from each chain's first to the last that matters. A path into the signed tree
shows that a block is in the chain, but only the links between blocks show that none was left out: a reporter who could
omit the newest SetTransform could accuse an honest publisher. It holds the slices that the step reads, if it starts
from a published checkpoint which this node's own run made bit for bit; else all slices from the first, so that the
re-run can begin where nothing has to be believed. Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.statements import canonical
from chain.statements.envelope import Signed
from chain.statements.statement import Actual, HeadStatement
from chain.statements.tree import Tree
from chain.store.base import ChainReader, ChainStore, ObjectReader, leaves_of
from chain.wording import plural
from odfd.transform.driver import recorded_cuts
from odfd.transform.plan import TransformPlan
from odfd.transform.replay import plan_recorded
from odfd.trust.evidence.bundle import BUNDLE, MAX_OBJECTS, Listed, Manifest

BUDGET: Final = 64 << 20
"""Bytes of objects in one bundle; a step that needs more is accused without a bundle."""


class Accusation(msgspec.Struct, frozen=True, kw_only=True):
    """An accused step, the signature that covers it, and the result of the reporter's re-run."""

    head: HeadStatement
    signed: Signed
    step: Block
    checkpoint: bytes | None
    """The checkpoint that this node's own run of the step before made."""
    actual: Actual
    authority: tuple[Signed, ...] = ()
    """The known versions 1, 2, … of the dataset's authority."""


class GatheredBundle(msgspec.Struct, frozen=True):
    """A manifest and where the bytes of its objects are."""

    manifest: Manifest
    sources: Mapping[Multihash, bytes | Path]


class TooLarge(msgspec.Struct, frozen=True):
    """The bundle would exceed its limits; ``reason`` is for people."""

    reason: str


def gather(chains: ChainStore, objects: ObjectReader, case: Accusation) -> GatheredBundle | TooLarge:
    """Gathers the objects of a bundle; TooLarge if they exceed the limits.

    Raises NotFound if a slice is no longer here, Invalid if the head's tree is not that of this chain.
    """
    event = case.step.event
    assert isinstance(event, ExecuteTransform)
    pile = _Pile(objects)
    pile.add_chain(chains.chain(case.head.dataset), case.step.sequence_number + 1, _path(chains, case))
    cuts = recorded_cuts(event.query_inputs)
    for dataset, cut in cuts.items():
        reader = chains.chain(dataset)
        pile.add_chain(reader, reader.block_by_hash(cut).sequence_number + 1)
    own = None if case.checkpoint is None else Multihash.sha3_256(case.checkpoint)
    if own == event.prev_checkpoint:
        if case.checkpoint is not None:
            pile.add_bytes(case.checkpoint)
        pile.add_slices(_read_by(chains, case))
    else:
        pile.add_slices(_all_of(chains, cuts))
    if pile.size > BUDGET or len(pile.listed) > MAX_OBJECTS:
        return TooLarge(f"{plural(len(pile.listed), 'object')} of {pile.size:,} bytes; a bundle has at most {BUDGET:,}")
    if event.new_data is not None and pile.size + event.new_data.size <= BUDGET:
        pile.add_slices([event.new_data])
    manifest = Manifest(
        type=BUNDLE,
        head=_envelope(case.signed),
        authority=tuple(_envelope(each) for each in case.authority[: case.head.authority]),
        sequence_number=case.step.sequence_number,
        actual=case.actual,
        objects=tuple(pile.listed.values()),
    )
    return GatheredBundle(manifest, pile.sources)


class _Pile:
    """The objects gathered so far, each once, in the order in which they were added."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self.listed: dict[Multihash, Listed] = {}
        self.sources: dict[Multihash, bytes | Path] = {}
        self.size = 0

    def add_chain(self, reader: ChainReader, size: int, path: tuple[bytes, ...] | None = None) -> None:
        """Adds blocks ``0 <= n < size`` of a chain; ``path`` is the Merkle path of the last."""
        for number, raw in enumerate(reader.raw_blocks(0, min(size, MAX_OBJECTS + 1))):
            self._add(
                Listed(
                    hash=Multihash.sha3_256(raw),
                    size=len(raw),
                    sequence_number=number,
                    path=path if number == size - 1 else None,
                ),
                raw,
            )

    def add_bytes(self, raw: bytes) -> None:
        self._add(Listed(hash=Multihash.sha3_256(raw), size=len(raw)), raw)

    def add_slices(self, slices: Iterable[DataSlice]) -> None:
        for each in slices:
            path = self._objects.path(each.physical_hash)
            self._add(Listed(hash=each.physical_hash, size=each.size), path)

    def _add(self, listed: Listed, source: bytes | Path) -> None:
        if listed.hash not in self.listed:
            self.listed[listed.hash] = listed
            self.sources[listed.hash] = source
            self.size += listed.size


def _path(chains: ChainStore, case: Accusation) -> tuple[bytes, ...]:
    """Returns the Merkle path from the step's block to the root that the head signs. Raises Invalid if roots differ."""
    tree = Tree(partial(leaves_of, chains, case.head.dataset))
    if tree.root(case.head.size) != case.head.root_hash:
        raise Invalid("the newest signed head is not of the chain that is here", rule="trust.tree")
    return tuple(tree.inclusion(case.step.sequence_number, case.head.size))


def _read_by(chains: ChainStore, case: Accusation) -> tuple[DataSlice, ...]:
    _, plan = plan_recorded(chains, case.head.dataset, case.step.sequence_number, case.checkpoint)
    return plan.input_slices if isinstance(plan, TransformPlan) else ()


def _all_of(chains: ChainStore, cuts: Mapping[DatasetId, Multihash]) -> Iterable[DataSlice]:
    for dataset, cut in cuts.items():
        reader = chains.chain(dataset)
        for number in range(reader.block_by_hash(cut).sequence_number + 1):
            event = reader.block_at(number).event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                yield event.new_data


def _envelope(signed: Signed) -> dict[str, canonical.Json]:
    value = canonical.decode(signed.envelope)
    assert isinstance(value, dict)
    return value
