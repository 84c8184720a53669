"""Names the operations, by which a record of a slice acts on earlier rows, and counts records by operation. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

APPEND: Final = 0
RETRACT: Final = 1
CORRECT_FROM: Final = 2
CORRECT_TO: Final = 3
"""Codes of the operations, as in the column ``op``."""
CODES: Final = 4
"""Number of operations; their codes count from 0."""


class Operations(NamedTuple):
    """Numbers of a slice's records, by operation."""

    append: int
    retract: int
    correct_from: int
    correct_to: int

    @property
    def corrections(self) -> int:
        """Number of rows that were replaced, even if only one of the two records of each is present."""
        return max(self.correct_from, self.correct_to)


NO_RECORDS: Final = Operations(0, 0, 0, 0)
