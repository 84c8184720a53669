"""Reads the files of the page: HTML, style, scripts of ours and of the libraries that they are made with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).with_name("static")
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    content: bytes
    media_type: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Returns the files by path. Requests are looked up here, so that no request names a path of the disk."""
    found = {
        f"/{path.relative_to(FOLDER).as_posix()}": PageFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _TYPES
    }
    return {"/": found.pop("/index.html"), **found}
