"""Knows folders and chains of formats before the present one, which an import converts.

The format is loaded when one is met: a package names an object like ``FormerFormat`` by the entry point ``odf-0.18`` of
the group ``odfd.chains``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Protocol

from chain.ids import DatasetId
from chain.model.events import AddData
from chain.store.base import ChainReader, ObjectReader
from chain.store.files import disk
from odfd.runtime.extensions import CHAINS, load_extension

FORMER: Final = "w3id.org/odfd/former-block"
"""Field of a data block with the text of the former block; also the kind of the source state beside it."""
_HEAD: Final = "refs/head"
_PLACES: Final = ("meta", "")
_HASH: Final = re.compile(r"[0-9a-f]{64}\s*\Z")
_MAX_REF: Final = 256


class FormerComparison(Protocol):
    """The extent to which two chains hold the same."""

    def told(self) -> str:
        """Describes it for people."""


class FormerFormat(Protocol):
    """Converts datasets of ODF 0.18. Blocking."""

    def convert(self, folder: Path, target: Path, dataset: DatasetId) -> None:
        """Writes the dataset of a folder to an empty one, after the former chain was verified.

        Raises Invalid for parts without a counterpart, NotFound, Environment.
        """

    def compare(self, chain: ChainReader, objects: ObjectReader) -> FormerComparison:
        """Compares a converted dataset with the former chain inside of it.

        Raises Invalid with the first block that differs, NotFound for a missing slice.
        """


def load_former_format() -> FormerFormat:
    """Raises Refused if it is not installed. Blocking."""
    found: FormerFormat = load_extension(CHAINS, "odf-0.18", "datasets of ODF 0.18", "former-format")
    return found


def find_former(folder: Path) -> tuple[Path, str] | None:
    """Returns the folder of blocks and the hash of the last one; ``None`` without a dataset of ODF 0.18."""
    for place in _PLACES:
        file = folder / place / _HEAD
        with disk(file):
            if not file.is_file():
                continue
            with file.open("rb") as opened:
                text = opened.read(_MAX_REF).decode("ascii", "replace")
            if _HASH.match(text):
                return folder / place, text.strip()
    return None


def is_converted(chain: ChainReader) -> bool:
    """Whether a chain has former blocks inside, judged by its last block of data."""
    last = chain.last_of(("AddData",))
    return last is not None and isinstance(last.event, AddData) and FORMER in (last.event.extra or {})
