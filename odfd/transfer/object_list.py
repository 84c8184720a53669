"""Lists the objects that blocks name, in order: slices, checkpoints, and the objects that rows link to.

A ``NamedObjects`` is made for one walk along a chain and tracks the current schema, which says which columns are links.
Slices with links are opened to read those columns; all others are not touched. The datasets of a linked object are
recorded from slices that are here and checked: who may read the rows may read the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final, NamedTuple

from chain.codec.arrow_schema import schema_of
from chain.codec.blocks import decode_block
from chain.data.object_links import link_columns, links_in
from chain.ids import DatasetId
from chain.model.block import Block, SealedBlock
from chain.model.events import AddData, ExecuteTransform, SetDataSchema
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ObjectReader
from chain.store.database import Database
from chain.store.layout import CHECKPOINTS, DATA
from chain.store.schema import KINDS
from odfd.store.references import keep_links
from odfd.verify.terms import ChainTerms, bringing_objects

_PLAIN = (KINDS["AddData"], KINDS["ExecuteTransform"])


class NamedObject(NamedTuple):
    folder: str
    """Folder of the object in the ODF layout."""
    name: Multihash
    size: int


class NamedObjects:
    """Lists the named objects of one chain. ``objects`` holds the slices that are opened."""

    def __init__(self, state: ChainState, objects: ObjectReader) -> None:
        self._objects = objects
        self._links = link_columns(schema_of(state.schema)) if state.schema else ()

    def of_sealed(self, block: SealedBlock) -> Iterator[NamedObject]:
        """Yields as ``of``; does not decode data events without objects."""
        if block.objects or block.variant not in _PLAIN:
            yield from self.of(decode_block(block.raw))

    def of(self, block: Block) -> Iterator[NamedObject]:
        """Yields the objects of a block; call it in order. Raises Invalid, NotFound for an unreadable slice."""
        event = block.event
        if isinstance(event, SetDataSchema):
            self._links = link_columns(schema_of(event))
        if not isinstance(event, AddData | ExecuteTransform):
            return
        if (data := event.new_data) is not None:
            yield from self._list_linked(data.physical_hash)
            yield NamedObject(DATA, data.physical_hash, data.size)
        if event.new_checkpoint is not None:
            yield NamedObject(CHECKPOINTS, event.new_checkpoint.physical_hash, event.new_checkpoint.size)

    def _list_linked(self, name: Multihash) -> Iterator[NamedObject]:
        for linked in links_in(self._objects.path(name), self._links) if self._links else ():
            yield NamedObject(DATA, linked, self._objects.size(linked))


_PAGE: Final = 1024
"""Names recorded in one transaction."""


def note_links(
    database: Database, objects: ObjectReader, dataset: DatasetId, terms: ChainTerms, blocks: Iterable[SealedBlock]
) -> None:
    """Records links of slices that blocks after ``terms`` add; others cost one check. Raises NotFound, Invalid."""
    for in_force, block in bringing_objects(terms, blocks, linking=True):
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
            continue
        with closing(links_in(objects.path(event.new_data.physical_hash), in_force.links)) as names:
            while page := list(islice(names, _PAGE)):
                with database.write() as connection:
                    keep_links(connection, dataset, block.sequence_number, page)


def may_link(terms: ChainTerms, blocks: Iterable[SealedBlock]) -> bool:
    """Whether any of the blocks after ``terms`` may bring rows with links."""
    return next(bringing_objects(terms, blocks, linking=True), None) is not None
