"""Says on whose behalf a query runs, as far as taking turns goes."""

from __future__ import annotations

import enum
from typing import Final

import msgspec


class Crowd(enum.Enum):
    """Callers who are treated alike. The value: seconds that a query has while another caller waits."""

    OWNER = float("inf")
    ACCOUNTS = 60.0
    STRANGERS = 10.0


class QueryCaller(msgspec.Struct, frozen=True):
    """A caller whose queries take turns with those of others."""

    crowd: Crowd
    name: str = ""
    """An account's id, or a stranger's block of addresses; empty if it is not known, and then each is another's."""


OWNER_ITSELF: Final = QueryCaller(Crowd.OWNER, "owner")
