"""Makes the values of the API that show what is on cards."""

from __future__ import annotations

from chain.statements.area import Area
from chain.statements.card import Card, PublisherClaims
from odfd.control import wire
from odfd.store.card_choices import ChosenWords


def words_view(words: ChosenWords | PublisherClaims) -> wire.CardWords:
    """Shows a publisher's words, of which the area is one that was checked."""
    area = None
    if words.area:
        west, south, east, north = Area.parse(words.area).degrees
        area = wire.CardArea(west=west, south=south, east=east, north=north)
    return wire.CardWords(title=words.title, place=words.place, area=area, frequency=words.frequency)


def rows_on(card: Card) -> wire.CardRows | None:
    facts, sample = card.chain, card.sample
    if sample is None or facts is None:
        return None
    rows = tuple(tuple(cell if isinstance(cell, str) else None for cell in row) for row in sample.rows)
    names = tuple(facts.columns[place].name for place in sample.columns)
    return wire.CardRows(columns=names, rows=rows, left_out=sample.left_out)
