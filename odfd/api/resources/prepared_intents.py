"""Holds the intents of an apply until they are recorded with everything else, and brings them into force after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import trio

from chain.errors import Fault
from chain.ids import DatasetId
from odfd.control import wire

TAKE_UP_SECONDS: Final = 30.0
"""Longest time for which an apply waits until what it recorded is in force; the next start does what is left."""


class PreparedIntent(NamedTuple):
    """An intent that can be recorded, or why it cannot be."""

    item: wire.ApplyItem
    record: Callable[[sqlite3.Connection], None] | None = None
    """Writes it in the transaction of the apply; ``None``: nothing is to be done. Raises Invalid, Refused."""
    take_up: Callable[[], Awaitable[object]] | None = None
    """Brings it into force after the transaction."""
    first: Callable[[], Awaitable[object]] | None = None
    """What has to be done before the transaction: deleted data of a mirror is taken back."""
    dataset: DatasetId | None = None
    """The dataset that the mirror makes known by the name of the item."""

    @property
    def key(self) -> str:
        """Distinguishes it from other items of an apply, also from datasets, whose names have no spaces."""
        return f"{self.item.kind} {self.item.name.casefold()}"


async def taken_up(prepared: Sequence[PreparedIntent]) -> list[wire.ApplyItem]:
    """Brings recorded intents into force; what cannot be yet is a warning, since the declaration stands."""
    items = []
    with trio.CancelScope(shield=True, deadline=trio.current_time() + TAKE_UP_SECONDS):
        for each in prepared:
            item = each.item
            try:
                if each.take_up is not None:
                    await each.take_up()
            except Fault as fault:
                text = f"it is declared, and not in force yet: {fault.message}"
                item = msgspec.structs.replace(item, warnings=(*item.warnings, text))
            items.append(item)
    return [*items, *(each.item for each in prepared[len(items) :])]
