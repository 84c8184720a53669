"""Derives the facts of a dataset's card from its chain, and its sample: the newest rows that hold, as short texts.

Texts and lists are cut to the limits of a card. Rows are read from the dataset's own published blocks, and so have the
columns that whoever mirrors it gets, and no row that a portal's rule left out. Spec: docs/spec/trust.md#cards; ADR 85.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from chain.codec.arrow_schema import schema_of
from chain.data.arrow_schema import to_arrow
from chain.data.json_values import plain_rows
from chain.data.operations import CORRECT_FROM, RETRACT
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.changelog import says_changelog
from chain.model.events import DatasetKind
from chain.model.portal import described, portal_rule
from chain.state import ChainState
from chain.statements import card
from chain.statements.card import CardColumn, CardSample, ChainFacts
from chain.statements.statement import when
from chain.store.base import ChainReader
from odfd.datasets import previews
from odfd.renditions.successor import without_notice

_CUT: Final = "…"


def facts_of(state: ChainState, created_at: Instant) -> ChainFacts:
    """Derives the facts from the state of a chain with at least one block; ``created_at``: the time of the first."""
    info, licence = without_notice(state.set_info), state.set_license
    columns = [] if state.schema is None else list(previews.columns_of(state.schema))
    shown = columns[: card.MAX_COLUMNS]
    keywords = () if info is None else info.keywords or ()
    return ChainFacts(
        kind="derivative" if state.kind is DatasetKind.DERIVATIVE else "root",
        records=state.next_offset,
        created_at=when(created_at),
        updated_at=when(state.system_time or created_at),
        watermark=None if state.watermark is None else when(state.watermark),
        description=cut((info.description if info else None) or "", card.MAX_DESCRIPTION),
        keywords=tuple(cut(each, card.MAX_WORD) for each in keywords[: card.MAX_KEYWORDS] if each),
        license="" if licence is None else cut(licence.short_name, card.MAX_WORD),
        license_url="" if licence is None or len(licence.website_url) > card.MAX_URL else licence.website_url,
        columns=tuple(
            CardColumn(name=cut(name, card.MAX_WORD), type=cut(kind, card.MAX_WORD)) for name, kind, *_ in shown
        ),
        more_columns=len(columns) - len(shown),
        inputs=tuple(_inputs(state)),
        portal=cut(_portal(state), card.MAX_URL),
    )


def list_shortened(facts: ChainFacts, state: ChainState) -> tuple[str, ...]:
    """Names the texts and lists of which a card has a part only."""
    info = without_notice(state.set_info)
    columns = [] if state.schema is None else [name for name, *_ in previews.columns_of(state.schema)]
    whole = {
        "description": ((info.description if info else None) or "", facts.description),
        "keywords": (tuple((info.keywords if info else None) or ()), facts.keywords),
        "columns": (columns, [each.name for each in facts.columns]),
        "inputs": (len(state.set_transform.inputs) if state.set_transform else 0, len(facts.inputs)),
    }
    return tuple(name for name, (all_of_it, kept) in whole.items() if all_of_it != kept)


def _portal(state: ChainState) -> str:
    """Describes the rule of a portal; empty for another dataset, or a rule of a newer version."""
    with suppress(Invalid):
        rule = None if state.schema is None else portal_rule(state.schema.schema)
        return "" if rule is None else described(rule)
    return ""


def cut(text: str, most: int) -> str:
    """Shortens a text to at most ``most`` characters, the last of which then marks the cut."""
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def _inputs(state: ChainState) -> list[DatasetId]:
    found: list[DatasetId] = []
    for each in state.set_transform.inputs if state.set_transform else ():
        with suppress(Invalid):  # names that are no ids are left out
            found.append(DatasetId.parse(each.dataset_ref))
    return found[: card.MAX_INPUTS]


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
