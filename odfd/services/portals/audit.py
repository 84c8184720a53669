"""Audits a portal: makes its blocks again from the private dataset, as those can who were given it and the salt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.parquet import open_slice
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.libraries import pa
from chain.model.block import Block
from chain.model.events import Vocab
from chain.model.portal import RULE, PortalRule, portal_rule
from chain.state import load_state
from chain.store.base import ChainReader, ObjectReader
from chain.store.objects import sound_path
from chain.walk import newest_first
from odfd.portals.rule import filter_rows
from odfd.services.portals.publication import (
    DATA,
    cut_hash,
    cut_of,
    input_hash,
    rows_of,
    rows_taken,
    sorted_rows,
    system_columns,
)


class Audited(NamedTuple):
    """The finding of an auditor about one block."""

    block: Block
    is_same: bool
    why: str = ""


def check_opening(rule: PortalRule, dataset: DatasetId, salt: bytes) -> None:
    """Raises Refused if, by this opening, the portal does not take its rows from that dataset."""
    if input_hash(salt, dataset) != rule.input:
        text = f"by this opening the portal is not made of {dataset.short}"
        raise Refused(text, rule="portal-opening", hint="ask its owner for the opening, and for what it is made of")


def audited_blocks(
    objects: ObjectReader, portal: ChainReader, private: ChainReader, dataset: DatasetId, salt: bytes
) -> Iterator[Audited]:
    """Makes each block of a portal again from the private dataset, oldest first, and compares the rows.

    Raises Refused for a dataset that is no portal, or a portal of another dataset; NotFound, ObjectDamaged,
    Environment.
    """
    state, known = load_state(portal), load_state(private)
    rule = None if state.schema is None else portal_rule(schema_of(state.schema))
    if rule is None or state.schema is None:
        raise Refused("the dataset is no portal", rule=RULE, hint="odfctl describe dataset NAME says what it is")
    check_opening(rule, dataset, salt)
    form, vocab = to_arrow(schema_of(state.schema)).remove_metadata(), state.vocab
    waiting = list(newest_first(private, DATA))
    for block in reversed(list(newest_first(portal, ("AddData",)))):
        cut = cut_of(block.event)
        taken: list[Block] = []
        while waiting and (not taken or cut_hash(salt, dataset, taken[-1]) != cut):
            taken.append(waiting.pop())
        if not taken or cut_hash(salt, dataset, taken[-1]) != cut:
            yield Audited(block, is_same=False, why="it names no block of the private dataset")
            return
        try:
            is_same = _is_same(objects, block, rows_taken(objects, taken, known, form, vocab), rule, vocab)
        except (Invalid, Refused) as fault:
            yield Audited(block, is_same=False, why=fault.message)
            continue
        yield Audited(block, is_same=is_same, why="" if is_same else "the private dataset gives other rows")


def _is_same(objects: ObjectReader, block: Block, rows: pa.Table, rule: PortalRule, vocab: Vocab) -> bool:
    event = rows_of(block)
    wanted = filter_rows(rule, rows)
    if event is None or event.new_data is None:
        return not wanted.num_rows
    names = [name for name in wanted.schema.names if name not in system_columns(vocab)]
    with open_slice(sound_path(objects, event.new_data.physical_hash)) as file:
        found = file.read(columns=names).replace_schema_metadata(None)
    return bool(sorted_rows(as_in_force(found, wanted.schema)).equals(wanted))
