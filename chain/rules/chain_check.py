"""Checks a chain as it arrives: takes raw blocks, keeps each to the rules, gives sealed blocks; decodes only at need.

For whoever takes blocks in bulk (import, a packed stream from a peer). Blocks that one writer made in a row are judged
as columns, others one by one, with the same answer. A ``ChainChecker`` lives for one stream and holds one state; it
knows neither files nor peers, and does not say that anyone meant these blocks: that is the signed head's.
Spec: Metadata Chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import numpy as np

from chain.codec.blocks import decode_block
from chain.codec.shape import Bytes
from chain.errors import Invalid
from chain.model.block import Block, NamedObject, SealedBlock, UnknownEvent, objects_of
from chain.model.events import MetadataEvent
from chain.multihash import SHA3_256, Multihash
from chain.rules.check import check_block, doubtful
from chain.rules.columns import Run
from chain.rules.pages import Page, PageRange, Pages
from chain.state import ChainState

_VARIANTS: Final = {event: number for number, event in enumerate(get_args(MetadataEvent), start=1)}
_SHA3: Final = np.frombuffer(Multihash.from_digest(SHA3_256, bytes(32))[:-32], np.uint8)


class ChainChecker:
    """Checks a stream of raw blocks against all append rules and seals them.

    ``state`` is that after the last block taken.
    """

    def __init__(self, state: ChainState) -> None:
        self.state = state
        self._pages = Pages()

    def take(self, raws: Sequence[bytes]) -> list[SealedBlock]:
        """The next blocks, sealed. Raises Invalid for the first that breaks a rule; none of them is taken then."""
        before = self.state
        page = self._pages.sort(None, raws)
        sealed: list[SealedBlock] = []
        try:
            for stretch in page.stretches:
                if stretch.groups:
                    self._take_run(page, raws, stretch, sealed)
                else:
                    sealed += [self._take(raw) for raw in raws[stretch.start : stretch.stop]]
        except Invalid:
            self.state = before
            raise
        return sealed

    def _take_run(self, page: Page, raws: Sequence[bytes], stretch: PageRange, sealed: list[SealedBlock]) -> None:
        run = page.run(stretch, self.state)
        mine, names, objects = raws[stretch.start : stretch.stop], _names(run.hashes.values), _objects(run)
        variant = _VARIANTS[type(run.event)]
        passed = 0
        for row in [*np.flatnonzero(doubtful(run)).tolist(), run.size]:
            if passed < row:
                heads = [self.state.head, *names[passed : row - 1]]
                numbers = range(self.state.size, self.state.size + row - passed)
                columns = zip(mine[passed:row], names[passed:row], heads, numbers, objects[passed:row], strict=True)
                sealed += [SealedBlock(raw, name, head, at, variant, named) for raw, name, head, at, named in columns]
                self.state = self.state.advance(decode_block(mine[row - 1]))
            if row < run.size:
                sealed.append(self._take(mine[row]))
            passed = row + 1

    def _take(self, raw: bytes) -> SealedBlock:
        block = decode_block(raw)
        for broken in check_block(self.state, block, as_author=False):
            raise Invalid(broken.message, rule=broken.rule, hint=broken.hint, place=f"block #{block.sequence_number}")
        self.state = self.state.advance(block)
        return seal(block)


def seal(block: Block) -> SealedBlock:
    """A decoded block as one of a stream."""
    event = block.event
    variant = event.variant if isinstance(event, UnknownEvent) else _VARIANTS[type(event)]
    return SealedBlock(block.raw, block.hash, block.prev_block_hash, block.sequence_number, variant, objects_of(block))


def _names(digests: Bytes) -> list[Multihash]:
    """Of sha3-256 digests, ``(n, 32)``."""
    flat = np.concatenate([np.broadcast_to(_SHA3, (len(digests), len(_SHA3))), digests], axis=1)
    return list(map(Multihash, flat.view(f"V{flat.shape[1]}").ravel().tolist()))


def _objects(run: Run) -> list[tuple[NamedObject, ...]]:
    """What each block of a run brings, as ``objects_of`` has it; anything where a name is not of sha3-256: doubtful."""
    brought: list[tuple[NamedObject, ...]] = [()] * run.size
    for part in ("event.new_data", "event.new_checkpoint"):
        names, sizes = run.digests(f"{part}.physical_hash"), run.numbers(f"{part}.size")
        if names.present.any():
            named = zip(brought, names.present.tolist(), _names(names.values), sizes.values.tolist(), strict=True)
            brought = [(*known, (name, size)) if there else known for known, there, name, size in named]
    return brought
