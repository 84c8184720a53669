"""Records which datasets an object belongs to that rows link to: whoever may have the rows may have the object.

The names are read from the slices, which are here and checked; nothing is held but one page of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from typing import Final

from chain.data.links import links_in
from chain.ids import DatasetId
from chain.model.block import SealedBlock
from chain.model.events import AddData, ExecuteTransform
from chain.store.base import ObjectReader
from chain.store.database import Database
from odfd.datasets.references import keep_links
from odfd.verify.terms import ChainTerms, bringing_objects

_PAGE: Final = 1024
"""Names noted in one transaction."""


def note_links(
    database: Database, objects: ObjectReader, dataset: DatasetId, terms: ChainTerms, blocks: Iterable[SealedBlock]
) -> None:
    """Of slices that blocks after ``terms`` bring. Blocks without links cost a look each. Raises NotFound, Invalid."""
    for said, block in bringing_objects(terms, blocks, linking=True):
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_data is None:
            continue
        with closing(links_in(objects.path(event.new_data.physical_hash), said.links)) as names:
            while page := list(islice(names, _PAGE)):
                with database.write() as connection:
                    keep_links(connection, dataset, block.sequence_number, page)


def may_link(terms: ChainTerms, blocks: Iterable[SealedBlock]) -> bool:
    """Whether any of the blocks after ``terms`` may bring rows with links."""
    return next(bringing_objects(terms, blocks, linking=True), None) is not None
