"""Defines the guess about a file: the read step of a manifest, its columns, and doubts."""

from __future__ import annotations

from typing import Any, NamedTuple


class Guess(NamedTuple):
    """A guess; ``read``: the step of a manifest. ``columns``: names and types in DDL, with the doubts about each.

    ``gaps``: the columns in which a row of the sample has no value.
    """

    read: dict[str, Any]
    columns: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    unsure: tuple[str, ...] = ()
    gaps: frozenset[str] = frozenset()
