"""Parses the URL of a published dataset's folder."""

from __future__ import annotations

import re
from typing import Final

import httpx

from chain.errors import Invalid

MAX_URL: Final = 2048
"""Characters of a URL that is parsed."""
MAX_PORT: Final = 65_535
_LOOKS: Final = re.compile(r"(?i)https?://")
_HINT: Final = "it is the folder that holds refs and blocks, like https://data.example/nyc.flights"


def place_of(source: str) -> str | None:
    """Returns the folder's URL without its last slash; ``None``: ``source`` is no HTTP URL. Raises Invalid."""
    if not _LOOKS.match(source):
        return None
    if len(source) > MAX_URL:
        raise _bad(source, f"it has {len(source):,} characters, and {MAX_URL:,} are allowed")
    try:
        url = httpx.URL(str(httpx.URL(source)))  # what it is made of first may hide that a port is the usual one
    except httpx.InvalidURL as error:
        raise _bad(source, str(error)) from error
    if not url.host or (url.port or 0) > MAX_PORT:
        raise _bad(source, "it names no host, or an invalid port")
    if "%" in url.host:
        raise _bad(source, "an address with a zone is good on one link of one machine alone")
    if url.userinfo:
        raise Invalid("a password in a URL would be shown wherever the URL is", rule="web-place", hint=_HINT)
    if url.query or url.fragment:
        raise _bad(source, "a folder has neither ? nor #")
    return str(url).rstrip("/")


def name_in(place: str) -> str:
    """Returns the last part of the URL's path, which people may use as a name;
    empty if there is none, as under a gateway."""
    *_, above, last = ("", "", *httpx.URL(place).path.rstrip("/").split("/"))
    return "" if above in ("ipfs", "ipns") else last


def _bad(source: str, why: str) -> Invalid:
    return Invalid(f"{source[:80]!r} is not a URL of a folder: {why}", rule="web-place", hint=_HINT)
