"""Formats counts, sizes, times and hashes for people; a missing value is a dash. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from chain import instant, wording
from chain.errors import Invalid
from chain.instant import SECOND, Instant
from chain.wording import plural as plural

if TYPE_CHECKING:
    from odfd.control import wire

NOTHING: Final = "-"
_SPANS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def withdrawal(at: str | None) -> str:
    """Formats ``withdrawn by its publisher on 2026-11-27``; empty if it was not."""
    return f"withdrawn by its publisher on {at[:10]}" if at else ""


def cell(value: Any) -> str:
    """Formats a value of a record."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def count(value: Any) -> str:
    """Formats a number as ``336,776``."""
    return NOTHING if value is None else f"{value:,}"


def size(value: float | None) -> str:
    """Formats bytes with three digits: ``31.2 MB``."""
    if value is None:
        return NOTHING
    return wording.size(value)


def rate(bytes_a_second: float | None) -> str:
    """Formats ``31.2 MB/s``."""
    return NOTHING if bytes_a_second is None else f"{wording.size(bytes_a_second)}/s"


def span(seconds: float) -> str:
    """Formats a duration as ``45 s``, ``4 min``, ``3 h``, ``12 d``."""
    whole = max(0, int(seconds))
    length, unit = next(((length, unit) for length, unit in _SPANS if whole >= length), _SPANS[-1])
    return f"{whole // length} {unit}"


def ago(time: str | None, now: Instant) -> str:
    """Formats ``4 min ago``; a future time as it is."""
    if not time:
        return NOTHING
    try:
        passed = now - instant.parse(time)
    except Invalid:
        return time
    return moment(time) if passed < 0 else f"{span(passed / SECOND)} ago"


def moment(time: str | None) -> str:
    """Formats a time without redundant parts: midnight is a date; zero fractions and the zone are left out."""
    if not time:
        return NOTHING
    date, _, clock = time.rstrip("Z").partition("T")
    if not clock or clock == "00:00:00":
        return date
    return f"{date} {clock.partition('.')[0]}"


def digest(text: str | None) -> str:
    """Shortens a hash or digest so that two can be compared by eye: ``f1620 9c41…b2``, ``sha256:5d1e…a0``."""
    if not text:
        return NOTHING
    for mark, gap in (("f1620", " "), ("fe09600120", " "), ("sha256:", "")):
        if text.startswith(mark) and len(text) > len(mark) + 8:
            return f"{mark}{gap}{text[len(mark) : len(mark) + 4]}…{text[-2:]}"
    return text


def peer(peer_id: str) -> str:
    """Shortens a peer id so that its beginning can be used in commands, and no other key is easily made to look so."""
    return f"{peer_id[:12]}…{peer_id[-8:]}" if len(peer_id) > 24 else peer_id


def node(named: wire.PeerName | None) -> str:
    """Formats a node as its id and then its name, which nothing checks; names alone identify nobody."""
    return NOTHING if named is None else f"{peer(named.peer_id)} {named.name or ''}".rstrip()


def contact(by: str) -> str:
    """Formats how the first head of a foreign dataset was accepted."""
    return by.replace("-", " ")


def identity(text: str | None) -> str:
    """Shortens a DID or peer id: ``did:odf:fed01a3…7c``, ``z6Mkt…Qe4``."""
    if not text:
        return NOTHING
    if text.startswith("did:odf:") and len(text) > 24:
        return f"{text[:15]}…{text[-2:]}"
    bare = text.removeprefix("did:key:")
    return f"{bare[:5]}…{bare[-3:]}" if len(bare) > 24 else bare
