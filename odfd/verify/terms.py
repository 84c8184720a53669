"""Tracks along a chain the schema and the names of system columns in force for each slice.

Small values, unlike the state before each of thousands of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import decode_block
from chain.data.object_links import link_columns
from chain.errors import Invalid
from chain.model.block import Block, SealedBlock, UnknownEvent
from chain.model.events import SetDataSchema, SetVocab, Vocab
from chain.model.schema import DataSchema
from chain.rules.check import ChainChecker
from chain.state import ChainState, load_state
from chain.store.base import ChainReader
from chain.store.schema import KINDS

_SAYING: Final = (KINDS["SetDataSchema"], KINDS["SetVocab"])


class ChainTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms in force after some block; ``None`` is unknown."""

    schema: DataSchema | None = None
    """The schema; also ``None`` before there is one."""
    vocab: Vocab | None = None

    @property
    def links(self) -> tuple[str, ...]:
        """Columns that hold links to objects."""
        return link_columns(self.schema)

    @classmethod
    def of(cls, state: ChainState) -> ChainTerms:
        vocab = None if SetVocab.__name__ in state.unreadable else state.vocab
        return cls(schema=_parse_schema(state.schema) if state.schema else None, vocab=vocab)

    def after(self, block: Block) -> ChainTerms:
        """Returns the terms one block later."""
        match block.event:
            case SetDataSchema():
                return msgspec.structs.replace(self, schema=_parse_schema(block.event))
            case SetVocab():
                return msgspec.structs.replace(self, vocab=ChainState.EMPTY.advance(block).vocab)
            case UnknownEvent(variant=variant) if variant == KINDS["SetDataSchema"]:
                return msgspec.structs.replace(self, schema=None)
            case UnknownEvent(variant=variant) if variant == KINDS["SetVocab"]:
                return msgspec.structs.replace(self, vocab=None)
        return self


Bringing: TypeAlias = tuple[ChainTerms, Block]
"""A block that adds objects, with the terms in force there."""


def bringing_objects(terms: ChainTerms, blocks: Iterable[SealedBlock], *, linking: bool = False) -> Iterator[Bringing]:
    """Yields the blocks after ``terms`` that add objects. ``linking``: only those whose rows may have links."""
    wanted = not linking or bool(terms.links)
    for sealed in blocks:
        if sealed.objects:
            if wanted:
                yield terms, decode_block(sealed.raw)
        elif sealed.variant in _SAYING:
            terms = terms.after(decode_block(sealed.raw))
            wanted = not linking or bool(terms.links)


def pages_of(chain: ChainReader, start: int, stop: int, blocks: int) -> Iterator[tuple[ChainTerms, list[SealedBlock]]]:
    """Yields blocks ``start <= n < stop`` of a local chain, ``blocks`` at a time, with the terms before each."""
    checker = ChainChecker(load_state(chain, start))
    raws = chain.raw_blocks(start, stop)
    while page := list(islice(raws, blocks)):
        yield ChainTerms.of(checker.state), checker.take(page)


def _parse_schema(event: SetDataSchema) -> DataSchema | None:
    """Returns the declared schema in ODF's types, also for the legacy form; ``None`` when it is unreadable."""
    try:
        return schema_of(event)
    except Invalid:
        return None
