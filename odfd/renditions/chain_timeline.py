"""Writes the rendition chain, M, into the chain of the rendition that is active, and reads it there.

The owner signs the rows with the chain's head, and whoever copies the chain has them. The frontier of M needs no field:
a handover is never before the frontier of the rendition that it ends, so M is decided up to that of the active one,
which its signed head states. Other implementations pass the keywords over. Pure. Spec:
docs/spec/collections.md#published.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.events import SetInfo
from chain.store.base import ChainReader
from odfd.renditions.timeline import SWITCHES, Timeline

LOOKED: Final = 64
"""Descriptions of a chain that are looked at, the newest: its owner may write any number, and each view of it asks."""
_WORD: Final = "odfd/rendition"
_KEYWORD: Final = re.compile(
    _WORD + r":(?P<number>\d{1,4})@(?P<time>\d{1,15}):(?P<to>did:odf:[0-9a-z]{1,128}):(?P<shards>[1-9]\d?)\Z"
)


class SignedSwitch(msgspec.Struct, frozen=True):
    """From ``time`` (ms) on the rendition is active whose first chain is ``to``. The first one counts from 0."""

    number: int
    """The owner's number of the rendition."""
    time: int
    to: DatasetId
    shards: int


def is_row(word: str) -> bool:
    return _KEYWORD.match(word) is not None


def words_of(timeline: Timeline) -> tuple[str, ...]:
    """Returns the keywords that say all of M."""
    return tuple(
        f"{_WORD}:{switch.to.number}@{switch.time}:{switch.to.shards[0]}:{len(switch.to.shards)}"
        for switch in timeline.switches
    )


def rows_in(info: SetInfo | None) -> tuple[SignedSwitch, ...]:
    """Returns the rows that a description says, in their order; none if it says none, or what cannot be M."""
    found = [match for word in (info.keywords or () if info is not None else ()) if (match := _KEYWORD.match(word))]
    try:
        rows = tuple(
            SignedSwitch(int(each["number"]), int(each["time"]), DatasetId.parse(each["to"]), int(each["shards"]))
            for each in found[: SWITCHES + 1]
        )
    except (Invalid, ValueError):
        return ()
    is_sound = len(rows) <= SWITCHES and all(before.time < after.time for before, after in pairwise(rows))
    return rows if is_sound else ()


def rows_of(chain: ChainReader, dataset: DatasetId) -> tuple[SignedSwitch, ...]:
    """Returns M as the chain of a rendition says it; none if the rendition was never handed over to.

    Later descriptions may leave the keywords out, and a copied one may have those of another rendition. At most
    ``LOOKED`` are looked at.
    """
    before = None
    for _ in range(LOOKED):
        block = chain.last_of(("SetInfo",), before)
        if block is None:
            break
        rows = rows_in(block.event) if isinstance(block.event, SetInfo) else ()
        if rows and rows[-1].to == dataset:
            return rows
        before = block.sequence_number
    return ()


def row_at(rows: Sequence[SignedSwitch], time: int) -> SignedSwitch | None:
    """Returns the row that holds at a time; ``None`` without rows."""
    return next((row for row in reversed(rows) if row.time <= time), rows[0] if rows else None)


def check(rows: Sequence[SignedSwitch], timeline: Timeline) -> None:
    """Raises Invalid if M contradicts handovers that were followed, each as the chain that ended signed it."""
    if not rows:
        return
    said = {(row.time, str(row.to)) for row in rows}
    for switch in timeline.switches[1:]:
        if (switch.time, switch.to.shards[0]) not in said and switch.time <= rows[-1].time:
            raise Invalid(
                f"its owner signed a handover to {switch.to.shards[0]} at {switch.time}, and now that there was none",
                rule="rendition-timeline",
                hint="ask its owner; the rows read so far stay as they are",
            )
