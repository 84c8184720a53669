"""What a record of a slice does to the rows before it, and how many of a slice do what. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

CODES: Final = 4
"""Operations that there are: append, retract, correct from, correct to; their codes count from 0 in this order."""


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
