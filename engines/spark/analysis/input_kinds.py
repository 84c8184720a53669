"""Describes the rows of each input to a query: facts or statements, and whether they can be retracted. Values.

Spec: docs/spec/engine-semantics.md#readings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Readings:
    """Of all inputs, by alias; of one that is not named nothing is known."""

    operations: Mapping[str, str] = field(default_factory=dict)
    """Name of the column that says whether a row adds or takes back."""
    logs: frozenset[str] = frozenset()
    """Inputs of which every statement is an event."""
    changes: Mapping[str, bool | None] = field(default_factory=dict)
    """Whether rows can be taken back, by the input's chain; ``None``: it does not say."""

    offsets: Mapping[str, str] = field(default_factory=dict)
    """Name of the column that numbers the rows of an input's chain, each with another number."""

    def can_change(self, alias: str) -> bool | None:
        """As the query sees the input: events stay."""
        return False if alias in self.logs else self.changes.get(alias)


UNKNOWN: Final = Readings()
"""Of inputs of which nothing is known."""
