"""Reads which folder of this machine a text names. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from chain.errors import Refused

_PLACES: Final = "name a folder; odfctl import also reads https://, ipfs:// and ipns://"


def local_folder(place: str) -> Path:
    """Returns the folder that a path or a ``file://`` URL names. Raises Refused for other schemes."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise Refused(f"{parts.scheme}:// is not understood here", rule="transfer-place", hint=_PLACES)
    return Path(parts.path)
