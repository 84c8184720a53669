"""Defines the values of cards: what publishers tell of their datasets to those who have none of them."""

from __future__ import annotations

from odfd.control.wire.value import Value


class CardArea(Value, frozen=True, kw_only=True):
    """A box in degrees of WGS 84; ``west`` beyond ``east``: it crosses the 180th meridian."""

    west: float
    south: float
    east: float
    north: float


class CardWords(Value, frozen=True, kw_only=True):
    """A publisher's words about a dataset on its card, which nothing checks; empty where it says nothing."""

    title: str = ""
    place: str = ""
    area: CardArea | None = None
    frequency: str = ""
    """How often rows are added: ``daily``."""


class CardColumn(Value, frozen=True, kw_only=True):
    name: str
    type: str


class CardRows(Value, frozen=True, kw_only=True):
    """The newest rows of a dataset on its card."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | None, ...], ...] = ()
    """Values as texts, cut to 64 characters; ``None`` where there is none."""
    left_out: int = 0
    """Number of further rows that have no room in the card."""
