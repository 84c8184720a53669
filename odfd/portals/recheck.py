"""Checks a portal's rows against its rule, which they keep in each block and over all blocks, as all can who have them.

Only those who were given the private dataset and the salt can tell where the rows came from (``services/portals``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.parquet import open_slice
from chain.errors import Invalid, Refused
from chain.libraries import pa
from chain.model.block import Block
from chain.model.events import AddData, SetDataSchema
from chain.model.portal import RULE, PortalRule, portal_rule
from chain.multihash import Multihash
from chain.store.base import ObjectReader
from chain.walk import KindIndex, newest_first
from odfd.portals.rule import Breach, Earlier, breaches, check_columns

_TOLD = ("SetDataSchema", "AddData")


class Broken(NamedTuple):
    """A block of a portal that breaks its rule, and how."""

    block: Block
    breach: Breach


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
                yield from (Broken(block, breach) for breach in breaches(rule, rows, earlier))
            except (Invalid, Refused) as fault:
                yield Broken(block, Breach(fault.rule or RULE, fault.message))


def _parse_schema(event: object) -> tuple[PortalRule | None, pa.Schema]:
    assert isinstance(event, SetDataSchema)
    schema = schema_of(event)
    return portal_rule(schema), to_arrow(schema).remove_metadata()


def _columns(objects: ObjectReader, name: Multihash, form: pa.Schema, columns: tuple[str, ...]) -> pa.Table:
    wanted = pa.schema([form.field(column) for column in columns])
    with open_slice(objects.content(name)) as file:
        rows = [
            as_in_force(pa.Table.from_batches([batch]).replace_schema_metadata(None), wanted)
            for batch in file.batches(columns=list(columns))
        ]
    return pa.concat_tables(rows) if rows else wanted.empty_table()
