"""Opens the database of a node also on a full disk, so that what is there can be read, and gives up a reserve for it.

What a killed node left can be read as it is (``chain.store.database``). Without it the index of the database's log has
to be made first, which takes 32 KiB for 4,096 pages.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from chain.errors import Environment
from chain.store import durable
from chain.store.database import Database

RESERVE: Final = "reserve"
_SIZE: Final = 128 << 10
"""Bytes of the file. They are random, since some file systems compress."""


def open_reserved(directory: Path, name: str, written: Callable[[], None] | None = None) -> Database:
    """Opens the database ``name``; makes the reserve if there is room. Raises Environment.

    ``written``: as for ``Database``.
    """
    reserve = directory / RESERVE
    try:
        database = Database(directory / name, written)
    except Environment as error:
        if error.rule != "disk-full" or not reserve.exists():
            raise
        reserve.unlink()
        database = Database(directory / name, written)
        database.is_full = True
    if not reserve.exists():
        with suppress(OSError):  # it is made at a later start
            durable.write(reserve, secrets.token_bytes(_SIZE))
    return database
