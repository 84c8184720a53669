"""Reads what each record of a slice does to the rows before it, and counts records by operation. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

APPEND: Final = 0
RETRACT: Final = 1
CORRECT_FROM: Final = 2
CORRECT_TO: Final = 3
"""Codes of the operations, as the column ``op`` has them."""
CODES: Final = 4
"""How many operations there are; their codes count from 0."""


class Operations(NamedTuple):
    """Records of a slice by what they do."""

    append: int
    retract: int
    correct_from: int
    correct_to: int

    @property
    def corrections(self) -> int:
        """Rows that took the place of others, whether or not both records of each are there."""
        return max(self.correct_from, self.correct_to)


NO_RECORDS: Final = Operations(0, 0, 0, 0)
