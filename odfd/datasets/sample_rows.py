"""Reads the rows that the card of a dataset shows: the newest ones that hold, as short texts.

They are read from the dataset's own published blocks, and so have the columns that whoever mirrors it gets, and no row
that a portal's rule left out. Spec: docs/spec/trust.md#cards; ADR 85.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.json_values import plain_rows
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.model.changelog import says_changelog
from chain.state import ChainState
from chain.statements import card
from chain.statements.card import CardSample
from chain.store.base import ChainReader
from odfd.datasets import previews
from odfd.datasets.card_facts import cut

LOOKED_AT: Final = 256
"""Newest rows of a dataset whose rows can be retracted, among which those to show are looked for."""


def sample_of(
    chain: ChainReader, files: previews.SoundFiles, state: ChainState, asked: int, *, first: int, before: int
) -> CardSample:
    """Returns the newest ``asked`` rows of blocks from ``first`` to below ``before``, at most ``card.MAX_SAMPLE``.

    Raises Invalid, NotFound, Environment for rows that cannot be read.
    """
    asked = min(asked, card.MAX_SAMPLE)
    if state.schema is None or not asked:
        return CardSample()
    vocab, names = state.vocab, [name for name, *_ in previews.columns_of(state.schema)][: card.MAX_COLUMNS]
    hidden = {vocab.offset, vocab.operation_type, vocab.system_time}
    places = tuple(place for place, name in enumerate(names) if name not in hidden)
    is_changed = state.schema.schema is None or says_changelog(state.schema.schema)
    schema = to_arrow(schema_of(state.schema))
    table = previews.tail(chain, files, LOOKED_AT if is_changed else asked, schema, first, before)
    if table is None:
        return CardSample()
    rows = plain_rows(table.select([names[place] for place in places]))
    if is_changed and vocab.operation_type in table.column_names:
        rows = _holding(rows, table.column(vocab.operation_type).to_pylist())
    return CardSample(columns=places, rows=tuple(tuple(map(_text, row)) for row in rows[-asked:]))


def _holding(rows: Sequence[tuple[Any, ...]], operations: Sequence[int]) -> list[tuple[Any, ...]]:
    """Returns the rows that no later one of them takes back."""
    kept: list[tuple[Any, ...]] = []
    for row, operation in zip(rows, operations, strict=True):
        if operation not in (RETRACT, CORRECT_FROM):
            kept.append(row)
        elif row in kept:
            kept.remove(row)
    return kept


def _text(value: Any) -> str | bool:
    if value is None:
        return False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(text, card.MAX_CELL)
