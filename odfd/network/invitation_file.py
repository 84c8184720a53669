"""Fetches an invitation that somebody published as a file on the web: ``odfctl join https://example.org``.

The file holds the line that ``odfctl network invite`` prints. It is trusted as far as that line is: the inviter signed
it, and it is shown before anybody joins. Another line put in its place on the way would be as valid, so only https is
used, except with a server on this machine. If only a server is named, the well-known path (RFC 8615) is fetched.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from chain.errors import Invalid, NotFound, Remote
from odfd.network.invitation import MAX_TEXT
from p2p.ports import RemoteFiles
from p2p.web.client import Patience

SCHEME: Final = "https://"
WELL_KNOWN: Final = "/.well-known/odf-invitation"
MAX_FILE: Final = MAX_TEXT + 1024
"""Bytes to read at most: the longest line, with white space around it."""
MAX_URL: Final = 2048
PATIENCE: Final = Patience(connect=5.0, silence=10.0, span=10.0, least=64, total=20.0)
"""Limits of the fetch; short, because a person waits for it."""
_ASK: Final = "ask who invites for another address, or for the line itself (odf:…)"


def is_url(text: str) -> bool:
    """Whether a text is the address of an invitation, rather than an invitation."""
    return "://" in text[:16]


def invitation_url(text: str) -> str:
    """Returns the URL of the file that a text names. Raises Invalid."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _no_url(text, str(error)) from error
    if len(text) > MAX_URL or not text.isascii() or not text.isprintable() or " " in text:
        raise _no_url(text, f"at most {MAX_URL:,} printable characters of ASCII")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(host)):
        raise _no_url(text, "anybody on the way could put another one in its place", "begin it with https://")
    if not host or port == 0:
        raise _no_url(text, "it names no server")
    if parts.username is not None or parts.password is not None:
        raise _no_url(text, "it holds a name or a password")
    path = parts.path if parts.path not in ("", "/") or parts.query else WELL_KNOWN
    return parts._replace(path=path, fragment="").geturl()


async def fetch_invitation(url: str, web: RemoteFiles) -> str:
    """Fetches the text of the file, which ``read_invitation`` checks. Raises Remote, NotFound, Invalid."""
    try:
        body = await web.cat(url, MAX_FILE)
    except Remote as fault:
        fault.hint = _ASK  # nothing asks again by itself, as a mirror does
        raise
    if body is None:
        raise NotFound(f"there is no invitation at {url}", rule="invitation-file", hint=_ASK)
    try:
        return body.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise Invalid(f"what {url} holds is no invitation", rule="invitation", hint=_ASK) from error


def _is_here(host: str | None) -> bool:
    """Whether a server is on this machine, so that nobody is on the way."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host or ""))


def _no_url(text: str, why: str, hint: str = _ASK) -> Invalid:
    return Invalid(f"not the address of an invitation: {text[:100]!r}: {why}", rule="invitation-url", hint=hint)
