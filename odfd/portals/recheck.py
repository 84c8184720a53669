"""Checks a portal's rows against its rule, as all can who have them, and against the private input, as auditors can.

A portal promises that its rows keep its rule, in each block and over all blocks. Only those who were given the private
dataset and the salt can tell where the rows came from.
"""

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
from chain.model.events import AddData, SetDataSchema, Vocab
from chain.model.portal import RULE, PortalRule, portal_rule
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.base import ChainReader, ObjectReader
from chain.store.objects import sound_path
from chain.walk import KindIndex, newest_first
from odfd.portals.publication import (
    DATA,
    cut_hash,
    cut_of,
    input_hash,
    rows_of,
    rows_taken,
    sorted_rows,
    system_columns,
)
from odfd.portals.rule import Breach, Earlier, breaches, check_columns, filter_rows

_TOLD = ("SetDataSchema", "AddData")


class Broken(NamedTuple):
    """A block of a portal that breaks its rule, and how."""

    block: Block
    breach: Breach


class Audited(NamedTuple):
    """The finding of an auditor about one block."""

    block: Block
    is_same: bool
    why: str = ""


def rule_at(chain: KindIndex, before: int) -> PortalRule | None:
    """Returns the first rule that a chain declared; ``None`` if it is no portal. Raises Invalid."""
    said = [_parse_schema(each.event)[0] for each in newest_first(chain, ("SetDataSchema",), before)]
    return next((each for each in reversed(said) if each is not None), None)


def broken_blocks(chain: KindIndex, objects: ObjectReader, before: int) -> Iterator[Broken]:
    """Yields blocks below ``before`` that break the rule of a portal; nothing for another dataset.

    Reads only the columns in the rule, of each slice that is here. Raises Environment.
    """
    if rule_at(chain, before) is None:
        return
    rule: PortalRule | None = None
    form: pa.Schema | None = None
    earlier: Earlier | None = None
    for block in reversed(list(newest_first(chain, _TOLD, before))):
        event = block.event
        if isinstance(event, SetDataSchema):
            said, form = _parse_schema(event)
            if rule is not None and said != rule:
                yield Broken(block, Breach(RULE, "the rule of the portal is another from here on"))
            if rule is None and said is not None:
                rule, earlier = said, Earlier(said)
        elif isinstance(event, AddData) and event.new_data is not None and rule and form and earlier:
            if not objects.has(event.new_data.physical_hash):
                continue  # reported as missing elsewhere, or not kept here
            try:
                check_columns(rule, form)
                rows = _columns(objects, event.new_data.physical_hash, form, rule.columns)
                yield from (Broken(block, each) for each in breaches(rule, rows, earlier))
            except (Invalid, Refused) as fault:
                yield Broken(block, Breach(fault.rule or RULE, fault.message))


def _parse_schema(event: object) -> tuple[PortalRule | None, pa.Schema]:
    assert isinstance(event, SetDataSchema)
    schema = schema_of(event)
    return portal_rule(schema), to_arrow(schema).remove_metadata()


def _columns(objects: ObjectReader, name: Multihash, form: pa.Schema, columns: tuple[str, ...]) -> pa.Table:
    wanted = pa.schema([form.field(each) for each in columns])
    with open_slice(objects.content(name)) as file:
        rows = [
            as_in_force(pa.Table.from_batches([each]).replace_schema_metadata(None), wanted)
            for each in file.batches(columns=list(columns))
        ]
    return pa.concat_tables(rows) if rows else wanted.empty_table()


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
    names = [each for each in wanted.schema.names if each not in system_columns(vocab)]
    with open_slice(sound_path(objects, event.new_data.physical_hash)) as file:
        found = file.read(columns=names).replace_schema_metadata(None)
    return bool(sorted_rows(as_in_force(found, wanted.schema)).equals(wanted))
