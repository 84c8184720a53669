"""Reads a bundle into a temporary store, and verifies the path from the accused signature to the step and its inputs.

Every object is hashed. Then the links are followed from the accused's signature to the step, to its chain, and to the
chains of its inputs; every block is checked against the append rules, and every slice against its block. The result
contains what the accused signed, and nothing that the reporter says. Spec: docs/spec/trust.md#bundles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from chain.codec.blocks import MAX_BLOCK, decode_block
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, DataSlice, ExecuteTransform
from chain.multihash import Multihash
from chain.rules import check_block
from chain.state import ChainState
from chain.statements.statement import HeadStatement
from chain.statements.tree import root_from_inclusion
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.files import disk
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.transform.driver import recorded_cuts
from odfd.trust.evidence import bundle
from odfd.trust.evidence.bundle import Listed, Manifest, Reader
from odfd.verify.objects import SliceClaim, check_slice
from odfd.verify.report import VerifyFinding
from odfd.verify.terms import ChainTerms


@dataclass(frozen=True, slots=True)
class AccusedStep:
    """The accused step of an unpacked bundle whose links were found to be complete."""

    manifest: Manifest
    head: HeadStatement
    step: Block
    chains: SqliteChains
    objects: DiskObjects
    published: DataSlice | None
    """The slice that the accused published, if the file holds it and it agrees with its block."""


@dataclass(frozen=True, slots=True)
class IncompleteBundle:
    """A valid bundle that lacks blocks which the re-run needs."""

    manifest: Manifest
    head: HeadStatement
    missing: str


Unpacked: TypeAlias = AccusedStep | IncompleteBundle
_OMIT: Final = "whoever reports may leave out, not add: nobody is to keep and give away what is no evidence"


@contextmanager
def unpacked(file: BinaryIO, place: str, folder: Path) -> Iterator[Unpacked]:
    """Unpacks the bundle in ``file`` for use inside the block. Synchronous; ``place`` is its name in messages.

    Raises Invalid if anything is not as a bundle has to be, Environment if our disk fails.
    """
    reader = Reader(file, place)
    head, _ = reader.manifest.accused()
    with closing(open_database(folder / "recheck.sqlite")) as database:
        objects = DiskObjects(folder / "objects", database)
        with disk(folder):
            for each, pieces in reader.objects():
                staged = objects.stage()
                bundle.copy(pieces, staged)
                objects.adopt(staged, each.hash)
        listed = {each.hash: each for each in reader.manifest.objects}
        yield _hang_together(reader.manifest, head, _Stores(listed, objects, SqliteChains(database, objects)))


def _hang_together(manifest: Manifest, head: HeadStatement, stores: _Stores) -> Unpacked:
    try:
        step = _accused_step(head, manifest, stores.objects)
        accused = _restore(head.dataset, step.hash, stores)
        before, _ = accused[-1]
        assert isinstance(step.event, ExecuteTransform)
        named = {block.hash for _, block in accused} | _named_by(step.event)
        for dataset, cut in recorded_cuts(step.event.query_inputs).items():
            for state, block in _restore(dataset, cut, stores):
                named |= {block.hash} | _slice_of(block)
                for wrong in _check_slice(stores.objects, state, block):
                    raise Invalid(wrong.message, rule=wrong.rule, place=f"{dataset.short} #{block.sequence_number}")
    except _Missing as missing:
        return IncompleteBundle(manifest, head, str(missing))
    # Nobody's signature answers for it (test_a_reporter_adds_nothing).
    if strange := stores.listed.keys() - named:
        raise Invalid(
            f"it holds {min(strange).short}, which nothing that was signed names", rule="bundle-object", hint=_OMIT
        )
    published = step.event.new_data
    is_whole = published is not None and stores.objects.has(published.physical_hash)
    is_sound = is_whole and not _check_slice(stores.objects, before, step)
    return AccusedStep(manifest, head, step, stores.chains, stores.objects, published if is_sound else None)


def _named_by(event: ExecuteTransform) -> set[Multihash]:
    """Returns the objects that a step reads and made, beside its inputs."""
    made = None if event.new_data is None else event.new_data.physical_hash
    return {name for name in (event.prev_checkpoint, made) if name is not None}


def _slice_of(block: Block) -> set[Multihash]:
    event = block.event
    if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
        return {event.new_data.physical_hash}
    return set()


class _Missing(Exception):
    """A block is missing that the file should hold."""


def _accused_step(head: HeadStatement, manifest: Manifest, objects: DiskObjects) -> Block:
    """Returns the accused block, after its path showed that it is in the tree that the accused signed."""
    number = manifest.sequence_number
    for each in manifest.objects:
        if each.sequence_number != number or each.path is None:
            continue
        if root_from_inclusion(each.hash.digest, number, head.size, each.path) == head.root_hash:
            block = _block(each, objects)
            if block.sequence_number != number or not isinstance(block.event, ExecuteTransform):
                raise Invalid(f"block #{number} is no transaction of a transform", rule="bundle-step")
            return block
    if any(each.path is not None for each in manifest.objects):
        raise Invalid("the accused step is not in the tree that was signed", rule="bundle-path")
    raise _Missing(f"block #{number} with its path into the signed tree is not in the file")


def _block(listed: Listed, objects: DiskObjects) -> Block:
    if listed.size > MAX_BLOCK:
        raise Invalid(f"a block of {listed.size:,} bytes", rule="block-size")
    return decode_block(objects.read(listed.hash))


@dataclass(frozen=True, slots=True)
class _Stores:
    """The contents that the file listed, and where each is stored now."""

    listed: Mapping[Multihash, Listed]
    objects: DiskObjects
    chains: SqliteChains


def _restore(dataset: DatasetId, last: Multihash, stores: _Stores) -> list[tuple[ChainState, Block]]:
    """Restores a chain up to ``last``: walks back by links, judges forwards, stores.
    Returns blocks with the state before."""
    blocks = _walk_back(dataset, last, stores)
    if stores.chains.chain(dataset).head() is not None:
        raise Invalid("a chain is an input of itself, or named twice", rule="bundle-chain")
    state = ChainState.EMPTY
    states = []
    for block in blocks:
        for broken in check_block(state, block, as_author=False):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        states.append(state)
        state = state.advance(block)
    if state.dataset != dataset:
        raise Invalid(f"the chain shown for {dataset.short} is another dataset's", rule="graft")
    stores.chains.commit([Append(dataset=dataset, expected=None, blocks=blocks)])
    return list(zip(states, blocks, strict=True))


def _walk_back(dataset: DatasetId, last: Multihash, stores: _Stores) -> list[Block]:
    """Returns the blocks up to ``last``, oldest first. A chain cannot contain a cycle unless sha3-256 is broken."""
    blocks: list[Block] = []
    name: Multihash | None = last
    while name is not None:
        if name not in stores.listed:
            raise _Missing(f"block {name.short} of {dataset.short} is not in the file")
        blocks.append(_block(stores.listed[name], stores.objects))
        name = blocks[-1].prev_block_hash
    return blocks[::-1]


def _check_slice(objects: DiskObjects, state: ChainState, block: Block) -> list[VerifyFinding]:
    """Checks the block's slice against the block, if the file holds it; a re-run reads no others."""
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
        return []
    if not objects.has(event.new_data.physical_hash):
        return []
    claim = SliceClaim(slice=event.new_data, terms=ChainTerms.of(state), system_time=block.system_time)
    return check_slice(objects, claim)
