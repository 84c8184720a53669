"""A chain as it arrives: raw blocks in, each kept to the rules, sealed blocks out, nothing decoded without need.

For whoever takes blocks in bulk (import, a packed stream from a peer). Blocks that one writer made in a row are judged
as columns, others one by one, with the same answer. A ``Judge`` lives for one stream and holds one state; it knows
neither files nor peers, and does not say that anyone meant these blocks: that is the signed head's.
Spec: Metadata Chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

import numpy as np

from chain.codec.blocks import decode_block
from chain.errors import Invalid
from chain.model.block import Block, SealedBlock, UnknownEvent
from chain.model.events import AddData, ExecuteTransform, MetadataEvent
from chain.multihash import SHA3_256, Multihash
from chain.rules.check import check_block, doubtful
from chain.rules.pages import Page, Pages, Stretch
from chain.state import ChainState

_VARIANTS: Final = {event: number for number, event in enumerate(get_args(MetadataEvent), start=1)}


class Judge:
    """See the module. ``state`` is that after the last block taken."""

    def __init__(self, state: ChainState) -> None:
        self.state = state
        self._pages = Pages()

    def take(self, raws: Sequence[bytes]) -> list[SealedBlock]:
        """The next blocks, sealed. Raises Invalid at the first that breaks a rule, with ``state`` before it."""
        page = self._pages.sort(None, raws)
        sealed: list[SealedBlock] = []
        for stretch in page.stretches:
            if stretch.groups:
                self._take_run(page, raws, stretch, sealed)
            else:
                for raw in raws[stretch.start : stretch.stop]:
                    sealed.append(self._take(raw))
        return sealed

    def _take_run(self, page: Page, raws: Sequence[bytes], stretch: Stretch, sealed: list[SealedBlock]) -> None:
        run = page.run(stretch, self.state)
        objects = run.has("event.new_data") | run.has("event.new_checkpoint")
        variant = _VARIANTS[type(run.event)]
        passed = 0
        for row in [*np.flatnonzero(doubtful(run)).tolist(), run.size]:
            head, number = self.state.head, self.state.sequence_number
            for place in range(passed, row):
                name = Multihash.from_digest(SHA3_256, page.digests[stretch.start + place].tobytes())
                number += 1
                raw = raws[stretch.start + place]
                sealed.append(SealedBlock(raw, name, head, number, variant, bool(objects[place])))
                head = name
            if passed < row:
                self.state = self.state.advance(decode_block(raws[stretch.start + row - 1]))
            if row < run.size:
                sealed.append(self._take(raws[stretch.start + row]))
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
    objects = isinstance(event, AddData | ExecuteTransform) and bool(event.new_data or event.new_checkpoint)
    return SealedBlock(block.raw, block.hash, block.prev_block_hash, block.sequence_number, variant, objects)
