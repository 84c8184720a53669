"""Parses URLs of SFTP, and checks public keys of servers. Pure."""

from __future__ import annotations

import re
import urllib.parse
from typing import Final, NamedTuple

from chain.errors import Invalid

SCHEME: Final = "sftp://"
HOME: Final = "/~/"
"""Begins a path in the folder where the user arrives."""
_URL: Final = re.compile(
    r"sftp://(?:([^@/]*)@)?([A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::([0-9]{1,5}))?(/[^\x00-\x1f\x7f]+)\Z"
)
_HOST_KEY: Final = re.compile(r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}\Z")


class SftpAddress(NamedTuple):
    """A user at a server, and a path there; without a leading slash it is relative to the user's initial folder."""

    user: str
    password: str | None
    host: str
    port: int
    path: str


def sftp_address(url: str, *, is_pattern: bool = False) -> SftpAddress:
    """Parses a URL, or a pattern. Raises Invalid, whose message does not repeat it."""
    found = _URL.match(url)
    if found is None or not found[1] or int(found[3] or 22) >= 1 << 16:
        raise _bad("it names no host, no user, or no path")
    user, colon, password = found[1].partition(":")
    path = found[4] if is_pattern else urllib.parse.unquote(found[4])
    path = path.removeprefix(HOME) if path.startswith(HOME) else path
    if any(part in ("", ".", "..") for part in path.removeprefix("/").split("/")) or "\0" in path:
        raise _bad("a path has names between single slashes")
    said = urllib.parse.unquote(password) if colon else None
    return SftpAddress(urllib.parse.unquote(user), said, found[2].strip("[]"), int(found[3] or 22), path)


def is_host_key(text: str) -> bool:
    """Whether a text has the form of a server's public key, as a line of OpenSSH without a comment."""
    return _HOST_KEY.match(text) is not None


def _bad(why: str) -> Invalid:
    return Invalid(why, rule="url-host")
